"""The seed's claims, about Lasso, factorisation and topics, measured inside one engine: docs/claims.md and
pictures.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/claims.py [--quick] [--only 1,3]

All arms are the engine's own Lasso, same kernels, with another schedule, update, lookahead or number of
ranks. The full run writes docs/claims.md and docs/claims/*.png; --quick, --only and --problems print the page
and keep the pictures in a temporary folder (or in --out). --only with --update replaces those sections of
docs/claims.md and leaves the rest. Exit code 1: an arm says that it converged and its
answer is not certified.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import claims_factors
import claims_memory
import claims_parallel
import claims_priority
import claims_scaling
import claims_sums
import claims_topics
import numpy as np
from claims_arms import OUTCOMES, warm
from claims_context import Context
from claims_page import Page, listed, number
from claims_problems import about, problems
from timing import cores

DOCS = Path(__file__).parents[1] / "docs"
SECTIONS = {
    "1": claims_priority.priority,
    "2": claims_parallel.parallel,
    "3": claims_parallel.staleness,
    "4": claims_scaling.scaling,
    "5": claims_memory.memory,
    "6": claims_sums.sums,
    "7": claims_factors.factors,
    "8": claims_topics.topics,
}


def main() -> int:
    """Run the sections; 1 when an answer that should be certified is not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smoke run on small problems, seconds an arm")
    parser.add_argument("--only", help=f"sections, of {','.join(SECTIONS)}, with commas; default all")
    parser.add_argument("--problems", help="of B/10,B/50,AR/20,hockey/100, with commas; default all")
    parser.add_argument("--scale", type=int, help="divisor of B's sizes (default 1, --quick 50)")
    parser.add_argument("--patience", type=float, help="seconds of a long arm (default 20, --quick 1)")
    parser.add_argument("--cache", type=Path, help="folder for generated data")
    parser.add_argument(
        "--out", type=Path, help="folder for claims.md and claims/ (default docs/, see above)"
    )
    parser.add_argument("--update", action="store_true", help="of docs/claims.md, the sections of --only")
    options = parser.parse_args()
    if options.update and (not options.only or options.quick or options.problems or options.out):
        parser.error("--update goes with --only alone")
    chosen = options.only.split(",") if options.only else list(SECTIONS)
    if set(chosen) - set(SECTIONS):
        parser.error(f"--only takes {', '.join(SECTIONS)}, got {options.only}")
    partial = options.quick or options.only or options.problems
    here = options.update or not partial
    out = options.out or (DOCS if here else Path(tempfile.mkdtemp(prefix="claims-")))

    start = time.perf_counter()
    found, missing = problems(options.quick, options.scale or (50 if options.quick else 1), options.cache)
    for remark in missing:
        print(remark, file=sys.stderr)
    if options.problems:
        found = [problem for problem in found if problem.name in options.problems.split(",")]
    if not found:
        parser.error(f"no such problem here: {options.problems}")
    before = cores(2)
    warm()
    patience = options.patience or (1.0 if options.quick else 20.0)
    context = Context(found, out / "claims", patience, options.quick)
    pages, counts = [], {}
    for name in chosen:
        done = len(OUTCOMES)
        pages.append(SECTIONS[name](context))
        counts[name] = done, len(OUTCOMES)
        print(
            f"section {name}: {len(OUTCOMES) - done} arms, {time.perf_counter() - start:.0f} s so far",
            file=sys.stderr,
        )
    if not options.update:
        pages.append(certificates(counts))

    intro = opening(context, missing, f"{before:.2f} before, {cores(2):.2f} after")
    out.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join([intro, *(page.text() for page in pages)]) + "\n"
    if options.update:
        text = updated((out / "claims.md").read_text("utf-8"), pages)
    (out / "claims.md").write_text(text, "utf-8")
    if partial:
        print(text)
    wrong = [outcome for outcome in OUTCOMES if outcome.status == "converged" and not outcome.certified]
    for outcome in wrong:
        print(f"converged but not certified: {outcome.problem.name}, {outcome.arm}", file=sys.stderr)
    print(f"{out / 'claims.md'}: {len(OUTCOMES)} arms, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return 1 if wrong else 0


def updated(text: str, pages: list[Page]) -> str:
    """The page with some sections replaced, the others as they were."""
    opened, *sections = text.rstrip("\n").split("\n\n## ")
    by_title = {section.splitlines()[0].partition(". ")[2]: section for section in sections}
    numbers = {title: section.partition(".")[0] for title, section in by_title.items()}
    for page in pages:
        number, _, title = page.title.partition(". ")
        by_title[title], numbers[title] = page.text().removeprefix("## "), number
    last = "The objective reached"
    number, _, rest = by_title[last].partition(". ")
    by_title[last], numbers[last] = f"{len(SECTIONS) + 1}. {rest}", str(len(SECTIONS) + 1)
    ordered = sorted(by_title, key=lambda title: int(numbers[title]))
    return "\n\n## ".join([opened, *(by_title[title] for title in ordered)]) + "\n"


def opening(context: Context, missing: list[str], busy: str) -> str:
    """What the page is, and its problems."""
    page = Page("")
    page.say(
        "Written by `python benchmarks/claims.py`, every figure and every sentence about one; edit that, "
        "not this. All arms of sections 1 to 5 are `Lasso` of this package on threads, the same kernels, "
        "without an intercept, in float64. P(0) is the objective at zero, J the number of columns. Counts "
        f"do not depend on the machine; arms that end at a time limit do. Two busy threads got {busy} cores "
        "of this machine."
    )
    page.table(
        ["problem", "rows x columns", "stored entries", "lam_max / alpha", "split by"],
        [about(problem) for problem in context.problems],
    )
    page.say(
        "B: sparse, one column in ten close to its neighbour (STRADS). AR: dense, neighbouring columns "
        "correlated by 0.9. hockey: the plus-minus design of players in cran/gamlr."
    )
    for remark in missing:
        page.say(f"{remark}.")
    return "\n\n".join(["# The seed's claims, measured", *page.parts])


def certificates(counts: dict[str, tuple[int, int]]) -> Page:
    """Whether every arm that converged has the optimum."""
    page = Page(f"{len(SECTIONS) + 1}. The objective reached")
    page.say(
        "Every arm that says it converged is checked by `benchmarks/certificate.py`, which shares no code "
        "with the solver: the gap between its objective and a dual point, over P(0)."
    )
    rows = []
    for name, (first, last) in counts.items():
        arms = OUTCOMES[first:last]
        ended = {
            status: sum(arm.status == status for arm in arms) for status in ("time", "ended", "diverged")
        }
        converged = [arm for arm in arms if arm.status == "converged" and arm.certificate is not None]
        worst = max((arm.certificate.relative / arm.target for arm in converged), default=np.nan)  # type: ignore[union-attr]
        rows.append(
            [
                name, str(len(arms)), str(len(converged)), str(sum(arm.certified for arm in converged)),
                number(worst) if converged else "-", *map(str, ended.values()),
            ]
        )  # fmt: skip
    page.table(
        [
            "section",
            "arms",
            "converged",
            "certified",
            "worst gap / target",
            "time or round limit",
            "no progress",
            "diverged",
        ],
        rows,
    )
    spreads = []
    for name in dict.fromkeys(arm.problem.name for arm in OUTCOMES):
        found = [
            arm.certificate.primal / arm.problem.null
            for arm in OUTCOMES
            if arm.certificate is not None and arm.problem.name == name and arm.target <= 1e-6
        ]
        if found:
            spreads.append(f"{max(found) - min(found):.1e} on {name}")
    page.say(f"Objectives of arms that went to 1e-6 differ by at most, over P(0): {listed(spreads)}.")
    return page


if __name__ == "__main__":
    sys.exit(main())
