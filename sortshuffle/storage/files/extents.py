"""Extents as a reader needs them, and the base class of the readers that verify them.

    ExtentReader            hands out verified buffers only; every error names the place
      PartitionedFileReader   a data file that this process can open        (`storage.files.reader`)
      StoredFileReader        ranges of an object, through fsspec           (`storage.stored.stored_reader`)
      RemoteReader            the shuffle service of another host           (`service.client.remote_reader`)

A subclass implements how bytes are fetched (`ExtentReader.fetch`).

Encrypted payloads are decrypted here, after verification: decoders get plain payloads. A reader without a
key can move and verify encrypted payloads (`checked`, `checked_parts`, `verify`); it raises
`DecryptionError` when they must be decrypted. A reader with a key refuses payloads that are not encrypted:
the application did not write them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from sortshuffle.errors import CorruptDataError, DecryptionError, Place
from sortshuffle.format.buffer import (
    ALIGNMENT,
    BUFFER_HEADER_BYTES,
    StoredBuffer,
    expect_known,
    scan_buffer,
    scan_extent,
)
from sortshuffle.format.checksum import CHECKSUM_BYTES, checksum_of_checksums, checksum_of_pieces
from sortshuffle.format.encryption import (
    BufferPlace,
    EncryptionKey,
    FileCipher,
    WrongTagError,
    decrypt_buffer,
    decrypt_singles,
)
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.format.index import Index
from sortshuffle.format.malformed import CutShort, Malformed

Self = TypeVar("Self", bound="ExtentReader")

# remedies for data that cannot be decrypted
BY_KEY_ALONE = "It opens with the key of the application that wrote it alone (spark.io.encryption.enabled)"
_SOMEBODY_ELSES = "Somebody else wrote it: see who can write to this directory"


@dataclass(frozen=True, slots=True)
class Extent:
    """An index entry with its region and subpartition: where an extent lies and what it must contain."""

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
    """Verified buffers of an extent, ``bytes`` in total: ``buffers`` says where in ``memory`` each one is."""

    memory: pa.Buffer
    buffers: list[StoredBuffer]
    bytes: int


class ExtentReader(ABC):
    """Reads the extents of one result partition.

    ``path``: of its data file, ``writer``: the task that wrote it; for errors. ``key``: the application's,
    which together with ``file_id`` gives the file's key; None if nothing is to decrypt. The caller closes the
    reader. The pyarrow buffers own the memory that is handed out.
    """

    def __init__(
        self, path: str, writer: str | None, key: EncryptionKey | None = None, file_id: bytes = b""
    ) -> None:
        self.path = path
        self._writer = writer
        self._key = key
        self._file_id = file_id
        self._cipher: FileCipher | None = None

    @abstractmethod
    def fetch(self, size: int, extent: Extent, position: int = 0) -> pa.Buffer:
        """Return ``size`` bytes of the extent from ``position`` on, in `aligned_memory`, not verified.

        Positions ascend, except that bytes after the last whole buffer of a part are fetched again. Raises
        `DataLossError` with the place if the bytes cannot be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything. May be called again."""

    def give_up(self) -> None:  # noqa: B027  # most readers never wait
        """Make a wait for bytes in another thread fail. The reader must still be closed."""

    def read_extent(self, extent: Extent) -> ExtentPart:
        """Return the whole extent, verified and plain."""
        return self.verified(self.read_unverified(extent), extent)

    def read_unverified(self, extent: Extent) -> pa.Buffer:
        """Return the bytes of the extent. They must pass through `verified` before use."""
        return self.fetch(extent.bytes, extent)

    def verified(self, memory: pa.Buffer, extent: Extent) -> ExtentPart:
        """Verify every checksum of `read_unverified` bytes, and decrypt them. Raises `DecryptionError`."""
        return self._plain_part(self.checked(memory, extent), extent, 0)

    def checked(self, memory: pa.Buffer, extent: Extent) -> ExtentPart:
        """Verify every checksum of `read_unverified` bytes, and leave them as stored."""
        with self.damage(extent.offset, extent):
            buffers = list(scan_extent(memoryview(memory), extent.checksum, extent.buffers))
        return ExtentPart(memory, buffers, extent.bytes)

    def read_parts(self, extent: Extent, part_bytes: int) -> Iterator[ExtentPart]:
        """Yield the extent in plain parts of whole buffers, each part at most ``part_bytes``. A larger buffer
        is a part by itself. Each buffer is verified; the extent as a whole is verified before the last part
        is handed out, so that no buffer is lost, doubled or foreign. Raises `DecryptionError`."""
        position = 0
        for part in self.checked_parts(extent, part_bytes):
            plain = [self._plain_part(part, extent, position)]
            position += part.bytes
            del part  # so the encrypted bytes are freed while the caller has the plain ones
            yield plain.pop()

    def checked_parts(self, extent: Extent, part_bytes: int) -> Iterator[ExtentPart]:
        """Yield the same parts, as stored."""
        position = 0
        checksums: list[int] = []
        wanted = part_bytes = max(part_bytes, ALIGNMENT)
        while position < extent.bytes:
            left = extent.bytes - position
            memory = self.fetch(min(wanted, left), extent, position)
            with self.damage(extent.offset + position, extent):
                buffers, end, needed = _whole_buffers(memory, left, checksums)
            if needed:  # fetch again, with enough bytes for the first buffer
                wanted = needed
                continue
            if end == left:
                with self.damage(extent.offset, extent):
                    _check_extent(extent, checksums)
            part = [ExtentPart(memory, buffers, end)]
            position += end
            wanted = part_bytes
            del memory  # so that only the caller holds it from here on
            yield part.pop()

    def verify(self, extent: Extent, part_bytes: int) -> None:
        """Verify every checksum. Takes ``part_bytes`` of memory, even if a buffer is larger. Raises
        `CorruptDataError`."""
        position = 0
        checksums: list[int] = []
        while position < extent.bytes:
            left = extent.bytes - position
            memory = self.fetch(min(part_bytes, left), extent, position)
            with self.damage(extent.offset + position, extent):
                _, end, needed = _whole_buffers(memory, left, checksums)
                header = bytes(memoryview(memory)[:BUFFER_HEADER_BYTES])
                del memory
                if needed:
                    checksums.append(self._checksum_of_large(extent, position, needed, part_bytes))
                    expect_known(header)
            position += needed or end
        with self.damage(extent.offset, extent):
            _check_extent(extent, checksums)

    def _checksum_of_large(self, extent: Extent, position: int, size: int, part_bytes: int) -> int:
        """Return the checksum of a buffer, computed piece by piece. Raises `Malformed` if it is wrong."""
        end = position + size - CHECKSUM_BYTES
        starts = range(position, end, part_bytes)
        computed = checksum_of_pieces(self.fetch(min(part_bytes, end - at), extent, at) for at in starts)
        stored = int.from_bytes(memoryview(self.fetch(CHECKSUM_BYTES, extent, end)), "little")
        if computed != stored:
            raise Malformed("a buffer fails its checksum", 0, f"{stored:#018x}", f"{computed:#018x}")
        return stored

    @property
    def decrypts(self) -> bool:
        """Whether the reader has a key, and so accepts only encrypted payloads."""
        return self._key is not None

    def plain(
        self,
        memory: pa.Buffer,
        buffers: list[StoredBuffer],
        extent: Extent,
        position: int = 0,
        into: tuple[pa.Buffer, memoryview] | None = None,
    ) -> tuple[pa.Buffer, list[StoredBuffer]]:
        """Return these verified buffers, decrypted. ``position``: of the memory in the extent. ``into``:
        memory of that size from `aligned_memory`, to decrypt into; None for new. Raises `DecryptionError`."""
        if self._key is None:
            self._expect_plain(buffers, extent)
            return memory, buffers
        opened, target = into or aligned_memory(memory.size)
        source, cipher = memoryview(memory).cast("B"), self._file_cipher(self._key)
        decrypted: list[StoredBuffer] = []
        for buffer in buffers:
            offset = extent.offset + position + buffer.start - BUFFER_HEADER_BYTES
            if not buffer.encrypted:
                what = "the data is not encrypted, as all of this application's is"
                raise DecryptionError(self.place(offset, extent), what, _SOMEBODY_ELSES)
            place = BufferPlace(offset, extent.region, None if buffer.broadcast else extent.subpartition)
            try:
                decrypted.append(decrypt_buffer(source, buffer, cipher, place, target))
            except WrongTagError:
                raise self._decryption_error(offset, extent) from None
        return opened, decrypted

    def plain_singles(
        self, memory: pa.Buffer, singles: Sequence[tuple[int, int, int]], offset: int, region: int
    ) -> list[memoryview]:
        """Return the plain payloads of many verified, encrypted extents of one uncompressed buffer each, in a
        unicast region. Only for a reader that `decrypts`. ``singles``: as for `decrypt_singles`; ``offset``:
        of the memory in the file. Raises `DecryptionError`."""
        assert self._key is not None
        _, target = aligned_memory(memory.size)
        source, cipher = memoryview(memory).cast("B"), self._file_cipher(self._key)
        payloads: list[memoryview] = []
        try:
            payloads.extend(decrypt_singles(source, singles, cipher, offset, region, target))
        except WrongTagError:
            start, size, subpartition = singles[len(payloads)]
            extent = Extent(region, subpartition, offset + start, size, 0, 0, 0, 1)
            raise self._decryption_error(offset + start, extent) from None
        return payloads

    def _decryption_error(self, offset: int, extent: Extent) -> DecryptionError:
        what = "the data does not open: the key is another one, or the bytes were changed on purpose"
        return DecryptionError(self.place(offset, extent), what, BY_KEY_ALONE)

    def _expect_plain(self, buffers: list[StoredBuffer], extent: Extent) -> None:
        for buffer in buffers:  # not a generator: making one takes longer than checking a few buffers
            if buffer.encrypted:
                what = "the data is encrypted, and there is no key"
                raise DecryptionError(self.place(extent.offset, extent), what, BY_KEY_ALONE)

    def _plain_part(self, part: ExtentPart, extent: Extent, position: int) -> ExtentPart:
        if self._key is None:
            self._expect_plain(part.buffers, extent)
            return part
        memory, buffers = self.plain(part.memory, part.buffers, extent, position)
        return ExtentPart(memory, buffers, part.bytes)

    def _file_cipher(self, key: EncryptionKey) -> FileCipher:
        """Return this file's cipher, made once; concurrent threads may each make one, harmlessly."""
        if self._cipher is None:
            self._cipher = key.of_file(self._file_id)
        return self._cipher

    @contextmanager
    def damage(self, offset: int, extent: Extent | None = None) -> Iterator[None]:
        """Turn `Malformed` for bytes from ``offset`` on into a `CorruptDataError` with the place."""
        try:
            yield
        except Malformed as problem:
            raise self.damaged(problem, offset, extent) from None

    def damaged(self, problem: Malformed, offset: int, extent: Extent | None = None) -> CorruptDataError:
        """Return the error for `Malformed` bytes from ``offset`` on."""
        place = self.place(offset + problem.offset, extent)
        return CorruptDataError(place, problem.what, expected=problem.expected, found=problem.found)

    def place(self, offset: int | None = None, extent: Extent | None = None) -> Place:
        """Return the place in the data file, for errors."""
        return Place(
            self.path,
            extent.region if extent else None,
            extent.subpartition if extent else None,
            offset,
            self._writer,
        )

    def cut_short(self, extent: Extent, found: int) -> CorruptDataError:
        """Return the error for an extent of which only ``found`` bytes exist."""
        place = self.place(extent.offset, extent)
        expected = f"{extent.bytes} bytes"
        return CorruptDataError(place, "the data file is cut short", expected=expected, found=found)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def aligned_memory(size: int) -> tuple[pa.Buffer, memoryview]:
    """Return memory for bytes of an extent that begin with a buffer, and a writable view of it. The memory is
    shifted so that payloads start on 64-byte boundaries in memory as in the file."""
    memory = pa.allocate_buffer(HEADER_BYTES + size)
    return memory.slice(HEADER_BYTES), memoryview(memory).cast("B")[HEADER_BYTES:]


def extents_of(index: Index, subpartition: int) -> list[Extent]:
    """Return the non-empty extents of a subpartition, in region order."""
    entries = index.entries[:, subpartition]
    return [extent_of(entry, region, subpartition) for region, entry in enumerate(entries) if entry["bytes"]]


def extent_of(entry: object, region: int, subpartition: int) -> Extent:
    """Return an index entry (a scalar of dtype `ENTRY`) as an `Extent`."""
    offset, size, raw, records, digest, buffers, _ = entry.item()  # type: ignore[attr-defined]
    return Extent(region, subpartition, offset, size, raw, records, digest, buffers)


def _whole_buffers(memory: pa.Buffer, left: int, checksums: list[int]) -> tuple[list[StoredBuffer], int, int]:
    """Return the whole buffers in ``memory``, where the last of them ends, and, if there is none, the size of
    the first buffer. ``left``: bytes of the extent from here on; a buffer must end within them."""
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
