"""Section 6 of the claims page: what the sums of real fits cost by each algorithm (SparCML's claims)."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from claims_context import Context
from claims_page import Page, listed, number, size
from problems import Source, alpha_of, fetch, missing

from daskstrads import Lasso, launch
from daskstrads.engine.exchange import as_exchanges
from daskstrads.engine.program import Sum
from daskstrads.sparse_reduce import Stream, allgather, allreduce, tree_sum
from daskstrads.sparse_reduce.selector import Link

RANKS = (4, 8)
LINK = Link(1e-4, 8e-8)  # 100 Mbit/s: there indices travel narrow
ROUNDS = 12  # of each workload, at most
DOCUMENTS = 32  # a rank and step of the gradient loop
ALGORITHMS = ("recursive_doubling", "split", "dense_split", "ring", "dense", "auto")


class Workload(NamedTuple):
    """The vectors that the ranks sum: `rounds[round][rank]`."""

    name: str
    rounds: list[list[np.ndarray]]


class Wire:
    """A group as if its ranks were on hosts of their own; it counts the bytes of the arrays that arrive."""

    shared, desk = False, None

    def __init__(self, group: Any):
        self._group, self.arrived = group, 0
        self.rank, self.size, self.memory, self.send = group.rank, group.size, group.memory, group.send
        self.memory["link"] = LINK

    def recv(self, source: int) -> Any:
        """As the group's."""
        payload = self._group.recv(source)
        self.arrived += _nbytes(payload)
        return payload

    def gather(self, payload: Any, label: str = "gather") -> list[Any]:
        """As the group's."""
        entries = self._group.gather(payload, label)
        self.arrived += sum(map(_nbytes, entries)) - _nbytes(payload)
        return entries


def sums(context: Context) -> Page:
    """Bytes that arrive at a rank and CPU of the largest rank, a round, by workload and algorithm."""
    page = Page("6. Sums")
    page.say(
        "What the ranks sum in a fit, summed again by every algorithm, ranks as threads that exchange as if "
        "they were on hosts of their own. *tall Lasso*: all large sums of a fit by rows (gradients, Gram "
        f"matrices) as the program has them. *gradient loop*: minibatches of {DOCUMENTS} documents a rank, "
        "logistic loss, data-parallel. *naive*: everybody's entries to everybody. Figures are means a round: "
        "bytes that arrive at a rank, and the CPU of the rank that took most (in threads, so judged by order "
        "of magnitude). *auto* chooses for a link of 100 Mbit/s, on which indices travel in few bytes."
    )
    head = ["workload", "ranks", "values", "entries a rank", "of the total", "algorithm"]
    head += ["bytes a rank", "over dense", "largest-rank CPU, ms"]
    rows, told = [], []
    for ranks in RANKS:
        for workload in _workloads(context, ranks):
            lengths = [len(vectors[0]) for vectors in workload.rounds]
            brought = np.mean([np.count_nonzero(v) for vectors in workload.rounds for v in vectors])
            totals = np.mean([np.count_nonzero(np.sum(vectors, axis=0)) for vectors in workload.rounds])
            found = {name: _measured(workload, ranks, how) for name, how in _arms().items()}
            dense = found["dense"][0]
            for name, (arrived, cpu) in found.items():
                rows.append(
                    [
                        workload.name, str(ranks), number(float(np.mean(lengths))), number(float(brought)),
                        number(float(totals)), name, size(arrived), f"{arrived / dense:.2g}",
                        f"{1e3 * cpu:.2g}",
                    ]
                )  # fmt: skip
            least = min(arrived for name, (arrived, _) in found.items() if name != "auto")
            told.append(f"{found['auto'][0] / least:.2f} ({workload.name}, {ranks} ranks)")
    page.table(head, rows)
    page.say(f"Bytes of auto over those of the best algorithm for bytes alone: {listed(told)}.")
    return page


def _arms() -> dict[str, Callable[[Stream, Any], Any]]:
    def by(name: str) -> Callable[[Stream, Any], Any]:
        return lambda stream, group: allreduce(stream, group, name)

    def naive(stream: Stream, group: Any) -> Any:
        parts = allgather(stream.to_parts(), group)
        return tree_sum([Stream(*entry) for entry in parts])

    return {"naive": naive, **{name: by(name) for name in ALGORITHMS}}


def _measured(workload: Workload, ranks: int, how: Callable[[Stream, Any], Any]) -> tuple[float, float]:
    """Bytes that arrive at a rank and seconds of CPU, means a round of the rank with most."""

    def rank(group: Any, place: int) -> tuple[int, list[float]]:
        wire, took = Wire(group), []
        for vectors in workload.rounds:
            stream = Stream.from_dense(vectors[place])
            start = time.thread_time()
            how(stream, wire)
            took.append(time.thread_time() - start)
        return wire.arrived, took

    found = launch(rank, range(ranks))
    arrived = max(arrived for arrived, _ in found) / len(workload.rounds)
    return arrived, float(np.max([took for _, took in found], axis=0).mean())


def _workloads(context: Context, ranks: int) -> list[Workload]:
    found = []
    source = Source(50 if context.quick else 1)
    for row in "hockey_full/100", "C/200":
        name, _, divisor = row.partition("/")
        if not missing(name, source):
            data = fetch(name, source)
            model = Lasso(alpha_of(data, float(divisor)), fit_intercept=False, tol=1e-6, n_shards=ranks)
            found.append(
                Workload(f"tall Lasso, {row}", _captured(lambda m=model, d=data: m.fit(d.X, d.y), ranks))
            )
    if not missing("rcv1_small", source):
        data = fetch("rcv1_small", source)
        found.append(Workload("gradient loop, rcv1_small", _gradients(data.X.tocsr(), data.y, ranks)))
    return found


def _captured(fit: Callable[[], Any], ranks: int) -> list[list[np.ndarray]]:
    """The large sums of a fit, as its ranks push them."""
    engine = importlib.import_module("daskstrads.engine.run")
    plain, lock = engine.exchange, threading.Lock()
    sent: list[list[Any]] = [[] for _ in range(ranks)]

    def watched(given: Any, group: Any, *rest: Any) -> Any:
        values = [entry.value for entry in as_exchanges(given) if isinstance(entry, Sum)]
        with lock:
            sent[group.rank] += [np.array(value).ravel() for value in values if np.size(value) >= 256]
        return plain(given, group, *rest)

    engine.exchange = watched
    try:
        fit()
    finally:
        engine.exchange = plain
    return [list(vectors) for vectors in zip(*sent, strict=True)][:ROUNDS]


def _gradients(X: Any, y: np.ndarray, ranks: int) -> list[list[np.ndarray]]:
    """Minibatch gradients of logistic loss, a step of gradient descent after each round."""
    rng, coef, label = np.random.default_rng(0), np.zeros(X.shape[1]), np.where(y > np.median(y), 1.0, -1.0)
    rounds = []
    for _ in range(ROUNDS):
        vectors = []
        for _ in range(ranks):
            rows = rng.integers(0, X.shape[0], DOCUMENTS)
            margin = label[rows] * (X[rows] @ coef)
            vectors.append((X[rows].T @ (-label[rows] / (1.0 + np.exp(margin)))).astype(np.float32))
        coef -= 0.5 / DOCUMENTS / ranks * np.sum(vectors, axis=0)
        rounds.append(vectors)
    return rounds


def _nbytes(payload: Any) -> int:
    if isinstance(payload, tuple):
        return sum(map(_nbytes, payload))
    return payload.nbytes if isinstance(payload, np.ndarray) else 0
