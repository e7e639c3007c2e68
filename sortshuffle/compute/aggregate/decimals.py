"""Exact sums and averages of 128-bit decimals, and detection of those that do not fit.

A decimal is an integer, its unscaled value; its type has the scale. A sum is computed as four sums of 32-bit
parts, each of which fits into an int64 for 2**31 rows; then the carries are propagated, which shows whether
the sum fits. Averages are rounded as in Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.compute.aggregate.segments import Segments
from sortshuffle.partitioner.arrow_views import fixed_width
from sortshuffle.payload.ordering import Int64s

Bools = npt.NDArray[np.bool_]

_LOW_HALF = np.int64(0xFFFF_FFFF)
_HALF_BITS = np.int64(32)
_INT64_MOST = 2**63 - 1
_EXACT_INTEGERS = 2**53  # every integer up to this is a double
_EXACT_POWERS = 22  # 10**22 is the largest power of ten that is a double
_DIVISION_SCALE = 39  # Spark rounds a quotient to this scale, and then to the scale of the result
# up to this scale, and with fewer than 2**53 rows, rounding once gives the same as rounding twice: a quotient
# that is not a tie differs from one by at least 1 / (2 * rows * 10**(scale + 4)), more than half of 10**-39
_ROUNDED_ONCE = 18
_DOUBTFUL_ULPS = 4  # a product and a printed double are each off by half a unit in the last place


@dataclass(frozen=True, slots=True)
class Words:
    """Unscaled values in two's complement of 128 bits. ``low``: the bits of the lower half, as int64."""

    low: Int64s
    high: Int64s

    @staticmethod
    def of(decimals: pa.Array) -> Words:
        """Return the unscaled values of a decimal128 array, with zeros for nulls."""
        halves = fixed_width(decimals, np.dtype((np.int64, 2)))
        if decimals.null_count:  # Arrow's fill_null would change a scale below 0
            halves = np.where(np.asarray(decimals.is_valid())[:, np.newaxis], halves, 0)
        return Words(np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1]))

    def decimals(self, kind: pa.DataType, valid: Bools) -> pa.Array:
        """Make decimals of type ``kind`` from the unscaled values, null where not ``valid``."""
        halves = np.stack([self.low, self.high], axis=1)
        bitmap = pa.array(valid).buffers()[1]
        return pa.Array.from_buffers(kind, len(valid), [bitmap, pa.py_buffer(halves)])

    def fit_int64(self) -> bool:
        return bool((self.high == self.low >> np.int64(63)).all())

    def fits(self, precision: int) -> Bools:
        """Return which values have at most ``precision`` digits."""
        most = 10**precision - 1
        return self._greater(-most - 1) & ~self._greater(most)

    def _greater(self, bound: int) -> Bools:
        high, low = np.int64(bound >> 64), np.uint64(bound & (2**64 - 1))
        result: Bools = (self.high > high) | ((self.high == high) & (self.low.view(np.uint64) > low))
        return result

    def unscaled(self) -> list[int]:
        """Return the values as Python integers."""
        return [
            high << 64 | low
            for low, high in zip(self.low.view(np.uint64).tolist(), self.high.tolist(), strict=True)
        ]


def doubles(decimals: pa.Array) -> pa.Array:
    """Return the double that is nearest to each decimal, as Spark's cast does. Nulls stay null. Arrow's own
    cast may be off by a unit in the last place."""
    words, scale = Words.of(decimals), decimals.type.scale
    low = words.low
    # The quotient of an exact integer and an exact power of ten is rounded once
    are_exact = (words.high == low >> np.int64(63)) & (low >= -_EXACT_INTEGERS) & (low <= _EXACT_INTEGERS)
    if not 0 <= scale <= _EXACT_POWERS:
        are_exact[:] = False
    found = low / 10.0**scale
    if not are_exact.all():
        # Arrow reads text as the nearest double. This takes 0.1 to 0.3 us for each
        texts = decimals.filter(pa.array(~are_exact)).cast(pa.string())
        found[~are_exact] = texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return pa.array(found, mask=np.asarray(decimals.is_null()) if decimals.null_count else None)


