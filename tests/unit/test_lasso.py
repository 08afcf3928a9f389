import hashlib
import io
import os
import pickle
import re
import subprocess
import sys
import threading
import warnings
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import oracles
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse as sp
import sklearn.linear_model
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from daskstrads import ElasticNet, Lasso
from daskstrads.algos import lasso as estimators

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {"wide": (25, 40), "tall": (150, 18), "square": (30, 30)}
EPS = np.finfo(float).eps


def problem(shape="tall", seed=0, zeros=0.4):
    """Correlated columns, entries that are multiples of 1/8 (exact in every dtype), some of them zero."""
    n, p = SHAPES.get(shape, shape)
    rng = np.random.default_rng([seed, n, p])
    X = rng.standard_normal((n, p)) + 0.6 * rng.standard_normal((n, 1)) + 0.3 * rng.standard_normal(p)
    X = np.round(8 * X * (rng.random((n, p)) > zeros)) / 8
    b = np.zeros(p)
    b[: min(6, p)] = [2.0, -1.5, 1.0, 0.7, -0.5, 0.3][: min(6, p)]
    return X, X @ b + 0.5 * rng.standard_normal(n) + 3.0


def reference(X, y, alpha, l1_ratio=1.0, *, fit_intercept=True, weight=None, positive=False):
    """scikit-learn's own answer on a dense float64 copy, certified by the oracle."""
    rules = {"fit_intercept": fit_intercept, "weight": weight, "positive": positive}
    # Its loop multiplies by l1_ratio, so a tiny one stands in for 0 without its warnings.
    twin = sklearn.linear_model.ElasticNet(
        alpha, l1_ratio=l1_ratio, fit_intercept=fit_intercept, positive=positive, tol=1e-12, max_iter=200_000
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns at l1_ratio=0, whose gap it does not compute well
        twin.fit(oracles.dense(X), np.array(y, np.float64), sample_weight=weight)
    gap = oracles.duality_gap(X, y, twin.coef_, alpha, l1_ratio, **rules)
    assert (
        gap <= 1e-11 * np.maximum(oracles.scale(X, y, fit_intercept=fit_intercept, weight=weight), 1)
    ).all()
    return twin


def check(model, X, y, *, weight=None, tol=1e-12, atol=1e-5):
    """The fit agrees with scikit-learn's, and its dual_gap_ is the independent certificate."""
    l1_ratio = getattr(model, "l1_ratio", 1.0)
    rules = {"fit_intercept": model.fit_intercept, "weight": weight}
    want = reference(X, y, model.alpha, l1_ratio, positive=model.positive, **rules)
    assert model.coef_.shape == want.coef_.shape
    assert np.shape(model.intercept_) == np.shape(want.intercept_)
    np.testing.assert_allclose(model.coef_, want.coef_, rtol=1e-5, atol=atol)
    np.testing.assert_allclose(model.intercept_, want.intercept_, rtol=1e-5, atol=3 * atol)
    if model.positive:
        assert (model.coef_ >= 0).all()
    if model.coef_.dtype == np.float64:  # a rounded coef_ has another gap than the one that was certified
        certified(model, X, y, weight=weight, tol=tol)
        value, best = (
            oracles.objective(X, y, fit.coef_, fit.intercept_, model.alpha, l1_ratio, weight=weight)
            for fit in (model, want)
        )
        slack = 1e-13 * oracles.scale(X, y, **rules)
        assert (value - best <= np.maximum(model.dual_gap_, 0) + slack).all()


def certified(model, X, y, *, weight=None, tol=None):
    """dual_gap_ is the oracle's gap up to rounding, and at most tol where tol is given."""
    rules = {"fit_intercept": model.fit_intercept, "weight": weight}
    scale = oracles.scale(X, y, **rules)
    gap = oracles.duality_gap(
        X, y, model.coef_, model.alpha, getattr(model, "l1_ratio", 1.0), positive=model.positive, **rules
    )
    np.testing.assert_allclose(model.dual_gap_, gap, rtol=1e-9, atol=float(500 * EPS * np.max(scale)))
    if tol is not None:
        assert (np.asarray(model.dual_gap_) <= tol * scale).all()
        assert (gap <= tol * scale + 500 * EPS * scale).all()


def bits(model):
    return model.coef_.tobytes(), np.asarray(model.intercept_).tobytes(), model.n_iter_


# ---- containers ----


def strided(X):
    big = np.full((2 * X.shape[0], 3 * X.shape[1]), np.nan)
    big[::2, ::3] = X
    return big[::2, ::3]


def window(X, order):
    big = np.full((X.shape[0] + 3, X.shape[1] + 5), np.nan, order=order)
    big[2:-1, 3:-2] = X
    return big[2:-1, 3:-2]


def record_field(X, order="C"):
    """A field of a packed record array: entries lie together, rows a whole number of bytes apart only."""
    X = X if order == "C" else X.T
    records = np.zeros(len(X), dtype=[("x", "f8", (X.shape[1],)), ("flag", "i1")])
    records["x"], records["flag"] = X, -1
    return records["x"] if order == "C" else records["x"].T


def unaligned(X):
    buffer = bytearray(1) + bytearray(X.tobytes())
    return np.frombuffer(buffer, np.float64, X.size, 1).reshape(X.shape)


def frozen(X):
    for array in (X,) if isinstance(X, np.ndarray) else (X.data, X.indices, X.indptr):
        array.flags.writeable = False
    return X


def wide_index(X):
    X = sp.csr_array(X)
    return sp.csr_array((X.data, X.indices.astype(np.int64), X.indptr.astype(np.int64)), shape=X.shape)


CONTAINERS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": strided,
    "window of C": lambda X: window(X, "C"),
    "window of F": lambda X: window(X, "F"),
    "rows reversed": lambda X: X[::-1].copy()[::-1],
    "columns reversed": lambda X: np.asfortranarray(X[:, ::-1])[:, ::-1],
    "record field": record_field,
    "record field F": lambda X: record_field(X, "F"),
    "unaligned": unaligned,
    "big-endian": lambda X: X.astype(">f8"),
    "float32": lambda X: X.astype(np.float32),
    "float32 F": lambda X: np.asfortranarray(X, np.float32),
    "float16": lambda X: X.astype(np.float16),
    "longdouble": lambda X: X.astype(np.longdouble),
    "int64": lambda X: (8 * X).astype(np.int64),
    "int8 F": lambda X: np.asfortranarray(8 * X, np.int8),
    "bool": lambda X: X > 0,
    "object": lambda X: X.astype(object),
    "list": lambda X: X.tolist(),
    "DataFrame": lambda X: pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]),
    "DataFrame sparse": lambda X: pd.DataFrame.sparse.from_spmatrix(sp.csc_matrix(X)),
    "csr": sp.csr_matrix,
    "csc": sp.csc_matrix,
    "coo array": sp.coo_array,
    "coo": sp.coo_matrix,
    "csr array": sp.csr_array,
    "csc array": sp.csc_array,
    "lil array": sp.lil_array,
    "csr int64 index": wide_index,
    "csr float32": lambda X: sp.csr_matrix(X, dtype=np.float32),
    "csc float32": lambda X: sp.csc_array(X, dtype=np.float32),
    "csr int": lambda X: sp.csr_matrix((8 * X).astype(np.int64)),
    "csc bool": lambda X: sp.csc_matrix(X > 0),
    "C read-only": lambda X: frozen(X.copy()),
    "csr read-only": lambda X: frozen(sp.csr_matrix(X)),
    "csc read-only": lambda X: frozen(sp.csc_matrix(X)),
}


