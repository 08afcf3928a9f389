"""Kernels that read numbers in text, with the bits of Python's float(), and what is between them."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

__all__ = [
    "DIGITS",
    "NEWLINE",
    "ZERO",
    "after_blanks",
    "after_token",
    "blank",
    "digits",
    "ends_token",
    "number",
]

NEWLINE, SPACE, HASH = 10, 32, 35
PLUS, MINUS, POINT = 43, 45, 46
DIGIT_0, SMALL_E, LARGE_E = 48, 101, 69
DIGITS = 19  # as many decimal digits always fit 64 bits
FULL = np.uint64(10 ** (DIGITS - 1))
EXACT = np.uint64(2**53)  # integers up to here, and the powers of ten up to 22, are exact float64
TENS = 10.0 ** np.arange(23)
LEAST, MOST = -342, 308  # powers of ten with which a 64-bit integer may still be a normal float64

ZERO, ONE, THREE, TEN = np.uint64(0), np.uint64(1), np.uint64(3), np.uint64(10)
HALF, LOW_HALF, ALL = np.uint64(32), np.uint64(2**32 - 1), np.uint64(2**64 - 1)
TOP, BELOW = np.uint64(63), np.uint64(2**9 - 1)
STEPS = np.array([32, 16, 8, 4, 2, 1], np.uint64)


def _powers_of_five() -> np.ndarray:
    """The 128 leading bits of 5^q, q from LEAST to MOST, as (high, low) uint64.

    Rounded up for -27 <= q < 0, where 5^-q is a divisor that may leave nothing; else cut off.
    """
    rows = np.empty((MOST - LEAST + 1, 2), np.uint64)
    for q in range(LEAST, MOST + 1):
        power = 5 ** abs(q)
        up = (power - 1).bit_length()  # power <= 2^up
        bits = power << 128 if q >= 0 else 2 ** (up + 127 if q >= -27 else 2 * up + 128) // power + 1
        bits >>= bits.bit_length() - 128
        rows[q - LEAST] = bits >> 64, bits & (2**64 - 1)
    return rows


FIVES = _powers_of_five()


@njit(nogil=True, cache=True)
def _product(a, b):
    """High and low 64 bits of the product of two uint64."""
    a_high, a_low, b_high, b_low = a >> HALF, a & LOW_HALF, b >> HALF, b & LOW_HALF
    low, cross, other = a_low * b_low, a_high * b_low, a_low * b_high
    middle = (low >> HALF) + (cross & LOW_HALF) + (other & LOW_HALF)
    high = a_high * b_high + (cross >> HALF) + (other >> HALF) + (middle >> HALF)
    return high, (middle << HALF) | (low & LOW_HALF)


@njit(nogil=True, cache=True)
def _scaled(w, q):
    """w 10^q, rounded to the nearest float64, for 0 < w < 2^64; False where that is denormal or huge.

    Eisel and Lemire's algorithm (Lemire, Number Parsing at a Gigabyte per Second, 2021, sec. 5); 128 bits of
    5^q are always enough (Mushtak and Lemire, Fast Number Parsing Without Fallback, 2023).
    """
    zeros = ZERO
    for i in range(STEPS.size):
        step = STEPS[i]
        if w >> (TOP + ONE - step) == ZERO:
            w <<= step
            zeros += step
    high, low = _product(w, FIVES[q - LEAST, 0])
    if high & BELOW == BELOW:
        more, _ = _product(w, FIVES[q - LEAST, 1])
        carried = more > ALL - low
        low = more - (ALL - low) - ONE if carried else low + more
        high += ONE if carried else ZERO
    upper = high >> TOP
    shift = upper + np.uint64(9)
    mantissa = high >> shift
    power = ((217706 * q) >> 16) + 63 + np.int64(upper) - np.int64(zeros)
    if not -1022 <= power <= 1022:
        return 0.0, False
    # Exactly half way: to even, not up.
    if low <= ONE and -4 <= q <= 23 and mantissa & THREE == ONE and mantissa << shift == high:
        mantissa -= ONE
    mantissa = (mantissa + (mantissa & ONE)) >> ONE
    return math.ldexp(np.float64(mantissa), int(power) - 52), True


@njit(nogil=True, cache=True)
def blank(byte):
    """Whether bytes.split() drops it; a newline is no blank."""
    return byte == SPACE or (9 <= byte <= 13 and byte != NEWLINE)


@njit(nogil=True, cache=True)
def ends_token(byte):
    """Whether a token ends before it."""
    return byte in (NEWLINE, HASH) or blank(byte)


@njit(nogil=True, cache=True)
def digits(text, at, whole):
    """`whole` with the digits from `at` on behind it, and where they end; wrong beyond DIGITS of them."""
    # A bound on their number would cost more than all the rest: the compiler unrolls such a loop.
    while True:
        digit = np.int64(text[at]) - 48
        if not 0 <= digit <= 9:
            return whole, at
        if whole < FULL:
            whole = whole * TEN + np.uint64(digit)
        at += 1


@njit(nogil=True, cache=True)
def _after_zeros(text, at):
    while text[at] == DIGIT_0:
        at += 1
    return at


@njit(nogil=True, cache=True)
def _after_sign(text, at):
    return at + 1 if text[at] == MINUS or text[at] == PLUS else at


@njit(nogil=True, cache=True)
def number(text, at):
    """The decimal number at `at`: value, where it ends, and whether that is all of it and exact.

    What this does not decide (nan, inf, more than 19 digits, denormals, no number at all) is for float().
    """
    negative = text[at] == MINUS
    at = _after_sign(text, at)
    first, exponent = at, np.int64(0)
    leading = _after_zeros(text, at)
    mantissa, at = digits(text, leading, ZERO)
    some, many = at > first, at - leading
    if text[at] == POINT:
        first = at + 1
        leading = _after_zeros(text, first) if mantissa == ZERO else first
        mantissa, at = digits(text, leading, mantissa)
        some, many = some or at > first, many + at - leading
        exponent = np.int64(first - at)
    if text[at] == SMALL_E or text[at] == LARGE_E:
        down = text[at + 1] == MINUS
        first = _after_sign(text, at + 1)
        power, at = digits(text, first, ZERO)
        some = some and 0 < at - first <= 9
        exponent += -np.int64(power) if down else np.int64(power)
    whole = some and many <= DIGITS and ends_token(text[at])
    value = np.float64(mantissa)
    if mantissa != ZERO:
        if mantissa <= EXACT and -22 <= exponent <= 22:
            value = value / TENS[-exponent] if exponent < 0 else value * TENS[exponent]
        elif LEAST <= exponent <= MOST:
            value, decided = _scaled(mantissa, exponent)
            whole = whole and decided
        else:
            whole = False
    return -value if negative else value, at, whole


@njit(nogil=True, cache=True)
def after_blanks(text, at):
    """The next place that holds no blank; the end of the line where a comment starts."""
    while blank(text[at]):
        at += 1
    if text[at] == HASH:
        while text[at] != NEWLINE:
            at += 1
    return at


@njit(nogil=True, cache=True)
def after_token(text, at):
    """The next place at which a token ends."""
    while not ends_token(text[at]):
        at += 1
    return at
