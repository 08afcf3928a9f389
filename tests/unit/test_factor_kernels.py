"""Every kernel of the factorisations against numpy; also run without numba, from test_kernels.py."""

import naive
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from daskstrads.algos import als_kernels, ccd_kernels, ratings_kernels, topn_kernels

WIDTH = 16
NO_HOLD = np.empty(0)


def problem(seed, rows=13, columns=9, share=0.5, index=np.uint16):
    """CSR ratings with columns in order, factors of both sides, and the residual."""
    rng = np.random.default_rng(seed)
    matrix = sp.csr_array(
        np.where(rng.random((rows, columns)) < share, rng.normal(size=(rows, columns)), 0.0)
    )
    x, y = np.zeros((rows, WIDTH)), np.zeros((columns, WIDTH))
    x[:, :5], y[:, :5] = rng.normal(size=(rows, 5)), rng.normal(size=(columns, 5))
    offsets, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(index)
    residual = matrix.data - np.einsum("ij,ij->i", x[matrix.tocoo().row], y[matrix.indices])
    return offsets, indices, residual, x, y, matrix


def dense(matrix):
    found = np.full(matrix.shape, np.nan)
    entries = matrix.tocoo()
    found[entries.row, entries.col] = entries.data
    return found


def left(matrix, x, y):
    entries = matrix.tocoo()
    return entries.data - np.einsum("ij,ij->i", x[entries.row], y[entries.col])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(1, 9))
def test_arrange_sorts_rows_by_the_columns_places(seed, rows, columns):
    rng = np.random.default_rng(seed)
    matrix = sp.csr_array(np.where(rng.random((rows, columns)) < 0.6, rng.normal(size=(rows, columns)), 0.0))
    place = rng.permutation(columns)
    residual, found = np.empty(matrix.nnz), np.empty(matrix.nnz, np.uint16)
    bad = ratings_kernels.arrange(
        matrix.data, matrix.indices, matrix.indptr.astype(np.int64), place, 0.5, residual, found
    )
    assert bad == -1
    wanted = sp.csr_array((matrix.data - 0.5, place[matrix.indices], matrix.indptr), shape=matrix.shape)
    wanted.sort_indices()
    np.testing.assert_array_equal(found, wanted.indices)
    np.testing.assert_array_equal(residual, wanted.data)


@pytest.mark.parametrize("indices", [[0, 3], [0, -1], [1, 1]])
def test_arrange_tells_the_damaged_row(indices):
    offsets = np.array([0, 1, 3], np.int64)
    found = ratings_kernels.arrange(
        np.ones(3), np.array([2, *indices], np.int32), offsets, np.arange(3), 0.0, np.empty(3),
        np.empty(3, np.uint16),
    )  # fmt: skip
    assert found == 1


@pytest.mark.parametrize("positive", [False, True])
def test_drawn_numbers_depend_on_seed_id_and_feature_alone(positive):
    def drawn(seed, ids, features=40):
        found = np.empty((len(ids), features))
        with np.errstate(over="ignore"):  # without numba, numpy warns of words that wrap around
            ratings_kernels.draw(seed, np.asarray(ids), 0.5, positive, found)
        return found

    ids = np.arange(300)
    found = drawn(7, ids)
    np.testing.assert_array_equal(drawn(7, ids[::-1])[::-1], found)
    np.testing.assert_array_equal(drawn(7, ids[5:8], 3), found[5:8, :3])
    assert len(np.unique(found)) > 0.99 * found.size
    assert np.isin(drawn(8, ids[:10]), found).mean() < 0.05  # of 24 bits, a few agree
    if positive:
        assert 0 <= found.min() < found.max() < 0.5
        assert found.mean() == pytest.approx(0.25, abs=0.02)
    else:
        assert abs(found.mean()) < 0.02
        assert found.std() == pytest.approx(0.5, abs=0.02)
        correlation = np.corrcoef(found[:, :8].T) - np.eye(8)
        assert np.abs(correlation).max() < 0.3