def values(X):
    """Everything of a container that a fit could change."""
    if sp.issparse(X):
        names = [name for name in ("data", "indices", "indptr", "row", "col") if hasattr(X, name)]
        if X.format == "lil":
            return X.toarray().tobytes()
        return [(getattr(X, name).tobytes(), getattr(X, name).flags.writeable) for name in names]
    return np.asarray(X).tobytes(), X.flags.writeable if isinstance(X, np.ndarray) else None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_gives_sklearns_answer_and_is_left_alone(container, shape):  # cases 11, 21
    X, y = problem(shape)
    X = CONTAINERS[container](X)
    before = values(X)
    model = Lasso(0.1, tol=1e-12, n_shards=2).fit(X, y)
    check(model, X, y)
    assert model.coef_.dtype == (np.float32 if "float32" in container else np.float64)
    assert model.n_features_in_ == SHAPES[shape][1]
    assert values(X) == before


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_memmaps_are_read_in_place(tmp_path, shape, order):
    X, y = problem(shape)
    path = tmp_path / "X.dat"
    disk = np.memmap(path, np.float64, "w+", shape=X.shape, order=order)
    disk[:] = X
    disk.flush()
    before = path.read_bytes()
    for mode in "r", "r+", "c":
        mapped = np.memmap(path, np.float64, mode, shape=X.shape, order=order)
        check(Lasso(0.1, tol=1e-12, n_shards=3, copy_X=False).fit(mapped, y), X, y)
        assert path.read_bytes() == before


@pytest.mark.parametrize("fmt", ["csr", "csc"])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_y_and_weights_are_left_alone(shape, fmt):
    X, y = problem(shape)
    weight = np.linspace(0.5, 2, len(y))
    y.flags.writeable = weight.flags.writeable = False
    before = y.tobytes(), weight.tobytes()
    ElasticNet(0.1, n_shards=2, copy_X=False).fit(sp.csr_matrix(X).asformat(fmt), y, weight)
    assert (y.tobytes(), weight.tobytes()) == before


@pytest.mark.parametrize("kind", ["int64", "int8", "bool", "float32", "float16", "object", "list", "Series"])
def test_every_kind_of_y(kind):  # case 21
    X, y = problem("tall")
    y = np.round(y) if kind != "bool" else y > 3
    kinds = {"list": lambda y: y.tolist(), "Series": pd.Series}
    given_y = kinds.get(kind, lambda y: y.astype(kind))(y)
    check(Lasso(0.05, tol=1e-12).fit(X, given_y), X, np.asarray(y, float))


def test_float32_stays_float32_and_is_computed_in_float64():  # case 21
    X, y = problem("tall")
    X32 = X.astype(np.float32)
    one = Lasso(0.1, tol=1e-12).fit(X32, y)
    assert one.coef_.dtype == np.float32
    assert one.predict(X32).dtype == np.float32
    assert one.sparse_coef_.dtype == np.float32
    # X is exact in both, so all the digits that float32 has must be right
    exact = Lasso(0.1, tol=1e-12).fit(X, y)
    np.testing.assert_array_equal(one.coef_, exact.coef_.astype(np.float32))
    assert one.dual_gap_ == pytest.approx(exact.dual_gap_, rel=1e-6)
    two = Lasso(0.1).fit(X32, np.column_stack([y, -y]).astype(np.float32))
    assert two.predict(X32).dtype == np.float32  # as scikit-learn's


