"""Inputs that are hard for a solver: constant columns, nearly equal ones, tiny numbers."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from daskstrads import ElasticNet, Lasso

LAYOUTS = {"C": np.ascontiguousarray, "F": np.asfortranarray, "csr": sp.csr_array, "csc": sp.csc_array}


@pytest.mark.parametrize("shape", [(200, 6), (20, 40)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("constant", [1 / 3, 1e4, 1e8])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_constant_column_gets_no_coefficient_with_an_l2_penalty(shape, layout, constant, weighted):
    """Cases 13 and 14 with an intercept and l1_ratio = 0: its gradient is rounding, over beta alone."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal(shape) * (rng.random(shape) < 0.4)
    X[:, 2] = constant
    y = X[:, :2] @ [1, 2] + 0.1 * rng.standard_normal(shape[0]) + 3
    weight = rng.random(shape[0]) + 0.1 if weighted else None
    model = ElasticNet(alpha=1e-4, l1_ratio=0.0, tol=1e-8).fit(LAYOUTS[layout](X), y, sample_weight=weight)
    without = ElasticNet(alpha=1e-4, l1_ratio=0.0, tol=1e-8).fit(
        LAYOUTS[layout](np.delete(X, 2, axis=1)), y, sample_weight=weight
    )
    assert model.coef_[2] == 0.0
    assert model.intercept_ == pytest.approx(without.intercept_, abs=1e-2)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_constant_column_does_no_harm_where_the_penalty_is_below_rounding(layout, ranks):
    """lam > 0, but less than the rounding in the constant column's gradient, which must move nothing."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((30, 6)) * (rng.random((30, 6)) < 0.4)
    X[:, 2] = 1e8
    y = X[:, :2] @ [1, 2] + 0.1 * rng.standard_normal(30) + 3
    model = ElasticNet(alpha=1e-10, l1_ratio=0.5, tol=1e-6, n_shards=ranks).fit(LAYOUTS[layout](X), y)
    assert model.coef_[2] == 0.0
    assert model.dual_gap_ <= 1e-6 * np.var(y)


@pytest.mark.parametrize(("shape", "seed"), [((200, 10), 1), ((200, 10), 3), ((40, 80), 1), ((40, 80), 4)])
def test_sparse_columns_with_a_huge_mean_are_fitted_as_dense_ones(shape, seed):
    """Full columns of spread 1 about 1e8: products that subtract the mean last have no digits."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal(shape) * (rng.random(shape) < 0.3)
    X[:, :2] = rng.standard_normal((shape[0], 2)) + 1e8
    centred = X - X.mean(axis=0)
    y = centred[:, :6].sum(axis=1) + 0.1 * rng.standard_normal(shape[0])
    alpha = np.abs(centred.T @ (y - y.mean())).max() / shape[0] / 50
    dense = Lasso(alpha=alpha, tol=1e-6, n_shards=1).fit(X, y)
    sparse = Lasso(alpha=alpha, tol=1e-6, n_shards=1).fit(sp.csr_array(X), y)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, atol=1e-2)


@pytest.mark.parametrize(
    ("shape", "seed", "order", "tol"),
    [((30, 60), 0, "F", 1e-4), ((30, 60), 1, "C", 1e-6), ((40, 120), 2, "C", 1e-6)],
)
def test_a_fit_goes_on_while_its_objective_falls(shape, seed, order, tol):
    """Nearly equal columns: 50 passes bring no smaller gap, but the objective falls still."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal(shape)
    half = shape[1] // 2
    X[:, half:] = X[:, :half] + 1e-3 * rng.standard_normal((shape[0], half))
    y = X[:, :10].sum(axis=1) + rng.standard_normal(shape[0])
    alpha = np.abs(X.T @ y).max() / shape[0] * 1e-4
    model = Lasso(alpha=alpha, fit_intercept=False, tol=tol, n_shards=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what is asserted is the gap
        model.fit(np.asarray(X, order=order), y)
    assert model.dual_gap_ <= tol * (y @ y) / shape[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float32_with_a_weight_of_zero_warns_of_nothing(layout):
    """The bound on huge values, 1e100, is no float32: compared as one it overflows, with a RuntimeWarning."""
    X = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    weight = np.ones(20)
    weight[3] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Lasso(alpha=0.1).fit(LAYOUTS[layout](X), X[:, 0], sample_weight=weight)


def test_a_dual_gap_is_never_negative():
    """Case 19: rounding included, in `dual_gap_` and in the history (which is drawn on a log axis)."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, y = rng.standard_normal((40, 3)), rng.standard_normal(40)
        model = ElasticNet(alpha=0.05, l1_ratio=0.5, tol=1e-12).fit(X, y)
        assert model.dual_gap_ >= 0.0
        assert (model.history_["gap"] >= 0.0).all()


def test_data_whose_squares_underflow_are_refused_or_fitted():
    """A scale of 1e-200 is as valid as 1e150, which works: zeros must not come back as certified."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 8))
    y = X[:, 0] + 0.1 * rng.standard_normal(40)
    plain = Lasso(alpha=0.1, tol=1e-8).fit(X, y)
    try:
        tiny = Lasso(alpha=0.1 * 1e-200, tol=1e-8).fit(X, y * 1e-200)
    except ValueError:
        return
    np.testing.assert_allclose(tiny.coef_ * 1e200, plain.coef_, atol=1e-3)


@pytest.mark.parametrize("shape", [(200, 6), (20, 30)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("intercept", "value"), [(False, 0.0), (True, 3.0)])
def test_a_warm_start_drops_the_coefficient_of_a_column_that_became_constant(shape, layout, intercept, value):
    """Nothing else holds it: only the l1 penalty, which a sweep that skips columns of norm 0 never sees."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape)
    y = X[:, :3].sum(axis=1) + 0.1 * rng.standard_normal(shape[0])
    model = Lasso(alpha=0.01, warm_start=True, fit_intercept=intercept, tol=1e-6).fit(LAYOUTS[layout](X), y)
    assert model.coef_[2] != 0.0
    X[:, 2] = value
    model.fit(LAYOUTS[layout](X), y)
    assert model.coef_[2] == 0.0
