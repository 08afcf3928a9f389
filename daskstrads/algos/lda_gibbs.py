"""Collapsed Gibbs sampling of topics: documents stay with their rank, words go round in blocks."""

from __future__ import annotations

import functools
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..engine.program import Gather, Pass, Program, Sum
from ..engine.run import run
from ..partition import Compressed, Slab
from ..schedule import Policy, Report, Rotation, Turn
from .progress import Follower, Told
from .word_blocks import Block, check_most, unpacked, widened, words_by_block

__all__ = [
    "CorpusPart", "Priors", "RotatingGibbs", "TopicPiece", "sweeps_told",
]  # fmt: skip

_RARE = 12  # tokens of a word below which it is not worth entering it in a tree
_KNOWN = 4096  # counts whose log Gamma is looked up


class Priors(NamedTuple):
    """The model: `components` topics, Dirichlet priors alpha (of a document's) and beta (of a topic's
    words).
    """

    components: int
    alpha: float
    beta: float


class TopicPiece(NamedTuple):
    """A rank's share of the model, and what it needs to go on.

    `blocks` of words, `words` (their ids, an array a block), `totals` n_k of all ranks; `topics` of this
    rank's tokens in the order of the blocks, `mark` a checksum of its documents; `passes`: (round, seconds,
    terms) of every sweep; `drifts`: of every round, the L1 distance of this rank's totals from all ranks',
    as a share of all tokens.
    """

    blocks: list[tuple]
    words: list[np.ndarray]
    totals: np.ndarray
    topics: np.ndarray
    mark: int
    sweeps: int
    passes: list[tuple[int, float, dict[str, float]]]
    drifts: list[float]


class CorpusPart(NamedTuple):
    """A rank's documents: a slab of whole rows with counts, and, to go on from, its piece of the model.

    `more`: the documents are new to the model, whose counts stay; else they are those of the piece.
    """

    slab: Slab
    piece: TopicPiece | None = None
    more: bool = False


@dataclass
class _Shard:
    """A rank's documents and tokens, and the words it holds."""

    rank: int
    size: int
    matrix: Compressed | None  # until its tokens are placed
    piece: TopicPiece | None
    more: bool
    mark: int
    frequencies: np.ndarray  # (V,) tokens of every word here, until they are placed
    totals: np.ndarray  # (K,) n_k of all ranks; replicated
    own: np.ndarray  # (K,) the same as this rank knows it in a round
    words: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # (V,) word of every row
    rows: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))  # (blocks + 1,) where they begin
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # (V,) of every row, here
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))  # (blocks + 1,) tokens
    begins: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # (documents,) in cells
    lengths: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (documents,) tokens
    cells: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint32))
    at: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    topics: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint16))
    queue: list[Block] = field(default_factory=list)
    in_words: float = 0.0  # log likelihood of the blocks that this rank is the last to have changed
    sent: int = 0  # bytes of this sweep
    rounds: int = 0
    sweeps: int = 0  # done by earlier fits
    started: float = field(default_factory=time.perf_counter)
    passes: list = field(default_factory=list)
    drifts: list = field(default_factory=list)
    seen: Any = None  # (2, K) topics as words and documents count them, where a sweep is checked

    @property
    def blocks(self) -> list[tuple]:
        """The blocks that this rank holds, as they travel."""
        return [tuple(block) for block in self.queue]


