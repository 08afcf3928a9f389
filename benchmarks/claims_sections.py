"""Sections 1 to 3 of the claims page: priority, parallelisation error, staleness."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from claims_arms import Arm, Outcome, Reach, fit
from claims_page import Page, listed, mean, number
from claims_plots import Panel, draw
from claims_problems import Problem

LEVELS = (1e-3, 1e-4, 1e-6)
LADDER = (0.3, 0.1, 0.03, 1e-2, 1e-3, 1e-4, 1e-6)  # for comparing arms that get less far
BASELINES = {"cyclic": "round robin", "random": "random", "static": "static partition"}
NAMES = {"dynamic": "dynamic", **BASELINES}
SIZES = (8, 64, 512, 4096)
RHOS = (None, 0.5, 0.1, 0.02)
NEAR = 1e-3  # distance of the objective from the optimum, over P(0)
LOOKAHEADS = (0, 1, 2, 4, 8)
RANKS = (1, 2, 4, 8)


@dataclass
class Context:
    """What the sections work on. `patience`: seconds of a long arm; shorter ones get a share of it."""

    problems: list[Problem]
    folder: Path  # for the pictures
    patience: float
    quick: bool
    optima: dict[str, float] = field(default_factory=dict)
    scaling: list[Outcome] = field(default_factory=list)

    def optimum(self, problem: Problem) -> float:
        """The least objective over P(0), from a fit to a certified gap of 1e-9 P(0)."""
        if problem.name not in self.optima:
            found = fit(problem, Arm(), seconds=60.0, target=1e-9)
            if found.certificate is None:
                raise SystemExit(
                    f"no optimum of {problem.name}: the arm to find it has status {found.status}"
                )
            self.optima[problem.name] = found.certificate.primal / problem.null
        return self.optima[problem.name]


def verdict(outcome: Outcome) -> str:
    """Whether an arm's answer holds, for a table."""
    if outcome.status == "converged":
        return "certified" if outcome.certified else "NOT CERTIFIED"
    return {"time": "limit"}.get(outcome.status, outcome.status)


# 1


def priority(context: Context) -> Page:
    """Dynamic priority against blocks in turn, in random order, and of each rank's own."""
    page = Page("1. Dynamic priority")
    page.say(
        "The seed: dynamic priority reaches the optimum far sooner than round robin, five times in the "
        "abstract of EuroSys'16. Counted are products x_j'r, in units of J (all columns once), "
        "coordinate updates, and seconds of two ranks on threads. Dynamic priority chooses by full "
        "gradients, which count J each. The other schedules need a gradient only to know the gap: those "
        "are in the column *certificates*, and neither they nor their time are in the others. `>`: not "
        f"reached within the limit of {context.patience:g} s, what was spent until then. Levels are "
        "certified gaps over P(0)."
    )
    for update in "exact", "parallel":
        runs = {
            (problem.name, selection): fit(
                problem, Arm(selection, update), seconds=context.patience / (1 if update == "exact" else 1.5)
            )
            for problem in context.problems
            for selection in NAMES
        }
        _priority(page, context, update, runs)
    return page


def _priority(page: Page, context: Context, update: str, runs: dict[tuple[str, str], Outcome]) -> None:
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
    for name in dict.fromkeys(key[0] for key in runs):
        page.say(_compared(name, {selection: runs[name, selection] for selection in NAMES}))
    page.say(_overall(runs))
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


def _ratio(dynamic: Reach, other: Outcome, level: float) -> tuple[float, bool]:
    """Products of the other over those of dynamic; whether the other got there (else a lower bound)."""
    reached = other.reach(level)
    return (reached or other.spent()).dots / dynamic.dots, reached is not None


def _compared(name: str, arms: dict[str, Outcome]) -> str:
    """How dynamic priority compares on one problem, at the deepest level it reached."""
    reached = [level for level in LADDER if arms["dynamic"].reach(level)]
    if not reached:
        return f"{name}: dynamic priority reached none of the levels in its time."
    level = reached[-1]
    mine = arms["dynamic"].reach(level)
    assert mine is not None
    told = []
    for selection, called in BASELINES.items():
        ratio, there = _ratio(mine, arms[selection], level)
        if there:
            told.append(f"{called} takes {number(ratio)} x its products")
        elif ratio > 1:
            told.append(f"{called} was not there after {number(ratio)} x its products")
        else:
            told.append(f"{called} was not there at its time limit, after {number(ratio)} x its products")
    return f"{name}, to {level:g}: {listed(told)}."


