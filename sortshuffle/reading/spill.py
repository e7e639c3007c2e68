"""Sorted runs that a merge writes to disk, and reads back once.

All runs of one pass go into one partitioned file with one subpartition. A run is some consecutive regions. So
any number of runs takes one descriptor.

    writing --finish: both names are deleted--> reading, run by run --the last run is closed--> freed
    writing --a call fails, or the context is left--> deleted

The file never outlives its process. While it is written, it is a ``.partial`` file that its writer locks; the
janitor removes the file of a killed task. `finish()` opens the file for reading and deletes both names, so
that the system frees it with the descriptor, however the process ends.

Memory is charged to the budget: while writing, about `HELD_REGIONS` regions of rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from types import TracebackType
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from sortshuffle.format.header import FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.reading.fetcher import Batches
from sortshuffle.storage.files.extents import Extent, extents_of
from sortshuffle.storage.files.reader import PartitionedFileReader, open_unlinked
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.row_slices import slice_rows

NewFile: TypeAlias = Callable[[FileHeader], PartitionedFileWriter]
"""Makes the file of a pass, under a unique name, in a directory that has room."""

HELD_REGIONS = 3  # a region's rows, their joined copy, and their messages
SLICE_WORTH_A_COPY = 2  # rows are copied if they keep more than this many times their bytes alive
# Messages of a spilled run that fit the budget. If they are smaller, more runs are merged at a time, at a
# higher cost per row. 2,000 runs of 2,000 rows in 16 MiB, runs at a time and ns a row in all: 64: 15, 600;
# 256: 25, 650; 512: 46, 1080; 1024: 85, 1120, one pass less. 1,000 runs of 1,000 rows in 2 MiB: 64: 6,
# 1850, but two passes more than 256: 19, 2680
SPILL_BUFFERS = 256
LEAST_SPILL_BUFFER, MOST_SPILL_BUFFER = 4 * KIB, 256 * KIB  # Arrow's metadata is large in small messages
SPILL_REGIONS = 16  # number of regions that fit the budget: `HELD_REGIONS` of these are for writing


@dataclass(frozen=True, slots=True)
class SpillSize:
    """``buffer``: bytes of the largest message. ``region``: bytes of rows for one write."""

    buffer: int
    region: int

    @staticmethod
    def within(memory: int) -> SpillSize:
        """Choose the sizes for runs that are written, and later merged, within ``memory`` bytes."""
        buffer = min(MOST_SPILL_BUFFER, max(LEAST_SPILL_BUFFER, memory // SPILL_BUFFERS))
        return SpillSize(buffer, max(1, memory // SPILL_REGIONS))


def spill_header(payload: ArrowPayload) -> FileHeader:
    """Return the header of a new file of runs."""
    return FileHeader(
        file_id=secrets.token_bytes(16),
        subpartitions=1,
        first_subpartition=0,
        codec=payload.codec,
        payload_kind=PayloadKind.ARROW,
    )


class SpillWriter:
    """Writes the runs of one pass. Owns the writer; leaving without `finish()` deletes the file."""

    def __init__(
        self,
        writer: PartitionedFileWriter,
        payload: ArrowPayload,
        size: SpillSize,
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self._writer = writer
        self._payload = payload
        self._size = size
        self._budget = budget
        self._metrics = metrics
        self._rows: list[pa.RecordBatch] = []
        self._held = 0
        self._ends: list[int] = []  # for each run, the number of regions in the file when the run ended

    def write_run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Append a run. The batches must be in key order and have rows."""
        for batch in batches:
            with self._metrics.step("merge"):
                self._hold(batch)
                if self._held >= self._size.region:
                    self._write_region()
        with self._metrics.step("merge"):
            self._write_region()
        self._ends.append(self._writer.regions)

    def finish(self) -> list[SpilledRun]:
        """Complete the file. Returns its runs in the order of writing; the caller closes each."""
        with self._metrics.step("merge"):
            writer = self._writer
            file = writer.finish(WriterInfo(), self._payload.schema.serialize().to_pybytes())
            index, reader = open_unlinked(file, writer.header.file_id, "this task's own merge", writer.key)
            try:
                extents = extents_of(index, 0)
            except BaseException:
                reader.close()
                raise
        self._metrics.add(bytes_spilled=self._writer.data_bytes)
        spilled = SpillFile(reader, len(self._ends))
        starts = [0, *self._ends]
        return [
            SpilledRun(spilled, tuple(extents[start:stop]))
            for start, stop in zip(starts, self._ends, strict=False)
        ]

    def __enter__(self) -> SpillWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.clear()
        self._budget.release(self._held)
        self._held = 0
        self._writer.abandon()

    def _hold(self, batch: pa.RecordBatch) -> None:
        if batch.get_total_buffer_size() > SLICE_WORTH_A_COPY * batch.nbytes and batch.num_columns:
            batch = batch.take(pa.array(np.arange(batch.num_rows)))
        self._rows.append(batch)
        self._held += batch.nbytes
        self._budget.charge(batch.nbytes)

    def _write_region(self) -> None:
        if not self._rows:
            return
        rows = self._rows[0] if len(self._rows) == 1 else pa.concat_batches(self._rows)
        self._rows.clear()
        working = (HELD_REGIONS - 1) * self._held
        self._budget.charge(working)
        try:
            seconds = TaskMetrics().seconds  # dropped, because the whole time counts as merging
            pieces = slice_rows(rows, self._size.buffer, attrgetter("nbytes"))
            buffers = [self._payload.encode(piece, seconds) for piece in pieces]
            self._writer.start_region()
            self._writer.write_extents([(0, buffers)])
            self._writer.finish_region()
        finally:
            self._budget.release(working)
        self._budget.release(self._held)
        self._held = 0


class SpillFile:
    """The nameless file of a pass. It is closed, and so freed, when the last of its ``runs`` is closed."""

    def __init__(self, reader: PartitionedFileReader, runs: int) -> None:
        self.reader = reader
        self._open_runs = runs
        self._close_if_unused()

    def close_run(self) -> None:
        self._open_runs -= 1
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._open_runs == 0:
            self.reader.close()


class SpilledRun:
    """One run of a pass, which can be read once. The caller closes it; `close` may be called again."""

    __slots__ = ("_file", "extents")

    def __init__(self, file: SpillFile, extents: tuple[Extent, ...]) -> None:
        self._file: SpillFile | None = file
        self.extents = extents

    def stream(
        self, payload: ArrowPayload, part_bytes: int, budget: MemoryBudget, metrics: TaskMetrics
    ) -> Batches:
        """Yield the batches. Holds one, and charges about ``part_bytes`` of an extent. Closes the run."""
        seconds = TaskMetrics().seconds
        try:
            assert self._file is not None
            for extent in self.extents:
                for part in metrics.timed(self._file.reader.read_parts(extent, part_bytes), "merge"):
                    size = part.memory.size
                    budget.charge(size)
                    try:
                        for buffer in part.buffers:
                            with metrics.step("merge"):
                                batch = payload.decode(part.memory, buffer, seconds)
                            yield batch
                    finally:
                        budget.release(size)
        finally:
            self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close_run()
