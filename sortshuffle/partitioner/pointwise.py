"""Placement by the producer of a row, whatever the row's values.

======================  ============================================================================
``GlobalSelector``      every row to one subpartition, for exchanges that have only one
``forward``             producer i to subpartition i
``RescaleSelector``     each producer to its few own subpartitions, row by row in rotation
``BroadcastSelector``   every row to every subpartition, for the small side of a broadcast join
======================  ============================================================================

``ShuffleFrame`` uses ``GlobalSelector``, and ``BroadcastSelector`` for joins with a side that is marked
``broadcast``. `sortshuffle.engine` accepts all of these selectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from sortshuffle.errors import StateError, UsageError
from sortshuffle.partitioner.selector import Ids, check_subpartitions, id_dtype


@dataclass(frozen=True)
class GlobalSelector:
    """Sends every row to subpartition ``target``. Raises UsageError if there is no such subpartition."""

    is_broadcast: ClassVar[bool] = False

    subpartitions: int = 1
    target: int = 0

    def __post_init__(self) -> None:
        check_subpartitions(self.subpartitions)
        _check_number("target", self.target, self.subpartitions)

    def assign(self, batch: pa.RecordBatch) -> Ids:
        """Return ``target`` for each row; see ``ChannelSelector.assign``."""
        return np.full(batch.num_rows, self.target, id_dtype(self.subpartitions))


def forward(producer: int, producers: int) -> GlobalSelector:
    """Send all rows of producer ``producer`` to the subpartition of the same number, of ``producers`` in all.
    Raises UsageError unless ``0 <= producer < producers``.
    """
    return GlobalSelector(producers, producer)


@dataclass
class RescaleSelector:
    """Distributes rows in rotation over this producer's own subpartitions.

    The subpartitions are divided among the producers in order, as evenly as possible. If there are fewer
    subpartitions than producers, neighbouring producers share one, and each sends all its rows there: then
    the order of rows does not matter. Otherwise the condition of ``RoundRobinSelector`` holds here too: use
    it only for an input that a retry sees in the same order, with one selector per task attempt.

    Raises UsageError unless ``0 <= producer < producers``.
    """

    is_broadcast: ClassVar[bool] = False

    subpartitions: int
    producer: int
    producers: int

    def __post_init__(self) -> None:
        check_subpartitions(self.subpartitions)
        _check_number("producer", self.producer, self.producers)
        self._next = 0

    @property
    def own(self) -> range:
        """Subpartitions of this producer."""
        first = self.producer * self.subpartitions // self.producers
        stop = (self.producer + 1) * self.subpartitions // self.producers
        return range(first, max(stop, first + 1))

    def assign(self, batch: pa.RecordBatch) -> Ids:
        """Return each row's subpartition, continuing from the end of the previous batch."""
        ids = np.arange(self._next, self._next + batch.num_rows, dtype=np.int64)
        ids %= len(self.own)
        ids += self.own.start
        self._next = (self._next + batch.num_rows) % len(self.own)
        return ids.astype(id_dtype(self.subpartitions))


@dataclass(frozen=True)
class BroadcastSelector:
    """Sends every row to every subpartition: the writer broadcasts, and asks for no ids."""

    is_broadcast: ClassVar[bool] = True

    subpartitions: int

    def __post_init__(self) -> None:
        check_subpartitions(self.subpartitions)

    def assign(self, batch: pa.RecordBatch) -> Ids:
        """Raise StateError: a broadcast does not place rows one by one."""
        raise StateError("a broadcast selector places no single rows: write them with broadcast()")


def _check_number(name: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        raise UsageError(f"{name} must be from 0 to {count - 1}, not {number}")
