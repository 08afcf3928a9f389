"""What people pass to a fit or a run on a cluster: right answers or clear errors, before any harm is done."""

import sys
import time

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from dask import delayed
from distributed import Client, LocalCluster

from daskstrads import Lasso, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests


def problem(shape=(120, 20)):
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape)
    return X, X[:, :3].sum(axis=1) + rng.standard_normal(shape[0])


def lazily(X, chunk, **said):
    """A dask array of one chunk that is not what it says."""
    return da.from_delayed(delayed(chunk), **({"shape": X.shape, "dtype": X.dtype} | said))


@pytest.mark.parametrize("shape", [(120, 20), (30, 60)])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("cut", [np.s_[:, 1:], np.s_[1:]])
def test_chunks_of_another_shape_than_they_say_are_an_error(client, shape, kind, cut):
    X, y = problem(shape)
    meta = kind(np.empty((0, 0)))
    with pytest.raises(ValueError, match="a chunk of X has"):
        Lasso().fit(lazily(X, kind(X[cut]), meta=meta), y)


def test_complex_numbers_are_an_error(client):
    X, y = problem()
    for bad, target in (X * 1j, y), (X, y * 1j):
        with pytest.raises(ValueError, match="Complex data not supported"):
            Lasso().fit(da.from_array(bad, chunks=60), da.from_array(target))


@pytest.mark.parametrize("factor", [1e308, 1e-310, 7.0])
def test_only_ratios_of_weights_matter_case_12(client, factor):
    X, y = problem()
    weight = np.random.default_rng(1).random(len(y))
    wanted = Lasso(0.05, tol=1e-8, n_shards=2).fit(X, y, sample_weight=weight).coef_
    scaled = da.from_array(weight * factor, chunks=50)
    found = Lasso(0.05, tol=1e-8, n_shards=2).fit(da.from_array(X, chunks=50), y, sample_weight=scaled)
    np.testing.assert_allclose(found.coef_, wanted, atol=1e-6 if factor < 1 else 1e-12)


def test_a_number_as_weight_and_bad_weights(client):
    X, y = problem()
    lazy = da.from_array(X, chunks=50)
    with dask.config.set(scheduler="synchronous"):
        one = Lasso(0.05, n_shards=2).fit(lazy, y, sample_weight=2.0).coef_
    np.testing.assert_allclose(one, Lasso(0.05, n_shards=2).fit(lazy, y).coef_, atol=1e-12)
    for bad, told in (
        (np.zeros(len(y)), "not zero everywhere"),
        (-np.ones(len(y)), "not negative"),
        (np.full(len(y), np.nan), "finite"),
        (np.ones((len(y), 2)), "must have 1 dimensions"),
    ):
        with pytest.raises(ValueError, match=told):
            Lasso().fit(lazy, y, sample_weight=bad)


def test_a_target_that_overflows_is_an_error(client):
    X, y = problem()
    with pytest.raises(ValueError, match="y is too large"):
        Lasso().fit(da.from_array(X, chunks=50), y * 1e200)


@pytest.mark.parametrize("y", [None, delayed(1), sp.csr_matrix(np.ones((120, 1)))])
def test_a_target_that_is_no_array_is_named(client, y):
    with pytest.raises(TypeError, match=f"y is a {type(y).__name__}"):
        Lasso().fit(da.from_array(problem()[0], chunks=50), y)


@pytest.mark.parametrize("y", [1.0, np.ones((120, 2, 2))])
def test_a_target_of_other_dimensions_is_an_error(client, y):
    with pytest.raises(ValueError, match="y must have 1 or 2 dimensions"):
        Lasso().fit(da.from_array(problem()[0], chunks=50), y)


def test_names_of_an_earlier_fit_are_forgotten(client):
    X, y = problem()
    model = Lasso(n_shards=2).fit(pd.DataFrame(X, columns=[f"x{j}" for j in range(20)]), y)
    model.fit(da.from_array(X[:, :10], chunks=50), y)
    assert not hasattr(model, "feature_names_in_")
    model.predict(X[:, :10])


@pytest.mark.parametrize(
    ("kind", "dtype"), [(np.float32, np.float32), (np.float64, np.float64), (int, np.float64)]
)
def test_predict_says_what_it_computes(client, kind, dtype):
    X, y = problem()
    model = Lasso(0.05, n_shards=2).fit(X.astype(np.float32), y)
    lazy = model.predict(da.from_array(X.astype(kind), chunks=50))
    assert lazy.dtype == lazy.compute().dtype == dtype


