"""A byte range of lines `label index:value ...` as a sparse block: svmlight, and Blei's lda-c."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from .counts import LIMIT, canonical, count_damage, index_type
from .spans import Span, damaged, is_number, pieces, shown
from .svmlight_kernels import read_lines

__all__ = ["ANY", "Kind", "block", "survey"]

ANY = 2**62  # above every index: they have 18 digits at most


class Kind(NamedTuple):
    """What a line must be besides numbers.

    `counts`: values are whole numbers from 0 on. `sized`: the label is the number of pairs, and these come in
    any order (lda-c); else indices rise.
    """

    counts: bool = False
    sized: bool = False


NUMBERS = Kind()


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


def survey(span: Span, base: int, kind: Kind = NUMBERS) -> tuple[int, int, int]:
    """Rows of the span, its smallest and its largest column index (-1: it has none).

    Raises:
        ValueError: a damaged line.
    """
    rows, smallest, largest = 0, -1, -1
    for lines in _lines(span, span.text(), base, ANY, kind):
        rows += len(lines.labels)
        largest = max(largest, lines.largest)
        if lines.smallest >= 0:
            smallest = lines.smallest if smallest < 0 else min(smallest, lines.smallest)
    return rows, smallest, largest


def block(
    span: Span, base: int, width: int, dtype: np.dtype, kind: Kind = NUMBERS
) -> tuple[sp.csr_matrix, np.ndarray]:
    """The span's rows, a csr_matrix (rows, `width`) of `dtype`, and their labels, float64.

    Raises:
        ValueError: a damaged line, an index below `base` or not below `base` + `width`.
    """
    text = span.text()
    # More than enough; memory that is not written to costs nothing.
    most_rows, most_entries = text.count(b"\n"), text.count(b":")
    index = index_type(width, most_entries)
    labels, offsets = np.empty(most_rows), np.zeros(most_rows + 1, index)
    columns, values = np.empty(most_entries, index), np.empty(most_entries, dtype)
    row = entry = 0
    for lines in _lines(span, text, base, base + width, kind):
        next_row, next_entry = row + len(lines.labels), entry + len(lines.values)
        labels[row:next_row] = lines.labels
        offsets[row + 1 : next_row + 1] = lines.offsets[1:] + entry
        columns[entry:next_entry] = lines.columns
        with np.errstate(over="ignore"):  # float32: infinite, as for scikit-learn
            values[entry:next_entry] = lines.values
        row, entry = next_row, next_entry
    X = sp.csr_matrix((values[:entry], columns[:entry], offsets[: row + 1]), shape=(row, width))
    if not kind.sized:
        X.has_canonical_format = True  # checked line by line
    elif not canonical(X):
        raise damaged(span, text, 0, _twice)
    if kind.counts:
        X.eliminate_zeros()
    return X, labels[:row]


def _lines(span: Span, text: bytes, base: int, stop: int, kind: Kind) -> Iterator[Lines]:
    """The span's `text` piece by piece, indices in [base, stop)."""
    cuts = list(pieces(text))
    # A number takes two bytes at least. What is never written to costs nothing, the rest stays in the cache.
    most = max((end - start for start, end in cuts), default=0) // 2
    labels, offsets = np.empty(most), np.empty(most + 1, np.int64)
    columns, values, odd = np.empty(most, np.int64), np.empty(most), np.empty((most, 3), np.int64)
    for start, end in cuts:
        piece = np.frombuffer(text, np.uint8, end - start, start)
        row, entry, n_odd, smallest, largest, place = read_lines(
            piece, base, stop, not kind.sized, labels, offsets, columns, values, odd
        )
        fine = place < 0 and _read_odd(text, start, odd[:n_odd], labels, values)
        if fine and kind.counts:
            fine = bool(_are_counts(values[:entry]))
        if fine and kind.sized:
            fine = np.array_equal(labels[:row], np.diff(offsets[: row + 1]))
        if not fine:
            raise damaged(span, text, start, partial(_damage, base=base, stop=stop, kind=kind))
        yield Lines(labels[:row], offsets[: row + 1], columns[:entry], values[:entry], smallest, largest)


def _read_odd(text: bytes, start: int, odd: np.ndarray, labels: np.ndarray, values: np.ndarray) -> bool:
    """Fill in the numbers that the kernel left to float(); whether all are numbers."""
    for place, first, last in odd.tolist():
        token = text[start + first : start + last]
        if not is_number(token):
            return False
        if place < 0:
            labels[-1 - place] = float(token)
        else:
            values[place] = float(token)
    return True


def _are_counts(values: np.ndarray) -> np.bool_:
    return np.all((values >= 0) & (values < LIMIT) & (np.floor(values) == values))


def _damage(line: bytes, base: int, stop: int, kind: Kind) -> str:
    """What is wrong with a line, token by token; empty: nothing."""
    label, *tokens = line.partition(b"#")[0].split() or (b"0",)
    if not is_number(label):
        several = " (lines of several labels are not read)" if b"," in label and not kind.sized else ""
        return f"its {'number of words' if kind.sized else 'label'} {shown(label)} is no number{several}"
    if not kind.sized and tokens and tokens[0].startswith(b"qid:"):
        tokens = tokens[1:]
    last = -1
    for token in tokens:
        index, colon, value = token.partition(b":")
        if not colon:
            return f"{shown(token)} is no pair {'word:count' if kind.counts else 'index:value'}"
        if not index.isdigit() or len(index) > 18:
            return f"{shown(index)} in {shown(token)} is no column index, a whole number from {base} on"
        column = int(index)
        if column < base:
            return (
                "column index 0, but zero_based=False: columns are counted from 1; "
                "pass zero_based=True if all the files count from 0"
            )
        if column >= stop:
            return f"column index {column} is beyond n_features={stop - base}, counted from {base}"
        if column <= last and not kind.sized:
            return f"column index {column} after {last}: the indices of a line must rise"
        if not is_number(value):
            return f"{shown(value)} in {shown(token)} is no number"
        if kind.counts and (what := count_damage(value)):
            return f"{shown(value)} in {shown(token)} {what}"
        last = column
    if kind.sized and float(label) != len(tokens):
        return f"it says that {shown(label)} words follow, and {len(tokens)} do"
    return ""


def _twice(line: bytes) -> str:
    """Which index a line has more than once; empty: none."""
    seen = set()
    for token in line.partition(b"#")[0].split()[1:]:
        index = int(token.partition(b":")[0])
        if index in seen:
            return f"column index {index} more than once: add its counts up"
        seen.add(index)
    return ""