def test_residuals_and_penalties():
    offsets, indices, residual, x, y, matrix = problem(0)
    found = matrix.data.copy()
    ratings_kernels.subtract(offsets, indices, x, y, found)
    np.testing.assert_allclose(found, residual, atol=1e-12)
    weight = np.arange(13.0)
    for frozen in -1, 2:
        kept = np.delete(x, frozen, axis=1) if frozen >= 0 else x
        wanted = (weight * (kept**2).sum(axis=1)).sum()
        assert ratings_kernels.penalty_of(x, weight, frozen) == pytest.approx(wanted)


@pytest.mark.parametrize("frozen", [-1, 1])
@pytest.mark.parametrize("index", [np.uint16, np.int32])
@pytest.mark.parametrize("hold", [False, True])
def test_enough_steps_solve_a_row(frozen, index, hold):
    offsets, indices, residual, x, y, matrix = problem(1, index=index)
    before, weight = x.copy(), np.linspace(0.1, 2.0, 13)
    still = np.linspace(0, 3, 13) if hold else NO_HOLD
    als_kernels.solve_rows(offsets, indices, residual, x, y, weight, still, frozen, 40)
    free = [t for t in range(5) if t != frozen]
    for i, row in enumerate(dense(matrix)):
        seen = ~np.isnan(row)
        F = y[seen][:, free]
        target = row[seen] - (before[i, frozen] * y[seen, frozen] if frozen >= 0 else 0.0)
        extra = still[i] if hold else 0.0
        gram = F.T @ F + (weight[i] + extra) * np.eye(len(free))
        wanted = np.linalg.solve(gram, F.T @ target + extra * before[i, free])
        np.testing.assert_allclose(x[i, free], wanted if seen.any() else before[i, free], atol=1e-8)
    if frozen >= 0:
        np.testing.assert_array_equal(x[:, frozen], before[:, frozen])
    np.testing.assert_allclose(residual, left(matrix, x, y), atol=1e-10)
    assert not x[:, 5:].any()


@pytest.mark.parametrize("frozen", [-1, 0])
def test_tiles_solve_the_columns_as_the_rows_of_the_transpose(frozen):
    offsets, indices, residual, x, y, matrix = problem(2, columns=11)
    weight = np.linspace(0.1, 2.0, 11)
    of_rows = matrix.T.tocsr()
    wanted, rest = y.copy(), left(of_rows, y, x)
    als_kernels.solve_rows(
        of_rows.indptr.astype(np.int64), of_rows.indices.astype(np.uint16), rest, wanted, x, weight, NO_HOLD,
        frozen, 3,
    )  # fmt: skip
    cursor, total = offsets[:-1].copy(), 0.0
    for first, stop in (0, 4), (4, 5), (5, 11):
        own, length = slice(first, stop), stop - first
        products, step = np.zeros(matrix.nnz), np.zeros(length)
        slope, image, norms = np.empty((length, WIDTH)), np.empty((length, WIDTH)), np.empty(length)
        als_kernels.tile_slope(offsets, cursor, indices, residual, x, first, stop, slope)
        als_kernels.begin(slope, y[own], weight[own], frozen, norms)
        direction = slope.copy()
        for _ in range(3):
            als_kernels.tile_images(
                offsets, cursor, indices, residual, x, first, stop, direction, step, products, image
            )
            step, following = np.empty(length), np.empty((length, WIDTH))
            als_kernels.advance(image, direction, slope, weight[own], frozen, norms, step, following)
            als_kernels.move(y[own], step, direction)
            direction = following
        total += als_kernels.tile_done(offsets, cursor, indices, residual, first, stop, step, products)
    np.testing.assert_array_equal(cursor, offsets[1:])
    np.testing.assert_allclose(y, wanted, atol=1e-10)
    np.testing.assert_allclose(residual, left(matrix, x, y), atol=1e-10)
    assert total == pytest.approx((residual**2).sum())