# ---- options ----


@pytest.mark.parametrize("container", ["C", "F", "csr"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("positive", [False, True], ids=["", "positive"])
@pytest.mark.parametrize("fit_intercept", [True, False], ids=["intercept", "no intercept"])
@pytest.mark.parametrize("shape", SHAPES)
def test_options_give_sklearns_answer(shape, fit_intercept, positive, weighted, container):
    X, y = problem(shape, seed=1)
    given_X = CONTAINERS[container](X)
    weight = np.random.default_rng(2).uniform(0.2, 3, len(y)) if weighted else None
    for l1_ratio, n_shards in (0.0, 1), (0.3, 3), (1.0, 2):
        model = ElasticNet(
            0.1, l1_ratio=l1_ratio, fit_intercept=fit_intercept, positive=positive, tol=1e-12,
            n_shards=n_shards,
        ).fit(given_X, y, sample_weight=weight)  # fmt: skip
        check(model, X, y, weight=weight)
        if not fit_intercept:
            assert model.intercept_ == 0.0


LAYOUT_UPDATES = [  # of tall X, "apart" is "exact"
    ("wide", "exact"),
    ("wide", "apart"),
    ("wide", "parallel"),
    ("tall", "exact"),
    ("tall", "parallel"),
]


@pytest.mark.parametrize("container", ["C", "csc"])
@pytest.mark.parametrize("selection", ["dynamic", "cyclic", "random"])
@pytest.mark.parametrize(("shape", "update"), LAYOUT_UPDATES)
def test_schedules_give_sklearns_answer(shape, update, selection, container):
    X, y = problem(shape, seed=3)
    for l1_ratio, n_shards, positive in (1.0, 1, False), (0.4, 3, True):
        model = ElasticNet(
            0.2, l1_ratio=l1_ratio, update=update, selection=selection, n_shards=n_shards, rho=0.5,
            positive=positive, tol=1e-10, max_iter=5000, random_state=0,
        ).fit(CONTAINERS[container](X), y)  # fmt: skip
        check(model, X, y, tol=1e-10, atol=1e-4)


@pytest.mark.parametrize("container", ["C", "F", "csr"])
@pytest.mark.parametrize(("shape", "update"), LAYOUT_UPDATES)
def test_shards_agree(shape, update, container):
    X, y = problem(shape, seed=4)
    weight = np.random.default_rng(5).uniform(0.5, 2, len(y))
    X = CONTAINERS[container](X)
    tol = 1e-8 if update == "parallel" else 1e-12
    more = (max(SHAPES[shape]) + 4,) if container == "C" else ()  # more than there are columns or rows
    fits = {
        size: Lasso(0.2, tol=tol, n_shards=size, update=update, rho=0.5, max_iter=5000, random_state=1).fit(
            X, y, weight
        )
        for size in ((1, 2, 7) if update == "parallel" else (1, 2, 3, 7, *more))
    }
    check(fits[1], X, y, weight=weight, tol=tol, atol=1e-4)
    for fit in fits.values():
        certified(fit, X, y, weight=weight, tol=tol)
        np.testing.assert_allclose(fit.coef_, fits[1].coef_, rtol=1e-5, atol=1e-5 if tol < 1e-10 else 2e-4)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (2, 2), (1, 9), (9, 2), (2, 9)])
def test_tiny_shapes_with_more_shards_than_anything(shape):  # case 20
    X, y = problem(shape, zeros=0)
    for n_shards, fit_intercept in product([1, 3, 11], [True, False]):
        for given_X in X, sp.csr_matrix(X):
            model = Lasso(0.01, n_shards=n_shards, fit_intercept=fit_intercept, tol=1e-13).fit(given_X, y)
            assert model.coef_.shape == shape[1:]
            certified(model, X, y, tol=1e-13)


@pytest.mark.parametrize("container", ["C", "csr"])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_several_targets(shape, container):
    X, y = problem(shape)
    Y = np.column_stack([y, -2 * y + X[:, 7], np.zeros(len(y))])
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    for l1_ratio in 1.0, 0.3:
        model = ElasticNet(0.1, l1_ratio=l1_ratio, tol=1e-12, n_shards=2)
        model.fit(CONTAINERS[container](X), Y, weight)
        check(model, X, Y, weight=weight)
        assert model.coef_.shape == (3, X.shape[1])
        assert model.sparse_coef_.shape == (3, X.shape[1])
        assert model.intercept_.shape == model.dual_gap_.shape == (3,)
        assert len(model.n_iter_) == 3
        assert model.predict(X).shape == Y.shape
        for k in range(3):
            alone = clone(model).fit(CONTAINERS[container](X), Y[:, k], weight)
            np.testing.assert_array_equal(alone.coef_, model.coef_[k])


