"""Every kernel of the elastic net against numpy; the file also runs itself with NUMBA_DISABLE_JIT=1."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from daskstrads.algos import design_kernels, gram_kernels, lasso_kernels
from daskstrads.algos.design import DenseDesign, SparseDesign, columns_axpy, columns_gram
from daskstrads.partition import split

HERE = Path(__file__).resolve().parent
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
FEW = settings(max_examples=10 if INTERPRETED else 25)


def close(got, want, rtol=1e-10):
    want = np.asarray(want, float)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-12 * (1 + np.abs(want).max(initial=0.0)))


def frozen(*arrays):
    """Kernels never write their inputs; what they may write is passed as it is."""
    views = [array.view() for array in arrays]
    for view in views:
        view.flags.writeable = False
    return views if len(views) > 1 else views[0]


@st.composite
def matrices(draw):
    """(X, weight, rng): numbers from the seed, shape, zeros and zero weights from hypothesis."""
    n, p = draw(st.integers(1, 12)), draw(st.integers(1, 11))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.standard_normal((n, p)) * draw(st.sampled_from([1.0, 1e-3, 1e5]))
    X[rng.random((n, p)) < draw(st.sampled_from([0.0, 0.5, 0.9]))] = 0.0
    X += draw(st.sampled_from([0.0, 10.0])) * rng.integers(0, 2, p)
    weight = rng.uniform(0.1, 3, n) * (rng.random(n) < draw(st.sampled_from([1.0, 0.6])))
    return X.astype(draw(st.sampled_from([np.float64, np.float32]))), weight, rng


def flat_of(X, order, pad):
    """(flat buffer, stride): X's columns (F) or rows (C), `pad` NaN entries between two of them."""
    vectors = np.ascontiguousarray(X.T if order == "F" else X)
    count, length = vectors.shape
    buffer = np.full((count, length + pad), np.nan, X.dtype)
    buffer[:, :length] = vectors
    return frozen(buffer.ravel()[: (count - 1) * (length + pad) + length]), length + pad


def compressed(X, axis):
    A = sp.csc_matrix(X) if axis == 1 else sp.csr_matrix(X)
    return frozen(A.data, A.indices.astype(np.int32), A.indptr.astype(np.int64))


def centred(X, weight, centre):
    X = np.asarray(X, np.float64)
    mean = weight @ X / weight.sum() if centre and weight.sum() > 0 else np.zeros(X.shape[1])
    return mean, weight @ (X - mean) ** 2


# ---- design_kernels ----


@FEW
@given(matrices(), st.sampled_from([0, 3]))
def test_dense_products(drawn, pad):
    X, _, rng = drawn
    n, p = X.shape
    v, b = frozen(rng.standard_normal(n), rng.standard_normal(p))
    flat, stride = flat_of(X, "F", pad)
    out = np.full(p, np.nan)
    design_kernels.dense_dots(flat, stride, n, v, out)
    close(out, X.T.astype(float) @ v)
    ids = frozen(rng.permutation(p)[: rng.integers(0, p + 1)])
    out = np.full(len(ids), np.nan)
    design_kernels.dense_dots_at(flat, stride, n, ids, v, out)
    close(out, X[:, ids].T.astype(float) @ v)
    flat, stride = flat_of(X, "C", pad)
    out = np.ones(p)
    design_kernels.dense_axpys(flat, stride, p, v, out)
    close(out, 1 + X.T.astype(float) @ v)
    out = np.ones(len(ids))
    design_kernels.dense_axpys_at(flat, stride, ids, v, out)
    close(out, 1 + X[:, ids].T.astype(float) @ v)
    weight, residual, grad = frozen(rng.random(n)), np.ones(n), np.ones(p)
    design_kernels.dense_refresh(flat, stride, p, ids, frozen(b[ids]), weight, residual, grad)
    close(residual, 1 - X[:, ids].astype(float) @ b[ids])
    close(grad, 1 + X.T.astype(float) @ (weight * residual))
    out = np.ones(n)
    design_kernels.dense_pick_dots(flat, stride, n, ids, frozen(b[ids]), out)
    close(out, 1 + X[:, ids].astype(float) @ b[ids])
    flat, stride = flat_of(X, "F", pad)
    out = np.ones(n)
    design_kernels.dense_pick_axpys(flat, stride, n, ids, frozen(b[ids]), out)
    close(out, 1 + X[:, ids].astype(float) @ b[ids])


