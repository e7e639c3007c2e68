"""`SortMergeResultPartition`: the output of one producer task.

    open --write, broadcast--> open --finish--> finished
      \\----------------------------abandon---> abandoned (no files)

Rows go to an encoder until the task's memory is full; then everything held becomes one region. A row never
spans regions. Broadcast rows go to a broadcast region of their own, stored once for all subpartitions; they
are collected beside the unicast rows, so that alternating the two makes no tiny regions. Unicast and
broadcast rows keep their order among themselves, not with each other.

Single-threaded. Owns the file writer: `finish()` or `abandon()`, nothing between; as a context manager,
leaving without `finish()` abandons.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import pyarrow as pa

from sortshuffle.format.index import RegionKind, Writer
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.write.data_buffer import DataBuffer, Extent
from sortshuffle.write.encoders import ClusterEncoder, Encoder, PartitionLayout, SortEncoder

# bytes handed to one gathered write: large enough that the call's cost vanishes, small enough that the
# encoded rows of a sorted region need not all be held at once
WRITE_BATCH = 8 * MIB
BROADCAST_SHARE = 4  # part of the budget that broadcast rows may hold before they become a region


class SortMergeResultPartition:
    """Writes rows into one partitioned file, in regions of about ``budget.limit`` bytes."""

    def __init__(
        self,
        writer: PartitionedFileWriter,
        layout: PartitionLayout,
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self.metrics = metrics
        self._writer = writer
        self._layout = layout
        self._budget = budget
        self._encoder = self._new_encoder()
        self._broadcasts = DataBuffer([0], budget)

    @property
    def file_id(self) -> bytes:
        """The id that both files carry."""
        return self._writer.header.file_id

    def write(self, batch: pa.RecordBatch) -> None:
        """Send each row to the subpartition that the selector gives it. The batch is of the payload's
        schema; it is not kept beyond the region it goes into."""
        for piece in sliced(batch, self._encoder.unit_bytes):
            if not self._encoder.room_for(piece.nbytes):
                self.flush()
            self._encoder.add(piece)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Send every row to every subpartition."""
        for piece in sliced(batch, self._encoder.unit_bytes):
            self._broadcasts.append(0, self._layout.payload.encode(piece, self.metrics.seconds))
            if self._broadcasts.bytes > self._budget.limit // BROADCAST_SHARE:
                self._write_region(RegionKind.BROADCAST, self._broadcasts.drain())

    def flush(self) -> None:
        """Make a region of everything held. Does nothing if nothing is."""
        self._write_region(RegionKind.UNICAST, self._encoder.drain())

    def finish(self, writer: Writer) -> PartitionedFile:
        """Write what is held, and complete the file; only then can it be read."""
        self.flush()
        self._write_region(RegionKind.BROADCAST, self._broadcasts.drain())
        with self.metrics.step("write"):
            file = self._writer.finish(writer, self._layout.payload.schema.serialize().to_pybytes())
        self.metrics.add(
            rows_written=self._writer.records,
            bytes_written=self._writer.data_bytes,
            buffers_written=self._writer.buffers,
            regions=self._writer.regions,
            files=2,
        )
        self.metrics.peak(self._budget.peak)
        return file

    def abandon(self) -> None:
        """Delete the files and let go of all memory. Does nothing after `finish()`."""
        self._writer.abandon()
        self._budget.release_all()

    def __enter__(self) -> SortMergeResultPartition:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _new_encoder(self) -> Encoder:
        layout, write_order = self._layout, self._writer.write_order
        if layout.order is None:
            return ClusterEncoder(layout, write_order, self._budget, self.metrics)
        return SortEncoder(layout, layout.order, write_order, self._budget, self.metrics)

    def _write_region(self, kind: RegionKind, extents: Iterator[Extent]) -> None:
        self._writer.start_region(kind)
        for batch in _batched(extents):
            self.metrics.add(raw_bytes_written=sum(b.raw_bytes for _, extent in batch for b in extent))
            with self.metrics.step("write"):
                self._writer.write_extents(batch)
        self._writer.finish_region()


def sliced(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most ``most`` bytes, in order; a larger row is a slice of its own."""
    size = batch.nbytes
    if size <= most or batch.num_rows <= 1:
        if batch.num_rows:
            yield batch
        return
    pieces = -(-size // most)
    step = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, step):
        yield from sliced(batch.slice(start, step), most)  # again, because rows differ in size


def _batched(extents: Iterator[Extent]) -> Iterator[list[Extent]]:
    batch: list[Extent] = []
    size = 0
    for extent in extents:
        batch.append(extent)
        size += sum(buffer.bytes for buffer in extent[1])
        if size >= WRITE_BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