@pytest.mark.parametrize("wide", [True, False])
@settings(max_examples=40)
@given(data=st.data())
def test_small_integer_problems(wide, data):  # cases 13-16: zero, equal and constant columns abound
    small, large = data.draw(st.integers(1, 5)), data.draw(st.integers(6, 9))
    n, p = (small, large) if wide else (large, small)
    entries = st.integers(-2, 2)
    X = np.array(data.draw(st.lists(entries, min_size=n * p, max_size=n * p)), float).reshape(n, p)
    y = np.array(data.draw(st.lists(entries, min_size=n, max_size=n)), float)
    counts = data.draw(st.none() | st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    weight = None if counts is None else np.array(counts, float)
    model = ElasticNet(
        data.draw(st.sampled_from([0.01, 0.1, 1.0])),
        l1_ratio=data.draw(st.sampled_from([0.0, 0.3, 1.0])),
        fit_intercept=data.draw(st.booleans()),
        positive=data.draw(st.booleans()),
        n_shards=data.draw(st.integers(1, 3)),
        tol=1e-10,
    )
    given_X = sp.csr_matrix(X) if data.draw(st.booleans()) else X
    model.fit(given_X, y, weight)
    certified(model, X, y, weight=weight, tol=1e-10)
    rules = {"fit_intercept": model.fit_intercept, "positive": model.positive, "weight": weight}
    coef, intercept = oracles.solve(X, y, model.alpha, model.l1_ratio, **rules, sweeps=500)
    value, best = (
        oracles.objective(X, y, b, c, model.alpha, model.l1_ratio, weight=weight)
        for b, c in ((model.coef_, model.intercept_), (coef, intercept))
    )
    assert value <= best + model.dual_gap_ + 1e-14
    assert best >= value - 1e-9


# ---- the certificate ----


@pytest.mark.parametrize("l1_ratio", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_gap_is_honest_on_the_way_and_the_objective_never_rises(shape, l1_ratio, monkeypatch):  # case 19
    monkeypatch.setattr(estimators, "_ROW_BLOCK", 4)  # or one block were all of it
    X, y = problem(shape, seed=6)
    best = reference(X, y, 0.02, l1_ratio)
    lowest = oracles.objective(X, y, best.coef_, best.intercept_, 0.02, l1_ratio)
    for update, selection in product(["exact", "parallel"], ["dynamic", "cyclic", "random"]):
        reached = []
        for max_iter in (1, 2, 3, 5, 8):  # the same seed: each fit continues the one before
            model = ElasticNet(
                0.02, l1_ratio=l1_ratio, max_iter=max_iter, tol=1e-13, update=update, selection=selection,
                random_state=7, n_shards=2, rho=0.3,
            )  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(X, y)
            certified(model, X, y)
            reached.append(oracles.objective(X, y, model.coef_, model.intercept_, 0.02, l1_ratio))
            assert model.dual_gap_ >= reached[-1] - lowest - 1e-13
            assert model.n_iter_ <= max_iter + 1  # the measurement after the last pass counts
        assert all(later <= earlier * (1 + 1e-13) for earlier, later in pairwise(reached))
        assert reached[-1] < reached[0]


def test_the_oracle_agrees_with_itself_and_with_sklearn():
    X, y = problem("tall")
    for l1_ratio, positive, fit_intercept in product([1.0, 0.3], [True, False], [True, False]):
        rules = {"positive": positive, "fit_intercept": fit_intercept}
        coef, intercept = oracles.solve(X, y, 0.1, l1_ratio, **rules)
        assert abs(oracles.duality_gap(X, y, coef, 0.1, l1_ratio, **rules)) < 1e-12
        want = reference(X, y, 0.1, l1_ratio, **rules)
        np.testing.assert_allclose(coef, want.coef_, atol=1e-5)
        np.testing.assert_allclose(intercept, want.intercept_, atol=1e-5)
        off = np.maximum(coef + 0.01 * np.arange(len(coef)), 0)
        centre = np.mean(y - X @ off) if fit_intercept else 0.0
        worse = oracles.objective(X, y, off, centre, 0.1, l1_ratio)
        best = oracles.objective(X, y, coef, intercept, 0.1, l1_ratio)
        assert oracles.duality_gap(X, y, off, 0.1, l1_ratio, **rules) >= worse - best > 0


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-8])
def test_stops_at_tol_and_not_long_after(tol):
    X, y = problem("wide")
    model = Lasso(0.05, tol=tol, selection="cyclic").fit(X, y)
    assert model.dual_gap_ <= tol * oracles.scale(X, y)
    assert model.n_iter_ <= Lasso(0.05, tol=1e-12, selection="cyclic").fit(X, y).n_iter_


@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_too_few_passes_warn_and_name_the_remedy(shape):
    X, y = problem(shape)
    model = Lasso(0.001, max_iter=1, tol=1e-14, update="parallel")
    with pytest.warns(ConvergenceWarning, match=r"duality gap .* tol=1e-14.*raise max_iter") as caught:
        model.fit(X, y)
    assert len(caught) == 1
    assert caught[0].filename == __file__  # it points at the caller
    assert model.dual_gap_ > 1e-14 * oracles.scale(X, y)
    certified(model, X, y)


# ---- alpha = 0 ----


