"""Section 4 of the claims page: the same fits on 1, 2, 4 and 8 ranks."""

from __future__ import annotations

from claims_arms import Arm, Outcome, fit
from claims_context import RANKS, Context, verdict
from claims_page import Page, listed, mean, number, size
from claims_plots import Panel, draw


def scaling(context: Context) -> Page:
    """CPU of the largest rank, and bytes a round, against the number of ranks."""
    page, limit = Page("4. Scaling"), 60 if context.quick else 1_000
    page.say(
        "Ranks are threads, more of them than cores, so wall time says nothing. Of each round counts the "
        "rank that took most CPU (`time.thread_time` of its push and pull); *largest-rank CPU* is the "
        "sum of that over the rounds, also of full gradients and of blocks alone, *all ranks* the sum over "
        "ranks. Bytes a round: what all ranks together hand to the exchange (values and reports, as encoded "
        f"for a wire). Exact blocks go to 1e-6, simultaneous ones (U = 64, rho 0.1) for {limit} rounds or to "
        "1e-3: over 1 rank, these are compared by their CPU a round. *apart*: blocks to their optimum, every "
        "rank its share at the same time (of hockey, split by rows, the same as exact)."
    )
    head = ["problem", "update", "ranks", "rounds", "updates", "products / J", "largest-rank CPU, s"]
    head += ["over 1 rank", "gradients, s", "blocks, s", "all ranks, s", "bytes a round", ""]
    rows, runs = [], {}
    for update, target in ("exact", 1e-6), ("apart", 1e-6), ("parallel", 1e-3):
        for problem in context.problems:
            bound = {"seconds": 3 * context.patience, "rounds": limit if update == "parallel" else None}
            arms = [fit(problem, Arm(update=update, ranks=ranks), target=target, **bound) for ranks in RANKS]
            runs[problem.name, update] = arms
            if update == "exact":
                context.scaling += arms
            for arm in arms:
                reached = arm.reach(target)
                counts = (number(reached.updates), number(reached.dots)) if reached else ("-", "-")
                rows.append(
                    [
                        problem.name, update, str(arm.arm.ranks), str(len(arm.steps)), *counts,
                        f"{_largest(arm):.2g}", f"{_cpu(arm) / _cpu(arms[0]):.2f}",
                        f"{_largest(arm, 'measure'):.2g}", f"{_largest(arm, 'update'):.2g}",
                        f"{arm.cpu.sum():.2g}", size(_bytes(arm)), verdict(arm),
                    ]
                )  # fmt: skip
    page.table(head, rows)
    for update in "exact", "apart", "parallel":
        mine = {name: arms for (name, kind), arms in runs.items() if kind == update}
        told = [f"{_cpu(arms[2]) / _cpu(arms[0]):.2f} ({name})" for name, arms in mine.items()]
        grown = [f"{_bytes(arms[-1]) / _bytes(arms[0]):.2f} ({name})" for name, arms in mine.items()]
        parts = [
            mean([_cpu(arms[2], kind) / _cpu(arms[0], kind) for arms in mine.values()])
            for kind in ("measure", "update")
        ]
        page.say(
            f"update={update!r}: at 4 ranks largest-rank CPU is {listed(told)} of that at 1, where 0.25 "
            f"would be perfect; by geometric mean {parts[0]:.2f} in full gradients and {parts[1]:.2f} in "
            "blocks. Bytes a round at 8 ranks over those at 1:",
            f"{listed(grown)}.",
        )
    draw(context.folder / "scaling.png", _panels(runs), 2, "problem")
    page.picture("scaling.png", "Largest-rank CPU and bytes a round against the number of ranks")
    return page


def _largest(outcome: Outcome, kind: str | None = None) -> float:
    """Seconds of the largest rank, summed over the rounds (of a `kind`)."""
    chosen = [kind in (None, step.kind) for step in outcome.steps]
    return float(outcome.cpu.max(axis=0)[chosen].sum())


def _cpu(outcome: Outcome, kind: str | None = None) -> float:
    """The same to the target; of simultaneous updates a round, since not all arms get there."""
    rounds = sum(kind in (None, step.kind) for step in outcome.steps)
    return _largest(outcome, kind) / (rounds if outcome.arm.update == "parallel" else 1)


def _bytes(outcome: Outcome) -> float:
    return float(outcome.sent.sum(axis=0).mean())


def _panels(runs: dict[tuple[str, str], list[Outcome]]) -> list[Panel]:
    panels = []
    for update in "exact", "apart", "parallel":
        mine = {name: arms for (name, kind), arms in runs.items() if kind == update}
        cpu = {name: (RANKS, [_cpu(arm) / _cpu(arms[0]) for arm in arms]) for name, arms in mine.items()}
        cpu["1 / ranks"] = RANKS, [1 / ranks for ranks in RANKS]
        sent = {name: (RANKS, [_bytes(arm) / 1e3 for arm in arms]) for name, arms in mine.items()}
        title = f"update = {update}"
        panels.append(Panel(title, cpu, "ranks", "largest-rank CPU, 1 rank = 1", ticks=RANKS))
        panels.append(Panel(title, sent, "ranks", "KB a round, all ranks", ticks=RANKS))
    return panels
