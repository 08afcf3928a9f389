"""Matrix factorisation against cmfrec, libmf, Spark and implicit, on generated and real ratings.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/mf.py [peers ends rank scaling cluster
    recommend real] ... python benchmarks/mf.py large          # L at rank 2 000: three sweeps, about a
    quarter of an hour

peers: wall time of a whole `fit` to what a peer reached (its objective, or libmf's test RMSE), over the
peer's time, in turns in one run; objective and RMSE are recomputed in numpy from the factors. ends:
objective and test RMSE after many sweeps. rank: CPU time a rating, component and sweep. scaling: two ranks
over one. cluster: two worker processes over two threads, with their bits. recommend: against implicit's,
both from the same factors. real: MovieLens latest-small, five seeded splits, against a model of biases alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from linear_claims import line
from mf_peers import PEERS, Fit, installed
from problems import real_folder
from ratings import Ratings, load_ratings
from rss import Watch
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from timing import cores, paired, ratio

from daskstrads import MatrixFactorization

REG = 0.05
RANKS = (40, 100)
SWEEPS = {"cmfrec": 10, "libmf": 15, "spark": 5}


class Effort(NamedTuple):
    """How much of everything a run does."""

    repeats: int
    scale: int
    cache: Path | None


def model(k: int, sweeps: int, **options) -> MatrixFactorization:
    options = {"biases": False, "n_shards": 2, "tol": 0.0, "random_state": 0, "reg": REG} | options
    return MatrixFactorization(k, max_iter=sweeps, **options)


def judged(data: Ratings, users: np.ndarray, items: np.ndarray) -> tuple[float, float]:
    """Objective over the number of ratings (without a penalty on ones), and test RMSE, of factors; in
    float64.
    """
    train = data.train.tocoo()
    sse = _sse(train.row, train.col, train.data, users, items)
    counts = np.diff(data.train.indptr), np.bincount(data.train.indices, minlength=data.train.shape[1])
    ones = int((users[:, 1] == 1).all() and (items[:, 0] == 1).all())  # beside the biases
    penalty = sum(
        float(count @ (np.square(factors.astype(np.float64)).sum(axis=1) - ones))
        for count, factors in zip(counts, (users, items), strict=True)
    )
    test = _sse(data.users, data.items, data.ratings, users, items)
    return (sse + REG * penalty) / data.train.nnz, float(np.sqrt(test / len(data.ratings)))


def _sse(rows, columns, values, users, items, step: int = 1 << 20) -> float:
    total = 0.0
    for first in range(0, len(values), step):
        part = slice(first, first + step)
        product = np.einsum("ij,ij->i", users[rows[part]].astype(np.float64), items[columns[part]])
        total += float(np.square(values[part] - product).sum())
    return total


def of(fitted: MatrixFactorization) -> tuple[np.ndarray, np.ndarray]:
    return fitted.user_factors_, fitted.components_.T


def peers(effort: Effort) -> None:
    data = load_ratings("M", effort.scale, effort.cache).centred()
    print(f"\npeers    M: {data.train.shape[0]} x {data.train.shape[1]}, {data.train.nnz} ratings, reg {REG}")
    for k in RANKS:
        for name, peer in PEERS.items():
            if not installed(name):
                print(f"         {name} is NOT INSTALLED: left out")
                continue
            once = name == "spark"  # a minute a fit
            if once and k != RANKS[0]:
                continue
            against(data, name, peer, k, 1 if once else effort.repeats)


TARGETS = {"cmfrec": 0.5, "libmf": 1.0, "spark": 0.1}


def against(data: Ratings, name: str, peer: Callable[..., Fit], k: int, repeats: int) -> None:
    """Time to a peer's objective (libmf: test RMSE) over its time.

    SGD that is stopped early may have a test RMSE that this model's optimum at the same penalty does not;
    then that is said, and the model with biases, which is what `MatrixFactorization` fits by default, is
    timed as well.
    """
    by_test = name == "libmf"
    first = peer(data.train, k, REG, SWEEPS[name])
    reached = judged(data, first.users, first.items)
    for biases in (False, True) if by_test else (False,):
        how = " with biases" * biases
        sweeps = needed(data, k, reached[by_test], by_test, biases)
        what = f"M, rank {k}: to {name}'s {'test RMSE' if by_test else 'objective'}{how}"
        if sweeps is None:
            told = f"objective {reached[0]:.4f}, test {reached[1]:.4f}"
            print(f"         {name}, rank {k}: {told}; not reached{how}")
            line(what, TARGETS[name], np.inf)
            continue
        seconds: list[float] = []

        def theirs(seconds: list[float] = seconds) -> None:
            seconds.append(peer(data.train, k, REG, SWEEPS[name]).seconds)

        def ours(sweeps: int = sweeps, biases: bool = biases) -> MatrixFactorization:
            return model(k, sweeps, biases=biases).fit(data.train)

        samples = paired({"ours": ours, "peer": theirs}, repeats, keep=lambda fitted: fitted)
        walls = [sample.wall for sample in samples["ours"]]
        ratios = sorted(mine / other for mine, other in zip(walls, seconds, strict=True))
        mine = judged(data, *padded(samples["ours"][0].kept))
        print(
            f"         rank {k}, {name}: {SWEEPS[name]} sweeps {statistics.median(seconds):.2f} s to "
            f"objective {reached[0]:.4f}, test {reached[1]:.4f}; daskstrads{how}: {sweeps} sweeps "
            f"{statistics.median(walls):.2f} s to {mine[0]:.4f}, {mine[1]:.4f}"
        )
        line(f"{what} [{ratios[0]:.3g}..{ratios[-1]:.3g}]", TARGETS[name], statistics.median(ratios))


def padded(fitted: MatrixFactorization) -> tuple[np.ndarray, np.ndarray]:
    """Factors with the biases as two more columns, so that a prediction is one product."""
    users, items = of(fitted)
    one = np.ones(len(users), users.dtype), np.ones(len(items), items.dtype)
    return (
        np.column_stack([fitted.user_bias_, one[0], users]),
        np.column_stack([one[1], fitted.item_bias_, items]),
    )


def needed(data: Ratings, k: int, goal: float, by_test: bool, biases: bool) -> int | None:
    """Sweeps until the objective (test RMSE) is at most `goal`."""
    if not by_test:
        history = model(k, 40).fit(data.train).history_["objective"] / data.train.nnz
        there = np.flatnonzero(history <= goal)
        return int(there[0]) + 1 if len(there) else None
    fitted = model(k, 1, biases=biases, warm_start=True)
    for sweeps in range(1, 25):
        fitted.fit(data.train)
        if judged(data, *padded(fitted))[1] <= goal:
            return sweeps
    return None


def ends(effort: Effort) -> None:
    """Objective and test RMSE after many sweeps, over the best peer's."""
    data = load_ratings("M", effort.scale, effort.cache).centred()
    k, sweeps = RANKS[0], 60
    found = {
        solver: judged(data, *of(model(k, sweeps, solver=solver).fit(data.train)))
        for solver in ("als", "ccd")
    }
    if installed("cmfrec"):
        found["cmfrec"] = judged(data, *PEERS["cmfrec"](data.train, k, REG, sweeps)[1:])
    for name, (objective, test) in found.items():
        print(
            f"ends     M, rank {k}, {sweeps} sweeps, {name}: objective {objective:.5f}, test RMSE {test:.5f}"
        )
    if "cmfrec" in found:
        for place, what in enumerate(("objective", "test RMSE")):
            line(
                f"M, rank {k}: {what} at the end over cmfrec's",
                1.001,
                found["als"][place] / found["cmfrec"][place],
            )


