"""Latent Dirichlet allocation with scikit-learn's manners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from joblib import cpu_count
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from ..engine.run import check_memory, collected, on_cluster, ranks_available, run
from .callbacks import CallbackSupportMixin, Calls, with_callbacks
from .corpus import Problem, corpus_plan, counts_of, problem_of_counts, ranks_of
from .lda_answers import TopicAnswers
from .lda_gibbs import Priors, RotatingGibbs, sweeps_told
from .progress import history_of
from .word_blocks import blocks_per_rank

__all__ = ["LatentDirichletAllocation"]

_MOST_TOPICS = 2**20
_LEAST, _LARGEST = 1e-9, 1e9  # prior: odds are float32


class LatentDirichletAllocation(
    TopicAnswers, CallbackSupportMixin, ClassNamePrefixFeaturesOutMixin, BaseEstimator
):
    """Find the topics of documents: latent Dirichlet allocation by exact collapsed Gibbs sampling.

    Every token has a topic, drawn again and again given all others with probability proportional to::

        (n_dk + alpha) (n_wk + beta) / (n_k + V beta)

    with the numbers of tokens of the document, of the word and in all that have topic k, and V words
    (Griffiths and Steyvers 2004). The word blocks rotate among ranks that own documents (STRADS, Lee et al.
    2014, section 3), so that only the n_k are ever a little old; a token costs about the same for a hundred
    topics as for ten thousand.

    X holds counts, documents x words: a scipy.sparse matrix or array, an ndarray, or a dask array of
    either kind of blocks (see `read_corpus`). Counts are whole numbers; a fit takes as long as there are
    tokens.

    Parameters:
        n_components: topics K, up to 1 048 576.
        doc_topic_prior: alpha, of a document's topics; None: 1 / K.
        topic_word_prior: beta, of a topic's words; None: 1 / K.
        max_iter: sweeps over all tokens, of `fit` and of every `partial_fit`.
        n_shards: ranks, a thread each (on a cluster, a worker thread each); None: as many as can be kept
            busy. Results depend on the shards, never on threads. A model that goes on keeps those it has.
        random_state: seed of all draws.
        warm_start: `fit` goes on from the last topics, of the same documents.
        verbose: print a line a sweep.

    Attributes:
        topic_word_: (topics, words) counts, sparse. components_: the same and beta, dense (made when asked
            for).
        log_likelihood_: list, after every sweep log p(words, topics) a token.
        s_error_: list, of every round the mean over ranks of sum_k |n_k as the rank had it at its end -
            n_k| / tokens
            (Lee et al. 2014, section 4).
        history_: a dict of arrays, an entry a sweep: "round" (of the engine), "log_likelihood", "drift" (mean
            s-error of its rounds), "seconds", "bytes" (that the busiest rank has sent).
        n_iter_: sweeps of the last fit.
        doc_topic_prior_, topic_word_prior_: alpha and beta.
        shards_: the model as its ranks hold it, each a `TopicPiece`; with a Client, Futures of what stays on
            the workers until the model goes.
        n_features_in_, feature_names_in_: as in scikit-learn.

    With scikit-learn 1.9 or later, `set_callbacks` takes its callbacks: a fit's tasks are its sweeps.
    """

    _checked = False  # whether counts are added up after every sweep, for tests

    def __init__(
        self,
        n_components=10,
        *,
        doc_topic_prior=None,
        topic_word_prior=None,
        max_iter=100,
        n_shards=None,
        random_state=None,
        warm_start=False,
        verbose=False,
    ):
        self.n_components = n_components
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.max_iter = max_iter
        self.n_shards = n_shards
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose

    def fit(self, X, y=None):
        """Fit to counts X (documents, words); returns self. `y` is ignored.

        Raises:
            ValueError: a parameter out of range; X that is no matrix of counts; with warm_start, other
                documents than in the last fit.
            TypeError: a parameter or X of the wrong type.
            MemoryError: a fit that its cluster's workers cannot hold.
        """
        with self._kept():
            self._fit(X, bool(self.warm_start and hasattr(self, "shards_")), False)
        return self

    def partial_fit(self, X, y=None):
        """Add documents X to the model, whose counts stay: only the new tokens are drawn; returns self.

        The first call is `fit`. What `log_likelihood_`, `s_error_` and `history_` say is of the last fit.

        Raises: as `fit`; ValueError for another number of words or topics.
        """
        first = not hasattr(self, "shards_")
        with self._kept():
            self._fit(X, not first, not first)
        return self

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """A fit that fails or is interrupted leaves the model of the one before, whole."""
        names = "n_features_in_", "feature_names_in_", "history_"
        before = {name: getattr(self, name) for name in names if hasattr(self, name)}
        try:
            yield
        except BaseException:
            for name in names:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            raise

    @with_callbacks
    def _fit(self, X: Any, go_on: bool, more: bool) -> None:
        priors = self._checked_priors()
        if go_on and priors.components != len(self._totals):
            raise ValueError(
                f"the model has {len(self._totals)} topics, n_components={priors.components}; "
                "a model goes on with as many as it has"
            )
        if hasattr(X, "__dask_graph__"):
            from . import corpus_dask

            with corpus_dask.on_its_client(X):
                self._fitted(corpus_dask.problem_of(self, X, priors, go_on), X, priors, go_on, more)
        else:
            counts = self._counts(X, reset=not go_on)
            size = self._n_ranks(counts.shape, int(counts.data.sum(dtype=np.int64)), go_on)
            check_memory(corpus_plan(counts.shape, int(counts.data.sum(dtype=np.int64)), priors, size))
            self._fitted(problem_of_counts(counts, size), X, priors, go_on, more)

    def _counts(self, X: Any, reset: bool) -> sp.csr_array:
        """X as CSR of int32. Raises: as `fit`."""
        X = validate_data(
            self, X, accept_sparse=("csr", "csc"), dtype="numeric", reset=reset, ensure_all_finite=False
        )
        return counts_of(X)

    def _n_ranks(self, shape: tuple[int, int], tokens: int, go_on: bool) -> int:
        if go_on:
            return len(self.shards_)
        return ranks_of(self.n_shards, shape[0], tokens, lambda: ranks_available(cpu_count()))

    def _fitted(self, problem: Problem, given: Any, priors: Priors, go_on: bool, more: bool) -> None:
        from .compile_kernels import compilation_announced

        if not problem.tokens and not more:
            raise ValueError("X has no tokens: all its counts are 0")
        blocks = self._blocks if go_on else blocks_per_rank(priors.components, problem.tokens, problem.size)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        program = RotatingGibbs(priors, int(self.max_iter), blocks, seed, checked=self._checked)
        told = sweeps_told()
        calls = Calls(self, 1, {"X": given, "y": None, "metadata": None})
        with compilation_announced(bool(self.verbose)), calls.following(program, told) as follower:
            parts = problem.parts(self.shards_ if go_on else None, more)
            done = run(program, parts, callback=follower, gather=False)
        passes, drifts, totals = self._summaries(done.shards)
        self.shards_, self._totals, self._blocks = done.shards, totals, blocks
        self._words = None
        self.doc_topic_prior_, self.topic_word_prior_ = priors.alpha, priors.beta
        self.history_ = history_of(passes, told)
        self.log_likelihood_ = self.history_["log_likelihood"].tolist()
        self.s_error_ = np.mean(drifts, axis=0).tolist()
        self.n_iter_ = len(self.log_likelihood_)
        calls.done()

    @staticmethod
    def _summaries(shards: list) -> tuple[list, list, np.ndarray]:
        """Of all pieces their passes and drifts, and the totals; the pieces stay where they are."""
        if on_cluster():
            from . import corpus_dask

            told = corpus_dask.summaries(shards)
        else:
            told = [(piece.passes, piece.drifts, piece.totals) for piece in shards]
        passes, drifts, totals = zip(*told, strict=True)
        return list(passes), list(drifts), np.array(totals[0])

    def _checked_priors(self) -> Priors:
        """Raise TypeError or ValueError for a parameter of the wrong type, or out of range."""
        for name, low, kind in (
            ("n_components", 1, Integral), ("max_iter", 1, Integral), ("n_shards", 1, Integral),
            ("doc_topic_prior", None, Real), ("topic_word_prior", None, Real),
        ):  # fmt: skip
            value: Any = getattr(self, name)
            if value is None and name not in ("n_components", "max_iter"):
                continue
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"{name} must be {kind.__name__.lower()}, got {value!r}")
            if low is None and not _LEAST <= float(value) <= _LARGEST:
                raise ValueError(f"{name} must be from {_LEAST:g} to {_LARGEST:g}, got {value!r}")
            if low is not None and value < low:
                raise ValueError(f"{name} must be at least {low}, got {value!r}")
        if self.n_components > _MOST_TOPICS:
            raise ValueError(f"n_components must be at most {_MOST_TOPICS}, got {self.n_components}")
        if not isinstance(self.warm_start, bool | np.bool_):
            raise TypeError(f"warm_start must be True or False, got {self.warm_start!r}")
        topics = int(self.n_components)
        given = self.doc_topic_prior, self.topic_word_prior
        return Priors(topics, *(1 / topics if prior is None else float(prior) for prior in given))

    def memory_plan(self, shape, tokens, n_ranks=None):
        """What each rank of a fit to so many documents x words and tokens needs, a `MemoryPlan` that prints
        itself.

        `n_ranks`: None: as many as a fit would take here.
        """
        priors = self._checked_priors()
        if n_ranks is not None and n_ranks < 1:
            raise ValueError(f"n_ranks must be at least 1, got {n_ranks!r}")
        return corpus_plan(shape, int(tokens), priors, n_ranks or self._n_ranks(shape, int(tokens), False))

    @property
    def _n_features_out(self) -> int:
        return len(self._totals)

    def __getstate__(self):
        state = super().__getstate__()
        if (
            "shards_" in state
        ):  # Futures are this client's own: neither a file nor another process can hold them
            state = {**state, "shards_": collected(state["shards_"]), "_words": None}
        return state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags
