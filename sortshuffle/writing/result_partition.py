"""`SortMergeResultPartition`: the output of one producer task.

    open --write, emit, ..--> open --finish--> finished
      \\--a call that fails--> failed; records may be lost, so nothing but abandon is left
      \\----------------------------abandon---> abandoned (no files)

Each kind of partition has calls of its own for what it takes:

    writing.row_partition        Arrow batches: `ShuffleFrame`, and `engine.Output` of batches
    writing.frame_partition      frames and events: `ShuffleRDD`, and `engine.Output` of records
    writing.placed_partition     placed records: the shuffle manager's engine

Here is what they have in common: when a region is written, and what becomes of the files. Records wait in an
`Intake`, or in two, for unicast and for broadcast:

    pieces --> room_for? --no--> regions are written --> add --is_due?--> drain, written

Rules
* Records are held until the task's memory is full, or a region is large enough; then everything held becomes
  a region. Whether a piece fits is decided before any of it is taken. So no record spans regions.
* What is broadcast has a region of its own, stored once for all subpartitions; it is collected beside the
  unicast records, so that alternating the two makes no tiny regions. Unicast and broadcast records keep their
  order among themselves, not with each other.
* Single-threaded. Owns the file writer: `finish()` or `abandon()`, nothing between; as a context manager,
  leaving without `finish()` abandons.
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
from sortshuffle.format.index import Entries, RegionKind, Writer
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.data_buffer import Drained, Extent, bytes_of, write_batch

Counts = npt.NDArray[np.int64]
Opened = TypeVar("Opened", bound="SortMergeResultPartition")


class Intake(Protocol):
    """What a partition collects until it becomes a region.

    ``kind``: of the regions that are made of it. ``bytes``: what it holds. ``is_due``: it holds what must not
    wait for more. `add` takes every piece: one that found no room although nothing is held is a region of its
    own. Memory that an intake lent to the extents it gave is its own again with `written`, or with `discard`.
    """

    @property
    def kind(self) -> RegionKind: ...

    @property
    def bytes(self) -> int: ...

    @property
    def is_due(self) -> bool: ...

    def room_for(self, piece: Any) -> bool:
        """Whether this piece still fits the memory and the region."""

    def add(self, piece: Any) -> None:
        """Take it over, or copy it: the caller may use its memory again once `is_due` was acted on."""

    def drain(self) -> Iterator[Drained]:
        """The extents of all that was added since the last drain, in the write order, each in one or more
        parts. The bytes of a part stay charged to the budget: the caller releases them."""

    def written(self) -> None:
        """What the last drain gave has been written."""

    def discard(self) -> None:
        """Let go of everything. The caller releases the budget."""


class StoredPayload(Protocol):
    """What a file's header says of the payload in it."""

    kind: ClassVar[PayloadKind]

    @property
    def codec(self) -> Codec: ...


class SortMergeResultPartition(ABC):
    """Writes records into one partitioned file, in regions of about ``budget.limit`` bytes at most.

    ``budget``: this partition's own, or its own share of one. Calls after `finish()`, `abandon()` or a call
    that failed are a `StateError`; one that is refused as it stands (`UsageError`) changes nothing.
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
        """In the order in which their last regions are written."""

    def _close(self) -> None:  # noqa: B027  most take nothing
        """Give back what was taken at set-up."""

    def _schema(self) -> bytes:
        """For the index."""
        return b""

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

    def finish(self, writer: Writer) -> PartitionedFile:
        """Write what is held, and complete the file; only then can it be read."""
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
        """Delete the files and let go of all memory. Does nothing after `finish()`."""
        if self._state in ("finished", "abandoned"):
            return
        self._state = "abandoned"
        with ExitStack() as stack:  # one failure does not keep the others from their turn, the last first
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
        """Collect these pieces, writing regions where they need room. The partition is open."""
        with self._whole_or_failed():
            for piece in pieces:
                self._make_room(intake, piece)
                intake.add(piece)
                if intake.is_due:
                    self._spill(intake)

    def _write_rest(self) -> None:
        """Write what is held when no more comes. The first intake's region is told that it is the last if the
        others hold nothing: then its entries are written together with the end of the index."""
        first, *others = self._intakes
        others = [each for each in others if each.bytes]
        self._write_region(first, is_last=not others)
        for each in others:
            self._write_region(each)

    def _make_room(self, intake: Intake, piece: Any) -> None:
        """Write regions until the piece fits or nothing is held. The intake that holds more goes first: no
        region is tiny because the other takes the memory."""
        if intake.room_for(piece):
            return
        for fuller in sorted(self._intakes, key=lambda each: -each.bytes):
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


def _check_header(writer: PartitionedFileWriter, payload: StoredPayload) -> None:
    header = writer.header
    if (header.payload_kind, header.codec) != (payload.kind, payload.codec):
        raise UsageError(
            f"the file's header says {header.payload_kind.name} with codec {header.codec.name}, its layout"
            f" {payload.kind.name} with {payload.codec.name}"
        )


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
