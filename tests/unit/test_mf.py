"""MatrixFactorization in one process: the optimum, what it answers, and odd input."""

import datetime
import pickle
import threading
import warnings
from fractions import Fraction

import naive
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_info, threadpool_limits

import daskstrads
from daskstrads import MatrixFactorization
from daskstrads.algos import mf_als, recommend

SOLVERS = ["als", "ccd"]


def ratings(users=60, items=25, share=0.4, seed=0, dtype=np.float64):
    """Ratings of rank 3 with biases and a little noise, as CSR."""
    rng = np.random.default_rng(seed)
    full = 3.0 + rng.normal(size=(users, 1)) + rng.normal(size=(1, items))
    full += rng.normal(size=(users, 3)) @ rng.normal(size=(3, items)) + 0.1 * rng.normal(size=(users, items))
    rows, columns = np.nonzero(rng.random((users, items)) < share)
    return sp.csr_array((full[rows, columns].astype(dtype), (rows, columns)), shape=(users, items))


def dense(X):
    """With nan where there is no rating."""
    found = np.full(X.shape, np.nan)
    entries = X.tocoo()
    found[entries.row, entries.col] = entries.data
    return found


def frame(X, user=str, item=lambda j: int(j) - 10):
    entries = X.tocoo()
    ids = [user(i) for i in entries.row], [item(j) for j in entries.col]
    return pd.DataFrame({"user": ids[0], "item": ids[1], "rating": entries.data})


def fitted(X, **options):
    options = {"n_components": 3, "reg": 0.02, "random_state": 1, "tol": 0, "max_iter": 10} | options
    return MatrixFactorization(**options).fit(X)


def weigh_of(model):
    def weigh(count):
        return model.reg * (count if model.reg_scaling == "weighted" else count > 0)

    return weigh


def objective(model, X):
    """From the attributes alone."""
    one = np.ones((X.shape[0], 1)), np.ones((X.shape[1], 1))
    rows = np.hstack([model.user_bias_[:, None], one[0], model.user_factors_]).astype(np.float64)
    columns = np.hstack([one[1], model.item_bias_[:, None], model.components_.T]).astype(np.float64)
    return naive.factor_objective(dense(X), model.mean_, rows, columns, weigh_of(model))


def slopes(model, X):
    """The gradient of the objective, halved, in all that is fitted."""
    error = dense(X) - model.mean_ - model.user_bias_[:, None] - model.item_bias_
    error = np.nan_to_num(error - model.user_factors_ @ model.components_)
    weight = [
        np.array([weigh_of(model)(n) for n in counts]) for counts in (model.user_counts_, model.item_counts_)
    ]
    of_users = error @ model.components_.T - weight[0][:, None] * model.user_factors_
    of_items = error.T @ model.user_factors_ - weight[1][:, None] * model.components_.T
    found = {"users": of_users, "items": of_items}
    if model.biases:
        found["user bias"] = error.sum(axis=1) - weight[0] * model.user_bias_
        found["item bias"] = error.sum(axis=0) - weight[1] * model.item_bias_
    return found


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("scaling", ["weighted", "plain"])
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_end_is_a_stationary_point_of_the_objective(solver, biases, scaling, transposed):
    X = ratings().T.tocsr() if transposed else ratings()
    model = fitted(
        X, solver=solver, biases=biases, reg_scaling=scaling, reg=0.05 if scaling == "weighted" else 0.5,
        max_iter=3000, tol=1e-15, dtype=np.float64, n_shards=2,
    )  # fmt: skip
    for what, slope in slopes(model, X).items():
        assert np.abs(slope).max() < 1e-4, what
    np.testing.assert_allclose(model.history_["objective"][-1], objective(model, X), rtol=1e-9)


@pytest.mark.parametrize("biases", [True, False])
def test_positive_factors_end_where_no_step_that_keeps_them_so_helps(biases):
    X = ratings()
    model = fitted(X, nonnegative=True, biases=biases, max_iter=5000, tol=1e-15, dtype=np.float64, n_shards=2)
    assert model.mean_ == (pytest.approx(X.data.mean()) if biases else 0.0)
    for what, slope in slopes(model, X).items():
        if "bias" in what:
            assert np.abs(slope).max() < 1e-3
            continue
        factors = model.user_factors_ if what == "users" else model.components_.T
        assert (factors >= 0).all()
        assert (factors == 0).any()
        assert np.abs(slope[factors > 0]).max() < 1e-3, what
        assert slope[factors == 0].max() < 1e-3, what


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("solver", SOLVERS)
def test_case_55_the_history_is_the_objective_of_what_is_rated_and_never_rises(solver, dtype):
    X = ratings()
    model = fitted(X, solver=solver, dtype=dtype, n_shards=3, max_iter=15)
    assert model.components_.dtype == model.user_factors_.dtype == dtype
    history = model.history_
    assert len(history["objective"]) == model.n_iter_ == 15
    assert (np.diff(history["objective"]) <= 1e-5 * history["objective"][0] * (dtype == np.float32)).all()
    np.testing.assert_allclose(history["objective"][-1], objective(model, X), rtol=1e-4)
    np.testing.assert_allclose(history["rmse"][-1], -model.score(X), rtol=1e-4)
    assert (np.diff(history["seconds"]) > 0).all()
    assert (np.diff(history["round"]) > 0).all()
    assert (history["bytes"] > 0).all()
    assert (fitted(X, solver=solver, n_shards=1).history_["bytes"] == 0).all()


