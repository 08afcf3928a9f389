"""The kernels of topic models against their definitions; also run without numba, from test_kernels.py."""

import os
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import chisquare

from daskstrads.algos import (
    corpus_kernels,
    lanes_kernels,
    lda_gibbs,
    lda_kernels,
    topics_kernels,
    word_blocks,
)
from daskstrads.algos.lanes_kernels import LANES

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
ALPHA, BETA = 0.3, 0.05


def cells_of(topics, counts, dtype):
    return (
        np.asarray(topics, np.int64) | np.asarray(counts, np.int64) << 4 * np.dtype(dtype).itemsize
    ).astype(dtype)


class State:
    """Documents, one block of words and their tokens' topics, laid out as the kernels want them."""

    def __init__(self, seed, documents, words, n_topics, length, *, dense=(), wide=0, cell=np.uint32):
        rng = np.random.default_rng(seed)
        self.n_topics, self.wide, self.cell = n_topics, wide, cell
        self.document = np.repeat(np.arange(documents), length)
        self.word = rng.integers(0, words, documents * length)
        order = np.argsort(self.word, kind="stable")
        self.document, self.word = self.document[order], self.word[order]
        self.topics = rng.integers(0, n_topics, len(order)).astype(np.uint16)
        self.tokens = np.bincount(self.word, minlength=words).astype(np.int32)
        lanes = -(-n_topics // LANES) * LANES
        room = [lanes if d in dense else -(-min(length, n_topics) // LANES) * LANES for d in range(documents)]
        begins = np.concatenate([[0], np.cumsum(np.array(room) + 1)])
        self.begins, self.at = begins[:-1], begins[self.document].astype(np.int32)
        self.cells = np.zeros(begins[-1] + LANES, cell)
        self.totals = np.bincount(self.topics, minlength=n_topics)
        for d, a in enumerate(self.begins):
            counts = np.bincount(self.topics[self.document == d], minlength=n_topics)
            held = np.flatnonzero(counts)
            if d in dense:
                self.cells[a] = lda_kernels.DENSE
                self.cells[a + 1 : a + 1 + n_topics] = counts
            else:
                self.cells[a] = len(held)
                self.cells[a + 1 : a + 1 + len(held)] = cells_of(held, counts[held], cell)
        in_word = self.in_word()
        rows = [np.flatnonzero(row) for row in in_word]
        self.lengths = np.array([len(row) for row in rows], np.int32)
        pieces = [
            np.stack([row, in_word[w, row]], 1).ravel().astype(cell)
            if w < wide
            else cells_of(row, in_word[w, row], cell)
            for w, row in enumerate(rows)
        ]
        self.word_cells = np.concatenate(pieces)

    def in_word(self):
        found = np.zeros((len(self.tokens), self.n_topics), int)
        np.add.at(found, (self.word, self.topics), 1)
        return found

    def in_document(self):
        found = np.zeros((len(self.begins), self.n_topics), int)
        np.add.at(found, (self.document, self.topics), 1)
        return found

    def run(self, state, rare, first=None):
        """A sweep over the block, or over the tokens of its first words; the new word cells stay here."""
        stop = len(self.tokens) if first is None else first
        some = int(self.tokens[:stop].sum())
        lengths = np.empty(stop, np.int32)
        cells = np.empty(len(self.word_cells) + 2 * some, self.cell)
        written, _ = lda_kernels.sample(
            *(self.tokens[:stop], self.lengths[:stop], self.word_cells, self.wide, self.at[:some]),
            *(self.topics[:some], self.cells, self.totals, ALPHA, BETA, BETA * len(self.tokens), rare),
            *(np.uint64(state), lengths, cells),
        )
        if first is None:
            self.lengths, self.word_cells = lengths, cells[:written]

    def check(self):
        """All counts say what the tokens' topics say."""
        block = word_blocks.Block(0, self.wide, self.lengths, self.word_cells)
        topics, counts = word_blocks.unpacked(block)
        found = np.zeros_like(self.in_word())
        np.add.at(found, (np.repeat(np.arange(len(self.tokens)), self.lengths), topics), counts)
        np.testing.assert_array_equal(found, self.in_word())
        np.testing.assert_array_equal(self.totals, np.bincount(self.topics, minlength=self.n_topics))
        wanted = self.in_document()
        for d, a in enumerate(self.begins):
            found = np.zeros(self.n_topics, np.int64)
            corpus_kernels.topics_of_documents(self.begins[d : d + 1], self.cells, found)
            np.testing.assert_array_equal(found, wanted[d])
            if self.cells[a] != lda_kernels.DENSE:
                n, room = int(self.cells[a]), -(-int(self.cells[a]) // LANES) * LANES
                assert n == np.count_nonzero(wanted[d])
                assert not self.cells[a + 1 + n : a + 1 + room].any()


LAYOUTS = [
    {},
    {"dense": (0, 2)},
    {"wide": 3},
    {"cell": np.int64, "wide": 1},
    {"n_topics": 40, "dense": (1,)},
    {"n_topics": 1},
]


@pytest.mark.parametrize("rare", [0, 4, 1000])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_stay_right(layout, rare):
    layout = {"n_topics": 6, **layout}
    for seed in range(2 if INTERPRETED else 12):
        state = State(seed, 5, 9, length=30, **layout)
        for sweep in range(3):
            before = state.topics.copy()
            state.run(1 + seed + 1000 * sweep, rare)
            state.check()
        assert layout["n_topics"] == 1 or (before != state.topics).any()


@pytest.mark.skipif(INTERPRETED, reason="needs thousands of draws")
@pytest.mark.parametrize("rare", [0, 1000])
@pytest.mark.parametrize("layout", LAYOUTS[:5])
def test_draws_have_the_odds_of_collapsed_gibbs_sampling(layout, rare):
    """The first token, from the same state again and again, against its full conditional."""
    layout = {"n_topics": 6, **layout}
    start = State(3, 5, 9, length=12, **layout)
    assert start.tokens[0] > 1
    old, d, w = int(start.topics[0]), start.document[0], start.word[0]
    own = np.arange(start.n_topics) == old
    odds = (start.in_document()[d] - own + ALPHA) * (start.in_word()[w] - own + BETA)
    odds /= start.totals - own + BETA * len(start.tokens)
    # Of the word's later tokens nothing is known to the first draw: only it counts.
    drawn = np.zeros(start.n_topics)
    rng = np.random.default_rng(0)
    kept = start.cells.copy(), start.topics.copy(), start.totals.copy()
    for _ in range(20_000):
        start.cells[:], start.topics[:], start.totals[:] = kept
        start.run(rng.integers(1, 2**63), rare, first=1)
        drawn[start.topics[0]] += 1
    expected = odds / odds.sum() * drawn.sum()
    enough = expected > 5
    rest = drawn[~enough].sum(), expected[~enough].sum()
    observed, wanted = drawn[enough], expected[enough]
    if rest[1] > 5:
        observed, wanted = np.append(observed, rest[0]), np.append(wanted, rest[1])
    assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


def before(state):
    """The generator's state of which `state` is the next: its three steps undone."""
    whole = 2**64 - 1
    for shift, left in ((17, True), (7, False), (13, True)):
        found = state
        for _ in range(64 // shift + 1):
            found = state ^ ((found << shift) & whole if left else found >> shift)
        state = found
    return state


def test_the_largest_draw_ends_at_a_topic():
    """Rounding takes it past the sum of all odds, to leaves of the tree that have no topics."""
    assert int(lda_kernels._next(np.uint64(before(2**64 - 1)))) == 2**64 - 1
    for seed in range(3 if INTERPRETED else 300):
        state = State(seed, 5, 9, n_topics=33 + 16 * (seed % 7), length=12)
        state.run(before(2**64 - 1 - seed % 3), rare=(0, 1000)[seed % 2])
        assert state.topics.max() < state.n_topics
        state.check()


def test_deal_counts_what_it_deals():
    state = State(0, 4, 7, 6, 20, dense=(1,), wide=2)
    for given_topics, by_word in ((True, False), (False, False), (False, True)):
        empty = np.zeros_like(state.cells)
        for d, a in enumerate(state.begins):
            empty[a] = lda_kernels.DENSE if d == 1 else 0
        before, wanted = state.in_word(), state.topics.copy()
        lengths, cells = np.empty_like(state.lengths), np.empty(2 * len(state.at) + 50, np.uint32)
        totals = np.zeros_like(state.totals)
        seen = (
            (state.lengths, state.word_cells) if by_word else (np.zeros_like(state.lengths), cells[:0].copy())
        )
        written, _ = lda_kernels.deal(
            *(state.tokens, *seen, 2, state.at, state.topics, empty, totals, given_topics, by_word),
            *(np.uint64(5), lengths, cells),
        )
        assert (state.topics == wanted).all() == given_topics
        if by_word:
            assert not state.in_word()[before == 0].any()  # no topics that a word did not have
            continue
        state.cells, state.totals = empty, totals
        state.lengths, state.word_cells = lengths, cells[:written].copy()
        state.check()


@pytest.mark.skipif(INTERPRETED, reason="compares both")
@pytest.mark.parametrize("cell", [np.uint32, np.int64])
def test_lanes_do_what_their_plain_forms_say(cell):
    from numba import njit

    calls = {
        "dot": njit(lambda cells, place, weight, topic, left: lanes_kernels.dot(cells, place, weight)),
        "dot_dense": njit(
            lambda cells, place, weight, topic, left: lanes_kernels.dot_dense(cells, place, weight, topic)
        ),
        "find": njit(lambda cells, place, weight, topic, left: lanes_kernels.find(cells, place, topic)),
        "pick": njit(
            lambda cells, place, weight, topic, left: lanes_kernels.pick(cells, place, weight, left)
        ),
        "pick_dense": njit(
            lambda cells, place, weight, topic, left: lanes_kernels.pick_dense(
                cells, place, weight, topic, left
            )
        ),
        "pick_among": njit(
            lambda cells, place, weight, topic, left: lanes_kernels.pick_among(weight, topic, left)
        ),
    }
    plain = {
        "dot": lambda c, p, w, t, u: lanes_kernels._dot(c, p, w),
        "dot_dense": lambda c, p, w, t, u: lanes_kernels._dot_dense(c, p, w, t),
        "find": lambda c, p, w, t, u: lanes_kernels._find(c, p, t),
        "pick": lambda c, p, w, t, u: lanes_kernels._pick(c, p, w, u),
        "pick_dense": lambda c, p, w, t, u: lanes_kernels._pick_dense(c, p, w, t, u),
        "pick_among": lambda c, p, w, t, u: lanes_kernels._pick_among(w, t, u),
    }
    rng = np.random.default_rng(0)
    for _ in range(50):
        topics, counts = rng.integers(0, 40, 40), rng.integers(0, 9, 40) * (rng.random(40) < 0.8)
        cells, weight = cells_of(topics * (counts > 0), counts, cell), rng.random(64).astype(np.float32)
        place, topic = int(rng.integers(0, 24)), int(rng.integers(0, 40))
        for name, call in calls.items():
            given_cells = counts.astype(cell) if "dense" in name else cells
            left = np.float32(rng.random() * 1.2 * (plain["dot"](cells, place, weight, topic, 0) + 1))
            found = call(given_cells, place, weight, topic, left)
            np.testing.assert_allclose(found, plain[name](given_cells, place, weight, topic, left), rtol=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="is about the order of vector additions")
def test_lanes_without_a_share_are_never_drawn():
    """Draws that end just where the sum does: sums of more lanes differ by rounding."""
    from numba import njit

    @njit
    def drawn(cells, weight):
        found = 0
        for place in range(0, len(cells) - 15, 16):
            total = np.float32(0)
            for i in range(16):
                total += np.float32(cells[place + i] >> 16) * weight[cells[place + i] & 65535]
                for step in range(-2, 3):
                    left = total + np.float32(step) * np.float32(1e-7) * total
                    lane = lanes_kernels.pick(cells, place, weight, left)
                    found += lane < 16 and cells[place + lane] >> 16 == 0
                    lane = lanes_kernels.pick_among(weight, place % 512, left)
                    found += lane < 16 and weight[place % 512 + lane] == 0
        return found

    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, 160_000) * (np.arange(160_000) % 16 < 9)
    cells = cells_of(rng.integers(0, 1000, 160_000) * (counts > 0), counts, np.uint32)
    weight = (rng.random(1008) ** 8 * (np.arange(1008) % 16 < 11)).astype(np.float32)
    assert drawn(cells, weight) == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 30))
def test_likelihoods_are_the_log_gammas(seed, documents, length):
    state = State(seed, documents, 6, 7, length, dense=(0,), wide=1)
    known = lda_gibbs._known(BETA)[:3]
    found = corpus_kernels.words_likelihood(state.lengths, state.word_cells, 1, known, BETA)
    wanted = (gammaln(state.in_word() + BETA) - gammaln(BETA)).sum()
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    known = lda_gibbs._known(ALPHA)[:3]
    found = corpus_kernels.documents_likelihood(state.begins, state.cells, 7, known, ALPHA)
    wanted = (gammaln(state.in_document() + ALPHA) - gammaln(ALPHA)).sum()
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        lda_gibbs._known(0.4), gammaln(np.arange(4096) + 0.4) - gammaln(0.4), rtol=1e-9
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(1, 9), st.integers(1, 4))
def test_tokens_are_put_in_the_order_of_their_words_rows(seed, documents, words, blocks):
    rng = np.random.default_rng(seed)
    X = sp.csr_array(rng.integers(0, 3, (documents, words)))
    offsets, frequencies = X.indptr.astype(np.int64), np.zeros(words, np.int64)
    corpus_kernels.count_words(X.data, X.indices, frequencies)
    np.testing.assert_array_equal(frequencies, X.toarray().sum(0))
    order, rows = word_blocks.words_by_block(frequencies, blocks)
    assert sorted(order) == list(range(words))
    assert rows[0] == 0
    assert rows[-1] == words
    for first, stop in pairwise(rows):
        assert (np.diff(frequencies[order[first:stop]]) <= 0).all()
    loads = [frequencies[order[a:b]].sum() + b - a for a, b in pairwise(rows)]
    assert max(loads) - min(loads) <= frequencies.max() + 1  # the rule of the emptiest block
    row_of = np.empty(words, np.int32)
    row_of[order] = np.arange(words)
    begins = 100 * np.arange(documents, dtype=np.int32)
    at = np.empty(frequencies.sum(), np.int32)
    cursor = np.concatenate([[0], np.cumsum(frequencies[order])])[:-1]
    corpus_kernels.place_tokens(offsets, X.indices, X.data, row_of, begins, cursor, at)
    wanted = [100 * d for w in order for d in range(documents) for _ in range(X.toarray()[d, w])]
    assert at.tolist() == wanted


def test_very_frequent_words_come_first_in_their_block():
    frequencies = np.array([3, 70_000, 1, 65_535, 90_000, 65_536, 2])
    order, rows = word_blocks.words_by_block(frequencies, 1)
    assert order.tolist() == [4, 1, 5, 3, 0, 6, 2]
    assert rows.tolist() == [0, 7]


def test_blocks_are_widened_without_loss():
    state = State(1, 4, 7, 6, 20)
    block = word_blocks.Block(0, 0, state.lengths, state.word_cells)
    for wide in (0, 1, 4, 7):
        wider = word_blocks.widened(block, wide)
        assert wider.wide == wide
        assert len(wider.cells) == state.lengths.sum() + state.lengths[:wide].sum()
        for found, wanted in zip(word_blocks.unpacked(wider), word_blocks.unpacked(block), strict=True):
            np.testing.assert_array_equal(found, wanted)


def folded(X, phi_counts, alpha, beta, halves, tol=0.0, most=60):
    words = sp.csr_array(phi_counts.T)
    totals = phi_counts.sum(1)
    inverse = (1 / (totals + beta * X.shape[1])).astype(np.float32)
    theta, scores = np.empty((X.shape[0], len(totals))), np.empty(X.shape[0])
    topics_kernels.fold(
        *(X.indptr.astype(np.int64), X.indices, X.data.astype(np.int32), halves),
        *(words.indptr.astype(np.int64), words.indices, words.data.astype(np.int32), inverse),
        *(alpha, beta, tol, most, theta, scores),
    )
    return theta, scores


def em(counts, phi, alpha, rounds=60):
    expected = np.full(len(phi), counts.sum() / len(phi))
    for _ in range(rounds):
        rate = alpha + expected
        joint = rate[:, None] * phi
        expected = (joint / joint.sum(0) * counts).sum(1)
    return (alpha + expected) / (alpha * len(phi) + counts.sum())


@pytest.mark.parametrize("halves", [0, 1, 2])
def test_folding_in_is_expectation_maximisation(halves):
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 20, (5, 12)) * (rng.random((5, 12)) < 0.4)
    X = rng.integers(0, 4, (6, 12))
    X[2] = 0
    phi = (counts + 0.1) / (counts.sum(1, keepdims=True) + 12 * 0.1)
    theta, scores = folded(sp.csr_array(X), counts, 0.2, 0.1, halves)
    for d, row in enumerate(X):
        tokens = np.repeat(np.arange(12), row)
        kept = tokens if not halves else tokens[halves - 1 :: 2]
        rest = np.empty(0, int) if not halves else tokens[2 - halves :: 2]
        wanted = em(np.bincount(kept, minlength=12), phi, 0.2)
        np.testing.assert_allclose(theta[d], wanted, rtol=2e-3, atol=1e-5)
        np.testing.assert_allclose(theta[d].sum(), 1.0, rtol=1e-5)
        if halves:
            np.testing.assert_allclose(scores[d], np.log(wanted @ phi)[rest].sum(), rtol=1e-3, atol=1e-6)


def test_strongest_words_are_sorted():
    rng = np.random.default_rng(2)
    counts = rng.integers(0, 6, (4, 30)) * (rng.random((4, 30)) < 0.5)
    counts[3] = 0
    by_word = sp.csr_array(counts.T)
    words, most = np.empty((4, 7), np.int64), np.empty((4, 7), np.int64)
    topics_kernels.strongest_words(
        by_word.indptr.astype(np.int64), by_word.indices, by_word.data, words, most
    )
    for k in range(4):
        wanted = [w for w in np.argsort(-counts[k], kind="stable")[:7] if counts[k, w]]
        assert words[k].tolist() == wanted + [-1] * (7 - len(wanted))
        assert most[k].tolist() == counts[k, wanted].tolist() + [0] * (7 - len(wanted))
