"""Encoders: from batches with one subpartition id per row to the extents of a region.

Two, by what the consumer needs:

* `ClusterEncoder`: rows in the order in which they came. Works in *units* that fit the cache: a unit is
  clustered by subpartition (a stable counting order of small ids, one `take`), and encoded, compressed and
  checksummed while it is hot. What waits for the region are encoded buffers.
* `SortEncoder`: every extent one run sorted by key. Units are clustered as they come, so that at the flush
  each subpartition's rows are gathered, sorted and encoded alone, in cache, one after the other.

Rules: an encoder holds rows and buffers only within its budget's knowledge; `room_for` says beforehand
whether a batch still fits, and the owner then flushes. A message is at most one unit, and at most the
buffer size in sorted extents; only a single row can be larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.partitioner.selector import ChannelSelector
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.write.data_buffer import DataBuffer, Extent

# bytes of rows in a unit at most: the cache against messages too small to carry their metadata
LEAST_UNIT = 8 * MIB
UNIT_PER_SUBPARTITION = 128 * KIB
LARGEST_SHARE_OF_BUDGET = 4  # a unit is rows, their clustered copy and their messages at the same time
# part of a unit from which on it is encoded rather than filled up: the usual batch of 64 Ki rows, some
# 4 MiB, is then one unit, neither cut nor copied to join another
FULL_SHARE = 2
# bytes handed to one gathered write: large enough that the call's cost vanishes, small enough that the
# encoded rows of a sorted region need not all be held at once
WRITE_BATCH = 8 * MIB
WRITE_BATCH_SHARE = 8  # part of the budget that a gathered write is at most
ROW_BYTES = 16  # what a row is counted as at least: its subpartition id and its position take 9 to 12
SORT_BYTES_PER_ROW = 96  # NumPy arrays while a run is sorted: 41 to 93 measured, by type and number of keys

Count = TypeVar("Count", int, npt.NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """How rows become extents. ``order``: sort each extent by key, None to keep the order of arrival.
    ``buffer_size``: largest payload in sorted extents, bytes."""

    payload: ArrowPayload
    selector: ChannelSelector
    buffer_size: int
    order: RowOrder | None = None


class Encoder(Protocol):
    """Collects rows until its owner drains a region's extents out of it."""

    unit_bytes: int

    def room_for(self, batch: pa.RecordBatch) -> bool:
        """Whether these rows still fit the budget, with what the next drain will take."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows over: at most a unit of them, or a single row."""

    def drain(self) -> Iterator[Extent]:
        """The extents of everything added since the last drain, in the write order. Their bytes stay charged
        to the budget: the caller releases them."""


def size_of(batch: pa.RecordBatch) -> int:
    """Bytes that rows are counted as while they wait: for narrow rows, what clustering them takes."""
    return max(int(batch.nbytes), ROW_BYTES * int(batch.num_rows))


def sliced(
    batch: pa.RecordBatch, most: int, size: Callable[[pa.RecordBatch], int] = size_of
) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most ``most`` bytes, in order; a larger row is a slice of its own."""
    total = size(batch)
    if total <= most or batch.num_rows <= 1:
        if batch.num_rows:
            yield batch
        return
    pieces = -(-total // most)
    step = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, step):
        yield from sliced(batch.slice(start, step), most, size)  # again, because rows differ in size


def write_batch(memory: int) -> int:
    """Bytes of encoded rows that are handed to one gathered write."""
    return max(1, min(WRITE_BATCH, memory // WRITE_BATCH_SHARE))


@dataclass(frozen=True, slots=True)
class Clustered:
    """Rows in subpartition order: subpartition s has rows ``bounds[s]..bounds[s + 1] - 1``.

    ``bounds``: int64, shape (subpartitions + 1,).
    """

    batch: pa.RecordBatch
    bounds: npt.NDArray[np.int64]

    def slice(self, subpartition: int) -> pa.RecordBatch:
        start, stop = self.bounds[subpartition : subpartition + 2].tolist()
        return self.batch.slice(start, stop - start)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each subpartition's rows. int64, shape (subpartitions,)."""
        rows = np.diff(self.bounds)
        if all(map(_is_fixed_width, self.batch.schema.types)):
            return rows * int(self.batch.nbytes) // max(1, int(self.batch.num_rows))
        sizes = np.zeros(len(rows), np.int64)
        for subpartition in np.flatnonzero(rows).tolist():
            sizes[subpartition] = self.slice(subpartition).nbytes
        return sizes


def cluster(batches: list[pa.RecordBatch], selector: ChannelSelector, metrics: TaskMetrics) -> Clustered:
    """Order the rows of these batches by subpartition, rows of one subpartition as they stood. Takes the
    list over, and empties it: there are never more than two copies of the rows."""
    batch = _joined(batches)
    batches.clear()
    with metrics.step("ids"):
        ids = selector.assign(batch)
    with metrics.step("sort"):
        order = np.argsort(ids, kind="stable")
        counts = np.bincount(ids, minlength=selector.subpartitions)
        bounds = np.concatenate(([0], np.cumsum(counts)))
    with metrics.step("take"):
        # a batch without columns has rows but nothing to take
        taken = batch.take(pa.array(order)) if batch.num_columns else batch
    return Clustered(taken, bounds)