def test_both_solvers_find_the_same_optimum():
    X = ratings()
    ends = [
        min(  # there are local optima: with seed 0, als ends in one
            fitted(X, solver=solver, max_iter=500, tol=1e-6, random_state=seed).history_["objective"][-1]
            for seed in range(3)
        )
        for solver in SOLVERS
    ]
    np.testing.assert_allclose(*ends, rtol=1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_shards_agree_and_tiles_change_nothing(solver, monkeypatch):
    X = ratings(items=50)
    fits = [fitted(X, solver=solver, n_shards=size, dtype=np.float64, max_iter=4) for size in (1, 3, 7)]
    if solver == "als":
        monkeypatch.setattr(mf_als, "_TILE", 1)
        monkeypatch.setattr(mf_als, "_FEWEST", 16)
        fits.append(fitted(X, n_shards=2, dtype=np.float64, max_iter=4))
        assert fits[-1].history_["round"][0] > fits[0].history_["round"][0]
    for model in fits[1:]:
        np.testing.assert_allclose(model.components_, fits[0].components_, atol=1e-7)
        np.testing.assert_allclose(model.user_factors_, fits[0].user_factors_, atol=1e-7)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_same_seed_gives_the_same_bits(solver):
    X = ratings()
    one, same, other = (fitted(X, solver=solver, n_shards=2, random_state=seed) for seed in (1, 1, 2))
    assert one.components_.tobytes() == same.components_.tobytes()
    assert one.user_factors_.tobytes() == same.user_factors_.tobytes()
    assert not np.array_equal(one.components_, other.components_)


CONTAINERS = {
    "csc": sp.csc_array, "coo": sp.coo_array, "lil": sp.lil_array,
    "csr_matrix": sp.csr_matrix, "csc_matrix": sp.csc_matrix,
}  # fmt: skip


@pytest.mark.parametrize("container", CONTAINERS)
def test_containers_give_the_same_bits(container):
    X = ratings()
    wanted = fitted(X)
    found = fitted(CONTAINERS[container](X))
    assert found.components_.tobytes() == wanted.components_.tobytes()
    assert found.user_bias_.tobytes() == wanted.user_bias_.tobytes()


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float32, bool])
def test_ratings_of_any_dtype(dtype):
    X = sp.csr_array(np.round(abs(ratings().toarray())).astype(dtype))
    wanted, found = fitted(X.astype(np.float64)), fitted(X)
    np.testing.assert_allclose(found.components_, wanted.components_, atol=1e-4)


def test_case_1_repeated_entries_of_a_matrix_are_summed():
    X = sp.csr_matrix(([1.0, 1.0, 1.0, 2.0], [0, 0, 1, 1], [0, 2, 3, 4]), shape=(3, 2))
    before = X.data.copy(), X.indices.copy()
    found, wanted = fitted(X, n_components=1), fitted(sp.csr_array(X.toarray()), n_components=1)
    assert found.components_.tobytes() == wanted.components_.tobytes()
    np.testing.assert_array_equal(X.data, before[0])
    np.testing.assert_array_equal(X.indices, before[1])


def test_case_53_repeated_triples_have_their_mean():
    once = frame(ratings())
    twice = pd.concat([once, once.assign(rating=once.rating + 1.0), once.assign(rating=once.rating - 1.0)])
    np.testing.assert_allclose(fitted(twice).components_, fitted(once).components_, atol=1e-5)
    assert fitted(twice).user_counts_.sum() == len(once)


def test_case_3_mixed_index_dtypes():
    X = ratings()
    mixed = X.copy()
    mixed.indptr = mixed.indptr.astype(np.int64)
    wide = X.copy()
    wide.indptr, wide.indices = wide.indptr.astype(np.int64), wide.indices.astype(np.int64)
    for given_X in mixed, wide:
        assert fitted(given_X).components_.tobytes() == fitted(X).components_.tobytes()


def test_unsorted_read_only_input_stays_as_it_was():
    X = ratings()
    rng = np.random.default_rng(1)
    order = np.concatenate([rng.permutation(np.arange(*X.indptr[i : i + 2])) for i in range(X.shape[0])])
    mixed = sp.csr_array((X.data[order], X.indices[order], X.indptr), shape=X.shape)
    for array in mixed.data, mixed.indices, mixed.indptr:
        array.flags.writeable = False
    before = mixed.data.tobytes(), mixed.indices.tobytes()
    assert fitted(mixed).components_.tobytes() == fitted(X).components_.tobytes()
    assert (mixed.data.tobytes(), mixed.indices.tobytes()) == before


def test_case_8_a_stored_zero_is_a_rating():
    X = sp.csr_matrix(([5.0, 0.0, 3.0], ([0, 1, 1], [0, 0, 1])))
    model = fitted(X, n_components=1, max_iter=100, reg=1e-3)
    assert model.mean_ == pytest.approx(8 / 3)
    np.testing.assert_array_equal(model.user_counts_, [1, 2])
    np.testing.assert_allclose(model.predict([0, 1, 1], [0, 0, 1]), [5, 0, 3], atol=0.1)


