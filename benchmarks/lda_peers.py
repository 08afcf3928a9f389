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


class Model(NamedTuple):
    """Number of topics, and the symmetric priors of documents over topics and of topics over words."""

    n_topics: int
    alpha: float
    beta: float

    @classmethod
    def usual(cls, n_topics: int) -> Model:
        """alpha = 50 / K, beta = 0.01."""
        return cls(n_topics, 50 / n_topics, 0.01)


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


def tomotopy(counts: sp.csr_array, model: Model, marks: Iterable[int], seed: int = 1) -> Sampled:
    """tomotopy's collapsed Gibbs; handing it the documents and asking for the likelihood are not timed.

    The first sweep's seconds contain its random start. The counts are those after the last mark.
    """
    import tomotopy as tp

    k, alpha, beta = model
    sampler = tp.LDAModel(tw=tp.TermWeight.ONE, k=k, alpha=alpha, eta=beta, seed=seed)
    sampler.optim_interval = sampler.burn_in = 0
    names = np.array([str(j) for j in range(counts.shape[1])], object)
    offsets, words = tokens_of(counts)
    for start, end in pairwise(offsets):
        if end > start:  # it takes no empty document
            sampler.add_doc(names[words[start:end]].tolist())
    passed, done, seconds = [], 0, 0.0
    for mark in marks:
        began = time.perf_counter()
        sampler.train(mark - done, workers=1, show_progress=False)
        seconds, done = seconds + time.perf_counter() - began, mark
        passed.append(Mark(mark, seconds, sampler.ll_per_word))
    column = np.array([int(name) for name in sampler.used_vocabs])
    columns = np.concatenate([column[document.words] for document in sampler.docs])
    topics = np.concatenate([document.topics for document in sampler.docs]).astype(np.int64)
    return Sampled(passed, *counts_of(offsets, columns, topics, (k, counts.shape[1])))


def gibbs(counts: sp.csr_array, model: Model, sweeps: int = 300) -> Fit:
    """tomotopy's topics after many sweeps, of one sample."""
    sampled = tomotopy(counts, model, [sweeps])
    return Fit(sampled.marks[-1].seconds, probabilities(sampled.topic_word, model.beta))


def sklearn(counts: sp.csr_array, model: Model) -> Fit:
    """scikit-learn's batch variational Bayes; it takes no document-topic prior above 1."""
    from sklearn.decomposition import LatentDirichletAllocation

    fitted = LatentDirichletAllocation(
        model.n_topics, doc_topic_prior=min(model.alpha, 1.0), topic_word_prior=model.beta,
        learning_method="batch", max_iter=30, random_state=0, n_jobs=1,
    )  # fmt: skip
    matrix = sp.csr_matrix(counts)
    with threadpool_limits(1):
        began = time.perf_counter()
        fitted.fit(matrix)
        seconds = time.perf_counter() - began
    return Fit(seconds, probabilities(fitted.components_, 0.0))


def gensim(counts: sp.csr_array, model: Model) -> Fit:
    """gensim's variational Bayes: twenty updates with all documents in one chunk.

    No setting is best everywhere: at alpha = 0.1 and beta = 0.05, perplexity on news20 at K = 20 is
    1 390 with one chunk and 1 661 with six (60 updates); on ap at K = 100, 2 805 with one and 2 700 with
    two (20 updates).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports
        from gensim.matutils import Sparse2Corpus
        from gensim.models import LdaModel

    corpus = Sparse2Corpus(sp.csr_matrix(counts), documents_columns=False)
    with threadpool_limits(1):
        began = time.perf_counter()
        fitted = LdaModel(
            corpus, num_topics=model.n_topics, id2word={j: str(j) for j in range(counts.shape[1])},
            alpha=np.full(model.n_topics, model.alpha), eta=model.beta, chunksize=counts.shape[0],
            passes=20, iterations=50, random_state=0, eval_every=None,
        )  # fmt: skip
        seconds = time.perf_counter() - began
    return Fit(seconds, probabilities(fitted.get_topics(), 0.0))


PERPLEXED: dict[str, Callable[[sp.csr_array, Model], Fit]] = {
    "sklearn": sklearn,
    "gensim": gensim,
    "tomotopy": gibbs,
}
"""Peers whose held-out perplexity is compared."""


def installed(name: str) -> bool:
    """Whether the peer's package is here."""
    return importlib.util.find_spec(name) is not None
