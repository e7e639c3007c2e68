"""`PartitionedFileWriter`: appends regions to a data file, and their entries to an index file.

    created --start_region--> in a region --finish_region--> between regions --finish--> finished
       a call that fails --> failed; only abandon is allowed, because a placed extent may be half written
       any state --abandon--> abandoned (both files deleted)

Rules
* The last call is `finish()` or `abandon()`. As a context manager, the writer abandons on an exception.
* A subpartition's buffers in a region come together, in one call or several: coming back to a subpartition
  raises `StateError`.
* Subpartitions come in the file's order (`write_order`). Their offsets are computed when the region ends. An
  empty one gets the offset at which it would begin.
* A `NewPair` takes the bytes: files of this host (`storage.files.local_pair`) or, if the base path is a URL,
  objects of a store (`storage.stored.stored_pair`). Neither file gets its name before `finish()`.
* With a key, payloads are encrypted as they are appended: each is bound to its place, which is not known
  earlier (`format.encryption`). At most `ENCRYPTED_AT_ONCE` and a buffer, or one run, is encrypted at a time.
* A region is one gathered append (several, beyond `PIECES_AT_ONCE`). The last region's entries and the end of
  the index are one write.
* No fsync: like Spark's own shuffle files, these need not survive a crash of the machine, and checksums find
  damage.

Single-threaded. Owns the new pair. Does not own the buffers: they may be freed when a call returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from types import TracebackType
from typing import Protocol

import numpy as np
import xxhash

from sortshuffle.errors import StateError
from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.checksum import BytesLike, checksum_of_checksums
from sortshuffle.format.encryption import BufferPlace, EncryptionKey, FileCipher, encrypt_buffer, encrypt_run
from sortshuffle.format.extent_run import ExtentRun
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, INDEX_MAGIC, FileHeader
from sortshuffle.format.index import ENTRY, Entries, RegionKind, WriterInfo, pack_tail
from sortshuffle.options import MIB
from sortshuffle.storage.files.local_pair import IOV_MAX, LocalPair
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.urls import is_url, mounted_file
from sortshuffle.storage.stored.stored_pair import StoredPair

PIECES_AT_ONCE = IOV_MAX  # most pieces for one append, as one write to a local file takes no more
_PIECES_PER_BUFFER = 3
# Bytes of ciphertext that may be in memory, in addition to the plain buffers, until they are appended. An
# append of that size takes far longer than its system call
ENCRYPTED_AT_ONCE = 8 * MIB


class NewPair(Protocol):
    """The two files of a result partition while they are written. The last call is `commit` or `discard`;
    after a `commit` that fails it is `discard`."""

    def append_data(self, pieces: Sequence[BytesLike]) -> None: ...

    def append_index(self, data: bytes) -> None: ...

    def commit(self) -> None:
        """Give both files their names, the index last."""

    def discard(self) -> None:
        """Delete both files."""


class _State(Enum):
    BETWEEN_REGIONS = "between regions"
    IN_REGION = "in a region"
    FAILED = "half written after a failed call"
    FINISHED = "finished"
    ABANDONED = "abandoned"


@dataclass(slots=True)
class _OpenExtent:
    """The values of an index entry while buffers are appended to its extent."""

    subpartition: int
    bytes: int = 0
    raw_bytes: int = 0
    records: int = 0
    checksums: list[int] = field(default_factory=list)

    def add(self, buffer: SealedBuffer) -> None:
        self.bytes += buffer.bytes
        self.raw_bytes += buffer.raw_bytes
        self.records += buffer.records
        self.checksums.append(buffer.checksum)

    def entry(self) -> tuple[int, ...]:
        """Return the fields of `ENTRY`, with 0 for the offset."""
        digest = checksum_of_checksums(self.checksums)
        return (0, self.bytes, self.raw_bytes, self.records, digest, len(self.checksums), 0)


class PartitionedFileWriter:
    """Writes one result partition. Raises `OutOfDiskError` if the disk is full, `StateError` if called out of
    order, FileExistsError if this attempt's file exists already (a store is not asked), OSError with the URL
    if a store fails.

    ``makes_directory``: make the directory, if all hosts have mounted it. Otherwise, and on a disk of this
    host, a missing directory is a FileNotFoundError. ``key``: the application's, if its files are encrypted.
    """

    def __init__(
        self,
        file: PartitionedFile,
        header: FileHeader,
        makes_directory: bool = True,
        key: EncryptionKey | None = None,
    ) -> None:
        self.file = file
        self.key = key
        self._cipher: FileCipher | None = None
        if key is not None:
            self._cipher = key.of_file(header.file_id)
            header = replace(header, key_check=self._cipher.check)
        self.header = header
        self.regions = 0
        self.data_bytes = HEADER_BYTES
        self.records = 0
        self.buffers = 0
        self._kinds: list[RegionKind] = []
        self._entries: Entries = np.empty(0, ENTRY)
        self._region_start = HEADER_BYTES
        self._written = -1  # position in the write order of this region's last subpartition
        self._extent: _OpenExtent | None = None  # its extent, which may grow
        self._index_digest = xxhash.xxh3_64()
        self._index_bytes = 0
        self._index: list[bytes] = []  # pieces for the next write to the index file
        self._state = _State.BETWEEN_REGIONS
        self._add_to_index(header.pack(INDEX_MAGIC))
        self._pair = _new_pair(file, makes_directory)
        try:
            self._pair.append_data([header.pack(DATA_MAGIC)])
        except BaseException:
            self.abandon()
            raise

    @property
    def write_order(self) -> list[int]:
        """Subpartitions in the order in which their extents must come."""
        first, count = self.header.first_subpartition, self.header.subpartitions
        return [*range(first, count), *range(first)]

    def start_region(self, kind: RegionKind = RegionKind.UNICAST) -> None:
        """Begin a region. In a broadcast region the only extent is written as subpartition 0's."""
        self._expect(_State.BETWEEN_REGIONS)
        self._entries = np.zeros(self.header.subpartitions, ENTRY)
        self._region_start = self.data_bytes
        self._kinds.append(kind)
        self._written = -1
        self._state = _State.IN_REGION

    def write_extents(self, extents: Sequence[tuple[int, list[SealedBuffer]]]) -> None:
        """Append extents of these subpartitions, or parts of extents, in the write order."""
        self._expect(_State.IN_REGION)
        with self._failing():
            pieces: list[BytesLike] = []
            encrypted_bytes = 0
            for subpartition, buffers in extents:
                if not buffers:
                    continue
                extent = self._extent_of(subpartition)
                for buffer in buffers:
                    if self._cipher is not None:
                        buffer = encrypt_buffer(buffer, self._cipher, self._next_place(subpartition))
                        encrypted_bytes += buffer.bytes
                    extent.add(buffer)
                    self.data_bytes += buffer.bytes
                    pieces += (buffer.header, buffer.payload, buffer.tail)
                    if encrypted_bytes >= ENCRYPTED_AT_ONCE:
                        self._pair.append_data(pieces)
                        pieces, encrypted_bytes = [], 0
                if len(pieces) + _PIECES_PER_BUFFER > PIECES_AT_ONCE:
                    self._pair.append_data(pieces)
                    pieces = []
            if pieces:
                self._pair.append_data(pieces)

    def write_run(self, run: ExtentRun) -> None:
        """Append whole extents of a unicast region at once, in the write order, each the only one of its
        subpartition."""
        self._expect(_State.IN_REGION)
        with self._failing():
            written = self._last_position(run)
            self._end_extent()
            if self._cipher is not None:
                run = encrypt_run(run, self._cipher, len(self._kinds) - 1, self.data_bytes)
            for name in ("bytes", "raw_bytes", "records"):
                self._entries[name][run.subpartitions] = getattr(run, name)
            self._entries["checksum"][run.subpartitions] = run.checksums
            self._entries["buffers"][run.subpartitions] = 1
            self._written = written
            self.data_bytes += int(run.bytes.sum())
            self.records += int(run.records.sum())
            self.buffers += len(run)
            self._pair.append_data([run.data])

    def finish_region(self, is_last: bool = False) -> Entries:
        """End the region and return its entries, shape (subpartitions,). A region without bytes does not
        count. ``is_last``: `finish` is the next call, and writes the entries to the index file."""
        self._expect(_State.IN_REGION)
        self._state = _State.BETWEEN_REGIONS
        if self._written < 0:
            self._kinds.pop()
            return self._entries
        with self._failing():
            self._end_extent()
            if self._kinds[-1] is RegionKind.BROADCAST:
                self._entries["offset"][0] = self._region_start
                self._entries[:] = self._entries[0]
            else:
                self._place_extents()
            self.regions += 1
            self._add_to_index(self._entries.tobytes())
            if not is_last:
                self._write_index()
        return self._entries

    def finish(self, writer: WriterInfo, schema: bytes = b"") -> PartitionedFile:
        """Complete the index and give both files their names. Raises `StateError` inside a region."""
        self._expect(_State.BETWEEN_REGIONS)
        with self._failing():
            self._append_tail(writer, schema)
            self._write_index()
            self._pair.commit()
        self._state = _State.FINISHED
        return self.file

    def abandon(self) -> None:
        """Delete both files. Does nothing after `finish()` or a second time."""
        if self._state in (_State.FINISHED, _State.ABANDONED):
            return
        self._state = _State.ABANDONED
        self._pair.discard()

    def __enter__(self) -> PartitionedFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _next_place(self, subpartition: int) -> BufferPlace:
        """Return the place of the next buffer. No other buffer is ever encrypted for its offset: after a
        failed append only `abandon` is allowed."""
        is_broadcast = self._kinds[-1] is RegionKind.BROADCAST
        return BufferPlace(self.data_bytes, len(self._kinds) - 1, None if is_broadcast else subpartition)

    def _last_position(self, run: ExtentRun) -> int:
        """Return the position of a run's last subpartition in the write order. Raises `StateError` unless the
        run is in that order and follows what is written."""
        first, count = self.header.first_subpartition, self.header.subpartitions
        numbers = run.subpartitions
        if len(numbers) and int(numbers.min()) >= 0 and int(numbers.max()) < count:
            positions = (numbers - first) % count
            is_ordered = bool((np.diff(positions) > 0).all()) and int(positions[0]) > self._written
            if is_ordered and self._kinds[-1] is RegionKind.UNICAST:
                return int(positions[-1])
        raise StateError(f"a run of extents comes out of order in region {len(self._kinds) - 1}")

    def _extent_of(self, subpartition: int) -> _OpenExtent:
        """Return the open extent of a subpartition, after beginning it if another one is open."""
        extent = self._extent
        if extent is None or extent.subpartition != subpartition:
            self._begin_extent(subpartition)
            extent = self._extent = _OpenExtent(subpartition)
        return extent

    def _begin_extent(self, subpartition: int) -> None:
        if self._kinds[-1] is RegionKind.BROADCAST and subpartition != 0:
            raise StateError(
                f"subpartition {subpartition} in broadcast region {len(self._kinds) - 1}: its one extent is"
                " written as subpartition 0's"
            )
        first, count = self.header.first_subpartition, self.header.subpartitions
        position = (subpartition - first) % count
        if not 0 <= subpartition < count or position <= self._written:
            raise StateError(
                f"subpartition {subpartition} comes out of order in region {len(self._kinds) - 1}: its data"
                " must come together, in the write order"
            )
        self._end_extent()
        self._written = position

    def _end_extent(self) -> None:
        extent, self._extent = self._extent, None
        if extent is not None:
            self._entries[extent.subpartition] = extent.entry()
            self.records += extent.records
            self.buffers += len(extent.checksums)

    def _place_extents(self) -> None:
        """Give the subpartitions consecutive offsets, in the write order."""
        count = self.header.subpartitions
        order = (np.arange(count) + self.header.first_subpartition) % count
        sizes = self._entries["bytes"][order]
        self._entries["offset"][order] = self._region_start + np.cumsum(sizes) - sizes

    def _append_tail(self, writer: WriterInfo, schema: bytes) -> None:
        body, footer = pack_tail(
            head_and_entries=self._index_bytes,
            subpartitions=self.header.subpartitions,
            kinds=tuple(self._kinds),
            schema=schema,
            writer=writer.pack(),
            data_bytes=self.data_bytes,
            records=self.records,
            buffers=self.buffers,
        )
        self._add_to_index(body)
        self._add_to_index(footer)
        digest = int(self._index_digest.intdigest())
        self._add_to_index(digest.to_bytes(8, "little") + INDEX_MAGIC)

    def _add_to_index(self, data: bytes) -> None:
        self._index_digest.update(data)
        self._index_bytes += len(data)
        self._index.append(data)

    def _write_index(self) -> None:
        """Write all added pieces with one call, because each call releases Python's lock."""
        self._pair.append_index(b"".join(self._index))
        self._index.clear()

    def _expect(self, state: _State) -> None:
        if self._state is not state:
            raise StateError(f"{self.file.base} is {self._state.value}, which does not allow this call")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._state = _State.FAILED
            raise


def _new_pair(file: PartitionedFile, makes_directory: bool) -> NewPair:
    if not is_url(file.base):
        return LocalPair(file)
    local = mounted_file(file)
    return StoredPair(file) if local is None else LocalPair(local, True, makes_directory)
