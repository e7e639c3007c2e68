"""Input channels: one consumer's view of one map output, and how its extents are fetched and decoded.

    LocalInputChannel    files that this host can open
    StoredInputChannel   storage that every host sees                  (`reading.stored_channel`)
    RemoteInputChannel   behind the shuffle service of another host    (`service.client.remote_input_channel`)

A channel knows its extents, and opens an `ExtentReader` for some of them. Verifying and decoding are the same
for all channels. "Local" means that the data file opens and has the expected id; host names play no part.

The payload knows the content of buffers. It makes a `Decoder` for each extent. The decoder turns each buffer
into one item: for Arrow, a record batch; for opaque frames and pickled chunks, a list of the frames that end
in the buffer, or an event.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa

from sortshuffle.errors import CorruptDataError
from sortshuffle.format.buffer import BUFFER_HEADER_BYTES, StoredBuffer, raw_size
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.malformed import Malformed
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import Seconds, TaskMetrics
from sortshuffle.storage.files.extents import Extent, ExtentPart, ExtentReader
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader


class Decoder(Protocol):
    """Decodes the buffers of one extent, in order. ``records``: number of records so far; None if the payload
    cannot count them. Made by `Payload.decoder`, whose caller closes it.
    """

    @property
    def records(self) -> int | None: ...

    def decode(self, memory: pa.Buffer, buffer: StoredBuffer) -> Any:
        """Return the item of a verified buffer. Raises `Malformed`."""

    def finish(self) -> None:
        """End the extent. Raises `Malformed` if it ends within a record."""

    def close(self) -> None:
        """Release what the decoder holds. May be called again."""


class Payload(Protocol):
    """The kind of content that buffers have."""

    def decoder(self, seconds: Seconds) -> Decoder:
        """Make a decoder for one extent. The decoder adds its times to ``seconds``."""

    def copied(self, raw_bytes: int) -> int:
        """Return the most bytes that decoding an extent holds, beside the stored extent and its
        ``raw_bytes``."""


class InputChannel(Protocol):
    """Extents of one subpartition, or of one region, of one map output, in the order of the file. Plain data:
    the channel may be opened several times, in any thread."""

    @property
    def map_index(self) -> int: ...

    @property
    def path(self) -> str:
        """The path of the data file, for errors."""

    @property
    def writer(self) -> str:
        """A description of the data file's writer, for errors."""

    @property
    def extents(self) -> tuple[Extent, ...]: ...

    @property
    def read_ahead(self) -> int:
        """Bytes that a reader of parts may hold beyond the current part."""

    @property
    def held_parts(self) -> int:
        """The memory of a stream, in parts. 1: only the part in use. 2: the next part is fetched while one is
        used. 3: the next part also needs a copy."""

    def open(self, extents: Sequence[Extent]) -> ExtentReader:
        """Open a reader for these extents of the channel, which must be read in this order. The caller closes
        the reader. Raises `DataLossError`."""


@dataclass(frozen=True, slots=True)
class LocalInputChannel:
    """The `InputChannel` to a map output whose files this process can open.

    ``file_id``: the expected id of the data file. ``key``: decrypts the file.
    """

    file: PartitionedFile
    file_id: bytes
    map_index: int
    writer: str
    extents: tuple[Extent, ...]
    key: EncryptionKey | None = None

    @property
    def path(self) -> str:
        return self.file.data_path

    @property
    def read_ahead(self) -> int:
        return 0

    @property
    def held_parts(self) -> int:
        return 1

    def open(self, extents: Sequence[Extent]) -> ExtentReader:
        return PartitionedFileReader(self.file, self.file_id, self.writer, key=self.key)


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The decoded items of some extents (for Arrow: record batches), and the metrics of the fetch."""

    batches: list[Any]
    metrics: TaskMetrics


class OpenReaders:
    """The readers that a consumer's threads have open. Leaving the context makes all of them give up their
    waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[ExtentReader, None] = {}
        self._given_up = False

    @contextmanager
    def knowing(self, reader: ExtentReader) -> Iterator[None]:
        """Register the reader while the block runs. The caller closes the reader."""
        with self._lock:
            self._readers[reader] = None
            given_up = self._given_up
        try:
            if given_up:
                reader.give_up()
            yield
        finally:
            with self._lock:
                del self._readers[reader]

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._given_up = True
            readers = list(self._readers)
        for reader in readers:
            reader.give_up()