def unit_bytes(subpartitions: int, memory: int) -> int:
    """Bytes of rows that are clustered together, at most; from a half on they are."""
    wanted = max(LEAST_UNIT, UNIT_PER_SUBPARTITION * subpartitions)
    return max(1, min(wanted, memory // LARGEST_SHARE_OF_BUDGET))


class ClusterEncoder:
    """Extents in the order of arrival."""

    def __init__(
        self, layout: PartitionLayout, write_order: list[int], budget: MemoryBudget, metrics: TaskMetrics
    ) -> None:
        self.unit_bytes = unit_bytes(layout.selector.subpartitions, budget.limit)
        self._payload = layout.payload
        self._selector = layout.selector
        self._budget = budget
        self._metrics = metrics
        self._buffer = DataBuffer(write_order, budget)
        self._unit: list[pa.RecordBatch] = []
        self._unit_size = 0

    def room_for(self, batch: pa.RecordBatch) -> bool:
        size = size_of(batch)
        # clustering and encoding the open unit takes its size twice more
        return not self._budget.would_exceed(size + 2 * (self._unit_size + size)) or not self._holds_any()

    def add(self, batch: pa.RecordBatch) -> None:
        size = size_of(batch)
        if self._unit and self._unit_size + size > self.unit_bytes:
            self._encode_unit()
        self._unit.append(batch)
        self._unit_size += size
        self._budget.charge(size)
        if self._unit_size * FULL_SHARE >= self.unit_bytes:
            self._encode_unit()

    def drain(self) -> Iterator[Extent]:
        self._encode_unit()
        return self._buffer.drain()

    def _holds_any(self) -> bool:
        return bool(self._unit or self._buffer.bytes)

    def _encode_unit(self) -> None:
        if not self._unit:
            return
        unit, self._unit = self._unit, []
        size, self._unit_size = self._unit_size, 0
        self._budget.charge(size)
        clustered = cluster(unit, self._selector, self._metrics)
        for subpartition in np.flatnonzero(np.diff(clustered.bounds)).tolist():
            buffer = self._payload.encode(clustered.slice(subpartition), self._metrics.seconds)
            self._buffer.append(subpartition, buffer)
        self._budget.release(2 * size)


class SortEncoder:
    """Extents sorted by key, one run each."""

    def __init__(
        self,
        layout: PartitionLayout,
        order: RowOrder,
        write_order: list[int],
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self.unit_bytes = unit_bytes(layout.selector.subpartitions, budget.limit)
        self._payload = layout.payload
        self._selector = layout.selector
        self._buffer_size = layout.buffer_size
        self._order = order
        self._write_order = write_order
        self._budget = budget
        self._metrics = metrics
        self._write_batch = write_batch(budget.limit)
        self._open: list[pa.RecordBatch] = []
        self._open_size = 0
        self._units: list[Clustered] = []
        self._size = 0
        # what sorting and encoding each subpartition will take beside its clustered rows, bytes
        self._working = np.zeros(layout.selector.subpartitions, np.int64)

    def room_for(self, batch: pa.RecordBatch) -> bool:
        if not self._units and not self._fits(batch):
            self._cluster_open()  # which shows how the rows are distributed
        return self._fits(batch)

    def add(self, batch: pa.RecordBatch) -> None:
        size = size_of(batch)
        if self._open_size + size > self.unit_bytes:
            self._cluster_open()
        self._open.append(batch)
        self._open_size += size
        self._budget.charge(size)
        if self._open_size * FULL_SHARE >= self.unit_bytes:
            self._cluster_open()

    def drain(self) -> Iterator[Extent]:
        self._cluster_open()
        units, self._units = self._units, []
        held, self._size = self._size, 0
        self._working[:] = 0
        for subpartition in self._write_order:
            parts = [part for unit in units if (part := unit.slice(subpartition)).num_rows]
            if parts:
                yield subpartition, self._sorted_run(parts)
        self._budget.release(held)

    def _fits(self, batch: pa.RecordBatch) -> bool:
        """Whether a drain would stay within the budget. Rows that are not clustered yet are taken to be
        distributed like those before them, and the first ones to go to one subpartition."""
        if not self._units and not self._open:
            return True
        size = size_of(batch)
        waiting = self._open_size + size
        if self._size:
            largest = int(self._working.max() * (self._size + waiting) / self._size)
        else:
            largest = _working(waiting, batch.num_rows + sum(each.num_rows for each in self._open))
        return not self._budget.would_exceed(size + max(largest + self._write_batch, self.unit_bytes))

    def _sorted_run(self, parts: list[pa.RecordBatch]) -> list[SealedBuffer]:
        """One extent: its rows gathered, sorted, and cut into buffers, which are charged."""
        rows = _joined(parts)
        working = rows.nbytes + SORT_BYTES_PER_ROW * rows.num_rows
        self._budget.charge(working)
        with self._metrics.step("sort"):
            indices = self._order.ranks(rows).sort_indices()
        step = max(1, rows.num_rows * self._buffer_size // max(1, rows.nbytes))
        run: list[SealedBuffer] = []
        for start in range(0, rows.num_rows, step):
            with self._metrics.step("take"):
                taken = rows.take(pa.array(indices[start : start + step]))
            for piece in sliced(taken, self._buffer_size, attrgetter("nbytes")):
                run.append(self._payload.encode(piece, self._metrics.seconds))
                self._budget.charge(run[-1].bytes)
        self._budget.release(working)
        return run

    def _cluster_open(self) -> None:
        if not self._open:
            return
        unit, self._open = self._open, []
        size, self._open_size = self._open_size, 0
        self._budget.charge(size)
        clustered = cluster(unit, self._selector, self._metrics)
        self._units.append(clustered)
        self._working += _working(clustered.sizes(), np.diff(clustered.bounds))
        self._size += size
        self._budget.release(size)


def _working(size: Count, rows: Count) -> Count:
    """What sorting and encoding rows takes beside them: they are gathered, ranked, and made into messages."""
    return 2 * size + SORT_BYTES_PER_ROW * rows


def _is_fixed_width(kind: pa.DataType) -> bool:
    try:
        return bool(kind.bit_width)
    except ValueError:
        return False


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
