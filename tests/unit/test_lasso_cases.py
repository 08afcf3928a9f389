"""Lasso and ElasticNet on the inputs that broke other libraries, by the number of the case."""

import re
import warnings

import numpy as np
import oracles
import pytest
import scipy.sparse as sp
import sklearn.linear_model
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning

from daskstrads import ElasticNet, Lasso

FORMATS = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "csr array": sp.csr_array, "csc array": sp.csc_array}


def problem(n, p, density=1.0, seed=0):
    rng = np.random.default_rng([seed, n, p])
    X = rng.standard_normal((n, p)) * (rng.random((n, p)) < density)
    return X, 2 * X[:, 0] - X[:, p // 2] + 0.3 * rng.standard_normal(n) + 1.0


def assert_same(model, other, atol=1e-6):
    np.testing.assert_allclose(model.coef_, other.coef_, atol=atol)
    np.testing.assert_allclose(model.intercept_, other.intercept_, atol=atol)


def with_repeats(X, fmt, seed=0):
    """X with every entry stored in four parts, so that sum d_k^2 is far from (sum d_k)^2, in no order."""
    rng = np.random.default_rng(seed)
    X = sp.csr_matrix(X).asformat(fmt)
    order = np.concatenate(
        [
            rng.permutation(np.repeat(np.arange(start, stop), 4))
            for start, stop in zip(X.indptr[:-1], X.indptr[1:], strict=True)
        ]
    ).astype(int)
    return type(X)((X.data[order] / 4, X.indices[order], 4 * X.indptr), shape=X.shape)


def test_case_1_repeated_entries_are_added():
    X = sp.csr_matrix(([1.0, 1, 1, 2], [0, 0, 1, 1], [0, 2, 3, 4]), shape=(3, 2))
    model = Lasso(0.1, fit_intercept=False, tol=1e-12).fit(X, [2.0, 1, 3])
    np.testing.assert_allclose(model.coef_, [0.925, 1.34])
    assert X.nnz == 4
    np.testing.assert_array_equal(X.indices, [0, 0, 1, 1])


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("fmt", ["csr", "csc"])
@pytest.mark.parametrize("shape", [(60, 30), (25, 40)])
def test_case_1_repeated_and_unsorted_entries_anywhere(shape, fmt, n_shards, weighted):
    X, y = problem(*shape, density=0.4)
    weight = np.linspace(0.5, 2, len(y)) if weighted else None
    repeated = with_repeats(X, fmt)
    assert repeated.nnz > np.count_nonzero(X)
    before = [a.tobytes() for a in (repeated.data, repeated.indices, repeated.indptr)]
    model = Lasso(0.05, tol=1e-12, n_shards=n_shards).fit(repeated, y, weight)
    assert_same(model, Lasso(0.05, tol=1e-12).fit(X, y, weight))
    assert [a.tobytes() for a in (repeated.data, repeated.indices, repeated.indptr)] == before
    np.testing.assert_allclose(model.predict(repeated), model.predict(X))


def test_case_1_repeats_in_coo_and_repeats_that_cancel():
    X, y = problem(40, 10, density=0.5)
    rows, columns = np.nonzero(np.ones_like(X))
    coo = sp.coo_matrix(
        (np.concatenate([X.ravel() + 3, -3 * np.ones(X.size)]), (np.tile(rows, 2), np.tile(columns, 2))),
        shape=X.shape,
    )
    assert_same(Lasso(0.05, tol=1e-12).fit(coo, y), Lasso(0.05, tol=1e-12).fit(X, y))


@pytest.mark.parametrize("index", [(np.int32, np.int64), (np.int64, np.int32), (np.int64, np.int64)])
@pytest.mark.parametrize("fmt", ["csr", "csc"])
@pytest.mark.parametrize("shape", [(50, 40), (25, 40)])
def test_case_3_mixed_index_dtypes(shape, fmt, index):
    X, y = problem(*shape, density=0.3)
    for change in (lambda A: A, lambda A: with_repeats(A, fmt)):
        A = change(sp.csr_matrix(X).asformat(fmt))
        want = Lasso(0.05, tol=1e-12, n_shards=2).fit(A.copy(), y)
        A.indices, A.indptr = A.indices.astype(index[0]), A.indptr.astype(index[1])
        model = Lasso(0.05, tol=1e-12, n_shards=2).fit(A, y)
        np.testing.assert_array_equal(model.coef_, want.coef_)
        assert (A.indices.dtype, A.indptr.dtype) == index
        np.testing.assert_array_equal(model.predict(A), want.predict(A))


@pytest.mark.parametrize("fmt", ["csr", "csc"])
@pytest.mark.parametrize("shape", [(60, 30), (25, 40)])
def test_case_5_read_only_and_unsorted(shape, fmt):
    X, y = problem(*shape, density=0.4)
    A = with_repeats(X, fmt)
    for array in A.data, A.indices, A.indptr:
        array.flags.writeable = False
    before = A.indices.copy()
    model = Lasso(0.05, tol=1e-12, n_shards=2).fit(A, y)
    assert_same(model, Lasso(0.05, tol=1e-12).fit(X, y))
    np.testing.assert_array_equal(A.indices, before)
    assert not A.indices.flags.writeable


def test_case_5_the_input_itself():
    M = sp.csr_matrix(([2.0, 1, 4, 3], [1, 0, 1, 0], [0, 2, 4]))
    M.indices.flags.writeable = False
    model = Lasso(0.1, fit_intercept=False, tol=1e-12).fit(M, [1.0, 2.0])
    assert_same(model, Lasso(0.1, fit_intercept=False, tol=1e-12).fit(M.toarray(), [1.0, 2.0]))
    assert list(M.indices) == [1, 0, 1, 0]


@st.composite
def stored(draw):
    """X (dense), and the same X sparse: its entries in parts, in any order, with zeros, and of any index."""
    n, p = draw(st.sampled_from([(6, 9), (40, 5)]))
    size = draw(st.integers(0, 2 * n))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    rows, columns = rng.integers(0, n, size), rng.integers(0, p, size)  # some come twice
    values = rng.integers(-3, 4, size) / 2.0  # some are zero
    X = np.zeros((n, p))
    np.add.at(X, (rows, columns), values)
    fmt = draw(st.sampled_from(["csr", "csc", "coo"]))
    kind = getattr(sp, f"{fmt}_{draw(st.sampled_from(['matrix', 'array']))}")
    if fmt == "coo":
        A = kind((values, (rows, columns)), shape=X.shape)
        names = ["data", "row", "col"]
    else:
        lines, others = (rows, columns) if fmt == "csr" else (columns, rows)
        order = np.argsort(lines, kind="stable")
        starts = np.searchsorted(lines[order], np.arange((n if fmt == "csr" else p) + 1))
        A = kind((values[order], others[order], starts), shape=X.shape)
        names = ["data", "indices", "indptr"]
        for name in names[1:]:
            setattr(A, name, getattr(A, name).astype(draw(st.sampled_from([np.int32, np.int64]))))
    frozen = draw(st.booleans())
    for name in names:
        getattr(A, name).flags.writeable = not frozen
    return X, A, names


@settings(max_examples=60)
@given(stored(), st.integers(1, 3))
def test_cases_1_3_5_8_however_a_sparse_matrix_is_stored(drawn, n_shards):
    X, A, names = drawn
    y = X[:, 0] - 2 * X[:, 3] + np.sin(np.arange(len(X)))
    before = {name: getattr(A, name).copy() for name in names}
    model = ElasticNet(0.05, l1_ratio=0.5, tol=1e-12, n_shards=n_shards).fit(A, y)
    assert_same(model, ElasticNet(0.05, l1_ratio=0.5, tol=1e-12).fit(X, y))
    np.testing.assert_allclose(model.predict(A), model.predict(X), atol=1e-12)
    for name, array in before.items():
        assert getattr(A, name).dtype == array.dtype
        np.testing.assert_array_equal(getattr(A, name), array)


@pytest.mark.parametrize("fmt", ["csr", "csc"])
@pytest.mark.parametrize("shape", [(60, 30), (25, 40)])
def test_case_8_explicit_zeros_are_zeros(shape, fmt):
    X, y = problem(*shape, density=0.4)
    A = sp.csr_matrix(np.where(X == 0, 1.0, X)).asformat(fmt)
    A.data[A.data == 1.0] = 0.0
    A.data[3] = 2.2e-308  # its square underflows
    nnz = A.nnz
    assert nnz == X.size
    assert_same(Lasso(0.05, tol=1e-12, n_shards=2).fit(A, y), Lasso(0.05, tol=1e-12).fit(A.toarray(), y))
    assert A.nnz == nnz
    B = A.copy()
    B.eliminate_zeros()
    assert_same(Lasso(0.05, tol=1e-12).fit(A, y), Lasso(0.05, tol=1e-12).fit(B, y))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("fmt", ["dense", *FORMATS])
@pytest.mark.parametrize("shape", [(60, 30), (25, 40)])
def test_case_10_nan_in_any_container_is_named(shape, fmt):
    X, y = problem(*shape, density=0.6)
    X[3, 2] = np.nan
    X = X if fmt == "dense" else FORMATS[fmt](X)
    with pytest.raises(ValueError, match=r"NaN .*column 2\b"):
        Lasso(0.1, n_shards=4).fit(X, y)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("shape", [(60, 30), (25, 40)])
def test_case_10_overflow_never_gives_nan_coefficients(shape):
    for where, size in (("X", 1e308), ("X", 1e200), ("y", 1e308), ("y", 1e200)):
        X, y = problem(*shape)
        (X if where == "X" else y[:, None])[:] *= size / 100
        with pytest.raises(ValueError, match=r"too large|overflow"):
            Lasso(0.1, n_shards=2).fit(X, y)
    X, y = problem(*shape)  # large and fine
    model = Lasso(0.1e100, tol=1e-10, n_shards=2).fit(X * 1e70, y * 1e30)
    np.testing.assert_allclose(model.coef_ * 1e40, Lasso(0.1, tol=1e-10).fit(X, y).coef_, atol=1e-4)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [(60, 30), (25, 40)])