@pytest.mark.parametrize("container", ["C", "csr"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("fit_intercept", [True, False], ids=["intercept", "no intercept"])
def test_alpha_zero_is_least_squares(fit_intercept, weighted, container):  # case 17
    X, y = problem("tall")
    weight = np.random.default_rng(2).uniform(0.2, 3, len(y)) if weighted else None
    Z, t = oracles.root_problem(X, y, fit_intercept, weight)
    model = Lasso(0.0, tol=1e-12, fit_intercept=fit_intercept, n_shards=2)
    model.fit(CONTAINERS[container](X), y, weight)
    np.testing.assert_allclose(model.coef_, np.linalg.lstsq(Z, t)[0], atol=1e-8)
    assert np.isnan(model.dual_gap_)
    model.set_params(positive=True).fit(CONTAINERS[container](X), y, weight)
    np.testing.assert_allclose(model.coef_, scipy.optimize.nnls(Z, t)[0], atol=1e-8)


@pytest.mark.parametrize("container", ["C", "csr"])
def test_alpha_zero_on_wide_data_fits_exactly(container):  # case 17
    X, y = problem("wide")
    model = Lasso(0.0, tol=1e-10, n_shards=2).fit(CONTAINERS[container](X), y)
    np.testing.assert_allclose(model.predict(X), y, atol=1e-6)


# ---- the same bits ----


@pytest.mark.parametrize("container", ["C", "csr"])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_same_shards_same_bits(shape, container):
    X, y = problem(shape)
    X = CONTAINERS[container](X)
    for update, selection, n_shards in product(["exact", "parallel"], ["dynamic", "random"], [1, 3]):
        model = Lasso(
            0.5,
            update=update,
            selection=selection,
            n_shards=n_shards,
            random_state=3,
            tol=1e-3,
            rho=0.4,
        )
        first = bits(model.fit(X, y))
        assert all(bits(clone(model).fit(X, y)) == first for _ in range(2))


BITS = """
import hashlib, sys
import numpy as np, scipy.sparse as sp
from daskstrads import ElasticNet
digest = hashlib.sha256()
for n, p in (200, 30), (40, 80):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    X[rng.random((n, p)) < 0.5] = 0
    y = X[:, :5].sum(axis=1) + rng.standard_normal(n)
    for A in X, np.asfortranarray(X), sp.csr_matrix(X):
        for update in "exact", "parallel":
            m = ElasticNet(0.3, n_shards=2, update=update, rho=0.4, random_state=0, max_iter=5000)
            m.fit(A, np.column_stack([y, y - X[:, 9]]), np.linspace(1, 2, n))
            digest.update(m.coef_.tobytes() + m.intercept_.tobytes() + m.dual_gap_.tobytes())
sys.stdout.write(digest.hexdigest())
"""


@pytest.mark.timeout(100)
def test_same_bits_whatever_the_number_of_blas_threads():
    names = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", BITS],
            cwd=ROOT,
            env={**os.environ, **dict.fromkeys(names, threads)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for threads in ("1", "2")
    ]
    try:
        outputs = [run.communicate(timeout=90)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert [run.returncode for run in runs] == [0, 0]
    assert len(outputs[0]) == len(hashlib.sha256().hexdigest())
    assert outputs[0] == outputs[1]


def test_random_state_decides_the_schedule():
    X, y = problem((120, 100))  # more columns than a block of the parallel update

    def after_two_passes(seed):
        model = Lasso(0.01, update="parallel", selection="random", tol=1e-14, max_iter=2, random_state=seed)
        with pytest.warns(ConvergenceWarning):
            return bits(model.fit(X, y))

    assert after_two_passes(0) == after_two_passes(0)
    assert after_two_passes(0) != after_two_passes(1)
    assert after_two_passes(np.random.RandomState(5)) == after_two_passes(np.random.RandomState(5))
    after_two_passes(None)
    with pytest.raises(ValueError, match="seed"):
        Lasso(random_state="chance").fit(X, y)


def test_two_fits_at_once():  # case 40, in one process
    problems = [problem(shape, seed=seed) for seed in range(3) for shape in ("wide", "tall")]
    alone = [bits(Lasso(0.05, n_shards=3, tol=1e-10).fit(X, y)) for X, y in problems]
    together, errors = [None] * len(problems), []
    barrier = threading.Barrier(len(problems))

    def fit(k):
        try:
            barrier.wait(10)
            for _ in range(3):
                together[k] = bits(Lasso(0.05, n_shards=3, tol=1e-10).fit(*problems[k]))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=fit, args=(k,)) for k in range(len(problems))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert together == alone


# ---- warm start, verbose ----


@pytest.mark.parametrize("container", ["C", "csr"])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_warm_start_starts_at_the_last_solution(shape, container):
    X, y = problem(shape)
    given_X = CONTAINERS[container](X)
    model = Lasso(0.05, tol=1e-10, warm_start=True, n_shards=2, selection="cyclic").fit(given_X, y)
    cold, kept = model.coef_, model.coef_.copy()
    passes = model.n_iter_
    assert model.fit(given_X, y).n_iter_ == 1 < passes
    np.testing.assert_array_equal(model.coef_, kept)
    certified(model, X, y, tol=1e-10)
    model.set_params(alpha=0.3).fit(given_X, y)
    check(model, X, y, tol=1e-10, atol=1e-4)
    np.testing.assert_array_equal(cold, kept)  # the array handed out earlier is not written
    model.set_params(positive=True).fit(given_X, y)  # from negative coefficients
    check(model, X, y, tol=1e-10, atol=1e-4)
    model.set_params(warm_start=False, positive=False, alpha=0.05).fit(given_X, y)
    assert model.n_iter_ == passes


def test_warm_start_of_several_targets_and_of_another_shape():
    X, y = problem("tall")
    Y = np.column_stack([y, -y])
    model = Lasso(0.05, tol=1e-10, warm_start=True).fit(X, Y)
    assert model.fit(X, Y).n_iter_ == [1, 1]
    with pytest.raises(ValueError, match=r"coef_ has shape \(2, 18\).*\(1, 18\).*warm_start=False"):
        model.fit(X, y)
    with pytest.raises(ValueError, match="warm_start=False"):
        model.fit(X[:, :9], Y)


LINE = re.compile(r"\[daskstrads\] pass (\d+): objective (\S+), gap (\S+), (\d+) nonzero, (\S+) s")


@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_verbose_prints_a_line_a_pass(shape, capsys):
    X, y = problem(shape)
    model = Lasso(0.1, tol=1e-10, verbose=True, n_shards=2, selection="cyclic").fit(X, y)
    lines = [LINE.fullmatch(line) for line in capsys.readouterr().out.splitlines()]
    assert all(lines)
    assert [int(line[1]) for line in lines] == list(range(1, model.n_iter_ + 1))
    objectives = [float(line[2]) for line in lines]
    assert objectives == sorted(objectives, reverse=True)
    assert float(lines[0][2]) == pytest.approx(oracles.scale(X, y) / 2, rel=1e-6)
    assert objectives[-1] == pytest.approx(
        oracles.objective(X, y, model.coef_, model.intercept_, 0.1), rel=1e-6
    )
    assert float(lines[-1][3]) == pytest.approx(model.dual_gap_, rel=0.02)
    assert int(lines[-1][4]) == np.count_nonzero(model.coef_)
    model.set_params(verbose=False).fit(X, y)
    assert capsys.readouterr() == ("", "")


# ---- predict, score, names, tools ----


def test_predict_and_score():
    X, y = problem("tall")
    for target in y, np.column_stack([y, X[:, 3]]):
        model = Lasso(0.1).fit(X, target)
        want = X @ model.coef_.T + model.intercept_
        for container in "C", "F", "strided", "csr", "csc", "coo", "csr array", "lil array", "DataFrame":
            new = CONTAINERS[container](X)
            if container == "DataFrame":
                new = new.to_numpy()
            np.testing.assert_allclose(model.predict(new), want, rtol=1e-12)
        residual = ((target - want) ** 2).sum(axis=0) / ((target - target.mean(axis=0)) ** 2).sum(axis=0)
        assert model.score(X, target) == pytest.approx(np.mean(1 - residual))
    assert isinstance(model.sparse_coef_, sp.csr_matrix)
    np.testing.assert_array_equal(model.sparse_coef_.toarray(), model.coef_)
    single = Lasso(0.1).fit(X, y)
    assert single.sparse_coef_.shape == (1, X.shape[1])
    with pytest.raises(ValueError, match="18 features"):
        single.predict(X[:, :5])
    with pytest.raises(ValueError, match="NaN"):
        single.predict(np.full_like(X, np.nan))
    with pytest.raises(NotFittedError):
        Lasso().predict(X)


def test_feature_names():  # case 27
    X, y = problem((30, 3))
    frame = pd.DataFrame(X, columns=list("abc"))
    model = Lasso(0.1).fit(frame, y)
    assert list(model.feature_names_in_) == list("abc")
    np.testing.assert_allclose(model.predict(frame), X @ model.coef_ + model.intercept_)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("bac")])
    assert not hasattr(Lasso(0.1).fit(X, y), "feature_names_in_")


