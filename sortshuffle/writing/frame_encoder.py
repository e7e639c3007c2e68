"""`FrameEncoder`: the third encoder, for records that are bytes already and know their subpartition.

Used by `ShuffleRDD` and `engine.Output`, whose frames are pickled chunks.

    frame --copied once--> open buffer of its subpartition --full, or drained--> sealed --> region

Each subpartition has at most one open buffer: a segment of the partition's `LocalBufferPool`. A full one is
sealed while it is hot, as it is, without a copy, or compressed: its block is put behind those before it in
the segment that holds blocks, and its own segment is free again at once. If it finds no room there, its own
segment takes over. What is sealed is lent until the region is written.

Rules
* Whether a frame fits is decided before any of it is written: room is what is left in the open buffer, and
  as many segments as the frame needs, in hand. Sealing needs none. So no frame spans regions.
* Whatever is held lies in segments, and every segment in hand is charged whole to the budget: a region is
  at most ``budget.limit`` bytes, or as many segments as the pool gives. Blocks in memory of their own would
  come on top of segments that the pool has: twice the memory, for data that begins to compress.
* A frame that finds no room in an empty encoder is a region of its own, sealed piece by piece from the
  caller's memory, without a copy, while it is written.
* Every segment goes back to the pool, in `written` or in `discard`, wherever a call failed: one is dropped
  from where `discard` looks for it only after it was put elsewhere or recycled, which may be done twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from sortshuffle.errors import UsageError
from sortshuffle.format.buffer import SealedBuffer, seal, sealed_size
from sortshuffle.format.index import RegionKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB, PREFIX
from sortshuffle.payload.frames import FramesPayload
from sortshuffle.payload.spanning import LENGTH_BYTES, MAX_RECORD_BYTES, pack_length, serialize
from sortshuffle.writing.data_buffer import BROADCAST_SHARE, DataBuffer, Extent

if TYPE_CHECKING:
    from sortshuffle.memory.local_buffer_pool import LocalBufferPool

BytesLike: TypeAlias = Any
"""Anything with the buffer protocol whose memory is in one piece."""

LARGE_SLICE = MIB  # bytes of a frame with a region of its own that are one buffer, and verified at a time
PAGE = 4 * KIB
# A frame that is cut is copied once more by its reader. Frames of 64 KiB on one core: 2 GB/s read with
# segments of 32 KiB, 5 with 128, 6 with 256, 7.5 with 512; writing is no quicker from 128 on
MOST_SEGMENT = 256 * KIB
SEGMENTS_PER_SUBPARTITION = 4  # so that most of a region are full buffers, not open ones that were cut short


def segment_bytes(subpartitions: int, memory: int) -> int:
    """The size of segments that suits a partition: whole pages, small enough that ``memory`` bytes give every
    subpartition some."""
    wanted = memory // (SEGMENTS_PER_SUBPARTITION * subpartitions)
    return max(PAGE, min(MOST_SEGMENT, wanted // PAGE * PAGE))


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """How frames become extents.

    ``pool``: the partition's own; it reserves its guaranteed segments at set-up, and closes it at its end.
    ``buffer_size``: bytes of a segment that are used, from 1 to its size.
    """

    payload: FramesPayload
    pool: LocalBufferPool
    buffer_size: int

    def __post_init__(self) -> None:
        if self.buffer_size < 1:
            raise UsageError(f"a frame layout's buffer_size must be at least 1 byte, not {self.buffer_size}")


def frame_layout(payload: FramesPayload, subpartitions: int, memory: int, opened: ExitStack) -> FrameLayout:
    """The layout of a partition that takes all of its memory, ``memory`` bytes, as segments, now. ``opened``:
    gives them back, behind the partition. Raises MemoryError."""
    size = segment_bytes(subpartitions, memory)
    segments = NetworkBufferPool(memory // size, size, option=f"{PREFIX}memory")
    opened.callback(segments.destroy)
    return FrameLayout(payload, segments.create_pool(segments.total), size)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame for one subpartition, or for all (then 0)."""

    memory: memoryview
    subpartition: int

    @staticmethod
    def of(data: BytesLike, subpartition: int) -> Frame:
        view = memoryview(data)
        # a view of nothing cannot be cast
        return Frame(view.cast("B") if view.nbytes else memoryview(b""), subpartition)


