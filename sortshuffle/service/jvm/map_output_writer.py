"""`MapOutputWriter`: one map output of a JVM's task, from its first frame to its commit.

    open --add, add, ..--> open --finish--> finished --close--> closed
      \\--close--> closed (no files)      after a call that fails: only close

Rules
* Most frames come in memory that the JVM fills itself (`shared_frames`). A frame that comes through the
  socket is received into a segment of the writer's own pool, which is made for the first such frame. A frame
  of one huge record gets separate memory. Either is free again when `add` returns. So the memory for frames
  is bounded, and a JVM that is faster than the engine waits.
* Records that wait for their region are charged to the engine's memory, which all writers share
  (`SharedBudget`).
* `close` is the last call, also after a failure: it releases memory and deletes unfinished files.

Single-threaded: each connection has its own instance.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.local_buffer_pool import LocalBufferPool
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.memory.shared_budget import SharedBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.service.jvm.outputs import MapOutputs
from sortshuffle.service.jvm.protocol import ID_AND_END_BYTES, WriteRequest, pack_finished
from sortshuffle.service.jvm.small_outputs import MOST_BYTES, SmallOutputRecords, kept_bytes
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.urls import is_url
from sortshuffle.writing.placed_partition import PlacedResultPartition
from sortshuffle.writing.placed_records import PlacedRecords, RecordBytesLayout

# fits any frame that is not one huge record: 4 MiB of records, and 8 bytes for each of 262,144 records
SEGMENT_BYTES = (4 << 20) + ID_AND_END_BYTES * (1 << 18)
SEGMENTS_EACH = 1  # a writer receives one frame at a time
# Bytes per subpartition, before compression, at which a region is large enough: its extents are worth a read
# each. With lineitem in 64 subpartitions, the engine's peak was 172 MiB instead of 228, in the same time,
# while the system had the files in memory. A cold disk seeks more often.
ENOUGH_FOR_A_SUBPARTITION = 512 << 10
LEAST_REGION = 16 << 20  # bytes; applies when there are few subpartitions


@dataclass(frozen=True, slots=True)
class WritingResources:
    """Resources that all writers of the engine share. ``host``: its name. ``segments``: for frames from the
    socket. ``memory``: for records that wait for their region."""

    application: str
    host: str
    outputs: MapOutputs
    segments: NetworkBufferPool
    memory: SharedBudget
    codec: Codec
    codec_level: int


class FrameMemory:
    """Memory for one frame of ``size`` bytes. The caller fills ``view``, and releases the memory."""

    def __init__(self, size: int, pool: LocalBufferPool) -> None:
        self._buffer: Buffer | None = None
        if size <= SEGMENT_BYTES:
            self._buffer = pool.request_blocking()
            self.view = self._buffer.segment.view[:size]
        else:
            self.view = memoryview(bytearray(size))

    def release(self) -> None:
        if self._buffer is not None:
            self._buffer.recycle()


def records_of(frame: memoryview, records: int) -> PlacedRecords:
    """Return the records of a frame: the frame holds ``records`` ids, as many ends, and the bytes."""
    ids = np.frombuffer(frame, np.int32, records)
    ends = np.frombuffer(frame, np.int32, records, 4 * records)
    return PlacedRecords(ids, ends, frame[ID_AND_END_BYTES * records :])


def region_bytes(request: WriteRequest, file: PartitionedFile) -> int | None:
    """Return the size at which a region is written. At a URL that is None: only memory limits a region there,
    because each region costs every reader a request."""
    return None if is_url(file.base) else max(LEAST_REGION, request.subpartitions * ENOUGH_FOR_A_SUBPARTITION)


class MapOutputWriter:
    """Writes one map output. Raises as `MapOutputs.new` does. The caller closes it."""

    def __init__(self, request: WriteRequest, resources: WritingResources) -> None:
        self._request = request
        self._application, self._host = resources.application, resources.host
        self._outputs = resources.outputs
        self._metrics = TaskMetrics()
        header = FileHeader(
            file_id=secrets.token_bytes(16),
            subpartitions=request.subpartitions,
            first_subpartition=0,  # no rotation: one engine reads for all consumers of the host
            codec=resources.codec,
            payload_kind=PayloadKind.RECORD_BYTES,
        )
        self._name = f"map {request.map_index} of shuffle {request.shuffle}"
        self._segments = resources.segments
        self._pool: LocalBufferPool | None = None
        payload = RecordBytesPayload(resources.codec, resources.codec_level)
        with ExitStack() as stack:
            self._memory = resources.memory.open(self._name)
            stack.callback(self._memory.close)
            writer = resources.outputs.new(request.shuffle, request.map_index, request.map_id, header)
            stack.callback(writer.abandon)  # no effect after the partition's own `abandon`
            layout = RecordBytesLayout(payload, request.subpartitions, region_bytes(request, writer.file))
            self._partition = PlacedResultPartition(writer, layout, self._memory, self._metrics)
            stack.callback(self._partition.abandon)  # no effect after `finish`
            self._resources = stack.pop_all()

    def frame_memory(self, size: int) -> FrameMemory:
        """Return ``size`` bytes for a frame's ids, ends and records. Raises `BufferTimeoutError`."""
        if self._pool is None:
            self._pool = self._segments.create_pool(SEGMENTS_EACH, self._name)
            self._resources.callback(self._pool.close)
        return FrameMemory(size, self._pool)

    def add(self, records: PlacedRecords) -> None:
        """Add a frame's records. Their memory may be reused afterwards. Raises `UsageError`,
        `OutOfDiskError`, OSError."""
        self._partition.write(records)

    def finish(self) -> bytes:
        """Complete the files and return the reply for the JVM."""
        only_frame = self._partition.only_frame
        file = self._partition.finish(self._writer())
        sizes = self._partition.subpartition_bytes
        if only_frame is not None and kept_bytes(only_frame.memory.size, len(sizes)) <= MOST_BYTES:
            small = SmallOutputRecords(only_frame.memory, only_frame.bounds[1:], sizes)
            self._outputs.keep_written(file, self._partition.file_id, small)
        return pack_finished(self._partition.file_id, self._metrics.counts["spills"], sizes)

    def close(self) -> None:
        """Release all memory and delete unfinished files. May be called again."""
        self._resources.close()

    def _writer(self) -> WriterInfo:
        request = self._request
        return WriterInfo(
            application=self._application,
            exchange=request.shuffle,
            stage=request.stage,
            map_index=request.map_index,
            attempt=request.map_id,
            host=self._host,
        ).signed()
