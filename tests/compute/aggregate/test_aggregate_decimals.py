"""Sums and averages of decimals against Python's own integers and decimals, at the ends of their ranges."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from sortshuffle.compute.aggregate.decimals import (
    Words,
    averages,
    doubles,
    long_sums,
    rounded_decimals,
    sums,
)
from sortshuffle.compute.aggregate.segments import Segments

EXACT = Context(prec=120)
MOST = 10**38 - 1
LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 2**62, -1, 0, 1])
UNSCALED = st.one_of(
    st.integers(-MOST, MOST), st.integers(-99, 99), LONGS, st.sampled_from([MOST, -MOST, 2**64, -(2**64)])
)


def decimals(unscaled: list[int], kind: pa.DataType) -> pa.Array:
    return pa.array([Decimal(value).scaleb(-kind.scale, EXACT) for value in unscaled], kind)


def nullable_decimals(unscaled: list[int | None], kind: pa.DataType) -> pa.Array:
    """Decimals from their unscaled values, with other bytes than zeros for nulls."""
    values = b"".join((7 if each is None else each).to_bytes(16, "little", signed=True) for each in unscaled)
    halves = np.frombuffer(values, np.int64).reshape(-1, 2)
    valid = np.array([each is not None for each in unscaled], np.bool_)
    return Words(halves[:, 0], halves[:, 1]).decimals(kind, valid)


def cut(count: int, borders: list[int]) -> tuple[Segments, list[slice]]:
    starts = sorted({0, *(border for border in borders if border < count)})
    slices = [slice(start, stop) for start, stop in pairwise([*starts, count])]
    return Segments(np.array(starts, np.int64), count), slices


@given(st.lists(UNSCALED, min_size=1, max_size=20), st.lists(st.integers(0, 20), max_size=4))
def test_sums_of_128_bits_are_exact_or_known_not_to_fit(values: list[int], borders: list[int]) -> None:
    segments, groups = cut(len(values), borders)
    totals, fit = sums(Words.of(decimals(values, pa.decimal128(38, 5))), segments)
    true = [sum(values[group]) for group in groups]
    assert fit.tolist() == [-(2**127) <= total < 2**127 for total in true]
    assert [total for total, good in zip(totals.unscaled(), fit, strict=True) if good] == [
        total for total, good in zip(true, fit, strict=True) if good
    ]
    for digits in (1, 18, 19, 20, 37, 38):
        expected = [abs(total) < 10**digits for total in true]
        assert [bool(a) for a, good in zip(totals.fits(digits), fit, strict=True) if good] == [
            a for a, good in zip(expected, fit, strict=True) if good
        ]


def test_the_least_of_128_bits_has_too_many_digits_for_any_decimal() -> None:
    least = Words(np.array([0]), np.array([-(2**63)]))
    assert least.unscaled() == [-(2**127)]
    assert not least.fits(38)[0]


@given(
    st.lists(st.none() | UNSCALED, max_size=20)
    | st.lists(st.none() | st.integers(-(2**53), 2**53), max_size=20),
    st.sampled_from([-3, 0, 1, 2, 6, 22, 23, 38]),
    st.integers(0, 3),
)
@example([56249006655, None, 2**53, 3], 2, 1)
@example([2**53 + 1, None, -(2**53) - 1, 10**38 - 1], 2, 1)
def test_decimals_become_the_nearest_doubles(unscaled: list[int | None], scale: int, start: int) -> None:
    column = nullable_decimals(unscaled, pa.decimal128(38, scale)).slice(start)
    expected = [None if each is None else float(each) for each in column.to_pylist()]
    assert doubles(column).to_pylist() == expected


@given(st.lists(st.none() | LONGS, max_size=9), st.sampled_from([-3, 0, 2]))
def test_unscaled_values_are_zero_for_nulls_whatever_the_scale(
    unscaled: list[int | None], scale: int
) -> None:
    column = nullable_decimals(unscaled, pa.decimal128(38, scale))
    assert Words.of(column).unscaled() == [each or 0 for each in unscaled]


@given(st.lists(LONGS, min_size=1, max_size=20), st.lists(st.integers(0, 20), max_size=4))
def test_sums_of_longs_wrap_around_and_say_so(values: list[int], borders: list[int]) -> None:
    segments, groups = cut(len(values), borders)
    totals, true = long_sums(np.array(values, np.int64), segments)
    exact = [sum(values[group]) for group in groups]
    assert totals.tolist() == [(total + 2**63) % 2**64 - 2**63 for total in exact]
    fits = [-(2**63) <= total < 2**63 for total in exact]
    assert (true.tolist() if true is not None else [True] * len(fits)) == fits


def spark_average(total: int, count: int, scale: int, kind: pa.DataType) -> Decimal | None:
    """As Spark divides: to 39 digits behind the point, then to those of the result."""
    quotient = EXACT.divide(Decimal(total).scaleb(-scale, EXACT), Decimal(count))
    rounded = quotient.quantize(Decimal(1).scaleb(-39), ROUND_HALF_UP, EXACT)
    result = rounded.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, EXACT)
    return result if abs(result.scaleb(kind.scale, EXACT)) < 10**kind.precision else None


@given(
    st.lists(st.tuples(UNSCALED, st.integers(0, 2**40) | st.integers(0, 5)), min_size=1, max_size=10),
    st.sampled_from([(19, 2), (28, 18), (38, 0), (38, 18), (38, 19), (38, 36), (38, 38)]),
)
@example([(5, 2), (-5, 2), (1, 3), (-2, 3), (99999, 100000)], (19, 2))
@example([(10**38 - 1, 1)], (38, 18))
def test_averages_are_rounded_as_spark_rounds_them(
    groups: list[tuple[int, int]], digits: tuple[int, int]
) -> None:
    precision, scale = digits
    groups = [(total % 10**precision if total > 0 else -(-total % 10**precision), n) for total, n in groups]
    kind = pa.decimal128(min(38, precision - 6), min(38, scale + 4)) if scale < 28 else pa.decimal128(38, 38)
    totals = decimals([total for total, _ in groups], pa.decimal128(precision, scale))
    found, fit = averages(totals, np.array([count for _, count in groups]), kind)
    expected = [spark_average(total, count, scale, kind) if count else None for total, count in groups]
    missing = [each is None and count > 0 for each, (_, count) in zip(expected, groups, strict=True)]
    assert fit.tolist() == [not each for each in missing]
    assert [a for a, lost in zip(found.to_pylist(), missing, strict=True) if not lost] == [
        a for a, lost in zip(expected, missing, strict=True) if not lost
    ]


def test_the_average_of_a_null_total_is_null_and_so_is_that_of_no_rows() -> None:
    totals = pa.array([None, Decimal("1.00"), Decimal("1.00")], pa.decimal128(20, 2))
    found, fit = averages(totals, np.array([3, 0, 4]), pa.decimal128(14, 6))
    assert found.to_pylist() == [None, None, Decimal("0.250000")]
    assert fit.all()


@given(
    st.lists(
        st.floats(-(10**9), 10**9)
        | st.integers(-(10**12), 10**12).map(lambda n: n / 1000)
        | st.integers(-(10**9), 10**9).map(lambda n: (2 * n + 1) / 2_000_000),
        min_size=1,
        max_size=20,
    )
)
def test_doubles_become_the_decimals_that_they_print_as(values: list[float]) -> None:
    kind = pa.decimal128(15, 6)
    found = rounded_decimals(np.array(values), np.ones(len(values), bool), kind)
    assert found.to_pylist() == [
        Decimal(repr(value)).quantize(Decimal("1E-6"), ROUND_HALF_UP, EXACT) for value in values
    ]