class RotatingGibbs(Program):
    """Latent Dirichlet allocation by collapsed Gibbs sampling, words rotating (STRADS, section 3, LDA).

    A rank owns documents: their tokens, and how often each document has which topic. The words' counts are
    cut into blocks that go round (`Rotation`): a rank draws the topics of its tokens of the words that it
    holds, so no count of a word or a document is ever stale. Only the topics' totals are: they are summed
    after every round, and drift within it.

    The first round counts the words, to cut blocks of as many tokens each; then the blocks go round once to
    be filled with the tokens' first topics.
    """

    replicas = ("totals",)

    follower: Follower | None = None  # the callback of rank 0, where somebody follows the fit

    def __init__(self, priors: Priors, sweeps: int, blocks: int, seed: int, *, checked: bool = False):
        self.priors, self.blocks, self.seed, self.checked = priors, blocks, seed, checked
        self.schedule: Policy = Rotation(1 + sweeps, blocks, lead=1, listens=1)

    def init(self, part: CorpusPart, rank: int, size: int, rng: np.random.Generator) -> _Shard:
        """Count this rank's words."""
        from . import corpus_kernels as kernels

        matrix, piece = part.slab.matrix, part.piece
        counts = np.zeros(matrix.length, np.int64)
        kernels.count_words(matrix.values, matrix.indices, counts)
        totals = np.zeros(self.priors.components, np.int64)
        mark = 0
        for array in (matrix.values, matrix.indices, matrix.starts):
            mark = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, mark)
        if piece is not None and part.more:
            totals = piece.totals.copy()
        elif piece is not None and piece.mark != mark:
            raise ValueError(
                "warm_start goes on with the documents of the last fit, but these are others (or shared out "
                "otherwise); partial_fit adds new documents, warm_start=False starts anew"
            )
        return _Shard(
            rank, size, matrix, piece, part.more, mark, counts, totals, totals.copy(),
            sweeps=0 if piece is None else piece.sweeps,
        )  # fmt: skip

    @staticmethod
    def warm() -> None:
        """Load the kernels of up to 65 536 topics."""
        matrix = Compressed(np.ones(4, np.int32), np.array([0, 1, 0, 1], np.int32), np.array([2]), 2)
        run(
            RotatingGibbs(Priors(2, 0.1, 0.1), 1, 1, 0),
            [CorpusPart(Slab(matrix, 0, 0, 2))],
            transport="threads",
        )

    def push(self, shard: _Shard, plan: Turn) -> Any:
        """Give this rank's tokens of a block their topics; what has changed, and the block."""
        if plan.sweep < 0:
            shard.sent += shard.frequencies.nbytes * (shard.size - 1)
            words = [] if shard.piece is None or not shard.more else shard.piece.words
            return Sum(shard.frequencies), Gather(words)
        block = shard.queue.pop(0)
        shard.own = shard.totals.copy()
        made = self._work(shard, block, plan.sweep)
        if plan.sweep > 0 and plan.shift >= self.blocks * (shard.size - 1):  # for the last time in this sweep
            shard.in_words += self._words_likelihood(made)
        if shard.size > 1:
            shard.sent += made.lengths.nbytes + made.cells.nbytes
        changed = shard.own - shard.totals
        changed.flags.writeable = made.lengths.flags.writeable = made.cells.flags.writeable = False
        # The block travels while this rank works on its next one; at the end of a sweep all are waited for.
        end = plan.shift == self.blocks * shard.size - 1
        passed = Pass(tuple(made), last=end or self.blocks == 1)
        sent = Sum(changed), passed
        return (*sent, Sum(self._seen(shard, plan, made))) if self.checked else sent

    def pull(self, shard: _Shard, plan: Turn, received: Any, sent: Any) -> Report | None:
        """Take over the totals and the next block; at the end of a sweep, a report."""
        shard.rounds += 1
        if plan.sweep < 0:
            self._arrange(shard, *received)
            return None
        total, arrived = received[:2]
        shard.totals = shard.totals + total
        shard.queue += [Block(*block) for block in arrived]
        tokens = int(shard.totals.sum())
        if plan.sweep > 0:
            shard.drifts.append(float(np.abs(shard.own - shard.totals).sum() / max(tokens, 1)))
        end = plan.shift == self.blocks * shard.size - 1
        if self.checked:
            shard.seen = received[2] if shard.seen is None else shard.seen + received[2]
            if end:
                self._check(shard)
        return self._measured(shard, plan.sweep, tokens) if end and plan.sweep > 0 else None

    def result(self, shard: _Shard) -> TopicPiece:
        """This rank's blocks, and its tokens' topics."""
        words = [
            shard.words[shard.rows[block.number] : shard.rows[block.number + 1]] for block in shard.queue
        ]
        return TopicPiece(
            shard.blocks, words, shard.totals, shard.topics, shard.mark,
            shard.sweeps + len(shard.passes), shard.passes, shard.drifts,
        )  # fmt: skip

    def _arrange(self, shard: _Shard, frequencies: np.ndarray, held: list[list[np.ndarray]]) -> None:
        """Cut the words into blocks, put the tokens in their order, and make room for documents' topics.

        `held`: where there is a model to which documents are added, every rank's words of every block.
        """
        from . import corpus_kernels as kernels
        from .lanes_kernels import LANES
        from .lda_kernels import DENSE

        n_topics, matrix = self.priors.components, shard.matrix
        assert matrix is not None
        n_blocks, offsets = self.blocks * shard.size, matrix.starts
        check_most(frequencies, np.arange(len(frequencies)))
        if shard.more:
            blocks = [np.asarray(words) for rank in held for words in rank]
            shard.words = np.concatenate(blocks)
            shard.rows = np.concatenate([[0], np.cumsum([len(words) for words in blocks])])
        else:
            shard.words, shard.rows = words_by_block(frequencies, n_blocks)
        row_of = np.empty(len(shard.words), np.int32)
        row_of[shard.words] = np.arange(len(shard.words), dtype=np.int32)
        shard.tokens = shard.frequencies[shard.words].astype(np.int32)
        ends = np.cumsum(shard.tokens, dtype=np.int64)
        shard.starts = np.concatenate([[0], ends])[shard.rows]
        sums = np.concatenate([[0], np.cumsum(matrix.values, dtype=np.int64)])
        shard.lengths = np.diff(sums[offsets])
        del sums
        cell = np.uint32 if n_topics <= 2**16 else np.int64
        half = 4 * np.dtype(cell).itemsize
        lanes = -(-n_topics // LANES) * LANES
        # A list is read to its end for every token; the counts of all topics take less where it is long.
        dense = (shard.lengths >= 2 * n_topics) | (shard.lengths >= 2 ** (half - 1))
        room = np.where(dense, lanes, -(-np.minimum(shard.lengths, n_topics) // LANES) * LANES)
        begins = np.concatenate([[0], np.cumsum(room + 1)])
        offset = np.int32 if begins[-1] + LANES < 2**31 else np.int64
        shard.begins = begins[:-1].astype(offset)
        shard.cells = np.zeros(begins[-1] + LANES, cell)  # a read of lanes may begin at the last cell
        shard.cells[begins[:-1][dense]] = DENSE
        self._fill(shard, frequencies, cell)  # which may refuse, and so comes before what tokens need
        shard.at = np.empty(shard.starts[-1], offset)
        kernels.place_tokens(
            offsets, matrix.indices, matrix.values, row_of, shard.begins, ends - shard.tokens, shard.at
        )
        # The tokens say all that is needed from here on.
        shard.frequencies, shard.matrix = np.empty(0, np.int64), None

    def _fill(self, shard: _Shard, frequencies: np.ndarray, cell: Any) -> None:
        """The blocks that this rank holds first: empty, or those of a model that there is."""
        kind = np.uint16 if self.priors.components <= 2**16 else np.int32
        piece = shard.piece
        most = 2 ** (4 * np.dtype(cell).itemsize) - 1
        for place in range(self.blocks):
            number = shard.rank * self.blocks + place
            rows = slice(*shard.rows[number : number + 2])
            block = Block(number, 0, np.zeros(rows.stop - rows.start, np.int32), np.empty(0, cell))
            expected = frequencies[shard.words[rows]]
            if piece is not None and shard.more:
                block = Block(*piece.blocks[place])
                counts = np.concatenate([[0], np.cumsum(unpacked(block)[1], dtype=np.int64)])
                expected = expected + np.diff(counts[np.concatenate([[0], np.cumsum(block.lengths)])])
                check_most(expected, shard.words[rows])
            # Words come in order of their frequency, so that the wide rows are the first.
            wide = np.flatnonzero(expected > most)
            shard.queue.append(widened(block, int(wide[-1]) + 1 if len(wide) else 0))
        shard.topics = (
            np.zeros(shard.starts[-1], kind) if piece is None or shard.more else piece.topics.copy()
        )

    def _work(self, shard: _Shard, block: Block, sweep: int) -> Block:
        """The block with what this rank's tokens add to it, or have changed in it."""
        from . import lda_kernels as kernels

        number, wide, lengths, cells = block
        rows = slice(*shard.rows[number : number + 2])
        tokens = slice(*shard.starts[number : number + 2])
        new_lengths = np.empty_like(lengths)
        # What is never written to costs nothing.
        new_cells = np.empty(len(cells) + (tokens.stop - tokens.start) * (2 if wide else 1), cells.dtype)
        key = [self.seed, shard.sweeps + sweep, number, shard.rank, int(shard.more)]
        state = np.uint64(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] | 1)
        given = (
            shard.tokens[rows],
            lengths,
            cells,
            wide,
            shard.at[tokens],
            shard.topics[tokens],
            shard.cells,
            shard.own,
        )
        priors = self.priors
        if sweep == 0:
            known = shard.piece is not None and not shard.more
            written, _ = kernels.deal(*given, known, shard.more, state, new_lengths, new_cells)
        else:
            written, _ = kernels.sample(
                *given,
                priors.alpha,
                priors.beta,
                priors.beta * len(shard.words),
                _RARE,
                state,
                new_lengths,
                new_cells,
            )
        return Block(number, wide, new_lengths, new_cells[:written].copy())

    def _words_likelihood(self, block: Block) -> float:
        from . import corpus_kernels as kernels

        return kernels.words_likelihood(
            block.lengths, block.cells, block.wide, _known(self.priors.beta), self.priors.beta
        )

    def _measured(self, shard: _Shard, sweep: int, tokens: int) -> Report:
        """The report of a sweep that has ended; kept in the shard as well."""
        from . import corpus_kernels as kernels

        n_topics, alpha, beta = self.priors
        in_documents = kernels.documents_likelihood(shard.begins, shard.cells, n_topics, _known(alpha), alpha)
        in_documents += _log_gamma_falls(shard.lengths, n_topics * alpha)
        in_topics = _log_gamma_falls(shard.totals, len(shard.words) * beta)
        drift = float(np.mean(shard.drifts[-self.blocks * shard.size :]))
        terms = {
            "words": shard.in_words, "documents": in_documents, "topics": in_topics, "tokens": float(tokens),
            "sweep": shard.sweeps + sweep, "bytes": shard.sent, "drift": drift,
        }  # fmt: skip
        if self.follower is not None and self.follower.stop:
            terms["stop"] = 1.0
        shard.passes.append((shard.rounds, time.perf_counter() - shard.started, terms))
        shard.in_words, shard.sent = 0.0, 0
        return Report(np.empty(0, np.int64), np.empty(0), terms)

    def _seen(self, shard: _Shard, plan: Turn, block: Block) -> np.ndarray:
        """Topics as this rank's part of the words, and its documents, count them at the end of a sweep."""
        from . import corpus_kernels as kernels

        seen = np.zeros((2, self.priors.components), np.int64)
        if plan.shift >= self.blocks * (shard.size - 1):
            topics, counts = unpacked(block)
            np.add.at(seen[0], topics, counts)
        if plan.shift == self.blocks * shard.size - 1:
            kernels.topics_of_documents(shard.begins, shard.cells, seen[1])
            if not np.array_equal(seen[1], np.bincount(shard.topics, minlength=seen.shape[1])):
                raise RuntimeError(f"the topics of rank {shard.rank}'s tokens are not those of its documents")
        return seen

    def _check(self, shard: _Shard) -> None:
        """Raise RuntimeError unless words and documents count what the totals say."""
        in_words, in_documents = shard.seen
        if not np.array_equal(in_words, shard.totals) or (shard.totals < 0).any():
            raise RuntimeError("the words' topics do not add up to the totals")
        if not shard.more and not np.array_equal(in_documents, shard.totals):
            raise RuntimeError("the documents' topics do not add up to the totals")
        shard.seen = None


@functools.lru_cache(maxsize=8)
def _known(prior: float) -> np.ndarray:
    """log Gamma(n + prior) - log Gamma(prior) for n below `_KNOWN`: sums of log(i + prior)."""
    known = np.concatenate([[0.0], np.cumsum(np.log(np.arange(_KNOWN - 1) + prior))])
    known.flags.writeable = False
    return known


def _log_gamma_falls(counts: np.ndarray, prior: float) -> float:
    """Sum of log Gamma(prior) - log Gamma(n + prior)."""
    from scipy.special import gammaln

    return float((gammaln(prior) - gammaln(counts + prior)).sum())


def sweeps_told() -> Told:
    """What is told of a sweep."""

    def row(round: int, seconds: float, reports: list[Report]) -> dict[str, Any]:
        terms = [report.terms for report in reports]
        total = terms[0]["topics"] + sum(each["words"] + each["documents"] for each in terms)
        return {
            "round": round,
            "log_likelihood": total / max(terms[0]["tokens"], 1.0),
            "drift": float(np.mean([each["drift"] for each in terms])),
            "seconds": seconds,
            "bytes": max(int(each["bytes"]) for each in terms),
        }

    def line(row: dict[str, Any], reports: list[Report]) -> str:
        return f"sweep {int(reports[0].terms['sweep'])}: log likelihood a token {row['log_likelihood']:.5f}"

    return Told(("round", "log_likelihood", "drift", "seconds", "bytes"), row, line)
