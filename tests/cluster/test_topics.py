"""LatentDirichletAllocation on a cluster: dask arrays of counts, models that stay there; bits of threads."""

import contextlib
import gc
import pickle
import time
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, Future, wait

from daskstrads import LatentDirichletAllocation

OPTIONS = {"n_components": 5, "random_state": 1, "max_iter": 4, "n_shards": 3}


@pytest.fixture(autouse=True)
def _counts_are_checked(monkeypatch):
    monkeypatch.setattr(LatentDirichletAllocation, "_checked", True)


def corpus(documents=90, words=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.poisson(0.5 * rng.gamma(0.3, 3.0, words), (documents, words))
    X[7] = 0
    return sp.csr_matrix(X)


def blocks(X, heights, widths=None, form=sp.csr_matrix):
    widths = widths or (X.shape[1],)
    rows, columns = (np.concatenate([[0], np.cumsum(lengths)]).tolist() for lengths in (heights, widths))
    meta = form((0, 0))
    made = [
        [
            da.from_delayed(
                dask.delayed(form)(X[a:b, c:d]),
                (b - a, d - c),
                dtype=X.dtype,
                meta=meta,
            )
            for c, d in pairwise(columns)
        ]
        for a, b in pairwise(rows)
    ]
    return da.concatenate([da.concatenate(row, axis=1) for row in made])


def same(found, wanted):
    assert (found.topic_word_ != wanted.topic_word_).nnz == 0
    assert found.log_likelihood_ == wanted.log_likelihood_
    assert found.s_error_ == wanted.s_error_
    np.testing.assert_array_equal(found.history_["bytes"], wanted.history_["bytes"])


@pytest.fixture(scope="module")
def threads():
    """A fit in this process."""
    return LatentDirichletAllocation(**OPTIONS).fit(corpus())


@pytest.mark.parametrize("given", ["matrix", "array", "dense", "columns", "coo"])
def test_fits_have_the_bits_of_threads(client, threads, given):
    X = corpus()
    if given == "array":
        X = blocks(X, (7, 50, 0, 33))
    elif given == "dense":
        X = da.from_array(X.toarray(), chunks=(20, 40))
    elif given == "columns":
        X = blocks(X, (30, 60), (15, 25), sp.csc_matrix)
    elif given == "coo":
        X = blocks(X, (45, 45), form=sp.coo_matrix)
        X = da.Array(X.dask, X.name, ((np.nan, np.nan), (40,)), meta=X._meta)  # of unknown heights
    with client.as_current():
        same(LatentDirichletAllocation(**OPTIONS).fit(X), threads)
    if given in ("array", "columns"):
        same(LatentDirichletAllocation(**OPTIONS).fit(X), threads)  # without a client


def test_the_model_stays_on_the_workers(client, threads):
    X = blocks(corpus(), (45, 45))
    with client.as_current():
        model = LatentDirichletAllocation(**OPTIONS).fit(X)
        assert all(isinstance(shard, Future) for shard in model.shards_)
        wait(model.shards_)
        assert all(client.who_has(model.shards_).values())
        theta = model.transform(X)
        assert theta.chunks == ((45, 45), (5,))
        wanted = threads.transform(corpus())
        np.testing.assert_array_equal(theta.compute(), wanted)
        np.testing.assert_array_equal(model.transform(corpus()), wanted)
        assert model.perplexity(X) == threads.perplexity(corpus())
        assert model.score(X) == threads.score(corpus())
        assert model._words is None  # nothing of it has been fetched
        columns = model.transform(blocks(corpus(), (45, 45), (15, 25)))
        np.testing.assert_array_equal(columns.compute(), wanted)
        copied = pickle.loads(pickle.dumps(model))
    same(copied, threads)  # without a client
    np.testing.assert_array_equal(copied.transform(X).compute(), wanted)
    keys = [shard.key for shard in model.shards_]
    del model, copied, theta, columns
    gone(client, keys)


def test_a_model_whose_client_is_closed_is_a_clear_error(client):
    with Client(client.scheduler.address, set_as_default=False) as other:
        with other.as_current():
            model = LatentDirichletAllocation(**OPTIONS).fit(corpus())
        theta = model.transform(corpus())
    assert theta.shape == (90, 5)
    with pytest.raises(RuntimeError, match="whose Client is closed; use the model while it is open"):
        model.transform(corpus())
    for use in (lambda: model.topic_word_, lambda: pickle.dumps(model), lambda: model.partial_fit(corpus())):
        with pytest.raises(RuntimeError, match="whose Client is closed; fetch"):
            use()


def gone(client, keys):
    deadline = time.monotonic() + 10
    while any(client.who_has(keys).values()):
        gc.collect()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("lazy", [False, True])
def test_models_go_on_where_they_are(client, lazy, tmp_path):
    X, new = corpus(), corpus(30, seed=3)
    given, more = (blocks(X, (45, 45)), blocks(new, (20, 10))) if lazy else (X, new)
    here = (
        LatentDirichletAllocation(**OPTIONS, warm_start=True).fit(X).fit(X).partial_fit(new).partial_fit(new)
    )
    with client.as_current():
        there = LatentDirichletAllocation(**OPTIONS, warm_start=True).fit(given)
        there.fit(given).partial_fit(more).partial_fit(more)
        same(there, here)
        there.save(tmp_path / "model")
        with pytest.raises(ValueError, match="these are others"):
            there.fit(corpus(seed=5))
        same(LatentDirichletAllocation(**OPTIONS).fit(X), LatentDirichletAllocation(**OPTIONS).fit(given))
    same_words = LatentDirichletAllocation.load(tmp_path / "model")
    assert (same_words.topic_word_ != here.topic_word_).nnz == 0


@pytest.mark.parametrize("lazy", [False, True])
def test_models_go_on_without_their_client_until_it_closes(client, lazy):
    X = corpus()
    here = LatentDirichletAllocation(**OPTIONS).fit(X).partial_fit(X)
    with Client(client.scheduler.address, set_as_default=False) as other:
        with other.as_current():
            first, second = (LatentDirichletAllocation(**OPTIONS).fit(X) for _ in range(2))
            late = LatentDirichletAllocation(**OPTIONS).fit(X)
        given = blocks(X, (45, 45)) if lazy else X
        same(first.partial_fit(given), here)  # in this process
        with client.as_current():
            same(second.partial_fit(given), here)
    for call in (late.partial_fit, late.transform, late.score):
        with pytest.raises(RuntimeError, match="whose Client is closed"):
            call(X)
    with client.as_current(), pytest.raises(RuntimeError, match="whose Client is closed"):
        late.partial_fit(given)
    same(late.fit(X).partial_fit(X), here)


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        (
            lambda X: X.map_blocks(lambda block: block * 0.5),
            ValueError,
            r"block \(.*\) of X must hold .*the fraction",
        ),
        (
            lambda X: X.map_blocks(lambda block: -block),
            ValueError,
            r"block \(.*\) of X must hold counts.*there is -",
        ),
        (lambda X: X[:0], ValueError, "no documents"),
        (lambda X: X * 0, ValueError, "no tokens"),
    ],
)
def test_wrong_collections_are_clear_errors_and_leave_nothing(client, threads, wrong, error, told):
    with client.as_current():
        before = set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))
        with contextlib.suppress(KeyError), pytest.raises(error, match=told):
            LatentDirichletAllocation(**OPTIONS).fit(wrong(blocks(corpus(), (45, 45))))
        deadline = time.monotonic() + 10
        while set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))) - before:
            gc.collect()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        same(LatentDirichletAllocation(**OPTIONS).fit(corpus()), threads)


def test_callbacks_hear_of_sweeps_at_the_client(client):
    sklearn_callback = pytest.importorskip("sklearn.callback")
    assert sklearn_callback

    class Counting:
        seen = 0

        def setup(self, estimator, context):
            """Nothing to prepare."""

        def teardown(self, estimator, context):
            """Nothing to clear up."""

        def on_fit_task_begin(self, estimator, context):
            """Nothing to do."""

        def on_fit_task_end(self, estimator, context):
            Counting.seen += context.task_name == "pass"
            assert len(estimator.history_["log_likelihood"]) > 0

    with client.as_current():
        model = LatentDirichletAllocation(**OPTIONS)
        model.set_callbacks(Counting()).fit(corpus())
    assert Counting.seen == 4
    assert model.n_iter_ == 4


def test_fits_that_do_not_fit_are_refused(client):
    X = da.from_array(np.full((3, 2), 2**31 - 1), chunks=(1, 2))
    with client.as_current(), pytest.raises(MemoryError, match="ranks by rows"):
        LatentDirichletAllocation(**OPTIONS).fit(X)
