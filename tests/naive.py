"""Brute-force oracles that everything is compared with: slow, obvious, and written without the library."""

import itertools
import math

import numpy as np


def tree_total(values, add):
    """Total of one value a rank in T(P) order: pair the ranks beyond a power of two, then halve and halve."""
    power = 1
    while 2 * power <= len(values):
        power *= 2
    pairs = len(values) - power
    nodes = [add(values[2 * i], values[2 * i + 1]) for i in range(pairs)] + list(values[2 * pairs :])

    def halves(part):
        middle = len(part) // 2
        return part[0] if middle == 0 else add(halves(part[:middle]), halves(part[middle:]))

    return halves(nodes)


def add_entries(a, b):
    """Sum of two sparse vectors held as {index: numpy scalar}; what one of them lacks is +0.0."""
    total = {}
    with np.errstate(all="ignore"):
        for i in sorted({*a, *b}):
            zero = type(a[i] if i in a else b[i])(0)
            total[i] = a.get(i, zero) + b.get(i, zero)
    return total


def add_arrays(a, b):
    """Sum of two arrays, one scalar at a time."""
    total = np.empty(a.shape, a.dtype)
    with np.errstate(all="ignore"):
        for position in np.ndindex(a.shape):
            total[position] = a[position] + b[position]
    return total


def entries_of_pairs(index, value):
    """{index: scalar} of (index, value) pairs, repeats added in the order given."""
    total = {}
    with np.errstate(all="ignore"):
        for i, v in zip(index, value, strict=True):
            total[int(i)] = total[int(i)] + v if int(i) in total else v
    return total


def dense_of_entries(entries, size, dtype):
    """The vector behind {index: scalar}."""
    dense = np.zeros(size, dtype)
    for i, v in entries.items():
        dense[i] = v
    return dense


def factorise(ratings, mean, rows, columns, weigh, sweeps, rows_first, features=None):
    """Biased factors by exact least squares, side by side: rows [b, 1, x], columns [1, c, y]; nan: no rating.

    `weigh(count)`: the weight of the penalty of a row or column with so many ratings. `features`: blocks of
    features that are solved for one after the other, columns before rows; None: all at once.
    """
    rows, columns = rows.copy(), columns.copy()

    def solve(ratings, mine, others, block, fixed):
        free = [t for t in block if t != fixed]
        rest = [t for t in range(mine.shape[1]) if t not in free]
        for i, row in enumerate(ratings):
            seen = ~np.isnan(row)
            if free and seen.any():
                F = others[seen][:, free]
                target = row[seen] - mean - others[seen][:, rest] @ mine[i, rest]
                mine[i, free] = np.linalg.solve(F.T @ F + weigh(seen.sum()) * np.eye(len(free)), F.T @ target)

    for _ in range(sweeps):
        for block in [range(rows.shape[1])] if features is None else features:
            for side in (0, 1) if rows_first else (1, 0):
                if side == 0:
                    solve(ratings, rows, columns, block, 1)
                else:
                    solve(ratings.T, columns, rows, block, 0)
    return rows, columns


def factor_objective(ratings, mean, rows, columns, weigh):
    """Sum of squares and penalty of biased factors as in `factorise`."""
    error = ratings - mean - rows @ columns.T
    counts = (~np.isnan(ratings)).sum(axis=1), (~np.isnan(ratings)).sum(axis=0)
    penalty = sum(weigh(n) * (np.sum(x**2) - x[1] ** 2) for n, x in zip(counts[0], rows, strict=True))
    penalty += sum(weigh(n) * (np.sum(y**2) - y[0] ** 2) for n, y in zip(counts[1], columns, strict=True))
    return np.nansum(error**2) + penalty


def bits(x):
    """What must be equal: dtype, shape and bytes, except that one NaN is as good as another."""
    x = np.array(x)
    if x.dtype.kind == "f":
        x[np.isnan(x)] = np.nan
    return x.dtype, x.shape, x.tobytes()


def independent(gram, rho):
    """Greedy dependency check, pair by pair: |correlation| < rho with all kept before."""
    kept = []
    for i in range(len(gram)):
        for j in kept:
            scale = gram[i][i] * gram[j][j]
            if scale > 0 and abs(gram[i][j]) / scale**0.5 >= rho:
                break
        else:
            kept.append(i)
    return kept


def lasso(X, y, lam, tol=1e-13):
    """argmin 1/2 ||y - X b||^2 + lam ||b||_1, one coefficient after the other until none moves by tol."""
    coef, moved = np.zeros(X.shape[1]), np.inf
    while moved > tol:
        moved = 0.0
        for j in np.flatnonzero((X * X).sum(axis=0)):
            x, before = X[:, j], coef[j]
            slope = x @ (y - X @ coef + x * before)
            coef[j] = np.sign(slope) * max(abs(slope) - lam, 0.0) / (x @ x)
            moved = max(moved, abs(coef[j] - before))
    return coef


def als(ratings, W, lam, sweeps):
    """Alternating least squares on a dense matrix with nan where there is no rating: (W, H)."""

    def solve(rows, factors):
        found = []
        for row in rows:
            seen = ~np.isnan(row)
            F = factors[seen]
            found.append(np.linalg.solve(F.T @ F + lam * np.eye(F.shape[1]), F.T @ row[seen]))
        return np.array(found)

    for _ in range(sweeps):
        H = solve(ratings.T, W)
        W = solve(ratings, H)
    return W, H


