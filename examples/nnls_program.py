"""A model-parallel algorithm of one's own in about 25 lines: non-negative least squares by coordinates.

python examples/nnls_program.py
"""

from types import SimpleNamespace

import numpy as np

from daskstrads import Program, RoundRobin, Sum, run


class NNLS(Program):
    """min 1/2 ||y - X b||^2 over b >= 0, a coordinate a round; the rows of X are split over the ranks."""

    replicas = ("coef",)  # the same on every rank: written by pull alone, compared every round

    def __init__(self, n_features, tol=1e-8):
        self.schedule = RoundRobin(n_features, sweeps=1000, tol=tol)

    def init(self, part, rank, size, rng):
        X, y = part
        return SimpleNamespace(X=X, residual=y.copy(), coef=np.zeros(X.shape[1]))

    def push(self, shard, plan):
        x = shard.X[:, plan[0]]
        return Sum(np.array([x @ shard.residual, x @ x]))

    def pull(self, shard, plan, received, sent):
        gradient, norm = received
        step = max(gradient / norm, -shard.coef[plan[0]])
        shard.coef[plan[0]] += step
        shard.residual -= step * shard.X[:, plan[0]]
        return abs(step)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 40))
    y = X @ np.maximum(rng.standard_normal(40), 0) + 0.1 * rng.standard_normal(20_000)
    fit = run(NNLS(40), [(X[:10_000], y[:10_000]), (X[10_000:], y[10_000:])])  # two ranks, a thread each
    coef = fit.shards[0].coef
    print(f"{fit.rounds} rounds, {np.count_nonzero(coef)} of {len(coef)} coefficients above 0")

    from scipy.optimize import nnls

    print(f"largest difference from scipy.optimize.nnls: {np.abs(coef - nnls(X, y)[0]).max():.1e}")