class FrameEncoder:
    """The frames of ``write_order``'s subpartitions; for broadcast ones ``[0]``. An `Intake`."""

    def __init__(
        self,
        layout: FrameLayout,
        kind: RegionKind,
        write_order: list[int],
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self.kind = kind
        self._layout = layout
        self._write_order = write_order
        self._budget = budget
        self._seconds = metrics.seconds
        # for a segment: what a full one takes in the file, so that sealing never charges more than that
        self._charge = sealed_size(layout.buffer_size)
        self._buffer = DataBuffer(write_order, budget)
        self._open: dict[int, _OpenBuffer] = {}
        self._spare: list[Buffer] = []  # segments in hand for the next frame
        self._lent: list[_OpenBuffer] = []  # until the region is written
        self._unfilled = 0  # charged for those beyond what the buffers in them are charged with
        self._blocks: _Blocks | None = None  # the lent one that takes blocks
        self._large: Frame | None = None  # a region of its own

    @property
    def bytes(self) -> int:
        return self._buffer.bytes + self._unfilled + len(self._open) * self._charge

    @property
    def is_due(self) -> bool:
        if self._large is not None:
            return True
        return self.kind is RegionKind.BROADCAST and self.bytes > self._budget.limit // BROADCAST_SHARE

    def checked(self, frame: Frame) -> Frame:
        """The frame. Raises `UsageError` for one that cannot be taken."""
        if not 0 <= frame.subpartition < len(self._write_order):
            raise UsageError(
                f"there is no subpartition {frame.subpartition}: they are 0 to {len(self._write_order) - 1}"
            )
        if len(frame.memory) > MAX_RECORD_BYTES:
            raise UsageError(f"a frame has at most {MAX_RECORD_BYTES} bytes, not {len(frame.memory)}: cut it")
        try:
            self._layout.payload.count(frame.memory)
        except Malformed as problem:
            raise UsageError(
                f"this partition's frames are {self._layout.payload.kind.name}: {problem.what}"
            ) from None
        return frame

    def room_for(self, piece: Frame) -> bool:
        wanted = self._segments_for(piece)
        while len(self._spare) < wanted:
            if self._budget.would_exceed(self._charge):
                return False
            segment = self._layout.pool.request()
            if segment is None:
                return False
            self._budget.charge(self._charge)
            self._spare.append(segment)
        return True

    def add(self, piece: Frame) -> None:
        if self._segments_for(piece) > len(self._spare):
            self._large = piece
            return
        subpartition = piece.subpartition

        def next_buffer() -> _OpenBuffer:
            self._seal(subpartition)
            return self._begin(subpartition)

        current = self._open.get(subpartition) or self._begin(subpartition)
        last = serialize(piece.memory, current, next_buffer)
        assert isinstance(last, _OpenBuffer)
        last.records += self._layout.payload.count(piece.memory)
        if not last.left:
            self._seal(subpartition)

    def add_event(self, event: SealedBuffer) -> None:
        """Append an event behind what was added before, for every subpartition that reads this."""
        for subpartition in self._write_order:
            self._seal(subpartition)
            self._buffer.append(subpartition, event)

    def drain(self) -> Iterator[Extent]:
        if self._large is not None:
            return self._parts(self._large)
        for subpartition in list(self._open):
            self._seal(subpartition)
        return self._buffer.drain()

    def written(self) -> None:
        self._large = None
        self._give_back()
        self._budget.release(self._unfilled)
        self._unfilled = 0

    def discard(self) -> None:
        self._lent += self._open.values()
        self._give_back()
        self._open, self._large, self._unfilled = {}, None, 0
        self._buffer = DataBuffer(self._write_order, self._budget)

    def _give_back(self) -> None:
        """Recycle all segments but the open ones. The charge of lent ones is the caller's to release."""
        for lent in self._lent:
            lent.recycle()
        self._lent, self._blocks = [], None
        while self._spare:
            self._spare.pop().recycle()
            self._budget.release(self._charge)

    def _segments_for(self, piece: Frame) -> int:
        """How many segments the frame needs beside its subpartition's open buffer."""
        current = self._open.get(piece.subpartition)
        missing = LENGTH_BYTES + len(piece.memory) - (current.left if current else 0)
        return -(-missing // self._layout.buffer_size) if missing > 0 else 0

    def _begin(self, subpartition: int) -> _OpenBuffer:
        opened = _OpenBuffer(self._spare[-1], self._layout.buffer_size)
        self._open[subpartition] = opened
        self._spare.pop()
        return opened

    def _seal(self, subpartition: int) -> None:
        """Put what is open into the data buffer."""
        opened = self._open.get(subpartition)
        if opened is None:
            return
        keep = partial(self._keep, opened)
        payload = opened.content
        sealed = self._layout.payload.compress(payload, opened.records, self._seconds, keep)
        if sealed is None:
            sealed = self._sealed(payload, opened.records)
            self._lend(opened)
        del self._open[subpartition]
        self._append(subpartition, sealed)

    def _keep(self, opened: _OpenBuffer, block: pa.Buffer) -> memoryview:
        """A block of what was in this buffer, in memory that is lent."""
        if self._blocks is None or self._blocks.left < block.size:
            self._lend(opened)
            self._blocks = _Blocks(opened.memory)
        else:
            opened.recycle()
            self._budget.release(self._charge)
        return self._blocks.put(block)

    def _lend(self, opened: _OpenBuffer) -> None:
        self._lent.append(opened)
        self._unfilled += self._charge

    def _append(self, subpartition: int, sealed: SealedBuffer) -> None:
        """Into the data buffer, whose charge takes the place of that much of a segment's."""
        filled = min(sealed.bytes, self._unfilled)
        self._unfilled -= filled
        self._budget.release(filled)
        self._buffer.append(subpartition, sealed)

    def _sealed(self, payload: memoryview, records: int) -> SealedBuffer:
        started = time.perf_counter()
        sealed = seal(payload, len(payload), records=records)
        self._seconds["checksum"] += time.perf_counter() - started
        return sealed

    def _parts(self, large: Frame) -> Iterator[Extent]:
        """The extent of a frame with a region of its own: each buffer is charged when it is given."""
        size = len(large.memory)
        slices = (large.memory[start : start + LARGE_SLICE] for start in range(0, size, LARGE_SLICE))
        left = size + LENGTH_BYTES
        for part in (memoryview(pack_length(size)), *slices):
            left -= len(part)
            records = 0 if left else self._layout.payload.count(large.memory)
            sealed = self._layout.payload.compress(part, records, self._seconds)
            sealed = sealed or self._sealed(part, records)
            self._budget.charge(sealed.bytes)
            yield large.subpartition, [sealed]


class _OpenBuffer:
    """A segment that is being filled, up to ``usable`` bytes, then lent, then recycled."""

    __slots__ = ("_buffer", "_is_home", "left", "memory", "records")

    def __init__(self, buffer: Buffer, usable: int) -> None:
        if usable > buffer.segment.size:
            raise UsageError(
                f"the pool's segments have {buffer.segment.size} bytes, less than the layout's buffer_size"
                f" of {usable}"
            )
        self._buffer = buffer
        self._is_home = False
        # all that is used of it: when what was appended is elsewhere, for something else
        self.memory = buffer.segment.view[:usable]
        self.left = usable
        self.records = 0  # that end in it

    def append(self, data: memoryview) -> int:
        taken = min(len(data), self.left)
        start = self._filled
        self.memory[start : start + taken] = data[:taken]
        self.left -= taken
        return taken

    @property
    def content(self) -> memoryview:
        """What was appended. Not to be used after `recycle`."""
        return self.memory[: self._filled].toreadonly()

    @property
    def _filled(self) -> int:
        return len(self.memory) - self.left

    def recycle(self) -> None:
        """May be called again."""
        if not self._is_home:
            self._is_home = True
            self._buffer.recycle()


class _Blocks:
    """Compressed blocks, one behind the other in the memory of a lent segment."""

    __slots__ = ("_memory", "_position")

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._memory) - self._position

    def put(self, block: pa.Buffer) -> memoryview:
        """Where the block is now. It must not be larger than what is left."""
        start, self._position = self._position, self._position + block.size
        kept = self._memory[start : self._position]
        kept[:] = memoryview(block).cast("B")
        return kept
