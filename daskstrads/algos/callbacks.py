"""scikit-learn's callbacks (sklearn.callback, 1.9 or later) in a fit: a task a target, a task a pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..engine.run import on_cluster
from .progress import Asked, Follower, Told, table

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9 has none

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing: there are no callbacks."""

    def with_callbacks(method: Any) -> Any:
        """The method as it is."""
        return method


__all__ = ["CallbackSupportMixin", "Calls", "with_callbacks"]


class Calls:
    """The hooks of a model's callbacks, called as its fit goes on.

    The fit's tasks are its passes; with several `targets` its targets, and theirs the passes. `given`: what
    the user gave, which is what the hooks get. `model_of(pieces)`: the fitted attributes, from all ranks'
    pieces of the model; None where a pass has no model to show.
    """

    def __init__(
        self, model: Any, targets: int, given: dict[str, Any],
        model_of: Callable[[Any], dict[str, Any]] | None = None,
    ):  # fmt: skip
        self.model, self.targets, self.given, self.model_of = model, targets, given, model_of
        self.callbacks = getattr(model, "_skl_callbacks", [])
        self.histories: list[Any] = []
        self.root: Any = None
        if hasattr(model, "_init_callback_context"):
            most = targets if targets > 1 else int(model.max_iter) + 1
            self.root = model._init_callback_context(max_subtasks=most)
            self.root.call_on_fit_task_begin(estimator=model, **self.given)

    def done(self) -> None:
        """The model is fitted."""
        if self.root is not None:
            self.root.call_on_fit_task_end(
                estimator=self.model, **self.given, reconstruction_attributes=lambda: {}
            )

    @contextmanager
    def following(self, program: Any, told: Told) -> Iterator[Follower | None]:
        """The callback of `run` for the next target's `program`; None where nobody follows it."""
        model = self.model
        follower = Follower(told, verbose=bool(model.verbose))
        if not self.callbacks:
            yield follower if model.verbose else None
            return
        passes = _Passes(self, told)
        program.follower = follower
        if hasattr(program.schedule, "distance"):
            program.schedule.distance = Asked(program.schedule.distance)
        if on_cluster():
            from .callbacks_dask import relayed

            with relayed(passes) as follower.listener:
                yield follower
        else:
            shown = self.targets == 1 and self.model_of is not None and self._want_models()
            follower.listener, follower.models = passes, shown
            yield follower
        passes.end()

    def _want_models(self) -> bool:
        hooks = [
            getattr(callback, name)
            for callback in self.callbacks
            for name in ("on_fit_task_begin", "on_fit_task_end")
        ]
        return any("fitted_estimator" in inspect.signature(hook).parameters for hook in hooks)


class _Passes:
    """The hooks of one target's passes."""

    def __init__(self, calls: Calls, told: Told):
        self.calls, self.told, self.several = calls, told, calls.targets > 1
        self.rows: list[dict[str, Any]] = []
        self.level = calls.root
        if self.several:
            self.level = calls.root.subcontext("target", max_subtasks=int(calls.model.max_iter) + 1)
            self.level.call_on_fit_task_begin(estimator=calls.model, **calls.given)
        calls.histories.append(table([], told))
        self.task = self._next()

    def __call__(self, row: dict[str, Any], pieces: Any, last: bool) -> bool:
        """A pass has ended; whether a callback wants the fit to stop."""
        calls, model = self.calls, self.calls.model
        self.rows.append(row)
        calls.histories[-1] = table(self.rows, self.told)
        model.history_ = list(calls.histories) if self.several else calls.histories[0]
        known = {}
        if pieces is not None and calls.model_of is not None:
            model_of = calls.model_of
            known = {"reconstruction_attributes": lambda: model_of(pieces)}
        stop = self.task.call_on_fit_task_end(estimator=model, **calls.given, **known)
        if not last:
            self.task = self._next()
        return bool(stop)

    def end(self) -> None:
        """The target is fitted. The others will be too, whatever the callbacks say."""
        if self.several:
            self.level.call_on_fit_task_end(estimator=self.calls.model, **self.calls.given)

    def _next(self) -> Any:
        return self.level.subcontext("pass").call_on_fit_task_begin(
            estimator=self.calls.model, **self.calls.given
        )
