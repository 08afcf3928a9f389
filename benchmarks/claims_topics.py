"""Section 8 of the claims page: topic models by rotation, on 1 to 8 ranks, and how often totals are
summed.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from claims_arms import held
from claims_context import RANKS, Context
from claims_factors import Timed
from claims_page import Page, number, size
from claims_plots import Panel, draw
from corpora import load_corpus

from daskstrads import LatentDirichletAllocation, run
from daskstrads.algos.lda_gibbs import RotatingGibbs
from daskstrads.algos.word_blocks import blocks_per_rank

TOPICS, ALPHA, BETA, SWEEPS = 200, 0.25, 0.01, 60
BLOCKS = (1, 2, 4, 8, 16)
NEAR = 0.005  # of the target, which is what one rank reaches a tenth before the end
ONCE = "once a sweep"


class OnceASweep(RotatingGibbs):
    """The same, but a rank hears of the others' totals at the end of a sweep, as in the released STRADS."""

    replicas = ()

    def pull(self, shard: Any, plan: Any, received: Any, sent: Any) -> Any:
        """Take over only what this rank has changed itself, and the rest at the end."""
        if plan.sweep < 0:
            return super().pull(shard, plan, received, sent)
        total, *rest = received
        truth = getattr(shard, "truth", np.zeros_like(shard.totals)) + total
        shard.truth = truth
        last = plan.shift == self.blocks * shard.size - 1
        known = truth if last or plan.sweep == 0 else shard.own
        own = shard.own
        report = super().pull(shard, plan, (known - shard.totals, *rest), sent)
        if plan.sweep > 0:
            shard.drifts[-1] = float(np.abs(own - truth).sum() / truth.sum())
            if report is not None:
                report.terms["drift"] = float(np.mean(shard.drifts[-self.blocks * shard.size :]))
        return report


class Arm(NamedTuple):
    """What a fit did; `cpu` (ranks, rounds) seconds."""

    ranks: int
    blocks: int
    summed: str
    likelihoods: np.ndarray
    rounds: np.ndarray  # at the end of each sweep
    cpu: np.ndarray
    bytes: float  # a rank and sweep, the last
    errors: np.ndarray
    held: int  # by the largest rank


def arm(counts: Any, ranks: int, blocks: int, summed: str = "every round") -> Arm:
    """One fit."""
    kept: dict[str, Timed] = {}

    def watched(program: Any, parts: Any, **options: Any) -> Any:
        if summed == ONCE:
            program = OnceASweep(program.priors, SWEEPS, blocks, program.seed)
        kept["timed"] = Timed(program, len(parts))
        return run(kept["timed"], parts, **(options | {"transport": "threads"}))

    model = LatentDirichletAllocation(
        TOPICS, doc_topic_prior=ALPHA, topic_word_prior=BETA, max_iter=SWEEPS, n_shards=ranks, random_state=0
    )
    with (
        mock.patch("daskstrads.algos.lda.run", watched),
        mock.patch("daskstrads.algos.lda.blocks_per_rank", return_value=blocks),
    ):
        model.fit(counts)
    timed, history = kept["timed"], model.history_
    return Arm(
        ranks, blocks, summed, history["log_likelihood"], history["round"] + 1, np.array(timed.cpu),
        float(history["bytes"][-1]), np.array(model.s_error_), max(held(shard) for shard in timed.shards),
    )  # fmt: skip


def topics(context: Context) -> Page:
    """Ranks, blocks a rank, and totals summed every round or once a sweep."""
    page = Page("8. Topic models: words that go round")
    corpus = load_corpus("zipf10m", 500 if context.quick else 10)
    counts, tokens = corpus.counts, corpus.tokens
    chosen = {ranks: blocks_per_rank(TOPICS, tokens, ranks) for ranks in RANKS}
    by_ranks = [arm(counts, ranks, chosen[ranks]) for ranks in RANKS]
    target = by_ranks[0].likelihoods[9 * SWEEPS // 10 - 1] - NEAR
    page.say(
        f"{counts.shape[0]:,} generated documents, {counts.shape[1]:,} words, {tokens:,} tokens, {TOPICS} "
        f"topics, alpha {ALPHA}, beta {BETA}, {SWEEPS} sweeps an arm. Target: the log likelihood a token "
        f"that one rank has a tenth before the end, less {NEAR}: {target:.4f}. CPU is the sum over rounds of "
        "the largest rank's; bytes are of blocks that a rank passes on in the last sweep. The s-error of a "
        "round is the mean over ranks of ||s_p - s||_1 / tokens; told are its means over the first and over "
        "the last sweep."
    )
    head = [
        "ranks", "blocks a rank", "totals summed", "sweeps to target", "CPU s to target", "bytes a sweep",
        "s-error, first", "last", "held by a rank", "likelihood at the end",
    ]  # fmt: skip
    page.table(head, [_row(each, target) for each in by_ranks])
    page.say(
        "The same on four ranks with other numbers of blocks, and with totals that are summed once a sweep:"
    )
    others = [arm(counts, 4, blocks, summed) for summed in ("every round", ONCE) for blocks in BLOCKS]
    page.table(head, [_row(each, target) for each in others])
    panels = [
        Panel(
            "s-error, four ranks",
            {
                summed: (BLOCKS, [_last(each) for each in others if each.summed == summed])
                for summed in ("every round", ONCE)
            },
            "blocks a rank", "s-error of the last sweep", ticks=BLOCKS,
        ),
        Panel(
            "CPU",
            {"largest rank": (RANKS, [each.cpu.max(axis=0).sum() / SWEEPS for each in by_ranks])},
            "ranks", "s a sweep", ticks=RANKS,
        ),
        Panel(
            "memory",
            {"largest rank": (RANKS, [each.held / 1e6 for each in by_ranks])},
            "ranks", "MB a rank", ticks=RANKS,
        ),
    ]  # fmt: skip
    draw(context.folder / "topics.png", panels, 3, "totals summed")
    page.picture("topics.png", "s-error against blocks a rank; CPU and memory against the number of ranks")
    return page


def _row(each: Arm, target: float) -> list[str]:
    there = np.flatnonzero(each.likelihoods >= target)
    sweeps = int(there[0]) + 1 if len(there) else None
    cpu = each.cpu[:, : each.rounds[sweeps - 1]].max(axis=0).sum() if sweeps else np.nan
    first = each.errors[: each.ranks * each.blocks].mean()
    return [
        str(each.ranks), str(each.blocks), each.summed, str(sweeps or "-"), number(cpu) if sweeps else "-",
        size(each.bytes), f"{first:.4f}", f"{_last(each):.4f}", size(each.held),
        f"{each.likelihoods[-1]:.4f}",
    ]  # fmt: skip


def _last(each: Arm) -> float:
    return float(each.errors[-each.ranks * each.blocks :].mean())
