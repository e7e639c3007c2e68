"""`PlacedRecordEncoder`: turns frames of placed records into the extents of a region.

Used by the shuffle manager's engine (`service.jvm`), through `PlacedResultPartition`. *Placed* records are
serialized records with a subpartition chosen by the JVM.

    add     a frame (ids, ends, bytes)  -> clustered by subpartition while it is in cache, and held
    drain   each subpartition           -> its bytes of all frames, joined into messages, compressed
            if there is only one frame  -> runs of small subpartitions are sealed together, uncompressed

A record's bytes are moved twice: into the clustered frame, and into a message. Records are not decoded: only
the serializer that wrote them knows their form.

Rules
* A clustered frame owns its memory. The memory of the original frame may be used again when `add` returns.
* Within a subpartition, records keep their order of arrival.
* Everything held is charged to the budget. `room_for` says in advance whether a frame fits together with the
  memory that the next drain takes. Clustering briefly takes some 20 bytes a record, which are not charged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.errors import UsageError
from sortshuffle.format.buffer import sealed_size
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.extent_run import ExtentRun, seal_run
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.partitioner.selector import id_dtype
from sortshuffle.payload.record_bytes import LEAST_COMPRESSED, MOST_PINNED, RecordBytesPayload
from sortshuffle.writing.data_buffer import Drained, Extent, write_batch

# The most bytes of records in one buffer: enough to make a call's cost negligible, few enough for the cache
MESSAGE_BYTES = MIB
MESSAGE_SHARE = 16  # a message is at most 1/MESSAGE_SHARE of the budget
# A message exists up to three times: its joined bytes, the compressor's output, which has memory for bytes
# that cannot be compressed, and a copy of its block if that is at most half as large
COPIES_OF_A_MESSAGE = 3
MUCH_TO_COPY = 64 << 10  # bytes; copying less takes 5 us, for which other threads may wait
SUBPARTITIONS_AT_ONCE = 1024  # have their bounds as Python numbers at a time, some 40 bytes for each frame
# Fewer neighbours than this are not worth sealing together: NumPy's calls take as long as sealing each alone
LEAST_RUN = 8
_WORD = 8

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlacedRecords:
    """Records and their subpartitions. ``ids``: each record's subpartition, int32, shape (records,).
    ``ends``: where each record's bytes end in ``data``, int32, shape (records,). The first begins at 0."""

    ids: Int32s
    ends: Int32s
    data: BytesLike

    def check(self, subpartitions: int) -> None:
        """Raise `UsageError` unless the arrays fit together and all ids are subpartitions."""
        ids, ends = self.ids, self.ends
        if not len(ids) or len(ids) != len(ends):
            raise UsageError(f"{len(ids)} ids for {len(ends)} records: one for each is needed")
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= subpartitions:
            wrong = lowest if lowest < 0 else highest
            raise UsageError(
                f"a record for subpartition {wrong} of {subpartitions}, which are counted from 0"
            )
        if int(ends[0]) < 0 or int(ends[-1]) != len(self.data) or bool((ends[1:] < ends[:-1]).any()):
            raise UsageError(f"the ends of {len(ends)} records do not cut their {len(self.data)} bytes")


@dataclass(frozen=True, slots=True)
class RecordBytesLayout:
    """How placed records become extents. ``region_bytes``: a region with that many uncompressed bytes takes
    no more, even if there is memory; None if only memory limits a region."""

    payload: RecordBytesPayload
    subpartitions: int
    region_bytes: int | None = None


@dataclass(frozen=True)
class ClusteredFrame:
    """A frame's records ordered by subpartition: subpartition s has the bytes ``bounds[s]:bounds[s + 1]`` of
    ``memory``. ``bounds``: int64, shape (subpartitions + 1,)."""

    memory: pa.Buffer
    bounds: Int64s

    @cached_property
    def view(self) -> memoryview:
        return memoryview(self.memory)

    @property
    def bytes(self) -> int:
        return int(self.memory.size + self.bounds.nbytes)


