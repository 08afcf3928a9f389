"""MatrixFactorization on a cluster: dask arrays of sparse blocks, DataFrames of triples; bits of threads."""

import contextlib
import gc
import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import wait

from daskstrads import MatrixFactorization

OPTIONS = {"n_components": 3, "reg": 0.05, "random_state": 1, "tol": 0, "max_iter": 4}


def ratings(users=90, items=40, share=0.3, seed=0):
    rng = np.random.default_rng(seed)
    full = 3.0 + rng.normal(size=(users, 2)) @ rng.normal(size=(2, items)) + rng.normal(size=(users, 1))
    rows, columns = np.nonzero(rng.random((users, items)) < share)
    return sp.csr_array((full[rows, columns], (rows, columns)), shape=(users, items))


def blocks(X, rows, columns=None, form=sp.csr_array):
    """A dask array of sparse blocks of these heights and widths."""
    columns = columns or (X.shape[1],)
    ends = [np.concatenate([[0], np.cumsum(lengths)]) for lengths in (rows, columns)]
    meta = form((0, 0))
    made = [
        [
            da.from_delayed(
                dask.delayed(form)(X[a:b, c:d]), (int(b - a), int(d - c)), dtype=X.dtype, meta=meta
            )
            for c, d in zip(ends[1][:-1], ends[1][1:], strict=True)
        ]
        for a, b in zip(ends[0][:-1], ends[0][1:], strict=True)
    ]
    return da.concatenate([da.concatenate(row, axis=1) for row in made], axis=0)


def frame(X, user=str, item=lambda j: int(j) - 10):
    entries = X.tocoo()
    ids = [user(i) for i in entries.row], [item(j) for j in entries.col]
    return pd.DataFrame({"user": ids[0], "item": ids[1], "rating": entries.data})


