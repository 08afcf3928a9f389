"""LatentDirichletAllocation in one process: exact, right in odd cases, clear about bad ones."""

import json
import pickle
import warnings

import naive
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.decomposition import LatentDirichletAllocation as Variational
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline

from daskstrads import LatentDirichletAllocation, read_corpus
from daskstrads.algos import lda_answers
from daskstrads.algos.word_blocks import blocks_per_rank


@pytest.fixture(autouse=True)
def _counts_are_checked(monkeypatch):
    monkeypatch.setattr(LatentDirichletAllocation, "_checked", True)


def corpus(documents=60, words=40, topics=4, length=50, seed=0):
    """Counts of documents that have one or two of the topics, which share few words."""
    rng = np.random.default_rng(seed)
    phi = rng.dirichlet(np.full(words, 0.1), topics)
    theta = rng.dirichlet(np.full(topics, 0.2), documents)
    return sp.csr_array(np.array([rng.multinomial(length, each @ phi) for each in theta]))


def fitted(X, **options):
    options = {"n_components": 4, "max_iter": 20, "random_state": 0, **options}
    return LatentDirichletAllocation(**options).fit(X)


def same(found, wanted):
    assert (found.topic_word_ != wanted.topic_word_).nnz == 0
    assert found.log_likelihood_ == wanted.log_likelihood_
    assert found.s_error_ == wanted.s_error_


# Exactness


def test_the_likelihood_is_what_the_counts_say():
    X = corpus()
    for shards in (1, 3):
        model = fitted(X, n_shards=shards, max_iter=3, doc_topic_prior=0.3, topic_word_prior=0.05)
        pieces = model.shards_
        assert sum(len(piece.topics) for piece in pieces) == X.sum()
        # The documents' counts are not told: their part of the likelihood is what a recount gives.
        in_word = model.topic_word_.toarray().T
        words = naive.topic_likelihood(in_word, np.zeros((0, 4)), 0.3, 0.05)
        terms = [piece.passes[-1][2] for piece in pieces]
        assert sum(each["words"] for each in terms) + terms[0]["topics"] == pytest.approx(words, rel=1e-9)
        whole = sum(each["words"] + each["documents"] for each in terms) + terms[0]["topics"]
        assert model.log_likelihood_[-1] == pytest.approx(whole / X.sum())


@pytest.mark.parametrize("shards", [1, 4])
def test_likelihoods_a_sweep_are_those_of_an_exact_sampler(shards):
    X = corpus(documents=24, words=25, length=30)
    ours, exact = [], []
    for seed in range(12):
        model = fitted(
            X, n_shards=shards, max_iter=8, random_state=seed, doc_topic_prior=0.4, topic_word_prior=0.1
        )
        ours.append(model.log_likelihood_)
        told = naive.collapsed_gibbs(X.toarray(), 4, 8, 100 + seed, 0.4, 0.1)
        exact.append(np.array(told) / X.sum())
    spread = np.sqrt((np.var(ours, 0, ddof=1) + np.var(exact, 0, ddof=1)) / 12)
    assert (np.abs(np.mean(ours, 0) - np.mean(exact, 0)) < 4 * spread).all()


@pytest.mark.parametrize(("shards", "sweeps"), [(1, 5000), (4, 800)])
def test_a_posterior_that_can_be_enumerated(shards, sweeps, monkeypatch):
    """How often each value of log p(words, topics) comes up, against all 2^8 assignments."""
    monkeypatch.setattr(LatentDirichletAllocation, "_checked", False)
    X = np.array([[2, 1, 0], [0, 1, 1], [0, 0, 2], [1, 0, 0]])
    alpha, beta = 0.5, 0.6
    values, odds = naive.topic_posterior(X, 2, alpha, beta)
    model = fitted(
        X, n_components=2, n_shards=shards, max_iter=sweeps, doc_topic_prior=alpha, topic_word_prior=beta
    )
    drawn = np.array(model.log_likelihood_) * X.sum()
    assert drawn.mean() == pytest.approx((values * odds).sum(), abs=4 * drawn.std() * np.sqrt(5 / sweeps))
    levels = np.unique(values.round(6))
    for level in levels:
        wanted = odds[np.abs(values - level) < 1e-5].sum()
        found = (np.abs(drawn - level) < 1e-5).mean()
        # Sweeps are not independent: as if one in five were.
        assert found == pytest.approx(wanted, abs=4 * np.sqrt(5 * wanted / sweeps) + 1e-3), level
    assert all(np.abs(levels - value).min() < 1e-5 for value in drawn)


