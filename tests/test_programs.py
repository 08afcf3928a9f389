"""One suite for every program: a table of cases, and what must hold for all of them."""

import copy
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import naive
import numpy as np
import programs
import pytest
import scipy.optimize
import scipy.sparse as sp

import daskstrads
from daskstrads import DynamicPriority, Program, run
from daskstrads.algos import lda_gibbs, mf_als, mf_ccd, word_blocks
from daskstrads.algos.corpus import problem_of_counts
from daskstrads.algos.factors import Layout, RatingPart, Settings, height
from daskstrads.algos.lasso_block import Piece, Rules, assembled
from daskstrads.algos.lasso_columns import ColumnPart, LassoColumns
from daskstrads.algos.lasso_rows import LassoRows, RowPart
from daskstrads.algos.objective import Distance, Penalty
from daskstrads.partition import Slab, split
from daskstrads.schedule import Certified, Descent


@dataclass(frozen=True, eq=False)
class Case:
    """A program with a small problem; `model` turns the attributes `keep` of all shards into arrays."""

    name: str
    program: Callable[[], Program]
    parts: Callable[[int], list]  # of so many ranks
    keep: tuple[str, ...]
    model: Callable[[list], tuple]
    oracle: Callable[[int], tuple]
    close: float = 1e-8  # absolute tolerance to the oracle
    alike: float | None = 1e-9  # of 1 shard to n; None: the mathematics depends on the shards
    objective: Callable[..., float] | None = None  # of the model; never rises

    def __str__(self):
        return self.name


