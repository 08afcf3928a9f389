"""Files in blocks, and what is read of them as dask arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple

import dask.array as da
import fsspec
import numpy as np
from dask.base import tokenize
from dask.utils import parse_bytes

from .spans import Span

__all__ = ["Columns", "check_columns", "columns", "lazy", "open_files", "spans", "survey"]


class Columns(NamedTuple):
    """The `width` columns of all files, counted from `base`, and the rows of each block (nan: unknown).

    `beyond`: a block with an index beyond the columns; None if none is known of.
    """

    base: int
    width: int
    rows: tuple[Any, ...]
    beyond: int | None


def open_files(paths: Any, compression: str | None, storage_options: dict[str, Any] | None) -> list[Any]:
    """The files as `fsspec` OpenFiles, patterns replaced by what matches them, in order of name."""
    listed = paths if isinstance(paths, list | tuple) else [paths]
    if not all(isinstance(path, str | os.PathLike) for path in listed):
        raise TypeError(f"paths must be a path, a glob pattern or a list of them, got {paths!r}")
    files = []
    for path in listed:
        found = fsspec.open_files(os.fspath(path), "rb", compression=compression, **(storage_options or {}))
        if not found:
            raise FileNotFoundError(f"no file matches {os.fspath(path)!r}")
        files += found
    if not files:
        raise FileNotFoundError("paths is empty: no file to read")
    for file in files:
        if file.fs.info(file.path).get("type") == "directory":  # FileNotFoundError names the path
            like = f"{file.path}/*.svm"
            raise IsADirectoryError(f"{file.path!r} is a directory: pass a pattern like {like!r}")
    return files


def spans(file: Any, blocksize: int | str | None, start: int = 0) -> list[Span]:
    """The file's blocks from `start` on: ranges of about equal size, at most `blocksize` bytes."""
    size = file.fs.info(file.path)["size"] - start
    if blocksize is None or file.compression is not None or size <= 0:
        return [Span(file, start)]
    most = parse_bytes(blocksize)
    if most < 1:
        raise ValueError(f"blocksize must be at least 1 byte or None, got {blocksize!r}")
    blocks = -(-size // most)
    if blocks == 1:
        return [Span(file, start)]
    bounds = [start + size * i // blocks for i in range(blocks + 1)]
    return [Span(file, start, end - start) for start, end in pairwise(bounds)]


def lazy(parts: Sequence[Any], files: list[Any], what: str) -> Any:
    """The parts of files as a dask array of objects, one a block."""
    # Files that were changed are other data: their size and date are part of the name.
    token = tokenize([(file.fs, file.path, file.fs.ukey(file.path)) for file in files], parts)
    places = np.empty(len(parts), object)
    places[:] = parts
    return da.from_array(places, chunks=1, name=f"{what}-{token}")


def survey(places: Any, fields: int, look: Callable[..., Sequence[int]], *args: Any) -> np.ndarray:
    """`look(part, *args)` of every part now, (parts, `fields`) int64."""
    return places.map_blocks(
        _looked,
        look,
        *args,
        chunks=((1,) * len(places), (fields,)),
        new_axis=1,
        meta=np.empty((0, 0), np.int64),
        name=f"survey-{tokenize(places.name, look, *args)}",
    ).compute()


def _looked(place: np.ndarray, look: Callable[..., Sequence[int]], *args: Any) -> np.ndarray:
    return np.array([look(place[0], *args)], np.int64)


def columns(
    places: Any,
    look: Callable[[Any, int], Sequence[int]],
    n_features: int | None,
    zero_based: bool | str,
) -> Columns:
    """The columns of all files; if not given, `look(part, base)` finds rows, smallest and largest index."""
    base = 0 if zero_based else 1  # "auto": nothing is below 0
    if n_features is not None and zero_based != "auto":
        return Columns(base, int(n_features), (np.nan,) * len(places), None)
    found = survey(places, 3, look, base)
    rows, smallest, largest = found.T
    if zero_based == "auto":
        base = 0 if (smallest == 0).any() else 1
    most = max(int(largest.max()) + 1 - base, 0)
    width = most if n_features is None else int(n_features)
    beyond = int(np.argmax(largest >= base + width)) if most > width else None
    return Columns(base, width, tuple(rows.tolist()), beyond)


def check_columns(n_features: Any, zero_based: Any) -> None:
    """Whether these are as they are described.

    Raises:
        ValueError: they are not.
    """
    if not (zero_based in (True, False) or (isinstance(zero_based, str) and zero_based == "auto")):
        raise ValueError(f'zero_based must be True, False or "auto", got {zero_based!r}')
    if n_features is not None and (not isinstance(n_features, Integral) or n_features < 1):
        raise ValueError(f"n_features must be a whole number above 0 or None, got {n_features!r}")
