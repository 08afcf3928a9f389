"""Wide sparse X, where most columns are looked at in measurements alone."""

import numpy as np
import oracles
import pytest
import scipy.sparse as sp

from daskstrads import ElasticNet, Lasso
from daskstrads.algos import lasso as estimators
from daskstrads.algos import lasso_columns


def problem(seed=0, n=120, p=3_000):
    rng = np.random.default_rng(seed)
    X = sp.random(n, p, density=0.05, format="csc", random_state=rng, data_rvs=rng.standard_normal)
    truth = np.where(rng.random(p) < 0.008, rng.standard_normal(p), 0.0)
    return X, X @ truth + 0.1 * rng.standard_normal(n) + 1.0


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and working sets that are small beside p, as they are in large problems."""
    monkeypatch.setattr(estimators, "_COLUMN_BLOCK", (20, 40))


@pytest.mark.parametrize("update", ["exact", "apart"])
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fit_intercept": False},
        {"positive": True},
        {"l1_ratio": 0.7},
    ],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_certificate_is_of_all_columns(small_blocks, weighted, options, n_shards, update):
    X, y = problem()
    weight = np.random.default_rng(1).uniform(0.2, 3, len(y)) if weighted else None
    alpha = oracles.alpha_max(X, y, weight=weight, fit_intercept=options.get("fit_intercept", True)) / 20
    options = {"l1_ratio": 1.0} | options
    model = ElasticNet(alpha, tol=1e-9, n_shards=n_shards, update=update, **options).fit(X, y, weight)
    gap = oracles.duality_gap(
        X.toarray(), y, model.coef_, alpha, weight=weight, fit_intercept=model.fit_intercept,
        l1_ratio=model.l1_ratio, positive=model.positive,
    )  # fmt: skip
    scale = oracles.scale(X, y, fit_intercept=model.fit_intercept, weight=weight)
    assert gap <= 1e-9 * scale * (1 + 1e-6)
    assert model.dual_gap_ == pytest.approx(gap, rel=1e-3, abs=1e-12 * scale)


def test_few_measurements_and_most_columns_left_alone(small_blocks):
    X, y = problem()
    model = Lasso(0.02, tol=1e-8, n_shards=2).fit(X, y)
    history = model.history_
    assert len(history["round"]) < history["round"][-1] / 2
    assert np.all(np.diff(history["objective"]) <= 1e-12 * history["objective"][0])
    assert np.all(np.diff(history["updates"]) > 0)


def test_a_working_set_that_misses_what_matters_is_found_out(small_blocks, monkeypatch):
    monkeypatch.setattr(lasso_columns, "near_count", lambda columns, block: block)
    X, y = problem(seed=3)
    model = Lasso(0.005, tol=1e-10, n_shards=2).fit(X, y)
    assert oracles.duality_gap(X.toarray(), y, model.coef_, 0.005) <= 1e-10 * oracles.scale(X, y)
