"""Fits on dask arrays: any chunks, dense or sparse blocks, the bits of threads at the same cuts."""

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from daskstrads import ElasticNet, Lasso, read_corpus, read_svmlight


def problem(shape):
    rng = np.random.default_rng(3)
    X = rng.standard_normal(shape) * (rng.random(shape) < 0.3)
    return X, X[:, :4] @ [1.0, -2, 3, 1] + rng.standard_normal(shape[0]) + 5


def fitted(model):
    return np.append(model.coef_, model.intercept_), model.dual_gap_, model.n_iter_


@pytest.mark.parametrize("chunks", [(-1, -1), (30, -1), (-1, 30), (25, 40)])
@pytest.mark.parametrize("shape", [(90, 150), (250, 30)])
def test_dense_chunks_have_the_bits_of_the_array(client, shape, chunks):
    X, y = problem(shape)
    model = ElasticNet(0.05, l1_ratio=0.9, tol=1e-8, n_shards=2)
    wanted = fitted(model.fit(X, y))
    for there in da.from_array(y, chunks=20), y:
        found = fitted(model.fit(da.from_array(X, chunks=chunks), there))
        np.testing.assert_array_equal(found[0], wanted[0])
        assert found[1:] == wanted[1:]


@pytest.mark.parametrize("meta", [sp.csr_matrix((0, 0)), np.empty((0, 0))])  # case 35: the meta may be wrong
@pytest.mark.parametrize("chunks", [(30, -1), (-1, 30), (25, 40)])
@pytest.mark.parametrize("shape", [(90, 150), (250, 30)])
def test_sparse_blocks_case_32(client, shape, chunks, meta):
    X, y = problem(shape)
    lazy = da.from_array(X, chunks=chunks).map_blocks(sp.csr_matrix, meta=meta)
    model = Lasso(0.05, tol=1e-10)
    found = fitted(model.fit(lazy, y))[0]
    np.testing.assert_allclose(found, fitted(model.fit(X, y))[0], atol=1e-6)


def test_weights_targets_and_float32(client):
    X, y = problem((150, 60))
    weight = np.arange(150.0) % 3
    both = np.column_stack([y, -2 * y + X[:, 5]])
    model = Lasso(0.05, tol=1e-8, n_shards=2)
    wanted = model.fit(X, both, sample_weight=weight).coef_
    found = model.fit(
        da.from_array(X, chunks=(40, 60)), da.from_array(both, chunks=(70, 1)), da.from_array(weight)
    )
    np.testing.assert_allclose(found.coef_, wanted, atol=1e-12)
    assert found.intercept_.shape == (2,)
    assert model.fit(da.from_array(X.astype(np.float32), chunks=50), y).coef_.dtype == np.float32


def test_unknown_and_empty_chunks_case_29(client):
    X, y = problem((120, 20))
    keep = np.ones(120, bool)
    keep[30:60] = False
    lazy, lazy_y = da.from_array(X, chunks=(30, -1)), da.from_array(y, chunks=30)
    mask = da.from_array(keep, chunks=30)
    model = Lasso(0.05, tol=1e-8, n_shards=2)
    found = fitted(model.fit(lazy[mask], lazy_y[mask]))
    np.testing.assert_array_equal(found[0], fitted(model.fit(X[keep], y[keep]))[0])


def test_lengths_that_differ_case_31(client):
    X, y = problem((120, 20))
    with pytest.raises(ValueError, match="X has 120 rows, y has 119"):
        Lasso().fit(da.from_array(X, chunks=50), y[1:])


@pytest.mark.parametrize("where", ["X", "y"])
def test_nan_is_an_error(client, where):
    X, y = problem((120, 20))
    (X if where == "X" else y)[(3,) * (2 if where == "X" else 1)] = np.nan
    with pytest.raises(ValueError, match=f"Input {where} contains NaN"):
        Lasso().fit(da.from_array(X, chunks=50), da.from_array(y, chunks=50))


def test_predict_is_lazy_and_keeps_row_chunks(client):
    X, y = problem((120, 20))
    lazy = da.from_array(X, chunks=(50, 7))
    model = Lasso(0.05).fit(lazy, y)
    predicted = model.predict(lazy)
    assert isinstance(predicted, da.Array)
    assert predicted.chunks == ((50, 50, 20),)
    np.testing.assert_allclose(predicted.compute(), model.predict(X))
    blocks = lazy.map_blocks(sp.csr_matrix, meta=sp.csr_matrix((0, 0)))
    np.testing.assert_allclose(model.predict(blocks).compute(), model.predict(X))
    two = Lasso(0.05).fit(X, np.column_stack([y, y]))
    assert two.predict(lazy).shape == (120, 2)
    np.testing.assert_allclose(two.predict(lazy).compute(), two.predict(X))
    with pytest.raises(ValueError, match="19 features"):
        model.predict(lazy[:, 1:])


def test_without_a_client_it_is_computed_here():
    X, y = problem((120, 20))
    model = Lasso(0.05, n_shards=2).fit(da.from_array(X, chunks=50), da.from_array(y, chunks=50))
    np.testing.assert_array_equal(model.coef_, Lasso(0.05, n_shards=2).fit(X, y).coef_)


