"""Files in svmlight format as dask arrays of sparse blocks."""

from __future__ import annotations

from operator import getitem
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask.base import tokenize

from .files_dask import check_columns, columns, lazy, open_files, spans
from .svmlight import block, survey

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
    check_columns(n_features, zero_based)
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    files = open_files(paths, compression, storage_options)
    places = lazy([span for file in files for span in spans(file, blocksize)], files, "svmlight-files")
    found = columns(places, survey, n_features, zero_based)
    token = tokenize(places.name, found.base, found.width, dtype)
    read = places.map_blocks(
        _block, found.base, found.width, dtype, meta=np.empty(0, object), name=f"read-svmlight-{token}"
    )
    X = read.map_blocks(
        getitem,
        0,
        chunks=(found.rows, (found.width,)),
        new_axis=1,
        meta=sp.csr_matrix((0, 0), dtype=dtype),
        name=f"svmlight-X-{token}",
    )
    y = read.map_blocks(getitem, 1, chunks=(found.rows,), meta=np.empty(0), name=f"svmlight-y-{token}")
    if found.beyond is not None:
        X.blocks[found.beyond].compute()  # the error that names the line
    return X, y


def _block(place: np.ndarray, base: int, width: int, dtype: np.dtype) -> tuple[sp.csr_matrix, np.ndarray]:
    return block(place[0], base, width, dtype)
