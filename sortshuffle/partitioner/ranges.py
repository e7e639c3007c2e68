"""Range placement: a row goes where Spark's ``RangePartitioner`` would put it, given the same bounds.

Used by ``ShuffleFrame.repartitionByRange`` and ``sort``.

Bounds are keys, strictly ascending in the order of the selector. Subpartition i takes the rows above bound
i - 1, up to and including bound i; the last one takes the rows above every bound. Subpartitions are thus
disjoint and ascending ranges of keys, and equal keys are together.

How: keys are compared one int64 column at a time (`KeyColumns`). A column places every row except those that
equal a bound in all columns so far; only these rows go on to the next column. Where bounds share their first
columns, a row is looked up only among the bounds with the row's prefix.

Rows are placed in chunks, which stay in cache. A selector makes its tables when rows need them, so it must be
used by one thread only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.errors import UsageError
from sortshuffle.partitioner.arrow_views import Bools, Positions
from sortshuffle.partitioner.key_order import KeyColumns, Part
from sortshuffle.partitioner.selector import Ids, check_subpartitions, id_dtype
from sortshuffle.payload.ordering import Int64s, RowOrder, SortKey
from sortshuffle.payload.stable_order import stable_order

CHUNK_ROWS = 1 << 14
"""Rows placed at a time. Measured in ns per row on one core with 1 MiB of L2 cache and 200 bounds, for 8, 16,
32 and 64 Ki rows: int64 20, 17, 19, 32; strings of 40 bytes 27, 24, 22, 44. 16 Ki rather than 32, because
other machines have smaller caches."""

FEW_BOUNDS = 8
"""Up to this many bounds, each bound is compared with every value: about 1 ns per row and bound. More bounds
are looked up in the sorted values, for 12 ns per row whatever their number."""


@dataclass
class RangeSelector:
    """Places each row by the first bound that is not below its key.

    ``keys``: the key columns and their directions. ``bounds``: at most ``subpartitions - 1`` rows, strictly
    ascending, with one column for each key, in the order of the keys and of the key's type. With fewer bounds
    the last subpartitions stay empty. Raises UsageError for bounds of another form.
    """

    is_broadcast: ClassVar[bool] = False

    keys: tuple[SortKey, ...]
    bounds: pa.RecordBatch
    subpartitions: int
    _bound_columns: KeyColumns = field(init=False, repr=False, compare=False)
    _parts: list[Part] = field(init=False, repr=False, compare=False)
    _levels: list[_Level] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_subpartitions(self.subpartitions)
        _check_bounds(self.keys, self.bounds, self.subpartitions)
        self._bound_columns = KeyColumns(self.bounds, _over_key_columns(self.keys))
        self._parts = list(self._bound_columns.parts())
        self._levels = []

    def assign(self, batch: pa.RecordBatch) -> Ids:
        """Return each row's subpartition; see ``ChannelSelector.assign``."""
        ids: Ids = np.zeros(batch.num_rows, id_dtype(self.subpartitions))
        if self.bounds.num_rows:
            for first in range(0, batch.num_rows, CHUNK_ROWS):
                self._place(batch.slice(first, CHUNK_ROWS), ids[first : first + CHUNK_ROWS])
        return ids

    def _place(self, batch: pa.RecordBatch, ids: Ids) -> None:
        columns = KeyColumns(batch, self.keys)
        rows: Positions | None = None  # rows that equal a bound in all parts so far, None for all rows
        prefixes: Positions | None = None  # the prefix of each of these rows
        for number, part in enumerate(self._parts):
            # look up the rows among the bounds with their prefix
            level = self._level(number)
            values = columns.values(part, rows)
            found, equal = level.find(values, prefixes)
            places = level.first_bound[found]
            if rows is None:
                ids[:] = places
            else:
                ids[rows] = places
            # continue with the rows that equal a bound in this part too
            if equal.all():
                prefixes = found
                continue
            undecided = np.flatnonzero(equal)
            if len(undecided) == 0:
                return
            rows = undecided if rows is None else rows[undecided]
            prefixes = found[undecided]

    def _level(self, number: int) -> _Level:
        """Return the table of a part, made when a row first needs it, because long text has many parts."""
        if number == len(self._levels):
            above = self._levels[-1].prefix_of_bound if self._levels else np.zeros(self.bounds.num_rows, int)
            values = self._bound_columns.values(self._parts[number])
            self._levels.append(_Level.of(values, above, id_dtype(self.subpartitions)))
        return self._levels[number]


