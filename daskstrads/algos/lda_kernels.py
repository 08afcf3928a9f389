"""Collapsed Gibbs sampling of a block of words: exact, at a cost that hardly depends on the number of topics.

A cell is a topic (lower half) and its count (upper half). Documents lie one after the other in `cells`,
each a
header and its topics: after header n come n cells, and zeros up to the next multiple of `LANES`; after header
`DENSE` the counts of all topics, of which there are then a multiple of `LANES` as well.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .lanes_kernels import LANES, ask, dot, dot_dense, find, pick, pick_among, pick_dense

DENSE = 2**31 - 1
AHEAD = 12  # tokens between asking for a document and using it


@njit(inline="always")
def _next(state):
    """The next state of a xorshift generator."""
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state


@njit(inline="always")
def _unit(state):
    """[0, 1) from a state."""
    return np.float64(state >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(inline="always")
def _add(tree, node, change):
    """Add to a bucket, and to all above it."""
    while node > 0:
        tree[node] += change
        node >>= 1


@njit(inline="always")
def _enter(cells, first, n, topic, one):
    """Count a topic in a list of n; the new n."""
    c = 0
    while c < n:
        lane = find(cells, first + c, topic)
        if lane < LANES:
            cells[first + c + lane] += one
            return n
        c += LANES
    cells[first + n] = one | topic
    return n + 1


@njit(inline="always")
def _pair(cells, place, wide, half):
    """A word's topic and its count."""
    if wide:
        return np.int64(cells[place]), np.int64(cells[place + 1])
    return np.int64(cells[place] & ((1 << half) - 1)), np.int64(cells[place] >> half)


@njit(inline="always")
def _put(cells, place, wide, half, topic, count):
    """Write a word's topic and its count; where the next one goes."""
    if wide:
        cells[place] = topic
        cells[place + 1] = count
        return place + 2
    cells[place] = topic | (np.int64(count) << half)
    return place + 1


@njit(inline="always")
def _add_up(tree, leaves):
    """All sums above the buckets."""
    for node in range(leaves - 1, 0, -1):
        tree[node] = tree[2 * node] + tree[2 * node + 1]


@njit(nogil=True, cache=True)
def deal(
    tokens,
    lengths,
    word_cells,
    n_wide,
    at,
    topics,
    cells,
    totals,
    given,
    by_word,
    state,
    new_lengths,
    new_cells,
):
    """Give tokens their first topics and enter these in documents, words and totals, a block of words.

    Topics are those `given`; else drawn: from the topics that their word has here already in the ratio of its
    counts (`by_word`), or evenly. Other arguments and returns as of `sample`.
    """
    n_topics = len(totals)
    half = cells.itemsize * 4
    one = 1 << half
    in_word = np.zeros(n_topics, np.int64)
    touched = np.empty(n_topics, np.int64)
    read = 0
    written = 0
    token = 0
    for row in range(len(tokens)):
        length = np.int64(lengths[row])
        wide = row < n_wide
        before = 0
        for j in range(length):
            k, count = _pair(word_cells, read, wide, half)
            read += 2 if wide else 1
            in_word[k] = count
            touched[j] = k
            before += count
        n_touched = length
        stop = token + tokens[row]
        while token < stop:
            if given:
                k = np.int64(topics[token])
            elif by_word and before:
                state = _next(state)
                left = np.int64(_unit(state) * before)
                j = 0
                # What this rank has dealt meanwhile only makes it end sooner.
                while j < length - 1 and left >= in_word[touched[j]]:
                    left -= in_word[touched[j]]
                    j += 1
                k = touched[j]
            else:
                state = _next(state)
                k = np.int64(_unit(state) * n_topics)
            topics[token] = k
            if in_word[k] == 0:
                touched[n_touched] = k
                n_touched += 1
            in_word[k] += 1
            totals[k] += 1
            a = np.int64(at[token])
            n = np.int64(cells[a])
            if n == DENSE:
                cells[a + 1 + k] += 1
            else:
                cells[a] = _enter(cells, a + 1, n, k, one)
            token += 1
        for j in range(n_touched):
            k = touched[j]
            written = _put(new_cells, written, wide, half, k, in_word[k])
            in_word[k] = 0
        new_lengths[row] = n_touched
    return written, state


