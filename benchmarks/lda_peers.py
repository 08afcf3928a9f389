"""Other topic models of the same counts, one thread each: tomotopy, scikit-learn and gensim.

tomotopy samples as daskstrads does (collapsed Gibbs, fixed symmetric priors) and tells the same likelihood.
The other two are variational: only held-out perplexity compares. Each gets its priors as given.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from corpora import tokens_of
from threadpoolctl import threadpool_limits
from topic_quality import counts_of, probabilities

BETA = 0.01


def alpha_of(n_topics: int) -> float:
    """The document-topic prior of every comparison: 50 / K."""
    return 50 / n_topics


class Mark(NamedTuple):
    """Where a sampler was after so many sweeps: seconds of sampling, log p(w, z) per token."""

    sweeps: int
    seconds: float
    joint: float


class Sampled(NamedTuple):
    """Marks on the way, and counts topics x words and documents x topics at the end."""

    marks: list[Mark]
    topic_word: sp.csr_array
    document_topic: sp.csr_array


class Fit(NamedTuple):
    """Seconds of a fit, and p(word | topic) as words x topics."""

    seconds: float
    phi: np.ndarray


def tomotopy(counts: sp.csr_array, n_topics: int, marks: Iterable[int], seed: int = 1) -> Sampled:
    """tomotopy's collapsed Gibbs; handing it the documents and asking for the likelihood are not timed.

    The first sweep's seconds contain its random start.
    """
    import tomotopy as tp

    model = tp.LDAModel(tw=tp.TermWeight.ONE, k=n_topics, alpha=alpha_of(n_topics), eta=BETA, seed=seed)
    model.optim_interval = model.burn_in = 0
    names = np.array([str(j) for j in range(counts.shape[1])], object)
    offsets, words = tokens_of(counts)
    for start, end in pairwise(offsets):
        if end > start:  # it takes no empty document
            model.add_doc(names[words[start:end]].tolist())
    passed, done, seconds = [], 0, 0.0
    for mark in marks:
        began = time.perf_counter()
        model.train(mark - done, workers=1, show_progress=False)
        seconds, done = seconds + time.perf_counter() - began, mark
        passed.append(Mark(mark, seconds, model.ll_per_word))
    column = np.array([int(name) for name in model.used_vocabs])
    columns = np.concatenate([column[document.words] for document in model.docs])
    topics = np.concatenate([document.topics for document in model.docs])
    shape = n_topics, counts.shape[1]
    return Sampled(passed, *counts_of(offsets, columns, topics.astype(np.int64), shape))


def gibbs(counts: sp.csr_array, n_topics: int, alpha: float, beta: float) -> Fit:
    """tomotopy after 200 sweeps, one sample."""
    assert (alpha, beta) == (alpha_of(n_topics), BETA)
    sampled = tomotopy(counts, n_topics, [200])
    return Fit(sampled.marks[-1].seconds, probabilities(sampled.topic_word, BETA))


def sklearn(counts: sp.csr_array, n_topics: int, alpha: float, beta: float) -> Fit:
    """scikit-learn's batch variational Bayes."""
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(
        n_topics, doc_topic_prior=alpha, topic_word_prior=beta, learning_method="batch", max_iter=30,
        random_state=0, n_jobs=1,
    )  # fmt: skip
    matrix = sp.csr_matrix(counts)
    with threadpool_limits(1):
        began = time.perf_counter()
        model.fit(matrix)
        seconds = time.perf_counter() - began
    return Fit(seconds, probabilities(model.components_, 0.0))


def gensim(counts: sp.csr_array, n_topics: int, alpha: float, beta: float) -> Fit:
    """gensim's online variational Bayes, ten passes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports
        from gensim.matutils import Sparse2Corpus
        from gensim.models import LdaModel

    with threadpool_limits(1):
        began = time.perf_counter()
        model = LdaModel(
            Sparse2Corpus(sp.csr_matrix(counts), documents_columns=False), num_topics=n_topics,
            id2word={j: str(j) for j in range(counts.shape[1])}, alpha=np.full(n_topics, alpha), eta=beta,
            passes=10, chunksize=2_000, iterations=50, random_state=0, eval_every=None,
        )  # fmt: skip
        seconds = time.perf_counter() - began
    return Fit(seconds, probabilities(model.get_topics(), 0.0))


PERPLEXED: dict[str, Callable[[sp.csr_array, int, float, float], Fit]] = {
    "sklearn": sklearn,
    "gensim": gensim,
}
"""Peers whose held-out perplexity is compared."""


def installed(name: str) -> bool:
    """Whether the peer's package is here."""
    return importlib.util.find_spec(name) is not None
