"""A corpus in the order of its words, what its words and documents say of a model, and new documents'
topics.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .lda_kernels import DENSE


@njit(nogil=True, cache=True)
def count_words(counts, words, out):
    """Add the tokens of every word to out (words,)."""
    for i in range(len(words)):
        out[words[i]] += counts[i]


@njit(nogil=True, cache=True)
def spread(frequencies, loads, out):
    """Put every word, the most frequent first, into the block with the fewest tokens: out (words,).

    `loads`: (blocks,) zeros. A word weighs one token more than it has, so that words are spread as well.
    """
    for i in range(len(frequencies)):
        least = 0
        for block in range(1, len(loads)):
            if loads[block] < loads[least]:
                least = block
        loads[least] += frequencies[i] + 1
        out[i] = least


@njit(nogil=True, cache=True)
def place_tokens(offsets, words, counts, row_of, begins, cursor, at):
    """Say of every token, in the order of the words' rows, where its document begins.

    `cursor`: (rows,) where the row's tokens begin in `at`; changed.
    """
    for document in range(len(offsets) - 1):
        for i in range(offsets[document], offsets[document + 1]):
            row = row_of[words[i]]
            place = cursor[row]
            for token in range(place, place + counts[i]):
                at[token] = begins[document]
            cursor[row] = place + counts[i]


@njit(nogil=True, cache=True)
def words_likelihood(lengths, cells, n_wide, known, prior):
    """Sum of log Gamma(n_wk + beta) - log Gamma(beta) over a block; `known` has it for small counts."""
    half = cells.itemsize * 4
    least = math.lgamma(prior)
    total = 0.0
    read = 0
    for row in range(len(lengths)):
        for _ in range(lengths[row]):
            if row < n_wide:
                count = np.int64(cells[read + 1])
                read += 2
            else:
                count = np.int64(cells[read] >> half)
                read += 1
            total += known[count] if count < len(known) else math.lgamma(count + prior) - least
    return total


@njit(nogil=True, cache=True)
def documents_likelihood(begins, cells, n_topics, known, prior):
    """The same over documents, of their topics' counts and alpha."""
    half = cells.itemsize * 4
    least = math.lgamma(prior)
    total = 0.0
    for a in begins:
        dense = cells[a] == DENSE
        for i in range(n_topics if dense else np.int64(cells[a])):
            count = np.int64(cells[a + 1 + i]) if dense else np.int64(cells[a + 1 + i] >> half)
            total += known[count] if count < len(known) else math.lgamma(count + prior) - least
    return total


@njit(nogil=True, cache=True)
def unpack(lengths, cells, n_wide, places, topics, counts):
    """Write the cells of a block as topics and counts, those of a row from its place (rows,) on."""
    half = cells.itemsize * 4
    read = 0
    for row in range(len(lengths)):
        for pair in range(places[row], places[row] + lengths[row]):
            if row < n_wide:
                topics[pair], counts[pair] = np.int64(cells[read]), np.int64(cells[read + 1])
                read += 2
            else:
                topics[pair] = np.int64(cells[read]) & ((1 << half) - 1)
                counts[pair] = np.int64(cells[read] >> half)
                read += 1


@njit(nogil=True, cache=True)
def topics_of_documents(begins, cells, totals):
    """Add the topics' counts of all documents to totals (topics,)."""
    half = cells.itemsize * 4
    for a in begins:
        if cells[a] == DENSE:
            for k in range(len(totals)):
                totals[k] += np.int64(cells[a + 1 + k])
        else:
            for i in range(np.int64(cells[a])):
                totals[np.int64(cells[a + 1 + i]) & ((1 << half) - 1)] += np.int64(cells[a + 1 + i] >> half)
