"""A byte range of lines `document word count` as a sparse block: UCI bag-of-words and Matrix Market."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .counts import canonical, count_damage, index_type
from .entries_kernels import read_entries
from .spans import Span, damaged, is_number, pieces, shown

__all__ = ["Header", "Part", "Survey", "block", "in_parts", "survey"]

SHORTEST = 4  # bytes of a line: two numbers


class Header(NamedTuple):
    """What the head of a file says, and where it ends: bytes; the line that has the number of entries.

    Without `counted` a line has no count, and each is 1.
    """

    documents: int
    words: int
    entries: int
    counted: bool
    size: int
    line: int


class Part(NamedTuple):
    """A span that has all entries of documents `first` to `first` + `rows` - 1, counted from 1."""

    span: Span
    header: Header
    first: int
    rows: int


class Survey(NamedTuple):
    """What is in a span: its bytes; its entries; the documents of the first and of the last.

    `place`: where the first line is whose document is not `first` (-1: none is), `second` that document.
    `falls`: whether a document comes after a larger one.
    """

    size: int
    entries: int
    first: int
    last: int
    place: int
    second: int
    falls: bool


def survey(part: Part, width: int) -> Survey:
    """What is in the span of a part, in which any of its documents may be.

    Raises:
        ValueError: a damaged line.
    """
    text = part.span.text()
    entries, first, last, place, second, falls = 0, -1, -1, -1, -1, False
    for start, (rows, _, _, places) in _entries(part, text, width):
        if not len(rows):
            continue
        if entries == 0:
            first = int(rows[0])
        falls = falls or bool(rows[0] < last or (rows[1:] < rows[:-1]).any())
        if place < 0 and (others := rows != first).any():
            other = int(np.argmax(others))
            place, second = start + int(places[other]), int(rows[other])
        entries, last = entries + len(rows), int(rows[-1])
    base = part.first
    return Survey(len(text), entries, first + base, last + base, place, second + base, falls)


def in_parts(file: Any, header: Header, surveys: list[Survey]) -> list[Part]:
    """A file in parts, cut where `surveys` begin or behind; one part if documents are out of order.

    Raises:
        ValueError: the surveys found fewer or more entries than the header says.
    """
    whole = Part(Span(file, header.size - 1), header, 1, header.documents)
    if not surveys:
        return [whole]
    _check_number(whole, sum(found.entries for found in surveys))
    starts = accumulate((found.size for found in surveys), initial=header.size)
    firsts: list[int] = []
    places: list[int] = []
    last, falls = 0, False
    for start, found in zip(starts, surveys, strict=False):
        if not found.entries:
            continue
        falls = falls or found.falls or found.first < last
        if found.first != last:
            firsts.append(found.first)
            places.append(start)
        elif found.place >= 0:
            firsts.append(found.second)
            places.append(start + found.place)
        last = found.last
    if falls:
        warnings.warn(
            f"{file.path}: documents are out of order, so this file is one block, whatever its size; "
            "a file in order of documents is read in parallel",
            stacklevel=4,  # the caller of read_corpus
        )
    if falls or len(firsts) < 2:
        return [whole]
    # A document without entries goes with the one before it; the newline before a line is in the span before.
    firsts = [1, *firsts[1:], header.documents + 1]
    places.append(header.size + sum(found.size for found in surveys))
    return [
        Part(Span(file, place - 1, end - place), header, first, stop - first)
        for (place, end), (first, stop) in zip(pairwise(places), pairwise(firsts), strict=True)
    ]


def block(part: Part, width: int) -> sp.csr_matrix:
    """The part's counts, a csr_matrix (rows, `width`), int64.

    Raises:
        ValueError: a damaged line; a word twice in a document; of a file in one part, fewer or more
            entries than its header says.
    """
    text = part.span.text()
    most = len(text) // SHORTEST  # more than enough; memory that is not written to costs nothing
    index = index_type(part.rows, width, most)
    rows, columns, counts = np.empty(most, index), np.empty(most, index), np.empty(most, np.int64)
    entry = 0
    for _, found in _entries(part, text, width):
        stop = entry + len(found[0])
        rows[entry:stop], columns[entry:stop], counts[entry:stop] = found[:3]
        entry = stop
    if part.span.length is None:
        _check_number(part, entry)
    rows, columns, counts = rows[:entry], columns[:entry], counts[:entry]
    if (rows[1:] < rows[:-1]).any():
        order = np.argsort(rows, kind="stable")
        rows, columns, counts = rows[order], columns[order], counts[order]
    offsets = np.zeros(part.rows + 1, index)
    np.cumsum(np.bincount(rows, minlength=part.rows), out=offsets[1:])
    X = sp.csr_matrix((counts, columns, offsets), shape=(part.rows, width))
    if not canonical(X):
        raise damaged(part.span, text, 0, partial(_twice, repeated=_repeated(X, part.first), seen=set()))
    X.eliminate_zeros()
    return X


def _check_number(part: Part, found: int) -> None:
    said, line = part.header.entries, part.header.line
    if found != said:
        raise ValueError(
            f"{part.span.file.path}, line {line}: it says that {said} entries follow, and {found} do; "
            f"{'is the file complete?' if found < said else 'correct the number'}"
        )


def _entries(part: Part, text: bytes, width: int) -> Iterator[tuple[int, list[np.ndarray]]]:
    """The entries of `text` piece by piece: where it starts; rows, columns, counts, and places in the piece.

    The arrays are buffers that the next entries are written to.
    """
    cuts = list(pieces(text))
    most = max((end - start for start, end in cuts), default=0) // SHORTEST
    buffers = [np.empty(most, np.int64) for _ in range(4)]
    width = min(width, part.header.words)
    for start, end in cuts:
        piece = np.frombuffer(text, np.uint8, end - start, start)
        found, place = read_entries(
            piece, part.header.counted, part.first, part.first + part.rows, width, *buffers
        )
        if place >= 0:
            raise damaged(part.span, text, start + place, partial(_damage, part=part, width=width))
        yield start, [buffer[:found] for buffer in buffers]


def _damage(line: bytes, part: Part, width: int) -> str:
    """What is wrong with a line that the kernel stopped at, token by token."""
    tokens = line.partition(b"#")[0].split()
    names = ("document", "word", "count") if part.header.counted else ("document", "word")
    if len(tokens) != len(names):
        return f"{shown(line.strip())} is no line `{' '.join(names)}`"
    stop, said = part.first + part.rows, part.header.documents
    for name, token in zip(names, tokens, strict=False):
        if name == "count":
            if not is_number(token):
                return f"its count {shown(token)} is no number"
            return f"its count {shown(token)} {count_damage(token) or 'has more digits than a count needs'}"
        if not token.isdigit() or len(token) > 18 or int(token) == 0:
            return f"its {name} {shown(token)} is no whole number from 1 on"
        number = int(token)
        if name == "document" and number > said:
            return f"document {number}, but the header says that there are {said}"
        if name == "document" and not part.first <= number < stop:
            return f"document {number}, which was elsewhere before: the file has changed, read it again"
        if name == "word" and number > part.header.words:
            return f"word {number}, but the header says that there are {part.header.words}"
        if name == "word" and number > width:
            return f"word {number} is beyond n_features={width}"
    return "it cannot be read"


def _repeated(X: sp.csr_matrix, first: int) -> set[tuple[int, int]]:
    """The entries (document, word) that a matrix with sorted indices has more than once."""
    rows = np.repeat(np.arange(first, first + X.shape[0]), np.diff(X.indptr))
    same = (rows[1:] == rows[:-1]) & (X.indices[1:] == X.indices[:-1])
    return set(zip(rows[1:][same].tolist(), (X.indices[1:][same] + 1).tolist(), strict=True))


def _twice(line: bytes, repeated: set[tuple[int, int]], seen: set[tuple[int, int]]) -> str:
    """Whether a line has one of the `repeated` entries that was `seen` before; empty: no."""
    if tokens := line.partition(b"#")[0].split()[:2]:
        entry = int(tokens[0]), int(tokens[1])
        if entry in seen:
            return f"word {entry[1]} of document {entry[0]} was there before: add its counts up"
        if entry in repeated:
            seen.add(entry)
    return ""
