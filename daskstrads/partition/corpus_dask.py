"""Files of counts, documents x words, as dask arrays of sparse blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask.base import tokenize

from . import entries, svmlight
from .corpus import FORMATS, HEADED, format_of, header_of
from .files_dask import check_columns, columns, lazy, open_files, spans, survey

__all__ = ["read_corpus"]


def read_corpus(
    paths: Any,
    format: str | None = None,
    n_features: int | None = None,
    *,
    zero_based: bool | str | None = None,
    blocksize: int | str | None = "64MiB",
    compression: str | None = "infer",
    storage_options: dict[str, Any] | None = None,
) -> da.Array:
    """Files of word counts as a dask array (documents, words) of csr_matrix blocks, int64.

    - "svmlight" (.svmlight, .svm, .libsvm): a line `label word:count ...` a document. Words count from 1 and
      rise within a line; labels are passed over.
    - "blei", lda-c (.blei, .ldac, .lda-c): a line `m word:count ...` a document. Words count from 0; there
      are m pairs, in any order.
    - "uci", bag of words (.uci, docword*): the numbers of documents, words and entries, a line each, then a
      line `document word count` an entry. Both count from 1.
    - "mm", Matrix Market (.mm, .mtx): the same after its own head; `coordinate` and `general`. Of a `pattern`
      there are no counts, and each is 1.

    `format=None` goes by the name, also with .gz and the like behind, else by the first lines. All files have
    one format and the same columns. Blank lines and what follows a `#` are passed over. Counts are whole
    numbers from 0 to 2^53 - 1, however they are written (`2`, `2.0`, `2e0`), and kept exactly; a 0 is not
    stored. Documents without words are rows of zeros.

    Files with a line a document: `n_features` and `zero_based` as in `read_svmlight`. Without `n_features`,
    or with "auto", all are read once when this is called; otherwise row chunks are unknown (nan). A file of
    Blei's format whose words count from 1 needs `zero_based=False`, else its first column is empty.

    Files with a line an entry: the header has the shape, and row chunks are known. A file of several blocks
    is read once when this is called: damaged lines are found here, and every block ends with a document.
    Where documents are out of order (`scipy.io.mmwrite` of a csc_matrix) the file is one block, sorted in
    memory, and a warning says so if it is larger than `blocksize`.

    Every computation parses its blocks anew: `counts = counts.persist()` where they fit into memory.

    Args:
        paths: a path, a glob pattern or a list of them, local or with a protocol that fsspec knows (`s3://`).
        format: see above.
        n_features: words. None: as many as the largest file has, by its contents or by its header.
        zero_based: whether words count from 0; True, False, "auto", or None: as the format says. Not for
            files with a header.
        blocksize: bytes of a file in one block; None, or compressed: whole files.
        compression: "gzip", "bz2", ..., None, or "infer" from the name of each file.
        storage_options: for fsspec.

    Raises:
        FileNotFoundError: no such file; no file matches.
        ValueError: the format is not clear, or not the same for all files. Here or on a computation, named
            by file and line: a damaged line, a count that is none, a word twice in a document, a header that
            the file contradicts.
    """
    if format not in (None, *FORMATS):
        raise ValueError(f"format must be one of {', '.join(map(repr, FORMATS))} or None, got {format!r}")
    check_columns(n_features, False if zero_based is None else zero_based)
    files = open_files(paths, compression, storage_options)
    formats = [format or format_of(file) for file in files]
    for file, other in zip(files, formats, strict=True):
        if other != formats[0]:
            raise ValueError(
                f"{files[0].path} is {formats[0]}, {file.path} is {other}: read them apart and "
                "join them with dask.array.concatenate, with the same n_features"
            )
    if formats[0] not in HEADED:
        return _lines(files, formats[0], n_features, zero_based, blocksize)
    if zero_based not in (None, False):
        raise ValueError(f"zero_based is {zero_based!r}, but {formats[0]} files count from 1: leave it out")
    return _entries(files, formats[0], n_features, blocksize)


def _lines(
    files: list[Any],
    format: str,
    n_features: int | None,
    zero_based: bool | str | None,
    blocksize: int | str | None,
) -> da.Array:
    """Files with a line a document."""
    kind = svmlight.Kind(counts=True, sized=format == "blei")
    places = lazy([span for file in files for span in spans(file, blocksize)], files, f"{format}-files")
    if zero_based is None:
        zero_based = kind.sized
    found = columns(places, partial(svmlight.survey, kind=kind), n_features, zero_based)
    X = _blocks(places, found.rows, found.width, _document_lines, found.base, kind)
    if found.beyond is not None:
        X.blocks[found.beyond].compute()  # the error that names the line
    return X


def _entries(files: list[Any], format: str, n_features: int | None, blocksize: int | str | None) -> da.Array:
    """Files with a header and a line an entry."""
    headers = [header_of(file, format) for file in files]
    width = max(header.words for header in headers) if n_features is None else int(n_features)
    # The newline that ends the header is in the span before.
    cuts = [spans(file, blocksize, head.size - 1) for file, head in zip(files, headers, strict=True)]
    several = [
        entries.Part(span, header, 1, header.documents)
        for header, cut in zip(headers, cuts, strict=True)
        for span in cut
        if len(cut) > 1
    ]
    found: list[entries.Survey] = []
    if several:
        places = lazy(several, files, f"{format}-files")
        looks = survey(places, len(entries.Survey._fields), entries.survey, width)
        found = [entries.Survey(*look) for look in looks.tolist()]
    parts = []
    for file, header, cut in zip(files, headers, cuts, strict=True):
        spanned = len(cut) if len(cut) > 1 else 0
        parts += entries.in_parts(file, header, found[:spanned])
        found = found[spanned:]
    rows = tuple(part.rows for part in parts)
    return _blocks(lazy(parts, files, f"{format}-files"), rows, width, _document_entries)


def _blocks(
    places: Any, rows: tuple[Any, ...], width: int, read: Callable[..., sp.csr_matrix], *args: Any
) -> da.Array:
    """`read(place, width, *args)` of every place: csr blocks, `rows` each."""
    return places.map_blocks(
        read,
        width,
        *args,
        chunks=(rows, (width,)),
        new_axis=1,
        meta=sp.csr_matrix((0, 0), dtype=np.int64),
        name=f"read-corpus-{tokenize(places.name, width, args)}",
    )


def _document_lines(place: np.ndarray, width: int, base: int, kind: svmlight.Kind) -> sp.csr_matrix:
    return svmlight.block(place[0], base, width, np.dtype(np.int64), kind)[0]


def _document_entries(place: np.ndarray, width: int) -> sp.csr_matrix:
    return entries.block(place[0], width)
