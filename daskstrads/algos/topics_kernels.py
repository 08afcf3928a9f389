"""What a topic model says of documents that it has not seen, and of its own words."""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(inline="always")
def _rates(expected, inverse, alpha, out):
    """(alpha + n_dk) / (n_k + V beta), and its sum."""
    total = 0.0
    for k in range(len(expected)):
        out[k] = (np.float32(alpha) + expected[k]) * inverse[k]
        total += out[k]
    return total


@njit(inline="always")
def _mass(topics, counts, first, stop, rates):
    """Sum over a word's topics of n_wk times its rate."""
    total = np.float32(0)
    for j in range(np.uint64(first), np.uint64(stop)):
        total += np.float32(counts[j]) * rates[np.uint64(topics[j])]
    return total


@njit(nogil=True, cache=True, fastmath=True)
def fold(
    offsets,
    words,
    counts,
    halves,
    word_offsets,
    word_topics,
    word_counts,
    inverse,
    alpha,
    beta,
    tol,
    most,
    out,
    scores,
):
    """Topics of documents, the model held: expectation maximisation of theta with phi fixed, and Dirichlet
    alpha.

    A document's expected counts are n_k = sum_w c_w theta_k phi_kw / sum_l theta_l phi_lw, theta_k
    proportional to alpha + n_k, until they change by at most `tol` of its tokens, or `most` times. Exact
    for all topics,
    but a word costs only as much as it has topics: the rest of phi, beta / (n_k + V beta), is the same for
        all words.

    Args:
        offsets, words, counts: documents as CSR.
        halves: None of a document's tokens are set aside (0); or every other one, the first (1) or the
            second (2), and scores gets sum c log p(w) of those.
        word_offsets, word_topics, word_counts: the words as CSR, all their topics. inverse: (topics,)
            1 / (n_k + V beta), float32.
        out: (documents, topics) theta; (0, topics): not wanted. scores: (documents,).
    """
    n_topics = len(inverse)
    expected = np.empty(n_topics, np.float32)
    following = np.empty(n_topics, np.float32)
    rates = np.empty(n_topics, np.float32)
    for document in range(len(offsets) - 1):
        first, stop = offsets[document], offsets[document + 1]
        length = 0
        seen = 0
        for i in range(first, stop):
            length += _part(counts[i], seen, halves)
            seen += counts[i]
        expected[:] = np.float32(length / n_topics)
        for _ in range(most if length else 0):
            rest = np.float32(beta * _rates(expected, inverse, alpha, rates))
            following[:] = 0
            spread = np.float32(0)
            seen = 0
            for i in range(first, stop):
                part = _part(counts[i], seen, halves)
                seen += counts[i]
                if part == 0:
                    continue
                begin, end = word_offsets[words[i]], word_offsets[words[i] + 1]
                share = np.float32(part) / (_mass(word_topics, word_counts, begin, end, rates) + rest)
                spread += share
                for j in range(np.uint64(begin), np.uint64(end)):
                    k = np.uint64(word_topics[j])
                    following[k] += share * np.float32(word_counts[j]) * rates[k]
            change = np.float32(0)
            spread *= np.float32(beta)
            for k in range(n_topics):
                new = following[k] + spread * rates[k]
                change += abs(new - expected[k])
                expected[k] = new
            if change <= tol * length:
                break
        total = alpha * n_topics + length
        if len(out):
            for k in range(n_topics):
                out[document, k] = (alpha + expected[k]) / total
        if halves:
            rest = np.float32(beta * _rates(expected, inverse, alpha, rates))
            score = 0.0
            seen = 0
            for i in range(first, stop):
                part = counts[i] - _part(counts[i], seen, halves)
                seen += counts[i]
                if part:
                    begin, end = word_offsets[words[i]], word_offsets[words[i] + 1]
                    mass = _mass(word_topics, word_counts, begin, end, rates) + rest
                    score += part * math.log(mass / total)
            scores[document] = score


@njit(inline="always")
def _part(count, seen, halves):
    """How many of a word's tokens are looked at, `seen` tokens into the document."""
    if halves == 0:
        return count
    # Every other token, the first or the second of each two.
    return (count + (1 if (seen + halves) % 2 else 0)) // 2


@njit(nogil=True, cache=True)
def strongest_words(word_offsets, word_topics, word_counts, words, counts):
    """Every topic's most frequent words (topics, n), -1 where it has fewer, and their counts, 0 there.

    Of words with as many tokens, the first comes first.
    """
    n = words.shape[1]
    words[:] = -1
    counts[:] = 0
    for word in range(len(word_offsets) - 1):
        for j in range(word_offsets[word], word_offsets[word + 1]):
            k, count = word_topics[j], word_counts[j]
            place = n
            while place > 0 and counts[k, place - 1] < count:
                place -= 1
            if place < n:
                for i in range(n - 1, place, -1):
                    words[k, i], counts[k, i] = words[k, i - 1], counts[k, i - 1]
                words[k, place], counts[k, place] = word, count
