"""Kernel that reads lines `label index:value ...`."""

from __future__ import annotations

import numpy as np
from numba import njit

from .number_kernels import DIGITS, NEWLINE, ZERO, after_blanks, after_token, digits, number

__all__ = ["read_lines"]

COLON = 58
QUERY = np.frombuffer(b"qid:", np.uint8)


@njit(nogil=True, cache=True)
def _is_query(text, at):
    """Whether `qid:` is at `at`."""
    place = 0
    while place < QUERY.size and text[at + place] == QUERY[place]:
        place += 1
    return place == QUERY.size


@njit(nogil=True, cache=True)
def read_lines(text, base, stop, svmlight, labels, offsets, columns, values, odd):
    """Fill in the rows of lines; indices must be in [base, stop).

    `svmlight`: they must also rise within a line, and `qid:` is passed over. `text` (uint8) ends with a
    newline. Written: `labels` and `offsets` (one more) a row; `columns` (index - base) and `values` an entry;
    `odd` (..., 3) the numbers that are left to float(): entry, or -1 - row for a label; start; end. Returns
    rows, entries, odd numbers, the smallest and the largest index (-1: none), and the place of the first
    damaged token (-1: none), where reading ends.
    """
    at = row = entry = n_odd = 0
    smallest = largest = np.int64(-1)
    offsets[0] = 0
    while at < text.size:
        at = after_blanks(text, at)
        if text[at] == NEWLINE:
            at += 1
            continue
        last, place, start = np.int64(-1), -1 - row, at
        while True:
            value, at, exact = number(text, start)
            if not exact:
                at = after_token(text, start)
                odd[n_odd] = place, start, at
                n_odd += 1
            if place < 0:
                labels[row] = value
            else:
                values[entry] = value
                entry += 1
            at = after_blanks(text, at)
            if svmlight and place < 0 and _is_query(text, at):
                at = after_blanks(text, after_token(text, at))
            if text[at] == NEWLINE:
                break
            index, start = digits(text, at, ZERO)
            column = np.int64(index)
            falls = svmlight and column <= last
            if not 0 < start - at < DIGITS or text[start] != COLON or falls or not base <= column < stop:
                return row, entry, n_odd, smallest, largest, at
            smallest = column if smallest < 0 or column < smallest else smallest
            largest = max(largest, column)
            columns[entry] = column - base
            last, place = column, entry
            start += 1
        row += 1
        offsets[row] = entry
    return row, entry, n_odd, smallest, largest, np.int64(-1)