def ccd(ratings, W, H, lam, sweeps):
    """Feature by feature, w_t then h_t, on a dense matrix with nan for no rating; ends with w_0."""
    W, H, k = W.copy(), H.copy(), W.shape[1]

    def update(rows, mine, others, t):
        for i, row in enumerate(rows):
            top, bottom = 0.0, lam
            for j, rating in enumerate(row):
                if not np.isnan(rating):
                    rest = rating - mine[i] @ others[j] + mine[i, t] * others[j, t]
                    top, bottom = top + rest * others[j, t], bottom + others[j, t] ** 2
            mine[i, t] = top / bottom

    for t in [*range(k)] * sweeps:
        update(ratings, W, H, t)
        update(ratings.T, H, W, t)
    update(ratings, W, H, 0)
    return W, H


def rotated_gibbs(parts, n_words, n_topics, sweeps, seed, alpha, beta):
    """Word-topic counts (n_words, n_topics) of P ranks that sample one after the other; totals are stale."""
    size = len(parts)
    topics = [[None] * len(words) for _, words in parts]
    in_word = np.zeros((n_words, n_topics), int)
    in_document = [np.zeros((max(documents) + 1, n_topics), int) for documents, _ in parts]
    totals = np.zeros(n_topics, int)
    for sweep in range(1 + sweeps):
        for shift in range(size):
            drifted = []
            for rank, (documents, words) in enumerate(parts):
                seen, held = totals.copy(), (rank - shift) % size
                rng = np.random.default_rng([seed, sweep, held, rank])
                for i, (d, w) in enumerate(zip(documents, words, strict=True)):
                    if w % size != held:
                        continue
                    counts = (in_word[w], in_document[rank][d], seen)
                    if sweep:
                        for count in counts:
                            count[topics[rank][i]] -= 1
                    odds = (counts[0] + beta) * (counts[1] + alpha) / (seen + n_words * beta)
                    z = int(np.searchsorted(np.cumsum(odds), rng.random() * odds.sum()))
                    topics[rank][i] = z = min(z, n_topics - 1)
                    for count in counts:
                        count[z] += 1
                drifted.append(seen - totals)
            totals = totals + sum(drifted)
    return in_word


def collapsed_gibbs(X, n_topics, sweeps, seed, alpha, beta):
    """log p(words, topics) after every sweep of an exact sampler: tokens in the order of their words."""
    rng = np.random.default_rng(seed)
    words, documents = (np.repeat(places, X[np.nonzero(X)]) for places in np.nonzero(X)[::-1])
    order = np.argsort(words, kind="stable")
    words, documents = words[order], documents[order]
    topics = rng.integers(0, n_topics, len(words))
    told = []
    in_word, in_document = np.zeros((X.shape[1], n_topics), int), np.zeros((X.shape[0], n_topics), int)
    np.add.at(in_word, (words, topics), 1)
    np.add.at(in_document, (documents, topics), 1)
    totals = in_word.sum(0)
    for _ in range(sweeps):
        for i, (w, d) in enumerate(zip(words, documents, strict=True)):
            counts = in_word[w], in_document[d], totals
            for count in counts:
                count[topics[i]] -= 1
            odds = (counts[0] + beta) * (counts[1] + alpha) / (totals + X.shape[1] * beta)
            topics[i] = np.searchsorted(np.cumsum(odds), rng.random() * odds.sum())
            for count in counts:
                count[topics[i]] += 1
        told.append(topic_likelihood(in_word, in_document, alpha, beta))
    return told


def topic_likelihood(in_word, in_document, alpha, beta):
    """log p(words, topics) of counts (words, topics) and (documents, topics): products of Gamma functions."""
    total = 0.0
    for counts, prior in ((in_word.T, beta), (in_document, alpha)):
        for row in counts:
            total += math.lgamma(len(row) * prior) - math.lgamma(row.sum() + len(row) * prior)
            total += sum(math.lgamma(n + prior) - math.lgamma(prior) for n in row)
    return total


def topic_posterior(X, n_topics, alpha, beta):
    """Every assignment of topics to the tokens of X: log p(words, topics), and its posterior probability."""
    words, documents = (np.repeat(places, X[np.nonzero(X)]) for places in np.nonzero(X)[::-1])
    found = []
    for topics in itertools.product(range(n_topics), repeat=len(words)):
        in_word, in_document = np.zeros((X.shape[1], n_topics), int), np.zeros((X.shape[0], n_topics), int)
        np.add.at(in_word, (words, topics), 1)
        np.add.at(in_document, (documents, topics), 1)
        found.append(topic_likelihood(in_word, in_document, alpha, beta))
    odds = np.exp(np.array(found) - max(found))
    return np.array(found), odds / odds.sum()


def gradient_descent(X, y, rate, steps):
    """Coefficients after so many steps on 1/2 ||X b - y||^2."""
    coef = np.zeros(X.shape[1])
    for _ in range(steps):
        coef = coef - rate * X.T @ (X @ coef - y)
    return coef
