"""`SortMergeResultPartition`: the output of one producer task.

    open ----------finish-------------> finished
    open ----------a call that fails--> failed: records may be lost, so only `abandon` is allowed
    open | failed --abandon-----------> abandoned: there are no files

Each kind of partition has its own methods to write to it:

    writing.row_partition        Arrow batches: `ShuffleFrame`, and `engine.Output` of batches
    writing.frame_partition      frames and events: `ShuffleRDD`, and `engine.Output` of records
    writing.placed_partition     placed records: the shuffle manager's engine

This module has what they share: when regions are written, and the life of the files. Records wait in an
`Intake`, or in two, one for unicast and one for broadcast records. For each piece of records:

    room_for(piece)? --no--> write regions --> add(piece) --> is_due? --yes--> write a region

Rules
* Records are held until the task's memory is full, or a region is large enough; then everything held becomes
  a region. Whether a piece fits is decided before any of it is taken. So no record spans regions.
* Broadcast records have separate regions, which are stored once for all subpartitions. They are collected
  separately too, so that alternating unicast and broadcast records makes no tiny regions. Unicast and
  broadcast records keep their order among themselves, not with each other.
* Single-threaded. A partition owns the file writer and ends with `finish()` or `abandon()`; leaving its
  context without `finish()` abandons it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sortshuffle.errors import StateError, UsageError
from sortshuffle.format.extent_run import ExtentRun
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.format.index import Entries, RegionKind, WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.data_buffer import Drained, Extent, bytes_of, write_batch

Counts = npt.NDArray[np.int64]
Opened = TypeVar("Opened", bound="SortMergeResultPartition")


class Intake(Protocol):
    """Collects pieces of records until they become a region.

    ``kind``: the kind of these regions. ``bytes``: size of what is held. ``is_due``: whether it must be
    written without waiting for more. `add` takes every piece: a piece that does not fit an empty intake
    becomes a separate region. Drained extents may point to memory of the intake until `written` or `discard`.
    """

    @property
    def kind(self) -> RegionKind: ...

    @property
    def bytes(self) -> int: ...

    @property
    def is_due(self) -> bool: ...

    def room_for(self, piece: Any) -> bool:
        """Return whether this piece still fits the memory and the region."""

    def add(self, piece: Any) -> None:
        """Take the piece over, or copy it. The caller may use its memory again once `is_due` was acted on."""

    def drain(self) -> Iterator[Drained]:
        """Yield the extents of everything added since the last drain, in the write order, each in one or more
        parts. The bytes of a part stay charged to the budget: the caller releases them."""

    def written(self) -> None:
        """Take back lent memory: everything that the last drain yielded has been written."""

    def discard(self) -> None:
        """Drop everything held. The caller releases the budget."""


class StoredPayload(Protocol):
    """The properties of a payload that a file's header states."""

    kind: ClassVar[PayloadKind]

    @property
    def codec(self) -> Codec: ...