def test_clone_pickle_pipeline_and_grid_search():
    X, y = problem("tall")
    model = ElasticNet(0.1, l1_ratio=0.7, n_shards=2, tol=1e-8, random_state=0).fit(X, y)
    assert bits(pickle.loads(pickle.dumps(model))) == bits(model)
    assert pickle.loads(pickle.dumps(model)).get_params() == model.get_params()
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "coef_")
    pipeline = make_pipeline(StandardScaler(), Lasso(tol=1e-8))
    search = GridSearchCV(pipeline, {"lasso__alpha": [1e-3, 0.1, 10.0]}, cv=3, n_jobs=1).fit(X, y)
    twin = make_pipeline(StandardScaler(), sklearn.linear_model.Lasso(tol=1e-8))
    want = GridSearchCV(twin, {"lasso__alpha": [1e-3, 0.1, 10.0]}, cv=3, n_jobs=1).fit(X, y)
    assert search.best_params_ == want.best_params_
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], want.cv_results_["mean_test_score"], rtol=1e-4
    )


def test_parameters_are_sklearns():
    for ours, theirs in (
        (Lasso, sklearn.linear_model.Lasso),
        (ElasticNet, sklearn.linear_model.ElasticNet),
    ):
        mine, want = ours().get_params(), theirs().get_params()
        assert want.keys() - mine.keys() == {"precompute"}
        assert mine.keys() - want.keys() == {"update", "rho", "n_shards", "verbose"}
        same = want.keys() & mine.keys() - {"selection"}
        assert {name: mine[name] for name in same} == {name: want[name] for name in same}


# ---- the intercept and large means ----


