"""The arms of benchmarks/claims.py are fits of the estimator, counted: no code of their own may creep in."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from daskstrads import Lasso


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import claims_arms

    monkeypatch.setattr(claims_arms, "OUTCOMES", [])
    return claims_arms


def problem(claims, shape=(80, 400)):
    rng = np.random.default_rng(8)
    X = sp.random(*shape, density=0.1, random_state=rng, format="csc", data_rvs=rng.standard_normal)
    y = X @ (rng.standard_normal(shape[1]) * (rng.random(shape[1]) < 0.05)) + 0.1 * rng.standard_normal(
        shape[0]
    )
    return claims.Problem("small", X, y, 0.2 * np.abs(X.T @ y).max() / shape[0])


@pytest.mark.parametrize("shape", [(80, 400), (400, 40)])
@pytest.mark.parametrize(
    "options", [{}, {"selection": "random"}, {"selection": "static"}, {"update": "parallel", "lookahead": 2}]
)
def test_an_arm_that_converges_is_certified(claims, shape, options):
    small = problem(claims, shape)
    outcome = claims.fit(small, claims.Arm(**options), seconds=20.0, target=1e-4)
    assert outcome.status == "converged"
    assert outcome.certified
    assert outcome.certificate.relative == pytest.approx(outcome.measures[-1].gap, rel=1e-4, abs=1e-12)
    assert claims.OUTCOMES[0] is outcome
    assert outcome.cpu.shape == outcome.sent.shape == (2, len(outcome.steps))
    kinds = [step.kind for step in outcome.steps]
    assert len(outcome.measures) == kinds.count("measure")
    reached, early = outcome.reach(1e-4), outcome.reach(0.5)
    assert 0 < early.rounds <= reached.rounds == len(outcome.steps)
    assert outcome.reach(0.1 * outcome.measures[-1].gap) is None
    if outcome.arm.guided:
        assert reached.dots >= len(outcome.measures)  # a full gradient each
        assert outcome.certifying() == 0
        assert reached.wall == pytest.approx(sum(step.seconds for step in outcome.steps))
    else:  # neither the products nor the time of gradients that only certify
        seconds = [step.seconds for step in outcome.steps if step.kind != "measure"]
        assert reached.wall == pytest.approx(sum(seconds))
        assert outcome.certifying() == len(outcome.measures)


@pytest.mark.parametrize("update", ["exact", "apart", "parallel"])
def test_an_arm_is_the_estimators_fit(claims, update, monkeypatch):
    small, fits = problem(claims), []

    class Spied(Lasso):
        def fit(self, X, y):
            fits.append(super().fit(X, y))

    monkeypatch.setattr(claims, "Lasso", Spied)
    claims.fit(small, claims.Arm(update=update), seconds=20.0, target=1e-3)
    mine = Lasso(
        small.alpha, fit_intercept=False, tol=5e-4, max_iter=10_000, n_shards=2, update=update, random_state=0
    ).fit(small.X, small.y)
    assert fits[0].coef_.tobytes() == mine.coef_.tobytes()


def test_an_arm_that_diverges_or_takes_too_long_ends(claims):
    rng = np.random.default_rng(9)
    X = rng.standard_normal((50, 1)) + 0.1 * rng.standard_normal((50, 40))
    y = X[:, 0] + 0.1 * rng.standard_normal(50)
    alike = claims.Problem("alike", X, y, 0.1 * np.abs(X.T @ y).max() / 50)
    outcome = claims.fit(alike, claims.Arm(update="parallel", rho=None), seconds=20.0, traced=True)
    assert outcome.status == "diverged"
    assert outcome.trace[-1] > claims.DIVERGED
    assert not outcome.certified
    checked = claims.fit(alike, claims.Arm(update="parallel"), seconds=20.0, rounds=5, traced=True)
    assert checked.status == "time"
    assert sum(step.kind == "update" for step in checked.steps) == len(checked.trace) == 5
    assert (np.diff(checked.trace) <= 1e-12).all()
    assert checked.trace[0] < 1.0  # over P(0)


def test_held_counts_each_memory_once(claims):
    base = np.zeros(100)
    assert claims.held((base, base[:50], [base, np.zeros(4, np.int32)], "text", 3.0)) == 800 + 16
