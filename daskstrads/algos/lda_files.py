"""A topic model as a folder: model.json, and a file a shard."""

from __future__ import annotations

import json
import shutil
import uuid
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.run import collected
from .lda_gibbs import TopicPiece

__all__ = ["load", "save"]

_FORMAT = "daskstrads topic model 1"
_HEAD = "model.json"


def save(model: Any, path: Any) -> None:
    """Write a fitted model, one shard at a time; a model that is there already is replaced at the end.

    Raises:
        FileExistsError: a file, or a folder that holds something else.
    """
    path = Path(path)
    if path.exists() and not _replaceable(path):
        raise FileExistsError(f"{path} is there and is no saved model; choose another path, or remove it")
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    fresh.mkdir(parents=True)
    try:
        for place, shard in enumerate(model.shards_):
            [piece] = collected([shard])
            arrays = {f"words{i}": words for i, words in enumerate(piece.words)}
            for i, (_, _, lengths, cells) in enumerate(piece.blocks):
                arrays |= {f"lengths{i}": lengths, f"cells{i}": cells}
            heads = np.array([block[:2] for block in piece.blocks], np.int64).reshape(-1, 2)
            np.savez(
                fresh / _shard_name(place), heads=heads, totals=piece.totals, topics=piece.topics,
                numbers=np.array([piece.mark, piece.sweeps], np.int64), **arrays,
            )  # fmt: skip
        (fresh / _HEAD).write_text(json.dumps(_head(model), indent=1) + "\n", encoding="utf-8")
        if path.exists():
            shutil.rmtree(path)
        fresh.rename(path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def load(kind: Any, path: Any) -> Any:
    """A model of class `kind` from a folder that `save` wrote.

    Raises:
        FileNotFoundError: no model there. ValueError: a damaged one.
    """
    path = Path(path)
    if not (path / _HEAD).is_file():
        raise FileNotFoundError(f"{path} holds no saved model (no {_HEAD})")
    try:
        head = json.loads((path / _HEAD).read_text(encoding="utf-8"))
        if head["format"] != _FORMAT:
            raise ValueError(f"its format is {head['format']!r}, expected {_FORMAT!r}")
        model = kind(**head["parameters"])
        model.shards_ = [_piece(path / _shard_name(place)) for place in range(head["shards"])]
        for name, value in head["fitted"].items():
            setattr(model, name, np.array(value, object) if name == "feature_names_in_" else value)
        model.history_ = {name: np.array(values) for name, values in head["history"].items()}
    except (KeyError, TypeError, OSError, zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"the model in {path} is damaged: {error}") from error
    model._totals, model._words = model.shards_[0].totals, None
    return model


def _head(model: Any) -> dict[str, Any]:
    parameters = {name: _plain(value) for name, value in model.get_params().items()}
    fitted = [
        "doc_topic_prior_",
        "topic_word_prior_",
        "log_likelihood_",
        "s_error_",
        "n_iter_",
        "n_features_in_",
        "_blocks",
    ]
    if hasattr(model, "feature_names_in_"):
        fitted.append("feature_names_in_")
    return {
        "format": _FORMAT,
        "shards": len(model.shards_),
        "parameters": parameters,
        "fitted": {name: _plain(getattr(model, name)) for name in fitted},
        "history": {name: values.tolist() for name, values in model.history_.items()},
    }


def _plain(value: Any) -> Any:
    """As JSON has it; of a random generator nothing is kept."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return value if isinstance(value, int | float | str | list | None) else None


def _piece(path: Path) -> TopicPiece:
    with np.load(path, allow_pickle=False) as held:
        heads = held["heads"].tolist()
        blocks = [(*head, held[f"lengths{i}"], held[f"cells{i}"]) for i, head in enumerate(heads)]
        words = [held[f"words{i}"] for i in range(len(heads))]
        mark, sweeps = held["numbers"].tolist()
        return TopicPiece(blocks, words, held["totals"], held["topics"], mark, sweeps, [], [])


def _shard_name(place: int) -> str:
    return f"shard-{place:05d}.npz"


def _replaceable(path: Path) -> bool:
    return path.is_dir() and ((path / _HEAD).is_file() or not any(path.iterdir()))
