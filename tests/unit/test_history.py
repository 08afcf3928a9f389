"""history_: what a fit keeps of its passes."""

import pickle

import numpy as np
import oracles
import pandas as pd
import pytest

from daskstrads import Lasso
from daskstrads.algos import lasso as estimators

COLUMNS = ["round", "objective", "gap", "support", "updates", "seconds"]
SHAPES = {"wide": (40, 90), "tall": (250, 18)}


def problem(shape):
    n, p = SHAPES[shape]
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, p))
    return X, X[:, :3].sum(axis=1) + rng.standard_normal(n) + 1


@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_history_is_a_table_of_the_passes(shape, n_shards, monkeypatch):
    monkeypatch.setattr(estimators, "_ROW_BLOCK", 9)  # or two passes were enough
    X, y = problem(shape)
    model = Lasso(0.05, tol=1e-7, selection="cyclic", n_shards=n_shards).fit(X, y)
    table = pd.DataFrame(model.history_)
    assert list(table) == COLUMNS
    assert len(table) == model.n_iter_ > 2
    assert table["gap"].iloc[-1] == model.dual_gap_
    assert table["support"].tolist()[0] == 0
    assert table["support"].iloc[-1] == np.count_nonzero(model.coef_)
    for column in "round", "seconds":
        assert (np.diff(table[column]) > 0).all()
    assert (np.diff(table["objective"]) <= 0).all()
    assert table["objective"].iloc[0] == pytest.approx(oracles.scale(X, y) / 2)
    wanted = oracles.objective(X, y, model.coef_, model.intercept_, 0.05)
    assert table["objective"].iloc[-1] == pytest.approx(wanted, rel=1e-10)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.history_["objective"], model.history_["objective"])


def test_history_of_several_targets_and_the_parallel_update():
    X, y = problem("tall")
    model = Lasso(0.05, update="parallel", random_state=0, n_shards=2).fit(
        X, np.column_stack([y, X[:, 5], -y])
    )
    assert [len(history["gap"]) for history in model.history_] == model.n_iter_
    assert [history["gap"][-1] for history in model.history_] == list(model.dual_gap_)
    pd.DataFrame(model.history_[1])
