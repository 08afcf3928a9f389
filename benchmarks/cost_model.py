"""How well the cost model of `allreduce` predicts the emulated network, and what it says of larger ones.

    python benchmarks/allreduce.py --hosts 4 --rate 100mbit --rate 1gbit --json cells.json     # as root
    python benchmarks/cost_model.py cells.json [--picture docs/allreduce/planning.png]

Predicted from alpha, beta and gamma as that run measured them and the cell's own sizes, against what it took.
Then time against the number of ranks, 16 ... 4096, per algorithm, at 1, 10 and 100 Gbit/s: k = 1 % of 16 M
positions a rank, of which the ranks share some (the union seen among eight Zipf supports sets how many).
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from allreduce_claims import RATES, Cell
from supports import support

from daskstrads.sparse_reduce.selector import Link, Seen, cost, crowd

ALGORITHMS = ("recursive_doubling", "split", "dense_split", "ring", "dense")
FABRICS = {"1 Gbit/s": Link(5e-5, 8e-9), "10 Gbit/s": Link(2e-5, 8e-10), "100 Gbit/s": Link(5e-6, 8e-11)}
RANKS = tuple(2**power for power in range(4, 13))
SIZE, DENSITY = 1 << 24, 0.01


def main() -> None:
    """Print both tables, draw the second."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", type=Path, help="what allreduce.py --json wrote")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    check([Cell(**cell) for cell in json.loads(options.cells.read_text())])
    plan(options.picture)


def check(cells: list[Cell]) -> None:
    """Predicted over measured, where hosts leave a core free and a link was measured."""
    cells = [cell for cell in cells if cell.rate in RATES and cell.link and cell.ranks <= 4]
    if not cells:
        print("no cells of up to four emulated hosts")
        return
    off = []
    print(f"{'cell':<46}{'algorithm':<20}{'measured ms':>12}{'predicted':>12}{'ratio':>8}")
    for cell in cells:
        link = Link(*cell.link)
        k = cell.entries / cell.ranks
        positions = crowd(cell.ranks, Seen(cell.entries, cell.union), cell.size)
        for name, (measured, *_) in cell.each.items():
            if name == "auto":
                continue
            predicted = 1e3 * cost(name, cell.ranks, cell.size, 4, k, positions, link)
            off.append(max(predicted / measured, measured / predicted) - 1)
            print(
                f"{cell.where:<46}{name:<20}{measured:>12.3g}{predicted:>12.3g}{predicted / measured:>8.2f}"
            )
    within = sum(each <= 0.3 for each in off) / len(off)
    print(f"off by {statistics.median(off):.0%} in the median; {within:.0%} of the cells within 30 %")


def plan(picture: Path | None) -> None:
    """Seconds against ranks."""
    held = [support("zipf", 1 << 20, DENSITY, rank) for rank in range(8)]
    union = len(set().union(*map(set, held)))
    shared = crowd(8, Seen(sum(map(len, held)), union), 1 << 20) / (1 << 20)
    k, positions = DENSITY * SIZE, shared * SIZE
    table = {
        (fabric, name): [1e3 * cost(name, ranks, SIZE, 4, k, positions, link) for ranks in RANKS]
        for fabric, link in FABRICS.items()
        for name in ALGORITHMS
    }
    print(f"\nms a sum, N = 16 M, 1 %, ranks draw from {shared:.0%} of the positions")
    print(f"{'fabric':<12}{'algorithm':<20}" + "".join(f"{ranks:>9}" for ranks in RANKS))
    for (fabric, name), times in table.items():
        print(f"{fabric:<12}{name:<20}" + "".join(f"{ms:>9.3g}" for ms in times))
    if picture is not None:
        draw(table, picture)


def draw(table: dict[tuple[str, str], list[float]], picture: Path) -> None:
    """One panel a fabric."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(FABRICS), figsize=(12, 4), sharey=True, layout="constrained")
    for panel, fabric in zip(panels, FABRICS, strict=True):
        for name in ALGORITHMS:
            panel.loglog(RANKS, table[fabric, name], marker="o", markersize=3, label=name.replace("_", " "))
        panel.set(title=fabric, xlabel="ranks")
        panel.set_xscale("log", base=2)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("ms a sum (model)")
    panels[-1].legend(fontsize=8)
    figure.suptitle("Sum of 1 % of 16 M values a rank, as the cost model has it")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
