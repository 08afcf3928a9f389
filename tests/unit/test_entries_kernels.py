"""The kernel of lines `document word count`, by hand; test_kernels.py repeats it without JIT."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskstrads.partition.entries_kernels import read_entries


def entries(text, counted=True, first=1, stop=100, width=100):
    """The entries (row, column, count, where the line starts), and the place of a damaged line."""
    arrays = np.zeros((4, text.count(b"\n")), np.int64)
    found, place = read_entries(np.frombuffer(text, np.uint8), counted, first, stop, width, *arrays)
    return list(zip(*arrays[:, :found].tolist(), strict=True)), place


def test_lines_by_hand():
    text = b"1 1 2\n\n3\t 2  4.0 # 1 1 1\r\n# 1\n \n99 100 1e2\n"
    assert entries(text) == ([(0, 0, 2, 0), (2, 1, 4, 7), (98, 99, 100, 32)], -1)
    assert entries(b"5 2\n6 1 #\n", counted=False, first=5, stop=7) == ([(0, 1, 1, 0), (1, 0, 1, 4)], -1)
    assert entries(b"") == ([], -1)
    assert entries(b"\n \n") == ([], -1)


@given(count=st.one_of(st.integers(0, 2**53 - 1), st.integers(10**14, 10**16)), style=st.sampled_from("df"))
def test_counts_are_exact_or_refused(count, style):
    found, place = entries(f"1 1 {count:{style}}\n".encode())
    if count >= 2**53:
        assert (found, place) == ([], 0)
    elif style == "d" or place < 0:
        assert (found, place) == ([(0, 0, count, 0)], -1)
    else:
        assert len(f"{count:f}") > 19  # digits: with six behind the point


@pytest.mark.parametrize(
    "line",
    [b"1", b"1 1", b"1 1 1 1", b"0 1 1", b"1 0 1", b"100 1 1", b"1 101 1", b"a 1 1", b"1 a 1", b"1 1 a",
     b"1 1 -1", b"1 1 0.5", b"1 1 nan", b"1 1 1e16", b"1 1 9007199254740992", b"1.0 1 1", b"1 1.0 1",
     b"+1 1 1", b"-1 1 1", b"1#1 1", b"1 1 # 1", b"1 1:1", b"18446744073709551617 1 1",
     b"1 18446744073709551617 1", b"1 1 18446744073709551617", b"1 1 1_0", b"1 1 1x", b"1 1 1 x"],
)  # fmt: skip
def test_reading_ends_at_a_damaged_line(line):
    assert entries(b"1 1 1\n " + line + b"\n2 2 2\n") == ([(0, 0, 1, 0)], 6)


def test_a_pattern_has_no_counts():
    for line in (b"1 1 1", b"1", b"1 1x"):
        assert entries(line + b"\n", counted=False) == ([], 0)