class PlacedRecordEncoder:
    """The `Intake` of placed records. ``first``: the subpartition with which the write order begins."""

    kind = RegionKind.UNICAST
    is_due = False

    def __init__(
        self,
        layout: RecordBytesLayout,
        first: int,
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self._payload = layout.payload
        self._subpartitions = layout.subpartitions
        self._ids = id_dtype(layout.subpartitions)
        self._order = (np.arange(layout.subpartitions) + first) % layout.subpartitions
        self._budget = budget
        self._metrics = metrics
        self._message_bytes = max(1, min(MESSAGE_BYTES, budget.least // MESSAGE_SHARE))
        self._write_batch = write_batch(budget.least)
        self._region_bytes = layout.region_bytes or sys.maxsize
        self._bounds_bytes = _WORD * (layout.subpartitions + 1)  # of a clustered frame
        self._frames: list[ClusteredFrame] = []
        self._records = np.zeros(layout.subpartitions, np.int64)
        self.bytes = 0

    def room_for(self, piece: PlacedRecords) -> bool:
        """Return whether ``piece`` fits together with the memory that a drain takes: for one message, and for
        blocks that wait to be written, which keep up to `MOST_PINNED` times their size alive."""
        if not self._frames:
            return True
        drained = COPIES_OF_A_MESSAGE * self._message_bytes + MOST_PINNED * self._write_batch
        held = len(piece.data) + self._bounds_bytes
        return self.bytes < self._region_bytes and not self._budget.would_exceed(held + drained)

    @property
    def only_frame(self) -> ClusteredFrame | None:
        """The frame held, if there is exactly one; else None."""
        return self._frames[0] if len(self._frames) == 1 else None

    def add(self, piece: PlacedRecords) -> None:
        frame = self._clustered(piece)
        self._frames.append(frame)
        self.bytes += frame.bytes
        self._budget.charge(frame.bytes)

    def drain(self) -> Iterator[Drained]:
        frames, self._frames = self._frames, []
        held, self.bytes = self.bytes, 0
        records, self._records = self._records, np.zeros_like(self._records)
        filled = self._order[records[self._order] > 0]
        if len(frames) == 1:
            yield from self._drain_one_frame(frames[0], filled, records)
        else:
            yield from self._extents_of(frames, filled, records)
        self._budget.release(held)

    def _drain_one_frame(self, frame: ClusteredFrame, filled: Int64s, records: Int64s) -> Iterator[Drained]:
        """Yield neighbours that are small as one run, and the extents of other subpartitions one by one."""
        sizes = frame.bounds[filled + 1] - frame.bounds[filled]
        done = 0
        for start, end in self._small_runs(filled, sizes):
            yield from self._extents_of([frame], filled[done:start], records)
            yield self._run(frame, filled[start:end], sizes[start:end], records)
            done = end
        yield from self._extents_of([frame], filled[done:], records)

    def _small_runs(self, filled: Int64s, sizes: Int64s) -> Iterator[tuple[int, int]]:
        """Yield the runs of subpartitions to seal together, as ranges of positions in ``filled``."""
        if len(filled) < LEAST_RUN:
            return
        small = np.flatnonzero(sizes < LEAST_COMPRESSED)
        if not len(small):
            return
        most = max(LEAST_RUN, self._write_batch // sealed_size(LEAST_COMPRESSED))
        # A stretch ends where a larger subpartition comes next, and where the write order wraps around
        cuts = np.flatnonzero((np.diff(small) > 1) | (np.diff(filled[small]) < 0)) + 1
        for stretch in np.split(small, cuts):
            for start in range(int(stretch[0]), int(stretch[-1]) + 1, most):
                end = min(start + most, int(stretch[-1]) + 1)
                if end - start >= LEAST_RUN:
                    yield start, end

    def _run(self, frame: ClusteredFrame, subpartitions: Int64s, sizes: Int64s, records: Int64s) -> ExtentRun:
        start, end = int(frame.bounds[subpartitions[0]]), int(frame.bounds[subpartitions[-1] + 1])
        with self._metrics.step("checksum"):
            run = seal_run(frame.view[start:end], subpartitions, sizes, records[subpartitions])
        self._budget.charge(int(run.bytes.sum()))
        return run

    def _extents_of(
        self, frames: list[ClusteredFrame], subpartitions: Int64s, records: Int64s
    ) -> Iterator[Extent]:
        views = [frame.view for frame in frames]
        for at in range(0, len(subpartitions), SUBPARTITIONS_AT_ONCE):
            block = subpartitions[at : at + SUBPARTITIONS_AT_ONCE]
            starts = zip(*(frame.bounds[block].tolist() for frame in frames), strict=True)
            ends = zip(*(frame.bounds[block + 1].tolist() for frame in frames), strict=True)
            counts = records[block].tolist()
            for subpartition, start, end, count in zip(block.tolist(), starts, ends, counts, strict=True):
                # A loop over pieces, not over records: a frame has one piece for each subpartition
                pieces = [view[s:e] for view, s, e in zip(views, start, end, strict=True) if s < e]
                yield from self._extent(subpartition, pieces, count)

    def written(self) -> None:
        pass

    def discard(self) -> None:
        self._frames.clear()
        self.bytes = 0

    def _clustered(self, records: PlacedRecords) -> ClusteredFrame:
        ids = records.ids
        counts = np.bincount(ids, minlength=self._subpartitions)
        starts = np.concatenate((_FIRST_START, records.ends))
        if bool((ids[1:] >= ids[:-1]).all()):  # for example if all go to one subpartition
            with self._metrics.step("take"):
                memory = _copy(records.data)
        else:
            memory, starts = self._sort_by_subpartition(records, starts)
        first_records = np.concatenate((_FIRST_RECORD, np.cumsum(counts)))
        self._records += counts
        return ClusteredFrame(memory, starts[first_records].astype(np.int64))

    def _sort_by_subpartition(self, records: PlacedRecords, starts: Int32s) -> tuple[pa.Buffer, Int32s]:
        """Return the bytes ordered by subpartition, and each record's start there. ``starts``: in
        ``records.data``."""
        with self._metrics.step("sort"):
            narrow = records.ids.astype(self._ids)  # NumPy sorts narrow integers by radix
            order = np.argsort(narrow, kind="stable")
        with self._metrics.step("take"):
            buffers = [None, pa.py_buffer(starts), pa.py_buffer(records.data)]
            column = pa.Array.from_buffers(pa.binary(), len(order), buffers)
            _, offsets, memory = column.take(_indices(order)).buffers()
            return memory or _NO_MEMORY, np.frombuffer(offsets, np.int32)

    def _extent(self, subpartition: int, pieces: list[memoryview], records: int) -> Iterator[Extent]:
        """Yield one extent, in parts of one message. The first message counts all the records."""
        for message in _messages(pieces, self._message_bytes):
            buffer = self._payload.seal(message, records, self._metrics.seconds)
            self._budget.charge(buffer.bytes)
            yield subpartition, [buffer]
            records = 0


_FIRST_START = np.zeros(1, np.int32)
_FIRST_RECORD = np.zeros(1, np.int64)
_NO_MEMORY = pa.py_buffer(b"")


def _indices(order: Int64s) -> pa.Array:
    """Return ``pa.array(order)``, without its import of pandas, which takes 0.2 s in the first map task."""
    return pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])


def _copy(data: BytesLike) -> pa.Buffer:
    """Copy ``data``: with NumPy if there is much, because NumPy releases Python's lock while it copies."""
    much = len(data) >= MUCH_TO_COPY
    return pa.py_buffer(np.frombuffer(data, np.uint8).copy() if much else bytes(data))


def _messages(pieces: list[memoryview], most: int) -> Iterator[BytesLike]:
    """Join the pieces into messages of at most ``most`` bytes; at least one message, which may be empty."""
    if sum(map(len, pieces)) <= most:
        yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return
    message: list[memoryview] = []
    size = 0
    for piece in pieces:
        while size + len(piece) > most:
            cut = most - size
            message.append(piece[:cut])
            yield b"".join(message)
            message, size, piece = [], 0, piece[cut:]
        message.append(piece)
        size += len(piece)
    yield b"".join(message)
