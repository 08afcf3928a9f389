"""Sections 2 and 3 of the claims page: parallelisation error, staleness."""

from __future__ import annotations

import numpy as np
from claims_arms import Arm, Outcome, fit
from claims_context import Context
from claims_page import Page, listed, mean, number
from claims_plots import Panel, draw

SIZES = {8: 2_000, 64: 500, 512: 30, 4096: 3}  # variables at once, and rounds: a round costs about U^2
RHOS = (None, 0.5, 0.1, 0.02)
NEAR = 1e-2  # distance of the objective from the optimum, over P(0)
LOOKAHEADS = (0, 1, 2, 4, 8)


def parallel(context: Context) -> Page:
    """Simultaneous updates of more and more variables, with and without the dependency check."""
    page = Page("2. Parallelisation error and the dependency check")
    sizes = {64: 40, 512: 5} if context.quick else SIZES
    page.say(
        "The seed: variables that depend on each other must not be updated at the same time; the check "
        "on |corr| < rho avoids divergence. U variables are scheduled by dynamic priority and updated at "
        "once (`update='parallel'`); with rho None all of them, otherwise those that pass the check, and "
        "of these only the more important half where all together would raise the objective (a guard "
        f"that STRADS does not have). A cell says after how many rounds the objective is within {NEAR:g} "
        "P(0) of the certified optimum, or what is left at the end; `diverged`: it exceeds ten times "
        "P(0). A round counts, whatever it costs; an arm ends after "
        f"{listed([f'{rounds} rounds of {scheduled}' for scheduled, rounds in sizes.items()])} variables."
    )
    diverged, saved = [], 0
    panels: list[Panel | None] = []
    savings = []
    head = ["problem", "U", *(f"rho {_called(rho)}" for rho in RHOS)]
    rows = []
    for problem in context.problems:
        best = context.optimum(problem)
        for scheduled, rounds in sizes.items():
            if scheduled > problem.X.shape[1]:
                panels.append(None)
                continue
            arms = {
                rho: fit(
                    problem, Arm(update="parallel", rho=rho, block=scheduled),
                    seconds=2 * context.patience, rounds=rounds, traced=True,
                )
                for rho in RHOS
            }  # fmt: skip
            near = {rho: _near(arm, best) for rho, arm in arms.items()}
            rows.append([problem.name, str(scheduled), *(_left(arms[rho], best, near[rho]) for rho in RHOS)])
            case = f"{problem.name} with U = {scheduled}"
            if arms[None].status == "diverged":
                diverged.append(case)
                saved += all(arms[rho].status != "diverged" for rho in RHOS[1:])
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
    page.say(f"Without the check the objective diverges in {len(diverged)} of {len(rows)} cases.")
    if diverged:
        page.say(f"These are {listed(diverged)}; in {saved} of them no arm with a check diverges.")
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
    page, limit = Page("3. Staleness"), 100 if context.quick else 1_500
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
                problem, Arm(update="parallel", lookahead=ahead), seconds=2 * context.patience, rounds=limit,
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
