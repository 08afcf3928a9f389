"""What benchmarks judge topics by, against sums taken token by token; and what corpora are made of."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

ALPHA, BETA = 0.3, 0.05


@pytest.fixture
def corpora(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import corpora

    return corpora


@pytest.fixture
def quality(corpora):
    import topic_quality

    return topic_quality


def token_by_token(offsets, words, topics, shape):
    """log p(w | z) and log p(z): each token given those before it (Polya's urn)."""
    by_word, by_document = np.zeros(shape), np.zeros((len(offsets) - 1, shape[0]))
    found = np.zeros(2)
    for d in range(len(offsets) - 1):
        for i in range(offsets[d], offsets[d + 1]):
            k, w = topics[i], words[i]
            found[0] += np.log((by_word[k, w] + BETA) / (by_word[k].sum() + shape[1] * BETA))
            found[1] += np.log((by_document[d, k] + ALPHA) / (by_document[d].sum() + shape[0] * ALPHA))
            by_word[k, w] += 1
            by_document[d, k] += 1
    return found / len(words)


@pytest.mark.parametrize("shape", [(1, 1), (4, 6), (50, 3)])  # topics x words
def test_joint_is_the_product_of_the_predictions(quality, shape):
    rng = np.random.default_rng(1)
    offsets = np.array([0, 0, 7, 8, 30])  # one document is empty
    words, topics = rng.integers(0, shape[1], 30), rng.integers(0, shape[0], 30)
    sparse = quality.joint_of(offsets, words, topics, shape, ALPHA, BETA)
    np.testing.assert_allclose(sparse, token_by_token(offsets, words, topics, shape), rtol=1e-12)
    counts = quality.counts_of(offsets, words, topics, shape)
    dense = quality.joint(*(each.toarray() for each in counts), ALPHA, BETA)
    np.testing.assert_allclose(dense, sparse, rtol=1e-12)
    assert sparse.total == sparse.words + sparse.documents


def test_completion_of_one_topic_is_that_of_its_words(corpora, quality):
    held = corpora.Held(np.array([0, 4, 5, 5, 8]), np.array([0, 1, 2, 2, 0, 1, 0, 2]))
    phi = np.array([[0.5], [0.3], [0.2]], np.float32)
    expected = np.exp(-np.log([0.2, 0.2, 0.5, 0.2]).mean())  # a document of one token has no halves
    assert quality.completion(held, phi, 0.1) == pytest.approx(expected, rel=1e-6)


def test_completion_is_em_with_fixed_topics(corpora, quality):
    held = corpora.Held(np.array([0, 6]), np.array([0, 1, 0, 0, 0, 2]))
    phi = np.array([[0.8, 0.1], [0.1, 0.1], [0.1, 0.8]], np.float32)
    theta = np.full(2, 0.5)
    for _ in range(20):
        each = [theta * phi[w] / (theta @ phi[w]) for w in (0, 1, 0)]
        theta = (0.1 + np.sum(each, axis=0)) / (3 + 2 * 0.1)
    expected = np.exp(-np.mean([np.log(phi[w] @ theta) for w in (0, 0, 2)]))
    assert quality.completion(held, phi, 0.1) == pytest.approx(expected, rel=1e-6)


def test_probabilities_sum_to_one(quality):
    topic_word = sp.csr_array(np.array([[3, 0, 1], [0, 0, 0]], np.int32))
    phi = quality.probabilities(topic_word, 0.5)
    np.testing.assert_allclose(phi.T, [[3.5 / 5.5, 0.5 / 5.5, 1.5 / 5.5], [1 / 3] * 3], rtol=1e-6)


def test_unigram_is_the_exponential_of_the_entropy(quality):
    assert quality.unigram(sp.csr_array([[2, 0, 1], [1, 0, 0]])) == pytest.approx(4 / 3**0.75)


def test_held_out_tokens_and_the_rest_are_the_corpus(corpora):
    rng = np.random.default_rng(2)
    counts = sp.csr_array(rng.poisson(0.5, (41, 12)).astype(np.int32))
    train, held = corpora.hold_out(counts, seed=3)
    assert train.shape == (37, 12)
    assert len(held.offsets) == 5
    both = np.asarray(train.sum(axis=0)) + np.bincount(held.words, minlength=12)
    np.testing.assert_array_equal(both, counts.sum(axis=0))
    again = corpora.hold_out(counts, seed=3)[1]
    np.testing.assert_array_equal(held.words, again.words)
    assert corpora.hold_out(counts, most=2)[0].shape == (39, 12)


def test_tokens_and_counts_are_the_same_corpus(corpora):
    dense = np.random.default_rng(4).poisson(0.7, (9, 5)).astype(np.int8)
    dense[3] = 0
    counts = sp.csr_array(dense)
    offsets, words = corpora.tokens_of(counts)
    shuffled = words.copy()
    for start, end in pairwise(offsets):
        np.random.default_rng(5).shuffle(shuffled[start:end])
    again = corpora._counted(offsets, shuffled, 5)
    assert again.dtype == np.int8
    assert again.has_sorted_indices
    np.testing.assert_array_equal(again.toarray(), dense)


def test_every_phrase_occurs_and_keeps_its_topic(corpora):
    rng = np.random.default_rng(6)
    words = (rng.zipf(1.5, 3_000) % 40 * 4 + rng.integers(0, 4, 3_000)).astype(np.int32)
    before = words.copy()
    assert len(np.unique(words)) < 160
    corpora._use_all(words, 160, 4, rng)
    assert len(np.unique(words)) == 160
    np.testing.assert_array_equal(words % 4, before % 4)
