"""What a factorisation refuses: parameters out of range, problems without a single solution."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from .factors import Settings
from .ratings import Problem, shown

__all__ = ["check_curved", "check_parameters"]


def check_curved(problem: Problem, settings: Settings) -> None:
    """Raise ValueError where a user or an item has many solutions: no penalty, and fewer ratings than
    unknowns.
    """
    unknowns = settings.layout.components + settings.layout.biases
    for what, ids, counts in (
        ("user", problem.user_ids, problem.user_counts),
        ("item", problem.item_ids, problem.item_counts),
    ):
        few = (counts > 0) & (counts < unknowns)
        if settings.reg == 0 and few.any():
            place = int(np.argmax(few))
            raise ValueError(
                f"reg=0 leaves {what} {shown(ids[place])}, with {counts[place]} ratings for {unknowns} "
                "unknowns, without a single solution; raise reg or lower n_components"
            )


def check_parameters(model: Any) -> None:
    """Raise TypeError or ValueError for a parameter of the wrong type, or out of range."""
    for name, low, kind in (
        ("n_components", 1, Integral), ("reg", 0, Real), ("max_iter", 1, Integral), ("tol", 0, Real),
        ("n_shards", 1, Integral),
    ):  # fmt: skip
        value: Any = getattr(model, name)
        if value is None and name == "n_shards":
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{name} must be {kind.__name__.lower()}, got {value!r}")
        if not low <= float(value) < np.inf:
            raise ValueError(f"{name} must be in [{low}, inf), got {value!r}")
    for name in ("biases", "nonnegative", "warm_start"):
        if not isinstance(getattr(model, name), bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {getattr(model, name)!r}")
    for name, choices in {"reg_scaling": ("weighted", "plain"), "solver": ("auto", "als", "ccd")}.items():
        if getattr(model, name) not in choices:
            raise ValueError(f"{name} must be one of {choices}, got {getattr(model, name)!r}")
    if model.dtype is None or np.dtype(model.dtype) not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {model.dtype!r}")
    if model.nonnegative and model.solver == "als":
        raise ValueError("nonnegative=True needs solver='ccd' (or 'auto'): least squares do not keep signs")
