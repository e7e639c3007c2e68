"""`Sweep`: in which order the readers of one file are served, and what is read with one call.

The plan of a `ReadScheduler`: no input or output and no lock of its own (the scheduler's guards it).

A *pass* takes every reader that has room, in ascending order of its next offset, and gives each one chunk. So
offsets go back only between passes, a late reader waits for the rest of one pass and not for the end of the
file, and readers that keep up with each other go through the file side by side.

What the next readers of the pass want is joined to one read as long as it follows without a gap in the file,
or is exactly the same bytes. In memory each chunk has a place of its own, so that it lies in no more segments
than its size needs: one call fills them all (a scattered read).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sortshuffle.reading.segment_batch import SegmentBatch
from sortshuffle.reading.subpartition_reader import SubpartitionReader
from sortshuffle.storage.files.ranges import RangeExtent


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one reader gets of a read: ``size`` bytes of ``extent``, from ``offset`` of the file on. They go
    to ``start`` of the batch."""

    reader: SubpartitionReader
    extent: RangeExtent
    offset: int
    size: int
    start: int

    @property
    def end(self) -> int:
        """Where in the file it ends."""
        return self.offset + self.size


@dataclass(slots=True)
class PlannedRead:
    """One positioned read: ``chunks`` that follow each other in the file, or are the same bytes for another
    reader."""

    chunks: list[Chunk]

    @property
    def places(self) -> list[tuple[int, int]]:
        """Start and size of the places in the batch that the read fills, one after the other."""
        distinct = {chunk.start: chunk.size for chunk in self.chunks}
        return list(distinct.items())

    def place_by_place(self) -> list[PlannedRead]:
        """The same in reads of one place each, with all who read what lies there."""
        return [
            PlannedRead([chunk for chunk in self.chunks if chunk.start == start]) for start, _ in self.places
        ]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How many segments a reader may hold at this moment. ``share``: at most. ``crowded``: the partition has
    no room for a batch more, so only readers that hold nothing may have something. ``tail``: segments that a
    reader is given beyond that if they end its extent."""

    share: int
    crowded: bool
    tail: int = 0

    def room(self, reader: SubpartitionReader) -> int:
        """Segments that the reader may be given now."""
        held = reader.held
        return 0 if self.crowded and held else max(0, min(self.share - held, reader.wanted))


class Sweep:
    """The readers that have something left to read, and the pass they are in. ``passes``: begun so far."""

    def __init__(self) -> None:
        self.passes = 0
        self.readers: dict[SubpartitionReader, None] = {}  # a set that keeps their order
        self._pass: deque[SubpartitionReader] = deque()
        self._is_short = False  # whether somebody wanted something, and there was no memory

    def add(self, reader: SubpartitionReader) -> None:
        """It takes part from the next pass on."""
        self.readers[reader] = None

    def remove(self, reader: SubpartitionReader) -> None:
        """It is read for no more; nothing if it is not there."""
        self.readers.pop(reader, None)
        if reader in self._pass:
            self._pass.remove(reader)

    def is_due(self, limits: ReadLimits, changed: SubpartitionReader | None = None) -> bool:
        """Whether any reader may be given something. ``changed``: who alone may have come to want more since
        it was asked last, None if that is not known. Hundreds of others need not be looked at then, but where
        memory kept one of them waiting."""
        if changed is not None and not self._is_short:
            return changed in self.readers and self._is_ready(changed, limits)
        self._is_short = False
        return any(self._is_ready(reader, limits) for reader in self.readers)

    def begin_pass(self, limits: ReadLimits) -> None:
        """A new pass with all readers that may have more, if the last one is through."""
        if self._pass:
            return
        wanting = [reader for reader in self.readers if limits.room(reader)]
        self._pass = deque(sorted(wanting, key=lambda reader: reader.cursor.offset))
        self.passes += bool(wanting)

    def plan(self, batch: SegmentBatch, limits: ReadLimits) -> PlannedRead | None:
        """The next read of the pass, for as many readers as it serves, with its places in the batch taken.
        None if the pass is through or the batch used up."""
        while self._pass and not limits.room(self._pass[0]):
            self._pass.popleft()
        chunk = _first_chunk(self._pass[0], limits, batch) if self._pass else None
        if chunk is None:
            return None
        read = PlannedRead([])
        while chunk is not None:
            self._pass.popleft()
            read.chunks.append(chunk)
            batch.used = chunk.start + chunk.size
            chunk = _joining_chunk(read, self._pass[0], limits, batch) if self._pass else None
        return read

    def _is_ready(self, reader: SubpartitionReader, limits: ReadLimits) -> bool:
        room = limits.room(reader)
        self._is_short |= not room and reader.wanted > 0
        return room > 0


def _wanted(reader: SubpartitionReader, limits: ReadLimits, batch: SegmentBatch) -> int:
    left, room = reader.cursor.left_in_extent, limits.room(reader)
    with_tail = min(room + limits.tail, reader.wanted) if room else 0
    if left <= with_tail * batch.segment_bytes:
        return left
    return min(left, room * batch.segment_bytes)


def _first_chunk(reader: SubpartitionReader, limits: ReadLimits, batch: SegmentBatch) -> Chunk | None:
    """What a reader gets of a read that begins with it; None if the batch has no place for that any more.
    Only a batch that is not begun may cut it: a reader with less than the others would fall out of step."""
    wanted = _wanted(reader, limits, batch)
    start = batch.place_for(wanted)
    size = min(wanted, batch.end - start)
    if size < wanted and start:
        return None
    return Chunk(reader, reader.cursor.current, reader.cursor.offset, size, start)


def _joining_chunk(
    read: PlannedRead, reader: SubpartitionReader, limits: ReadLimits, batch: SegmentBatch
) -> Chunk | None:
    """What the next reader gets of the same read; None if it must have one of its own."""
    wanted = _wanted(reader, limits, batch)
    if not wanted:
        return None
    last, offset = read.chunks[-1], reader.cursor.offset
    if (offset, wanted) == (last.offset, last.size):
        return Chunk(reader, reader.cursor.current, offset, wanted, last.start)
    start = batch.place_for(wanted)
    if offset != last.end or start + wanted > batch.end:
        return None
    return Chunk(reader, reader.cursor.current, offset, wanted, start)
