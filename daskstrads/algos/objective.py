"""The elastic-net objective, its duality gap, and the terms a rank reports for both.

With weights normalised to sum n, columns z_j = sqrt(w) (x_j - mean_j) and target t = sqrt(w) (y - mean):
    n P(b) = 1/2 ||t - Z b||^2 + lam ||b||_1 + beta/2 ||b||^2
    lam = n alpha l1_ratio, beta = n alpha (1 - l1_ratio)
which is n times scikit-learn's objective.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..schedule import Report
from .design import dot

__all__ = ["Height", "Penalty", "gap_of", "local_terms", "primal_of"]


class Penalty(NamedTuple):
    """lam ||b||_1 + beta/2 ||b||^2, over b >= 0 when `positive`."""

    lam: float
    beta: float
    positive: bool

    def violation(self, grad: np.ndarray, coef: np.ndarray, norms: np.ndarray) -> float:
        """Largest |cosine| between a column and the residual that optimality at alpha = 0 forbids."""
        slope = grad - self.beta * coef
        if self.positive:
            slope = np.where(coef > 0, slope, np.maximum(slope, 0.0))
        return float(np.max(np.abs(slope) / np.sqrt(np.where(norms > 0, norms, 1.0)), initial=0.0))


def local_terms(grad: np.ndarray, coef: np.ndarray, norms: np.ndarray, penalty: Penalty) -> dict[str, float]:
    """A rank's terms over its own variables: maxima and sums that `gap_of` combines."""
    from . import lasso_kernels

    summary = lasso_kernels.summary(grad, coef, penalty.beta, penalty.positive)
    terms = dict(zip(("largest", "l1", "l2", "support"), map(float, summary), strict=True))
    if penalty.lam == 0:
        slope = np.maximum(grad, 0.0) if penalty.positive else grad
        terms["grad_sq"] = dot(slope, slope)
        terms["violation"] = penalty.violation(grad, coef, norms)
    return terms


def _combined(reports: list[Report]) -> dict[str, float]:
    """Sums and maxima over ranks; `rr`, `tr` and `tt` are the same on every rank."""
    if len(reports) == 1:
        return reports[0].terms
    total = dict(reports[0].terms)
    for report in reports[1:]:
        for name, value in report.terms.items():
            if name in ("largest", "violation"):
                total[name] = max(total[name], value)
            elif name in ("l1", "l2", "grad_sq", "support"):
                total[name] += value
    return total


def primal_of(reports: list[Report], penalty: Penalty) -> float:
    """n P(b)."""
    terms = _combined(reports)
    return 0.5 * terms["rr"] + penalty.lam * terms["l1"] + 0.5 * penalty.beta * terms["l2"]


def gap_of(reports: list[Report], penalty: Penalty) -> float:
    """n times the duality gap P(b) - D, >= 0; nan where alpha = 0 leaves no useful dual point.

    lam > 0: the residual scaled to be feasible (`lasso_kernels.duality_gap`). lam = 0 < beta: the dual of
    ridge, D(q) = t'q - ||q||^2 / 2 - ||Z'q||^2 / (2 beta).
    """
    from . import lasso_kernels

    terms = _combined(reports)
    rr, tr, l2, beta = terms["rr"], terms["tr"], terms["l2"], penalty.beta
    gap = float("nan")
    if penalty.lam > 0:
        gap = lasso_kernels.duality_gap(rr, tr, terms["l1"], l2, terms["largest"], *penalty)
    elif beta > 0:
        gap = rr - tr + 0.5 * beta * l2 + terms["grad_sq"] / (2 * beta)
    return 0.0 if gap < 0.0 else gap


class Height:
    """The objective, which shows progress where the gap does not."""

    def __init__(self, penalty: Penalty):
        self.penalty = penalty

    def __call__(self, reports: list[Report]) -> float:
        """The objective, times n."""
        return primal_of(reports, self.penalty)


class Distance:
    """What the policy compares with tol: the duality gap over ||t||^2 / n, scikit-learn's stopping rule.

    At alpha = 0 a gradient rule: largest |z_j'q| / (||z_j|| ||t||). Infinite once the objective exceeds ten
    times its start: the updates diverge.
    """

    def __init__(self, penalty: Penalty):
        self.penalty = penalty

    def __call__(self, reports: list[Report]) -> float:
        terms = _combined(reports)
        if not primal_of(reports, self.penalty) <= 10 * max(terms["start"], 0.5 * terms["tt"]):
            return float("inf")
        if self.penalty.lam == 0 and self.penalty.beta == 0:
            return terms["violation"] / np.sqrt(terms["tt"]) if terms["tt"] > 0 else terms["violation"]
        gap = gap_of(reports, self.penalty)
        return gap / terms["tt"] if terms["tt"] > 0 else gap