def test_a_chunk_that_raises_is_the_error_at_once(client):
    def bad(block):
        if len(block):
            raise OSError("no such file")
        return block

    X, y = problem()
    start = time.monotonic()
    with pytest.raises(OSError, match="no such file"):
        Lasso().fit(da.from_array(X, chunks=50).map_blocks(bad, meta=np.empty((0, 0))), y)
    assert time.monotonic() - start < 4


@pytest.mark.parametrize("form", ["coo", "bsr", "lil", "dok"])
def test_sparse_formats_that_cannot_be_cut(client, form):
    X, y = problem((120, 20))
    X[X < 0.5] = 0.0
    model = Lasso(0.01, tol=1e-10, n_shards=2)
    blocks = da.from_array(X, chunks=(50, 20)).map_blocks(
        lambda block: sp.csr_matrix(block).asformat(form), meta=sp.csr_matrix((0, 0))
    )
    np.testing.assert_allclose(model.fit(blocks, y).coef_, model.fit(X, y).coef_, atol=1e-6)


def test_dense_matrix_chunks_and_mixed_chunks(client):
    X, y = problem((120, 10))
    model = Lasso(0.01, tol=1e-10, n_shards=2)
    matrices = da.from_array(X, chunks=(60, 10)).map_blocks(np.asmatrix, meta=np.empty((0, 0)))
    np.testing.assert_allclose(model.fit(matrices, y).coef_, model.fit(X, y).coef_, atol=1e-6)
    halves = [
        lazily(X[:60], kind(X[:60]), meta=sp.csr_matrix((0, 0))) for kind in (np.asarray, sp.csr_matrix)
    ]
    with pytest.raises(ValueError, match="dense and sparse chunks"):
        model.fit(da.concatenate(halves, axis=0), y)


def test_what_y_shares_with_x_is_computed_once(client, tmp_path):
    def counted(block):
        (tmp_path / f"{time.monotonic_ns()}").touch()
        return block

    X, _ = problem()
    lazy = da.from_array(X, chunks=(30, 20)).map_blocks(counted, meta=np.empty((0, 0)))
    Lasso(0.05, n_shards=2).fit(lazy, lazy[:, :2], sample_weight=abs(lazy[:, 0]))
    assert len(list(tmp_path.iterdir())) == 4


def test_unknown_chunks_of_the_callers_array_stay_unknown(client):
    X, y = problem()
    lazy = da.from_array(X, chunks=(30, 20))
    some = lazy[da.from_array(y, chunks=30) > 0]
    Lasso(0.05, n_shards=2).fit(some, y[y > 0])
    assert np.isnan(some.chunks[0]).all()


def test_futures_are_parts(client):
    futures = [client.submit(np.full, 3, float(rank), pure=False) for rank in range(2)]
    assert launch(lambda group, part: float(part.sum()) + group.rank, [*futures, np.ones(3)]) == [
        0.0,
        4.0,
        5.0,
    ]
    with pytest.raises(TypeError, match="part 1 is a lazy Array"):
        launch(lambda group, part: part, [1, da.ones(3)])


def test_a_rank_that_exits_does_not_take_its_worker_along(client):
    def leave(group, part):
        if group.rank:
            sys.exit(3)
        group.gather(None)

    before = client.run_on_scheduler(lambda dask_scheduler: sorted(dask_scheduler.workers))
    with pytest.raises(RuntimeError, match=r"a rank raised SystemExit\(3\)"):
        launch(leave, [0, 1])
    assert client.run_on_scheduler(lambda dask_scheduler: sorted(dask_scheduler.workers)) == before


def test_a_fit_inside_a_task_takes_one_thread_case_50(client):
    X, y = problem((2000, 400))

    def task():
        return len(Lasso(0.05).fit(X, y).shards_)

    assert client.submit(task, pure=False).result(timeout=60) == 1


def test_the_client_of_the_data_is_used_case_43(client):
    X, y = problem()
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as other,
    ):
        lazy = other.persist(da.from_array(X, chunks=50))
        model = Lasso(0.05, n_shards=2).fit(lazy, y)
        assert all(shard.client is other for shard in model.shards_)
        assert Client.current() is client
    assert all(shard.client is client for shard in Lasso(0.05, n_shards=2).fit(X, y).shards_)
    with pytest.raises(RuntimeError, match="X was persisted with a Client that is closed"):
        Lasso().fit(lazy, y)