class SortMergeResultPartition(ABC):
    """Writes records into one partitioned file, in regions of about ``budget.limit`` bytes at most.

    ``budget``: used by this partition only; it may be a share. Calls after `finish()`, `abandon()` or a call
    that failed raise `StateError`. A call with invalid arguments (`UsageError`) changes nothing.
    """

    def __init__(
        self,
        writer: PartitionedFileWriter,
        payload: StoredPayload,
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self.metrics = metrics
        self._writer = writer
        self._budget = budget
        try:
            _check_header(writer, payload)
            self._intakes = self._new_intakes()
        except BaseException:
            self._close()
            writer.abandon()
            raise
        self._subpartition_bytes = np.zeros(writer.header.subpartitions, np.int64)
        self._subpartition_records = np.zeros(writer.header.subpartitions, np.int64)
        self._state = "open"

    @abstractmethod
    def _new_intakes(self) -> tuple[Intake, ...]:
        """Make the intakes, in the order in which their last regions are written."""

    def _close(self) -> None:  # noqa: B027  most kinds acquire nothing
        """Release what was acquired at set-up."""

    def _schema(self) -> bytes:
        """Return the schema for the index."""
        return b""

    @property
    def file_id(self) -> bytes:
        """The id that the data file and the index file both carry."""
        return self._writer.header.file_id

    @property
    def subpartitions(self) -> int:
        return self._writer.header.subpartitions

    @property
    def subpartition_bytes(self) -> Counts:
        """Bytes that the consumer of each subpartition reads from the data file; broadcast bytes count for
        each. Complete after `finish()`: the index's entries add up to the same. Shape (subpartitions,)."""
        return np.array(self._subpartition_bytes)

    @property
    def subpartition_records(self) -> Counts:
        """Records that the consumer of each subpartition gets, counted like `subpartition_bytes`."""
        return np.array(self._subpartition_records)

    def finish(self, writer: WriterInfo) -> PartitionedFile:
        """Write everything held, and complete the file. Only a completed file can be read."""
        self._expect_open()
        with self._whole_or_failed():
            self._write_rest()
            self._close()
            with self.metrics.step("write"):
                file = self._writer.finish(writer, self._schema())
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
        """Delete the files and release all memory. Does nothing after `finish()`."""
        if self._state in ("finished", "abandoned"):
            return
        self._state = "abandoned"
        with ExitStack() as stack:  # calls these in reverse order, all of them even if one fails
            stack.callback(self._writer.abandon)
            stack.callback(self._budget.release_all)
            stack.callback(self._close)
            for intake in reversed(self._intakes):
                stack.callback(intake.discard)

    def __enter__(self: Opened) -> Opened:
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

    def _put(self, intake: Intake, pieces: Iterable[Any]) -> None:
        """Add the pieces to the intake, writing regions for room. The partition must be open."""
        with self._whole_or_failed():
            for piece in pieces:
                self._make_room(intake, piece)
                intake.add(piece)
                if intake.is_due:
                    self._spill(intake)

    def _write_rest(self) -> None:
        """Write everything held when no more pieces come. If only the first intake holds anything, its region
        is marked as the last: then its entries are written together with the end of the index."""
        first, *others = self._intakes
        others = [intake for intake in others if intake.bytes]
        self._write_region(first, is_last=not others)
        for intake in others:
            self._write_region(intake)

    def _make_room(self, intake: Intake, piece: Any) -> None:
        """Write regions until the piece fits or nothing is held. The intake that holds more goes first, so
        that no region is tiny just because the other intake takes the memory."""
        if intake.room_for(piece):
            return
        for fuller in sorted(self._intakes, key=lambda intake: -intake.bytes):
            self._spill(fuller)
            if intake.room_for(piece):
                return

    def _spill(self, intake: Intake) -> None:
        """Write a region while more records may come, and count it as a spill."""
        before = self._writer.regions
        self._write_region(intake)
        self.metrics.add(spills=self._writer.regions - before)

    def _write_region(self, intake: Intake, is_last: bool = False) -> None:
        writer = self._writer
        writer.start_region(intake.kind)
        for batch in _in_batches(intake.drain(), write_batch(self._budget.least)):
            charged = _charge_of(batch)  # not the bytes written: encryption makes buffers longer
            with self.metrics.step("write"):
                if isinstance(batch, ExtentRun):
                    writer.write_run(batch)
                else:
                    writer.write_extents(batch)
            self._budget.release(charged)
            del batch  # frees the buffers before the next ones are made
        self._count(intake.kind, writer.finish_region(is_last))
        intake.written()

    def _count(self, kind: RegionKind, entries: Entries) -> None:
        self._subpartition_bytes += entries["bytes"].astype(np.int64)
        self._subpartition_records += entries["records"].astype(np.int64)
        stored = entries[:1] if kind is RegionKind.BROADCAST else entries
        self.metrics.add(raw_bytes_written=int(stored["raw_bytes"].sum()))


def _check_header(writer: PartitionedFileWriter, payload: StoredPayload) -> None:
    header = writer.header
    if (header.payload_kind, header.codec) != (payload.kind, payload.codec):
        raise UsageError(
            f"the file's header says {header.payload_kind.name} with codec {header.codec.name}, its layout"
            f" {payload.kind.name} with {payload.codec.name}"
        )


def _charge_of(batch: list[Extent] | ExtentRun) -> int:
    """Return the bytes that are charged for this part of a drain."""
    if isinstance(batch, ExtentRun):
        return int(batch.bytes.sum())
    return sum(bytes_of(buffers) for _, buffers in batch)


def _in_batches(extents: Iterator[Drained], most: int) -> Iterator[list[Extent] | ExtentRun]:
    """Yield extents in lists of about ``most`` bytes, and runs unchanged. Keeps no reference to them."""
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