def test_svmlight_files_are_read_by_the_workers(client, tmp_path):
    X, y = problem((120, 20))
    lines = [
        repr(label) + "".join(f" {j + 1}:{row[j]!r}" for j in range(20) if row[j]) + "\n"
        for label, row in zip(y.tolist(), X.tolist(), strict=True)
    ]
    for part in range(2):
        (tmp_path / f"{part}.svm").write_text("".join(lines[part * 60 : (part + 1) * 60]))
    wanted = fitted(Lasso(0.05, tol=1e-10, n_shards=2).fit(X, y))[0]
    for n_features in (None, 20):  # rows known and unknown
        blocks, labels = read_svmlight(tmp_path / "*.svm", n_features, blocksize=3000)
        assert blocks.numblocks[0] > 4
        found = fitted(Lasso(0.05, tol=1e-10, n_shards=2).fit(blocks, labels))[0]
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    with (tmp_path / "1.svm").open("a") as file:
        file.write("1 3:1 4\n")
    with pytest.raises(ValueError, match=r"1\.svm, line 61: '4' is no pair index:value"):
        read_svmlight(tmp_path / "*.svm", blocksize=3000)


def test_counts_are_read_by_the_workers(client, tmp_path):
    counts = np.random.default_rng(0).poisson(0.5, (40, 6))
    rows, words = np.nonzero(counts)
    lines = [f"{i + 1} {j + 1} {counts[i, j]}\n" for i, j in zip(rows, words, strict=True)]
    path = tmp_path / "docword.txt"
    path.write_text(f"40\n6\n{len(lines)}\n" + "".join(lines))
    X = read_corpus(path, blocksize=100)
    assert X.numblocks[0] > 2
    np.testing.assert_array_equal(X.compute().toarray(), counts)
    path.write_text(f"40\n6\n{len(lines) + 1}\n" + "".join(lines) + "40 6 -1\n")
    with pytest.raises(ValueError, match=rf"docword\.txt, line {len(lines) + 4}: its count '-1' is negative"):
        read_corpus(path, blocksize=100)


def test_workers_and_scheduler_load_no_scikit_learn(client):
    X, y = problem((120, 20))
    Lasso(0.05, verbose=True).fit(da.from_array(X, chunks=50), y).predict(
        da.from_array(X, chunks=50)
    ).compute()

    def loaded():
        import sys

        return "sklearn" in sys.modules

    assert not any(client.run(loaded).values())


def test_a_fit_that_does_not_fit_is_refused_before_it_starts():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="600MiB", dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        dense = da.zeros((10_000, 50_000), chunks=(100, 10_000))
        with pytest.raises(MemoryError, match=r"on worker tcp://.*more workers"):
            Lasso().fit(dense, np.zeros(10_000))
        # Sparse blocks behind a dense meta are no dense array.
        blocks = dense[:1000].map_blocks(
            lambda block: sp.csr_matrix(([1.0], ([0], [0])), block.shape), meta=np.empty((0, 0))
        )
        assert Lasso().fit(blocks, np.arange(1000.0)).coef_.shape == (50_000,)


@pytest.mark.parametrize("shape", [(90, 150), (250, 30)])
def test_chunks_that_are_shards_already_stay_where_they_are(client, shape):
    X, y = problem(shape)
    axis = 0 if shape[0] > shape[1] else 1
    cut = shape[axis] // 3
    chunks = ((cut, shape[0] - cut), -1) if axis == 0 else (-1, (cut, shape[1] - cut))
    lazy = client.persist(da.from_array(X, chunks=chunks))
    model = Lasso(0.05, n_shards=2).fit(lazy, y)
    first, second = client.gather(model.shards_)
    bound = cut if axis == 1 else shape[1] // 2
    assert first.ids.max(initial=-1) < bound <= second.ids.min(initial=shape[1])
    np.testing.assert_allclose(model.coef_, Lasso(0.05, n_shards=2).fit(X, y).coef_, atol=1e-3)


@pytest.mark.parametrize(("shape", "kind"), [((90, 150), sp.csc_matrix), ((250, 30), sp.csr_matrix)])
def test_persisted_chunks_stay_as_they_are_also_with_repeated_entries(client, shape, kind):
    X, y = problem(shape)
    block = kind(X)
    values, indices = np.append(block.data, 1.0), np.append(block.indices, block.indices[-1])
    offsets = np.append(block.indptr[:-1], len(values))
    repeated = kind((values, indices, offsets), shape)
    lazy = client.persist(da.from_array(X, chunks=shape).map_blocks(lambda _: repeated, meta=kind((0, 0))))
    model = Lasso(0.05, n_shards=1, tol=1e-8).fit(lazy, y)
    assert client.compute(lazy.to_delayed().item()).result().nnz == len(values)
    np.testing.assert_allclose(
        model.coef_, Lasso(0.05, n_shards=1, tol=1e-8).fit(repeated.toarray(), y).coef_, atol=1e-6
    )