def _overall(runs: dict[tuple[str, str], Outcome]) -> str:
    """In how many cases dynamic priority needs fewest products, and against round robin by how much."""
    ratios, wins, losses, undecided = [], [], [], []
    for name in dict.fromkeys(key[0] for key in runs):
        for level in LEVELS:
            mine, case = runs[name, "dynamic"].reach(level), f"{name} at {level:g}"
            others = {selection: runs[name, selection].reach(level) for selection in BASELINES}
            there = {selection: at.dots for selection, at in others.items() if at is not None}
            if mine is None:
                (losses if there else undecided).append(case)
                continue
            if there and min(there.values()) <= mine.dots:
                losses.append(case)
            elif all(there.get(key, runs[name, key].spent().dots) > mine.dots for key in BASELINES):
                wins.append(case)
            else:
                undecided.append(case)
            if others["cyclic"] is not None:
                ratios.append(others["cyclic"].dots / mine.dots)
    told = [
        f"In {len(wins)} of {len(wins) + len(losses) + len(undecided)} cases dynamic priority takes the "
        "fewest"
    ]
    told[0] += (
        f" products; it does not in: {listed(losses)}; undecided within the limits: {listed(undecided)}."
    )
    if ratios:
        told.append(
            f"Where both arrive, round robin takes {number(mean(ratios))} x the products of dynamic priority "
            f"(geometric mean of {len(ratios)} cases, {number(min(ratios))} to {number(max(ratios))}); the "
            f"abstract's 5 x is {'seen' if mean(ratios) >= 5 else 'not seen'} in that mean."
        )
    return " ".join(told)


# 2


def parallel(context: Context) -> Page:
    """Simultaneous updates of more and more variables, with and without the dependency check."""
    page = Page("2. Parallelisation error and the dependency check")
    page.say(
        "The seed: variables that depend on each other must not be updated at the same time; the check "
        "on |corr| < rho avoids divergence. U variables are scheduled by dynamic priority and updated at "
        "once (`update='parallel'`); with rho None all of them, otherwise those that pass the check, and "
        "of these only the more important half where all together would raise the objective (a guard "
        f"that STRADS does not have). A cell says after how many rounds the objective is within {NEAR:g} "
        "P(0) of the certified optimum, or what is left at the end; `diverged`: it exceeds ten times "
        "P(0). A round counts, whatever it costs; an arm ends after 2 000 rounds or "
        f"{context.patience / 8:.2g} s."
    )
    told: dict[str, list[str]] = {"diverged": [], "slower": [], "faster": [], "saved": [], "lost": []}
    panels: list[Panel | None] = []
    savings, sizes = [], SIZES[1:3] if context.quick else SIZES
    head = ["problem", "U", *(f"rho {_called(rho)}" for rho in RHOS)]
    rows = []
    for problem in context.problems:
        best = context.optimum(problem)
        for scheduled in sizes:
            if scheduled > problem.X.shape[1]:
                panels.append(None)
                continue
            arms = {
                rho: fit(
                    problem, Arm(update="parallel", rho=rho, block=scheduled),
                    seconds=context.patience / 8, rounds=2_000, traced=True,
                )
                for rho in RHOS
            }  # fmt: skip
            near = {rho: _near(arm, best) for rho, arm in arms.items()}
            rows.append([problem.name, str(scheduled), *(_left(arms[rho], best, near[rho]) for rho in RHOS)])
            case = f"{problem.name} with U = {scheduled}"
            if arms[None].status == "diverged":
                told["diverged"].append(case)
                saved = [rho for rho in RHOS[1:] if arms[rho].status != "diverged"]
                told["saved" if len(saved) == len(RHOS) - 1 else "lost"].append(case)
            elif near[None] and near[0.1]:
                savings.append(near[0.1] / near[None])
            panels.append(
                Panel(
                    f"{problem.name}, U = {scheduled}",
                    {
                        _called(rho): (np.arange(1, len(arm.trace) + 1), np.maximum(arm.trace - best, 1e-9))
                        for rho, arm in arms.items()
                    },
                    "rounds of updates", "(P - optimum) / P(0)", top=20.0,
                )
            )  # fmt: skip
    page.table(head, rows)
    page.say(
        f"Without the check the objective diverges in {len(told['diverged'])} of {len(rows)} cases: "
        f"{listed(told['diverged'])}.",
        f"Of these none of the arms with a check diverges in {len(told['saved'])}."
        if told["diverged"]
        else "",
    )
    if savings:
        page.say(
            "Where the objective arrives with and without a check, rho = 0.1 takes "
            f"{number(mean(savings))} x the rounds (geometric mean of {len(savings)} cases, "
            f"{number(min(savings))} to {number(max(savings))}): above 1 the check costs more than it "
            "saves."
        )
    draw(context.folder / "parallel.png", panels, len(sizes), "rho")
    page.picture("parallel.png", "Distance of the objective from the optimum against rounds, by U and rho")
    return page


