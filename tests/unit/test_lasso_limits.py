"""Inputs at the edge of what numbers, threads and patience take."""

import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import oracles
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from daskstrads import Lasso
from daskstrads.partition import split_axis

ROOT = Path(__file__).parents[2]


def problem(n, p, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, X[:, 0] - 2 * X[:, 1] + 0.3 * rng.standard_normal(n) + 1


@pytest.mark.parametrize("shape", [(30, 60), (200, 10)])
@pytest.mark.parametrize("factor", [1e308, 1e-310, 5e-324])
def test_equal_weights_of_any_size_are_no_weights(shape, factor):
    X, y = problem(*shape)
    wanted = Lasso(0.05, tol=1e-10).fit(X, y)
    found = Lasso(0.05, tol=1e-10).fit(X, y, sample_weight=np.full(len(y), factor))
    np.testing.assert_allclose(found.coef_, wanted.coef_, atol=1e-6)


def test_weights_of_all_sizes():
    X, y = problem(200, 10)
    weight = np.where(np.arange(200) < 100, 5e-324, 1.0)  # the first rank has nothing that counts
    found = Lasso(0.05, tol=1e-10, n_shards=2).fit(X, y, sample_weight=weight)
    wanted = Lasso(0.05, tol=1e-10).fit(X[100:], y[100:])
    np.testing.assert_allclose(found.coef_, wanted.coef_, atol=1e-6)


@pytest.mark.parametrize("fmt", ["csr", "csc"])
@pytest.mark.parametrize("shape", [(40, 60), (160, 12)])
@pytest.mark.parametrize("damage", ["index", "negative", "past", "falling"])
def test_damaged_sparse_matrices_are_refused(fmt, shape, damage):
    X = sp.random(*shape, 0.5, format=fmt, random_state=0)
    if damage == "index":
        X.indices[5] = 10**6
    elif damage == "negative":
        X.indices[5] = -3
    elif damage == "past":
        X.indptr[-1] += 10
    else:
        X.indptr[3] = X.indptr[4] + 1
    with pytest.raises(ValueError, match=r"sparse X|index"):
        Lasso(0.1).fit(X, np.arange(float(shape[0])))


@pytest.mark.parametrize("name", ["positive", "fit_intercept", "warm_start", "copy_X"])
def test_switches_are_true_or_false(name):
    X, y = problem(30, 5)
    with pytest.raises(TypeError, match=f"{name} must be True or False"):
        Lasso(**{name: "no"}).fit(X, y)


def test_missing_values_in_an_object_y():
    X, y = problem(30, 5)
    wrong = y.astype(object)
    wrong[3] = None
    with pytest.raises(ValueError, match=r"y contains NaN|Input y"):
        Lasso().fit(X, wrong)


def test_surplus_shards_cost_nothing():
    X, y = problem(50, 20)
    start = time.monotonic()
    model = Lasso(0.05, n_shards=2000).fit(X, y)
    assert time.monotonic() - start < 20
    np.testing.assert_allclose(model.coef_, Lasso(0.05).fit(X, y).coef_, atol=1e-3)


def test_a_warm_start_that_is_not_finite():
    X, y = problem(30, 5)
    model = Lasso(0.05, warm_start=True).fit(X, y)
    model.coef_[2] = np.nan
    with pytest.raises(ValueError, match="coef_ is not finite"):
        model.fit(X, y)


def test_n_iter_keeps_to_max_iter():
    X, y = problem(60, 90)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        assert Lasso(1e-3, max_iter=2, tol=1e-14).fit(X, y).n_iter_ == 2


def test_passes_that_bring_nothing_end_the_fit():
    X, y = problem(40, 80)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = Lasso(0.01, tol=0, max_iter=100_000).fit(X, y)
    assert model.n_iter_ < 1000
    gap = oracles.duality_gap(X, y, model.coef_, 0.01)
    assert gap <= 1e-12 * oracles.scale(X, y)


def test_tall_means_eight_rows_a_column():
    assert [split_axis(shape) for shape in ((80, 10), (79, 10), (10, 10), (5, 10))] == [0, 1, 1, 1]


CTRL_C = """
import numpy as np
from daskstrads import Lasso
X = np.asfortranarray(np.random.default_rng(0).standard_normal((1500, 6000)))
y = X @ np.ones(6000)
Lasso(1e-7, max_iter=3).fit(X[:50, :60], y[:50])
print("go", flush=True)
Lasso(1e-9, tol=1e-14, n_shards={shards}, max_iter=100_000).fit(X, y)
"""


@pytest.mark.parametrize("shards", [1, 2])
def test_ctrl_c_comes_through_in_the_middle_of_a_block(shards):
    fit = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CTRL_C.format(shards=shards)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert fit.stdout.readline() == "go\n"
        time.sleep(2.0)
        start = time.monotonic()
        fit.send_signal(signal.SIGINT)
        _, told = fit.communicate(timeout=60)
        assert told.rstrip().endswith("KeyboardInterrupt")
        assert time.monotonic() - start < 8.0  # below the ten seconds that a stuck rank is given
    finally:
        fit.kill()
        fit.communicate()
