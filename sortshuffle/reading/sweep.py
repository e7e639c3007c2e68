"""`Sweep`: decides the order in which the readers of one file are served, and plans each read.

It plans for a `BatchReader`, and tells the `ReadScheduler` when a read is due. It has no I/O and no lock: the
scheduler's lock guards it.

A *pass* takes every reader that has room, in ascending order of its next offset, and gives each one chunk. So
offsets go back only between passes, and a late reader waits for the rest of one pass, not for the end of the
file. Readers of the same speed advance through the file side by side.

The chunks of neighbours in a pass become one read as long as they follow each other in the file without a
gap, or are the same bytes. In memory each distinct chunk has a separate place, so that it covers no more
segments than its size needs. One call fills all places (a scattered read).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sortshuffle.reading.segment_batch import SegmentBatch
from sortshuffle.reading.subpartition_reader import SubpartitionReader
from sortshuffle.storage.files.ranges import RangeExtent


@dataclass(frozen=True, slots=True)
class Chunk:
    """One reader's share of a read: ``size`` bytes of ``extent``, from ``offset`` in the file to ``start`` in
    the batch."""

    reader: SubpartitionReader
    extent: RangeExtent
    offset: int
    size: int
    start: int

    @property
    def end(self) -> int:
        """The offset in the file where the chunk ends."""
        return self.offset + self.size


@dataclass(slots=True)
class PlannedRead:
    """One positioned read: ``chunks`` that follow each other in the file, or are the same bytes for several
    readers."""

    chunks: list[Chunk]

    @property
    def places(self) -> list[tuple[int, int]]:
        """Start and size of each place in the batch that the read fills, in order."""
        distinct = {chunk.start: chunk.size for chunk in self.chunks}
        return list(distinct.items())

    def place_by_place(self) -> list[PlannedRead]:
        """Divide the read into reads of one place, each with all readers of that place."""
        return [
            PlannedRead([chunk for chunk in self.chunks if chunk.start == start]) for start, _ in self.places
        ]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How many segments a reader may hold at this moment. ``share``: the most. ``crowded``: whether the
    partition has no room for another batch, so that only readers that hold nothing get data. ``tail``:
    further segments that a reader gets if they complete its extent."""

    share: int
    crowded: bool
    tail: int = 0

    def room(self, reader: SubpartitionReader) -> int:
        """Return the number of segments that the reader may get now."""
        held = reader.held
        return 0 if self.crowded and held else max(0, min(self.share - held, reader.wanted))


class Sweep:
    """The readers with bytes left to read, and their pass. ``passes``: number begun so far."""

    def __init__(self) -> None:
        self.passes = 0
        self.readers: dict[SubpartitionReader, None] = {}  # a set that keeps their order
        self._pass: deque[SubpartitionReader] = deque()
        self._is_short = False  # whether a reader wanted segments but had no room under its limits

    def add(self, reader: SubpartitionReader) -> None:
        """Add a reader, which takes part from the next pass on."""
        self.readers[reader] = None

    def remove(self, reader: SubpartitionReader) -> None:
        """Stop reading for this reader. May be called again."""
        self.readers.pop(reader, None)
        if reader in self._pass:
            self._pass.remove(reader)

    def is_due(self, limits: ReadLimits, changed: SubpartitionReader | None = None) -> bool:
        """Return whether any reader may get something. ``changed``: the only reader that may want more than
        at the last call, None if unknown. If it is known, hundreds of other readers need not be checked,
        unless one of them waits for memory."""
        if changed is not None and not self._is_short:
            return changed in self.readers and self._is_ready(changed, limits)
        self._is_short = False
        return any(self._is_ready(reader, limits) for reader in self.readers)

    def begin_pass(self, limits: ReadLimits) -> None:
        """Begin a pass with all readers that have room, if the last pass is over."""
        if self._pass:
            return
        wanting = [reader for reader in self.readers if limits.room(reader)]
        self._pass = deque(sorted(wanting, key=lambda reader: reader.cursor.offset))
        self.passes += bool(wanting)

    def plan(self, batch: SegmentBatch, limits: ReadLimits) -> PlannedRead | None:
        """Plan the next read of the pass, for as many readers as possible, and reserve its places in the
        batch. Returns None if the pass is over or the batch is full."""
        # 1. Find the first reader with room
        while self._pass and not limits.room(self._pass[0]):
            self._pass.popleft()
        chunk = _first_chunk(self._pass[0], limits, batch) if self._pass else None
        if chunk is None:
            return None
        # 2. Add the readers after it, while their chunks join the read
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
    """Return the chunk of the first reader of a read, or None if the batch has no place for it. Only an empty
    batch may cut the chunk: a reader that gets less than the others falls behind them."""
    wanted = _wanted(reader, limits, batch)
    start = batch.place_for(wanted)
    size = min(wanted, batch.end - start)
    if size < wanted and start:
        return None
    return Chunk(reader, reader.cursor.current, reader.cursor.offset, size, start)


def _joining_chunk(
    read: PlannedRead, reader: SubpartitionReader, limits: ReadLimits, batch: SegmentBatch
) -> Chunk | None:
    """Return the next reader's chunk in the same read, or None if this reader needs a separate read."""
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
