"""`SortMergeResultPartition`: the output of one producer task.

    open --write, broadcast, emit, broadcast_frame, broadcast_event, ..--> open --finish--> finished
      \\--a call that fails--> failed; records may be lost, so nothing but abandon is left
      \\----------------------------abandon---> abandoned (no files)

Used by every door: `ShuffleFrame` writes Arrow batches (`write`, `broadcast`), `ShuffleRDD` writes frames
(`emit`, `broadcast_frame`), `engine.Output` writes either, and events (`broadcast_event`), the shuffle
manager's engine writes placed records (`write_placed`). Its layout says which; the other calls are a
`UsageError`.

Records are held until the task's memory is full, or a region is large enough; then everything held becomes a
region. A record never spans regions. What is broadcast has a region of its own, stored once for all
subpartitions; it is collected beside the unicast records, so that alternating the two makes no tiny
regions. Unicast and broadcast records keep their order among themselves, not with each other.

An event keeps its order with everything: what was written before it is before it, for every consumer. So it
ends the regions that are open, and has one of its own. `finish()` broadcasts `END_OF_DATA` and
`END_OF_PARTITION` as the last region of frames, by which a consumer knows that its stream is complete. Others
have no events: their index says it, and their control rows.

Single-threaded. Owns the file writer and the layout's buffer pool: `finish()` or `abandon()`, nothing
between; as a context manager, leaving without `finish()` abandons.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.errors import StateError, UnsupportedError, UsageError
from sortshuffle.format.extent_run import ExtentRun
from sortshuffle.format.index import Entries, RegionKind, Writer
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.events import Event, seal_event
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.data_buffer import Drained, Extent, bytes_of, write_batch
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.frame_encoder import BytesLike, Frame, FrameEncoder, FrameLayout, frame_intakes
from sortshuffle.writing.intake import Intake, Intakes, row_intakes
from sortshuffle.writing.placed_records import (
    ClusteredFrame,
    PlacedRecordEncoder,
    PlacedRecords,
    RecordBytesLayout,
    placed_record_intakes,
)

Counts = npt.NDArray[np.int64]
Layout: TypeAlias = PartitionLayout | FrameLayout | RecordBytesLayout
"""How a partition's records become extents: rows, frames, or placed records."""