@FEW
@given(matrices(), st.booleans(), st.sampled_from([0, 3]))
def test_moments(drawn, centre, pad):
    X, weight, _ = drawn
    n, p = X.shape
    weight = frozen(weight)
    want = centred(X, weight, centre)
    v = np.sin(np.arange(n))
    v -= weight @ v / max(weight.sum(), 1e-300)
    got = np.full((4, 3, p), np.nan)
    flat, stride = flat_of(X, "F", pad)
    design_kernels.dense_moments_across(flat, stride, n, weight, centre, frozen(v), *got[0])
    flat, stride = flat_of(X, "C", pad)
    design_kernels.dense_moments_along(flat, stride, n, weight, centre, frozen(v), *got[1])
    design_kernels.sparse_moments_across(*compressed(X, 1), weight, False, centre, *got[2][:2])
    design_kernels.sparse_moments_along(*compressed(X, 0), weight, centre, frozen(v), *got[3])
    scale = weight @ np.asarray(X, float) ** 2 + 1e-300
    plain = np.asarray(X, float)
    for place, columns in (
        (0, plain - want[0]),
        (1, plain - want[0]),
        (3, plain),
    ):  # dense ones are centred first
        products = (columns.T * weight) @ v
        assert (np.abs(got[place][2] - products) <= 1e-12 * np.sqrt(scale * (weight @ v**2))).all()
    for mean, spread, _ in got:
        close(mean, want[0])
        assert (np.abs(spread - want[1]) <= 1e-12 * scale).all()
        assert (spread >= -1e-12 * scale).all()
    design_kernels.sparse_moments_across(*compressed(X, 1), frozen(np.ones(n)), True, centre, *got[2][:2])
    want = centred(X, np.ones(n), centre)
    close(got[2][0], want[0])
    assert (np.abs(got[2][1] - want[1]) <= 1e-12 * (np.asarray(X, float) ** 2).sum(axis=0) + 1e-300).all()


