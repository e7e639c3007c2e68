"""`FrameEncoder`: collects frames, byte strings for given subpartitions, in buffers of a region.

Used by `ShuffleRDD` and `engine.Output`, whose frames are pickled chunks.

    frame --copied once--> open buffer of its subpartition --full, or drained--> sealed --> region

Each subpartition has at most one open buffer: a segment of the partition's `LocalBufferPool`. A full buffer
is sealed while it is in cache. If it is not compressed, it is sealed in place, and its segment is *lent*
until the region is written. If it is compressed, the block is appended to a lent segment that collects
blocks, and the buffer's segment is free at once. If a block does not fit there, the buffer's segment collects
it and the next ones.

Rules
* Before any of a frame is written, the encoder must hold all the segments that it needs beyond the rest of
  the open buffer. Sealing needs no segment. So no frame spans regions.
* All data held is in segments, and each segment is charged to the budget in full. So a region is at most
  ``budget.limit`` bytes, or as many segments as the pool has. Compressed blocks are in segments too: kept
  elsewhere, they would need up to twice the memory.
* A frame that does not fit an empty encoder becomes a separate region. Its pieces are sealed in the caller's
  memory, without a copy, while the region is written.
* Every segment returns to the pool, through `written` or `discard`, even if a call fails in between. So a
  segment is removed from the places that `discard` searches only after it was stored in another such place or
  was recycled. (`_OpenBuffer.recycle` may be called again.)
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

LARGE_SLICE = MIB  # bytes of a buffer, and so verified at a time, if a frame is a separate region
PAGE = 4 * KIB
# The reader copies a frame that was cut once more. Frames of 64 KiB on one core: 2 GB/s read with segments of
# 32 KiB, 5 with 128, 6 with 256, 7.5 with 512; writing is no quicker from 128 on
MOST_SEGMENT = 256 * KIB
SEGMENTS_PER_SUBPARTITION = 4  # so that a region has mostly full buffers, not open ones that were cut short


def segment_bytes(subpartitions: int, memory: int) -> int:
    """Return the size of segments: whole pages, at least one, and so few that ``memory`` holds several
    segments for each subpartition if it can."""
    wanted = memory // (SEGMENTS_PER_SUBPARTITION * subpartitions)
    return max(PAGE, min(MOST_SEGMENT, wanted // PAGE * PAGE))


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """How frames become extents.

    ``pool``: owned by the partition, which reserves its guaranteed segments at set-up and closes it at the
    end. ``buffer_size``: bytes of a segment that are used, from 1 to its size.
    """

    payload: FramesPayload
    pool: LocalBufferPool
    buffer_size: int

    def __post_init__(self) -> None:
        if self.buffer_size < 1:
            raise UsageError(f"a frame layout's buffer_size must be at least 1 byte, not {self.buffer_size}")


def frame_layout(payload: FramesPayload, subpartitions: int, memory: int, opened: ExitStack) -> FrameLayout:
    """Allocate ``memory`` bytes of segments, and return the layout of a partition that owns them. ``opened``:
    frees the segments, after the partition. Raises MemoryError."""
    size = segment_bytes(subpartitions, memory)
    segments = NetworkBufferPool(memory // size, size, option=f"{PREFIX}memory")
    opened.callback(segments.destroy)
    return FrameLayout(payload, segments.create_pool(segments.total), size)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame for one subpartition. A frame for all subpartitions has 0."""

    memory: memoryview
    subpartition: int

    @staticmethod
    def of(data: BytesLike, subpartition: int) -> Frame:
        view = memoryview(data)
        # An empty view cannot be cast
        return Frame(view.cast("B") if view.nbytes else memoryview(b""), subpartition)