def test_topics_are_found():
    X = corpus(documents=300, words=60, length=80)
    model = fitted(X, max_iter=100, doc_topic_prior=0.2, topic_word_prior=0.1)
    rng = np.random.default_rng(0)
    phi = rng.dirichlet(np.full(60, 0.1), 4)
    found = model.components_ / model.components_.sum(1, keepdims=True)
    likeness = np.array([[np.minimum(a, b).sum() for a in found] for b in phi])
    assert sorted(likeness.argmax(1)) == [0, 1, 2, 3]
    assert likeness.max(1).min() > 0.85


def test_held_out_perplexity_is_below_unigram_and_scikit_learn():
    X = corpus(documents=400, words=60, length=60)
    train, held = X[:300], X[300:]
    model = fitted(train, max_iter=60, doc_topic_prior=0.2, topic_word_prior=0.1)
    shares = np.asarray(train.sum(0)).ravel() / train.sum()
    tokens = np.repeat(held.indices, held.data)
    unigram = np.exp(-np.log(shares[tokens]).mean())
    assert model.perplexity(held) < 0.8 * unigram
    theirs = Variational(4, doc_topic_prior=0.2, topic_word_prior=0.1, max_iter=60, random_state=0).fit(
        sp.csr_matrix(train)
    )
    phi = theirs.components_ / theirs.components_.sum(1, keepdims=True)
    ours = model.components_ / model.components_.sum(1, keepdims=True)
    assert completion(held, ours, 0.2) < 1.01 * completion(held, phi, 0.2)
    # The model's own figure is of the same kind.
    assert model.perplexity(held) == pytest.approx(completion(held, ours, 0.2), rel=0.01)


def completion(X, phi, alpha):
    """Perplexity of every other token given the rest of its document, both ways, by plain EM."""
    total = 0.0
    for row in X.toarray():
        tokens = np.repeat(np.arange(X.shape[1]), row)
        for known, rest in ((tokens[::2], tokens[1::2]), (tokens[1::2], tokens[::2])):
            expected = np.full(len(phi), len(known) / len(phi))
            for _ in range(60):
                joint = (alpha + expected)[:, None] * phi[:, known]
                expected = (joint / joint.sum(0)).sum(1)
            theta = (alpha + expected) / (alpha * len(phi) + len(known))
            total += np.log(theta @ phi[:, rest]).sum()
    return np.exp(-total / X.sum())


# Shards and seeds


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_same_seed_and_shards_same_result(shards):
    X = corpus()
    first = fitted(X, n_shards=shards, max_iter=6)
    same(fitted(X, n_shards=shards, max_iter=6), first)
    assert len(first.shards_) == shards
    other = fitted(X, n_shards=shards, max_iter=6, random_state=1)
    assert other.log_likelihood_ != first.log_likelihood_
    if shards == 1:
        assert not any(first.s_error_)
    else:
        blocks = blocks_per_rank(4, int(X.sum()), shards)
        assert len(first.s_error_) == 6 * shards * blocks
        assert 0 < max(first.s_error_) < 0.2


def test_forms_of_input_give_the_same_model():
    X = corpus()
    wanted = fitted(X, max_iter=4)
    frame = pd.DataFrame(X.toarray(), columns=[f"w{j}" for j in range(X.shape[1])])
    for given in (
        X.toarray(),
        X.tocsc(),
        X.tocoo(),
        sp.csr_matrix(X),
        X.astype(float),
        X.astype(np.uint8),
        X.toarray().astype(np.float16),
        frame,
    ):
        same(fitted(given, max_iter=4), wanted)
    named = fitted(frame, max_iter=4)
    assert named.feature_names_in_.tolist() == list(frame.columns)
    assert named.top_words(3).words[0, 0].startswith("w")
    before = X.data.copy(), X.indices.copy()
    X.data.flags.writeable = X.indices.flags.writeable = False
    same(fitted(X, max_iter=4), wanted)
    np.testing.assert_array_equal(X.data, before[0])


