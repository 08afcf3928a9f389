"""What a topic model answers: documents' topics, how probable documents are, and what the topics are
about.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from joblib import cpu_count
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..engine.run import collected
from .lda_files import load, save
from .lda_gibbs import Priors, TopicPiece
from .topics import Topics, TopWords, fold_in, joined, top_words

__all__ = ["TopicAnswers"]

_DENSE = 2**31  # bytes up to which `components_` is made


class TopicAnswers(TransformerMixin):
    """The methods of a fitted `LatentDirichletAllocation` that leave it as it is."""

    shards_: list[Any]
    doc_topic_prior_: float
    topic_word_prior_: float
    n_features_in_: int
    _totals: np.ndarray
    _words: Topics | None
    _blocks: int

    def _counts(self, X: Any, reset: bool) -> sp.csr_array:
        raise NotImplementedError

    @property
    def _priors(self) -> Priors:
        return Priors(len(self._totals), self.doc_topic_prior_, self.topic_word_prior_)

    def _topics(self) -> Topics:
        """The model's words, put together once."""
        check_is_fitted(self, "shards_")
        if self._words is None:
            self._words = joined(collected(self.shards_))
        return self._words

    def _folded(self, counts: sp.csr_array, scored: bool) -> np.ndarray:
        """`fold_in`, where the model is."""
        if self._words is None and not isinstance(self.shards_[0], TopicPiece):  # Futures
            from . import corpus_dask

            return corpus_dask.folded(self, counts, scored)
        return fold_in(counts, self._topics(), self._priors, cpu_count(), scored)

    @property
    def topic_word_(self) -> sp.csc_array:
        """(topics, words) how many tokens of each word have each topic; a copy."""
        if not hasattr(self, "shards_"):
            raise AttributeError("topic_word_ is there after fit")
        return self._topics().matrix().copy()

    @property
    def components_(self) -> np.ndarray:
        """(topics, words) counts plus beta: rows divided by their sums are the topics' distributions.

        Raises:
            MemoryError: above 2 GiB.
        """
        if not hasattr(self, "shards_"):
            raise AttributeError("components_ is there after fit")
        size = 8 * len(self._totals) * self.n_features_in_
        if size > _DENSE:
            raise MemoryError(
                f"components_ would take {size / 1e9:.3g} GB; topic_word_ has the same counts as a sparse "
                "matrix: add topic_word_prior_ to the columns that you need"
            )
        return self._topics().matrix().toarray() + self.topic_word_prior_

    def transform(self, X):
        """The topics of documents X, (documents, topics): theta, rows that add up to 1.

        The most probable theta given the model's topics, found by expectation maximisation with the Dirichlet
        prior's alpha as pseudo-counts; a document without tokens has 1 / K everywhere. Lazy for a dask array.

        Raises:
            ValueError: other words than in the fit; what are no counts.
        """
        check_is_fitted(self, "shards_")
        if hasattr(X, "__dask_graph__"):
            from . import corpus_dask

            return corpus_dask.transformed(self, X)
        return self._folded(self._counts(X, reset=False), scored=False)

    def score(self, X, y=None):
        """log p(X) by document completion: every other token of a document predicts the rest, and these them.

        Nothing that is predicted has been used for it, so this compares models by what they say of new
        documents (Wallach et al. 2009, document completion).
        """
        check_is_fitted(self, "shards_")
        if hasattr(X, "__dask_graph__"):
            from . import corpus_dask

            X = corpus_dask.computed_counts(X)
        return float(self._folded(self._counts(X, reset=False), scored=True).sum())

    def perplexity(self, X):
        """exp(-score(X) / tokens): among how many equally likely words the model has to guess.

        nan where X has no tokens.
        """
        if hasattr(X, "__dask_graph__"):
            from . import corpus_dask

            X = corpus_dask.computed_counts(X)
        tokens = int(self._counts(X, reset=False).data.sum(dtype=np.int64)) if hasattr(self, "shards_") else 0
        score = self.score(X)
        return float(np.exp(-score / tokens)) if tokens else float("nan")

    def top_words(self, n: int = 10, feature_names: Any = None) -> TopWords:
        """Every topic's `n` most frequent words, as a table that prints itself; see `TopWords`.

        `feature_names`: (words,) as a vectorizer's `get_feature_names_out()`; None: the columns' names or
        numbers.

        Raises:
            ValueError: names for another number of words, n below 1. TypeError: n that is no whole number,
                names in no order or of no length.
        """
        check_is_fitted(self, "shards_")
        if not isinstance(n, Integral) or isinstance(n, bool):
            raise TypeError(f"n must be integral, got {n!r}")
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n!r}")
        names = getattr(self, "feature_names_in_", None) if feature_names is None else feature_names
        if names is not None and np.ndim(names) != 1:
            raise TypeError(
                f"feature_names must be a list or 1-D array of names in the order of the columns, got "
                f"{type(names).__name__}; a vectorizer has get_feature_names_out()"
            )
        if names is not None and len(names) != self.n_features_in_:
            raise ValueError(f"there are {len(names)} feature_names for {self.n_features_in_} words")
        return top_words(self._topics(), int(n), names)

    def save(self, path):
        """Write the model to a folder: a JSON file, and one .npz file a shard.

        Raises:
            FileExistsError: the folder holds something else than a model, or also something else.
        """
        check_is_fitted(self, "shards_")
        save(self, path)

    @classmethod
    def load(cls, path):
        """The model that `save` wrote. Nothing is unpickled.

        Raises:
            FileNotFoundError, ValueError: no folder of a model, or a damaged one.
        """
        return load(cls, path)