@njit(nogil=True, cache=True, fastmath=True)
def sample(
    tokens,
    lengths,
    word_cells,
    n_wide,
    at,
    topics,
    cells,
    totals,
    alpha,
    beta,
    beta_sum,
    rare,
    state,
    new_lengths,
    new_cells,
):
    """Draw every token's topic anew, given all others: one block of words, in their order.

    A token of word w in document d has topic k with probability proportional to (n_dk + alpha)
    (n_wk + beta) / (n_k + V beta), counts without itself (Griffiths and Steyvers 2004). The sum over k is
    split (Yu et al. 2015, F+LDA): n_dk weight_k over the document's topics, and alpha weight_k from a tree of
    sums. Weights hold the word's counts while it is sampled; of words with fewer than `rare` tokens the tree
    does not, and these counts are a third part. Draws from the tree do not know that the token itself is
    out of its word's count; they are refused with the probability that makes up for it.

    Args:
        tokens: (rows,) tokens of each word here. lengths, word_cells: the words' topics, `n_wide` rows of two
            cells a topic (topic, count), then rows of one.
        at: (tokens,) where each token's document begins. topics: (tokens,), changed.
        cells: the documents, changed. totals: (topics,) n_k, changed.
        beta_sum: V beta. state: of the generator, not 0.
        new_lengths, new_cells: where the words' new topics go.

    Returns:
        How many cells were written, and the generator's state.
    """
    n_topics = len(totals)
    half = cells.itemsize * 4
    mask = (1 << half) - 1
    one = 1 << half
    padded = -(-n_topics // LANES) * LANES
    n_buckets = padded // LANES
    leaves, levels = 1, 1
    while leaves < n_buckets:
        leaves *= 2
        levels += 1
    base = np.float32(beta)
    # Below all leaves, also those without a topic: by rounding a draw may come to the end of the tree.
    inverse = np.zeros(leaves * LANES, np.float32)
    weight = np.zeros(leaves * LANES, np.float32)  # of the word at hand: (n_wk + beta) / (n_k + V beta)
    in_word = np.zeros(padded, np.int32)
    listed = np.zeros(padded, np.uint8)
    touched = np.empty(padded, np.int32)
    parts = np.empty(n_buckets + 2, np.float32)
    tree = np.zeros(2 * leaves, np.float64)
    for k in range(n_topics):
        inverse[k] = np.float32(1.0 / (totals[k] + beta_sum))
        weight[k] = base * inverse[k]
        tree[leaves + k // LANES] += weight[k]
    _add_up(tree, leaves)
    read = 0
    written = 0
    token = 0
    n_tokens = len(at)
    for row in range(len(tokens)):
        length = np.int64(lengths[row])
        stop = token + tokens[row]
        wide = row < n_wide
        if token == stop:
            for _ in range(2 * length if wide else length):
                new_cells[written] = word_cells[read]
                read += 1
                written += 1
            new_lengths[row] = length
            continue
        n_touched = length
        tail = stop - token < rare
        whole_tree = not tail and length * levels > leaves
        mass = 0.0  # sum of n_wk / (n_k + V beta), of rare words
        for j in range(length):
            k, count = _pair(word_cells, read, wide, half)
            read += 2 if wide else 1
            in_word[k] = count
            touched[j] = k
            listed[k] = 1
            entered = (np.float32(count) + base) * inverse[k]
            if tail:
                mass += np.float64(np.float32(count) * inverse[k])
            elif whole_tree:
                tree[leaves + k // LANES] += np.float64(entered) - np.float64(weight[k])
            else:
                _add(tree, leaves + k // LANES, np.float64(entered) - np.float64(weight[k]))
            weight[k] = entered
        if whole_tree:
            _add_up(tree, leaves)
        while token < stop:
            if token + AHEAD < n_tokens:
                ask(cells, at[token + AHEAD])
            a = np.int64(at[token])
            old = np.int64(topics[token])
            n = np.int64(cells[a])
            listed_topics = n != DENSE
            stale = weight[old]
            fresh_inverse = np.float32(1.0 / (totals[old] - 1 + beta_sum))
            fresh = (np.float32(in_word[old] - 1) + base) * fresh_inverse
            weight[old] = fresh
            first = a + 1
            in_document = np.float32(0)
            if listed_topics:
                chunks = (n + LANES - 1) // LANES
                place = np.int64(0)
                for c in range(chunks):
                    part = dot(cells, first + c * LANES, weight)
                    lane = find(cells, first + c * LANES, old)
                    if lane < LANES:
                        place = c * LANES + lane
                    parts[c] = part
                    in_document += part
                own = first + place
                cells[own] -= one
                parts[place // LANES] -= fresh
                in_document -= fresh
            else:
                chunks = n_buckets
                own = first + old
                cells[own] -= 1
                for c in range(chunks):
                    part = dot_dense(cells, first + c * LANES, weight, c * LANES)
                    parts[c] = part
                    in_document += part
            # Draw: from the document's topics, from those of a rare word, or from the tree.
            new = old
            found = np.int64(-1)
            extra = 0.0
            word_mass = 0.0
            if tail:
                word_mass = alpha * (
                    mass
                    - np.float64(np.float32(in_word[old]) * inverse[old])
                    + np.float64(np.float32(in_word[old] - 1) * fresh_inverse)
                )
                extra = alpha * np.float64(base * fresh_inverse - base * inverse[old])
            below = np.float64(in_document)
            whole = below + word_mass + extra + alpha * tree[1]
            while True:
                state = _next(state)
                u = _unit(state) * whole
                if u < below:
                    left = np.float32(u)
                    c = 0
                    while c < chunks - 1 and left >= parts[c]:
                        left -= parts[c]
                        c += 1
                    if listed_topics:
                        lane = pick(cells, first + c * LANES, weight, left)
                        if lane == LANES:  # by rounding
                            break
                        found = first + c * LANES + lane
                        new = np.int64(cells[found] & mask)
                    else:
                        lane = pick_dense(cells, first + c * LANES, weight, c * LANES, left)
                        if lane < LANES:
                            new = c * LANES + lane
                    break
                u -= below
                if tail:
                    if u < word_mass:
                        u /= alpha
                        for j in range(n_touched):
                            k = np.int64(touched[j])
                            share = np.float64(np.float32(in_word[k]) * inverse[k])
                            if k == old:
                                share = np.float64(np.float32(in_word[k] - 1) * fresh_inverse)
                            if share > 0:
                                new = k
                                if u < share:
                                    break
                                u -= share
                        break
                    u -= word_mass
                    if u < extra:
                        break
                u = (u - extra) / alpha
                node = 1
                while node < leaves:
                    node *= 2
                    if u >= tree[node]:
                        u -= tree[node]
                        node += 1
                k = (node - leaves) * LANES
                if tail:
                    lane = pick_among(inverse, k, np.float32(u) / base)
                else:
                    weight[old] = stale
                    lane = pick_among(weight, k, np.float32(u))
                    weight[old] = fresh
                if lane == LANES:
                    continue
                new = k + lane
                if tail or new != old:
                    break
                state = _next(state)
                if _unit(state) * stale < fresh:
                    break
            if new == old:
                weight[old] = stale
                cells[own] += one if listed_topics else 1
                token += 1
                continue
            if listed_topics:
                if cells[own] < one:
                    last = a + n
                    cells[own] = cells[last]
                    if found == last:
                        found = own
                    cells[last] = 0
                    n -= 1
                if found < 0:
                    n = _enter(cells, first, n, new, one)
                else:
                    cells[found] += one
                cells[a] = n
            else:
                cells[first + new] += 1
            topics[token] = new
            if listed[new] == 0:
                listed[new] = 1
                touched[n_touched] = new
                n_touched += 1
            old_before, new_before = np.float64(stale), np.float64(weight[new])
            old_inverse, new_inverse = inverse[old], inverse[new]
            old_count, new_count = in_word[old], in_word[new]
            in_word[old] -= 1
            in_word[new] += 1
            totals[old] -= 1
            totals[new] += 1
            inverse[old] = fresh_inverse
            inverse[new] = np.float32(1.0 / (totals[new] + beta_sum))
            weight[new] = (np.float32(in_word[new]) + base) * inverse[new]
            if tail:
                mass += np.float64(np.float32(old_count - 1) * inverse[old])
                mass -= np.float64(np.float32(old_count) * old_inverse)
                mass += np.float64(np.float32(new_count + 1) * inverse[new])
                mass -= np.float64(np.float32(new_count) * new_inverse)
                _add(
                    tree,
                    leaves + old // LANES,
                    np.float64(base * inverse[old]) - np.float64(base * old_inverse),
                )
                _add(
                    tree,
                    leaves + new // LANES,
                    np.float64(base * inverse[new]) - np.float64(base * new_inverse),
                )
            else:
                _add(tree, leaves + old // LANES, np.float64(weight[old]) - old_before)
                _add(tree, leaves + new // LANES, np.float64(weight[new]) - new_before)
            token += 1
        kept = 0
        for j in range(n_touched):
            k = np.int64(touched[j])
            listed[k] = 0
            count = in_word[k]
            if count > 0:
                kept += 1
                written = _put(new_cells, written, wide, half, k, count)
            in_word[k] = 0
            restored = base * inverse[k]
            if whole_tree:
                tree[leaves + k // LANES] += np.float64(restored) - np.float64(weight[k])
            elif not tail:
                _add(tree, leaves + k // LANES, np.float64(restored) - np.float64(weight[k]))
            weight[k] = restored
        if whole_tree:
            _add_up(tree, leaves)
        new_lengths[row] = kept
    return written, state