def _called(rho: float | None) -> str:
    return "None (no check)" if rho is None else f"{rho}"


def _near(outcome: Outcome, best: float) -> int | None:
    """Rounds of updates until the objective is within NEAR of the optimum."""
    there = np.flatnonzero(outcome.trace - best <= NEAR)
    return int(there[0]) + 1 if len(there) else None


def _left(outcome: Outcome, best: float, near: int | None) -> str:
    rounds = len(outcome.trace)
    if outcome.status == "diverged":
        return f"diverged, round {rounds}"
    return f"{near}" if near else f"{outcome.trace[-1] - best:.1e} left after {rounds}"


# 3


def staleness(context: Context) -> Page:
    """Blocks dealt from the reports of up to 8 rounds ago."""
    page, limit = Page("3. Staleness"), 100 if context.quick else 2_000
    page.say(
        "STRADS pipelines its scheduler: priorities may be some rounds old when their block is updated. "
        "`DynamicPriority(64, lookahead=L)` deals L + 1 blocks from the reports of one round, so only "
        "every (L + 1)th waits for reports; the residual is never stale. Ranks then propose L + 1 times "
        "as many variables, the strongest of which go first, so the choice also becomes greedier. Rounds "
        "of updates (`update='parallel'`, rho 0.1, two ranks) until the objective is that near to the "
        f"optimum, over P(0); `-`: not within {limit} rounds."
    )
    near = (1e-1, 1e-2, 1e-3)
    head = ["problem", "lookahead", *(f"rounds to {level:g}" for level in near), "left at the end"]
    head += ["rounds that wait for reports"]
    rows, panels, factors = [], [], {ahead: [] for ahead in LOOKAHEADS}
    for problem in context.problems:
        best = context.optimum(problem)
        lines = {}
        for ahead in LOOKAHEADS:
            outcome = fit(
                problem, Arm(update="parallel", lookahead=ahead), seconds=context.patience, rounds=limit,
                traced=True,
            )  # fmt: skip
            left = outcome.trace - best
            took = [np.flatnonzero(left <= level) for level in near]
            waits = sum(step.waited for step in outcome.steps if step.kind == "update")
            updates = sum(step.kind == "update" for step in outcome.steps)
            rows.append(
                [
                    problem.name, str(ahead), *(str(each[0] + 1) if len(each) else "-" for each in took),
                    f"{left[-1]:.1e}", f"{100 * waits / max(1, updates):.0f} %",
                ]
            )  # fmt: skip
            rounds = [int(each[0]) + 1 if len(each) else 0 for each in took]
            if ahead == 0:
                fresh = rounds
            factors[ahead] += [now / then for now, then in zip(rounds, fresh, strict=True) if now and then]
            lines[f"{ahead}"] = np.arange(1, len(left) + 1), np.maximum(left, 1e-9)
        panels.append(Panel(problem.name, lines, "rounds of updates", "(P - optimum) / P(0)", top=2.0))
    page.table(head, rows)
    told = [
        f"{number(mean(factors[ahead]))} x at lookahead {ahead} (of {len(factors[ahead])})"
        for ahead in LOOKAHEADS[1:]
        if factors[ahead]
    ]
    page.say(
        "Rounds to the same distance, over those without lookahead, geometric mean of what both reach: "
        f"{listed(told)}."
    )
    draw(context.folder / "staleness.png", panels, 2, "lookahead")
    page.picture("staleness.png", "Distance of the objective from the optimum against rounds, by lookahead")
    return page