@pytest.mark.parametrize("container", ["C", "csr"])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_a_shifted_y_leaves_the_coefficients(shape, container):  # case 22
    X, y = problem(shape)
    y = np.round(64 * y) / 64  # exact when shifted
    model = Lasso(0.1, tol=1e-12, n_shards=2)
    here = model.fit(CONTAINERS[container](X), y).coef_, model.intercept_
    there = model.fit(CONTAINERS[container](X), y + 1000.0).coef_, model.intercept_
    np.testing.assert_allclose(there[0], here[0], atol=1e-6)
    assert there[1] - here[1] == pytest.approx(1000.0, abs=1e-5)


@pytest.mark.parametrize("update", ["exact", "parallel"])
@pytest.mark.parametrize("container", ["C", "F", "csr"])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_large_column_means(shape, container, update):  # case 22
    X, y = problem(shape)
    far = X + 1e6 * (1 + np.arange(X.shape[1]) % 3)  # exact: entries are multiples of 1/8
    want = reference(X, y, 0.1)
    model = Lasso(0.1, tol=1e-10, n_shards=2, update=update, rho=0.5, max_iter=3000, random_state=0)
    model.fit(CONTAINERS[container](far), y)
    np.testing.assert_allclose(model.coef_, want.coef_, atol=2e-4)
    np.testing.assert_allclose(model.predict(far), want.predict(X), atol=1e-3)
    gap = oracles.duality_gap(X, y, model.coef_, 0.1)  # at the data without their means
    assert gap <= 1e-10 * oracles.scale(X, y) + 1e-8  # X itself carries the means: 3e6 eps a product


def test_large_column_means_in_float32():  # case 22
    X, y = problem("tall")
    far = (X + 4096).astype(np.float32)
    want = reference(X, y, 0.1)
    np.testing.assert_allclose(Lasso(0.1, tol=1e-12).fit(far, y).coef_, want.coef_, atol=1e-5)


# ---- sample weights ----


@pytest.mark.parametrize("container", ["C", "F", "csr", "csc"])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_weights_mean_repetition(shape, container):  # case 12
    X, y = problem(shape)
    build = CONTAINERS[container]
    for model in Lasso(0.1, tol=1e-13, n_shards=2), ElasticNet(0.1, tol=1e-13, fit_intercept=False):

        def fit(X, y, weight=None, model=model):
            model = clone(model).fit(build(X), y, sample_weight=weight)
            return np.append(model.coef_, model.intercept_)

        counts = np.arange(len(y)) % 3  # 0: removed, 2: twice
        np.testing.assert_allclose(
            fit(X, y, counts), fit(np.repeat(X, counts, axis=0), np.repeat(y, counts)), atol=1e-5
        )
        np.testing.assert_allclose(fit(X, y, np.full(len(y), 7.0)), fit(X, y), atol=1e-6)
        np.testing.assert_allclose(fit(X, y, 7.0), fit(X, y), atol=1e-6)
        np.testing.assert_allclose(fit(X, y, 1e-3 * counts), fit(X, y, counts), atol=1e-6)


def test_a_weight_of_zero_hides_an_outlier_and_a_whole_shard():  # case 12
    X, y = problem("tall")
    weight = np.ones(len(y))
    weight[: len(y) // 2] = 0  # the first of two shards has nothing that counts
    y[3] = 1e9
    model = Lasso(0.1, tol=1e-12, n_shards=2).fit(X, y, weight)
    half = Lasso(0.1, tol=1e-12).fit(X[len(y) // 2 :], y[len(y) // 2 :])
    np.testing.assert_allclose(model.coef_, half.coef_, atol=1e-5)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (lambda n: -np.ones(n), "[Nn]egative"),
        (np.zeros, "zero"),
        (lambda n: np.full(n, np.nan), "NaN"),
        (lambda n: np.full(n, np.inf), "infinity"),
        (lambda n: np.ones(n + 1), "sample_weight"),
        (lambda n: np.ones((n, 2)), "[Ss]ample.?weight"),
    ],
)
def test_weights_that_make_no_sense(weight, message):
    X, y = problem("tall")
    with pytest.raises(ValueError, match=message):
        Lasso(0.1).fit(X, y, weight(len(y)))


# ---- errors ----


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"alpha": -1}, ValueError, r"alpha must be in \[0, inf\], got -1"),
        ({"alpha": np.nan}, ValueError, "alpha"),
        ({"alpha": np.inf}, ValueError, "alpha"),
        ({"alpha": "1"}, TypeError, "alpha"),
        ({"alpha": None}, TypeError, "alpha"),
        ({"alpha": True}, TypeError, "alpha"),
        ({"l1_ratio": 1.5}, ValueError, "l1_ratio"),
        ({"l1_ratio": -0.1}, ValueError, "l1_ratio"),
        ({"tol": -1e-3}, ValueError, "tol"),
        ({"tol": np.nan}, ValueError, "tol"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"max_iter": 10.5}, TypeError, "max_iter"),
        ({"n_shards": 0}, ValueError, "n_shards"),
        ({"n_shards": 2.0}, TypeError, "n_shards"),
        ({"rho": -0.5}, ValueError, "rho"),
        ({"selection": "greedy"}, ValueError, "selection must be one of .*dynamic.*cyclic.*random.*greedy"),
        ({"selection": None}, ValueError, "selection"),
        ({"update": "async"}, ValueError, "update must be one of .*exact.*apart.*parallel.*async"),
    ],
)
def test_parameters_out_of_range(parameters, error, message):  # case 17
    X, y = problem("tall")
    with pytest.raises(error, match=message):
        ElasticNet(**parameters).fit(X, y)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("container", ["C", "F", "csr", "csc", "float32", "DataFrame"])
