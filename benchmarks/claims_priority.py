"""Section 1 of the claims page: dynamic priority against other schedules."""

from __future__ import annotations

import numpy as np
from claims_arms import Arm, Outcome, Reach, fit
from claims_context import Context, verdict
from claims_page import Page, listed, mean, number
from claims_plots import Panel, draw

LEVELS = (1e-3, 1e-4, 1e-6)
LADDER = (0.3, 0.1, 0.03, 0.01, *LEVELS)  # for comparing arms that get less far
BASELINES = {"cyclic": "round robin", "random": "random", "static": "static partition"}
NAMES = {"dynamic": "dynamic", **BASELINES}
QUANTITIES = {"dots": "products", "updates": "updates", "wall": "seconds"}
SEEN = 5.0  # the abstract's factor

Runs = dict[tuple[str, str], Outcome]


def priority(context: Context) -> Page:
    """Dynamic priority against blocks in turn, in random order, and of each rank's own."""
    page, limit = Page("1. Dynamic priority"), 200 if context.quick else 4_000
    page.say(
        f"The seed: dynamic priority reaches the optimum far sooner than round robin, {SEEN:g} x in the "
        "abstract of EuroSys'16. Counted are products x_j'r, in units of J (all columns once), "
        "coordinate updates, and seconds of two ranks on threads. Dynamic priority chooses by full "
        "gradients, which count J each. The other schedules need a gradient only to know the gap: those "
        "are in the column *certificates*, and neither they nor their time are in the others. Levels are "
        f"certified gaps over P(0). `>`: not reached within {2 * context.patience:g} s (simultaneous "
        f"updates: nor within {limit} rounds, baselines {limit * 3 // 2}); what was counted until then."
    )
    for update in "exact", "parallel":
        # Baselines get half as many rounds more, so that a comparison by updates comes to an end.
        rounds = {key: limit if key == "dynamic" else limit * 3 // 2 for key in NAMES}
        runs = {
            (problem.name, selection): fit(
                problem,
                Arm(selection, update),
                seconds=2 * context.patience,
                rounds=rounds[selection] if update == "parallel" else None,
            )
            for problem in context.problems
            for selection in NAMES
        }
        _told(page, context, update, runs)
    return page


def _told(page: Page, context: Context, update: str, runs: Runs) -> None:
    kind = {
        "exact": "Each block solved to its own optimum (`update='exact'`, the default)",
        "parallel": "STRADS' simultaneous update of 64 variables (`update='parallel'`, rho 0.1)",
    }[update]
    page.say(f"**{kind}.**")
    head = ["problem", "schedule"]
    for level in LEVELS:
        head += [f"{level:.0e}: products / J", "updates", "s"]
    head += ["gap at the end", "certificates / J", ""]
    rows = []
    for (name, selection), outcome in runs.items():
        row = [name, NAMES[selection]]
        for level in LEVELS:
            row += _cells(outcome, level)
        last = outcome.measures[-1].gap if outcome.measures else np.inf
        rows.append([*row, f"{last:.1e}", f"{outcome.certifying():.0f}", verdict(outcome)])
    page.table(head, rows)
    page.say(
        "Over dynamic priority, at the deepest level that it reached, and the gaps of both after as many "
        "updates as all arms of the problem made:"
    )
    head = ["problem", "level", "schedule", *(f"{called}, dynamic = 1" for called in QUANTITIES.values())]
    head += ["after updates", "its gap", "gap of dynamic"]
    page.table(head, _compared(runs))
    for quantity in QUANTITIES:
        page.say(_overall(runs, quantity))
    panels = [
        Panel(
            problem.name,
            {NAMES[selection]: runs[problem.name, selection].gaps() for selection in NAMES},
            "products x_j'r / J", "gap / P(0)", top=2.0,
        )
        for problem in context.problems
    ]  # fmt: skip
    draw(context.folder / f"priority_{update}.png", panels, 2, "schedule")
    page.picture(f"priority_{update}.png", f"Certified gap against products, update={update!r}")


def _cells(outcome: Outcome, level: float) -> list[str]:
    reached = outcome.reach(level)
    at, sign = (reached, "") if reached else (outcome.spent(), "> ")
    return [sign + number(at.dots), sign + number(at.updates), f"{sign}{at.wall:.2g}"]


def _problems(runs: Runs) -> list[str]:
    return list(dict.fromkeys(name for name, _ in runs))


def _compared(runs: Runs) -> list[list[str]]:
    rows = []
    for name in _problems(runs):
        dynamic = runs[name, "dynamic"]
        level = min((level for level in LADDER if dynamic.reach(level)), default=None)
        mine = dynamic.reach(level) if level else None
        common = min(runs[name, key].measures[-1].updates for key in NAMES)
        for selection, called in BASELINES.items():
            other = runs[name, selection]
            ratios = [_ratio(mine, other, level, quantity) for quantity in QUANTITIES] if mine else ["-"] * 3
            gaps = [_gap(other, common), _gap(dynamic, common)]
            told = f"{level:g}" if level else "none"
            rows.append([name, told, called, *ratios, number(common), *(f"{gap:.1e}" for gap in gaps)])
    return rows


def _ratio(mine: Reach, other: Outcome, level: float, quantity: str) -> str:
    reached = other.reach(level)
    ratio = getattr(reached or other.spent(), quantity) / max(getattr(mine, quantity), 1e-12)
    return f"{'' if reached else '> '}{number(ratio)}"


def _gap(outcome: Outcome, updates: float) -> float:
    """The last gap measured within so many updates."""
    return [measure.gap for measure in outcome.measures if measure.updates <= updates][-1]


def _overall(runs: Runs, quantity: str) -> str:
    """In how many cases dynamic priority needs least of a quantity, and against round robin by how much."""
    ratios, wins, losses, undecided = [], [], [], []
    for name in _problems(runs):
        for level in LEVELS:
            reached = {key: runs[name, key].reach(level) for key in NAMES}
            took = {key: getattr(at, quantity) for key, at in reached.items() if at is not None}
            least = {key: took.get(key, getattr(runs[name, key].spent(), quantity)) for key in BASELINES}
            arrived = [took[key] for key in BASELINES if key in took]
            case = f"{name} at {level:g}"
            if arrived and ("dynamic" not in took or min(arrived) <= took["dynamic"]):
                losses.append(case)
            elif "dynamic" in took and min(least.values()) > took["dynamic"]:
                wins.append(case)
            else:
                undecided.append(case)
            if "dynamic" in took and "cyclic" in took:
                ratios.append(took["cyclic"] / max(took["dynamic"], 1e-12))
    what, cases = QUANTITIES[quantity], len(wins) + len(losses) + len(undecided)
    told = f"Fewest {what}: dynamic priority in {len(wins)} of {cases} cases"
    told += f"; another schedule in {listed(losses)}" if losses else ""
    told += f"; undecided within the limits: {listed(undecided)}" if undecided else ""
    if not ratios:
        return f"{told}. Dynamic priority and round robin never both arrive."
    return (
        f"{told}. Where both arrive, round robin takes {number(mean(ratios))} x the {what} (geometric "
        f"mean of {len(ratios)} cases, {number(min(ratios))} to {number(max(ratios))}), so the abstract's "
        f"{SEEN:g} x is {'' if mean(ratios) >= SEEN else 'not '}seen there."
    )
