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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

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

# bytes of rows in a unit: the L2 cache against messages too small to carry their metadata. Measured with
# `tools/bench engine`: see docs/benchmarks.md, "units".
LEAST_UNIT = 4 * MIB
UNIT_PER_SUBPARTITION = 64 * KIB
LARGEST_SHARE_OF_BUDGET = 8  # a unit is rows, their clustered copy and their messages at the same time


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

    def room_for(self, size: int) -> bool:
        """Whether ``size`` more bytes of rows fit the budget before the next drain."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows over: at most a unit of them, or a single row."""

    def drain(self) -> Iterator[Extent]:
        """The extents of everything added since the last drain, in the write order."""


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


def cluster(batch: pa.RecordBatch, selector: ChannelSelector, metrics: TaskMetrics) -> Clustered:
    """Order the rows of a batch by subpartition, rows of one subpartition as they stood."""
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
    """Bytes of rows that are clustered together."""
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

    def room_for(self, size: int) -> bool:
        # clustering and encoding the open unit takes its size twice more
        return not self._budget.would_exceed(size + 2 * (self._unit_size + size)) or not self._holds_any()

    def add(self, batch: pa.RecordBatch) -> None:
        size = batch.nbytes
        if self._unit and self._unit_size + size > self.unit_bytes:
            self._encode_unit()
        self._unit.append(batch)
        self._unit_size += size
        self._budget.charge(size)
        if self._unit_size >= self.unit_bytes:
            self._encode_unit()

    def drain(self) -> Iterator[Extent]:
        self._encode_unit()
        return self._buffer.drain()

    def _holds_any(self) -> bool:
        return bool(self._unit or self._buffer.bytes)

    def _encode_unit(self) -> None:
        if not self._unit:
            return
        clustered = cluster(_joined(self._unit), self._selector, self._metrics)
        self._budget.charge(self._unit_size)
        for subpartition in np.flatnonzero(np.diff(clustered.bounds)).tolist():
            buffer = self._payload.encode(clustered.slice(subpartition), self._metrics.seconds)
            self._buffer.append(subpartition, buffer)
        self._budget.release(2 * self._unit_size)
        self._unit = []
        self._unit_size = 0


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
        self._open: list[pa.RecordBatch] = []
        self._open_size = 0
        self._units: list[Clustered] = []
        self._size = 0
        self._rows = np.zeros(layout.selector.subpartitions, np.int64)

    def room_for(self, size: int) -> bool:
        # sorting needs the largest subpartition twice more: gathered, and taken in order and encoded
        total = self._size + self._open_size + size
        rows = int(self._rows.sum())
        largest = total if rows == 0 else round(total * int(self._rows.max()) / rows)
        return not self._budget.would_exceed(size + 2 * largest) or total == size

    def add(self, batch: pa.RecordBatch) -> None:
        size = batch.nbytes
        self._open.append(batch)
        self._open_size += size
        self._budget.charge(size)
        if self._open_size >= self.unit_bytes:
            self._cluster_open()

    def drain(self) -> Iterator[Extent]:
        self._cluster_open()
        units, self._units = self._units, []
        held, self._size = self._size, 0
        self._rows[:] = 0
        for subpartition in self._write_order:
            parts = [part for unit in units if (part := unit.slice(subpartition)).num_rows]
            if parts:
                gathered = _joined(parts)
                working = 2 * gathered.nbytes  # the gathered rows, and their messages
                self._budget.charge(working)
                yield subpartition, list(self._sorted_run(gathered))
                self._budget.release(working)
        self._budget.release(held)

    def _sorted_run(self, rows: pa.RecordBatch) -> Iterator[SealedBuffer]:
        with self._metrics.step("sort"):
            indices = self._order.ranks(rows).sort_indices()
        step = max(1, rows.num_rows * self._buffer_size // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, step):
            with self._metrics.step("take"):
                taken = rows.take(pa.array(indices[start : start + step]))
            yield self._payload.encode(taken, self._metrics.seconds)

    def _cluster_open(self) -> None:
        if not self._open:
            return
        clustered = cluster(_joined(self._open), self._selector, self._metrics)
        self._units.append(clustered)
        self._rows += np.diff(clustered.bounds)
        self._size += self._open_size
        self._open = []
        self._open_size = 0


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