class SortMergeResultPartition:
    """Writes records into one partitioned file, in regions of about ``budget.limit`` bytes at most.

    ``layout``: of rows or of frames. ``budget``: this partition's own, or its own share of one. Calls after
    `finish()`, `abandon()` or a call that failed are a `StateError`; one that is refused as it stands
    (`UsageError`) changes nothing.
    """

    def __init__(
        self,
        writer: PartitionedFileWriter,
        layout: Layout,
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self.metrics = metrics
        self._writer = writer
        self._budget = budget
        try:
            _check_header(writer, layout)
            self._intakes = _intakes(layout, writer, budget, metrics)
        except BaseException:
            if isinstance(layout, FrameLayout):
                layout.pool.close()
            writer.abandon()
            raise
        self._unicast = self._intakes.unicast
        self._broadcast = self._intakes.broadcast
        self._subpartition_bytes = np.zeros(writer.header.subpartitions, np.int64)
        self._subpartition_records = np.zeros(writer.header.subpartitions, np.int64)
        self._state = "open"

    @property
    def file_id(self) -> bytes:
        """The id that both files carry."""
        return self._writer.header.file_id

    @property
    def subpartitions(self) -> int:
        return self._writer.header.subpartitions

    @property
    def subpartition_bytes(self) -> Counts:
        """Bytes that the consumer of each subpartition reads from the data file; what is broadcast counts for
        each. Complete after `finish()`: the index's entries add up to the same. Shape (subpartitions,)."""
        return np.array(self._subpartition_bytes)

    @property
    def subpartition_records(self) -> Counts:
        """Records that the consumer of each subpartition gets, likewise."""
        return np.array(self._subpartition_records)

    @property
    def only_frame(self) -> ClusteredFrame | None:
        """All placed records so far, if they came in one frame and wait for their region."""
        if self._writer.regions or not isinstance(self._unicast, PlacedRecordEncoder):
            return None
        return self._unicast.only_frame

    def write(self, batch: pa.RecordBatch) -> None:
        """Send each row to the subpartition that the selector gives it. The batch is of the payload's
        schema; it is not kept beyond the region it goes into."""
        self._put(self._unicast, batch)

    def write_placed(self, records: PlacedRecords) -> None:
        """Send each record to the subpartition that it names. Its memory may be used again when the call
        returns."""
        self._put(self._unicast, records)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Send every row to every subpartition. Not where extents are ordered by key: `UnsupportedError`."""
        self._put(self._broadcast, batch)

    def emit(self, frame: BytesLike, subpartition: int) -> None:
        """Send a frame to a subpartition. Its memory may be used again when the call returns. The payload
        says how many records it is."""
        self._put(self._unicast, Frame.of(frame, subpartition))

    def broadcast_frame(self, frame: BytesLike) -> None:
        """Send a frame to every subpartition, storing it once."""
        self._put(self._broadcast, Frame.of(frame, 0))

    def broadcast_event(self, event: Event) -> None:
        """Send an event to every subpartition, behind all that was written before and ahead of all that is
        written later. That ends the open regions: not for something that comes with every record."""
        self._expect_open()
        broadcast = self._event_intake()
        if event in self._intakes.last:
            raise UsageError(f"{event} is what finish() broadcasts")
        sealed = seal_event(event)
        with self._whole_or_failed():
            self._write_region(self._unicast)
            broadcast.add_event(sealed)
            self._write_region(broadcast)

    def finish(self, writer: Writer) -> PartitionedFile:
        """Write what is held, and complete the file; only then can it be read."""
        self._expect_open()
        with self._whole_or_failed():
            has_more = bool(self._intakes.last or self._broadcast.bytes)
            self._write_region(self._unicast, is_last=not has_more)
            for event in self._intakes.last:
                self._event_intake().add_event(seal_event(event))
            if self._broadcast.bytes:
                self._write_region(self._broadcast)
            self._intakes.close()
            with self.metrics.step("write"):
                file = self._writer.finish(writer, self._intakes.schema)
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
        with ExitStack() as stack:  # one failure does not keep the others from their turn, the last first
            stack.callback(self._writer.abandon)
            stack.callback(self._budget.release_all)
            stack.callback(self._intakes.close)
            stack.callback(self._broadcast.discard)
            stack.callback(self._unicast.discard)

    def __enter__(self) -> SortMergeResultPartition:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _expect_open(self) -> None:
        if self._state != "open":
            raise StateError(f"{self._writer.file.base} is {self._state}, which does not allow this call")

    @contextmanager
    def _whole_or_failed(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._state = "failed"
            raise

    def _event_intake(self) -> FrameEncoder:
        if isinstance(self._broadcast, FrameEncoder):
            return self._broadcast
        raise UnsupportedError("this partition has no events: its index says what is complete")

    def _put(self, intake: Intake, item: object) -> None:
        self._expect_open()
        pieces = intake.pieces(item)
        with self._whole_or_failed():
            for piece in pieces:
                self._make_room(intake, piece)
                intake.add(piece)
                if intake.is_due:
                    self._spill(intake)

    def _make_room(self, intake: Intake, piece: object) -> None:
        """Write regions until the piece fits or nothing is held. The intake that holds more goes first: no
        region is tiny because the other takes the memory."""
        if intake.room_for(piece):
            return
        for fuller in sorted((self._unicast, self._broadcast), key=lambda each: -each.bytes):
            self._spill(fuller)
            if intake.room_for(piece):
                return

    def _spill(self, intake: Intake) -> None:
        """Write a region before the records end."""
        before = self._writer.regions
        self._write_region(intake)
        self.metrics.add(spills=self._writer.regions - before)

    def _write_region(self, intake: Intake, is_last: bool = False) -> None:
        writer = self._writer
        writer.start_region(intake.kind)
        for batch in _batched(intake.drain(), write_batch(self._budget.least)):
            charged = _charged(batch)  # not what is written: encryption makes buffers longer
            with self.metrics.step("write"):
                if isinstance(batch, ExtentRun):
                    writer.write_run(batch)
                else:
                    writer.write_extents(batch)
            self._budget.release(charged)
            del batch  # before the next ones are made
        self._count(intake.kind, writer.finish_region(is_last))
        intake.written()

    def _count(self, kind: RegionKind, entries: Entries) -> None:
        self._subpartition_bytes += entries["bytes"].astype(np.int64)
        self._subpartition_records += entries["records"].astype(np.int64)
        stored = entries[:1] if kind is RegionKind.BROADCAST else entries
        self.metrics.add(raw_bytes_written=int(stored["raw_bytes"].sum()))


def _check_header(writer: PartitionedFileWriter, layout: Layout) -> None:
    said = (writer.header.payload_kind, writer.header.codec)
    kind = layout.payload.kind
    if said != (kind, layout.payload.codec):
        raise UsageError(
            f"the file's header says {said[0].name} with codec {said[1].name}, its layout {kind.name} with"
            f" {layout.payload.codec.name}"
        )


def _intakes(
    layout: Layout, writer: PartitionedFileWriter, budget: MemoryBudget, metrics: TaskMetrics
) -> Intakes:
    if isinstance(layout, FrameLayout):
        return frame_intakes(layout, writer.write_order, budget, metrics)
    if isinstance(layout, RecordBytesLayout):
        return placed_record_intakes(layout, writer.header.first_subpartition, budget, metrics)
    return row_intakes(layout, writer.write_order, budget, metrics)


def _charged(batch: list[Extent] | ExtentRun) -> int:
    """Bytes that were charged for what a drain gave."""
    if isinstance(batch, ExtentRun):
        return int(batch.bytes.sum())
    return sum(bytes_of(buffers) for _, buffers in batch)


def _batched(extents: Iterator[Drained], most: int) -> Iterator[list[Extent] | ExtentRun]:
    """Extents together up to ``most`` bytes or a little more, runs as they are; none is kept here once the
    caller has it."""
    batch: list[Extent] = []
    size = 0
    for extent in extents:
        if isinstance(extent, ExtentRun):
            if batch:
                yield batch
                batch, size = [], 0
            yield extent
            del extent
            continue
        batch.append(extent)
        size += bytes_of(extent[1])
        del extent
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