@pytest.mark.parametrize("frozen", [-1, 1])
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("hold", [False, True])
def test_positive_rows_end_where_no_step_helps(frozen, first, hold):
    offsets, indices, residual, x, y, matrix = problem(3)
    weight, still = np.full(13, 0.3), np.full(13, 0.7) if hold else NO_HOLD
    if frozen >= first:
        x[:, frozen] = 1.0
        residual = left(matrix, x, y)
    before = x.copy()
    als_kernels.solve_positive(offsets, indices, residual, x, y, weight, still, frozen, first, 2000)
    np.testing.assert_allclose(residual, left(matrix, x, y), atol=1e-9)
    rows = np.diff(offsets) > 0
    assert (x[rows][:, first:] >= 0).all()
    np.testing.assert_array_equal(x[~rows], before[~rows])
    if frozen >= 0:
        np.testing.assert_array_equal(x[:, frozen], before[:, frozen])
    slopes = np.zeros_like(x)
    entries = matrix.tocoo()
    np.add.at(slopes, entries.row, residual[:, None] * y[entries.col])
    slopes -= weight[:, None] * x
    if hold:
        slopes -= still[:, None] * (x - before)
    for t in range(5):
        if t != frozen:
            inside = rows & ((x[:, t] > 0) if t >= first else True)
            assert np.abs(slopes[inside, t]).max() < 1e-3
            assert slopes[rows & (x[:, t] == 0), t].max(initial=0.0) < 1e-3


@pytest.mark.parametrize("frozen", [(-1, -1), (1, 0)])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("at", [0, 4])
def test_a_block_of_both_sides(frozen, positive, at):
    offsets, indices, residual, x, y, matrix = problem(4, rows=20, columns=12)
    rng = np.random.default_rng(5)
    x[:, 5:12], y[:, 5:12] = rng.normal(size=(20, 7)), rng.normal(size=(12, 7))
    first = 2 if frozen[0] >= 0 else 0
    if positive:
        x[:, first:], y[:, first:] = abs(x[:, first:]), abs(y[:, first:])
    residual = left(matrix, x, y)
    row_frozen, column_frozen = (each if at == 0 else -1 for each in frozen)
    weight = np.linspace(0.1, 2.0, 20), np.linspace(0.3, 1.0, 12)
    old_x, old_y = x.copy(), y.copy()
    sums, pairs = np.empty((12, 16)), np.empty((12, 8))
    ccd_kernels.prepare(offsets, indices, residual, x, at, sums)
    block = slice(at, at + 4)
    seen = ~np.isnan(dense(matrix))
    for j in range(12):
        mine = x[seen[:, j], block]
        error = (dense(matrix) - x @ y.T)[seen[:, j], j]
        np.testing.assert_allclose(sums[j, :4], mine.T @ error, atol=1e-10)
        np.testing.assert_allclose(sums[j, 4:14], (mine.T @ mine)[np.tril_indices(4)], atol=1e-10)
    ccd_kernels.solve_columns(sums, y, weight[1], at, column_frozen, first - at, positive, pairs)
    np.testing.assert_array_equal(pairs, np.hstack([y[:, block], old_y[:, block]]))
    sse = ccd_kernels.sweep_rows(
        offsets, indices, residual, x, pairs, weight[0], at, 8, row_frozen, first - at, positive, sums
    )
    np.testing.assert_allclose(residual, left(matrix, x, y), atol=1e-9)
    assert sse == pytest.approx((residual**2).sum())
    following = np.empty((12, 16))
    ccd_kernels.prepare(offsets, indices, residual, x, 8, following)
    np.testing.assert_allclose(sums[:, :14], following[:, :14], atol=1e-9)
    if positive:
        assert (x[:, first:] >= 0).all()
        assert (y[:, first:] >= 0).all()
        assert (residual**2).sum() + (weight[0] @ x**2).sum() + (weight[1] @ y**2).sum() < (
            (left(matrix, old_x, old_y) ** 2).sum()
            + (weight[0] @ old_x**2).sum()
            + (weight[1] @ old_y**2).sum()
        )
        return
    for side, mine, others, old, fixed, ratings in (
        ("columns", y, old_x, old_y, column_frozen, dense(matrix).T),
        ("rows", x, y, old_x, row_frozen, dense(matrix)),
    ):
        free = [t for t in range(at, at + 4) if t != fixed + at]
        rest = [t for t in range(WIDTH) if t not in free]
        for i, row in enumerate(ratings):
            got = ~np.isnan(row)
            if got.any():
                F = others[got][:, free]
                gram = F.T @ F + weight[side == "columns"][i] * np.eye(len(free))
                wanted = np.linalg.solve(gram, F.T @ (row[got] - others[got][:, rest] @ old[i, rest]))
                np.testing.assert_allclose(mine[i, free], wanted, atol=1e-8)


