"""The kernels of svmlight text, against float() and by hand; test_kernels.py repeats it without JIT."""

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daskstrads.partition.number_kernels import FIVES, LEAST, MOST, number
from daskstrads.partition.svmlight_kernels import read_lines

finite = st.floats(allow_nan=False, allow_infinity=False)


def parsed(token, end="\n"):
    """What `number` says: its value's bits or None, and how far it went."""
    text = np.frombuffer(f"{token}{end}".encode(), np.uint8)
    value, at, whole = number(text, 0)
    return struct.pack("d", value) if whole else None, at


def bits(token):
    return struct.pack("d", float(token))


@given(x=finite, style=st.sampled_from(["{!r}", "{:.17g}", "{:.6g}", "{:.18e}", "{:+.3E}", "{:.4f}"]))
@example(x=-0.0, style="{!r}")
def test_a_float_as_it_is_written(x, style):
    token = style.format(x)
    found, at = parsed(token)
    if found is None:  # more than 19 digits, or near the ends of the range
        assert sum(c.isdigit() for c in token) > 19 or not 1e-307 < abs(float(token)) < 8e307
    else:
        assert found == bits(token)
        assert at == len(token)


@given(
    mantissa=st.integers(1, 10**19 - 1),
    exponent=st.one_of(st.integers(-345, 312), st.integers(-30, 30)),
)
@example(mantissa=2**53 + 1, exponent=0)  # half way: to even, down
@example(mantissa=2**53 + 3, exponent=0)  # up
@example(mantissa=(2**54 + 2) * 5, exponent=-1)
@example(mantissa=2**54 - 1, exponent=0)  # rounds up to a power of two
@example(mantissa=3718573326824363, exponent=6)  # just above half way
@example(mantissa=88506582771257239, exponent=14)
@example(mantissa=9007199254740993, exponent=23)
@example(mantissa=89255, exponent=-22)
@example(mantissa=17976931348623157, exponent=292)
@example(mantissa=17976931348623159, exponent=292)
@example(mantissa=22250738585072014, exponent=-324)
def test_whole_numbers_times_powers_of_ten(mantissa, exponent):
    token = f"{mantissa}e{exponent}"
    found, _ = parsed(token)
    if found is None:
        assert not 1e-307 < float(token) < 8e307
    else:
        assert found == bits(token)


def test_mantissas_of_all_lengths():
    rng = np.random.default_rng(0)  # one in 512 needs the lower half of the power of five
    for bits_kept, exponent in zip(rng.integers(1, 64, 4000), rng.integers(-40, 40, 4000), strict=True):
        token = f"{rng.integers(2**63) >> (63 - bits_kept)}e{exponent}"
        assert parsed(token)[0] == bits(token), token


def test_the_powers_of_five():
    for q, (high, low) in zip(range(LEAST, MOST + 1), FIVES.tolist(), strict=True):
        kept = (high << 64) + low
        assert kept.bit_length() == 128
        power, divisor = (5**q, 1) if q >= 0 else (1, 5**-q)
        shift = 128 - power.bit_length() + divisor.bit_length()  # 2^127 < power 2^shift / divisor < 2^129
        power <<= max(shift, 0)
        divisor <<= max(-shift, 0)
        divisor *= 2 if power >= divisor << 128 else 1
        whole, rest = divmod(power, divisor)
        assert kept == whole + (1 if -27 <= q < 0 and rest else 0)


@pytest.mark.parametrize(
    "token",
    ["0", "-0", "+7", "007", "1.", ".5", "-.5", "1e5", "1E+05", "0e999", "0.1e1", "123456789012345e22",
     "1234567890123456789", "0000000000000000000001.5", "0.0000000000000000000001234567890123456789"],
)  # fmt: skip
def test_numbers(token):
    for end in ("\n", " 3:4\n", "\t\n", "\r\n", "#\n"):
        assert parsed(token, end) == (bits(token), len(token))


@pytest.mark.parametrize(
    "token",
    ["", "-", ".", "+.", "e5", "1e", "1e+", "1e1.0", "0x10", "1_0", "nan", "-inf", "1:2", "1-", "--1",
     "1.2.3", "1,2", "1é", "1\x00", "1e-320", "1e400", "1e9999999999", "12345678901234567890",
     "0.12345678901234567890"],
)  # fmt: skip
def test_what_is_left_to_float(token):
    assert parsed(token)[0] is None


def lines(text, base=1, stop=2**62):
    rows, entries = text.count(b"\n"), text.count(b":")
    arrays = np.zeros(rows), np.zeros(rows + 1, np.int64), np.zeros(entries, np.int64), np.zeros(entries)
    odd = np.zeros((rows + entries, 3), np.int64)
    row, entry, n_odd, smallest, largest, damaged = read_lines(
        np.frombuffer(text, np.uint8), base, stop, True, *arrays, odd
    )
    labels, offsets, columns, values = (array.tolist() for array in arrays)
    return (
        (labels[:row], offsets[: row + 1], columns[:entry], values[:entry]),
        odd[:n_odd].tolist(),
        (smallest, largest),
        damaged,
    )


def test_lines_by_hand():
    text = b"1 1:2 3:4.5\n\n  \t\n# none 1:2\n-1\n2 qid:7 2:1 # 9:9\r\n3 qid:1\n\n4\t1:1\t\x0b 5:1e2#\n"
    rows, odd, extremes, damaged = lines(text)
    assert rows == ([1, -1, 2, 3, 4], [0, 2, 2, 3, 3, 5], [0, 2, 1, 0, 4], [2, 4.5, 1, 1, 100])
    assert (odd, extremes, damaged) == ([], (1, 5), -1)
    assert lines(b"")[0] == ([], [0], [], [])
    assert lines(b"\n")[2:] == ((-1, -1), -1)
    assert lines(b"1 0:1 7:1\n", base=0)[0][2] == [0, 7]


def test_odd_numbers_are_listed_with_their_place():
    text = b"x 1:1 2:nan\n1 3:\n"
    assert lines(text)[1] == [[-1, 0, 1], [1, 8, 11], [2, 16, 16]]


@pytest.mark.parametrize(
    ("text", "place"),
    [(b"1 2\n", 2), (b"1 1:1 2\n", 6), (b"1 a:1\n", 2), (b"1 -1:1\n", 2), (b"1 :1\n", 2), (b"1 0:1\n", 2),
     (b"1\n1 9:1 10:1\n", 8), (b"1 2:1 2:1\n", 6), (b"1 2:1 1:1\n", 6), (b"1 1:1 qid:3\n", 6),
     (b"1 1#:1\n", 2), (b"1 1000000000000000001:1\n", 2), (b"1 1 :1\n", 2), (b"1 qid:1 qid:2\n", 8)],
)  # fmt: skip
def test_reading_ends_at_a_damaged_token(text, place):
    assert lines(text, stop=10)[3] == place