@pytest.mark.parametrize("solver", SOLVERS)
def test_case_51_who_has_no_rating_has_zero_factors_and_the_bias_of_the_others(solver):
    X = ratings().tolil()
    X[5], X[:, 7] = 0, 0
    X = sp.csr_array(X)
    X.eliminate_zeros()
    model = fitted(X, solver=solver, n_shards=2)
    assert not model.user_factors_[5].any()
    assert not model.components_[:, 7].any()
    assert model.user_bias_[5] == model.item_bias_[7] == 0
    assert model.predict(5, 7) == pytest.approx(model.mean_)
    assert model.predict(5, 3) == pytest.approx(model.mean_ + model.item_bias_[3])
    assert model.predict(2, 7) == pytest.approx(model.mean_ + model.user_bias_[2])


def test_case_52_cold_start_is_finite():
    data = frame(ratings())
    model = fitted(data)
    assert model.predict("nobody", -(10**12)) == model.mean_
    test = pd.DataFrame({"user": ["0", "new"], "item": [999, -10], "rating": [3.0, 4.0]})
    assert np.isfinite(model.score(test))
    assert model.predict("new", -10) == pytest.approx(model.mean_ + model.item_bias_[0])


@pytest.mark.parametrize("solver", SOLVERS)
def test_case_56_many_sweeps_stay_finite(solver):
    X = sp.csr_array(([3.0], ([0], [0])), shape=(1, 1))
    model = fitted(X, n_components=10, solver=solver, reg=1e-6, max_iter=300)
    assert np.isfinite(model.components_).all()
    assert model.predict(0, 0) == pytest.approx(3.0, abs=1e-3)
    with pytest.raises(ValueError, match=r"reg=0 leaves user 0, with 1 ratings for 11 unknowns"):
        fitted(X, n_components=10, solver=solver, reg=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_all_ratings_equal(solver):
    X = ratings()
    X.data[:] = 4.0
    model = fitted(X, solver=solver, max_iter=40)
    np.testing.assert_allclose(model.predict([0, 1, 59], [0, 24, 3]), 4.0, atol=1e-5)
    assert model.history_["rmse"][-1] < 1e-4


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 2), (2, 40)])
def test_more_components_and_shards_than_anything(solver, shape):
    X = sp.csr_array(np.arange(1.0, 1 + np.prod(shape)).reshape(shape) % 5 + 1)
    model = fitted(X, n_components=50, solver=solver, n_shards=11)
    assert model.components_.shape == (50, shape[1])
    assert model.user_factors_.shape == (shape[0], 50)
    assert np.isfinite(model.predict(*np.nonzero(X.toarray()))).all()


def test_regularised_to_the_mean():
    X = ratings()
    model = fitted(X, reg=1e6)
    np.testing.assert_allclose(model.predict(3, 4), X.data.mean(), rtol=1e-3)


