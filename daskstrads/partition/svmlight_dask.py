"""Files in svmlight format as dask arrays of sparse blocks."""

from __future__ import annotations

import os
from itertools import pairwise
from numbers import Integral
from operator import getitem
from typing import Any

import dask.array as da
import fsspec
import numpy as np
import scipy.sparse as sp
from dask.base import tokenize
from dask.utils import parse_bytes

from .svmlight import Span, block, survey

__all__ = ["read_svmlight"]


def read_svmlight(
    paths: Any,
    n_features: int | None = None,
    *,
    zero_based: bool | str = False,
    dtype: Any = np.float64,
    blocksize: int | str | None = "64MiB",
    compression: str | None = "infer",
    storage_options: dict[str, Any] | None = None,
) -> tuple[da.Array, da.Array]:
    """Files in svmlight (libsvm) format as dask arrays X (n, p) of csr_matrix blocks and y (n,), float64.

    A row is a line `label index:value ... # comment`, with indices that rise. A line with a label alone is a
    row of zeros, one without is no row, and `qid:` is passed over. Values are the nearest floating-point
    numbers, nan and inf included. All files have the same columns:

    - `zero_based`: whether columns are counted from 0 or, as the format says, from 1 (the default: an index 0
      is then an error, never a shift). "auto": from 0 if index 0 occurs in any of the files, else from 1;
      files counted from 0 that leave the first column out are then read one column to the left.
    - `n_features`: p. None: up to the largest index of all the files. Give it where test data must have the
      columns of the training data.

    Where `n_features` is None or `zero_based` is "auto", all files are read once when this is called: damaged
    lines are found here, and the numbers of rows are known. Otherwise nothing is read yet and row chunks are
    unknown (nan; `X.compute_chunk_sizes()`). Every computation parses its blocks anew:
    `X, y = dask.persist(X, y)` where they fit into memory.

    Args:
        paths: a path, a glob pattern or a list of them, local or with a protocol that fsspec knows (`s3://`).
        n_features: see above.
        zero_based: True, False or "auto", see above.
        dtype: of X, float32 or float64.
        blocksize: bytes of a file in one block, which ends with the line; None, or compressed: whole files.
        compression: "gzip", "bz2", ..., None, or "infer" from the name of each file.
        storage_options: for fsspec.

    Raises:
        FileNotFoundError: no such file; no file matches.
        ValueError: on a computation, or here where the files are read: a line that is damaged or has an index
            beyond p, named by file and line.
    """
    if not (zero_based in (True, False) or (isinstance(zero_based, str) and zero_based == "auto")):
        raise ValueError(f'zero_based must be True, False or "auto", got {zero_based!r}')
    if n_features is not None and (not isinstance(n_features, Integral) or n_features < 1):
        raise ValueError(f"n_features must be a whole number above 0 or None, got {n_features!r}")
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    files = _files(paths, compression, storage_options or {})
    spans = [span for file in files for span in _spans(file, blocksize)]
    # Files that were changed are other data: their size and date are part of the name.
    token = tokenize([(file.fs, file.path, file.fs.ukey(file.path)) for file in files], spans)
    places = np.empty(len(spans), object)
    places[:] = spans
    lazy = da.from_array(places, chunks=1, name=f"svmlight-files-{token}")

    rows: tuple[Any, ...] = (np.nan,) * len(spans)
    base = 0 if zero_based else 1  # "auto": nothing is below 0
    beyond = 0
    if n_features is None or zero_based == "auto":
        found = lazy.map_blocks(
            _surveyed,
            base,
            chunks=((1,) * len(spans), (3,)),
            new_axis=1,
            meta=np.empty((0, 0), np.int64),
            name=f"survey-svmlight-{tokenize(token, base)}",
        ).compute()
        rows = tuple(found[:, 0].tolist())
        if zero_based == "auto":
            base = 0 if (found[:, 1] == 0).any() else 1
        beyond = int(found[:, 2].max()) + 1 - base
    width = max(beyond, 0) if n_features is None else int(n_features)
    token = tokenize(token, base, width, dtype)
    read = lazy.map_blocks(
        _block, base, width, dtype, meta=np.empty(0, object), name=f"read-svmlight-{token}"
    )
    X = read.map_blocks(
        getitem,
        0,
        chunks=(rows, (width,)),
        new_axis=1,
        meta=sp.csr_matrix((0, 0), dtype=dtype),
        name=f"svmlight-X-{token}",
    )
    y = read.map_blocks(getitem, 1, chunks=(rows,), meta=np.empty(0), name=f"svmlight-y-{token}")
    if beyond > width:
        X.blocks[int(np.argmax(found[:, 2] >= base + width))].compute()  # the error that names the line
    return X, y


def _surveyed(place: np.ndarray, base: int) -> np.ndarray:
    return np.array([survey(place[0], base)], np.int64)


def _block(place: np.ndarray, base: int, width: int, dtype: np.dtype) -> tuple[sp.csr_matrix, np.ndarray]:
    return block(place[0], base, width, dtype)


def _files(paths: Any, compression: str | None, storage_options: dict[str, Any]) -> list[Any]:
    """The files as `fsspec` OpenFiles, patterns replaced by what matches them, in order of name."""
    listed = paths if isinstance(paths, list | tuple) else [paths]
    if not all(isinstance(path, str | os.PathLike) for path in listed):
        raise TypeError(f"paths must be a path, a glob pattern or a list of them, got {paths!r}")
    files = []
    for path in listed:
        found = fsspec.open_files(os.fspath(path), "rb", compression=compression, **storage_options)
        if not found:
            raise FileNotFoundError(f"no file matches {os.fspath(path)!r}")
        files += found
    if not files:
        raise FileNotFoundError("paths is empty: no file to read")
    return files


def _spans(file: Any, blocksize: int | str | None) -> list[Span]:
    """The file's blocks: ranges of about equal size, at most `blocksize` bytes."""
    found = file.fs.info(file.path)  # FileNotFoundError names the path
    if found.get("type") == "directory":
        raise IsADirectoryError(f"{file.path!r} is a directory: pass a pattern like {file.path + '/*.svm'!r}")
    size = found["size"]
    if blocksize is None or file.compression is not None or not size:
        return [Span(file)]
    most = parse_bytes(blocksize)
    if most < 1:
        raise ValueError(f"blocksize must be at least 1 byte or None, got {blocksize!r}")
    pieces = -(-size // most)
    bounds = [size * i // pieces for i in range(pieces + 1)]
    return [Span(file, start, end - start) for start, end in pairwise(bounds)]
