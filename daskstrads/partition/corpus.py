"""Which format a corpus file has, and what its head says."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from .entries import Header
from .spans import shown, unpacking

__all__ = ["FORMATS", "HEADED", "format_of", "header_of"]

SUFFIXES = {
    "svmlight": {".svmlight", ".svm", ".libsvm"},
    "uci": {".uci"},
    "blei": {".blei", ".ldac", ".lda-c"},
    "mm": {".mm", ".mtx"},
}
FORMATS = tuple(SUFFIXES)
HEADED = {"uci", "mm"}  # formats with a header, and a line an entry
COMPRESSED = {".gz", ".bz2", ".xz", ".lzma", ".zip", ".zst", ".snappy", ".lz4"}
BANNER = b"%%MatrixMarket"
LOOK, LONGEST = 200, 2**26  # lines looked at; bytes of a line


def format_of(file: Any) -> str:
    """The format of a file (an `fsspec` OpenFile) by its name, else by its first lines.

    Raises:
        ValueError: these may be of two formats, or of none.
    """
    path = PurePosixPath(file.path.lower())
    if path.suffix in COMPRESSED:
        path = path.with_suffix("")
    for format, suffixes in SUFFIXES.items():
        if path.suffix in suffixes:
            return format
    if path.name.startswith("docword"):
        return "uci"
    lines = [line for line in islice(_lines(file), LOOK) if line.strip()]
    found = _formats(lines)
    if len(found) == 1:
        return found[0]
    may_be = " or ".join(found) if found else "none of " + ", ".join(FORMATS)
    raise ValueError(
        f"{file.path}: by its name and first lines the format may be {may_be}; "
        "pass format=, one of " + ", ".join(map(repr, FORMATS))
    )


def _formats(lines: list[bytes]) -> list[str]:
    """The formats that the first lines may have."""
    if lines and lines[0].startswith(BANNER):
        return ["mm"]
    rows = [tokens for line in lines if (tokens := line.partition(b"#")[0].split())]
    head, entries = rows[:3], rows[3:]
    headed = len(head) == 3 and all(len(tokens) == 1 and tokens[0].isdigit() for tokens in head)
    headed = headed and all(len(tokens) == 3 and b":" not in b"".join(tokens) for tokens in entries)
    if headed and entries:
        return ["uci"]
    if not rows or any(b":" not in token for tokens in rows for token in tokens[1:]):
        return []
    found = ["uci"] if headed else []
    # Labels that are the numbers of pairs by chance are few, all alike, and index 0 is not in such files.
    if any(tokens[0] != b"%d" % (len(tokens) - 1) for tokens in rows):
        return [*found, "svmlight"]
    indices = [[token.partition(b":")[0] for token in tokens[1:]] for tokens in rows]
    if len(set(map(len, rows))) > 2 or any(b"0" in row for row in indices):
        return [*found, "blei"]
    return [*found, "svmlight", "blei"]


def header_of(file: Any, format: str) -> Header:
    """What the head of a file in one of the formats HEADED says.

    Raises:
        ValueError: a damaged line, or a Matrix Market file of a kind that holds no counts.
    """
    return (_matrix_market if format == "mm" else _uci)(file)


def _uci(file: Any) -> Header:
    numbers, size = [], 0
    lines = _lines(file)
    for number, what in enumerate(("documents", "words", "entries"), 1):
        line = next(lines, b"")
        tokens = line.split()
        if len(tokens) != 1 or not _is_whole(tokens[0]):
            raise _wrong(
                file, number, f"{_quoted(line)} is no number of {what}, which the head of a UCI file says"
            )
        numbers.append(int(tokens[0]))
        size += len(line)
    documents, words, entries = numbers
    return Header(documents, words, entries, True, size, 3)


def _matrix_market(file: Any) -> Header:
    lines = _lines(file)
    banner = next(lines, b"")
    size = len(banner)
    kind = banner.decode("ascii", "replace").lower().split()
    if kind[:1] != [BANNER.decode().lower()] or len(kind) != 5:
        raise _wrong(
            file, 1, f"{_quoted(banner)} is no head of a Matrix Market file: "
            "%%MatrixMarket matrix coordinate integer|real|pattern general"
        )  # fmt: skip
    if kind[1:3] != ["matrix", "coordinate"] or kind[3] not in ("integer", "real", "pattern"):
        raise _wrong(
            file, 1, f"a Matrix Market file of counts is `matrix coordinate` and integer, real or pattern, "
            f"not {' '.join(kind[1:4])!r}; scipy.io.mmread reads others"
        )  # fmt: skip
    if kind[4] != "general":
        raise _wrong(
            file,
            1,
            f"a matrix of documents x words is `general`, not {kind[4]!r}; "
            "write it so (scipy.io.mmwrite has symmetry='general')",
        )
    for number, line in enumerate(lines, 2):
        size += len(line)
        if not (tokens := line.split()) or tokens[0].startswith(b"%"):
            continue
        if len(tokens) != 3 or not all(map(_is_whole, tokens)):
            raise _wrong(file, number, f"{_quoted(line)} is no line `documents words entries`")
        documents, words, entries = map(int, tokens)
        return Header(documents, words, entries, kind[3] != "pattern", size, number)
    raise _wrong(file, 1, "no line `documents words entries` follows")


def _lines(file: Any) -> Iterator[bytes]:
    """The first lines of a file, each with its newline; one that is too long in pieces."""
    with unpacking(file), copy.copy(file) as text:
        while line := text.readline(LONGEST):
            yield line


def _is_whole(token: bytes) -> bool:
    return token.isdigit() and len(token) <= 18


def _quoted(line: bytes) -> str:
    return shown(line.strip())


def _wrong(file: Any, number: int, what: str) -> ValueError:
    return ValueError(f"{file.path}, line {number}: {what}")