class FrameEncoder:
    """The `Intake` of frames for ``write_order``'s subpartitions, ``[0]`` for broadcast frames."""

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
        # The charge of a segment is what a full one takes in the file, so that sealing never charges more
        self._charge = sealed_size(layout.buffer_size)
        self._buffer = DataBuffer(write_order, budget)
        self._open: dict[int, _OpenBuffer] = {}
        self._spare: list[Buffer] = []  # segments in hand for the next frame
        self._lent: list[_OpenBuffer] = []  # until the region is written
        self._unfilled = 0  # the charge of lent segments, less the charges of the sealed buffers in them
        self._blocks: _Blocks | None = None  # the memory of a lent segment, for compressed blocks
        self._large: Frame | None = None  # the frame that is the next region by itself

    @property
    def bytes(self) -> int:
        return self._buffer.bytes + self._unfilled + len(self._open) * self._charge

    @property
    def is_due(self) -> bool:
        if self._large is not None:
            return True
        return self.kind is RegionKind.BROADCAST and self.bytes > self._budget.limit // BROADCAST_SHARE

    def checked(self, frame: Frame) -> Frame:
        """Return the frame. Raises `UsageError` if the encoder cannot take it."""
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
        """Append an event to every subpartition, after what was added before."""
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
        """Recycle all segments but the open ones. The caller releases the charge of lent segments."""
        for lent in self._lent:
            lent.recycle()
        self._lent, self._blocks = [], None
        while self._spare:
            self._spare.pop().recycle()
            self._budget.release(self._charge)

    def _segments_for(self, piece: Frame) -> int:
        """Return how many segments the frame needs beyond its subpartition's open buffer."""
        current = self._open.get(piece.subpartition)
        missing = LENGTH_BYTES + len(piece.memory) - (current.left if current else 0)
        return -(-missing // self._layout.buffer_size) if missing > 0 else 0

    def _begin(self, subpartition: int) -> _OpenBuffer:
        opened = _OpenBuffer(self._spare[-1], self._layout.buffer_size)
        self._open[subpartition] = opened
        self._spare.pop()
        return opened

    def _seal(self, subpartition: int) -> None:
        """Move the subpartition's open buffer, if there is one, into the data buffer."""
        opened = self._open.get(subpartition)
        if opened is None:
            return
        keep = partial(self._keep, opened)
        payload = opened.content
        sealed = self._layout.payload.compress(payload, opened.records, self._seconds, keep)
        if sealed is None:
            sealed = self._seal_plain(payload, opened.records)
            self._lend(opened)
        del self._open[subpartition]
        self._append(subpartition, sealed)

    def _keep(self, opened: _OpenBuffer, block: pa.Buffer) -> memoryview:
        """Copy ``block``, the compressed content of ``opened``, into a lent segment. Returns where it is."""
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
        """Append to the data buffer. Its charge replaces the same amount of the lent segments' charge."""
        filled = min(sealed.bytes, self._unfilled)
        self._unfilled -= filled
        self._budget.release(filled)
        self._buffer.append(subpartition, sealed)

    def _seal_plain(self, payload: memoryview, records: int) -> SealedBuffer:
        started = time.perf_counter()
        sealed = seal(payload, len(payload), records=records)
        self._seconds["checksum"] += time.perf_counter() - started
        return sealed

    def _parts(self, large: Frame) -> Iterator[Extent]:
        """Yield the extent of a frame that is a separate region, buffer by buffer, charging each."""
        size = len(large.memory)
        slices = (large.memory[start : start + LARGE_SLICE] for start in range(0, size, LARGE_SLICE))
        left = size + LENGTH_BYTES
        for part in (memoryview(pack_length(size)), *slices):
            left -= len(part)
            records = 0 if left else self._layout.payload.count(large.memory)
            sealed = self._layout.payload.compress(part, records, self._seconds)
            sealed = sealed or self._seal_plain(part, records)
            self._budget.charge(sealed.bytes)
            yield large.subpartition, [sealed]


class _OpenBuffer:
    """A segment that is filled up to ``usable`` bytes, then lent, then recycled."""

    __slots__ = ("_buffer", "_recycled", "left", "memory", "records")

    def __init__(self, buffer: Buffer, usable: int) -> None:
        if usable > buffer.segment.size:
            raise UsageError(
                f"the pool's segments have {buffer.segment.size} bytes, less than the layout's buffer_size"
                f" of {usable}"
            )
        self._buffer = buffer
        self._recycled = False
        self.memory = buffer.segment.view[:usable]  # once the content has been compressed, free for blocks
        self.left = usable
        self.records = 0  # number of records that end in this buffer

    def append(self, data: memoryview) -> int:
        taken = min(len(data), self.left)
        start = self._filled
        self.memory[start : start + taken] = data[:taken]
        self.left -= taken
        return taken

    @property
    def content(self) -> memoryview:
        """The bytes appended so far. Must not be used after `recycle`."""
        return self.memory[: self._filled].toreadonly()

    @property
    def _filled(self) -> int:
        return len(self.memory) - self.left

    def recycle(self) -> None:
        """May be called again."""
        if not self._recycled:
            self._recycled = True
            self._buffer.recycle()


class _Blocks:
    """Stores compressed blocks one after another in the memory of a lent segment."""

    __slots__ = ("_memory", "_position")

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._memory) - self._position

    def put(self, block: pa.Buffer) -> memoryview:
        """Copy the block, which must not be larger than `left`. Returns where it is now."""
        start, self._position = self._position, self._position + block.size
        kept = self._memory[start : self._position]
        kept[:] = memoryview(block).cast("B")
        return kept
