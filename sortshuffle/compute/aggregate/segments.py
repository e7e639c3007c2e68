"""The groups of a batch's rows, and computations over each group.

`Segments` has an order of the rows in which each group is contiguous, and the start of each group in that
order. Any computation over groups is then a `ufunc.reduceat`, for sorted rows and for rows grouped by hash
alike.

Two rows are in one group if their rank columns (`payload.ordering`) are equal, so nulls, NaN and zeros of
either sign are grouped as in Spark. Within a group rows keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.payload.ordering import Int64s, Ranks
from sortshuffle.payload.stable_order import stable_order

_WORD_BITS = 63  # of an int64 that is not negative


@dataclass(frozen=True, slots=True)
class Segments:
    """The groups of ``rows`` rows. ``starts``: where each group begins, ascending from 0. ``order``:
    positions of the rows, group after group; None if the rows are already in that order."""

    starts: Int64s
    rows: int
    order: Int64s | None = None

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.starts)

    def sizes(self) -> Int64s:
        """Return the number of rows of each group."""
        return np.diff(self.starts, append=self.rows)

    def arranged(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return ``values``, which has one value per row, in the order of the groups."""
        return values if self.order is None else values[self.order]

    def reduced(self, function: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Reduce the values of each group by ``function``. ``values``: one value per row."""
        result: npt.NDArray[Any] = function.reduceat(self.arranged(values), self.starts)
        return result

    def sums(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self.reduced(np.add, values)

    def any(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return for each group whether any of its rows is flagged."""
        return self.reduced(np.logical_or, flags)

    def rows_at(self, positions: Int64s) -> Int64s:
        """Return the rows at ``positions`` in the order of the groups."""
        return positions if self.order is None else self.order[positions]

    def first_rows(self) -> Int64s:
        """Return the first row of each group."""
        return self.rows_at(self.starts)


def in_order(ranks: Ranks) -> Segments:
    """Return the groups of rows that are sorted by ``ranks``."""
    return Segments(ranks.group_starts(), ranks.rows)


def by_hash(ranks: Ranks) -> Segments:
    """Return the groups of rows in any order.

    Each row gets its group's number, and rows are sorted by that. 65,536 rows of 50,000 integer or text keys
    took 6 and 46 ns a row; to sort them by the keys took 13 and 99 (AMD EPYC, 2026-11-29).
    """
    numbers = _group_numbers(ranks)
    if numbers is None:
        return Segments(np.zeros(min(1, ranks.rows), np.int64), ranks.rows)
    order, changes = stable_order(numbers)
    return Segments(np.flatnonzero(changes), ranks.rows, order)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A non-negative number of at most ``bits`` bits for each row."""

    values: Int64s
    bits: int

    def dense(self) -> _Numbers:
        """Return numbers less than the number of rows, equal where the original numbers are equal."""
        encoded = pa.array(self.values).dictionary_encode()
        return _Numbers(np.asarray(encoded.indices).astype(np.int64), _bits_of(len(encoded.dictionary) - 1))


def _bits_of(most: int) -> int:
    return max(0, most).bit_length()


def _group_numbers(ranks: Ranks) -> Int64s | None:
    """Return each row's group number; None if all rows are in one group."""
    numbers: _Numbers | None = None
    row_bits = _bits_of(ranks.rows - 1)
    for column in _varying_columns(ranks):
        if numbers is None:
            numbers = column
            continue
        if numbers.bits + column.bits > _WORD_BITS and column.bits > row_bits:
            column = column.dense()
        if numbers.bits + column.bits > _WORD_BITS:
            numbers = numbers.dense()
        numbers = _Numbers(numbers.values << column.bits | column.values, numbers.bits + column.bits)
    return None if numbers is None else numbers.values


def _varying_columns(ranks: Ranks) -> Iterator[_Numbers]:
    """Yield the rank columns that are not constant, as numbers. Integers become distances from the least
    value if these fit a word, because that costs less than hashing."""
    if ranks.rows == 0:
        return
    for column in ranks.columns:
        if isinstance(column, np.ndarray):
            least, most = int(column.min()), int(column.max())
            bits = _bits_of(most - least)
            if bits > _WORD_BITS:
                yield _Numbers(column, bits).dense()
            elif bits:
                yield _Numbers(column - least, bits)
        else:
            encoded = column.values.dictionary_encode()
            if len(encoded.dictionary) > 1:
                indices = np.asarray(encoded.indices).astype(np.int64)
                yield _Numbers(indices, _bits_of(len(encoded.dictionary) - 1))