IDS = {
    "strings": (lambda i: f"user-{i:03}", lambda j: f"film {j}"),
    "negative": (lambda i: -int(i), lambda j: int(j) - 12),
    "above 31 bits": (lambda i: int(i) * 10**10, lambda j: 2**40 - int(j)),
    "floats": (lambda i: i / 2, lambda j: float(j)),
    "bytes": (lambda i: b"u%03d" % i, lambda j: b"%02d" % j),
    "above 63 bits": (lambda i: 2**63 + int(i), lambda j: 2**70 + int(j)),
    "whole numbers and fractions": (lambda i: i / 2 if i % 2 else int(i), lambda j: Fraction(int(j), 3)),
    "dates": (
        lambda i: datetime.date(2020, 1, 1 + int(i)) if i < 31 else datetime.date(2021, 1, int(i) - 30),
        lambda j: int(j),
    ),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_any_kind_come_back(kind):
    X = ratings()
    user, item = IDS[kind]
    data = frame(X, user, item)
    model = fitted(data.sample(frac=1.0, random_state=0))
    assert sorted({user(i) for i in range(60)}) == model.user_ids_.tolist()
    assert sorted({item(j) for j in range(25)}) == model.item_ids_.tolist()
    assert model.score(data) > -0.5 * data.rating.std()  # other ids, other first factors
    np.testing.assert_allclose(
        -model.score(data), np.sqrt(np.mean((model.predict(data.user, data["item"]) - data.rating) ** 2))
    )
    assert model.similar_users(user(4), n=2)[0].shape == (2,)
    found, scores = model.recommend(user(4), n=3, exclude=data)
    assert set(found.tolist()) <= {item(j) for j in range(25)}
    assert not set(found.tolist()) & set(data.item[data.user == user(4)])
    np.testing.assert_allclose(scores, model.predict([user(4)] * 3, found), rtol=1e-5)


def test_ids_as_objects_are_the_ids_they_hold():
    model = fitted(ratings())
    ids = np.array([3, 5], object)
    np.testing.assert_array_equal(model.predict(ids, ids), model.predict([3, 5], [3, 5]))
    for given_items in np.array([0, 3], object), {0, 3}, [0, 3, 99]:
        found, _ = model.recommend(2, n=25, exclude_items=given_items)
        assert sorted(found.tolist()) == [j for j in range(25) if j not in (0, 3)]
    for ask in model.recommend, model.similar_items, lambda ids: model.predict(ids, 0):
        with pytest.raises(TypeError, match="must be in a list or an array, got a set"):
            ask({1, 2})
    with pytest.raises(ValueError, match="user id in row 1 is missing"):
        model.predict([0, None], 1)


def test_signed_and_unsigned_ids_above_53_bits_are_told_apart():
    X = ratings()
    entries = X.tocoo()
    model = fitted((entries.row.astype(np.int64) + 2**60, entries.col, X.data))
    np.testing.assert_array_equal(
        model.predict(np.arange(60, dtype=np.uint64) + np.uint64(2**60), 3),
        model.predict(np.arange(60) + 2**60, 3),
    )
    model.partial_fit((np.array([2**60 + 60, 2**60 + 61], np.uint64), [0, 1], [3.0, 4.0]))
    assert model.user_ids_.dtype == np.int64
    np.testing.assert_array_equal(model.user_ids_, np.arange(62) + 2**60)
    model.partial_fit((np.array([2**63 + 1], np.uint64), [0], [3.0]))
    assert model.user_ids_[-1] == 2**63 + 1
    assert np.isfinite(model.predict(2**63 + 1, 0))


def test_errors_name_ids_that_are_no_numpy_scalars():
    data = frame(ratings(), lambda i: b"u%d" % i, str)
    with pytest.raises(ValueError, match=r"rating of user b'u\d+' and item '\d+' is nan"):
        fitted(data.assign(rating=np.nan))
    with pytest.raises(ValueError, match=r"reg=0 leaves user b'u0'"):
        fitted(data, reg=0, n_components=30)
    with pytest.raises(ValueError, match="does not know item 'none'"):
        fitted(data).similar_items(pd.Series(["none"]))


def test_a_matrix_for_a_model_of_triples_is_in_the_order_of_its_ids():
    X = ratings()
    entries = X.tocoo()
    model = fitted((entries.row * 10 + 100, entries.col * 10 + 100, X.data))
    assert model.score(X) == pytest.approx(
        model.score((entries.row * 10 + 100, entries.col * 10 + 100, X.data))
    )
    model.partial_fit(X)
    np.testing.assert_array_equal(model.user_ids_, np.arange(60) * 10 + 100)
    for method in model.score, model.partial_fit:
        with pytest.raises(ValueError, match="59 users, a model with 60 that have ids of their own"):
            method(X[:59])
    with pytest.raises(ValueError, match="must be 2-D"):
        model.score(sp.coo_array(np.ones(25)))


@pytest.mark.parametrize(
    "change", [{"n_components": 5}, {"biases": False}, {"nonnegative": True}, {"dtype": np.float64}]
)
def test_parameters_of_the_next_fit_leave_the_fitted_model_what_it_is(change):
    X = ratings()
    model = fitted(X)
    factors, heard = model.transform(X), fitted(X).partial_fit(X)
    model.set_params(**change)
    assert model.transform(X).tobytes() == factors.tobytes()
    assert model.partial_fit(X).components_.tobytes() == heard.components_.tobytes()
    assert model.item_bias_.tobytes() == heard.item_bias_.tobytes()


@pytest.mark.parametrize("size", [1e30, 1e300])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_ratings_that_overflow_are_refused_and_leave_the_model_alone(size, nonnegative):
    X = ratings()
    model = fitted(X, nonnegative=nonnegative)
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match="these ratings overflow"):
        model.partial_fit(sp.csr_array((X.data * size, (X.tocoo().row + 9, X.tocoo().col)), shape=(70, 25)))
    assert pickle.dumps(model) == before
    assert model.shards_
    with pytest.raises(ValueError, match="overflow"):
        fitted(X * size)
    if not nonnegative:
        with pytest.raises(ValueError, match="these ratings overflow"):
            model.transform(X * size)


def test_partial_fit_that_is_refused_leaves_the_model_alone():
    model = fitted(frame(ratings(), int, int))
    with pytest.raises(TypeError, match="ids are"):
        model.partial_fit(([1000], ["a film"], [3.0]))
    assert len(model.user_ids_) == len(model.user_factors_) == 60
    empty = frame(ratings(), str, str).astype({"user": object}).iloc[:0]
    assert len(model.partial_fit(empty).user_ids_) == 60


@pytest.mark.parametrize("solver", SOLVERS)
def test_without_a_penalty(solver):
    X = ratings(share=0.9)
    assert fitted(X, solver=solver, reg=0, max_iter=60).history_["rmse"][-1] < 0.1


