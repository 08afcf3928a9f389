"""What both layouts of the elastic net share: the rules of a fit, reports, proposals, the block updates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..engine.run import run
from ..partition import Compressed, Slab, split
from ..schedule import Certified, DynamicPriority, Recency, Report, independent, strongest
from .design import dot
from .objective import Distance, Penalty, local_terms

__all__ = [
    "Piece",
    "Rules",
    "assembled",
    "best",
    "block_target",
    "check_finite",
    "count",
    "looks",
    "propose_recent",
    "report",
    "simultaneous",
    "steepest",
    "warm",
]

_SAMPLE = 4096
_LOOKS, _WORK = 50, 1_000_000_000  # bounds of one block, in looks and in multiplications


class Rules(NamedTuple):
    """How a fit goes about it.

    `centre`: fit an intercept; `weighted`: weights are not all 1; `parallel`: simultaneous updates of
    candidates that pass the dependency check at `rho` (None: no check); `proposals`: how many variables a
    rank proposes; `tol`: scikit-learn's; `near`: columns near the threshold are looked at after every block;
    `pilot`: the first block is what the optimum over a sample of rows uses.
    """

    centre: bool
    weighted: bool
    parallel: bool
    rho: float | None
    proposals: int
    tol: float
    near: bool = False
    pilot: bool = False


class Piece(NamedTuple):
    """What a rank holds of the model: its nonzero coefficients (`ids` int64, `values`), its share of the
    intercept, y's mean; (round, seconds, terms) of every measurement, where they are kept (`followed`).
    """

    ids: np.ndarray
    values: np.ndarray
    offset: float
    y_mean: float
    passes: Any = ()


def assembled(pieces: list[Piece], p: int) -> tuple[np.ndarray, float]:
    """Coefficients (p,) and intercept from all ranks' pieces."""
    coef = np.zeros(p)
    for piece in pieces:
        coef[piece.ids] = piece.values
    return coef, pieces[0].y_mean - sum(piece.offset for piece in pieces)