def test_case_11_the_same_intercept_for_sparse_x(shape, fmt):
    X = sp.random(*shape, 0.3, random_state=0)
    y = np.random.default_rng(0).standard_normal(shape[0]) + 5
    model = Lasso(0.01, tol=1e-12).fit(FORMATS[fmt](X), y)
    assert abs(model.intercept_) > 1
    assert_same(
        model, sklearn.linear_model.Lasso(0.01, tol=1e-12, max_iter=100_000).fit(X.toarray(), y), 1e-5
    )


@pytest.mark.parametrize("fmt", ["dense", "csr", "csc"])
@pytest.mark.parametrize("shape", [(120, 10), (25, 40)])
def test_case_12_rows_of_weight_zero_are_as_removed_whatever_they_hold(shape, fmt):
    X, y = problem(*shape, density=0.6)
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    weight[[3, 20]] = 0
    want = Lasso(0.05, tol=1e-10).fit(X[weight > 0], y[weight > 0], weight[weight > 0])
    for size in 1e200, -1e308:
        X[[3, 20]], y[[3, 20]] = size, -size
        given_X = X.copy() if fmt == "dense" else FORMATS[fmt](X)
        before = given_X.copy()
        assert_same(Lasso(0.05, tol=1e-10, n_shards=2).fit(given_X, y, weight), want)
        assert abs(given_X - before).max() == 0
    X[3] = np.nan  # but NaN is an error wherever it is
    with pytest.raises(ValueError, match="NaN"):
        Lasso(0.05).fit(X if fmt == "dense" else FORMATS[fmt](X), np.zeros(len(y)), weight)