def rank(effort: Effort) -> None:
    """CPU nanoseconds a rating, component and sweep."""
    data = load_ratings("M", effort.scale, effort.cache).centred().part(8)
    print(f"rank     an eighth of M: {data.train.nnz} ratings")
    found = {}
    for k in (40, 100, 500, 2000):
        few, many = 1, 3
        samples = paired(
            {str(n): lambda n=n, k=k: model(k, n).fit(data.train) for n in (few, many)},
            effort.repeats,
            keep=bool,
        )
        took = [b.cpu - a.cpu for a, b in zip(samples[str(few)], samples[str(many)], strict=True)]
        found[k] = statistics.median(took) / (many - few) / data.train.nnz / k * 1e9
        print(f"         rank {k}: {found[k]:.2f} ns CPU a rating, component and sweep")
    line("rank 2 000 over rank 40, CPU a rating, component and sweep", 1.0, found[2000] / found[40])


def scaling(effort: Effort) -> None:
    """Two ranks over one."""
    data = load_ratings("M", effort.scale, effort.cache).centred()
    for k in RANKS:
        for solver in "als", "ccd":
            calls = {
                str(size): lambda size=size, k=k, solver=solver: model(
                    k, 4, n_shards=size, solver=solver
                ).fit(data.train)
                for size in (1, 2)
            }
            samples = paired(calls, effort.repeats, keep=bool)
            up = ratio(samples["1"], samples["2"])
            print(f"scaling  M, rank {k}, {solver}: two ranks are {up} times as fast as one")
            if solver == "als":
                line(f"M, rank {k}: speed-up of 2 ranks over 1", 1.6, up.median, least=True)


