"""Rows in groups: which rows belong together, and sums, counts and firsts of each group.

`Segments` says in which order the rows of a batch are to be taken so that each group's stand together, and
where in that order each group starts. Whatever is computed of groups is then a `ufunc.reduceat`, the same for
rows that come sorted and for rows that were gathered by hash.

Two rows are of one group where their rank columns (`payload.ordering`) are equal, so nulls, NaN and zeros of
either sign are grouped as Spark does. Within a group rows keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.payload.ordering import Int64s, Ranks

_WORD_BITS = 63  # of an int64 that is not negative


@dataclass(frozen=True, slots=True)
class Segments:
    """The groups of ``rows`` rows. ``starts``: where each begins, ascending from 0. ``order``: positions of
    the rows, group after group; None where they stand so already."""

    starts: Int64s
    rows: int
    order: Int64s | None = None

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self.starts)

    def sizes(self) -> Int64s:
        """How many rows each group has."""
        return np.diff(self.starts, append=self.rows)

    def arranged(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One value per row, put in the order of the groups."""
        return values if self.order is None else values[self.order]

    def reduced(self, function: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """``function`` over the values of each group, given one value per row."""
        result: npt.NDArray[Any] = function.reduceat(self.arranged(values), self.starts)
        return result

    def sums(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self.reduced(np.add, values)

    def any(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Whether each group has a row that is flagged."""
        return self.reduced(np.logical_or, flags)

    def rows_at(self, positions: Int64s) -> Int64s:
        """The rows that stand at these positions of the order."""
        return positions if self.order is None else self.order[positions]

    def first_rows(self) -> Int64s:
        """The first row of each group."""
        return self.rows_at(self.starts)


def in_order(ranks: Ranks) -> Segments:
    """The groups of rows that are sorted by these ranks."""
    return Segments(ranks.group_starts(), ranks.rows)


def by_hash(ranks: Ranks) -> Segments:
    """The groups of rows in any order.

    Rows are numbered by group and (number, row) are packed into one int64 and sorted, which is stable and
    which NumPy does with vector instructions: 5 ns a row, where grouping itself took 5 (50,000 keys) to 60 ns
    (a million different ones); sorting by the keys took 45 and 36 ns, of strings 70 and 210.
    """
    numbers = _group_numbers(ranks)
    if numbers is None:
        return Segments(np.zeros(min(1, ranks.rows), np.int64), ranks.rows)
    groups, order = _sorted_by_number(*numbers)
    changed = np.ones(ranks.rows, np.bool_)
    np.not_equal(groups[1:], groups[:-1], out=changed[1:])
    return Segments(np.flatnonzero(changed), ranks.rows, order)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A number per row, at least 0 and of so many bits."""

    values: Int64s
    bits: int

    def dense(self) -> _Numbers:
        """Numbers that are less than there are rows, equal where these are."""
        encoded = pa.array(self.values).dictionary_encode()
        return _Numbers(np.asarray(encoded.indices).astype(np.int64), _bits_of(len(encoded.dictionary) - 1))


def _bits_of(most: int) -> int:
    return max(0, most).bit_length()


def _group_numbers(ranks: Ranks) -> tuple[Int64s, int] | None:
    """A number of each row's group and the bits that these have; None if all rows are of one group."""
    numbers: _Numbers | None = None
    row_bits = _bits_of(ranks.rows - 1)
    for column in _told_apart(ranks):
        if numbers is None:
            numbers = column
            continue
        if numbers.bits + column.bits > _WORD_BITS and column.bits > row_bits:
            column = column.dense()
        if numbers.bits + column.bits > _WORD_BITS:
            numbers = numbers.dense()
        numbers = _Numbers(numbers.values << column.bits | column.values, numbers.bits + column.bits)
    if numbers is None:
        return None
    if numbers.bits + row_bits > _WORD_BITS:
        numbers = numbers.dense()
    return numbers.values, numbers.bits


def _told_apart(ranks: Ranks) -> Iterator[_Numbers]:
    """The rank columns that are not the same in all rows, as numbers: of integers their distances from the
    least, which costs less than hashing them, where these fit a word."""
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


def _sorted_by_number(numbers: Int64s, bits: int) -> tuple[Int64s, Int64s]:
    """The numbers sorted, and the rows in that order, those of one number as they stood."""
    row_bits = _bits_of(len(numbers) - 1)
    if bits + row_bits > _WORD_BITS:  # more than 2**31 rows
        order = np.argsort(numbers, kind="stable")
        return numbers[order], order
    packed = np.sort(numbers << row_bits | np.arange(len(numbers), dtype=np.int64))
    return packed >> row_bits, packed & ((1 << row_bits) - 1)