def looks(entries: int) -> int:
    """Looks that a block of so many entries may take: the next round goes on, and Ctrl-C comes through."""
    return min(max(_WORK // (11 * max(1, entries)), 2), _LOOKS)


def check_finite(norms: np.ndarray, slab: Slab) -> None:
    """Raise ValueError naming the first place where X is not finite; `norms` are its columns' squares."""
    if np.isfinite(norms).all():
        return
    matrix = slab.matrix
    values = matrix.values if isinstance(matrix, Compressed) else matrix
    bad = np.argwhere(~np.isfinite(values))
    column = int(np.flatnonzero(~np.isfinite(norms))[0]) + (slab.start if slab.axis == 1 else 0)
    if len(bad) and np.isnan(values[tuple(bad[0])]):
        raise ValueError(f"Input X contains NaN (first in column {column}); impute or drop it before fit")
    if len(bad):
        raise ValueError(f"Input X contains infinity (first in column {column})")
    raise ValueError(f"column {column} of X is too large: its sum of squares overflows; rescale it")


def report(
    grad: np.ndarray, coef: np.ndarray, norms: np.ndarray, penalty: Penalty, shared: dict, kept: dict
) -> Report:
    """The measurement of a rank's variables; `kept` remembers the start, the passes so far, ||t||^2 and what
    `count` counted.
    """
    terms = local_terms(grad, coef, norms, penalty) | shared
    kept["passes"] = kept.get("passes", 0.0) + 1.0
    kept["tt"] = terms["tt"]
    kept.setdefault("start", 0.5 * terms["rr"] + penalty.lam * terms["l1"] + 0.5 * penalty.beta * terms["l2"])
    return Report(np.empty(0, np.int64), np.empty(0), terms | kept)


def count(kept: dict[str, float], updates: int, dots: int) -> None:
    """Add to the fit's coordinate updates (the same on all ranks) and to this rank's products of columns.

    Products are x_j'r or x_j'x_k; those that all ranks compute alike are counted by rank 0.
    """
    kept["updates"] = kept.get("updates", 0.0) + updates
    kept["dots"] = kept.get("dots", 0.0) + dots


def steepest(
    grad: np.ndarray, coef: np.ndarray, penalty: Penalty, count: int, share: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights: the support (inf) and the largest gradients, at most as many again and `count`.

    Variables above a `share` of the threshold come along: the next steps may need them, and a full pass
    costs more than a few idle columns.
    """
    from . import lasso_kernels as kernels

    floor = share * penalty.lam
    sample = grad[:: max(1, len(grad) // _SAMPLE)]
    if len(sample) >= _SAMPLE:
        # What is far below the `count` largest is not even looked at again.
        size = sample if penalty.positive else np.abs(sample)
        place = len(size) - min(len(size), 16 + int(1.25 * count / len(grad) * len(size)))
        floor = max(floor, float(np.partition(size, place)[place]))
    places, weights = np.empty(len(grad), np.int64), np.empty(len(grad))  # pages not written cost nothing
    found = kernels.steep(grad, coef, floor, penalty.positive, places, weights)
    return best(places[:found].copy(), weights[:found].copy(), count)


def best(places: np.ndarray, weights: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest weights, twice as many as are infinite and `count`, in the order given; no full sort."""
    most = count + 2 * np.count_nonzero(np.isinf(weights))
    if len(places) <= most:
        return places, weights
    chosen = np.sort(np.argpartition(weights, len(weights) - most)[len(weights) - most :])
    return places[chosen], weights[chosen]


def propose_recent(
    recency: Recency, grad: np.ndarray, coef: np.ndarray, norms: np.ndarray, penalty: Penalty, count: int
) -> None:
    """Restart `recency` with the change that each variable would make now."""
    slope = grad + norms * coef
    curvature = norms + penalty.beta
    new = np.sign(slope) * np.maximum(np.abs(slope) - penalty.lam, 0.0)
    if penalty.positive:
        new = np.maximum(new, 0.0)
    new /= np.where(curvature > 0, curvature, 1.0)
    change = np.abs(new - coef) * np.sqrt(norms)
    places = strongest(change, 16 * count)
    recency.restart(places, change[places])


def block_target(
    distance: float, kept: dict[str, float], penalty: Penalty, rules: Rules, *, share: float = 0.1
) -> float:
    """How far to solve a block, in units of n P: to a `share` of the last known distance, not below tol.

    Once a block's own target explains that distance, nothing outside it was missing, and the next
    one is solved to the end at once: a full pass costs more than the sweeps it saves.
    """
    # Blocks that are visited in turn may have to go below tol; below 1e-15 the gap is rounding.
    final = max(min(0.3 * rules.tol, distance), 1e-15)
    relative = final if distance <= 3.0 * kept.get("block", 0.0) else max(final, share * distance)
    kept["block"] = relative
    if penalty.lam == 0 and penalty.beta == 0:
        # The block's own measure is then the decrease ahead, quadratic in the gradient.
        return 0.1 * kept["tt"] * relative**2
    return kept["tt"] * relative


def simultaneous(
    gram: np.ndarray,
    norms: np.ndarray,
    grad: np.ndarray,
    coef: np.ndarray,
    penalty: Penalty,
    rho: float | None,
) -> np.ndarray:
    """STRADS' update of many variables at once: new coefficients (k,).

    b_j = S(z_j'q + ||z_j||^2 b_j, lam) / (||z_j||^2 + beta) for every candidate that passes the dependency
    check at `rho` (STRADS, section 4), the largest change first: a variable at its optimum blocks no rival,
    so that each gets its turn. Pairs below rho can still add up to a rise; then only the more
    important half of them is updated, and so on: the objective never rises. With `rho` None all are
    updated, as in Shotgun, and nothing guards against divergence.
    """
    curvature = norms + penalty.beta
    slope = grad + norms * coef
    new = np.sign(slope) * np.maximum(np.abs(slope) - penalty.lam, 0.0)
    if penalty.positive:
        new = np.maximum(new, 0.0)
    new = np.where(curvature > 0, new / np.where(curvature > 0, curvature, 1.0), coef)
    if rho is None:
        return new
    change = np.abs(new - coef) * np.sqrt(norms)
    order = np.argsort(-change, kind="stable")[: np.count_nonzero(change)]
    kept = order[independent(gram[np.ix_(order, order)], rho)]
    while True:
        step = np.zeros_like(coef)
        step[kept] = new[kept] - coef[kept]
        after = coef + step
        rise = (
            0.5 * dot(step, np.einsum("ij,j->i", gram, step))
            - dot(grad, step)
            + penalty.lam * (np.abs(after).sum() - np.abs(coef).sum())
            + 0.5 * penalty.beta * (dot(after, after) - dot(coef, coef))
        )
        if rise <= 0 or len(kept) <= 1:
            return after
        kept = kept[: (len(kept) + 1) // 2]


def warm(program: Any, part: Any, axis: int) -> None:
    """Run `program`, made of `part`s split along `axis`, on four rows of nothing in particular."""
    X = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [2.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    penalty = Penalty(0.1, 0.0, False)
    rules = Rules(True, False, False, None, 3, 1e-4)
    for matrix in X, np.asfortranarray(X), sp.csr_array(X), sp.csc_array(X):  # one of the two is converted
        policy = Certified(DynamicPriority(3), Distance(penalty), 1e-4, max_measures=3)
        [slab] = split(matrix, 1, axis)
        parts = [part(slab, X[:, 0], np.ones(4), np.zeros(3))]
        run(program(policy, penalty, rules), parts, transport="threads")