def cluster(effort: Effort) -> None:
    """Two single-thread workers over two threads of this process."""
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    data = load_ratings("M", effort.scale, effort.cache).centred()
    k, sweeps = RANKS[0], 10
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as here,
        Client(here, set_as_default=False) as client,
    ):
        users = data.train.shape[0]
        half = users // 2
        futures = client.scatter([data.train[:half], data.train[half:]])
        X = da.concatenate(
            [
                da.from_delayed(
                    future, (rows, data.train.shape[1]), dtype=np.float32, meta=sp.csr_array((0, 0))
                )
                for future, rows in zip(futures, (half, users - half), strict=True)
            ]
        )
        X = client.persist(X)
        with client.as_current():
            wait(X)

        def there() -> MatrixFactorization:
            with client.as_current():
                return model(k, sweeps).fit(X)

        there()
        calls = {"workers": there, "threads": lambda: model(k, sweeps).fit(data.train)}
        samples = paired(calls, effort.repeats, keep=of)
    a, b = samples["workers"][0].kept, samples["threads"][0].kept
    same = all(one.tobytes() == other.tobytes() for one, other in zip(a, b, strict=True))
    over = ratio(samples["workers"], samples["threads"])
    print(
        f"cluster  M, rank {k}, {sweeps} sweeps: 2 workers over 2 threads {over}, "
        f"{'same' if same else 'OTHER'} bits"
    )
    line(f"M, rank {k}: 2 workers over 2 threads", 1.3, over.median)


def recommend(effort: Effort) -> None:
    """10 000 users, rank 100, ten items each; both sides from the same factors."""
    data = load_ratings("M", effort.scale, effort.cache).centred()
    items = 17_770
    rng = np.random.default_rng(0)
    users = np.arange(min(10_000, data.train.shape[0]))
    fitted = model(100, 1).fit(data.train)
    wide = rng.standard_normal((items, 100)).astype(np.float32) / 10
    fitted.components_, fitted.item_bias_, fitted.item_ids_ = (
        wide.T,
        np.zeros(items, np.float32),
        np.arange(items),
    )
    if not installed("implicit"):
        print("recommend: implicit is NOT INSTALLED: left out")
        return
    import implicit

    peer = implicit.als.AlternatingLeastSquares(factors=100, num_threads=2, iterations=1)
    peer.user_factors, peer.item_factors = np.ascontiguousarray(fitted.user_factors_), wide
    nothing = sp.csr_matrix((len(users), items), dtype=np.float32)
    calls = {
        "ours": lambda: fitted.recommend(users, 10),
        "peer": lambda: peer.recommend(users, nothing, N=10, filter_already_liked_items=False),
    }
    with threadpool_limits(1, user_api="blas"):  # as implicit recommends; daskstrads does so itself
        for call in calls.values():
            call()
        samples = paired(calls, max(5, effort.repeats), keep=lambda answer: answer[0])
    agree = np.mean(samples["ours"][0].kept == samples["peer"][0].kept)
    over = ratio(samples["ours"], samples["peer"])
    print(
        f"recommend {len(users)} users, {items} items, rank 100: over implicit {over}, "
        f"{agree:.4%} of the answers agree"
    )
    line("recommend over implicit's", 1.0, over.median)


