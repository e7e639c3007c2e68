"""`Placement`s: how the rows of an exchange are distributed, in the form that the driver sends to tasks.

A placement is a small picklable object. A `Scheme` makes it on the driver (`spark.plan.schemes`), and each
task makes its own `ChannelSelector` from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sortshuffle.partitioner import (
    BroadcastSelector,
    ChannelSelector,
    GlobalSelector,
    HashSelector,
    IdSelector,
    RangeSelector,
    RoundRobinSelector,
    RowHashSelector,
    SortKey,
)

GOLDEN_RATIO = 0.6180339887498949  # its multiples, modulo 1, spread evenly however many there are


class Placement(Protocol):
    """Makes selectors. For a single subpartition every placement makes a `GlobalSelector`, or a broadcast
    selector, which does the same."""

    def count(self, asked: int) -> int:
        """Return the number of subpartitions. ``asked``: the number that the user gave."""

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector: ...


@dataclass(frozen=True, slots=True)
class HashPlacement:
    """Placement by Spark's hash of the columns at these positions."""

    keys: tuple[int, ...]

    def count(self, asked: int) -> int:
        return asked

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        return GlobalSelector() if subpartitions == 1 else HashSelector(self.keys, subpartitions)


@dataclass(frozen=True, slots=True)
class IdPlacement:
    """Placement by the subpartition number in the column at this position."""

    column: int

    def count(self, asked: int) -> int:
        return asked

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        return GlobalSelector() if subpartitions == 1 else IdSelector(self.column, subpartitions)


@dataclass(frozen=True, slots=True)
class RoundRobinPlacement:
    """Even placement. ``reproducible``: a task that runs again has its rows in the same order, so that round
    robin places them alike; otherwise rows are placed by a hash of the whole row."""

    reproducible: bool

    def count(self, asked: int) -> int:
        return asked

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        if subpartitions == 1:
            return GlobalSelector()
        if not self.reproducible:
            return RowHashSelector(subpartitions)
        return RoundRobinSelector(subpartitions, first_subpartition(map_index, subpartitions))


@dataclass(frozen=True, slots=True)
class RangePlacement:
    """Placement by ranges of keys. ``bounds``: the keys of the rows that end a range; None for one range."""

    keys: tuple[SortKey, ...]
    bounds: pa.RecordBatch | None

    def count(self, asked: int) -> int:
        """Count, as Spark does, only the ranges that the sample separates."""
        return 1 if self.bounds is None else int(self.bounds.num_rows) + 1

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        if self.bounds is None or subpartitions == 1:
            return GlobalSelector(subpartitions)
        return RangeSelector(self.keys, self.bounds, subpartitions)


@dataclass(frozen=True, slots=True)
class BroadcastPlacement:
    """Sends every row to each of ``partitions`` subpartitions."""

    partitions: int

    def count(self, asked: int) -> int:
        return self.partitions

    def selector(self, subpartitions: int, map_index: int) -> ChannelSelector:
        return BroadcastSelector(subpartitions)


def first_subpartition(map_index: int, subpartitions: int) -> int:
    """Return the subpartition at which a map task begins. Neighbouring tasks begin far apart."""
    return int(map_index * GOLDEN_RATIO % 1.0 * subpartitions)
