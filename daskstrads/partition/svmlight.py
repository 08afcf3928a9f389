"""A byte range of an svmlight file as a sparse block; what is damaged in it is named by file and line."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from fsspec.utils import read_block

from .svmlight_kernels import read_lines

__all__ = ["ANY", "Span", "block", "survey"]

ANY = 2**62  # above every index: they have 18 digits at most
PIECE = 2**20  # bytes parsed at a time: what the kernel writes stays in the cache


@dataclass(frozen=True)
class Span:
    """The lines of a file (an `fsspec` OpenFile) that start in `length` bytes after `start`; None: all of it.

    A line that runs over or up to the start belongs to the span before, however long it is.
    """

    file: Any
    start: int = 0
    length: int | None = None

    def text(self) -> bytes:
        """Its lines, the last with a newline."""
        with copy.copy(self.file) as file:
            text = file.read() if self.length is None else read_block(file, self.start, self.length, b"\n")
        return text if text.endswith(b"\n") or not text else text + b"\n"

    def line_number(self, text: bytes, place: int) -> int:
        """The line of the file, from 1, in which `text[place]` is; reads all that comes before."""
        newlines, left = text.count(b"\n", 0, place), self.start
        with copy.copy(self.file) as file:
            while left and (read := file.read(min(left, PIECE))):
                newlines += read.count(b"\n")
                left -= len(read)
        # The line that runs over the start ends before `text` begins.
        return newlines + 1 + (self.start > 0)


class Lines(NamedTuple):
    """Rows of some lines, `columns` from 0 on, and the smallest and largest index as written (-1: none).

    The arrays are buffers that the next lines are written to.
    """

    labels: np.ndarray
    offsets: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    smallest: int
    largest: int


def survey(span: Span, base: int) -> tuple[int, int, int]:
    """Rows of the span, its smallest and its largest column index (-1: it has none).

    Raises:
        ValueError: a damaged line.
    """
    rows, smallest, largest = 0, -1, -1
    for lines in _lines(span, span.text(), base, ANY):
        rows += len(lines.labels)
        largest = max(largest, lines.largest)
        if lines.smallest >= 0:
            smallest = lines.smallest if smallest < 0 else min(smallest, lines.smallest)
    return rows, smallest, largest


def block(span: Span, base: int, width: int, dtype: np.dtype) -> tuple[sp.csr_matrix, np.ndarray]:
    """The span's rows, a csr_matrix (rows, `width`) of `dtype`, and their labels, float64.

    Raises:
        ValueError: a damaged line, an index below `base` or not below `base` + `width`.
    """
    text = span.text()
    # More than enough; memory that is not written to costs nothing.
    most_rows, most_entries = text.count(b"\n"), text.count(b":")
    index = np.int32 if max(width, most_entries) <= np.iinfo(np.int32).max else np.int64
    labels, offsets = np.empty(most_rows), np.zeros(most_rows + 1, index)
    columns, values = np.empty(most_entries, index), np.empty(most_entries, dtype)
    row = entry = 0
    for lines in _lines(span, text, base, base + width):
        next_row, next_entry = row + len(lines.labels), entry + len(lines.values)
        labels[row:next_row] = lines.labels
        offsets[row + 1 : next_row + 1] = lines.offsets[1:] + entry
        columns[entry:next_entry] = lines.columns
        with np.errstate(over="ignore"):  # float32: infinite, as for scikit-learn
            values[entry:next_entry] = lines.values
        row, entry = next_row, next_entry
    X = sp.csr_matrix((values[:entry], columns[:entry], offsets[: row + 1]), shape=(row, width))
    X.has_canonical_format = True  # checked line by line
    return X, labels[:row]


def _lines(span: Span, text: bytes, base: int, stop: int) -> Iterator[Lines]:
    """The span's `text` piece by piece, indices in [base, stop)."""
    cuts = list(_cuts(text))
    # A number takes two bytes at least. What is never written to costs nothing, the rest stays in the cache.
    most = max((end - start for start, end in cuts), default=0) // 2
    labels, offsets = np.empty(most), np.empty(most + 1, np.int64)
    columns, values, odd = np.empty(most, np.int64), np.empty(most), np.empty((most, 3), np.int64)
    for start, end in cuts:
        piece = np.frombuffer(text, np.uint8, end - start, start)
        row, entry, n_odd, smallest, largest, damaged = read_lines(
            piece, base, stop, labels, offsets, columns, values, odd
        )
        for place, first, last in odd[:n_odd].tolist():
            try:
                value = float(text[start + first : start + last])
            except ValueError:
                damaged = first  # comes before what stopped the kernel
                break
            if place < 0:
                labels[-1 - place] = value
            else:
                values[place] = value
        if damaged >= 0:
            raise _error(span, text, start + damaged, base, stop)
        yield Lines(labels[:row], offsets[: row + 1], columns[:entry], values[:entry], smallest, largest)


def _cuts(text: bytes) -> Iterator[tuple[int, int]]:
    """Where pieces of whole lines start and end, of PIECE bytes or of one longer line."""
    start = 0
    while start < len(text):
        end = text.rfind(b"\n", start, start + PIECE) + 1 or text.index(b"\n", start) + 1
        yield start, end
        start = end


def _error(span: Span, text: bytes, place: int, base: int, stop: int) -> ValueError:
    line = text[text.rfind(b"\n", 0, place) + 1 : text.index(b"\n", place)]
    number = span.line_number(text, place)
    return ValueError(f"{span.file.path}, line {number}: {_damage(line, base, stop)}")


def _damage(line: bytes, base: int, stop: int) -> str:
    """What is wrong with a line, token by token."""
    label, *tokens = line.partition(b"#")[0].split()
    if not _is_number(label):
        several = " (lines of several labels are not read)" if b"," in label else ""
        return f"its label {_shown(label)} is no number{several}"
    if tokens and tokens[0].startswith(b"qid:"):
        tokens = tokens[1:]
    last = -1
    for token in tokens:
        index, colon, value = token.partition(b":")
        if not colon:
            return f"{_shown(token)} is no pair index:value"
        if not index.isdigit() or len(index) > 18:
            return f"{_shown(index)} in {_shown(token)} is no column index, a whole number from {base} on"
        column = int(index)
        if column < base:
            return (
                "column index 0, but zero_based=False: columns are counted from 1; "
                "pass zero_based=True if all the files count from 0"
            )
        if column >= stop:
            return f"column index {column} is beyond n_features={stop - base}, counted from {base}"
        if column <= last:
            return f"column index {column} after {last}: the indices of a line must rise"
        if not _is_number(value):
            return f"{_shown(value)} in {_shown(token)} is no number"
        last = column
    raise AssertionError(f"nothing is wrong with {line!r}")  # the kernel and this function disagree


def _is_number(token: bytes) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def _shown(token: bytes) -> str:
    return repr(token[:40].decode("ascii", "backslashreplace")) + ("..." if len(token) > 40 else "")