def test_a_block_without_curvature_is_zero_and_not_nan():
    x, pairs = np.ones((1, WIDTH)), np.zeros((1, 8))
    sums = np.empty((1, 16))
    offsets, residual = np.array([0, 1], np.int64), np.ones(1)
    ccd_kernels.sweep_rows(
        offsets, np.zeros(1, np.uint16), residual, x, pairs, np.zeros(1), 0, 4, -1, 0, False, sums
    )
    np.testing.assert_array_equal(x[0, :4], 0.0)
    assert np.isfinite(sums).all()


def test_products_of_pairs():
    _, _, _, x, y, _ = problem(6)
    users, items = np.array([0, -1, 12, 3]), np.array([0, 2, -1, 8])
    out = np.empty(4)
    topn_kernels.pair_products(users, items, x, y, out)
    np.testing.assert_allclose(out, [x[0] @ y[0], 0, 0, x[3] @ y[8]], atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_best_of_any_scores(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    n, m, count = (data.draw(st.integers(1, high)) for high in (4, 300, 40))
    scores = rng.integers(0, data.draw(st.integers(1, 50)), (n, m)).astype(np.float32)  # many ties
    excluded = [rng.choice(m, rng.integers(0, m + 1), replace=False) for _ in range(n)]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in excluded])])
    count = min(count, m)
    found, values = np.full((n, count), -7), np.zeros((n, count), np.float32)
    lengths, given_scores = np.zeros(n, np.int64), scores.copy()
    barred = rng.choice(m, rng.integers(0, m // 2 + 1), replace=False)
    topn_kernels.best(scores, barred, starts, np.concatenate(excluded), count, found, values, lengths)
    for row, out, ids, best, length in zip(given_scores, excluded, found, values, lengths, strict=True):
        still = np.setdiff1d(np.arange(m), np.concatenate([out, barred]))
        wanted = still[np.lexsort((still, -row[still]))][:count]
        assert length == len(wanted)
        np.testing.assert_array_equal(ids[:length], wanted)
        np.testing.assert_array_equal(best[:length], row[wanted])


def test_the_oracle_is_worth_its_name():
    rng = np.random.default_rng(9)
    ratings = np.where(rng.random((8, 6)) < 0.7, rng.normal(size=(8, 6)), np.nan)
    rows, columns = rng.normal(size=(8, 4)), rng.normal(size=(6, 4))
    rows[:, 1] = columns[:, 0] = 1.0
    values = [naive.factor_objective(ratings, 0.1, rows, columns, lambda n: 0.1 * n)]
    for sweeps in 1, 5, 300:
        found = naive.factorise(ratings, 0.1, rows, columns, lambda n: 0.1 * n, sweeps, True)
        values.append(naive.factor_objective(ratings, 0.1, *found, lambda n: 0.1 * n))
    assert values == sorted(values, reverse=True)
    nudged = [each + 1e-3 * rng.normal(size=each.shape) for each in found]
    nudged[0][:, 1] = nudged[1][:, 0] = 1.0
    assert naive.factor_objective(ratings, 0.1, *nudged, lambda n: 0.1 * n) > values[-1]
