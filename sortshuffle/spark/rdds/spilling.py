"""Files of records that a task writes and reads back itself: sorted runs, buckets of keys, long groups.

    writing --write--> writing --finish--> reading, part by part --last part gone--> freed
      a call fails, or the context is left: deleted

A `RecordSpillFile` is a partitioned file of pickled chunks, one per buffer. Each call of `write` appends a
region. As with the runs of a merge of rows (`reading.spill`), `finish` removes the names of the file, and the
system frees it with its descriptor, however the process ends.

Each `SpilledPart` keeps the file open, so that groups can be read as long as the user keeps them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, TypeAlias

from sortshuffle.errors import CorruptDataError, Place
from sortshuffle.format.buffer import SealedBuffer, seal
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import FileHeader, PayloadKind
from sortshuffle.format.index import Index, WriterInfo
from sortshuffle.format.malformed import Malformed
from sortshuffle.metrics import Seconds, TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.pickled import Chunk, Pairs, PickledPayload
from sortshuffle.spark.rdds.by_value import pack_any, pack_any_pairs
from sortshuffle.storage.files.extents import Extent, extent_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, open_unlinked
from sortshuffle.storage.writer import PartitionedFileWriter

NewFile: TypeAlias = Callable[[FileHeader], PartitionedFileWriter]
"""Makes a file under a new name, in a directory that has room."""

FIRST_CHUNK = 64  # records in the first chunk, when their size is not known yet
MOST_IN_CHUNK = 4096
PART_BYTES = 64 * KIB  # bytes to read at a time; a larger chunk is read whole


class RecordSpillFile:
    """Writes one spill file. Owns its writer; leaving the context without `finish()` deletes the file.

    ``chunk_bytes``: approximate bytes of a pickled chunk.
    """

    def __init__(
        self,
        new_file: NewFile,
        payload: PickledPayload,
        subpartitions: int,
        chunk_bytes: int,
        metrics: TaskMetrics,
    ) -> None:
        header = FileHeader(
            file_id=secrets.token_bytes(16),
            subpartitions=subpartitions,
            first_subpartition=0,
            codec=payload.codec,
            payload_kind=PayloadKind.PICKLE,
        )
        self._payload = payload
        self._chunk_bytes = chunk_bytes
        self._metrics = metrics
        self._in_chunk = FIRST_CHUNK
        self._reader = _Reader(payload, metrics)
        self._parts: list[SpilledPart] = []
        self._writer = new_file(header)

    def write(self, chunks: Iterable[tuple[int, Chunk]]) -> None:
        """Append a region. The chunks must ascend by subpartition, and may be of any size."""
        with self._metrics.step("spill"):
            self._writer.start_region()
            for subpartition, chunk in chunks:
                self._writer.write_extents([(subpartition, list(self._buffers(chunk)))])
            self._writer.finish_region()

    def part(self) -> SpilledPart:
        """Return the first subpartition of the last region, which can be read once the file is finished."""
        part = SpilledPart(self._reader, self._writer.regions - 1)
        self._parts.append(part)
        return part

    def finish(self) -> list[list[SpilledPart]]:
        """Complete the file. Return the parts of each subpartition, region by region."""
        with self._metrics.step("spill"):
            writer = self._writer
            index = self._reader.open(writer.finish(WriterInfo()), writer.header.file_id, writer.key)
        self._metrics.add(bytes_spilled=self._writer.data_bytes)
        for part in self._parts:
            part.extent = extent_of(index.entries[part.region][0], part.region, 0)
        return [
            [
                SpilledPart(self._reader, region, extent_of(entry, region, subpartition))
                for region, entry in enumerate(index.entries[:, subpartition])
                if entry["bytes"]
            ]
            for subpartition in range(self._writer.header.subpartitions)
        ]

    def __enter__(self) -> RecordSpillFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.abandon()

    def _buffers(self, chunk: Chunk) -> Iterator[SealedBuffer]:
        seconds: Seconds = TaskMetrics().seconds  # not used, because all this time is of the step spill
        for part in _cut(chunk, lambda: self._in_chunk):
            packed = pack_any_pairs(part) if isinstance(part, Pairs) else pack_any(part)
            self._in_chunk = max(1, min(MOST_IN_CHUNK, self._chunk_bytes * len(part) // len(packed)))
            sealed = self._payload.compress(memoryview(packed), len(part), seconds)
            yield sealed or seal(packed, len(packed), records=len(part))


class SpilledPart:
    """One extent of a finished file."""

    __slots__ = ("_reader", "extent", "region")

    def __init__(self, reader: _Reader, region: int, extent: Extent | None = None) -> None:
        self._reader = reader
        self.region = region
        self.extent = extent

    def chunks(self) -> Iterator[Chunk]:
        """Read the chunks in the order in which they were written."""
        return map(self._reader.unpacked, self.packed())

    def packed(self) -> Iterator[memoryview]:
        """Read the same chunks without unpickling them; each has separate memory."""
        assert self.extent is not None, "read before its file was finished"
        return self._reader.packed(self.extent)


class _Reader:
    """The file that its parts share. It is closed when the last part is gone."""

    def __init__(self, payload: PickledPayload, metrics: TaskMetrics) -> None:
        self._payload = payload
        self._metrics = metrics
        self._file: PartitionedFileReader | None = None

    def open(self, file: PartitionedFile, file_id: bytes, key: EncryptionKey | None) -> Index:
        """Open the finished file, delete its names, and return its index."""
        index, self._file = open_unlinked(file, file_id, "this task's own spill", key)
        return index

    def packed(self, extent: Extent) -> Iterator[memoryview]:
        assert self._file is not None
        for part in self._metrics.timed(self._file.read_parts(extent, PART_BYTES), "spill"):
            for buffer in part.buffers:
                with self._file.damage(extent.offset, extent):
                    yield self._payload.decompress(part.memory, buffer)

    def unpacked(self, packed: memoryview) -> Chunk:
        try:
            with self._metrics.step("spill"):
                return self._payload.records(packed)
        except Malformed as problem:
            assert self._file is not None
            place = Place(self._file.file.data_path)
            raise CorruptDataError(
                place, problem.what, expected=problem.expected, found=problem.found
            ) from None

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


def _cut(chunk: Chunk, most: Callable[[], int]) -> Iterator[Chunk]:
    """Cut a chunk into pieces of at most ``most()`` records, which is called again for each piece."""
    start = 0
    values_start = 0
    count = len(chunk)
    while start < count:
        stop = start + most()
        if not isinstance(chunk, Pairs):
            yield chunk if stop >= count and not start else chunk[start:stop]
        elif chunk.counts is None:
            yield Pairs(chunk.keys[start:stop], chunk.values[start:stop], chunk.combined)
        else:
            counts = chunk.counts[start:stop]
            values_stop = values_start + sum(counts)
            yield Pairs(chunk.keys[start:stop], chunk.values[values_start:values_stop], counts=counts)
            values_start = values_stop
        start = stop


def batches(records: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of ``size`` records; the last list may be shorter."""
    source = iter(records)
    return iter(lambda: list(islice(source, size)), [])
