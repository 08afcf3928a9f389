"""Fits on dask DataFrames and Series, and on mixes of dask and other data: the answer of the array."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning

from daskstrads import Lasso


def problem(shape=(120, 20)):
    rng = np.random.default_rng(3)
    X = rng.standard_normal(shape) * (rng.random(shape) < 0.5)
    return X, X[:, :3] @ [1.0, -2, 3] + rng.standard_normal(shape[0]) + 5


def frame_of(X, dtype=float):
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).astype(dtype)


def split_at(frame, *cuts):
    """A dask DataFrame or Series whose partitions end where told, of unknown divisions."""
    edges = [0, *cuts, len(frame)]
    starts = pd.Series(edges[:-1])
    parts = dd.from_map(lambda start: frame.iloc[start : edges[edges.index(start) + 1]], starts.tolist())
    return parts.clear_divisions()


MODEL = Lasso(0.05, tol=1e-10, n_shards=2)


@pytest.mark.parametrize("shape", [(250, 10), (60, 90)])
def test_frames_give_the_answer_of_the_array_case_31(client, shape):
    X, y = problem(shape)
    wanted = MODEL.fit(X, y).coef_
    n = shape[0]
    frame, series = split_at(frame_of(X), 20, n // 2), split_at(pd.Series(y, name="y"), 33)
    weight = pd.Series(np.ones(n))
    for inputs in (
        (frame, series),
        (frame, y),
        (frame, da.from_array(y, chunks=7)),
        (frame, series, split_at(weight, 5)),
    ):
        model = MODEL.fit(*inputs)
        np.testing.assert_allclose(model.coef_, wanted, atol=1e-12)
        assert list(model.feature_names_in_) == [f"x{j}" for j in range(shape[1])]
    for inputs in (
        (da.from_array(X, chunks=(50, 7)), series),
        (X, series),
        (frame_of(X), series),
        (X, da.from_array(y)),
    ):
        np.testing.assert_allclose(MODEL.fit(*inputs).coef_, wanted, atol=1e-12)
    with pytest.raises(ValueError, match=f"X has {n} rows, y has {n - 20}"):
        MODEL.fit(frame, split_at(pd.Series(y[20:]), 10))


def test_a_column_of_y_case_36(client):
    X, y = problem()
    wanted = MODEL.fit(X, y).coef_
    frame = split_at(frame_of(X), 50)
    for column in split_at(pd.DataFrame({"y": y}), 20), da.from_array(y[:, None], chunks=30), y[:, None]:
        with pytest.warns(DataConversionWarning, match="column-vector y"):
            model = MODEL.fit(frame, column)
        assert model.coef_.shape == (20,)
        assert np.ndim(model.intercept_) == 0
        np.testing.assert_allclose(model.coef_, wanted, atol=1e-12)
    with pytest.raises(TypeError, match=r"y is a csr_matrix.*toarray"):
        MODEL.fit(frame, sp.csr_matrix(y))


@pytest.mark.parametrize("dtype", ["int64", "bool", "float16", "float32", "Int64", "Sparse"])
def test_dtypes_of_columns_case_21(client, dtype):
    X, y = problem()
    X = np.round(3 * X)
    frame = frame_of(
        X != 0 if dtype == "bool" else X, pd.SparseDtype(float, 0.0) if dtype == "Sparse" else dtype
    )
    wanted = clone(MODEL).fit(np.asarray(frame, float), y)
    model = MODEL.fit(split_at(frame, 50), y)
    assert model.coef_.dtype == (np.float32 if dtype == "float32" else np.float64)
    np.testing.assert_allclose(model.coef_, wanted.coef_, atol=1e-6)
    np.testing.assert_allclose(
        model.predict(split_at(frame, 50)), wanted.predict(np.asarray(frame, float)), rtol=1e-5
    )
    np.testing.assert_allclose(MODEL.fit(frame, y).coef_, wanted.coef_, atol=1e-6)  # pandas itself


def test_predict_is_lazy_by_partition_and_checks_names_cases_27_28(client):
    X, y = problem((40, 3))
    pandas = pd.DataFrame(X, columns=list("abc"))
    frame = split_at(pandas, 10, 30)
    model = MODEL.fit(frame, y)
    predicted = model.predict(frame)
    assert isinstance(predicted, da.Array)
    assert predicted.numblocks == (3,)
    np.testing.assert_allclose(predicted.compute(), model.predict(pandas))
    some = frame[frame["a"] > X[:10, 0].max()]  # nothing is left of the first partition
    pieces = [piece.compute() for piece in model.predict(some).to_delayed()]
    assert pieces[0].shape == (0,)
    np.testing.assert_allclose(np.concatenate(pieces), model.predict(some.compute()))
    assert model.score(frame, split_at(pd.Series(y), 5)) == pytest.approx(model.score(pandas, y))
    for wrong in frame[list("bac")], frame[list("ab")]:
        with pytest.raises(ValueError, match="feature names"):
            model.predict(wrong)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(da.from_array(X, chunks=20))
    two = MODEL.fit(frame, np.column_stack([y, -y]))
    np.testing.assert_allclose(two.predict(frame).compute(), two.predict(pandas))


def test_the_input_of_case_28(client):
    frame = dd.from_pandas(pd.DataFrame({"x": range(1, 9)}), npartitions=4)
    model = Lasso(0.1).fit(frame, np.arange(8.0))
    few = model.predict(frame[frame.x < 5][["x"]])
    assert [len(piece.compute()) for piece in few.to_delayed()] == [2, 2, 0, 0]


def test_empty_partitions_at_fit_case_29(client):
    X, y = problem()
    frame = split_at(frame_of(X).assign(y=y, part=np.repeat([0, 1, 2, 3], 30)), 30, 60, 90)
    some = frame[frame["part"] != 1]
    keep = np.repeat([True, False, True, True], 30)
    model = MODEL.fit(some.drop(columns=["y", "part"]), some["y"])
    np.testing.assert_allclose(model.coef_, MODEL.fit(X[keep], y[keep]).coef_, atol=1e-12)


def test_what_holds_no_numbers_is_named_before_any_work(client, tmp_path):
    X, y = problem()

    def made(start):
        (tmp_path / "worked").touch()
        return frame_of(X).assign(city="Rome")

    meta = frame_of(X).assign(city="Rome").iloc[:0]
    frame = dd.from_map(made, [0], meta=meta)
    for call in (lambda: MODEL.fit(frame, y), lambda: MODEL.fit(frame[["x0"]], frame["city"])):
        with pytest.raises(ValueError, match=r"must hold numbers, got .*str"):
            call()
    with pytest.raises(ValueError, match=r"X must hold numbers, got 'city' "):
        MODEL.fit(frame, y)
    numbers = frame.drop(columns="city")
    for target, weight, error, told in (
        (y * 1j, None, ValueError, "Complex"),
        (np.where(y == y[3], np.nan, y), None, ValueError, "Input y contains NaN"),
        (None, None, TypeError, "y is a NoneType"),
        (y, -np.ones(120), ValueError, "not negative"),
        (y, np.full(120, np.nan), ValueError, "finite"),
        (["a"] * 120, None, ValueError, "could not convert"),
    ):
        with pytest.raises(error, match=told):
            MODEL.fit(numbers, target, sample_weight=weight)
    with pytest.raises(ValueError, match="alpha"):
        Lasso(-1).fit(numbers, y)
    assert not (tmp_path / "worked").exists()


@pytest.mark.parametrize("chunks", [(50, -1), (-1, 7), (40, 8)])
def test_a_bad_entry_names_its_chunk_case_10(client, chunks):
    X, y = problem()
    place, column = (at // size if size > 0 else 0 for at, size in zip((110, 17), chunks, strict=True))
    for bad, told, kind in (np.nan, "NaN", np.asarray), (np.inf, "infinity", sp.csr_matrix):
        wrong = X.copy()
        wrong[110, 17] = bad
        lazy = da.from_array(wrong, chunks=chunks).map_blocks(kind, meta=kind(np.empty((0, 0))))
        with pytest.raises(ValueError, match=rf"Input X contains {told}.*chunk \({place}, {column}\)"):
            MODEL.fit(lazy, y)
    target = y.copy()
    target[70] = np.nan
    with pytest.raises(ValueError, match=r"Input y contains NaN.*chunk \(2,\)"):
        MODEL.fit(da.from_array(X, chunks=chunks), da.from_array(target, chunks=30))
    for bad in np.nan, -1.0:
        weight = np.where(np.arange(120) == 70, bad, 1.0)
        with pytest.raises(ValueError, match=r"sample_weight must be finite and not negative.*chunk \(2,\)"):
            MODEL.fit(da.from_array(X, chunks=chunks), y, sample_weight=da.from_array(weight, chunks=30))
    wrong = frame_of(X)
    wrong.iloc[70, 2] = np.nan
    with pytest.raises(ValueError, match=r"Input X contains NaN.*chunk \(1, 0\)"):
        MODEL.fit(split_at(wrong, 50), y)


def test_a_bad_entry_of_an_array_does_not_travel_case_10(client):
    X, y = problem()
    for kind in np.asarray, sp.csr_matrix, sp.csc_matrix:
        for bad, told in (np.nan, "NaN"), (np.inf, "infinity"):
            wrong = X.copy()
            wrong[110, 3] = bad
            with pytest.raises(ValueError, match=rf"Input X contains {told} \(first in column 3\)") as caught:
                MODEL.fit(kind(wrong), y)
            assert not hasattr(caught.value, "__notes__")  # no rank has raised it


@pytest.mark.parametrize("shape", [(120, 10), (40, 60)])
def test_rows_of_weight_zero_are_as_removed_case_12(client, shape):
    X, y = problem(shape)
    weight = np.ones(len(y))
    weight[[3, 30]] = 0
    wanted = MODEL.fit(X[weight > 0], y[weight > 0]).coef_
    X[[3, 30]], y[[3, 30]] = 1e200, -1e200
    for kind in np.asarray, sp.csr_matrix:
        lazy = da.from_array(X, chunks=(25, 4)).map_blocks(kind, meta=kind(np.empty((0, 0))))
        np.testing.assert_allclose(MODEL.fit(lazy, y, weight).coef_, wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int64, bool, np.float16, np.float32])
def test_dtypes_of_chunks_case_21(client, dtype):
    X, y = problem()
    X = np.abs(np.round(3 * X)).astype(dtype)
    model = MODEL.fit(da.from_array(X, chunks=(50, 8)), np.round(y).astype(int))
    assert model.coef_.dtype == (np.float32 if dtype == np.float32 else np.float64)
    np.testing.assert_allclose(model.coef_, MODEL.fit(X.astype(float), np.round(y)).coef_, atol=1e-6)


def test_pydata_sparse_chunks_case_32(client):
    sparse = pytest.importorskip("sparse")
    X, y = problem()

    def kind(block):
        return sparse.COO.from_numpy(np.asarray(block))

    wanted = clone(MODEL).fit(X, y)
    for chunks, meta in (
        ((50, 8), np.empty((0, 0))),
        ((-1, -1), kind(np.empty((0, 0)))),
    ):  # case 35: a wrong meta
        lazy = da.from_array(X, chunks=chunks).map_blocks(kind, meta=meta)
        model = MODEL.fit(lazy, y)
        np.testing.assert_allclose(model.coef_, wanted.coef_, atol=1e-6)
        np.testing.assert_allclose(model.predict(lazy).compute(), model.predict(X))


@pytest.mark.parametrize("index", [(np.int32, np.int64), (np.int64, np.int32), (np.int64, np.int64)])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_array])
def test_chunks_however_they_are_stored_cases_1_3_5_8(client, kind, index):
    X, y = problem()

    def stored(block):
        block = kind(block)
        order = np.concatenate([
            np.repeat(np.arange(start, stop)[::-1], 2)
            for start, stop in zip(block.indptr[:-1], block.indptr[1:], strict=True)
        ])  # fmt: skip
        values, indices = block.data[order] / 2, block.indices[order]
        values[:2] += [1.0, -1.0]  # of the same entry
        again = kind((values, indices, 2 * block.indptr), shape=block.shape)
        again.indices, again.indptr = again.indices.astype(index[0]), again.indptr.astype(index[1])
        for array in again.data, again.indices, again.indptr:
            array.flags.writeable = False
        return again

    wanted = clone(MODEL).fit(X, y)
    for chunks in (50, 8), (-1, -1):
        lazy = da.from_array(X, chunks=chunks).map_blocks(stored, meta=kind(np.empty((0, 0))))
        model = MODEL.fit(lazy, y)
        np.testing.assert_allclose(model.coef_, wanted.coef_, atol=1e-6)
        np.testing.assert_allclose(model.predict(lazy).compute(), model.predict(X))


def test_dense_and_sparse_chunks_under_a_dense_meta_case_35(client):
    X, y = problem((40, 60))
    mixed = da.from_array(X, chunks=(-1, 30)).map_blocks(
        lambda block, block_info=None: block if block_info[0]["chunk-location"][1] else sp.csr_matrix(block),
        meta=np.empty((0, 0)),
    )
    with pytest.raises(ValueError, match="X has dense and sparse chunks; make them alike"):
        MODEL.fit(mixed, y)
    with pytest.raises(TypeError, match="y is a"):
        MODEL.fit(mixed, dd.from_pandas(pd.Series(y), npartitions=2).sum())
    halves = da.from_array(X, chunks=(20, -1)).map_blocks(  # each rank's columns are of both
        lambda block, block_info=None: block if block_info[0]["chunk-location"][0] else sp.csr_matrix(block),
        meta=np.empty((0, 0)),
    )
    np.testing.assert_allclose(MODEL.fit(halves, y).coef_, MODEL.fit(X, y).coef_, atol=1e-6)
    alike = mixed.map_blocks(sp.csr_matrix, meta=sp.csr_matrix((0, 0)))
    np.testing.assert_allclose(MODEL.fit(alike, y).coef_, MODEL.fit(X, y).coef_, atol=1e-6)


@st.composite
def laid_out(draw):
    """Chunks of X's rows and columns, of y's rows, which rows stay, and what the blocks are."""
    n, p = draw(st.sampled_from([(30, 40), (80, 8)]))

    def cuts(length):
        places = draw(st.sets(st.integers(1, length - 1), max_size=3))
        return tuple(np.diff([0, *sorted(places), length]).tolist())

    keep = np.ones(n, bool)
    for start, stop in draw(st.lists(st.tuples(st.integers(0, n - 8), st.integers(0, n // 3)), max_size=2)):
        keep[start : start + stop] = False
    kind = draw(st.sampled_from([np.asarray, sp.csr_matrix, sp.csc_array, sp.coo_matrix]))
    return (n, p), cuts(n), cuts(p), cuts(n), keep, kind, draw(st.booleans()), draw(st.booleans())


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(laid_out())
def test_any_chunks_cases_29_31_32_35_37(client, layout):
    shape, rows, columns, others, keep, kind, honest, filtered = layout
    X, y = problem(shape)
    wanted = MODEL.fit(X[keep], y[keep]) if filtered else MODEL.fit(X, y)
    meta = kind(np.empty((0, 0))) if honest else np.empty((0, 0))
    lazy, target = da.from_array(X, chunks=(rows, columns)), da.from_array(y, chunks=(others,))
    if filtered:  # chunks of unknown sizes, some of them empty
        lazy, target = (
            lazy[da.from_array(keep, chunks=(rows,))],
            target[da.from_array(keep, chunks=(others,))],
        )
    lazy = lazy.map_blocks(kind, dtype=float, meta=meta)
    found = clone(MODEL).fit(lazy, target)
    np.testing.assert_allclose(found.coef_, wanted.coef_, atol=1e-6)
    np.testing.assert_allclose(found.intercept_, wanted.intercept_, atol=1e-6)


def test_nothing_given_is_changed(client):
    X, y = problem()
    frame, target = frame_of(X), pd.Series(y)
    before = frame.copy(), target.copy()
    lazy = client.persist(split_at(frame, 50))
    MODEL.fit(lazy, target).predict(lazy).compute()
    pd.testing.assert_frame_equal(lazy.compute(), before[0])
    pd.testing.assert_frame_equal(frame, before[0])
    pd.testing.assert_series_equal(target, before[1])


def test_without_a_client_frames_and_sparse_chunks_are_computed_here():
    X, y = problem()
    wanted = MODEL.fit(X, y).coef_
    frame, series = split_at(frame_of(X), 50), split_at(pd.Series(y), 33)
    model = MODEL.fit(frame, series, sample_weight=split_at(pd.Series(np.ones(120)), 3))
    np.testing.assert_allclose(model.coef_, wanted, atol=1e-12)
    assert model.feature_names_in_[1] == "x1"
    np.testing.assert_allclose(model.predict(frame).compute(), model.predict(frame_of(X)))
    for meta in sp.csr_matrix((0, 0)), np.empty((0, 0)):
        blocks = da.from_array(X, chunks=(50, 8)).map_blocks(sp.csr_matrix, meta=meta)
        np.testing.assert_allclose(MODEL.fit(blocks, series).coef_, wanted, atol=1e-6)
    wrong = frame_of(X).assign(x3=np.nan)
    with pytest.raises(ValueError, match="NaN"):
        MODEL.fit(split_at(wrong, 50), series)