def test_a_corpus_is_read_from_a_file(tmp_path):
    X = corpus()
    lines = []
    for row in X.toarray():
        words = np.flatnonzero(row)
        lines.append(" ".join([str(len(words)), *(f"{w}:{row[w]}" for w in words)]))
    (tmp_path / "corpus.ldac").write_text("\n".join(lines) + "\n")
    read = read_corpus(tmp_path / "corpus.ldac", n_features=40, blocksize=500)
    assert read.numblocks[0] > 3
    same(fitted(read, max_iter=4), fitted(X, max_iter=4))


@pytest.mark.parametrize(
    ("tokens", "topics", "size", "wanted"),
    [
        (10**6, 100, 1, 1),
        (10**6, 100, 2, 2),
        (10**6, 1000, 2, 11),
        (10**4, 100, 2, 5),
        (10**5, 1000, 2, 16),
        (10**8, 1000, 2, 2),
        (0, 5, 3, 2),
    ],
)
def test_blocks_a_rank(tokens, topics, size, wanted):
    assert blocks_per_rank(topics, tokens, size) == wanted


# Odd input


def test_documents_without_words():
    X = corpus().tolil()
    X[4] = 0
    X[:, 7] = 0
    X = X.tocsr()
    model = fitted(X, n_shards=2)
    assert model.topic_word_[:, [7]].nnz == 0
    theta = model.transform(X)
    assert theta.shape == (60, 4)
    np.testing.assert_allclose(theta[4], 0.25)
    np.testing.assert_allclose(theta.sum(1), 1.0, rtol=1e-5)
    assert np.isfinite(model.perplexity(X))
    assert np.isnan(model.perplexity(X[[4]]))
    assert model.score(X[[4]]) == 0
    # A rank whose documents are all empty, and blocks without a token.
    hollow = sp.vstack([sp.csr_array((50, 40), dtype=int), X[:1]], format="csr")
    assert fitted(hollow, n_shards=3).topic_word_.sum() == X[:1].sum()
    few = np.zeros((6, 30), int)
    few[:, 3] = 2
    assert fitted(few, n_shards=3).topic_word_.sum() == 12


def test_words_that_were_not_seen_in_training():
    X = corpus()
    X = sp.hstack([X, sp.csr_array((60, 3), dtype=int)], format="csr")
    model = fitted(X)
    new = np.zeros((2, 43), int)
    new[:, 41] = 3
    new[1, :5] = 1
    theta = model.transform(new)
    np.testing.assert_allclose(theta.sum(1), 1.0, rtol=1e-5)
    assert np.isfinite(model.score(new))


@pytest.mark.parametrize(
    ("X", "topics"),
    [
        ([[1, 0, 2]], 50),  # more topics than tokens
        ([[1, 0, 2], [3, 1, 0]], 1),
        ([[5]], 3),
        ([[1, 0], [0, 0]], 2),
    ],
)
def test_tiny_corpora(X, topics):
    model = fitted(np.array(X), n_components=topics, n_shards=2, max_iter=5)
    assert model.topic_word_.shape == (topics, len(X[0]))
    np.testing.assert_array_equal(model.topic_word_.toarray().sum(0), np.sum(X, 0))
    np.testing.assert_allclose(model.transform(np.array(X)).sum(1), 1.0, rtol=1e-5)
    assert np.isfinite(model.log_likelihood_).all()


def test_more_topics_than_16_bits_hold():
    X = corpus(documents=10, length=20)
    model = fitted(X, n_components=70_000, n_shards=2, max_iter=2)
    assert model.topic_word_.shape == (70_000, 40)
    assert model.topic_word_.sum() == 200
    assert max(model.shards_[0].topics.max(), model.shards_[1].topics.max()) > 2**16
    theta = model.transform(X[:2])
    assert theta.shape == (2, 70_000)


def test_words_and_documents_that_16_bits_cannot_count():
    X = np.array([[70_000, 3, 10], [2, 66_000, 0], [0, 1, 5]])
    for topics, shards in ((3, 1), (3, 2), (500, 2)):
        model = fitted(X, n_components=topics, n_shards=shards, max_iter=3)
        np.testing.assert_array_equal(model.topic_word_.toarray().sum(0), X.sum(0))
    more = fitted(np.array([[40_000, 3, 10], [2, 7, 0]]), n_components=1, max_iter=2)
    more.partial_fit(np.array([[40_000, 0, 0]]))
    assert more.topic_word_.toarray().tolist() == [[80_002, 10, 10]]


