"""scikit-learn's callbacks in a fit of this process."""

import numpy as np
import oracles
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from daskstrads import ElasticNet, Lasso
from daskstrads.algos import lasso as estimators

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 has callbacks")

SHAPES = {"wide": (40, 90), "tall": (250, 18)}


def problem(shape):
    n, p = SHAPES[shape]
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, p))
    return X, X[:, :3].sum(axis=1) + rng.standard_normal(n) + 1


class Recorder:
    """Keeps what its hooks are called with; stops at the task of this number."""

    def __init__(self, stop_at=None):
        self.stop_at, self.events, self.models, self.given, self.gaps = stop_at, [], [], [], []
        self.rounds = []

    def setup(self, estimator, context):
        self.events.append(("setup", context.task_name, context.max_subtasks))

    def teardown(self, estimator, context):
        self.events.append(("teardown", context.task_name, context.max_subtasks))

    def on_fit_task_begin(self, estimator, context, *, X=None):
        self.events.append(("begin", context.task_name, context.task_id))

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, metadata=None, fitted_estimator=None):
        self.events.append(("end", context.task_name, context.task_id))
        self.given.append((X, y, metadata))
        self.models.append(fitted_estimator)
        history = estimator.history_[-1] if isinstance(estimator.history_, list) else estimator.history_
        self.gaps.append(history["gap"][-1])
        self.rounds.append(history["round"][-1])
        return self.stop_at is not None and context.task_name == "pass" and context.task_id >= self.stop_at


@pytest.mark.parametrize("container", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_is_a_task_and_has_its_model(shape, n_shards, container):
    X, y = problem(shape)
    X, weight = container(X), np.linspace(0.5, 2, len(y))
    recorder = Recorder()
    model = Lasso(0.05, tol=1e-10, selection="cyclic", max_iter=200, n_shards=n_shards)
    plain = clone(model).fit(X, y, weight)
    model.set_callbacks(recorder).fit(X, y, weight)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    passes = model.n_iter_
    middle = [(what, "pass", place) for place in range(passes) for what in ("begin", "end")]
    assert recorder.events == [
        ("setup", "fit", 201), ("begin", "fit", 0), *middle, ("end", "fit", 0), ("teardown", "fit", 201)
    ]  # fmt: skip
    assert all(given[0] is X and given[1] is y for given in recorder.given)
    assert all(given[2]["sample_weight"] is weight for given in recorder.given)
    *on_the_way, last, whole = recorder.models
    np.testing.assert_array_equal(last.coef_, model.coef_)
    np.testing.assert_array_equal(whole.predict(X), model.predict(X))
    assert last.intercept_ == model.intercept_
    assert not on_the_way[0].coef_.any()
    np.testing.assert_array_equal(recorder.gaps[:-1], model.history_["gap"])
    np.testing.assert_array_equal(recorder.rounds[:-1], model.history_["round"])
    dense = X.toarray() if sp.issparse(X) else X
    mean = np.average(y, weights=weight)
    assert on_the_way[0].intercept_ == pytest.approx(mean)
    for fitted, objective in zip(on_the_way, model.history_["objective"], strict=False):
        residual = y - dense @ fitted.coef_ - fitted.intercept_
        value = 0.5 * np.average(residual**2, weights=weight) + 0.05 * abs(fitted.coef_).sum()
        assert value == pytest.approx(objective, rel=1e-9)


@pytest.mark.parametrize("update", ["exact", "parallel"])
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_true_stops_a_fit_after_one_more_pass_without_a_warning(shape, n_shards, update, monkeypatch):
    monkeypatch.setattr(estimators, "_ROW_BLOCK", 4)  # or two passes were enough
    X, y = problem(shape)
    tol = 1e-10 if update == "exact" else 1e-4
    model = Lasso(0.05, tol=tol, update=update, selection="cyclic", n_shards=n_shards)
    model.set_callbacks(Recorder(stop_at=0)).fit(X, y)
    assert model.n_iter_ == len(model.history_["gap"]) == 2
    assert model.dual_gap_ == model.history_["gap"][-1] > tol * oracles.scale(X, y)
    assert model.dual_gap_ == pytest.approx(oracles.duality_gap(X, y, model.coef_, 0.05), rel=1e-6)
    assert model.set_callbacks().fit(X, y).n_iter_ > 2


def test_several_targets_are_tasks_and_all_of_them_are_fitted():
    X, y = problem("tall")
    recorder = Recorder(stop_at=0)
    model = ElasticNet(0.01, tol=1e-12, selection="cyclic", n_shards=2).set_callbacks(recorder)
    model.fit(X, np.column_stack([y, X[:, 5]]))
    assert model.n_iter_ == [2, 2]
    assert [event for event in recorder.events if event[1] == "target"] == [
        ("begin", "target", 0), ("end", "target", 0), ("begin", "target", 1), ("end", "target", 1)
    ]  # fmt: skip
    assert [fitted is None for fitted in recorder.models] == [True] * 6 + [False]


@pytest.mark.parametrize("n_shards", [1, 2])
def test_an_error_in_a_hook_ends_the_fit_and_the_callbacks_are_torn_down(n_shards):
    class Failing(Recorder):
        def on_fit_task_end(self, estimator, context):
            raise OSError("disk full")

    X, y = problem("wide")
    failing = Failing()
    with pytest.raises(OSError, match="disk full"):
        Lasso(0.05, n_shards=n_shards).set_callbacks(failing).fit(X, y)
    assert failing.events[-1][0] == "teardown"
    with pytest.raises(TypeError, match="FitCallback"):
        Lasso().set_callbacks(object())


def test_scikit_learns_own_callbacks(capsys):
    X, y = problem("wide")
    scores = callback.ScoringMonitor(scoring="r2")
    model = Lasso(0.05, tol=1e-8, n_shards=2).set_callbacks(scores).fit(X, y)
    log = scores.get_logs().data
    assert [entry["task_name"] for entry in log] == ["fit", *["pass"] * model.n_iter_]
    assert log[-1]["r2"] == pytest.approx(model.score(X, y))
    pytest.importorskip("rich")
    search = GridSearchCV(make_pipeline(StandardScaler(), Lasso()), {"lasso__alpha": [0.1, 0.2]}, cv=2)
    search.set_callbacks(callback.ProgressBar(max_propagation_depth=None)).fit(X, y)
    told = capsys.readouterr().out
    assert "GridSearchCV - fit" in told
    assert "Lasso - fit" in told