@dataclass(frozen=True, slots=True)
class _Level:
    """The bounds' values in one part of the keys.

    A prefix is a bound's values in all parts up to this one. Prefixes are numbered in ascending order. The
    prefix *above* ends with the previous part.

    ``values``: the distinct values of this part, ascending. ``codes``: a number for each prefix, made from
    the prefix above and the value; None if all bounds have the same prefix above, so that values identify
    prefixes. ``first_bound``: the first bound with each prefix, then the number of bounds.
    ``prefix_of_bound``: the prefix of each bound.
    """

    values: Int64s
    codes: Int64s | None
    first_bound: Ids
    prefix_of_bound: Positions

    @staticmethod
    def of(values: Int64s, above: Positions, dtype: npt.DTypeLike) -> _Level:
        distinct, places = np.unique(values, return_inverse=True)
        codes: Int64s | None = None
        prefixes = places
        if above[-1] != 0:
            codes, prefixes = np.unique(_codes(above, places, True, len(distinct)), return_inverse=True)
        first_bound = np.searchsorted(prefixes, np.arange(prefixes[-1] + 2)).astype(dtype)
        return _Level(distinct, codes, first_bound, prefixes)

    def find(self, values: Int64s, above: Positions | None) -> tuple[Positions, Bools]:
        """For each row, given its prefix above and its value, return how many prefixes are below, and whether
        the next prefix equals the row's."""
        found = _count_below(self.values, values)
        equal = self.values.take(found, mode="clip") == values
        if self.codes is None:
            return found, equal
        assert above is not None
        codes = _codes(above, found, equal, len(self.values))
        found = _count_below(self.codes, codes)
        return found, self.codes.take(found, mode="clip") == codes


def _codes(above: Positions, places: Positions, equal: Bools | bool, distinct: int) -> Int64s:
    """Return numbers in the order of (prefix above, value). A bound's value gets an odd number, and any value
    between two bounds' values gets the even number between theirs."""
    codes: Int64s = above * (2 * distinct + 1)
    codes += places
    codes += places
    codes += equal
    return codes


def _count_below(bounds: Int64s, values: Int64s) -> Positions:
    """Count, for each value, the ascending ``bounds`` below it. Given enough values, the bounds are looked up
    in the sorted values: 12 ns per value with 20, 200 and 2,000 bounds alike; NumPy's searchsorted of the
    values in the bounds takes 20, 39 and 58 ns."""
    if len(bounds) <= FEW_BOUNDS:
        counts = np.zeros(len(values), np.int64)
        for bound in bounds:
            counts += values > bound
        return counts
    if len(values) < len(bounds):
        return np.searchsorted(bounds, values)
    # sort the values and cut them into runs between bounds; a run's number is the count of bounds below it
    order, _ = stable_order(values)
    stops = np.searchsorted(values, bounds, side="right", sorter=order)
    runs = np.diff(stops, prepend=0, append=len(values))
    counts = np.empty(len(values), np.int64)
    counts[order] = np.repeat(np.arange(len(runs)), runs)
    return counts


def _check_bounds(keys: tuple[SortKey, ...], bounds: pa.RecordBatch, subpartitions: int) -> None:
    if not keys or bounds.num_columns != len(keys):
        raise UsageError(f"bounds need one column for each key: {bounds.num_columns} for {len(keys)} keys")
    if bounds.num_rows >= subpartitions:
        raise UsageError(f"{bounds.num_rows} bounds make more ranges than {subpartitions} subpartitions")
    ranks = RowOrder(_over_key_columns(keys)).ranks(bounds)
    ascending = np.array_equal(ranks.sort_indices(), np.arange(bounds.num_rows))
    if not ascending or len(ranks.group_starts()) != bounds.num_rows:
        raise UsageError("bounds must be strictly ascending in the order of the keys")


def _over_key_columns(keys: tuple[SortKey, ...]) -> tuple[SortKey, ...]:
    """Return the same order for batches that consist of the key columns only."""
    return tuple(replace(key, column=position) for position, key in enumerate(keys))
