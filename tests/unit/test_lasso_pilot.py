"""The sample of rows that tall dense fits choose their first block by: it is no part of the answer."""

import numpy as np
import pytest
import scipy.sparse as sp

from daskstrads import ElasticNet, Lasso
from tests import naive

N, P = 2**16, 12
STRIDE = N // 4096  # of the rows that one rank's sample takes


def problem(seed=0):
    """Column 1 takes back a part of column 0: y by itself does not tell that it is needed."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, P))
    X[:, 1] = 0.8 * X[:, 0] + 0.6 * X[:, 1]
    truth = np.zeros(P)
    truth[[0, 1, 6]] = 3.0, -2.4, 2.0
    return X, X @ truth + 0.5 * rng.standard_normal(N), truth


def check(model, X, y, weight=None):
    """Against coordinate descent on the moments, in float64."""
    weight = np.ones(len(y)) if weight is None else weight * (len(y) / weight.sum())
    X = X.toarray() if sp.issparse(X) else np.asarray(X, np.float64)
    mean, y_mean = weight @ X / weight.sum(), weight @ y / weight.sum()
    root = np.sqrt(weight)
    want = naive.lasso((X - mean) * root[:, None], (y - y_mean) * root, len(y) * model.alpha)
    np.testing.assert_allclose(model.coef_, want, atol=1e-6)
    np.testing.assert_allclose(model.intercept_, y_mean - mean @ want, atol=1e-6)


@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("container", ["C", "F", "full csr"])
def test_the_first_block_is_the_support(container, n_shards):
    X, y, truth = problem()
    given = sp.csr_array(X) if container == "full csr" else np.asarray(X, order=container)
    model = Lasso(0.2, n_shards=n_shards, tol=1e-10).fit(given, y)
    check(model, X, y)
    assert model.n_iter_ == 2  # a look at zero, one block, a look at the optimum; by gradients it takes 3
    np.testing.assert_array_equal(model.history_["support"], [0, np.count_nonzero(truth)])


def test_a_sample_that_misleads_costs_passes_only():
    X, y, _ = problem(1)
    X[::STRIDE] = np.random.default_rng(2).standard_normal((N // STRIDE, P))  # tells nothing of y
    X[::STRIDE, 3] = 0.0
    model = Lasso(0.3, n_shards=1, tol=1e-10).fit(X, y)
    check(model, X, y)


def test_a_sample_without_weight_or_without_variance_is_no_guess():
    X, y, _ = problem(3)
    weight = np.ones(N)
    weight[::STRIDE] = 0.0
    check(Lasso(0.3, n_shards=1, tol=1e-10).fit(X, y, weight), X, y, weight)
    X[::STRIDE] = 7.0
    y[::STRIDE] = 1.0
    check(Lasso(0.3, n_shards=1, tol=1e-10).fit(X, y), X, y)


def test_other_penalties():
    X, y, _ = problem(4)
    far = ElasticNet(0.2, l1_ratio=0.3, positive=True, n_shards=2, tol=1e-10)
    few = X[: 2**15], y[: 2**15]  # too few rows for a sample
    far.fit(np.concatenate([few[0]] * 2), np.concatenate([few[1]] * 2))
    near = ElasticNet(0.2, l1_ratio=0.3, positive=True, tol=1e-10).fit(*few)
    np.testing.assert_allclose(far.coef_, near.coef_, atol=1e-7)
    assert far.n_iter_ == 2