def cut(n, *arrays):
    """Rows of the arrays for n ranks, uneven."""
    bounds = [len(arrays[0]) * place**2 // n**2 for place in range(n + 1)]
    return [tuple(array[start:stop] for array in arrays) for start, stop in pairwise(bounds)]


def regression(n, p, seed):
    """X (n, p), column after column in memory, and y with a sparse signal."""
    rng = np.random.default_rng(seed)
    X = np.asfortranarray(rng.standard_normal((n, p)))
    coef = np.where(rng.random(p) < 0.3, rng.standard_normal(p), 0.0)
    return X, X @ coef + 0.5 * rng.standard_normal(n)


def nnls(rows=300):
    A, b = regression(rows, 12, 1)

    def objective(x):
        return 0.5 * np.sum((A @ x - b) ** 2)

    return Case(
        "nnls",
        lambda: programs.NNLS(12),
        lambda n: cut(n, A, b),
        ("x",),
        lambda shards: (shards[0].x,),
        lambda n: (scipy.optimize.nnls(A, b)[0],),
        objective=objective,
    )


def lasso_toy(tall, rows=100):
    X, y = regression(rows, 24 if tall else 120, 2)
    lam = 0.2 * np.abs(X.T @ y).max()

    def objective(coef):
        return 0.5 * np.sum((y - X @ coef) ** 2) + lam * np.abs(coef).sum()

    def columns(n):
        places = [X.shape[1] * place // n for place in range(n + 1)]
        return [(X[:, start:stop], start, y) for start, stop in pairwise(places)]

    program = programs.LassoTall if tall else programs.LassoWide
    return Case(
        "lasso tall" if tall else "lasso wide",
        lambda: program(X.shape[1], lam, block=8 if tall else 30, tol=1e-9),
        (lambda n: cut(n, X, y)) if tall else columns,
        ("coef",),
        lambda shards: (shards[0].coef if tall else np.concatenate([shard.coef for shard in shards]),),
        lambda n: (naive.lasso(X, y, lam),),
        objective=objective,
    )


def ratings():
    """A dense matrix of users and items with nan where there is no rating, and start factors."""
    rng = np.random.default_rng(4)
    W, H = rng.standard_normal((30, 3)), rng.standard_normal((17, 3))
    A = W @ H.T + 0.1 * rng.standard_normal((30, 17))
    A[rng.random(A.shape) < 0.5] = np.nan
    return A, rng.standard_normal((30, 3)), rng.standard_normal((17, 3))


def factorisation(name, program, keep, part, model, oracle):
    A, _, _ = ratings()
    lam = 0.3

    def objective(W, H):
        return np.nansum((A - W @ H.T) ** 2) + lam * (np.sum(W**2) + np.sum(H**2))

    def parts(n):
        made = []
        for (rows,) in cut(n, np.arange(len(A))):
            users, items = np.nonzero(~np.isnan(A[rows]))
            made.append((users, items, A[rows][users, items], *part(rows)))
        return made

    return Case(
        name, lambda: program(lam), parts, keep, model, lambda n: oracle(lam), objective=objective
    )  # fmt: skip


def fused_ccd():
    A, W, H = ratings()
    return factorisation(
        "fused ccd",
        lambda lam: programs.FusedCCD(3, lam, sweeps=6),
        ("W", "H"),
        lambda rows: (W[rows], H),
        lambda shards: (np.concatenate([shard.W for shard in shards]), shards[0].H),
        lambda lam: naive.ccd(A, W, H, lam, sweeps=6),
    )


def als():
    A, W, _ = ratings()
    return factorisation(
        "als",
        lambda lam: programs.ALS(lam, sweeps=5),
        ("W", "H"),
        lambda rows: (W[rows], A.shape[1]),
        lambda shards: tuple(np.concatenate([getattr(shard, name) for shard in shards]) for name in "WH"),
        lambda lam: naive.als(A, W, lam, sweeps=5),
    )


LDA = {"n_words": 25, "n_topics": 4, "sweeps": 3, "seed": 7, "alpha": 0.1, "beta": 0.01}


def lda_parts(n):
    rng = np.random.default_rng(5)
    documents, words = np.sort(rng.integers(0, 12, 240)), rng.integers(0, LDA["n_words"], 240)
    owner = documents % n
    return [(documents[owner == rank] // n, words[owner == rank]) for rank in range(n)]


def lda_model(shards):
    """Word-topic counts, from the blocks: rank p ends a sweep with block p."""
    blocks = [shard.block for shard in shards]
    return (np.array([blocks[w % len(shards)][w // len(shards)] for w in range(LDA["n_words"])]),)


def lda():
    return Case(
        "lda",
        lambda: programs.RotatedLDA(**LDA),
        lda_parts,
        ("block",),
        lda_model,
        lambda n: (naive.rotated_gibbs(lda_parts(n), **LDA),),
        close=0,
        alike=None,
    )


def top_k_sgd():
    X, _ = regression(240, 60, 6)
    truth = np.random.default_rng(7).standard_normal(60)
    return Case(
        "top-k sgd",
        lambda: programs.TopKSGD(8, rate=2e-3, batches=2, epochs=200),
        lambda n: cut(n, X, X @ truth),
        ("params",),
        lambda shards: (shards[0].params,),
        lambda n: (truth,),
        close=1e-6,
        alike=None,
    )


def package_lasso(axis, parallel=False, sparse=False, shape=None, pilot=False):
    """The package's own programs, as `Lasso.fit` builds them."""
    rng = np.random.default_rng(8)
    X, y = regression(*(shape or ((200, 30), (80, 110))[axis]), 9)
    if sparse:
        X = X * (rng.random(X.shape) < 0.2)
    y = y + 3.0
    n, p = X.shape
    centred, target = X - X.mean(axis=0), y - y.mean()
    alpha = 0.2 * np.abs(centred.T @ target).max() / n
    penalty, block = Penalty(n * alpha, 0.0, False), 16 if parallel else 20
    tol = 1e-9 if parallel else 1e-12
    rules = Rules(True, False, parallel, rho=0.3, proposals=block, tol=tol, pilot=pilot)
    program = LassoRows if axis == 0 else LassoColumns

    def parts(size):
        made = split((sp.csr_array if axis == 0 else sp.csc_array)(X) if sparse else X, size, axis)
        ones, start = np.ones(n), np.zeros(p)
        if axis == 0:
            return [RowPart(s, y[s.start : s.stop], ones[s.start : s.stop], start) for s in made]
        return [ColumnPart(s, y, ones, start[s.start : s.stop]) for s in made]

    def policy():
        inner = DynamicPriority(block, growth=0.0 if parallel else 2.0)
        return Certified(inner, Distance(penalty), tol, every=4 if parallel else 1)

    def objective(coef, intercept):
        return np.sum((y - X @ coef - intercept) ** 2) / (2 * n) + alpha * np.abs(coef).sum()

    def model(states):  # what the run returned, or shards on their way
        if isinstance(states[0], Piece):
            return assembled(states, X.shape[1])
        own = states[:1] if axis == 0 else states
        coef, mean = np.concatenate([s.coef for s in own]), np.concatenate([s.mean for s in own])
        return coef, states[0].y_mean - np.sum(mean * coef)

    def oracle(_):
        coef = naive.lasso(centred, target, n * alpha)
        return coef, y.mean() - X.mean(axis=0) @ coef

    return Case(
        program.__name__ + " parallel" * parallel + " sparse" * sparse + " pilot" * pilot,
        lambda: program(policy(), penalty, rules),
        parts,
        ("coef", "mean", "y_mean"),
        model,
        oracle,
        close=1e-6,
        alike=1e-6,
        objective=objective,
    )


def package_factors(solver):
    """The package's own factorisations, of two components and biases, as `MatrixFactorization.fit` builds
    them.
    """
    A, _, _ = ratings()
    rng, mean, sweeps = np.random.default_rng(12), float(np.nanmean(A)), 4
    layout = Layout(2, True, 8)
    settings = Settings(layout, 0.05, True, False, 0, 0.1, np.float64)
    rows, columns = np.zeros((len(A), layout.width)), np.zeros((A.shape[1], layout.width))
    columns[:, 1:4] = rng.standard_normal((len(columns), 3))
    if solver == "ccd":
        rows[:, [0, 2, 3]] = rng.standard_normal((len(rows), 3))
    rows[:, 1], columns[:, 0] = 1.0, 1.0
    matrix = sp.csr_array((A[~np.isnan(A)], np.nonzero(~np.isnan(A))), A.shape)
    counts = np.diff(matrix.tocsc().indptr).astype(np.int64)

    def weigh(count):
        return 0.05 * count

    def program():
        if solver == "als":
            stages = mf_als.sweep_stages(len(columns), 5)
            return mf_als.AlternatingLeastSquares(Descent(stages, 1, sweeps, height, 0.0), settings, 5)
        stages = mf_ccd.sweep_stages(layout.width)
        return mf_ccd.CoordinateDescent(Descent(stages, 1, sweeps, height, 0.0), settings)

    def parts(size):
        return [
            RatingPart(slab, counts, mean, rows[slab.start : slab.stop], columns)
            for slab in split(matrix, size, 0)
        ]

    def model(states):
        found = np.zeros(columns.shape)
        for state in states:
            found[state.ids] = state.columns
        return np.concatenate([state.rows for state in states])[:, :4], found[:, :4]

    return Case(
        f"MatrixFactorization {solver}",
        program,
        parts,
        ("rows", "ids", "columns"),
        model,
        lambda _: naive.factorise(A, mean, rows[:, :4], columns[:, :4], weigh, sweeps, solver == "als"),
        objective=lambda x, y: naive.factor_objective(A, mean, x, y, weigh),
    )


def package_topics():
    """Topics as the package finds them: sums over words are known, sums over topics are recounted."""
    rng = np.random.default_rng(9)
    counts = sp.csr_array(rng.poisson(0.6, (40, 25)).astype(np.int32))
    priors = lda_gibbs.Priors(6, 0.3, 0.1)

    def model(states):
        blocks = [word_blocks.Block(*block) for state in states for block in state.blocks]
        topics = np.zeros(6, int)
        for block in blocks:
            np.add.at(topics, *word_blocks.unpacked(block))
        told = [state.totals for state in states]
        return np.sort(np.concatenate([word_sums(block) for block in blocks])), topics, *told

    def word_sums(block):
        sums = np.concatenate([[0], np.cumsum(word_blocks.unpacked(block)[1])])
        return np.diff(sums[np.concatenate([[0], np.cumsum(block.lengths)])])

    def parts(size):
        return problem_of_counts(counts, size).parts(None, False)

    def oracle(size):
        """Sums are known; topics are what the ranks' own tokens say."""
        states = run(lda_gibbs.RotatingGibbs(priors, 3, 2, 0), parts(size)).shards
        topics = np.bincount(np.concatenate([state.topics for state in states]), minlength=6)
        return np.sort(counts.toarray().sum(0)), topics, *[topics] * size

    return Case(
        "RotatingGibbs",
        lambda: lda_gibbs.RotatingGibbs(priors, 3, 2, 0, checked=True),
        parts,
        ("totals", "topics"),
        model,
        oracle,
        close=0,
        alike=None,
    )


def carousel():
    """Blocks that are passed on: what each rank does to them, in the order in which it holds them."""

    def parts(size):
        return [([100.0 * rank + 1.0], [100.0 * rank + 2.0]) for rank in range(size)]

    def model(states):
        return np.array([state.queue for state in states]), states[0].total

    def oracle(size):
        queues = [list(part) for part in parts(size)]
        for _ in range(8):
            passed = [1.5 * np.array(queues[rank].pop(0)) + rank for rank in range(size)]
            for rank in range(size):
                queues[rank].append(passed[rank - 1])
        return np.array(queues), np.full(9000, 16.0 * sum(range(1, size + 1)))

    return Case("carousel", lambda: programs.Carousel(16), parts, ("total",), model, oracle, alike=None)


PROGRAMS = [
    carousel(),
    nnls(),
    lasso_toy(tall=True),
    lasso_toy(tall=False),
    fused_ccd(),
    als(),
    lda(),
    top_k_sgd(),
    package_lasso(0),
    package_lasso(0, pilot=True),
    package_lasso(1),
    package_lasso(0, sparse=True),
    package_lasso(1, sparse=True),
    package_lasso(0, parallel=True),
    package_lasso(1, parallel=True, sparse=True),
    package_factors("als"),
    package_factors("ccd"),
    package_topics(),
]


class Guarded(Program):
    """A program whose push sees its replicas read-only, and whose states after each pull are kept."""

    def __init__(self, program, keep=()):
        self.program, self.keep = program, keep
        self.init, self.schedule, self.replicas = program.init, program.schedule, program.replicas
        self.history = []  # (rank's shard, its state): a rank's own are in order

    def push(self, shard, plan):
        own = {name: getattr(shard, name) for name in self.replicas}
        for name, array in own.items():
            view = array.view()
            view.flags.writeable = False
            setattr(shard, name, view)
        try:
            return self.program.push(shard, plan)
        finally:
            for name, array in own.items():
                setattr(shard, name, array)

    def pull(self, shard, plan, received, sent):
        report = self.program.pull(shard, plan, received, sent)
        state = {name: np.copy(getattr(shard, name)) for name in self.keep}
        self.history.append((shard, SimpleNamespace(**state)))
        return report


def fit(case, n, seed=3):
    return case.model(run(Guarded(case.program()), case.parts(n), seed=seed, round_timeout=60).shards)


first_fit = cache(fit)


@cache
def oracle(case, n):
    return case.oracle(n)


def bits(model):
    return [naive.bits(array) for array in model]


def of_programs(wanted=lambda case: True):
    return pytest.mark.parametrize("program", [*filter(wanted, PROGRAMS)], ids=str)


@of_programs()
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_oracle_agrees(program, n):
    for found, wanted in zip(first_fit(program, n), oracle(program, n), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=program.close)


@of_programs(lambda case: case.alike is not None)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_one_shard_is_n_shards(program, n):
    for one, many in zip(first_fit(program, 1), first_fit(program, n), strict=True):
        np.testing.assert_allclose(one, many, rtol=0, atol=program.alike)


@of_programs()
@pytest.mark.parametrize("n", [1, 3])
def test_the_same_boundaries_give_the_same_bits(program, n):
    assert bits(fit(program, n)) == bits(first_fit(program, n))


@of_programs(lambda case: case.objective is not None)
@pytest.mark.parametrize("n", [1, 3])
def test_the_objective_never_rises(program, n):
    watched = Guarded(program.program(), program.keep)
    done = run(watched, program.parts(n), seed=3, round_timeout=60)
    ranks = [[state for shard, state in watched.history if shard is own] for own in done.shards]
    values = [program.objective(*program.model(list(states))) for states in zip(*ranks, strict=True)]
    assert len(values) == done.rounds
    assert min(values) < values[0]
    for before, after in pairwise(values):
        assert after <= before * (1 + 1e-12)


@of_programs()
@pytest.mark.parametrize("n", [1, 3])
def test_inputs_stay_as_they_were(program, n):
    parts = program.parts(n)
    before = copy.deepcopy(parts)
    run(program.program(), parts, seed=3, round_timeout=60)
    assert [*map(bits, map(arrays_of, parts))] == [*map(bits, map(arrays_of, before))]


def arrays_of(part):
    if isinstance(part, tuple):
        return [array for entry in part for array in arrays_of(entry)]
    return [part]


@of_programs()
def test_the_table_is_not_trivial(program):
    # Guards the tests above: a model of zeros would agree with many things.
    model = first_fit(program, 3)
    assert all(np.count_nonzero(array) > 0 and np.isfinite(array).all() for array in model)
    assert isinstance(program.parts(3)[0], tuple | Slab)


@pytest.mark.parametrize("n", [1, 3])
def test_push_cannot_write_replicas(n):
    class Hasty(programs.NNLS):
        def push(self, shard, plan):
            shard.x[plan[0]] += 1.0
            return super().push(shard, plan)

    A, b = regression(20, 4, 0)
    run(Hasty(4, tol=np.inf), cut(n, A, b))  # what the guard is for: alike on all ranks, so nobody complains
    with pytest.raises(ValueError, match="read-only") as caught:
        run(Guarded(Hasty(4)), cut(n, A, b))
    assert "in phase push of round 0, Guarded" in caught.value.__notes__


@pytest.mark.parametrize("n", [1, 2, 4])
def test_topics_are_counted_right_after_every_round(n):
    watched = Guarded(programs.RotatedLDA(**LDA), ("block", "in_document", "topics", "totals"))
    parts = lda_parts(n)
    done = run(watched, parts)
    ranks = [[state for shard, state in watched.history if shard is own] for own in done.shards]
    for round, states in enumerate(zip(*ranks, strict=True)):
        for state, (documents, _) in zip(states, parts, strict=True):
            assert (state.block >= 0).all()
            assert (state.in_document >= 0).all()
            np.testing.assert_array_equal(state.totals, sum(other.block.sum(axis=0) for other in states))
            if round >= n - 1:  # every token has been dealt a topic
                recount = np.zeros_like(state.in_document)
                np.add.at(recount, (documents, state.topics), 1)
                np.testing.assert_array_equal(state.in_document, recount)
                assert state.totals.sum() == sum(len(words) for _, words in parts)


@pytest.mark.parametrize("n", [1, 3])
def test_sending_everything_is_gradient_descent(n):
    X, y = regression(60, 8, 11)
    done = run(programs.TopKSGD(8, rate=1e-3, batches=1, epochs=20), cut(n, X, y))
    wanted = naive.gradient_descent(X, y, 1e-3, 20)
    np.testing.assert_allclose(done.shards[0].params, wanted, rtol=0, atol=1e-12)
    assert not any(shard.memory.any() for shard in done.shards)


def test_without_feedback_small_entries_never_arrive():
    class Forgetful(programs.TopKSGD):
        def pull(self, shard, plan, received, sent):
            super().pull(shard, plan, received, sent)
            shard.memory[:] = 0

    X, y = regression(60, 8, 11)
    X[:, 0] *= 1e-2  # its gradient is never among the largest
    options = {"k": 1, "rate": 2e-3, "batches": 1, "epochs": 60}
    with_it, without = (
        run(program(**options), [(X, y)]).shards[0].params[0] for program in (programs.TopKSGD, Forgetful)
    )
    assert with_it != 0
    assert without == 0


def digests():
    """Of every program's model and last reports; also of shards so large that BLAS uses its threads."""
    large = [
        nnls(60_000),
        lasso_toy(tall=True, rows=60_000),
        package_lasso(0, shape=(60_000, 10)),
        package_lasso(1, shape=(60_000, 10)),
    ]
    found = []
    for case in PROGRAMS + large:
        done = run(case.program(), case.parts(3))
        told = f"{bits(case.model(done.shards))} {done.reports}"
        found.append(hashlib.sha256(told.encode()).hexdigest())
    return found


@pytest.mark.timeout(120)
def test_bits_do_not_depend_on_the_threads_of_blas():
    root = Path(daskstrads.__file__).parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "NUMBA_DISABLE_JIT": "0"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__],
            env=env | dict.fromkeys(BLAS_THREADS, threads),
            stdout=subprocess.PIPE,
        )
        for threads in ("1", "2")
    ]
    printed = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    one, two = map(json.loads, printed)
    assert len(one) > len(PROGRAMS)
    assert one == two


BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

if __name__ == "__main__":
    print(json.dumps(digests()))
