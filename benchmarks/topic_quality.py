"""How good topics are, from counts alone, in plain numpy: it shares no code with any sampler.

joint: the collapsed log p(w, z) per token. completion: perplexity of the second halves of held-out documents,
their mixtures fitted to the first halves with the topics fixed. unigram: perplexity without topics, which any
model has to be below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from corpora import Held
from scipy.special import gammaln


class Joint(NamedTuple):
    """log p(w | z) and log p(z), each over the number of tokens."""

    words: float
    documents: float

    @property
    def total(self) -> float:
        """log p(w, z) per token."""
        return self.words + self.documents


def joint(topic_word, document_topic, alpha: float, beta: float) -> Joint:
    """Of counts topics x words and documents x topics, dense or sparse; symmetric priors."""
    tokens = int(topic_word.sum(dtype=np.int64))
    words = _dirichlet(topic_word, beta) / tokens
    return Joint(words, _dirichlet(document_topic, alpha) / tokens)


def joint_of(offsets, words, topics, shape: tuple[int, int], alpha: float, beta: float) -> Joint:
    """Of one topic a token; shape: topics x words. Document d has the tokens offsets[d] : offsets[d + 1]."""
    topic_word, document_topic = counts_of(offsets, words, topics, shape)
    return joint(topic_word, document_topic, alpha, beta)


def counts_of(offsets, words, topics, shape: tuple[int, int]) -> tuple[sp.csr_array, sp.csr_array]:
    """Counts topics x words and documents x topics of one topic a token."""
    one = np.ones(len(words), np.int32)
    n_documents = len(offsets) - 1
    document = np.repeat(np.arange(n_documents, dtype=np.int32), np.diff(offsets))
    return (
        sp.csr_array((one, (topics, words)), shape=shape),
        sp.csr_array((one, (document, topics)), shape=(n_documents, shape[0])),
    )


def _dirichlet(counts, prior: float) -> float:
    """Sum over the rows of log B(counts + prior) - log B(prior), for a symmetric prior."""
    width = counts.shape[1]
    sums = np.asarray(counts.sum(axis=1, dtype=np.int64)).ravel()
    values = counts.data if sp.issparse(counts) else np.asarray(counts).ravel()
    found, times = np.unique(values, return_counts=True)  # few: gammaln costs more than a sort
    entries = times @ (gammaln(found + prior) - gammaln(prior))
    return float(entries - (gammaln(sums + width * prior) - gammaln(width * prior)).sum())


def probabilities(topic_word, beta: float) -> np.ndarray:
    """p(word | topic) of counts topics x words, as words x topics: what `completion` takes."""
    dense = topic_word.toarray() if sp.issparse(topic_word) else np.asarray(topic_word)
    phi = dense.T.astype(np.float32, order="C") + np.float32(beta)
    return phi / phi.sum(axis=0, dtype=np.float64).astype(np.float32)


def completion(held: Held, phi: np.ndarray, alpha: float, steps: int = 20) -> float:
    """Perplexity of the second halves; phi: words x topics, its columns sum to 1.

    Mixtures start uniform and get `steps` of EM for the first half under fixed phi:
    theta_k = (alpha + sum_i p(k | w_i)) / (n + K alpha).
    """
    n_topics = phi.shape[1]
    log_likelihood, tokens = 0.0, 0
    for first, second in held.halves():
        seen, times = np.unique(first, return_counts=True)
        rows = phi[seen].astype(np.float64)
        theta = np.full(n_topics, 1 / n_topics)
        for _ in range(steps):
            weights = times / np.maximum(rows @ theta, 1e-30)
            theta = (alpha + theta * (weights @ rows)) / (len(first) + n_topics * alpha)
        seen, times = np.unique(second, return_counts=True)
        log_likelihood += times @ np.log(np.maximum(phi[seen].astype(np.float64) @ theta, 1e-30))
        tokens += len(second)
    return float(np.exp(-log_likelihood / tokens))


def unigram(counts: sp.csr_array) -> float:
    """Perplexity of all tokens under their own frequencies: no model without topics has less."""
    once = np.asarray(counts.sum(axis=0, dtype=np.int64)).ravel()
    part = once[once > 0] / once.sum()
    return float(np.exp(-part @ np.log(part)))


def unigram_held(held: Held, train: sp.csr_array, beta: float) -> float:
    """Perplexity of the second halves under the frequencies of the training documents plus `beta`."""
    once = np.asarray(train.sum(axis=0, dtype=np.int64)).reshape(1, -1)
    return completion(held, probabilities(once, beta), 1.0, steps=0)
