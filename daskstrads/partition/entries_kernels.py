"""Kernel that reads lines `document word count`."""

from __future__ import annotations

import numpy as np
from numba import njit

from .number_kernels import DIGITS, EXACT, NEWLINE, ZERO, after_blanks, blank, digits, ends_token, number

__all__ = ["read_entries"]

SHORT = 15  # digits of whole numbers that are below 2^53 for sure


@njit(nogil=True, cache=True)
def _count(text, at):
    """The count at `at`, where it ends, and whether it is one: whole, from 0 on, below 2^53."""
    whole, end = digits(text, at, ZERO)
    if 0 < end - at <= SHORT and ends_token(text[end]):
        return np.int64(whole), end, True
    value, end, exact = number(text, at)
    if exact and 0 <= value < EXACT and value == np.floor(value):
        return np.int64(value), end, True
    return np.int64(0), end, False


@njit(nogil=True, cache=True)
def read_entries(text, counted, first, stop, width, rows, columns, counts, places):
    """Fill in the entries of lines `document word count`, documents in [first, stop), words in [1, width].

    `text` (uint8) ends with a newline; without `counted` the lines have no count, and each is 1. Written, an
    entry: `rows` (document - first), `columns` (word - 1), `counts`, and in `places` where its line starts.
    Returns entries, and the place of the first damaged line (-1: none), where reading ends.
    """
    at = entry = 0
    count, fine = np.int64(1), True
    while at < text.size:
        line = at
        start = after_blanks(text, at)
        if text[start] == NEWLINE:
            at = start + 1
            continue
        document, at = digits(text, start, ZERO)
        row = np.int64(document)
        if not 0 < at - start < DIGITS or not blank(text[at]) or not first <= row < stop:
            return entry, line
        start = after_blanks(text, at)
        word, at = digits(text, start, ZERO)
        column = np.int64(word)
        if not 0 < at - start < DIGITS or not ends_token(text[at]) or not 1 <= column <= width:
            return entry, line
        if counted:
            count, at, fine = _count(text, after_blanks(text, at))
        at = after_blanks(text, at)
        if not fine or text[at] != NEWLINE:
            return entry, line
        rows[entry] = row - first
        columns[entry] = column - 1
        counts[entry] = count
        places[entry] = line
        entry += 1
        at += 1
    return entry, np.int64(-1)
