"""`RowEncoder`: turns batches, with one subpartition id per row, into the extents of a region.

Used by `ShuffleFrame`'s map stages, through `RowResultPartition`.

    add     batches form a unit of a few MiB   -> clustered by group while the unit is in cache, then held
    drain   for each group, rows of all units  -> gathered, ordered, cut into messages, encoded

A *group* is one subpartition, or several neighbours in the write order (`writing.clustering`). So each row is
moved twice, both times within the cache and in pieces large enough for a call. If groups have several
subpartitions, the second move separates these. The encoder holds rows, and encodes them only when they are
drained, as messages of the size that a reader passes to its function. (These are the two passes of a radix
partitioning; `docs/decisions/writing.md` compares it with alternatives.)

Within a subpartition, rows keep their order of arrival or are sorted by key; if sorted, every extent is one
sorted run.

Rules: everything held is charged to the budget. `room_for` says in advance whether a batch fits together with
the memory that the next drain takes; if not, the owner drains first. A message is at most one unit, and at
most the buffer size in sorted extents; only a single row can be larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import GIB
from sortshuffle.partitioner.selector import ChannelSelector, Ids
from sortshuffle.payload.arrow import BATCH_BYTES, BATCH_ROWS, ArrowPayload
from sortshuffle.payload.ordering import Ranks, RowOrder
from sortshuffle.payload.sort_memory import Number, SortMemory
from sortshuffle.writing.clustering import (
    ClusteredUnit,
    SubpartitionGroups,
    bounds_of,
    cluster,
    concatenate,
    own,
    unit_bytes,
)
from sortshuffle.writing.data_buffer import Extent, write_batch
from sortshuffle.writing.row_slices import ROW_BYTES, size_of, slice_rows

# A unit is clustered once it has 1/FULL_SHARE of its size: the usual batch of 64 Ki rows, some 4 MiB, is then
# one unit, neither cut nor copied to join another
FULL_SHARE = 2
MESSAGE_SHARE = 16  # a message is at most 1/MESSAGE_SHARE of the budget
# Messages of taken rows aim 1/SPARE_SHARE below the limit: rows differ in size, and `take` gives each column
# of text a validity bitmap. A message slightly above the limit is cut in half: 20,000 rows of two columns of
# text and two of longs made 47 messages of 32 KiB at most, and make 25
SPARE_SHARE = 16
COPIES_OF_A_MESSAGE = 4  # rows joined, serialized, compressed, and the block fitted into memory of its size
# The most bytes of a group whose rows must be in one batch: 32-bit offsets of strings end at 2 GiB
MOST_GATHERED = GIB
# If one place has more than 1/DOMINANT_SHARE of a group's rows, all places are sorted together: the keys of
# that place alone would be a second copy of nearly all keys. Sorting place by place takes half the time if
# places are small
DOMINANT_SHARE = 4

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """How rows become extents. ``order``: the key order of each extent; None keeps the order of arrival.
    ``buffer_size``: largest payload in sorted extents, bytes."""

    payload: ArrowPayload
    selector: ChannelSelector
    buffer_size: int
    order: RowOrder | None = None


class RowEncoder:
    """Collects, clusters and encodes the rows of one result partition: its `Intake` of unicast rows."""

    kind = RegionKind.UNICAST
    is_due = False

    def __init__(
        self, layout: PartitionLayout, write_order: Sequence[int], budget: MemoryBudget, metrics: TaskMetrics
    ) -> None:
        self.unit_bytes = unit_bytes(budget.limit)
        self._payload = layout.payload
        self._selector = layout.selector
        self._order = layout.order
        self._budget = budget
        self._metrics = metrics
        self._groups = SubpartitionGroups.of(write_order, budget.limit)
        self._write_batch = write_batch(budget.limit)
        self._message_bytes = max(1, min(BATCH_BYTES, budget.limit // MESSAGE_SHARE))
        if layout.order is not None:
            self._message_bytes = layout.buffer_size
        self._sort_memory = SortMemory.of(layout.order or RowOrder(()), layout.payload.schema)
        self.discard()

    def discard(self) -> None:
        """Drop everything held. The caller releases the budget."""
        self._open: list[pa.RecordBatch] = []
        self._open_size = self._open_rows = 0
        self._units: list[ClusteredUnit] = []
        self._size = 0  # bytes charged for the units
        # Bytes and rows of each group, in all units
        self._group_sizes = np.zeros(self._groups.count, np.int64)
        self._group_rows = np.zeros(self._groups.count, np.int64)
        self._largest = (0, 0)  # bytes and rows of the group that takes the most memory to order

    @property
    def bytes(self) -> int:
        # This includes broadcast rows, which have at most their share: unicast regions are written first
        return self._budget.used

    def written(self) -> None:
        """Do nothing: a drain yields memory that the caller owns, and lends none."""

    def room_for(self, batch: pa.RecordBatch) -> bool:
        """Return whether these rows fit the budget, together with the memory that the next drain takes."""
        if not self._units and not self._fits(batch):
            self._cluster_open()  # this shows how the rows are distributed
        return self._fits(batch)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows over. The batch is at most a unit, or a single row."""
        size = size_of(batch)
        if self._open_size + size > self.unit_bytes:
            self._cluster_open()
        self._open.append(batch)
        self._open_size += size
        self._open_rows += batch.num_rows
        self._budget.charge(size)
        if self._open_size * FULL_SHARE >= self.unit_bytes:
            self._cluster_open()
        else:
            self._open[-1] = own(batch)  # while it waits it must not keep more memory than is charged

    def drain(self) -> Iterator[Extent]:
        self._cluster_open()
        units, self._units = self._units, []
        held, self._size = self._size, 0
        self._group_sizes[:] = self._group_rows[:] = 0
        for group in range(self._groups.count):
            filled = [unit for unit in units if unit.bounds[group] < unit.bounds[group + 1]]
            if filled:
                yield from self._extents(group, filled)
        self._budget.release(held)

    def _fits(self, batch: pa.RecordBatch) -> bool:
        """Return whether a drain would stay within the budget. Assumes that rows not yet clustered are
        distributed like the clustered rows, or all go to one group if there are no clustered rows."""
        if not self._units and not self._open:
            return True
        size = size_of(batch)
        largest_size, largest_rows = self._open_size + size, self._open_rows + batch.num_rows
        if self._size:
            growth = (self._size + largest_size) / self._size
            largest_size, largest_rows = (int(amount * growth) for amount in self._largest)
        if self._gathers and largest_size > MOST_GATHERED:
            return False
        working = int(self._working_bytes(largest_size, largest_rows)) + self._write_batch
        return not self._budget.would_exceed(size + max(working, self.unit_bytes))

    @property
    def _gathers(self) -> bool:
        """Whether the rows of a group must be in one batch to be ordered."""
        return self._order is not None or self._groups.size > 1

    def _working_bytes(self, size: Number, rows: Number) -> Number:
        """Return the bytes that it takes to order and encode a group of this size, in addition to its rows.
        Rows in order of arrival are joined and encoded one message at a time; others are gathered as a
        whole."""
        message: Number = np.minimum(self._message_bytes, size)
        if self._order is not None:
            # Twice, because large rows may be neighbours in key order, and so come into one message
            return 2 * size + self._sort_memory.sorting(size, rows) + message
        if self._groups.size > 1:
            return 2 * size + ROW_BYTES * rows + COPIES_OF_A_MESSAGE * message
        return COPIES_OF_A_MESSAGE * message

    def _cluster_open(self) -> None:
        if not self._open:
            return
        unit, self._open = self._open, []
        size, self._open_size, self._open_rows = self._open_size, 0, 0
        self._budget.charge(size)
        clustered = cluster(unit, self._selector, self._groups, self._metrics)
        self._units.append(clustered)
        places = 0 if clustered.places is None else clustered.places.nbytes
        self._budget.charge(places)
        self._size += size + places
        self._group_sizes += clustered.sizes
        self._group_rows += np.diff(clustered.bounds)
        largest = int(self._working_bytes(self._group_sizes, self._group_rows).argmax())
        self._largest = int(self._group_sizes[largest]), int(self._group_rows[largest])
        self._budget.release(size)

    def _extents(self, group: int, units: list[ClusteredUnit]) -> Iterator[Extent]:
        """Yield the extents of one group, in parts of one message."""
        if self._groups.size > 1:
            yield from self._ordered_group(group, units)
            return
        subpartition = self._groups.subpartition_at(group)
        messages = self._unsorted(group, units) if self._order is None else self._sorted(group, units)
        for message in messages:
            yield subpartition, [self._encode(message)]

    def _unsorted(self, group: int, units: list[ClusteredUnit]) -> Iterator[pa.RecordBatch]:
        """Yield the group's rows in their order of arrival, in messages large enough for a reader's call."""
        parts: list[pa.RecordBatch] = []
        rows = size = 0
        for unit in units:
            for part, part_size in self._pieces(unit.rows_of(group), int(unit.sizes[group])):
                if parts and size + part_size > self._message_bytes:
                    yield self._gather(parts)
                    parts, rows, size = [], 0, 0
                parts.append(part)
                rows += part.num_rows
                size += part_size
                if rows >= BATCH_ROWS:
                    yield self._gather(parts)
                    parts, rows, size = [], 0, 0
        if parts:
            yield self._gather(parts)

    def _sorted(self, group: int, units: list[ClusteredUnit]) -> Iterator[pa.RecordBatch]:
        """Yield the group's rows as one sorted run, in messages of at most the buffer size."""
        assert self._order is not None
        rows = self._gather([unit.rows_of(group) for unit in units])
        working = int(self._working_bytes(rows.nbytes, rows.num_rows))
        self._budget.charge(working)
        with self._metrics.step("sort"):
            indices = self._order.ranks(rows).sort_indices()
        yield from self._take_in_steps(rows, indices)
        self._budget.release(working)

    def _ordered_group(self, group: int, units: list[ClusteredUnit]) -> Iterator[Extent]:
        """Yield the extents of a group of several subpartitions, whose rows are gathered and ordered
        together."""
        rows = self._gather([unit.rows_of(group) for unit in units])
        working = int(self._working_bytes(rows.nbytes, rows.num_rows))
        self._budget.charge(working)
        first = group * self._groups.size
        with self._metrics.step("sort"):
            places = np.concatenate([unit.places_of(group) for unit in units]) - first
            places = places.astype(np.min_scalar_type(self._groups.size - 1))
        by_place = self._by_place if self._order is None else self._sorted_by_place
        for place, messages in by_place(rows, places):
            subpartition = self._groups.subpartition_at(first + place)
            for message in messages:
                yield subpartition, [self._encode(message)]
        self._budget.release(working)

    def _by_place(self, rows: pa.RecordBatch, places: Ids) -> Iterator[tuple[int, Iterable[pa.RecordBatch]]]:
        """Yield each place that has rows, with its messages in order of arrival."""
        with self._metrics.step("sort"):
            order = np.argsort(places, kind="stable")
        with self._metrics.step("take"):
            taken = rows.take(pa.array(order)) if rows.num_columns else rows
        small = size_of(rows) <= self._message_bytes  # then the rows of every place are one message
        for place, start, count in self._filled(places):
            part = taken.slice(start, count)
            yield place, (part,) if small else slice_rows(part, self._message_bytes)

    def _sorted_by_place(
        self, rows: pa.RecordBatch, places: Ids
    ) -> Iterator[tuple[int, Iterable[pa.RecordBatch]]]:
        """Yield each place that has rows, with its messages in key order."""
        assert self._order is not None
        filled = list(self._filled(places))
        if DOMINANT_SHARE * max(count for _, _, count in filled) > rows.num_rows:
            with self._metrics.step("sort"):
                keys = self._order.ranks(rows).columns
                order = Ranks([places.astype(np.int64), *keys], rows.num_rows).sort_indices()
                del keys
            for place, start, count in filled:
                yield place, self._take_in_steps(rows, order[start : start + count])
            return
        with self._metrics.step("sort"):
            ranks = self._order.ranks(rows)
            order = np.argsort(places, kind="stable")
        for place, start, count in filled:
            with self._metrics.step("sort"):
                indices = order[start : start + count]
                indices = indices[ranks.take(indices).sort_indices()]
            yield place, self._take_in_steps(rows, indices)

    def _filled(self, places: Ids) -> Iterator[tuple[int, int, int]]:
        """Yield (place, start, count) of each place that has rows. ``start``: among rows ordered by place."""
        bounds = bounds_of(places, self._groups.size)
        for place in np.flatnonzero(np.diff(bounds)).tolist():
            start, stop = bounds[place : place + 2].tolist()
            yield place, start, stop - start

    def _pieces(self, rows: pa.RecordBatch, size: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the rows, ``size`` bytes in all, in pieces of at most a message, with the bytes of each."""
        if size <= self._message_bytes:
            yield rows, size
            return
        for piece in slice_rows(rows, self._message_bytes):
            yield piece, size_of(piece)

    def _take_in_steps(self, rows: pa.RecordBatch, indices: Int64s) -> Iterator[pa.RecordBatch]:
        """Yield the rows at these indices, in messages of at most the buffer size."""
        wanted = self._message_bytes - self._message_bytes // SPARE_SHARE
        step = max(1, rows.num_rows * wanted // max(1, rows.nbytes))
        for start in range(0, len(indices), step):
            with self._metrics.step("take"):
                taken = rows.take(pa.array(indices[start : start + step]))
            yield from slice_rows(taken, self._message_bytes, attrgetter("nbytes"))

    def _gather(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        with self._metrics.step("gather"):
            return concatenate(parts)

    def _encode(self, message: pa.RecordBatch) -> SealedBuffer:
        """Encode the message, and charge the buffer."""
        buffer = self._payload.encode(message, self._metrics.seconds)
        self._budget.charge(buffer.bytes)
        return buffer