def test_no_two_topics_are_the_same():
    X = corpus(documents=200, words=400, topics=30, length=60)
    model = fitted(X, n_components=1000, max_iter=3)
    rows = {row.tobytes() for row in model.topic_word_.toarray() if row.any()}
    assert len(rows) > 900
    assert len(rows) == sum(1 for row in model.topic_word_.toarray() if row.any())


def test_long_documents_are_counted_densely_and_give_the_same():
    rng = np.random.default_rng(0)
    X = rng.poisson(3.0, (3, 200))  # 600 tokens a document, far more than twice the topics
    model = fitted(X, n_components=20, n_shards=2, max_iter=5)
    assert model.topic_word_.sum() == X.sum()


# Bad input


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.5, "there is the fraction 0.5 in row 2, column 1"),
        (-1.0, r"there is -1.0 in row 2, column 1"),
        (np.nan, "there is nan in row 2, column 1"),
        (np.inf, "there is inf in row 2, column 1"),
        (2.0**31, r"from 0 to 2147483647; there is 2147483648.0 in row 2, column 1"),
    ],
)
def test_what_is_no_count(value, told):
    X = np.ones((4, 3))
    X[2, 1] = value
    model = LatentDirichletAllocation(2)
    for form in (np.asarray, sp.csr_array, sp.csc_array):
        with pytest.raises(ValueError, match=told):
            model.fit(form(X))
    good = fitted(np.ones((4, 3)), n_components=2)
    with pytest.raises(ValueError, match=told):
        good.transform(X)
    with pytest.raises(ValueError, match=told):
        good.partial_fit(X)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_counts_above_31_bits(dtype):
    X = np.array([[1, 2**31], [3, 4]], dtype)
    with pytest.raises(ValueError, match="there is 2147483648 in row 0, column 1"):
        LatentDirichletAllocation(2).fit(X)


def test_more_tokens_of_a_word_than_counts_can_say():
    most = 2**31 - 1
    for shards in (1, 2):
        with pytest.raises(ValueError, match="there are 2147483648 tokens of word 1; a model counts up to"):
            LatentDirichletAllocation(2, n_shards=shards).fit(np.array([[0, most], [1, 1]]))
    model = fitted(np.array([[3, 1], [1, 0]]), n_components=2)
    with pytest.raises(ValueError, match="there are 2147483650 tokens of word 0"):
        model.partial_fit(np.array([[most - 1, 0]]))


def test_a_fit_that_fails_leaves_the_model_as_it_was():
    X = corpus()
    frame = pd.DataFrame(X.toarray(), columns=[f"w{j}" for j in range(40)])
    model = fitted(frame, n_shards=2)
    before = model.transform(frame)
    for bad in (np.zeros((3, 50)), np.full((3, 30), 0.5), pd.DataFrame({"a": [0, 0]})):
        with pytest.raises(ValueError, match=r"no tokens|fraction"):
            model.fit(bad)
        assert model.n_features_in_ == 40
        np.testing.assert_array_equal(model.transform(frame), before)
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(pd.DataFrame({"a": [1, 2]}))
    model.partial_fit(frame[:3])


def test_matrices_that_are_damaged():
    X = corpus()
    X.indices = X.indices.copy()
    X.indices[5] = 40
    with pytest.raises(ValueError, match="index outside its shape"):
        fitted(X)
    with pytest.raises(ValueError, match="no tokens"):
        fitted(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="0 sample"):
        fitted(np.zeros((0, 2)))
    with pytest.raises(ValueError, match=r"could not convert string|dtype='numeric'"):
        fitted(np.array([["a", "b"]]))
    model = fitted(corpus())
    for call in (model.transform, model.partial_fit, model.perplexity, model.score):
        with pytest.raises(ValueError, match="39 features"):
            call(corpus()[:, :39])
        with pytest.raises(ValueError, match="41 features"):
            call(np.ones((2, 41)))


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"n_components": 0}, ValueError, "n_components must be at least 1"),
        ({"n_components": 2.0}, TypeError, "n_components must be integral"),
        ({"n_components": True}, TypeError, "n_components"),
        ({"n_components": 2**20 + 1}, ValueError, "at most 1048576"),
        ({"doc_topic_prior": 0.0}, ValueError, "doc_topic_prior must be from 1e-09"),
        ({"topic_word_prior": 1.1e9}, ValueError, r"from 1e-09 to 1e\+09, got 1100000000.0"),
        ({"topic_word_prior": np.nan}, ValueError, "topic_word_prior must be from 1e-09"),
        ({"topic_word_prior": "auto"}, TypeError, "topic_word_prior must be real"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1"),
        ({"n_shards": -1}, ValueError, "n_shards must be at least 1"),
        ({"warm_start": "yes"}, TypeError, "warm_start must be True or False"),
    ],
)
def test_parameters_out_of_range(options, error, told):
    with pytest.raises(error, match=told):
        LatentDirichletAllocation(**options).fit(np.ones((2, 2)))


