"""`SortMergeResultPartition`: the output of one producer task.

    open --write, broadcast--> open --finish--> finished
      \\--a call that fails--> failed; rows may be lost, so nothing but abandon is left
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
from contextlib import contextmanager
from types import TracebackType

import pyarrow as pa

from sortshuffle.errors import StateError, UnsupportedError
from sortshuffle.format.index import RegionKind, Writer
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.write.data_buffer import DataBuffer, Extent, bytes_of
from sortshuffle.write.encoders import (
    ClusterEncoder,
    Encoder,
    PartitionLayout,
    SortEncoder,
    sliced,
    write_batch,
)

BROADCAST_SHARE = 4  # part of the budget that broadcast rows may hold before they become a region


class SortMergeResultPartition:
    """Writes rows into one partitioned file, in regions of about ``budget.limit`` bytes.

    ``budget``: this partition's own, or its own share of one. Calls after `finish()`, `abandon()` or a call
    that failed are a `StateError`.
    """

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
        self._state = "open"

    @property
    def file_id(self) -> bytes:
        """The id that both files carry."""
        return self._writer.header.file_id

    def write(self, batch: pa.RecordBatch) -> None:
        """Send each row to the subpartition that the selector gives it. The batch is of the payload's
        schema; it is not kept beyond the region it goes into."""
        with self._whole_or_failed():
            for piece in sliced(batch, self._encoder.unit_bytes):
                self._make_room(piece)
                self._encoder.add(piece)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Send every row to every subpartition. Not where extents are ordered by key: `UnsupportedError`."""
        if self._layout.order is not None:
            raise UnsupportedError(
                "rows cannot be broadcast into extents that are ordered by key: write them to every"
                " subpartition"
            )
        with self._whole_or_failed():
            for piece in sliced(batch, self._encoder.unit_bytes):
                self._make_room(piece)
                self._broadcasts.append(0, self._layout.payload.encode(piece, self.metrics.seconds))
                if self._broadcasts.bytes > self._budget.limit // BROADCAST_SHARE:
                    self._write_region(RegionKind.BROADCAST, self._broadcasts.drain())

    def flush(self) -> None:
        """Make a region of everything held. Does nothing if nothing is."""
        with self._whole_or_failed():
            self._write_region(RegionKind.UNICAST, self._encoder.drain())

    def finish(self, writer: Writer) -> PartitionedFile:
        """Write what is held, and complete the file; only then can it be read."""
        with self._whole_or_failed():
            self._write_region(RegionKind.UNICAST, self._encoder.drain())
            self._write_region(RegionKind.BROADCAST, self._broadcasts.drain())
            with self.metrics.step("write"):
                file = self._writer.finish(writer, self._layout.payload.schema.serialize().to_pybytes())
        self._state = "finished"
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
        if self._state in ("finished", "abandoned"):
            return
        self._state = "abandoned"
        self._encoder = self._new_encoder()
        self._broadcasts = DataBuffer([0], self._budget)
        self._budget.release_all()
        self._writer.abandon()

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

    @contextmanager
    def _whole_or_failed(self) -> Iterator[None]:
        if self._state != "open":
            raise StateError(f"{self._writer.file.base} is {self._state}, which does not allow this call")
        try:
            yield
        except BaseException:
            self._state = "failed"
            raise

    def _make_room(self, piece: pa.RecordBatch) -> None:
        if not self._encoder.room_for(piece):
            self._write_region(RegionKind.UNICAST, self._encoder.drain())

    def _write_region(self, kind: RegionKind, extents: Iterator[Extent]) -> None:
        self._writer.start_region(kind)
        for batch in _batched(extents, write_batch(self._budget.limit)):
            self.metrics.add(raw_bytes_written=sum(b.raw_bytes for _, extent in batch for b in extent))
            with self.metrics.step("write"):
                self._writer.write_extents(batch)
            self._budget.release(sum(bytes_of(extent) for _, extent in batch))
            del batch  # before the next ones are made
        self._writer.finish_region()


def _batched(extents: Iterator[Extent], most: int) -> Iterator[list[Extent]]:
    """Extents together up to ``most`` bytes or a little more; none is kept here once it was given."""
    batch: list[Extent] = []
    size = 0
    for extent in extents:
        batch.append(extent)
        size += bytes_of(extent[1])
        del extent
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