@pytest.mark.parametrize("kind", ["across", "along"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_moments_of_a_bad_entry_are_not_finite(bad, sparse, kind):  # case 10: fastmath must not hide it
    X = np.arange(1.0, 51).reshape(10, 5)
    X[7, 3] = bad
    weight, mean, spread = frozen(np.ones(10)), np.empty(5), np.empty(5)
    if sparse:
        arrays = compressed(X, 1 if kind == "across" else 0)
    else:
        arrays = *flat_of(X, "F" if kind == "across" else "C", 0), 10
    kernel = getattr(design_kernels, f"{'sparse' if sparse else 'dense'}_moments_{kind}")
    products = not (sparse and kind == "across")
    v, out = [(frozen(np.ones(10)),), (np.empty(5),)] if products else [(), ()]
    for uniform in [(True,), (False,)] if sparse and kind == "across" else [()]:
        with np.errstate(invalid="ignore"):  # numpy warns where the kernel runs without JIT
            kernel(*arrays, weight, *uniform, True, *v, mean, spread, *out)
        assert list(np.isfinite(spread)) == [True, True, True, False, True]


@FEW
@given(matrices(), st.sampled_from([0, 1]))
def test_sparse_products_and_take(drawn, axis):
    X, _, rng = drawn
    X = X if axis == 1 else np.ascontiguousarray(X.T)  # vectors: columns of X
    arrays, dense = compressed(X, 1), X.astype(float)
    n, p = X.shape
    v, b = frozen(rng.standard_normal(n), rng.standard_normal(p) * (rng.random(p) < 0.7))
    out = np.full(p, np.nan)
    design_kernels.sparse_dots(*arrays, v, out)
    close(out, dense.T @ v)
    out = np.ones(n)
    design_kernels.sparse_axpys(*arrays, b, out)
    close(out, 1 + dense @ b)
    weight, residual, grad = frozen(rng.random(p)), np.ones(p), np.ones(n)
    design_kernels.sparse_refresh(*arrays, v, weight, residual, grad)
    close(residual, 1 - dense.T @ v)
    close(grad, 1 + dense @ (weight * residual))
    ids = frozen(rng.permutation(p)[: rng.integers(0, p + 1)])
    out = np.full(len(ids), np.nan)
    design_kernels.sparse_dots_at(*arrays, ids, v, out)
    close(out, dense[:, ids].T @ v)
    out = np.ones(n)
    design_kernels.sparse_pick_axpys(*arrays, ids, frozen(b[ids]), out)
    close(out, 1 + dense[:, ids] @ b[ids])
    for scale in np.empty(0), rng.uniform(1, 2, n):
        nnz = int(np.diff(arrays[2])[ids].sum())
        taken = np.empty(nnz), np.empty(nnz, np.int32), np.empty(len(ids) + 1, np.int64)
        for shift in np.empty(0), np.arange(1.0, 1 + len(ids)):
            design_kernels.sparse_take(*arrays, ids, *frozen(shift, scale), *taken)
            got = sp.csc_matrix(taken, shape=(n, len(ids))).toarray()
            want = dense[:, ids] - (shift * (dense[:, ids] != 0) if len(shift) else 0)
            close(got, want * (scale[:, None] if len(scale) else 1))


@pytest.mark.parametrize(
    ("indices", "offsets", "state"),
    [
        ([], [0], 0),
        ([], [0, 0, 0], 0),
        ([0, 2, 4], [0, 3], 0),
        ([0, 4, 0, 4], [0, 2, 2, 4], 0),
        ([2, 0], [0, 2], 1),
        ([1, 1], [0, 2], 1),
        ([0, 1, 1, 0], [0, 2, 4], 1),
        ([0, 5], [0, 2], 2),
        ([-1, 2], [0, 2], 2),
        ([2, 1, 7], [0, 2, 3], 2),
    ],
)
def test_sparse_order(indices, offsets, state):
    indices, offsets = frozen(np.array(indices, np.int32), np.array(offsets, np.int64))
    assert design_kernels.sparse_order(indices, offsets, 5) == state


@pytest.mark.parametrize("uniform", [False, True])
def test_one_width_for_all_is_the_same_as_offsets(uniform):
    rng = np.random.default_rng(0)
    count, width, length = 7, 3, 5
    indices = np.concatenate([np.sort(rng.permutation(length)[:width]) for _ in range(count)])
    arrays = frozen(rng.standard_normal(count * width), indices.astype(np.uint16))
    v, b = frozen(rng.standard_normal(length), rng.standard_normal(count))
    inner, outer = frozen(np.ones(length) if uniform else rng.random(length), rng.random(count))
    ids, place = frozen(np.array([4, 0, 6]), np.array([1, -1, 0, 2, -1], np.int32))

    def everything(offsets):
        def filled(kernel, *rest, shapes):
            outs = [np.zeros(shape) for shape in shapes]
            kernel(*arrays, offsets, *rest, *outs)
            return outs

        kernels = design_kernels
        taken = np.empty(9), np.empty(9, np.uint16), np.empty(4, np.int64)
        kernels.sparse_take(*arrays, offsets, ids, *frozen(np.empty(0), np.empty(0)), *taken)
        gram = np.zeros((2, 3))
        gram_kernels.rows_gram(*arrays, offsets, outer, place, frozen(np.zeros(3)), 1, gram)
        return [
            kernels.sparse_order(arrays[1], offsets, length),
            *filled(kernels.sparse_dots, v, shapes=[count]),
            *filled(kernels.sparse_dots_at, ids, v, shapes=[3]),
            *filled(kernels.sparse_axpys, b, shapes=[length]),
            *filled(kernels.sparse_refresh, v, outer, shapes=[count, length]),
            *filled(kernels.sparse_pick_axpys, ids, frozen(v[:3]), shapes=[length]),
            *filled(kernels.sparse_moments_across, inner, uniform, True, shapes=[count, count]),
            *filled(kernels.sparse_moments_along, outer, True, outer, shapes=[length, length, length]),
            *taken,
            gram,
        ]

    short = everything(frozen(np.array([width])))
    for got, want in zip(short, everything(frozen(width * np.arange(count + 1))), strict=True):
        np.testing.assert_array_equal(got, want)


def below(gram, old):
    """The part that the Gram kernels answer for: on and below the diagonal that starts at column `old`."""
    return np.tril(gram, old)


@pytest.mark.parametrize("n", [0, 1, 7, 255, 256, 257, 600])
def test_dense_gram_adds_to_what_is_there(n):
    rng = np.random.default_rng(n)
    for k, old in (0, 3), (1, 0), (3, 1), (4, 0), (4, 3), (5, 4), (9, 2), (2, 9), (8, 8):
        if INTERPRETED and n > 7 and k + old > 7:
            continue
        B = rng.standard_normal((old + k, n))
        gram = np.ones((k, old + k))
        gram_kernels.dense_gram(*frozen(B[old:], B), old, gram)
        close(below(gram, old), below(1 + B[old:] @ B.T, old))


@FEW
@given(matrices(), st.sampled_from([0, 3]))
def test_gram_of_rows(drawn, pad):
    X, weight, rng = drawn
    p = X.shape[1]
    held = rng.permutation(p)[: rng.integers(0, p + 1)]
    old = int(rng.integers(0, len(held) + 1))
    new = held[old:]
    place = np.full(p, -1, np.int32)
    place[held] = np.arange(len(held))
    gram = np.ones((len(new), len(held)))
    gram_kernels.rows_gram(*compressed(X, 0), *frozen(weight, place, np.zeros(len(held))), old, gram)
    dense = X.astype(float)
    close(below(gram, old), below(1 + (dense[:, new] * weight[:, None]).T @ dense[:, held], old))
    mean = rng.standard_normal(p)
    flat, stride = flat_of(X, "C", pad)
    gram = np.ones((len(new), len(held)))
    gram_kernels.dense_rows_gram(flat, stride, *frozen(held, mean[held], weight), old, gram)
    Z = dense - mean
    close(below(gram, old), below(1 + (Z[:, new] * weight[:, None]).T @ Z[:, held], old))


@FEW
@given(matrices())
def test_compressed_gram(drawn):
    X, weight, rng = drawn
    n, p = X.shape
    scale, mean = frozen(np.sqrt(weight), rng.standard_normal(p))
    scaled = X * scale[:, None]
    values, indices, offsets = compressed(scaled, 1)
    # The kernel takes scale'x_j = total mean_j for granted: mean is the weighted mean of the column.
    total = scale @ scale
    mean = frozen(scale @ scaled / total if total > 0 else np.zeros(p))
    work, gram = np.zeros(n), np.full((p, p), np.nan)
    gram_kernels.compressed_gram(values, indices, offsets, mean, total, work, gram)
    Z = scaled - np.outer(scale, mean)
    np.testing.assert_allclose(gram, Z.T @ Z, atol=1e-12 * (1 + np.square(scaled).sum(axis=0).max()))
    np.testing.assert_array_equal(gram, gram.T)
    assert not work.any()


# ---- design: the same operator whatever the layout ----


@pytest.mark.parametrize(
    "layout", ["C", "F", "window of C", "window of F", "strided", "reversed", "csr", "csc"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operator(layout, dtype):
    rng = np.random.default_rng(0)
    X = np.round(8 * rng.standard_normal((9, 7)) * (rng.random((9, 7)) < 0.7)) / 8 + np.array(
        [0, 0, 1, 0, 0, 0, 0]
    )
    big = np.full((24, 30), np.nan, dtype, order="F" if layout.endswith("F") else "C")
    cuts = {"strided": (slice(1, 19, 2), slice(2, 23, 3)), "reversed": (slice(9, 0, -1), slice(7, 0, -1))}
    rows, columns = cuts.get(layout, (slice(4, 13), slice(5, 12)))
    big[rows, columns] = X
    given_X = {"C": X.astype(dtype), "F": np.asfortranarray(X, dtype)}.get(layout, big[rows, columns])
    if layout in ("csr", "csc"):
        given_X = sp.csr_matrix(X.astype(dtype)).asformat(layout)
        (slab,) = split(given_X, 1, 1 if layout == "csc" else 0)
        operator = SparseDesign(slab.matrix, slab.axis)
    else:
        operator = DenseDesign(given_X)
    weight, v, b = rng.uniform(0.5, 2, 9), rng.standard_normal(9), rng.standard_normal(3)
    ids = np.array([6, 0, 3])
    mean, spread, _ = operator.moments(weight, True)
    close(mean, centred(X, weight, True)[0])
    close(spread, centred(X, weight, True)[1])
    close(operator.correlate(v), X.T @ v)
    close(operator.combine(ids, b), X[:, ids] @ b)
    Z = np.sqrt(weight)[:, None] * (X - mean)
    if layout != "csc":
        new, held = np.array([1, 5]), np.array([6, 0, 3, 1, 5])  # the new ones last
        close(operator.gram(new, held, weight, mean, mean), Z[:, new].T @ Z[:, held])
    if layout != "csr":
        root = np.sqrt(weight)
        columns = operator.take(ids, root, mean[ids])
        assert not columns.values.flags.writeable
        gram, grad = columns_gram(columns, mean[ids], root, v)
        close(gram, Z[:, ids].T @ Z[:, ids])
        close(grad, Z[:, ids].T @ v)
        out = v.copy()
        columns_axpy(columns, mean[ids], root, b, out)
        close(out, v + Z[:, ids] @ b)


# ---- lasso_kernels ----


@given(st.floats(-1e3, 1e3), st.floats(0, 1e3), st.booleans())
def test_shrink_is_the_proximal_operator(z, lam, positive):
    got = lasso_kernels.shrink(z, lam, positive)
    assert got == max(z - lam, 0.0) - (0.0 if positive else max(-z - lam, 0.0))


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_duality_gap_bounds_the_suboptimality(beta, positive):
    rng = np.random.default_rng(0)
    Z, t, lam = rng.standard_normal((8, 5)), 3 * rng.standard_normal(8), 2.0
    best, _ = coordinate_descent(Z, t, np.zeros(5), lam, beta, positive)
    for step in 0.0, 0.1, 1.0:
        b = best + step * (np.abs(rng.standard_normal(5)) if positive else rng.standard_normal(5))
        q = t - Z @ b
        slope = Z.T @ q - beta * b
        largest = max(slope.max(), 0.0) if positive else np.abs(slope).max()
        gap = lasso_kernels.duality_gap(q @ q, t @ q, np.abs(b).sum(), b @ b, largest, lam, beta, positive)
        excess = value(Z, t, b, lam, beta) - value(Z, t, best, lam, beta)
        assert gap >= excess - 1e-12
        assert step > 0 or gap < 1e-10


def value(Z, t, b, lam, beta):
    q = t - Z @ b
    return q @ q / 2 + lam * np.abs(b).sum() + beta / 2 * (b @ b)


def coordinate_descent(Z, q, b, lam, beta, positive, sweeps=20_000):
    """The optimum of the block from (b, q), q = t - Z b, one variable after another; (b, q)."""
    b, q, norms = b.copy(), q.copy(), (Z**2).sum(axis=0)
    for _ in range(sweeps):
        largest = 0.0
        for j in range(len(b)):
            if norms[j] + beta == 0:
                continue
            z = Z[:, j] @ q + norms[j] * b[j]
            new = (max(z - lam, 0) - (0 if positive else max(-z - lam, 0))) / (norms[j] + beta)
            q -= (new - b[j]) * Z[:, j]
            largest, b[j] = max(largest, abs(new - b[j])), new
        if largest < 1e-15:
            break
    return b, q


BLOCKS = [
    pytest.param(lam, beta, positive, id=f"lam={lam}-beta={beta}{'-positive' if positive else ''}")
    for lam, beta in [(1.0, 0.0), (1.0, 0.5), (0.0, 0.5), (0.0, 0.0)]
    for positive in (False, True)
]


def block(seed=0, weighted=True):
    """X (20, 8) half zeros, scale, Z = scale (X - mean), its norms, and a start (coef, residual)."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((20, 8)) * (rng.random((20, 8)) < 0.6) + np.eye(20, 8)
    X[:, 5] = 0.0
    weight = rng.uniform(0.5, 2, 20) if weighted else np.ones(20)
    scale, mean = np.sqrt(weight), weight @ X / weight.sum()
    Z = scale[:, None] * (X - mean)
    coef = np.array([0.5, 0, 0, 1.0, 0, 0, 0, 0.2])
    target = scale * (X[:, 0] * 3 - X[:, 1] + rng.standard_normal(20))
    target -= scale * (scale @ target) / (scale @ scale)  # scale'q = 0, as with an intercept
    return X, scale, mean, Z, np.einsum("ij,ij->j", Z, Z), coef, target - Z @ coef


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("lam", "beta", "positive"), BLOCKS)
def test_solvers_find_the_block_s_optimum(lam, beta, positive, weighted):
    X, scale, mean, Z, norms, coef, q = block(weighted=weighted)
    want, residual = coordinate_descent(Z, q, coef, lam, beta, positive, 2000)
    stop = (lam, beta, positive, 1e-13, 10_000)
    b, r = coef.copy(), q.copy()
    looks, _ = lasso_kernels.solve_dense(*frozen(np.ascontiguousarray(Z.T), norms), b, r, *stop)
    assert 0 < looks < 1000
    close(r, q - Z @ (b - coef))
    np.testing.assert_allclose(b, want, atol=1e-5)
    b, r = coef.copy(), q.copy()
    arrays = compressed(scale[:, None] * X, 1)
    means, normed, scales = frozen(mean, norms, scale)
    looks, _ = lasso_kernels.solve_sparse(*arrays, means, normed, scales, scale @ scale, b, r, *stop)
    assert 0 < looks < 1000
    close(r, q - Z @ (b - coef))
    np.testing.assert_allclose(b, want, atol=1e-5)
    b, grad = coef.copy(), Z.T @ q
    rr, _ = lasso_kernels.solve_gram(*frozen(Z.T @ Z, norms), grad, b, q @ q, *stop)
    close(grad, Z.T @ (q - Z @ (b - coef)))
    close(rr, np.sum((q - Z @ (b - coef)) ** 2))
    np.testing.assert_allclose(b, want, atol=1e-5)
    assert residual @ residual == pytest.approx(rr, rel=1e-6)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_solver_that_is_cut_short_leaves_the_residual_right(limit):
    X, scale, mean, Z, norms, coef, q = block(1)
    stop = (0.3, 0.0, False, 0.0, limit)  # a target that is never reached
    b, r = coef.copy(), q.copy()
    assert lasso_kernels.solve_dense(*frozen(np.ascontiguousarray(Z.T), norms), b, r, *stop)[0] == limit
    close(r, q - Z @ (b - coef))
    b, r = coef.copy(), q.copy()
    arrays = compressed(scale[:, None] * X, 1)
    means, normed, scales = frozen(mean, norms, scale)
    assert lasso_kernels.solve_sparse(*arrays, means, normed, scales, scale @ scale, b, r, *stop)[0] == limit
    close(r, q - Z @ (b - coef))
    if limit:
        assert (b != coef).any()


@pytest.mark.parametrize(("lam", "beta", "positive"), BLOCKS)
def test_inspect_counts_the_active_and_bounds_the_block(lam, beta, positive):
    *_, Z, norms, coef, q = block(2)
    grad, active = Z.T @ q, np.full(8, -1)
    gap, count = lasso_kernels.inspect(*frozen(grad, coef, norms), q @ q, lam, beta, positive, active)
    d = grad - beta * coef
    want = np.flatnonzero((coef != 0) | ((d if positive else np.abs(d)) > lam))
    assert list(active[:count]) == list(want)
    best, residual = coordinate_descent(Z, q, coef, lam, beta, positive)
    if lam > 0:
        excess = value(Z, q + Z @ coef, coef, lam, beta) - value(Z, residual + Z @ best, best, lam, beta)
        assert gap >= excess - 1e-10
    # nothing is left to do at the optimum
    gap, _ = lasso_kernels.inspect(
        Z.T @ residual, best, norms, residual @ residual, lam, beta, positive, active
    )
    assert abs(gap) < 1e-9


# ---- the same without numba ----


@pytest.mark.skipif(INTERPRETED, reason="this is that run")
@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "name",
    [
        "test_kernels.py",
        "test_stream.py",
        "test_svmlight_kernels.py",
        "test_entries_kernels.py",
        "test_factor_kernels.py",
        "test_topic_kernels.py",
    ],
)
def test_the_suite_without_jit(name):
    if not (HERE / name).exists():
        pytest.skip(f"no {name}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE / name)],
        cwd=HERE.parents[1],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