def test_recommend_in_threads_gives_blas_its_threads_back():
    X = ratings(users=300)
    model = fitted(X)
    wanted = model.recommend(np.arange(300), n=5)
    with threadpool_limits(2, user_api="blas"):
        before = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
        first, second = recommend._one_blas_thread(), recommend._one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        within = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
        second.__exit__(None, None, None)
        assert set(within) == {1}
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(model.recommend(np.arange(300), n=5)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
    assert after == before
    assert all(each[1].tobytes() == wanted[1].tobytes() for each in found)


def test_ids_of_pandas_own_dtypes():
    data = frame(ratings(), int, lambda j: f"film {j:02}")
    wanted = fitted(data)
    for dtypes in (
        {"user": "Int64", "item": "string", "rating": "Float64"},
        {"user": "category", "item": "category"},
        {"user": object, "item": object, "rating": object},
    ):
        found = fitted(data.astype(dtypes))
        assert found.components_.tobytes() == wanted.components_.tobytes()
        assert found.predict(3, "film 04") == wanted.predict(3, "film 04")
    for column in "user", "item":
        spoilt = data.astype({"user": "Int64", "item": "string"})
        spoilt.loc[4, column] = pd.NA
        with pytest.raises(ValueError, match=f"the {column} id in row 4 is missing"):
            fitted(spoilt)
    spoilt = data.astype({"rating": "Float64"})
    spoilt.loc[4, "rating"] = pd.NA
    with pytest.raises(ValueError, match=r"ratings must be numbers|is nan"):
        fitted(spoilt)


def test_nobody_and_nothing():
    model = fitted(ratings())
    ids, scores = model.recommend([], n=3)
    assert len(ids) == len(scores) == 0
    assert model.predict([], []).shape == (0,)
    assert model.transform(sp.csr_array((0, 25))).shape == (0, 3)
    assert model.transform(sp.csr_array((2, 25))).tolist() == [[0.0] * 3] * 2
    with pytest.raises(ValueError, match="no ratings to score"):
        model.score(sp.csr_array((60, 25)))
    before = model.components_.copy()
    model.partial_fit(sp.csr_array((60, 25)))
    np.testing.assert_array_equal(model.components_, before)


def test_triples_of_arrays_and_of_other_column_names():
    X = ratings()
    entries, data = X.tocoo(), frame(X, int, int)
    wanted = fitted(data)
    assert (
        fitted((entries.row, entries.col, entries.data)).components_.tobytes() == wanted.components_.tobytes()
    )
    renamed = data.rename(columns={"user": "u", "item": "i", "rating": "r"})
    found = fitted(renamed, user="u", item="i", rating="r")
    assert found.components_.tobytes() == wanted.components_.tobytes()
    with pytest.raises(ValueError, match=r"no column 'user', it has \['u', 'i', 'r'\]"):
        fitted(renamed)


def test_recommend_is_the_best_of_what_is_predicted():
    X = ratings(users=300, items=130, share=0.2)
    model = fitted(X)
    users = np.array([7, 0, 299, 7])
    everything = model.predict(users[:, None], np.arange(130)[None, :])
    found, scores = model.recommend(users, n=6, exclude=X)
    assert found.shape == scores.shape == (4, 6)
    for row, ids, values, user in zip(everything, found, scores, users, strict=True):
        row[X[[user]].toarray()[0] != 0] = -np.inf
        wanted = np.argsort(-row, kind="stable")[:6]
        np.testing.assert_array_equal(ids, wanted)
        np.testing.assert_allclose(values, row[wanted], rtol=1e-5)
    one, its_scores = model.recommend(7, n=6, exclude=X)
    np.testing.assert_array_equal(one, found[0])
    np.testing.assert_allclose(its_scores, scores[0], rtol=1e-6)  # one query is another BLAS routine


def test_a_mean_far_from_zero_changes_no_order():
    X = ratings()
    far = sp.csr_array((X.data + 2.0**24, X.indices, X.indptr), shape=X.shape)
    near, found = fitted(X), fitted(far)
    np.testing.assert_array_equal(found.recommend(range(60), n=5)[0], near.recommend(range(60), n=5)[0])
    scores = found.recommend(3, n=5)[1]
    np.testing.assert_allclose(scores - 2.0**24, near.recommend(3, n=5)[1], atol=1e-3)


def test_no_padding_and_nothing_that_is_excluded():
    X = ratings()
    model = fitted(X)
    assert len(model.recommend(0, n=100)[0]) == 25
    ids, scores = model.recommend([0, 1], n=25, exclude=X)
    assert (
        [len(each) for each in ids]
        == [len(each) for each in scores]
        == [25 - n for n in model.user_counts_[:2]]
    )
    everything = sp.csr_array(np.ones(X.shape))
    ids, scores = model.recommend(3, exclude=everything)
    assert len(ids) == len(scores) == 0
    ids, _ = model.recommend([3, 4], n=25, exclude_items=[0, 23, 10**9])
    assert ids.shape == (2, 23)
    assert not np.isin([0, 23], ids).any()
    ids, _ = model.recommend([1000, 3], n=25, exclude=everything)  # nobody knows 1000
    assert [len(each) for each in ids] == [25, 0]


def test_a_stranger_is_told_what_is_best_for_everybody():
    model = fitted(frame(ratings()))
    ids, scores = model.recommend("nobody", n=3)
    best = np.argsort(-model.item_bias_, kind="stable")[:3]
    np.testing.assert_array_equal(ids, model.item_ids_[best])
    np.testing.assert_allclose(scores, model.mean_ + model.item_bias_[best], rtol=1e-6)


def test_exclude_takes_pairs_as_well():
    X = ratings()
    data = frame(X)
    model = fitted(data)
    wanted = model.recommend(["3", "5"], n=20, exclude=data)
    pairs = data[["user", "item"]]
    for given_pairs in pairs, (data.user, data["item"]):
        found = model.recommend(["3", "5"], n=20, exclude=given_pairs)
        for one, other in zip(found[0], wanted[0], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("what", ["items", "users"])
def test_similar_are_those_of_the_largest_cosine(what):
    X = ratings().tolil()
    X[5], X[:, 7] = 0, 0
    X = sp.csr_array(X)
    X.eliminate_zeros()
    model = fitted(X)
    factors = model.components_.T if what == "items" else model.user_factors_
    similar = model.similar_items if what == "items" else model.similar_users
    lengths = np.linalg.norm(factors, axis=1)
    with np.errstate(invalid="ignore"):
        cosines = (factors @ factors[2]) / lengths / lengths[2]
    cosines[2] = np.nan
    wanted = np.argsort(-np.nan_to_num(cosines, nan=-2), kind="stable")[:4]
    ids, scores = similar(2, n=4)
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_allclose(scores, cosines[wanted], rtol=1e-4)
    alone = 7 if what == "items" else 5
    assert len(similar(alone)[0]) == 0  # without ratings there is no direction
    everybody, _ = similar(2, n=1000)
    assert alone not in everybody
    assert len(everybody) == len(factors) - 2
    with pytest.raises(ValueError, match=f"does not know {what[:-1]} 999"):
        similar(999)


@pytest.mark.parametrize("options", [{}, {"biases": False}, {"reg_scaling": "plain"}, {"dtype": np.float64}])
def test_transform_gives_each_user_what_is_best_for_it(options):
    X = ratings()
    model = fitted(X, **options)
    new = ratings(users=9, seed=5)
    found = model.transform(new)
    assert found.shape == (9, 3)
    assert found.dtype == model.user_factors_.dtype
    ones = np.ones((25, 1))
    columns = np.hstack([ones, model.item_bias_[:, None], model.components_.T]).astype(np.float64)
    if not model.biases:
        columns[:, 0] = 0.0
    rows = np.hstack([np.zeros((9, 1)), np.ones((9, 1)), np.zeros((9, 3))])
    if model.biases:
        wanted, _ = naive.factorise(dense(new), model.mean_, rows, columns, weigh_of(model), 1, True)
    else:
        wanted = _without_biases(new, model)
    np.testing.assert_allclose(found, wanted[:, 2:], atol=2e-4)


def _without_biases(new, model):
    rows = np.zeros((9, 5))
    for i, row in enumerate(dense(new)):
        seen = ~np.isnan(row)
        F = model.components_.T[seen].astype(np.float64)
        weight = weigh_of(model)(seen.sum())
        rows[i, 2:] = np.linalg.solve(F.T @ F + weight * np.eye(3), F.T @ (row[seen] - model.mean_))
    return rows


def test_transform_of_a_fit_at_its_optimum_is_the_fit():
    X = ratings()
    for options in {}, {"nonnegative": True}:
        model = fitted(X, max_iter=3000, tol=1e-13, dtype=np.float64, **options)
        np.testing.assert_allclose(model.transform(X), model.user_factors_, atol=2e-3)
        np.testing.assert_allclose(model.transform(X[10:20]), model.user_factors_[10:20], atol=2e-3)


def test_transform_of_triples():
    X = ratings()
    model = fitted(frame(X))
    wanted = fitted(X).transform(X)  # users in the order of their ids, which are strings
    order = np.argsort([str(i) for i in range(60)])
    found = model.transform(frame(X))
    assert found.shape == wanted.shape
    some = model.transform(frame(X[[3, 9]].tocsr(), lambda i: "39"[i]))
    np.testing.assert_allclose(some, found[np.argsort(order)[[3, 9]]], atol=1e-6)
    with pytest.raises(ValueError, match="does not know item 99"):
        model.transform(pd.DataFrame({"user": ["a"], "item": [99], "rating": [1.0]}))


def test_partial_fit_learns_what_is_new_and_forgets_little():
    X = ratings(users=200, items=60, share=0.5)
    rng = np.random.default_rng(3)
    later = rng.random(X.nnz) < 0.2
    entries = X.tocoo()

    def part(chosen):
        return sp.csr_array((entries.data[chosen], (entries.row[chosen], entries.col[chosen])), shape=X.shape)

    first, second = part(~later), part(later)
    model = fitted(first, max_iter=40)
    before, untouched = model.score(second), model.score(first)
    model.partial_fit(second)
    assert model.score(second) > before
    assert model.score(first) > 1.5 * untouched
    np.testing.assert_array_equal(model.user_counts_, np.diff(X.indptr))
    everything = fitted(X, max_iter=40)
    assert model.score(X) > 1.6 * everything.score(X)


def test_positive_factors_forget_as_little():
    X = ratings()
    model = fitted(X, nonnegative=True, max_iter=30)
    before, stranger = model.score(X), model.predict(60, range(5))
    model.partial_fit(sp.csr_array((np.full(5, 3.0), ([60] * 5, range(5))), shape=(61, 25)))
    assert model.score(X) > 1.02 * before
    assert np.abs(model.predict(60, range(5)) - 3.0).mean() < 0.5 * np.abs(stranger - 3.0).mean()


def test_partial_fit_of_nobody_leaves_the_others():
    X = ratings()
    model = fitted(X)
    users, items = model.user_factors_.copy(), model.components_.copy()
    model.partial_fit(sp.csr_array(([5.0], ([3], [4])), shape=X.shape))
    changed = (
        np.flatnonzero((model.user_factors_ != users).any(axis=1)),
        np.flatnonzero((model.components_ != items).any(axis=0)),
    )
    np.testing.assert_array_equal(changed[0], [3])
    np.testing.assert_array_equal(changed[1], [4])


@pytest.mark.parametrize("options", [{}, {"biases": False}, {"nonnegative": True}, {"reg_scaling": "plain"}])
def test_partial_fit_takes_new_users_and_items(options):
    X = ratings(users=80, items=40, share=0.6)
    known = X[:60, :30]
    model = fitted(sp.csr_array(known), max_iter=60, **options)
    model.partial_fit(X)
    assert model.user_factors_.shape == (80, 3)
    assert model.components_.shape == (3, 40)
    new = model.predict(*np.nonzero(X.toarray() != 0))
    plain = np.full_like(new, X.data.mean())
    truth = X.toarray()[np.nonzero(X.toarray() != 0)]
    assert np.mean((new - truth) ** 2) < 0.5 * np.mean((plain - truth) ** 2)
    if options.get("nonnegative"):
        assert (model.components_ >= 0).all()


def test_partial_fit_of_triples_and_as_the_first_call():
    data = frame(ratings())
    first = MatrixFactorization(3, random_state=1, tol=0, max_iter=5).partial_fit(data)
    again = fitted(data, reg=0.05, max_iter=5)
    assert first.components_.tobytes() == again.components_.tobytes()
    first.partial_fit(pd.DataFrame({"user": ["zz", "0"], "item": [1000, -10], "rating": [1.0, 2.0]}))
    assert "zz" in first.user_ids_
    assert 1000 in first.item_ids_
    assert first.user_factors_.shape == (61, 3)
    assert first.predict("zz", 1000) < first.mean_
    with pytest.raises(TypeError, match="ids are"):
        first.partial_fit(pd.DataFrame({"user": [1], "item": [1000], "rating": [1.0]}))


def test_warm_start_goes_on():
    X = ratings()
    for solver in SOLVERS:
        model = fitted(X, solver=solver, max_iter=5, dtype=np.float64)
        once = fitted(X, solver=solver, max_iter=10, dtype=np.float64).history_["objective"]
        model.set_params(warm_start=True).fit(X)
        np.testing.assert_allclose(model.history_["objective"], once[5:], rtol=1e-6)
        with pytest.raises(ValueError, match="warm_start: the model has other users"):
            model.fit(ratings(users=61))


def test_it_says_when_it_has_not_converged():
    X = ratings()
    with pytest.warns(ConvergenceWarning, match=r"not converged after 2 sweeps.* tol=1e-09; raise max_iter"):
        fitted(X, tol=1e-9, max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fitted(X, tol=1e-3, max_iter=500)
    objective = model.history_["objective"]
    assert model.n_iter_ < 500
    assert objective[-2] - objective[-1] <= 1e-3 * objective[0]
    assert objective[-3] - objective[-2] > 1e-3 * objective[0]


WRONG = [
    (np.ones((4, 3)), TypeError, "an array of shape .*which of its entries are ratings"),
    ("ratings", TypeError, "got str"),
    ((np.arange(3), np.arange(3)), TypeError, "got tuple"),
    ((np.arange(3), np.arange(3), np.ones(4)), ValueError, r"of one length, got \[3, 4\]"),
    (
        (np.arange(2), np.arange(2), np.array([1.0, np.nan])),
        ValueError,
        "rating of user .*1.* and item .*1.* is nan",
    ),
    ((np.array([1.0, np.nan]), np.arange(2), np.ones(2)), ValueError, "user id in row 1 is missing"),
    ((np.array(["a", None], object), np.arange(2), np.ones(2)), ValueError, "user id in row 1 is missing"),
    ((np.arange(2), np.arange(2), np.array(["x", "y"])), ValueError, "must be real numbers"),
    ((np.arange(2), np.arange(2), np.array([1j, 2])), ValueError, "must be real numbers"),
    ((np.array([1, "b"], object), np.arange(2), np.ones(2)), TypeError, "ids must be of one kind"),
    ((np.ones((2, 2)), np.arange(2), np.ones(2)), ValueError, "user ids must be 1-D"),
    (sp.csr_array((3, 4)), ValueError, "no ratings in a matrix of shape"),
    (sp.csr_array((0, 4)), ValueError, "no ratings"),
    (sp.csr_array(np.array([[1.0, np.inf]])), ValueError, "user 0 and item 1 is inf"),
    (sp.csr_array(np.array([[1j]])), ValueError, "must be real numbers, got complex"),
]


@pytest.mark.parametrize(("given_X", "error", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_ratings(given_X, error, text):
    with pytest.raises(error, match=text):
        fitted(given_X)


def test_a_damaged_matrix():
    X = ratings()
    X.indices[3] = 99
    with pytest.raises(ValueError, match="outside its shape"):
        fitted(X)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"n_components": 0}, ValueError, "n_components must be in"),
        ({"n_components": 2.5}, TypeError, "n_components must be integral"),
        ({"reg": -1}, ValueError, "reg must be in"),
        ({"reg": np.nan}, ValueError, "reg must be in"),
        ({"reg": "0"}, TypeError, "reg must be real"),
        ({"reg_scaling": "none"}, ValueError, "reg_scaling must be one of"),
        ({"solver": "sgd"}, ValueError, "solver must be one of"),
        ({"solver": "als", "nonnegative": True}, ValueError, "nonnegative=True needs solver='ccd'"),
        ({"biases": 1}, TypeError, "biases must be True or False"),
        ({"dtype": np.int32}, ValueError, "dtype must be float32 or float64"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"tol": -1e-3}, ValueError, "tol"),
        ({"n_shards": 0}, ValueError, "n_shards"),
    ],
)
def test_wrong_parameters(options, error, text):
    with pytest.raises(error, match=text):
        fitted(ratings(), **options)