def same(found, wanted):
    for name in ("components_", "user_factors_", "user_bias_", "item_bias_"):
        assert getattr(found, name).tobytes() == getattr(wanted, name).tobytes(), name
    for name in ("user_ids_", "item_ids_", "user_counts_", "item_counts_"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    np.testing.assert_array_equal(found.history_["objective"], wanted.history_["objective"])
    np.testing.assert_array_equal(found.history_["bytes"], wanted.history_["bytes"])


@pytest.fixture(scope="module")
def threads():
    """Fits in this process, by solver and orientation."""
    found = {}
    for solver in "als", "ccd":
        for wide in False, True:
            X = ratings().T.tocsr() if wide else ratings()
            found[solver, wide] = MatrixFactorization(solver=solver, n_shards=3, **OPTIONS).fit(X)
    return found


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("solver", ["als", "ccd"])
@pytest.mark.parametrize("given", ["matrix", "array"])
def test_fits_have_the_bits_of_threads(client, threads, solver, wide, given):
    X = ratings().T.tocsr() if wide else ratings()
    if given == "array":
        heights = (7, 0, 20, 13) if wide else (7, 50, 0, 33)
        X = blocks(X, heights)
    with client.as_current():
        model = MatrixFactorization(solver=solver, n_shards=3, **OPTIONS).fit(X)
    same(model, threads[solver, wide])


@pytest.mark.parametrize("form", [sp.csc_matrix, sp.csr_matrix, sp.coo_array])
def test_blocks_of_any_format_cut_both_ways(client, threads, form):
    X = blocks(ratings(), (30, 60), (15, 25), form)
    with client.as_current():
        same(MatrixFactorization(n_shards=3, **OPTIONS).fit(X), threads["als", False])
    same(MatrixFactorization(n_shards=3, **OPTIONS).fit(X), threads["als", False])  # without a client


def test_pydata_blocks_and_unknown_heights(client, threads):
    sparse = pytest.importorskip("sparse")
    X = blocks(ratings(), (30, 60)).map_blocks(sparse.COO, meta=sparse.COO(np.zeros((0, 0))))
    unknown = da.Array(X.dask, X.name, ((np.nan, np.nan), (40,)), meta=X._meta)
    with client.as_current():
        same(MatrixFactorization(n_shards=3, **OPTIONS).fit(unknown), threads["als", False])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("partitions", [1, 4])
def test_frames_have_the_bits_of_the_pandas_frame(client, partitions, wide):
    X = ratings().T.tocsr() if wide else ratings()
    data = frame(X).sample(frac=1.0, random_state=2)
    again = data.iloc[:50].assign(rating=lambda each: each.rating + 1.0)  # rated twice, in two partitions
    data = pd.concat([data, again])
    wanted = MatrixFactorization(n_shards=3, **OPTIONS).fit(data)
    lazy = dd.from_pandas(data.reset_index(drop=True), npartitions=partitions)
    empty = lazy[lazy.rating > 1e9]
    for given in lazy, dd.concat([empty, lazy]):
        with client.as_current():
            same(MatrixFactorization(n_shards=3, **OPTIONS).fit(given), wanted)


def test_frames_from_parquet_and_csv(client, tmp_path, threads):
    data = frame(ratings(), int, int)
    data.to_csv(tmp_path / "ratings.csv", index=False)
    with client.as_current():
        model = MatrixFactorization(n_shards=3, **OPTIONS).fit(dd.read_csv(tmp_path / "ratings.csv"))
    same(model, threads["als", False])


def test_shards_stay_on_the_workers(client):
    X = blocks(ratings(), (45, 45))
    with client.as_current():
        model = MatrixFactorization(**OPTIONS).fit(X)
        wait(model.shards_)
        pieces = client.gather(model.shards_)
        held = client.who_has(model.shards_)
    assert all(held.values())
    assert sum(len(piece.rows) for piece in pieces) == 90
    np.testing.assert_array_equal(np.sort(np.concatenate([piece.ids for piece in pieces])), np.arange(40))


@pytest.mark.parametrize("solver", ["als", "ccd"])
def test_a_warm_start_has_the_bits_of_threads(client, solver):
    X = ratings()
    options = OPTIONS | {"solver": solver, "n_shards": 2, "warm_start": True}
    wanted = MatrixFactorization(**options).fit(X).fit(X)
    with client.as_current():
        once = MatrixFactorization(**options).fit(blocks(X, (30, 60)))
        same(once.fit(blocks(X, (30, 60))), wanted)


def test_what_a_cluster_model_answers(client):
    X = ratings()
    lazy = blocks(X, (30, 60))
    with client.as_current():
        model = MatrixFactorization(n_shards=2, **OPTIONS).fit(lazy)
        factors = model.transform(lazy)
        assert factors.chunks == ((30, 60), (3,))
        np.testing.assert_allclose(factors.compute(), model.transform(X), atol=1e-6)
        assert model.score(lazy) == pytest.approx(model.score(X))
        before = model.score(X)
        model.partial_fit(lazy)
        assert model.score(X) >= before - 0.05
        data = frame(X, int, int)
        triples = dd.from_pandas(data, npartitions=3)
        assert model.score(triples) == pytest.approx(model.score(X))
        np.testing.assert_array_equal(model.transform(triples), model.transform(data))
        for known in lazy, triples:
            for found, wanted in zip(
                model.recommend([0, 1], n=40, exclude=known)[0],
                model.recommend([0, 1], n=40, exclude=X)[0],
                strict=True,
            ):
                np.testing.assert_array_equal(found, wanted)


WRONG = {
    "dense": (lambda: da.ones((20, 10), chunks=(5, 10)), TypeError, "dense block; which of its entries"),
    "nan": (
        lambda: blocks(_spoilt(), (45, 45)),
        ValueError,
        r"block \(\d, 0\): the rating of user .* is nan",
    ),
    "empty": (lambda: blocks(sp.csr_array((20, 10)), (10, 10)), ValueError, "there are no ratings"),
    "one dimension": (lambda: da.ones(10), ValueError, "must be 2-D"),
    "bag": (lambda: dask.delayed(3), TypeError, "ratings are a dask Delayed"),
    "columns": (
        lambda: dd.from_pandas(pd.DataFrame({"u": [1], "item": [2], "rating": [3.0]}), npartitions=1),
        ValueError,
        "no column 'user'",
    ),
    "ids of two kinds": (lambda: _of_two_kinds(), TypeError, "ids must be of one kind"),
    "missing id": (
        lambda: dd.from_pandas(
            pd.DataFrame({"user": [1.0, np.nan], "item": [2, 3], "rating": [3.0, 1.0]}), npartitions=1
        ),
        ValueError,
        "user id in row 1 is missing",
    ),
}


def _of_two_kinds():
    data = frame(ratings(), int, int).astype({"user": object})
    parts = [data.iloc[:200], data.iloc[200:].assign(user=lambda each: each.user.astype(str).astype(object))]
    with dask.config.set({"dataframe.convert-string": False}):  # else dask makes them all strings
        return dd.from_delayed([dask.delayed(part, pure=True) for part in parts], meta=data).persist(
            scheduler="sync"
        )


def _spoilt():
    X = ratings()
    X.data[300] = np.nan
    return X


@pytest.mark.parametrize("what", WRONG)
def test_wrong_collections_are_clear_errors_and_the_next_fit_works(client, what):
    make, error, text = WRONG[what]
    with client.as_current():
        with pytest.raises(error, match=text):
            MatrixFactorization(**OPTIONS).fit(make())
        MatrixFactorization(**OPTIONS).fit(blocks(ratings(), (90,)))
    with pytest.raises(error, match=text), contextlib.ExitStack():
        MatrixFactorization(**OPTIONS).fit(make())  # without a client


@pytest.mark.parametrize("what", ["nan", "missing id"])
def test_a_fit_that_is_refused_leaves_nothing_on_the_workers(client, what):
    before = set(client.futures)
    with client.as_current(), contextlib.suppress(ValueError):
        MatrixFactorization(**OPTIONS).fit(WRONG[what][0]())
        pytest.fail("it fits")
    gc.collect()
    end = time.monotonic() + 5
    while set(client.futures) - before and time.monotonic() < end:
        time.sleep(0.02)
    assert not set(client.futures) - before


def test_a_fit_that_does_not_fit_is_refused(client):
    limits = [worker["memory_limit"] for worker in client.scheduler_info()["workers"].values()]
    assert all(limits)
    components = int(3 * max(limits) // (90 * 4))
    with client.as_current(), pytest.raises(MemoryError, match="ranks by rows"):
        MatrixFactorization(components).fit(blocks(ratings(), (90,)))