@pytest.mark.parametrize("update", ["exact", "parallel"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("fmt", ["dense", "csr", "csc"])
@pytest.mark.parametrize("shape", [(60, 30), (25, 40)])
def test_case_13_zero_columns_get_zero(shape, fmt, fit_intercept, update):
    X, y = problem(*shape)
    X[:, [5, 6, 7, shape[1] - 1]] = 0
    given_X = X if fmt == "dense" else FORMATS[fmt](X)
    for alpha, l1_ratio in (0.1, 1.0), (0.1, 0.5), (0.0, 1.0):
        if alpha == 0 and (shape[0] < shape[1] or update == "parallel"):
            continue
        model = ElasticNet(
            alpha, l1_ratio=l1_ratio, fit_intercept=fit_intercept, update=update, rho=0.5, n_shards=3,
            tol=1e-8 if update == "exact" else 1e-3, random_state=0,
        ).fit(given_X, y)  # fmt: skip
        assert not model.coef_[[5, 6, 7, -1]].any()
        assert np.isfinite(model.coef_).all()


def test_case_13_nothing_but_zeros_and_one_row():
    for X in np.zeros((4, 3)), np.zeros((3, 5)), sp.csr_matrix((4, 3)), sp.csc_matrix((3, 5)):
        y = np.arange(X.shape[0], dtype=float)
        for alpha, l1_ratio in (0.1, 1.0), (0.0, 1.0), (0.1, 0.0), (0.1, 0.5):
            model = ElasticNet(alpha, l1_ratio=l1_ratio, n_shards=2).fit(X, y)
            assert not model.coef_.any()
            assert model.intercept_ == pytest.approx(y.mean())
    model = Lasso(0.1, n_shards=2).fit([[1.0, 2.0, 3.0]], [4.0])
    assert not model.coef_.any()
    assert model.intercept_ == 4.0


@pytest.mark.parametrize("fmt", ["dense", "csr", "csc"])
@pytest.mark.parametrize(("alpha", "coef", "intercept"), [(0.1, 1.17, 0.71), (1.0, 0.72, 2.06)])
def test_case_14_constant_column(alpha, coef, intercept, fmt):
    X = np.array([[1.0, 1], [1, 2], [1, 3], [1, 4], [1, 5]])
    model = Lasso(alpha, tol=1e-12).fit(X if fmt == "dense" else FORMATS[fmt](X), [2.1, 2.9, 3.9, 5.1, 7.1])
    np.testing.assert_allclose(model.coef_, [0, coef], atol=1e-9)
    assert model.intercept_ == pytest.approx(intercept)


@pytest.mark.parametrize("constant", [0.1, 1 / 3, 1e6 + 0.1, -7e-5])
@pytest.mark.parametrize("shape", [(61, 10), (11, 40)])
def test_case_14_constants_that_no_mean_meets_exactly(shape, constant):
    X, y = problem(*shape)
    X[:, 4] = constant
    for alpha in (0.05, 0.0) if shape[0] > shape[1] else (0.05,):
        for given_X in X, sp.csr_matrix(X):
            model = Lasso(alpha, tol=1e-8, n_shards=2).fit(given_X, y)
            assert abs(model.coef_[4] * constant) < 1e-6
            others = Lasso(alpha, tol=1e-8).fit(np.delete(X, 4, axis=1), y)
            np.testing.assert_allclose(np.delete(model.coef_, 4), others.coef_, atol=1e-3)


@pytest.mark.parametrize("alpha", [1.0, 1e-3, 0.0])
@pytest.mark.parametrize(
    ("X", "y"),
    [
        ([[1.0, 2], [3, 4]], [0.0, 0]),
        ([[0.0], [0], [0]], [0.0, 0, 0]),
        ([[0.0], [0], [0]], [5.0, 5, 5]),
        ([[1.0, 2], [3, 5], [6, 1]], [7.0, 7, 7]),
        ([[1.0, 2, 0, 4], [3, 5, 1, 0]], [7.0, 7]),
    ],
)
def test_case_15_constant_y(X, y, alpha):
    for given_X in np.array(X), sp.csr_matrix(X):
        for update in "exact", "parallel":
            model = Lasso(alpha, n_shards=2, update=update).fit(given_X, y)
            assert not model.coef_.any()
            assert model.intercept_ == pytest.approx(y[0], rel=1e-15)
            assert model.n_iter_ <= 1
            assert alpha == 0 or model.dual_gap_ == pytest.approx(0, abs=1e-25)


@pytest.mark.parametrize("alpha", [0.1, 1e-6, 0.0])
@pytest.mark.parametrize("constant", [0.1, 1 / 3, 1e6 + 0.1])
@pytest.mark.parametrize("shape", [(61, 10), (11, 40)])
def test_case_15_constants_that_no_mean_meets_exactly(shape, constant, alpha):
    X, _ = problem(*shape)
    weight = np.random.default_rng(0).uniform(0.5, 2, shape[0])
    for weights in None, weight:
        model = Lasso(alpha, n_shards=2).fit(X, np.full(shape[0], constant), weights)
        np.testing.assert_allclose(model.coef_, 0, atol=1e-12 * constant)
        assert model.intercept_ == pytest.approx(constant, rel=1e-12)


@pytest.mark.parametrize("l1_ratio", [1.0, 0.3])
@pytest.mark.parametrize("fmt", ["dense", "csr"])
@pytest.mark.parametrize("shape", [(60, 30), (25, 40)])
def test_case_16_alpha_max(shape, fmt, l1_ratio):
    X, y = problem(*shape)
    top = oracles.alpha_max(X, y, l1_ratio)
    given_X = X if fmt == "dense" else FORMATS[fmt](X)
    for factor in 1 + 1e-13, 2.0:
        for selection in "dynamic", "cyclic":
            model = ElasticNet(top * factor, l1_ratio=l1_ratio, tol=1e-10, selection=selection, n_shards=2)
            model.fit(given_X, y)
            assert not model.coef_.any()
            assert model.n_iter_ == 1
    model = ElasticNet(top, l1_ratio=l1_ratio).fit(given_X, y)
    np.testing.assert_allclose(model.coef_, 0, atol=1e-12)
    assert model.n_iter_ <= 2
    assert ElasticNet(top * 0.99, l1_ratio=l1_ratio, tol=1e-10).fit(given_X, y).coef_.any()


@pytest.mark.timeout(30)
def test_case_17_alpha_zero_and_negative():
    X, y = problem(60, 10)
    model = Lasso(0.0, tol=1e-12).fit(X, y)
    want = sklearn.linear_model.LinearRegression().fit(X, y)
    assert_same(model, want, 1e-8)
    for bad in -1, -1e-300, -np.inf:
        with pytest.raises(ValueError, match="alpha"):
            Lasso(bad).fit(X, y)


def test_case_18_the_objective_is_scikit_learns():
    model = Lasso(1.0, tol=1e-12).fit([[1.0], [2], [3], [4], [5]], [2.0, 4, 6, 8, 10])
    np.testing.assert_allclose([model.coef_[0], model.intercept_], [1.5, 1.5], atol=1e-9)
    X, y = problem(600, 20)
    for alpha, l1_ratio in (0.1, 1.0), (0.01, 1.0), (0.1, 0.5):
        model = ElasticNet(alpha, l1_ratio=l1_ratio, tol=1e-11).fit(X, y)
        want = sklearn.linear_model.ElasticNet(alpha, l1_ratio=l1_ratio, tol=1e-12).fit(X, y)
        value, best = (
            oracles.objective(X, y, fit.coef_, fit.intercept_, alpha, l1_ratio) for fit in (model, want)
        )
        assert value == pytest.approx(best, rel=1e-10)
        assert oracles.duality_gap(X, y, model.coef_, alpha, l1_ratio) <= 1e-11 * oracles.scale(X, y) + 1e-14


@pytest.mark.parametrize("l1_ratio", [0.0, 1e-3, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("alpha", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("shape", [(60, 30), (25, 40)])
def test_case_19_the_gap_of_the_elastic_net_goes_to_zero(shape, alpha, l1_ratio):
    X, y = problem(*shape, seed=3)
    model = ElasticNet(alpha, l1_ratio=l1_ratio, tol=1e-10, n_shards=2).fit(X, y)
    slack = 1e-13 * oracles.scale(X, y)
    assert -slack <= model.dual_gap_ <= 1e-10 * oracles.scale(X, y)
    assert oracles.duality_gap(X, y, model.coef_, alpha, l1_ratio) == pytest.approx(
        model.dual_gap_, rel=1e-6, abs=slack
    )


def test_case_19_ridge_whose_gap_is_many_times_y_squared():
    # At zero this ridge's gap is 50 ||y||^2 / n: a block target of a tenth of that would ask nothing.
    X, y = np.zeros((4, 6)), np.array([1.0, 0, 0, 0])
    X[0, 5] = 2
    model = ElasticNet(0.01, l1_ratio=0.0, fit_intercept=False, tol=1e-10, max_iter=50).fit(X, y)
    assert model.coef_[5] == pytest.approx(2 / 4.04)
    model = ElasticNet(0.01, l1_ratio=0.0, fit_intercept=False, tol=1e-10, max_iter=50).fit(X[:, [5, 4]], y)
    assert model.coef_[0] == pytest.approx(2 / 4.04)


def test_case_20_one_feature_one_sample():
    model = Lasso(fit_intercept=False).fit(np.ones((3, 1)), np.ones(3))
    assert model.coef_.shape == (1,)
    assert np.ndim(model.intercept_) == 0
    for X in np.ones((1, 1)), np.ones((1, 4)), np.ones((2, 1)), sp.csr_matrix(np.ones((1, 4))):
        for n_shards in 1, 5:
            model = Lasso(0.1, n_shards=n_shards, fit_intercept=False, tol=1e-10).fit(X, np.ones(X.shape[0]))
            assert model.coef_.shape == X.shape[1:]
            assert model.coef_.sum() == pytest.approx(0.9, abs=1e-4)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool", "object", "float16", "float32"])
@pytest.mark.parametrize("shape", [(60, 8), (8, 20)])
def test_case_21_integer_bool_object_float16(shape, dtype, fit_intercept):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2 if dtype == "bool" else 9, shape)
    y = X[:, 0] * 2 - X[:, 1] + rng.integers(0, 3, shape[0])
    want = Lasso(0.1, fit_intercept=fit_intercept, tol=1e-12).fit(X.astype(float), y.astype(float))
    model = Lasso(0.1, fit_intercept=fit_intercept, tol=1e-12).fit(X.astype(dtype), y)
    assert model.coef_.dtype == (np.float32 if dtype == "float32" else np.float64)
    np.testing.assert_array_equal(model.coef_, want.coef_.astype(model.coef_.dtype))
    if dtype not in ("object", "float16"):
        sparse = Lasso(0.1, fit_intercept=fit_intercept, tol=1e-12).fit(sp.csr_matrix(X.astype(dtype)), y)
        assert sparse.coef_.dtype == model.coef_.dtype
        # equal columns share their coefficient in any way, so the fits are compared
        np.testing.assert_allclose(sparse.predict(X), want.predict(X), atol=1e-5)


@pytest.mark.parametrize("update", ["exact", "parallel"])
@pytest.mark.parametrize("shape", [(400, 3), (20, 40)])
def test_case_22_the_intercept_is_not_penalised(shape, update):
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape)
    y = X[:, :3] @ [1.0, 2, 0]
    for given_X in X, sp.csr_matrix(X):
        fits = [
            Lasso(0.12, update=update, rho=0.5, tol=1e-11, max_iter=5000, random_state=0).fit(given_X, y + c)
            for c in (0.0, 1000.0)
        ]
        np.testing.assert_allclose(fits[1].coef_, fits[0].coef_, atol=1e-4)
        assert fits[1].intercept_ - fits[0].intercept_ == pytest.approx(1000, abs=1e-4)
    if shape[1] == 3:
        np.testing.assert_allclose(fits[1].coef_, [0.878, 1.876, 0], atol=0.02)


# Case 26: with m = x'x / 50 = 0.847 (this seed) the optimum is sum b = 2 - alpha / m and objective
# 2 alpha - alpha^2 / (2 m): the case's 1.88 and 0.194 belong to alpha = 0.1 without an intercept.
PULSE = np.random.default_rng(0).standard_normal(50)
ALPHA = 0.1


def assert_case_26(model, X, y):
    value = oracles.objective(X, y, model.coef_, model.intercept_, ALPHA)
    assert value == pytest.approx(0.194, abs=5e-4)
    assert model.coef_.sum() == pytest.approx(1.88, abs=5e-3)
    m = PULSE @ PULSE / 50
    assert value == pytest.approx(2 * ALPHA - ALPHA**2 / (2 * m), abs=1e-6)


def duplicates(p=8, at=None):
    """X (50, p) whose columns `at` are one and the same, the others noise orthogonal to it, and y = 2 x."""
    at = np.arange(8) if at is None else at
    noise = np.random.default_rng(1).standard_normal((50, p))
    X = noise - np.outer(PULSE, PULSE @ noise) / (PULSE @ PULSE)
    X[:, at] = PULSE[:, None]
    return X, 2 * PULSE


@pytest.mark.parametrize("rho", [0.1, 0.9, 1.0])
@pytest.mark.parametrize("n_shards", [1, 2, 3])
@pytest.mark.parametrize("selection", ["dynamic", "cyclic", "random"])
def test_case_26_the_dependency_check_keeps_duplicates_apart(selection, n_shards, rho):
    X, y = duplicates()
    for given_X in X, sp.csr_matrix(X):
        model = Lasso(
            ALPHA, fit_intercept=False, update="parallel", rho=rho, selection=selection, n_shards=n_shards,
            tol=1e-8, random_state=0,
        ).fit(given_X, y)  # fmt: skip
        assert_case_26(model, X, y)


@pytest.mark.parametrize("update", ["parallel", "exact"])
@pytest.mark.parametrize("spread", [np.arange(26, 34), np.arange(0, 60, 8)], ids=["border", "everywhere"])
@pytest.mark.parametrize("n_shards", [2, 3])
def test_case_26_duplicates_split_over_shards(n_shards, spread, update):
    X, y = duplicates(60, spread[:8])
    for given_X in X, sp.csr_matrix(X):
        model = Lasso(
            ALPHA, fit_intercept=False, update=update, rho=0.3, n_shards=n_shards, tol=1e-7, random_state=0
        ).fit(given_X, y)
        assert_case_26(model, X, y)
        assert not np.delete(model.coef_, spread[:8]).any()


@pytest.mark.parametrize("selection", ["dynamic", "cyclic"])
@pytest.mark.parametrize("p", [8, 60])
def test_case_26_all_at_once_diverges_and_says_so(p, selection):
    X, y = duplicates(p, np.arange(8))
    for given_X, n_shards in (X, 1), (X, 2), (sp.csr_matrix(X), 2):
        model = Lasso(
            ALPHA, fit_intercept=False, update="parallel", rho=None, selection=selection, n_shards=n_shards,
            random_state=0,
        )  # fmt: skip
        with pytest.warns(ConvergenceWarning, match=r"diverge.*set rho.*update='exact'"):
            model.fit(given_X, y)
        assert np.isfinite(model.coef_).all()
        assert model.n_iter_ < 10  # noticed at once
        assert oracles.objective(X, y, model.coef_, model.intercept_, ALPHA) > 10 * 2 * (PULSE @ PULSE) / 50


@pytest.mark.parametrize("estimator", [Lasso, ElasticNet])
def test_case_36_a_column_of_y(estimator):
    X, y = problem(60, 30)
    flat = estimator(0.1).fit(X, y)
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        model = estimator(0.1).fit(X, y[:, None])
    assert model.coef_.shape == (30,)
    assert np.shape(model.intercept_) == ()
    assert model.predict(X).shape == (60,)
    np.testing.assert_array_equal(model.coef_, flat.coef_)


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.csc_array, sp.coo_matrix])
def test_case_36_sparse_y_is_a_clear_type_error(make):
    X, y = problem(60, 30)
    for sparse in make(y[:, None]), make(np.column_stack([y, y])):
        with pytest.raises(TypeError, match=re.compile(r"\by\b.*sparse|sparse.*\by\b", re.IGNORECASE)):
            Lasso(0.1).fit(X, sparse)


def test_no_case_warns():
    X, y = problem(60, 30)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for given_X in X, sp.csr_matrix(X), X.astype(np.float32):
            ElasticNet(0.1).fit(given_X, y).predict(given_X)
    assert not caught
