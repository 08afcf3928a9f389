"""Topic models against tomotopy, scikit-learn and gensim, on a real corpus and a large generated one.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/lda.py [peers scaling cluster transform
    heldout] ... python benchmarks/lda.py large    # 79 M tokens, 21.8 M words, 10 000 topics: some minutes

peers: one thread each, in turns in one run: time of a whole `fit` to the likelihood that tomotopy has after
20 sweeps (its reading of documents is not timed, ours is), and tokens a second of late sweeps; likelihoods
are recomputed from the counts for both. scaling: two ranks over one, the likelihood both reach, s-error and
bytes.
cluster: two worker processes over two threads, with their bits. transform: tokens a second against a sweep
of the fit. heldout: perplexity of document completion, ap, reuters395 and news20. large: five sweeps on two
ranks.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from corpora import hold_out, load_corpus
from lda_peers import PERPLEXED, Model, installed, tomotopy
from linear_claims import line
from rss import Watch
from timing import cores, paired, ratio
from topic_quality import completion, probabilities, unigram_held

from daskstrads import LatentDirichletAllocation

SWEEPS = 20  # of tomotopy


class Effort(NamedTuple):
    """How much of everything a run does."""

    repeats: int
    scale: int
    cache: Path | None


def model(priors: Model, sweeps: int, **options) -> LatentDirichletAllocation:
    options = {"n_shards": 1, "random_state": 0} | options
    return LatentDirichletAllocation(
        priors.n_topics,
        doc_topic_prior=priors.alpha,
        topic_word_prior=priors.beta,
        max_iter=sweeps,
        **options,
    )


def rates(fitted: LatentDirichletAllocation, tokens: int) -> float:
    """Tokens a second of the later half of the sweeps, millions."""
    seconds = np.diff(fitted.history_["seconds"])
    return tokens / float(np.median(seconds[len(seconds) // 2 :])) / 1e6


def peers(effort: Effort) -> None:
    """Against tomotopy."""
    corpus = load_corpus("kernel", effort.scale, effort.cache)
    counts, tokens = corpus.counts, corpus.tokens
    documents, words = counts.shape
    print(f"\npeers    kernel: {documents} documents, {words} words, {tokens} tokens, alpha 50/K")
    if not installed("tomotopy"):
        print("         tomotopy is NOT INSTALLED: left out")
        return
    for n_topics, sweeps, target in ((1000, SWEEPS, 0.3), (100, SWEEPS, 1.0), (10_000, 2, None)):
        priors = Model.usual(n_topics)
        first = tomotopy(counts, priors, [1, sweeps])
        reached = first.marks[-1].joint
        history = model(priors, 2 * SWEEPS).fit(counts).log_likelihood_
        needed = next((i + 1 for i, value in enumerate(history) if value >= reached), None)
        if target is None or needed is None:
            needed = max(sweeps, 6)
        theirs, ours = [], []
        for _ in range(effort.repeats):
            sampled = tomotopy(counts, priors, [1, sweeps])
            theirs.append((sampled.marks[0].seconds, sampled.marks[-1].seconds))
            began = time.perf_counter()
            fitted = model(priors, needed).fit(counts)
            ours.append((time.perf_counter() - began, rates(fitted, tokens)))
        late = [tokens * (sweeps - 1) / (end - one) / 1e6 for one, end in theirs]
        print(
            f"         K = {n_topics}: tomotopy {sweeps} sweeps "
            f"{statistics.median(end for _, end in theirs):.2f} s to {reached:.4f}, "
            f"{statistics.median(late):.3g} M tokens/s; daskstrads {needed} sweeps "
            f"{statistics.median(wall for wall, _ in ours):.2f} s to {fitted.log_likelihood_[-1]:.4f}, "
            f"{statistics.median(rate for _, rate in ours):.3g} M tokens/s"
        )
        if target is None:
            ratios = sorted(rate / other for (_, rate), other in zip(ours, late, strict=True))
            told = f"K = {n_topics}: tokens a second over tomotopy's"
            line(f"{told} [{ratios[0]:.3g}..{ratios[-1]:.3g}]", 30.0, statistics.median(ratios), least=True)
        else:
            ratios = sorted(wall / end for (wall, _), (_, end) in zip(ours, theirs, strict=True))
            told = f"K = {n_topics}: time to tomotopy's likelihood after {sweeps} sweeps"
            line(f"{told} [{ratios[0]:.3g}..{ratios[-1]:.3g}]", target, statistics.median(ratios))


def scaling(effort: Effort) -> None:
    """Two ranks over one, and what rotation costs."""
    corpus = load_corpus("kernel", effort.scale, effort.cache)
    tokens = corpus.tokens
    priors = Model.usual(1000)
    print("\nscaling")
    seeds = {1: itertools.count(), 2: itertools.count()}  # others each time: ends differ by them as well

    def fit(size: int) -> LatentDirichletAllocation:
        return model(priors, 40, n_shards=size, random_state=next(seeds[size])).fit(corpus.counts)

    # Likelihoods differ by 0.005 from seed to seed.
    samples = paired({"1": lambda: fit(1), "2": lambda: fit(2)}, 4 * effort.repeats, keep=lambda each: each)
    ups = sorted(
        rates(two.kept, tokens) / rates(one.kept, tokens)
        for one, two in zip(samples["1"], samples["2"], strict=True)
    )
    two = samples["2"][0].kept
    told = f"K = 1000: tokens a second of 2 ranks over 1 [{ups[0]:.3g}..{ups[-1]:.3g}]"
    line(told, 1.6, statistics.median(ups), least=True)
    print(f"         whole fits of 40 sweeps: {ratio(samples['1'], samples['2'])} times as fast")
    ends = {size: [sample.kept.log_likelihood_[-1] for sample in kept] for size, kept in samples.items()}
    for size, values in ends.items():
        told = ", ".join(f"{value:.4f}" for value in values)
        print(f"         {size} ranks, after 40 sweeps: mean {statistics.mean(values):.4f} of {told}")
    apart = abs(statistics.mean(ends["1"]) - statistics.mean(ends["2"]))
    line("K = 1000: mean likelihoods of 1 and 2 ranks after 40 sweeps, apart", 0.003, apart)
    errors = np.array(two.s_error_)
    print(f"         s-error: first sweep {errors[:32].mean():.4f}, last {errors[-32:].mean():.4f}")
    line("K = 1000: s-error of a round, mean", 0.004, float(errors.mean()))
    allowed = 6 * two.topic_word_.nnz + 4 * corpus.counts.shape[1]
    totals = 8 * 1000 * len(errors) // 40  # the topics' totals, not part of the blocks
    sent = float(two.history_["bytes"][-1])
    print(
        f"         bytes a rank and sweep at the end: {sent:.4g} of blocks ({totals} of totals not counted)"
    )
    line("K = 1000: bytes rotated over 6 nonzeros + 4 rows", 1.0, sent / allowed)


def cluster(effort: Effort) -> None:
    """Two single-thread workers over two threads of this process."""
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    corpus = load_corpus("kernel", effort.scale, effort.cache)
    counts, priors, sweeps = corpus.counts, Model.usual(1000), 40
    print("\ncluster")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as here,
        Client(here, set_as_default=False) as client,
    ):
        half = counts.shape[0] // 2
        futures = client.scatter([counts[:half], counts[half:]])
        X = client.persist(
            da.concatenate(
                [
                    da.from_delayed(
                        future, (rows, counts.shape[1]), dtype=counts.dtype, meta=sp.csr_array((0, 0))
                    )
                    for future, rows in zip(futures, (half, counts.shape[0] - half), strict=True)
                ]
            )
        )
        with client.as_current():
            wait(X)

        def there() -> LatentDirichletAllocation:
            with client.as_current():
                return model(priors, sweeps, n_shards=2).fit(X)

        there()
        calls = {
            "workers": there,
            "threads": lambda: model(priors, sweeps, n_shards=2).fit(counts),
            "one": lambda: model(priors, sweeps).fit(counts),
        }
        samples = paired(
            calls,
            effort.repeats,
            keep=lambda each: (each.topic_word_, each.log_likelihood_, rates(each, corpus.tokens)),
        )
    (a, told, _), (b, wanted, _) = samples["workers"][0].kept, samples["threads"][0].kept
    same = (a != b).nnz == 0 and told == wanted
    ups = sorted(
        two.kept[2] / one.kept[2] for one, two in zip(samples["one"], samples["workers"], strict=True)
    )
    over = ratio(samples["workers"], samples["threads"])
    print(f"         K = 1000, {sweeps} sweeps: {over}, {'same' if same else 'OTHER'} bits")
    line("K = 1000: 2 workers over 2 threads", 1.3, over.median)
    told = f"K = 1000: tokens a second of 2 workers over 1 rank [{ups[0]:.3g}..{ups[-1]:.3g}]"
    line(told, 1.6, statistics.median(ups), least=True)
    line("the same bits", 1.0, float(same), least=True)


def transform(effort: Effort) -> None:
    """Tokens a second of `transform` and of a sweep."""
    corpus = load_corpus("kernel", effort.scale, effort.cache)
    print("\ntransform")
    for n_topics in (100, 1000):
        fitted = model(Model.usual(n_topics), 40, n_shards=2).fit(corpus.counts)
        fitted.transform(corpus.counts[:2])
        sweep = rates(fitted, corpus.tokens)
        shares = []
        for _ in range(effort.repeats):
            began = time.perf_counter()
            fitted.transform(corpus.counts)
            shares.append(corpus.tokens / (time.perf_counter() - began) / 1e6)
        print(
            f"         K = {n_topics}: {statistics.median(shares):.3g} M tokens/s, a fit's sweep {sweep:.3g}"
        )
        line(
            f"K = {n_topics}: transform over a sweep of the fit",
            0.25,
            statistics.median(shares) / sweep,
            least=True,
        )


def heldout(effort: Effort) -> None:
    """Document completion on real corpora, the same priors for all."""
    alpha, beta = 0.1, 0.05
    print(f"\nheldout  perplexity of the second half of held-out documents; alpha {alpha}, beta {beta}")
    for name in ("ap", "reuters395", "news20"):
        counts = load_corpus(name, effort.scale, effort.cache).counts
        for n_topics in (20, 100):
            priors = Model(n_topics, alpha, beta)
            found: dict[str, list[float]] = {}
            # The priors were chosen on the split of seed 0. A small corpus has few held-out documents.
            for seed in (1, 2, 3) if counts.shape[0] < 1000 and effort.repeats > 1 else (1,):
                train, held = hold_out(counts, seed)
                ours = probabilities(model(priors, 300).fit(train).topic_word_, beta)
                found.setdefault("daskstrads", []).append(completion(held, ours, alpha))
                for peer, fit in PERPLEXED.items():
                    if installed(peer):
                        found.setdefault(peer, []).append(completion(held, fit(train, priors).phi, alpha))
                found.setdefault("unigram", []).append(unigram_held(held, train, beta))
            means = {who: statistics.mean(values) for who, values in found.items()}
            told = ", ".join(f"{who} {value:.0f}" for who, value in means.items())
            print(f"         {name}, K = {n_topics}: {told}")
            best = min(value for who, value in means.items() if who not in ("daskstrads", "tomotopy"))
            line(f"{name}, K = {n_topics}: perplexity over the others' best", 1.0, means["daskstrads"] / best)


def large(effort: Effort) -> None:
    """21.8 M words x 10 000 topics: 218 G counts if they were dense."""
    corpus = load_corpus("phrase79m", effort.scale, effort.cache)
    counts, tokens = corpus.counts, corpus.tokens
    print(
        f"large    {counts.shape[0]} documents, {counts.shape[1]} words, {tokens} tokens; "
        "10 000 topics, 2 ranks"
    )
    fitted = model(Model.usual(10_000), 5, n_shards=2, verbose=True)
    print(f"         plan: {fitted.memory_plan(counts.shape, tokens, 2)}")
    model(Model.usual(10_000), 1, n_shards=2).fit(counts[:100, :1000])  # kernels
    watch = Watch(0.2)
    held = watch.base
    began = time.perf_counter()
    fitted.fit(counts)
    wall, growth = time.perf_counter() - began, watch.stop()
    history = fitted.history_
    sweeps = np.diff(history["seconds"], prepend=0.0)
    print(
        f"         {wall:.0f} s; sweeps end after {', '.join(f'{each:.0f}' for each in history['seconds'])} s"
    )
    print(f"         likelihood a token {', '.join(f'{each:.4f}' for each in history['log_likelihood'])}")
    print(f"         resident: {held / 2**30:.2f} GiB before, at most {(held + growth) / 2**30:.2f} GiB")
    print(
        f"         bytes a rank and sweep {history['bytes'][-1] / 1e9:.3g} GB; "
        f"s-error {np.mean(fitted.s_error_):.4f}"
    )
    line("large: peak resident memory, GiB", 8.0, (held + growth) / 2**30)
    line("large: seconds a sweep, median", 40.0, float(np.median(sweeps[1:])))
    line(
        "large: the likelihood rises every sweep",
        1.0,
        float((np.diff(history["log_likelihood"]) > 0).all()),
        least=True,
    )


SECTIONS = {
    "peers": peers, "scaling": scaling, "cluster": cluster, "transform": transform, "heldout": heldout,
    "large": large,
}  # fmt: skip


def main() -> None:
    """Run the sections asked for; all but `large` without any."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("section", nargs="*", help=f"of {', '.join(SECTIONS)}; default all but large")
    parser.add_argument("--repeats", type=int, default=3, help="pairs a figure")
    parser.add_argument("--quick", action="store_true", help="smoke run: a small part of the documents")
    parser.add_argument("--cache", type=Path, help="folder for generated data")
    given = parser.parse_args()
    wanted = given.section or [name for name in SECTIONS if name != "large"]
    unknown = set(wanted) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    effort = Effort(1 if given.quick else given.repeats, 100 if given.quick else 1, given.cache)
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if variable in os.environ:
            print(f"warning: {variable} is set; see the usage line in --help")
    tiny = load_corpus("kernel", 100, effort.cache).counts
    model(Model.usual(100), 1).fit(tiny).transform(tiny)  # kernels
    for name in wanted:
        print(f"(two busy threads get {cores(2):.2f} cores)")
        SECTIONS[name](effort)


if __name__ == "__main__":
    main()