def real(effort: Effort) -> None:
    """MovieLens latest-small (2016): test RMSE over that of biases alone, five seeded splits of 10 %."""
    path = real_folder(None) / "ml_latest_small_2016.npz"
    if not path.is_file():
        print(f"real     no file {path}: name its folder by $DASKSTRADS_DATA")
        return
    with np.load(path) as stored:
        triples = stored["user"], stored["item"], stored["rating"].astype(np.float64)
    gains = []
    for seed in range(5):
        test = np.random.default_rng(seed).random(len(triples[0])) < 0.1
        train, held = (tuple(each[keep] for each in triples) for keep in (~test, test))
        full = MatrixFactorization(100, reg=0.1, random_state=seed, tol=1e-4, max_iter=60).fit(train)
        plain = bias_only(train, held)
        gains.append(1 + full.score(held) / plain)
        print(
            f"real     split {seed}: test RMSE {-full.score(held):.4f}, of biases alone {plain:.4f}, "
            f"{gains[-1]:.2%} less"
        )
    line("MovieLens latest-small: mean gain over biases alone", 0.01, statistics.mean(gains), least=True)
    line("the same, the smallest of five", 0.0, min(gains), least=True)


def bias_only(train: tuple, held: tuple) -> float:
    """Test RMSE of mean + b_u + c_i at the best of several penalties, by alternating exact steps."""
    known = [np.unique(each, return_inverse=True) for each in train[:2]]
    values = train[2] - train[2].mean()
    best = np.inf
    for reg in 1.0, 2.0, 5.0, 10.0:
        bias = [np.zeros(len(ids)) for ids, _ in known]
        for _ in range(50):
            for side in (1, 0):
                rest = values - bias[1 - side][known[1 - side][1]]
                count = np.bincount(known[side][1])
                bias[side] = np.bincount(known[side][1], rest) / (count + reg)
        predicted = np.full(len(held[2]), train[2].mean())
        for side in (0, 1):
            place = np.minimum(np.searchsorted(known[side][0], held[side]), len(known[side][0]) - 1)
            predicted += np.where(known[side][0][place] == held[side], bias[side][place], 0.0)
        best = min(best, float(np.sqrt(np.mean((predicted - held[2]) ** 2))))
    return best


def large(effort: Effort) -> None:
    """L at rank 2 000 on this machine: three sweeps."""
    data = load_ratings("L", effort.scale, effort.cache).centred()
    print(
        f"large    L: {data.train.shape[0]} x {data.train.shape[1]}, {data.train.nnz} ratings, "
        "rank 2 000, 2 ranks"
    )
    fitted = model(2000, 3, verbose=True)
    print(f"         plan: {fitted.memory_plan(data.train.shape, data.train.nnz, 2)}")
    model(16, 1).fit(load_ratings("S", 1, effort.cache).train)  # kernels
    watch = Watch(0.2)
    held = watch.base
    began = time.perf_counter()
    fitted.fit(data.train)
    wall, growth = time.perf_counter() - began, watch.stop()
    objective = fitted.history_["objective"]
    sweeps = np.diff(fitted.history_["seconds"], prepend=0.0)
    print(
        f"         {wall:.0f} s; sweeps of {', '.join(f'{each:.0f}' for each in sweeps)} s; "
        f"objective {objective}"
    )
    print(f"         resident: {held / 2**30:.2f} GiB before, at most {(held + growth) / 2**30:.2f} GiB")
    line("L, rank 2 000: peak resident memory, GiB", 10.0, (held + growth) / 2**30)
    line("the objective falls each sweep", 1.0, float((np.diff(objective) < 0).all()), least=True)


SECTIONS = {
    "peers": peers, "ends": ends, "rank": rank, "scaling": scaling, "cluster": cluster,
    "recommend": recommend, "real": real, "large": large,
}  # fmt: skip


def main() -> None:
    """Run the sections asked for; all but `large` without any."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("section", nargs="*", help=f"of {', '.join(SECTIONS)}; default all but large")
    parser.add_argument("--repeats", type=int, default=3, help="pairs a figure")
    parser.add_argument("--quick", action="store_true", help="smoke run: a thousandth of the ratings")
    parser.add_argument("--cache", type=Path, help="folder for generated data")
    options = parser.parse_args()
    unknown = set(options.section) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if variable in os.environ:
            print(f"warning: {variable} is set; see the usage line in --help")
    warnings.simplefilter("ignore", ConvergenceWarning)
    effort = Effort(1 if options.quick else options.repeats, 1000 if options.quick else 1, options.cache)
    tiny = load_ratings("S", 10, effort.cache).centred()
    for solver in "als", "ccd":
        model(4, 1, solver=solver).fit(tiny.train)
    for name in options.section or [name for name in SECTIONS if name != "large"]:
        print(f"(two busy threads get {cores(2):.2f} cores)")
        SECTIONS[name](effort)


if __name__ == "__main__":
    main()