def test_nothing_is_there_before_fit():
    model = LatentDirichletAllocation()
    assert not hasattr(model, "components_")
    assert not hasattr(model, "topic_word_")
    X = np.ones((2, 2))
    for call in (model.transform, model.score, model.perplexity, model.save):
        with pytest.raises(NotFittedError):
            call(X)
    with pytest.raises(NotFittedError):
        model.top_words()


# Going on


def test_partial_fit_keeps_what_is_known():
    X = corpus(documents=90)
    old, new = X[:60], X[60:]
    model = LatentDirichletAllocation(4, random_state=0, max_iter=15, n_shards=2)
    model.partial_fit(old)
    same(model, fitted(old, n_shards=2, max_iter=15))
    before, words = model.topic_word_.toarray(), np.asarray(X.sum(0)).ravel()
    history = list(model.log_likelihood_)
    model.partial_fit(new)
    after = model.topic_word_.toarray()
    assert (after >= before).all()
    np.testing.assert_array_equal(after.sum(0), words)
    assert len(model.log_likelihood_) == 15
    assert model.log_likelihood_ != history
    model.partial_fit(new[:1]).partial_fit(np.zeros((2, 40), int))
    np.testing.assert_array_equal(model.topic_word_.toarray().sum(0), words + new[[0]].toarray()[0])
    model.set_params(n_components=5)
    with pytest.raises(ValueError, match="has 4 topics, n_components=5"):
        model.partial_fit(new)


def test_warm_start_goes_on():
    X = corpus()
    model = fitted(X, max_iter=30, n_shards=2)
    warm = LatentDirichletAllocation(4, max_iter=15, n_shards=2, random_state=0, warm_start=True)
    first = warm.fit(X).log_likelihood_
    assert first == model.log_likelihood_[:15]
    assert warm.fit(X).log_likelihood_[0] > first[5]
    assert abs(warm.log_likelihood_[-1] - model.log_likelihood_[-1]) < 0.05
    assert warm.fit(X).log_likelihood_[-1] != first[-1]
    stored = sp.csr_array(np.ones_like(X.toarray()))  # the same counts, zeros stored
    stored.data = X.toarray().ravel()
    warm.fit(stored)
    assert stored.nnz == X.shape[0] * X.shape[1]
    with pytest.raises(ValueError, match="these are others"):
        warm.fit(X[::-1])
    with pytest.raises(ValueError, match="these are others"):
        warm.fit(X[:1])
    warm.partial_fit(X[:9])
    with pytest.raises(ValueError, match="these are others"):
        warm.fit(X)
    warm.set_params(warm_start=False)
    same(warm.fit(X), fitted(X, max_iter=15, n_shards=2))