def test_items_x_users_by_mistake():
    X = ratings()
    model = fitted(X)
    for call in (
        lambda: model.transform(X.T.tocsr()),
        lambda: model.score(X.T.tocsr()),
        lambda: model.partial_fit(X.T.tocsr()),
        lambda: model.recommend(0, exclude=X.T.tocsr()),
    ):
        with pytest.raises(ValueError, match=r"shape \(25, 60\).*is it items x users"):
            call()
    with pytest.raises(ValueError, match="exclude has 59 rows, the model 60"):
        model.recommend(0, exclude=X[:59])
    for n, error in (0, ValueError), (2.5, TypeError):
        with pytest.raises(error, match="n must be"):
            model.recommend(0, n)


def test_it_is_a_scikit_learn_estimator():
    X = ratings()
    model = fitted(X)
    with pytest.raises(NotFittedError):
        clone(model).predict(0, 0)
    same = pickle.loads(pickle.dumps(model))
    assert not hasattr(same, "shards_")
    np.testing.assert_array_equal(same.predict([1, 2], [3, 4]), model.predict([1, 2], [3, 4]))
    np.testing.assert_array_equal(same.recommend([1, 2])[0], model.recommend([1, 2])[0])
    assert model.get_feature_names_out().tolist() == [f"matrixfactorization{t}" for t in range(3)]
    table = clone(model).set_output(transform="pandas").fit_transform(X)
    assert list(table.columns) == [f"matrixfactorization{t}" for t in range(3)]
    np.testing.assert_array_equal(table.to_numpy(), model.user_factors_)
    assert make_pipeline(clone(model)).fit(X).score(X) == model.score(X)