@dataclass(frozen=True, slots=True)
class Fetch:
    """Consecutive extents of one channel that are read together."""

    channel: InputChannel
    extents: tuple[Extent, ...]

    def memory(self, payload: Payload) -> int:
        """Return the most bytes that the fetch holds."""
        return sum(memory_of(extent, payload) for extent in self.extents)

    def run(self, payload: Payload, readers: OpenReaders | None = None) -> FetchResult:
        """Open, read, verify, decompress and decode the extents. Raises `DataLossError` with the place.
        ``readers``: lets another thread give up the fetch."""
        metrics = TaskMetrics()
        batches: list[Any] = []
        with self.channel.open(self.extents) as reader, (readers or OpenReaders()).knowing(reader):
            for extent in self.extents:
                with metrics.step("read"):
                    memory = reader.read_unverified(extent)
                with metrics.step("verify"):
                    part = reader.verified(memory, extent)
                del memory  # encrypted bytes must not stay in memory together with the decrypted bytes
                with closing(_ExtentDecoder(reader, extent, payload, metrics)) as decoder:
                    batches.extend(decoder.decode(part))
                    decoder.finish()
        return FetchResult(batches, metrics)

    def stream(
        self, payload: Payload, part_bytes: int, budget: MemoryBudget, metrics: TaskMetrics
    ) -> Generator[Any, None, None]:
        """Read like `run`, but yield item by item. Holds about ``part_bytes`` of an extent, charged to
        ``budget``, and one item.

        After the last item of each extent, checks the extent's numbers of rows and bytes.
        """
        with self.channel.open(self.extents) as reader, closing(self.parts(reader, part_bytes)) as parts:
            yield from self.items(reader, parts, payload, budget, metrics)

    def parts(self, reader: ExtentReader, part_bytes: int) -> Generator[ExtentPart, None, None]:
        """Yield the parts of all extents, in order. The caller closes the generator before the reader."""
        for extent in self.extents:
            yield from reader.read_parts(extent, part_bytes)

    def items(
        self,
        reader: ExtentReader,
        parts: Iterator[ExtentPart],
        payload: Payload,
        budget: MemoryBudget,
        metrics: TaskMetrics,
        step: str = "read",
    ) -> Generator[Any, None, None]:
        """Yield the items in ``parts``. Each part is charged while it is decoded. ``step``: the metric that
        counts the time of waiting for parts."""
        timed = metrics.timed(parts, step)
        for extent in self.extents:
            with closing(_ExtentDecoder(reader, extent, payload, metrics)) as decoder:
                left = extent.bytes
                while left:
                    part = next(timed)
                    left -= part.bytes
                    size = part.memory.size
                    budget.charge(size)
                    try:
                        yield from decoder.decode(part)
                    finally:
                        budget.release(size)
                decoder.finish()


class _ExtentDecoder:
    """Decodes one extent, and checks its numbers of records and raw bytes against its index entry. Never
    decompresses more than the entry says. The caller closes it."""

    def __init__(self, reader: ExtentReader, extent: Extent, payload: Payload, metrics: TaskMetrics) -> None:
        self._reader = reader
        self._extent = extent
        self._decoder = payload.decoder(metrics.seconds)
        self._metrics = metrics
        self._part_offset = extent.offset
        self._offset = extent.offset  # where the current buffer begins
        self._raw_bytes = 0

    def decode(self, part: ExtentPart) -> Iterator[Any]:
        """Yield the items of a part. Each is decoded when it is taken."""
        for buffer in part.buffers:
            # The buffer is verified and decrypted
            self._raw_bytes += raw_size(memoryview(part.memory), buffer) if buffer.compressed else buffer.size
            if self._raw_bytes > self._extent.raw_bytes:
                raise self._other_sums(f"at least {self._raw_bytes} bytes")
            self._offset = self._part_offset + buffer.start - BUFFER_HEADER_BYTES
            try:
                item = self._decoder.decode(part.memory, buffer)
            except Malformed as problem:
                raise self._corrupt(problem) from problem
            yield item
        self._part_offset += part.bytes
        self._offset = self._part_offset

    def finish(self) -> None:
        """Raise `CorruptDataError` if the numbers of records or bytes differ from the extent's entry, or if
        the extent ends within a record."""
        extent, decoder = self._extent, self._decoder
        try:
            decoder.finish()
        except Malformed as problem:
            raise self._corrupt(problem) from problem
        records = extent.records if decoder.records is None else decoder.records
        if (records, self._raw_bytes) != (extent.records, extent.raw_bytes):
            raise self._other_sums(f"{records} rows in {self._raw_bytes} bytes")
        self._metrics.add(
            rows_read=extent.records,
            bytes_read=extent.bytes,
            raw_bytes_read=extent.raw_bytes,
            buffers_read=extent.buffers,
            extents_read=1,
        )

    def close(self) -> None:
        self._decoder.close()

    def _other_sums(self, found: str) -> CorruptDataError:
        extent = self._extent
        return CorruptDataError(
            self._reader.place(extent.offset, extent),
            "the extent holds another number of rows or raw bytes than its entry says",
            expected=f"{extent.records} rows in {extent.raw_bytes} bytes",
            found=found,
        )

    def _corrupt(self, problem: Malformed) -> CorruptDataError:
        place = self._reader.place(self._offset, self._extent)
        return CorruptDataError(place, problem.what, expected=problem.expected, found=problem.found)


def memory_of(extent: Extent, payload: Payload) -> int:
    """Return the most bytes that an extent takes: stored, decompressed, and the payload's copies."""
    return extent.bytes + extent.raw_bytes + payload.copied(extent.raw_bytes)