def test_models_are_saved_and_loaded(tmp_path, monkeypatch):
    X = corpus()
    names = [f"w{j}" for j in range(40)]
    model = fitted(pd.DataFrame(X.toarray(), columns=names), n_shards=2, max_iter=5)
    path = tmp_path / "deep" / "model"
    model.save(path)
    assert sorted(each.name for each in path.iterdir()) == [
        "model.json",
        "shard-00000.npz",
        "shard-00001.npz",
    ]
    found = LatentDirichletAllocation.load(path)
    same(found, model)
    assert found.get_params() == model.get_params()
    frame = pd.DataFrame(X.toarray(), columns=names)
    np.testing.assert_array_equal(found.transform(frame), model.transform(frame))
    same(found.partial_fit(frame), model.partial_fit(frame))
    found.save(path)  # in place of the old one
    assert (LatentDirichletAllocation.load(path).topic_word_ != model.topic_word_).nnz == 0
    assert [each.name for each in path.parent.iterdir()] == ["model"]
    with pytest.raises(FileNotFoundError, match="holds no saved model"):
        LatentDirichletAllocation.load(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thing").touch()
    with pytest.raises(FileExistsError, match="no saved model"):
        model.save(tmp_path / "other")
    (tmp_path / "link").symlink_to(path)
    model.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(FileExistsError, match="working folder"):
        model.save(".")


def _head(**changes):
    def change(path):
        head = json.loads((path / "model.json").read_text())
        (path / "model.json").write_text(json.dumps({**head, **changes}))

    return change


def _shard(**changes):
    def change(path):
        with np.load(path / "shard-00000.npz") as held:
            arrays = dict(held)
        changed = {name: change(arrays[name]) for name, change in changes.items()}
        np.savez(path / "shard-00000.npz", **{**arrays, **changed})

    return change


@pytest.mark.parametrize(
    "damage",
    [
        _head(shards=0),
        _head(shards=1),
        _head(fitted=[]),
        _head(format="another"),
        _shard(cells0=lambda cells: cells[:1]),
        _shard(cells0=lambda cells: cells | np.uint32(2**16 - 1)),  # topics that there are not
        _shard(words0=lambda words: words + 1000),
        _shard(totals=lambda totals: totals[::-1]),
        lambda path: (path / "shard-00001.npz").write_bytes(b""),
        lambda path: (path / "shard-00001.npz").write_bytes((path / "shard-00000.npz").read_bytes()),
    ],
)
def test_damaged_models_are_refused(tmp_path, damage):
    fitted(corpus(), n_shards=2, max_iter=1).save(tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(ValueError, match="is damaged"):
        LatentDirichletAllocation.load(tmp_path / "model")


@pytest.mark.parametrize("foreign", ["model.json", "notes.txt"])
def test_folders_that_hold_something_else_stay(tmp_path, foreign):
    model = fitted(corpus(), max_iter=1)
    model.save(tmp_path / "model")
    (tmp_path / "model" / foreign).write_text("{}")
    before = sorted((each.name, each.read_bytes()) for each in (tmp_path / "model").iterdir())
    with pytest.raises(FileExistsError, match="no saved model, or holds other files too"):
        model.save(tmp_path / "model")
    assert sorted((each.name, each.read_bytes()) for each in (tmp_path / "model").iterdir()) == before
    assert len(list(tmp_path.iterdir())) == 1


def test_pickles_and_clones():
    X = corpus()
    model = fitted(X, n_shards=2, max_iter=4)
    model.transform(X)
    copied = pickle.loads(pickle.dumps(model))
    same(copied, model)
    np.testing.assert_array_equal(copied.transform(X), model.transform(X))
    same(clone(model).fit(X), model)


# What people look at


def test_top_words_are_a_table():
    X = corpus()
    model = fitted(X)
    names = np.array([f"word{j}" for j in range(40)])
    table = model.top_words(5, names)
    counts = model.topic_word_.toarray()
    for k in range(4):
        wanted = np.argsort(-counts[k], kind="stable")[:5]
        assert table.words[k].tolist() == names[wanted].tolist()
        assert table.counts[k].tolist() == counts[k, wanted].tolist()
    np.testing.assert_allclose(table.shares.sum(), 1.0)
    lines = repr(table).splitlines()
    assert len(lines) == 5
    assert lines[0].split() == ["topic", "share", "words"]
    assert lines[1].split()[2:] == table.words[0].tolist()
    assert "<table>" in table._repr_html_()
    assert model.top_words(99).words.shape == (4, 40)
    few = fitted(np.array([[1, 1, 0]]), n_components=3)
    assert (few.top_words(2).words == -1).any()
    for given in (list("abc"), np.array(list("abc"), object), pd.Index(list("abc"))):
        assert set(few.top_words(2, given).words.ravel().tolist()) == {"", "a", "b"}
    assert {-1, 5, 6} == set(few.top_words(2, [5, 6, 7]).words.ravel().tolist())
    with pytest.raises(ValueError, match="39 feature_names for 40 words"):
        model.top_words(5, names[:39])
    with pytest.raises(ValueError, match="at least 1"):
        model.top_words(0)
    with pytest.raises(TypeError, match="n must be integral"):
        model.top_words(2.5)
    with pytest.raises(TypeError, match=r"got dict; a vectorizer has get_feature_names_out"):
        model.top_words(5, {name: j for j, name in enumerate(names)})


def test_dense_components_only_where_they_fit(monkeypatch):
    X = corpus()
    model = fitted(X, topic_word_prior=0.5)
    np.testing.assert_allclose(model.components_, model.topic_word_.toarray() + 0.5)
    held = model.topic_word_
    held.data[:] = 0
    assert model.topic_word_.sum() == X.sum()  # a copy
    monkeypatch.setattr(lda_answers, "_DENSE", 1000)
    with pytest.raises(MemoryError, match=r"components_ would take 1.28e-06 GB; topic_word_ has"):
        _ = model.components_


def test_scikit_learns_manners():
    text = ["the cat sat on the mat", "dogs and cats", "stocks fell", "markets and stocks rose"] * 5
    pipeline = make_pipeline(CountVectorizer(), LatentDirichletAllocation(2, max_iter=20, random_state=0))
    theta = pipeline.fit_transform(text)
    assert theta.shape == (20, 2)
    np.testing.assert_allclose(theta, pipeline.transform(text))
    model = pipeline[-1]
    assert model.get_feature_names_out().tolist() == [
        "latentdirichletallocation0",
        "latentdirichletallocation1",
    ]
    X = corpus()
    frame = LatentDirichletAllocation(3, max_iter=2).set_output(transform="pandas").fit_transform(X)
    assert list(frame.columns) == [f"latentdirichletallocation{k}" for k in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.n_features_in_ == len(pipeline[0].get_feature_names_out())


def test_pyldavis_draws_it():
    """Its function for scikit-learn's class, unchanged."""
    pytest.importorskip("pyLDAvis", reason="draws topics: pip install pyLDAvis")
    text = [
        "the cat sat on the mat with dogs",
        "dogs and cats play",
        "stocks fell",
        "markets and stocks rose",
    ]
    vectorizer = CountVectorizer()
    counts = vectorizer.fit_transform(text * 8)
    model = LatentDirichletAllocation(3, max_iter=20, random_state=0).fit(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        import pyLDAvis.lda_model

        prepared = pyLDAvis.lda_model.prepare(model, counts, vectorizer, n_jobs=1)
    assert prepared.topic_coordinates.shape == (3, 5)
    assert set(prepared.topic_info.Term) <= set(vectorizer.get_feature_names_out())
    np.testing.assert_allclose(prepared.topic_coordinates.Freq.sum(), 100.0)


def test_history_and_progress(capsys):
    X = corpus()
    model = fitted(X, n_shards=2, max_iter=3, verbose=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if "sweep" in line]
    assert len(lines) == 3
    assert f"{model.log_likelihood_[-1]:.5f}" in lines[-1]
    assert model.n_iter_ == 3
    assert list(model.history_) == ["round", "log_likelihood", "drift", "seconds", "bytes"]
    assert model.history_["log_likelihood"].tolist() == model.log_likelihood_
    blocks = blocks_per_rank(4, int(X.sum()), 2)
    assert np.diff(model.history_["round"]).tolist() == [2 * blocks] * 2
    # The largest sender's bytes are within what the model's nonzeros and rows allow.
    assert model.history_["bytes"][-1] <= 6 * model.topic_word_.nnz + 4 * 40 + 200


def test_memory_is_told_before():
    plan = LatentDirichletAllocation(10_000).memory_plan((3_900_000, 21_800_000), 79_000_000, n_ranks=2)
    assert plan.ranks == 2
    with pytest.raises(ValueError, match="n_ranks must be at least 1"):
        LatentDirichletAllocation().memory_plan((3, 2), 9, n_ranks=-1)
    assert "2 ranks by rows" in str(plan)
    assert 0.5e9 < plan.total < 4e9
    many = LatentDirichletAllocation(10**6).memory_plan((10, 10), 100, n_ranks=2)
    assert many.state > 16 * 10**6 + 4 * 10**6  # totals, and the weights of a word
