"""`PartitionedFileReader`: extents of a finished result partition, verified before anyone sees them.

Rules
* Positioned reads only, whole extents or whole buffers of one; no shared seek position, so one reader may
  be used by many threads.
* Nothing is handed out before its checksum was verified.
* Whatever is wrong with the files becomes a `CorruptDataError` or `MissingDataError` with the place. Only an
  OSError that says something of this process (too many open files, no memory) is let through.

The caller closes the reader. Memory read into belongs to the pyarrow buffers that are handed out.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from sortshuffle.errors import CorruptDataError, MissingDataError, Place
from sortshuffle.format.buffer import ALIGNMENT, StoredBuffer, scan_buffer, scan_extent
from sortshuffle.format.checksum import checksum_of_checksums
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, FileHeader
from sortshuffle.format.index import Index, unpack_index
from sortshuffle.format.malformed import CutShort, Malformed
from sortshuffle.storage.partitioned_file import PartitionedFile

_NOT_OF_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one extent lies and what it must be: an index entry with its region and subpartition."""

    region: int
    subpartition: int
    offset: int
    bytes: int
    raw_bytes: int
    records: int
    checksum: int
    buffers: int


@dataclass(frozen=True, slots=True)
class ExtentPart:
    """Verified buffers of an extent: ``memory`` holds them, ``buffers`` say where."""

    memory: pa.Buffer
    buffers: list[StoredBuffer]


