"""What stays on the workers after a fit: Dask data that live as long as the model."""

import pickle
import time

import dask.array as da
import joblib
import numpy as np
import pytest
from distributed import Future
from sklearn.base import clone

from daskstrads import Lasso


def problem(shape):
    rng = np.random.default_rng(1)
    X = rng.standard_normal(shape)
    return X, X[:, :3].sum(axis=1) + rng.standard_normal(shape[0])


def keys_on_scheduler(client):
    return client.run_on_scheduler(lambda dask_scheduler: {str(key) for key in dask_scheduler.tasks})


def settled(client, wanted):
    """Whether the scheduler's keys come to fulfil `wanted` soon."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if wanted(keys_on_scheduler(client)):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("shape", [(80, 200), (400, 30)])
@pytest.mark.parametrize("lazy", [False, True])
def test_shards_are_dask_data_until_the_model_goes(client, shape, lazy):
    X, y = problem(shape)
    model = Lasso(0.05, n_shards=2).fit(da.from_array(X, chunks=50) if lazy else X, y)
    assert all(isinstance(shard, Future) for shard in model.shards_)
    holders = client.who_has(model.shards_)
    assert all(len(holders[shard.key]) == 1 for shard in model.shards_)
    assert len({where for held in holders.values() for where in held}) == 2
    pieces = client.gather(model.shards_)
    ids = np.concatenate([piece.ids for piece in pieces])
    np.testing.assert_array_equal(ids, np.flatnonzero(model.coef_))
    np.testing.assert_array_equal(np.concatenate([piece.values for piece in pieces]), model.coef_[ids])
    # A task can use a shard where it is.
    counts = client.gather([client.submit(lambda piece: len(piece.ids), shard) for shard in model.shards_])
    assert sum(counts) == len(ids) > 0
    keys = {shard.key for shard in model.shards_}
    assert keys <= keys_on_scheduler(client)
    del model
    assert settled(client, lambda left: not keys & left)


def test_the_fit_leaves_nothing_but_the_shards(client):
    X, y = problem((80, 200))
    lazy = da.from_array(X, chunks=50)
    model = Lasso(0.05, n_shards=2).fit(lazy, y)
    keys = {shard.key for shard in model.shards_}
    assert settled(client, lambda left: left <= keys), keys_on_scheduler(client) - keys


def test_a_fitted_model_is_a_file_case_41(client, tmp_path):
    X, y = problem((80, 200))
    model = Lasso(0.05, n_shards=2).fit(X, y)
    for copy in pickle.loads(pickle.dumps(model)), joblib.load(joblib.dump(model, tmp_path / "model")[0]):
        np.testing.assert_array_equal(copy.coef_, model.coef_)
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    assert clone(model).set_params(alpha=0.1).fit(X, y).coef_.shape == (200,)


def test_the_model_outlives_the_client_case_44():
    from distributed import Client

    X, y = problem((80, 200))
    with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as own:
        model = Lasso(0.05, n_shards=2).fit(X, y)
        assert all(shard.client is own for shard in model.shards_)
    assert model.predict(X).shape == (80,)
    assert all(shard.status == "cancelled" for shard in model.shards_)
    np.testing.assert_array_equal(model.coef_, Lasso(0.05, n_shards=2).fit(X, y).coef_)


def test_progress_is_printed_by_the_client(client, capsys):
    X, y = problem((80, 200))
    Lasso(0.05, n_shards=2, verbose=True).fit(X, y)
    end = time.monotonic() + 10
    text = ""
    while "[daskstrads] pass 1" not in text and time.monotonic() < end:
        time.sleep(0.05)
        text += capsys.readouterr().out
    assert "[daskstrads] pass 1: objective" in text
