"""`BatchReader`: fills a batch of segments as a `Sweep` plans, and hands slices to readers.

Used by `ReadScheduler`: a run is one call of `fill`. It makes passes over the file until the batch is used up
or no reader may have more.

Rules
* A failed read fails the readers whose bytes are affected, and no others.
* Memory that was delivered is not read into again: all readers of the same bytes get them from one attempt.

Ownership: `fill` owns the batch until it returns; a consumer owns the slices delivered to it.

Lock order: the scheduler's lock guards the sweep. No file is read and no reader is called under it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.segment import MemorySegment
from sortshuffle.reading.read_shares import ReadShares
from sortshuffle.reading.segment_batch import SegmentBatch
from sortshuffle.reading.subpartition_reader import ReadPiece, SubpartitionReader
from sortshuffle.reading.sweep import Chunk, PlannedRead, ReadLimits, Sweep
from sortshuffle.reading.swept_file import SweptFile


class BatchReader:
    """``lock``: guards ``sweep``. ``reads``, ``bytes_read``: totals, counted by one run at a time."""

    def __init__(self, sweep: Sweep, shares: ReadShares, lock: threading.Lock) -> None:
        self._sweep = sweep
        self._shares = shares
        self._lock = lock
        self.reads = 0
        self.bytes_read = 0

    def fill(self, segments: list[MemorySegment], data: SweptFile) -> None:
        """Read into these segments for all readers that may have something; release unused ones."""
        try:
            batch = SegmentBatch(segments, self._shares)
        except BaseException:  # such as no memory for it
            for segment in segments:
                self._shares.recycle(segment)
            raise
        try:
            while self._make_pass(batch, data):
                continue
        finally:
            try:
                self._shares.lend(segments)
            finally:
                batch.release()

    def _limits(self) -> ReadLimits:
        return self._shares.limits(len(self._sweep.readers))

    def _make_pass(self, batch: SegmentBatch, data: SweptFile) -> bool:
        """Begin a pass, or continue the last one. Returns whether a read was planned."""
        with self._lock:
            self._sweep.begin_pass(self._limits())
        planned = False
        while (read := self._plan(batch)) is not None:
            self._serve(read, batch, data)
            planned = True
        return planned

    def _plan(self, batch: SegmentBatch) -> PlannedRead | None:
        with self._lock:
            return self._sweep.plan(batch, self._limits())

    def _serve(self, read: PlannedRead, batch: SegmentBatch, data: SweptFile) -> None:
        """Read, and hand out slices. Repeat a failed read place by place; fail the readers of bad places."""
        first = read.chunks[0]
        views = [view for start, size in read.places for view in batch.views(start, size)]
        try:
            data.read_into(views, first.offset, first.extent)
        except Exception as error:
            if len(read.places) > 1:
                for part in read.place_by_place():
                    self._serve(part, batch, data)
            else:
                for chunk in read.chunks:
                    fail_reader(chunk.reader, error)
            return
        self.reads += 1
        self.bytes_read += sum(map(len, views))
        for chunk in read.chunks:
            self._deliver(chunk, batch.slices(chunk.start, chunk.size))

    def _deliver(self, chunk: Chunk, slices: list[Buffer]) -> None:
        reader = chunk.reader
        position = reader.cursor.position
        pieces = []
        for buffer in slices:
            pieces.append(ReadPiece(chunk.extent, position, buffer))
            position += buffer.size
        reader.cursor.advance(chunk.size)
        complete = reader.cursor.is_at_end
        add_to_reader(reader, pieces, complete=complete)
        if complete:
            with self._lock:
                self._sweep.remove(reader)


def add_to_reader(reader: SubpartitionReader, pieces: Sequence[ReadPiece], *, complete: bool) -> None:
    """Hand the pieces to the reader, and fail the reader if it does not take them."""
    try:
        reader.add(pieces, complete=complete)
    except Exception as error:  # the reader was released in the meantime, or its consumer's callback failed
        fail_reader(reader, error)


def fail_reader(reader: SubpartitionReader, cause: BaseException) -> None:
    """Fail the reader, ignoring errors of its consumer's callback."""
    try:
        reader.fail(cause)
    except Exception:
        pass  # the callback failed, after the reader had failed; the caller must go on to the other readers
