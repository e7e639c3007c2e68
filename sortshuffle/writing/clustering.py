"""Clustering: reorders the rows of a few batches (a *unit*) by the subpartition that they go to.

A row is moved twice on its way into a region (`writing.encoders`); this is the first move. With many
subpartitions, rows are clustered by *groups* of neighbours in the write order, because a unit's rows for a
single subpartition would be too few.

Rules: rows of one group keep their order. A clustered unit owns its memory: it does not keep a larger buffer
alive through a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.partitioner.selector import ChannelSelector, Ids, check_ids

# The most bytes of rows in a unit. The random reads of `take` must find them in cache: 4 MiB took 0.20 ns a
# byte, 8 MiB 0.28, 16 MiB 0.42, 64 MiB 0.55 (rows of 68 bytes, 32 MiB of third level cache)
UNIT_BYTES = 8 * MIB
LARGEST_SHARE_OF_BUDGET = 4  # a unit takes at most a quarter: its rows and their copy exist at the same time
# More subpartitions than this are put into groups. Gathering a unit's share of each costs 1.5 us a piece:
# with 1000 subpartitions 0.22 ns a byte, against 0.11 for 64 groups and 0.19 to order their rows
MOST_SINGLE = 512
# Rows of a group, which are ordered in cache: 2 to 4 MiB were best, 8 took 0.1 ns a byte more
GROUP_BYTES = 3 * MIB
# The memory for ordering one group must be a small part of a region: sorted regions of 16-byte rows filled
# 0.58 of the memory with 16 groups, 0.70 with 32
LEAST_GROUPS = 32
CACHE_LINE = 64  # bytes
# A batch is copied, not kept, if it keeps alive more than this many times its own bytes, plus padding
MOST_PINNED = 1.1
PADDING = 4 * KIB

Int64s = npt.NDArray[np.int64]


def unit_bytes(memory: int) -> int:
    """Return the most bytes of rows in a unit, which is clustered once it is half full."""
    return max(1, min(UNIT_BYTES, memory // LARGEST_SHARE_OF_BUDGET))


@dataclass(frozen=True, slots=True)
class SubpartitionGroups:
    """Groups of neighbours in the write order: group g holds places ``g * size .. (g + 1) * size - 1`` of the
    write order, in which subpartition ``first`` has place 0."""

    subpartitions: int
    first: int
    size: int

    @staticmethod
    def of(write_order: Sequence[int], memory: int) -> SubpartitionGroups:
        """Make groups of one subpartition, or of as many as let a group's part of a region fit the cache."""
        count = len(write_order)
        if count <= MOST_SINGLE:
            return SubpartitionGroups(count, write_order[0], 1)
        groups = min(MOST_SINGLE, max(LEAST_GROUPS, memory // GROUP_BYTES))
        return SubpartitionGroups(count, write_order[0], -(-count // groups))

    @property
    def count(self) -> int:
        return -(-self.subpartitions // self.size)

    def places(self, ids: Ids) -> Ids:
        """Return each row's place in the write order, from its subpartition. Same shape and dtype."""
        if not self.first:
            return ids
        below, above = ids.dtype.type(self.first), ids.dtype.type(self.subpartitions - self.first)
        places: Ids = np.where(ids >= below, ids - below, ids + above)
        return places

    def numbers(self, places: Ids) -> Ids:
        """Return the group of each place."""
        return places if self.size == 1 else (places // places.dtype.type(self.size)).astype(np.uint16)

    def subpartition_at(self, place: int) -> int:
        return (place + self.first) % self.subpartitions


@dataclass(frozen=True, slots=True)
class ClusteredUnit:
    """Rows ordered by group: group g has rows ``bounds[g] .. bounds[g + 1] - 1``, in their order of arrival.

    ``places``: each row's place in the write order; None if a group is one subpartition. ``sizes``: bytes of
    each group's rows, int64, shape (groups,).
    """

    batch: pa.RecordBatch
    bounds: list[int]
    sizes: Int64s
    places: Ids | None

    def rows_of(self, group: int) -> pa.RecordBatch:
        start = self.bounds[group]
        return self.batch.slice(start, self.bounds[group + 1] - start)

    def places_of(self, group: int) -> Ids:
        assert self.places is not None
        return self.places[self.bounds[group] : self.bounds[group + 1]]


def cluster(
    batches: list[pa.RecordBatch], selector: ChannelSelector, groups: SubpartitionGroups, metrics: TaskMetrics
) -> ClusteredUnit:
    """Order the rows of these batches by group, without reordering the rows of a group. Takes the list over
    and empties it, so that there are never more than two copies of the rows."""
    batch = concatenate(batches)
    batches.clear()
    if groups.subpartitions == 1:  # no reordering; only slices of larger buffers are copied
        whole = own(batch)
        return ClusteredUnit(whole, [0, whole.num_rows], np.array([whole.nbytes]), None)
    with metrics.step("ids"):
        places = groups.places(check_ids(selector.assign(batch), batch.num_rows, selector))
    with metrics.step("sort"):
        numbers = groups.numbers(places)
        order = np.argsort(numbers, kind="stable")
        bounds = bounds_of(numbers, groups.count)
    with metrics.step("take"):
        # A batch without columns has rows, but no values to take
        taken = _take_rows(batch, order) if batch.num_columns else batch
    sizes = sizes_between(taken, bounds)
    return ClusteredUnit(taken, bounds.tolist(), sizes, None if groups.size == 1 else places[order])


def sizes_between(batch: pa.RecordBatch, bounds: Int64s) -> Int64s:
    """Return the bytes of the rows between each two consecutive ``bounds``. int64, shape (bounds - 1,)."""
    rows = np.diff(bounds)
    sizes = np.zeros(len(rows), np.int64)
    for column in batch.columns:
        sizes += _column_sizes(column, bounds, rows)
    return sizes


def _column_sizes(column: pa.Array, bounds: Int64s, rows: Int64s) -> Int64s:
    kind = column.type
    validity = rows // 8 if column.null_count else np.zeros_like(rows)
    if offset_type := _OFFSETS.get(kind):
        if not len(column):
            return np.zeros_like(rows)
        offsets = np.frombuffer(column.buffers()[1], offset_type)
        bytes_up_to: Int64s = offsets[bounds + column.offset].astype(np.int64)
        return np.diff(bytes_up_to) + offset_type.itemsize * rows + validity
    if is_fixed_width(kind):
        return rows * int(kind.bit_width) // 8 + validity
    parts = zip(bounds[:-1].tolist(), rows.tolist(), strict=True)
    return np.array([column.slice(start, count).nbytes if count else 0 for start, count in parts], np.int64)


_OFFSETS: dict[pa.DataType, np.dtype[Any]] = {
    **dict.fromkeys((pa.string(), pa.binary()), np.dtype(np.int32)),
    **dict.fromkeys((pa.large_string(), pa.large_binary()), np.dtype(np.int64)),
}


def is_fixed_width(kind: pa.DataType) -> bool:
    try:
        return bool(kind.bit_width)
    except ValueError:
        return False


def bounds_of(numbers: Ids, count: int) -> Int64s:
    """Return where each of ``0 .. count - 1`` begins in sorted ``numbers``. int64, shape (count + 1,)."""
    return np.concatenate(([0], np.cumsum(np.bincount(numbers, minlength=count))))


def _take_rows(batch: pa.RecordBatch, order: Int64s) -> pa.RecordBatch:
    if batch.get_total_buffer_size() <= 2 * batch.nbytes:  # not a slice of something much larger
        _prefetch(batch)
    return batch.take(pa.array(order))


def _prefetch(batch: pa.RecordBatch) -> None:
    """Read a byte of each cache line, sequentially, so that the processor fetches ahead and the scattered
    reads of a `take` find their rows in cache. Rows from memory took 0.40 ns a byte without this, 0.20 with
    it (and 0.03 for the prefetch)."""
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size:
                np.frombuffer(buffer, np.uint8)[::CACHE_LINE].max()


def own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch, or a copy of it if it is a slice that keeps a larger buffer alive."""
    if batch.get_total_buffer_size() <= MOST_PINNED * batch.nbytes + PADDING:
        return batch
    return pa.concat_batches([batch])


def concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