@pytest.mark.parametrize("shape", ["wide", "tall"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [(np.nan, "X contains NaN"), (np.inf, "X contains infinity"), (-np.inf, "X contains infinity")],
)
def test_a_bad_entry_of_x_names_its_column(bad, message, shape, container):  # case 10
    X, y = problem(shape)
    column = X.shape[1] - 3
    X[-2, column] = bad
    for n_shards in 1, 3:
        with pytest.raises(ValueError, match=rf"{message}.*column {column}\b"):
            Lasso(0.1, n_shards=n_shards).fit(CONTAINERS[container](X), y)
    X[-2, column] = 1.0
    check(Lasso(0.1, tol=1e-12, n_shards=3).fit(X, y), X, y)  # no trace of the failures


@pytest.mark.timeout(20)
@pytest.mark.parametrize("size", [1e160, 1e300])
@pytest.mark.parametrize("shape", ["wide", "tall"])
def test_finite_but_too_large(shape, size):  # case 10: 1e308 gave NaN coefficients silently
    X, y = problem(shape)
    X[2, 5] = size
    for given_X in X, sp.csr_matrix(X):
        with pytest.raises(ValueError, match=r"column 5 of X is too large.*rescale"):
            Lasso(0.1, n_shards=2).fit(given_X, y)
    X, y = problem(shape)
    y[4] = size
    with pytest.raises(ValueError, match=r"y is too large.*rescale"):
        Lasso(0.1, n_shards=2).fit(X, y)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_entry_of_y(bad):
    X, y = problem("tall")
    y[3] = bad
    for target in y, np.column_stack([y, y]):
        with pytest.raises(ValueError, match=r"y contains|target"):
            Lasso(0.1).fit(X, target)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda X, y: (X, y[:-1]), ValueError, "inconsistent numbers of samples"),
        (lambda X, y: (sp.csr_matrix(X), y[:-1]), ValueError, "inconsistent numbers of samples"),
        (lambda X, y: (X[0], y[:1]), ValueError, "2D array"),
        (lambda X, y: (X[:0], y[:0]), ValueError, "0 sample"),
        (lambda X, y: (X[:, :0], y), ValueError, "0 feature"),
        (lambda X, y: (X[None], y), ValueError, "dim"),
        (lambda X, y: (X * 1j, y), ValueError, "[Cc]omplex"),
        (lambda X, y: (X, None), ValueError, "requires y"),
        (lambda X, y: (X, np.array(["a"] * len(y))), ValueError, "could not convert|dtype"),
        (lambda X, y: (X, y[:, None, None]), ValueError, "dim"),
    ],
)
def test_data_that_do_not_fit(change, error, message):
    X, y = change(*problem("tall"))
    with pytest.raises(error, match=message):
        Lasso(0.1, n_shards=2).fit(X, y)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("index", [-1, 18, 2**30])
def test_a_sparse_index_out_of_range(index):
    X, y = problem("tall")
    X = sp.csr_matrix(X)
    X.indices[7] = index
    with pytest.raises(ValueError, match="index"):
        Lasso(0.1, n_shards=2).fit(X, y)


def test_a_fit_writes_nothing_to_the_caller_s_streams(capfd):
    X, y = problem("tall")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Lasso(0.1).fit(X, y)
    assert not caught
    assert capfd.readouterr() == ("", "")
    buffer = io.BytesIO()
    pickle.dump(Lasso(0.1).fit(X, y), buffer)
    assert buffer.tell() < 20_000  # numbers only: no data, no ranks


def test_the_shards_are_the_model():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 200))
    y = X[:, :3].sum(axis=1) + rng.standard_normal(80)
    both = Lasso(0.05, n_shards=3).fit(X, np.column_stack([y, y]))
    assert [len(shards) for shards in both.shards_] == [3, 3]
    ids = np.concatenate([shard.ids for shard in both.shards_[1]])
    np.testing.assert_array_equal(ids, np.flatnonzero(both.coef_[1]))
    values = np.concatenate([shard.values for shard in both.shards_[1]])
    np.testing.assert_array_equal(values, both.coef_[1][ids])


def test_the_memory_plan_covers_the_shards():
    model = Lasso(n_shards=4)
    wide = model.memory_plan((1000, 50_000))
    assert (wide.ranks, wide.axis) == (4, 1)
    assert wide.data == 1000 * 50_000 * 8 // 4
    assert wide.total == wide.data + wide.state + wide.exchange
    assert model.memory_plan((1000, 50_000), dtype=np.float32).data == wide.data // 2
    sparse = model.memory_plan((1000, 50_000), nnz=100_000)
    assert 100_000 * 12 // 4 <= sparse.data < wide.data // 10
    tall = model.memory_plan((50_000, 100), n_ranks=2)
    assert (tall.ranks, tall.axis, tall.data) == (2, 0, 50_000 * 100 * 4)
    assert str(tall).startswith("2 ranks by rows, ")
    assert "data 20 MB" in str(tall)
