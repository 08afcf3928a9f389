"""What scikit-learn's tooling does with a model on a cluster: histories, callbacks, searches, pickles."""

import gc
import pickle
import subprocess
import sys
import threading
import weakref

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.metrics import make_scorer, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from daskstrads import ElasticNet, Lasso

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests


def problem(shape=(60, 90)):
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape)
    return X, X[:, :3].sum(axis=1) + rng.standard_normal(shape[0]) + 1


@pytest.fixture(params=["mesh", "tasks"])
def transport(request):
    with dask.config.set({"daskstrads.transport": request.param}):
        yield request.param


MODEL = Lasso(0.05, tol=1e-8, selection="cyclic", n_shards=2)


@pytest.mark.parametrize("shape", [(60, 90), (250, 20)])
def test_the_history_comes_back(client, transport, shape):
    X, y = problem(shape)
    model = clone(MODEL).fit(da.from_array(X, chunks=(30, 20)), np.column_stack([y, -y]))
    assert [len(history["gap"]) for history in model.history_] == model.n_iter_
    table = pd.DataFrame(model.history_[0])
    assert table["gap"].iloc[-1] == model.dual_gap_[0]
    assert table["support"].iloc[-1] == np.count_nonzero(model.coef_[0])
    assert (np.diff(table["seconds"]) > 0).all()


def test_a_search_whose_fits_are_tasks(client):
    X, y = problem((80, 30))
    search = GridSearchCV(
        make_pipeline(StandardScaler(), Lasso(tol=1e-8)), {"lasso__alpha": [0.01, 0.1, 1.0]}, cv=2
    )
    wanted = clone(search).set_params(n_jobs=1).fit(X, y)
    with joblib.parallel_backend("dask"):
        found = clone(search).fit(X, y)
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"], wanted.cv_results_["mean_test_score"], rtol=1e-6
    )
    assert found.best_params_ == wanted.best_params_
    assert any(client.run(lambda: "sklearn" in sys.modules).values())  # nothing else here loads it there


def test_a_search_over_fits_on_the_cluster_with_routed_weights(client):
    X, y = problem((80, 30))
    weight = np.linspace(0.5, 2, 80)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(30)])
    scaler = StandardScaler().set_output(transform="pandas")
    with sklearn.config_context(enable_metadata_routing=True):
        scorer = make_scorer(r2_score).set_score_request(sample_weight=True)
        model = ElasticNet(tol=1e-8, n_shards=2).set_fit_request(sample_weight=True)
        pipeline = make_pipeline(scaler.set_fit_request(sample_weight=False), model)
        search = GridSearchCV(pipeline, {"elasticnet__alpha": [0.01, 1.0]}, cv=2, scoring=scorer)
        search.fit(frame, y, sample_weight=weight)
        best = search.best_estimator_[-1]
        assert list(best.feature_names_in_) == list(frame.columns)
        scaled = StandardScaler().fit_transform(X)
        again = ElasticNet(**best.get_params()).fit(scaled, y, weight)
        np.testing.assert_allclose(best.coef_, again.coef_, atol=1e-8)
        assert search.score(frame, y, sample_weight=weight) == pytest.approx(again.score(scaled, y, weight))


def test_a_pickle_of_a_model_needs_no_cluster(client, tmp_path):
    X, y = problem()
    lazy = dd.from_pandas(pd.DataFrame(X, columns=[f"x{j}" for j in range(90)]), npartitions=3)
    model = MODEL.fit(lazy, da.from_array(y, chunks=20))
    (tmp_path / "model").write_bytes(pickle.dumps(model))
    code = (
        "import pickle, numpy as np, sys\n"
        f"model = pickle.loads(open({str(tmp_path / 'model')!r}, 'rb').read())\n"
        "print(repr(float(model.predict(np.ones((2, 90)))[0])), 'distributed' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    value, loaded = done.stdout.split()
    assert float(value) == pytest.approx(model.coef_.sum() + model.intercept_)
    assert loaded == "False"


class Recorder:
    """Keeps the passes and what they have come to; stops at the task of this number."""

    def __init__(self, stop_at=None, fail=False):
        self.stop_at, self.fail, self.events, self.gaps = stop_at, fail, [], []

    def setup(self, estimator, context):
        self.events.append("setup")

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        self.events.append((context.task_name, fitted_estimator is not None))
        self.gaps.append(estimator.history_["gap"][-1])
        if self.fail:
            raise OSError("disk full")
        return self.stop_at is not None and context.task_id >= self.stop_at


def with_callbacks(model, *callbacks):
    pytest.importorskip("sklearn.callback")
    return clone(model).set_callbacks(*callbacks)


def test_callbacks_are_called_here(client, transport):
    X, y = problem()
    recorder = Recorder()
    model = with_callbacks(MODEL, recorder).fit(da.from_array(X, chunks=(-1, 30)), y)
    assert recorder.events == ["setup", *[("pass", False)] * model.n_iter_, ("fit", True), "teardown"]
    np.testing.assert_array_equal(recorder.gaps[:-1], model.history_["gap"])


def test_two_fits_at_once_call_their_own_callbacks_and_leave_nothing_behind(client):
    X, y = problem()
    recorders, histories, models = [Recorder(), Recorder()], {}, []

    def fit(recorder, alpha):
        model = with_callbacks(MODEL, recorder).set_params(alpha=alpha)
        models.append(weakref.ref(model))
        histories[recorder] = model.fit(da.from_array(X, chunks=(-1, 30)), y).history_["gap"]

    threads = [threading.Thread(target=fit, args=each) for each in zip(recorders, (0.05, 0.1), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for recorder in recorders:
        np.testing.assert_array_equal(recorder.gaps[:-1], histories[recorder])
    gc.collect()
    assert [model() for model in models] == [None, None]


def test_a_callback_stops_a_fit_on_the_cluster(client, transport):
    X, y = problem((400, 800))
    recorder = Recorder(stop_at=0)
    slow = Lasso(1e-4, tol=1e-13, update="parallel", selection="cyclic", n_shards=2, max_iter=100_000)
    model = with_callbacks(slow, recorder).fit(X, y)
    assert len(recorder.gaps) - 1 == model.n_iter_ < 5_000
    assert model.dual_gap_ == recorder.gaps[-1]


def test_an_error_of_a_callback_ends_a_fit_on_the_cluster(client):
    X, y = problem((400, 800))
    recorder = Recorder(fail=True)
    slow = Lasso(1e-4, tol=1e-13, update="parallel", selection="cyclic", n_shards=2, max_iter=100_000)
    model = with_callbacks(slow, recorder)
    with pytest.raises(OSError, match="disk full"):
        model.fit(X, y)
    assert recorder.events[1:] == [("pass", False), "teardown"]
