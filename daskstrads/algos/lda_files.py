"""A topic model as a folder: model.json, and a file a shard."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.run import collected
from .lda_gibbs import TopicPiece
from .word_blocks import Block, unpacked

__all__ = ["load", "save"]

_FORMAT = "daskstrads topic model 1"
_HEAD = "model.json"
_FITTED = (
    "doc_topic_prior_", "topic_word_prior_", "log_likelihood_", "s_error_", "n_iter_", "n_features_in_",
    "_blocks",
)  # fmt: skip
_NAMES = "feature_names_in_"


def save(model: Any, path: Any) -> None:
    """Write a fitted model, one shard at a time; a model that is there already is replaced at the end.

    Raises:
        FileExistsError: a file, the working folder, a folder that holds something else, or that too.
    """
    given, path = path, Path(path).resolve()
    if path.exists() and not _replaceable(path):
        raise FileExistsError(
            f"{given} is there and is no saved model, or holds other files too; "
            "choose another path, or remove it"
        )
    if path in (Path.cwd(), *Path.cwd().parents):
        raise FileExistsError(f"{given} is the working folder, which cannot be replaced; choose another path")
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
            old = fresh.with_name(f"{fresh.name}.old")
            path.rename(old)
            fresh.rename(path)
            shutil.rmtree(old)
        else:
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
        for name in _FITTED:
            setattr(model, name, head["fitted"][name])
        if _NAMES in head["fitted"]:
            setattr(model, _NAMES, np.array(head["fitted"][_NAMES], object))
        model.history_ = {name: np.array(values) for name, values in head["history"].items()}
        _check(model)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file may make anything of what reads it
        raise ValueError(f"the model in {path} is damaged: {error}") from error
    model._totals, model._words = model.shards_[0].totals, None
    return model


def _check(model: Any) -> None:
    """Raise an error unless the shards are those of one model: kernels trust what blocks say."""
    pieces, words = model.shards_, model.n_features_in_
    totals = pieces[0].totals
    narrow = len(totals) <= 2**16
    seen, found = np.zeros_like(totals), np.zeros(words, bool)
    known = (
        totals.dtype == np.int64
        and totals.ndim == 1
        and words == sum(len(w) for p in pieces for w in p.words)
    )
    for name in ("doc_topic_prior_", "topic_word_prior_"):
        known &= isinstance(getattr(model, name), float)
    known &= len(getattr(model, _NAMES, found)) == words
    for rank, piece in enumerate(pieces):
        known &= np.array_equal(piece.totals, totals) and len(piece.blocks) == model._blocks
        known &= piece.topics.dtype == (np.uint16 if narrow else np.int32)
        known &= piece.topics.ndim == 1 and piece.topics.max(initial=0) < len(totals)
        for place, (block, ids) in enumerate(zip(map(Block._make, piece.blocks), piece.words, strict=True)):
            number, wide, lengths, cells = block
            known &= number == rank * model._blocks + place and lengths.shape == ids.shape
            known &= 0 <= wide <= len(ids) and lengths.dtype == ids.dtype == np.int32
            known &= lengths.min(initial=0) >= 0 and cells.dtype == (np.uint32 if narrow else np.int64)
            known &= cells.shape == (lengths.sum(dtype=np.int64) + lengths[:wide].sum(dtype=np.int64),)
            if not known:
                raise ValueError(f"{_shard_name(rank)} is no shard of it")
            topics, counts = unpacked(block)
            known &= counts.min(initial=1) > 0 and topics.min(initial=0) >= 0
            np.add.at(seen, topics, counts)
            found[ids] = True
    if not known or not found.all() or not np.array_equal(seen, totals):
        raise ValueError("its shards are not those of one model")


def _head(model: Any) -> dict[str, Any]:
    parameters = {name: _plain(value) for name, value in model.get_params().items()}
    fitted = list(_FITTED)
    if hasattr(model, _NAMES):
        fitted.append(_NAMES)
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
    """Whether there is nothing in a folder but a model."""
    if not path.is_dir():
        return False
    names = {each.name for each in path.iterdir()}
    if not names:
        return True
    try:
        head = json.loads((path / _HEAD).read_text(encoding="utf-8"))
        shards = {_shard_name(place) for place in range(head["shards"])}
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return head.get("format") == _FORMAT and names <= {_HEAD, *shards}