def sums(words: Words, segments: Segments) -> tuple[Words, Bools]:
    """Return the sum of each group's values, and whether it fits into 128 bits."""
    if words.fit_int64() and may_sum(words.low, segments.rows):
        totals = segments.sums(words.low)
        return Words(totals, totals >> np.int64(63)), np.ones(segments.count, np.bool_)
    parts = [
        segments.sums(part)
        for part in (
            words.low & _LOW_HALF,
            words.low >> _HALF_BITS & _LOW_HALF,
            words.high & _LOW_HALF,
            words.high >> _HALF_BITS,
        )
    ]
    for lower, upper in pairwise(parts):
        upper += lower >> _HALF_BITS
        lower &= _LOW_HALF
    top = parts[3]
    fits = top == (top << _HALF_BITS) >> _HALF_BITS
    return Words(parts[1] << _HALF_BITS | parts[0], top << _HALF_BITS | parts[2]), fits


def may_sum(values: Int64s, rows: int) -> bool:
    """Return whether every sum of up to ``rows`` of these integers is sure to fit into an int64."""
    if len(values) == 0:
        return True
    return max(abs(int(values.min())), abs(int(values.max()))) * rows <= _INT64_MOST


def long_sums(values: Int64s, segments: Segments) -> tuple[Int64s, Bools | None]:
    """Return each group's sum modulo 2**64, and whether the sum is exact, or None if all sums are exact."""
    totals = segments.sums(values)
    if may_sum(values, segments.rows):
        return totals, None
    low = segments.sums(values & _LOW_HALF)
    high = segments.sums(values >> _HALF_BITS) + (low >> _HALF_BITS)
    return totals, high == (high << _HALF_BITS) >> _HALF_BITS


def averages(totals: pa.Array, counts: Int64s, kind: pa.DataType) -> tuple[pa.Array, Bools]:
    """Return the averages of groups, with ties rounded away from zero, and whether they fit into ``kind``. An
    average is null if it does not fit, or if its total is null or its count is 0, which count as fitting."""
    valid = np.asarray(totals.is_valid()) & (counts > 0)
    divisors = np.where(valid, counts, 1)
    words = Words.of(totals)
    scale, digits = totals.type.scale, kind.scale - totals.type.scale
    most = max((abs(int(words.low.min())), abs(int(words.low.max())))) if len(valid) else 0
    factor = 10**digits
    within = 2 * most * factor + int(divisors.max(initial=0)) <= _INT64_MOST
    if words.fit_int64() and within and scale <= _ROUNDED_ONCE and int(divisors.max(initial=0)) < 2**53:
        signs = np.where(words.low < 0, -1, 1)
        quotients = signs * ((2 * np.abs(words.low) * factor + divisors) // (2 * divisors))
        result = Words(quotients, quotients >> np.int64(63))
        fits = result.fits(kind.precision) | ~valid
        return result.decimals(kind, valid & fits), fits
    # one group at a time, in Python integers: NumPy cannot divide 128-bit integers
    rounded = [
        _rounded_quotient(total, divisor, scale, kind.scale)
        for total, divisor in zip(words.unscaled(), divisors.tolist(), strict=True)
    ]
    fits = np.array([abs(each) < 10**kind.precision for each in rounded], np.bool_) | ~valid
    kept = [each if good else 0 for each, good in zip(rounded, (valid & fits).tolist(), strict=True)]
    low = np.array([each & (2**64 - 1) for each in kept], np.uint64).view(np.int64)
    high = np.array([each >> 64 for each in kept], np.int64)
    return Words(low, high).decimals(kind, valid & fits), fits


def rounded_decimals(values: npt.NDArray[np.float64], valid: Bools, kind: pa.DataType) -> pa.Array:
    """Cast doubles to decimals of at most 15 digits as Spark does: round the printed form of a double, with
    ties away from zero."""
    scaled = np.abs(values) * 10.0**kind.scale
    unscaled = np.floor(scaled + 0.5)
    # if the product is so near a tie that it may be on the wrong side, round the printed digits
    doubtful = np.abs(scaled - np.floor(scaled) - 0.5) <= _DOUBTFUL_ULPS * np.spacing(scaled)
    for at in np.flatnonzero(doubtful).tolist():
        digits = Decimal(repr(abs(float(values[at])))).scaleb(kind.scale)
        unscaled[at] = int(digits.to_integral_value(ROUND_HALF_UP))
    low = np.where(values < 0, -unscaled, unscaled).astype(np.int64)
    return Words(low, low >> np.int64(63)).decimals(kind, valid)


def _rounded_quotient(total: int, divisor: int, scale: int, result_scale: int) -> int:
    at_first = _half_up(abs(total) * 10 ** (_DIVISION_SCALE - scale), divisor)
    rounded = _half_up(at_first, 10 ** (_DIVISION_SCALE - result_scale))
    return -rounded if total < 0 else rounded


def _half_up(value: int, divisor: int) -> int:
    return (2 * value + divisor) // (2 * divisor)