class PartitionedFileReader:
    """Reads the extents of one data file.

    ``file_id``: the id the file must have, None to take it as it is. ``writer``: who wrote it, for errors.
    Raises `MissingDataError` if the file is gone or another, `CorruptDataError` if its header is damaged.
    """

    def __init__(
        self, file: PartitionedFile, file_id: bytes | None = None, writer: str | None = None
    ) -> None:
        self.file = file
        self._writer = writer
        try:
            self._descriptor = os.open(file.data_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NOT_OF_THE_FILE:
                raise
            raise self._missing(f"the data file cannot be opened: {error.strerror}") from error
        try:
            with self.damage(0):
                self.header = FileHeader.unpack(self._read_header(), DATA_MAGIC)
            if file_id is not None and self.header.file_id != file_id:
                raise self._missing("the data file is another one", file_id.hex(), self.header.file_id.hex())
        except BaseException:
            os.close(self._descriptor)
            raise

    def read_extent(self, extent: Extent) -> ExtentPart:
        """The whole extent in one positioned read, all of it verified."""
        return self.verified(self.read_unverified(extent), extent)

    def read_unverified(self, extent: Extent) -> pa.Buffer:
        """The bytes of the extent. They must go through `verified` before anyone else sees them."""
        return self._read(extent.bytes, extent)

    def verified(self, memory: pa.Buffer, extent: Extent) -> ExtentPart:
        """What `read_unverified` returned, every checksum verified."""
        with self.damage(extent.offset, extent):
            buffers = list(scan_extent(memoryview(memory), extent.checksum, extent.buffers))
        return ExtentPart(memory, buffers)

    def read_parts(self, extent: Extent, part_bytes: int) -> Iterator[ExtentPart]:
        """The extent in parts of at most ``part_bytes``, whole buffers each, verified buffer by buffer; a
        larger buffer is a part of its own. That none is lost, doubled or foreign is verified before the last
        part is handed out."""
        position = 0
        checksums: list[int] = []
        wanted = part_bytes = max(part_bytes, ALIGNMENT)
        while position < extent.bytes:
            left = extent.bytes - position
            memory = self._read(min(wanted, left), extent, position)
            with self.damage(extent.offset + position, extent):
                buffers, end, needed = _whole_buffers(memory, left, checksums)
            if needed:
                wanted = needed
                continue
            if end == left:
                with self.damage(extent.offset, extent):
                    _check_extent(extent, checksums)
            yield ExtentPart(memory, buffers)
            position += end
            wanted = part_bytes

    def fileno(self) -> int:
        """The descriptor, for positioned reads into memory of the caller's own."""
        return self._descriptor

    def close(self) -> None:
        """May be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> PartitionedFileReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def damage(self, offset: int, extent: Extent | None = None) -> Iterator[None]:
        """Turn `Malformed` bytes read from ``offset`` on into a `CorruptDataError` with its place."""
        try:
            yield
        except Malformed as problem:
            place = self._place(offset + problem.offset, extent)
            raise CorruptDataError(
                place, problem.what, expected=problem.expected, found=problem.found
            ) from None

    def _read(self, size: int, extent: Extent, position: int = 0) -> pa.Buffer:
        # shifted, so that payloads stand on 64-byte boundaries in memory as they do in the file
        memory = pa.allocate_buffer(HEADER_BYTES + size)
        view = memoryview(memory).cast("B")[HEADER_BYTES:]
        done = 0
        while done < size:
            at = extent.offset + position + done
            with self._readable(extent):
                got = os.preadv(self._descriptor, [view[done:]], at)
            if got == 0:
                raise CorruptDataError(
                    self._place(extent.offset, extent),
                    "the data file is cut short",
                    expected=f"{extent.bytes} bytes",
                    found=position + done,
                )
            done += got
        return memory.slice(HEADER_BYTES)

    def _read_header(self) -> bytes:
        with self._readable():
            return os.pread(self._descriptor, HEADER_BYTES, 0)

    @contextmanager
    def _readable(self, extent: Extent | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _NOT_OF_THE_FILE:
                raise
            place = self._place(extent.offset if extent else 0, extent)
            raise CorruptDataError(place, f"the data file cannot be read: {error.strerror}") from error

    def _place(self, offset: int, extent: Extent | None = None) -> Place:
        return Place(
            self.file.data_path,
            extent.region if extent else None,
            extent.subpartition if extent else None,
            offset,
            self._writer,
        )

    def _missing(self, what: str, expected: object = None, found: object = None) -> MissingDataError:
        place = Place(self.file.data_path, writer=self._writer)
        return MissingDataError(place, what, expected=expected, found=found)


def read_index(file: PartitionedFile, file_id: bytes | None = None) -> Index:
    """The whole, verified index of a finished pair. Raises as `PartitionedFileReader` does."""
    try:
        with open(file.index_path, "rb") as opened:
            data = opened.read()
    except OSError as error:
        if error.errno in _NOT_OF_THE_FILE:
            raise
        what = f"the index file cannot be opened: {error.strerror}"
        raise MissingDataError(Place(file.index_path), what) from error
    try:
        index = unpack_index(data)
    except Malformed as problem:
        place = Place(file.index_path, offset=problem.offset)
        raise CorruptDataError(place, problem.what, expected=problem.expected, found=problem.found) from None
    if file_id is not None and index.header.file_id != file_id:
        what = "the index file is another one"
        raise MissingDataError(
            Place(file.index_path), what, expected=file_id.hex(), found=index.header.file_id.hex()
        )
    return index


def extents_of(index: Index, subpartition: int) -> list[Extent]:
    """The non-empty extents of a subpartition, in region order."""
    entries = index.entries[:, subpartition]
    return [extent_of(entry, region, subpartition) for region, entry in enumerate(entries) if entry["bytes"]]


def extent_of(entry: object, region: int, subpartition: int) -> Extent:
    """An index entry (a scalar of dtype `ENTRY`) as an `Extent`."""
    offset, size, raw, records, digest, buffers, _ = entry.item()  # type: ignore[attr-defined]
    return Extent(region, subpartition, offset, size, raw, records, digest, buffers)


def _whole_buffers(memory: pa.Buffer, left: int, checksums: list[int]) -> tuple[list[StoredBuffer], int, int]:
    """The buffers that lie whole in ``memory``, where the last of them ends, and if there is none how many
    bytes the first one takes. ``left``: bytes of the extent from here on; a buffer must end within them."""
    view = memoryview(memory)
    position = 0
    buffers: list[StoredBuffer] = []
    while position < len(view):
        try:
            scan = scan_buffer(view, position)
        except CutShort as problem:
            if position + problem.expected > left:
                raise
            return buffers, position, 0 if buffers else problem.expected
        checksums.append(scan.checksum)
        buffers.append(scan.buffer)
        position = scan.end
    return buffers, position, 0


def _check_extent(extent: Extent, checksums: list[int]) -> None:
    found = (len(checksums), checksum_of_checksums(checksums))
    if found != (extent.buffers, extent.checksum):
        raise Malformed("the extent fails its checksum", 0, f"{extent.checksum:#018x}", f"{found[1]:#018x}")