def test_verbose_tells_of_every_sweep(capsys):
    fitted(ratings(), verbose=True, max_iter=3)
    lines = [line for line in capsys.readouterr().out.splitlines() if "sweep" in line]
    assert [line.partition(": objective")[0] for line in lines] == [
        f"[daskstrads] sweep {n}" for n in (1, 2, 3)
    ]


def test_a_callback_ends_the_fit():
    pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 has callbacks")
    given_X = ratings()

    class Stop:
        def __init__(self):
            self.objectives = []

        def setup(self, estimator, context):
            pass

        def teardown(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context, *, X=None):
            assert X is given_X

        def on_fit_task_end(self, estimator, context, *, X=None):
            if context.task_name == "pass":
                self.objectives.append(estimator.history_["objective"][-1])
            return len(self.objectives) >= 3

    stop = Stop()
    model = MatrixFactorization(3, random_state=0, tol=0, max_iter=50)
    model.set_callbacks(stop)
    model.fit(given_X)
    assert model.n_iter_ == 4  # one more, and no warning
    assert stop.objectives[:4] == model.history_["objective"].tolist()


def test_the_memory_plan():
    model = MatrixFactorization(2000, biases=False)
    shape, entries = (480_189, 17_770), 90_000_000
    one, two = model.memory_plan(shape, entries, 1), model.memory_plan(shape, entries, 2)
    assert one.total > 480_189 * 2000 * 4
    assert two.ranks == 2
    assert 0.4 * one.total < two.total < 0.6 * one.total
    assert "2 ranks by rows" in str(two)
    sharded = MatrixFactorization(2000, biases=False, solver="ccd").memory_plan(shape, entries, 2)
    assert sharded.total < two.total  # it holds its share of the items alone


def test_it_is_on_the_front_page():
    assert daskstrads.MatrixFactorization is MatrixFactorization


@pytest.mark.parametrize(("solver", "times"), [("als", 7), ("ccd", 6)])
def test_the_bytes_are_those_of_the_page(solver, times):
    X = ratings(items=48)
    width = 8  # three components, two for biases, padding
    for size in 2, 4:
        sent = fitted(X, solver=solver, n_shards=size).history_["bytes"]
        wanted = times * (size - 1) / size * 4 * width * 48
        steps = 4 * 4 * (size - 1) / size * 48 if solver == "als" else 0  # and the lengths of the steps
        first = wanted / 3 if solver == "ccd" else wanted  # its first sweep needs no sums
        np.testing.assert_allclose(sent[0], first + steps, rtol=1e-6)
        np.testing.assert_allclose(sent[1:], wanted + steps, rtol=1e-6)
