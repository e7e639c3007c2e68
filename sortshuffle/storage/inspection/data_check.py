"""`check_data`: reads all the data of a pair, whatever state it is in, and reports what is wrong with it.

It checks every buffer, every extent, and every byte that no extent covers. Wrong bytes never raise: they
become a `FileFault` with its place. Used by the command line, after `storage.inspection.contents`. The module
knows nothing of records: a caller that does passes a `RecordCounter`.

Encrypted payloads are read only with their key (`plain_buffers`); checksums need none.

Memory is bounded: a few MiB, or the largest single buffer that fits into its extent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from sortshuffle.errors import Place
from sortshuffle.format.buffer import (
    BUFFER_HEADER_BYTES,
    StoredBuffer,
    raw_bytes_of,
    scan_buffer,
    sealed_size,
)
from sortshuffle.format.checksum import checksum_of_checksums
from sortshuffle.format.encryption import (
    BufferPlace,
    EncryptionKey,
    FileCipher,
    WrongTagError,
    decrypt_buffer,
)
from sortshuffle.format.header import HEADER_BYTES, FileHeader
from sortshuffle.format.malformed import CutShort, Malformed
from sortshuffle.options import MIB
from sortshuffle.storage.files.extents import Extent, aligned_memory
from sortshuffle.storage.files.partitioned_file import PARTIAL_SUFFIX
from sortshuffle.storage.inspection.contents import FileFault, FoundFile, Inspection
from sortshuffle.storage.inspection.open_files import OpenFile, is_file, open_file

PART_BYTES = 8 * MIB
_SIZE_FIELD = slice(4, 8)  # in a buffer header
# of a counter, which may need a temporary file or memory for a large record: not of the data file
_HOSTS_ERRORS = (OSError, MemoryError)


# ---- counting records ----------------------------------------------------------------------------------


class ExtentCounter(Protocol):
    """Counts the records of one extent, given its verified buffers in order. After an OSError or MemoryError,
    which concerns the counter alone, it is not used again."""

    def count(self, memory: pa.Buffer, buffer: StoredBuffer) -> int | None:
        """Return how many records end in a buffer; None if they cannot be counted. Raises `Malformed`."""

    def finish(self) -> None:
        """End the extent. Raises `Malformed` if it ends within a record."""


class RecordCounter(Protocol):
    """Counts the records in the payloads of a pair."""

    def of_extent(self) -> ExtentCounter:
        """Return a counter for the next extent, in the order of the index."""

    def count_loose(self, memory: pa.Buffer, buffer: StoredBuffer) -> int | None:
        """Return how many records end in a buffer of no known extent; None if they cannot be counted. Raises
        `Malformed` if the buffer cannot be decoded."""

    def finish(self) -> None:
        """End a finished, sound pair. Raises `Malformed` if the pair should have more extents."""


# ---- results -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundBuffer:
    """A verified buffer in the data file. ``bytes``: with header and padding. ``stored``: its place in
    ``memory``."""

    offset: int
    bytes: int
    raw_bytes: int
    checksum: int
    memory: pa.Buffer
    stored: StoredBuffer


@dataclass(frozen=True, slots=True)
class LooseBuffer:
    """A verified buffer that no index entry covers. ``records``: None if they were not counted."""

    offset: int
    bytes: int
    raw_bytes: int
    data_type: str
    records: int | None


@dataclass(frozen=True, slots=True)
class DataCheck:
    """The result of reading all the data. ``stopped_at``: the offset where the check had to stop, because the
    file of an unfinished pair breaks off there, or because older bytes begin there that it is written over,
    or because the start of the next buffer is unknown. ``unchecked``: the first reason why records could not
    be decoded on this host, which says nothing of the file; empty if all could."""

    faults: tuple[FileFault, ...] = ()
    loose: tuple[LooseBuffer, ...] = ()
    stopped_at: int | None = None
    unchecked: str = ""

    def faulty_extents(self) -> frozenset[tuple[int, int | None]]:
        """Return (region, subpartition) of damaged extents; the latter is None in a broadcast region."""
        places = (fault.place for fault in self.faults)
        return frozenset((at.region, at.subpartition) for at in places if at.region is not None)


# ---- reading -------------------------------------------------------------------------------------------


def check_data(
    inspection: Inspection,
    counter: RecordCounter | None = None,
    advance: Callable[[int], None] = lambda size: None,
    cipher: FileCipher | None = None,
) -> DataCheck:
    """Read and verify the whole data file of a pair. ``advance`` is called with numbers of bytes as they are
    done. ``cipher`` decrypts the payloads; without it encrypted records are not counted.

    Each damaged extent has one fault, at its first bad buffer. Data of another format version is not read.
    """
    data = inspection.data
    if data is None or data.bytes <= HEADER_BYTES or not inspection.is_known_version:
        return DataCheck()
    try:
        with open_data(data.path) as file:
            header = inspection.header
            hidden = header is not None and header.is_encrypted and cipher is None
            return _Checker(inspection, data, file, None if hidden else counter, advance, cipher).check()
    except OSError as error:
        return DataCheck((FileFault(Place(data.path), f"the file cannot be read: {error.strerror}"),))


@contextmanager
def open_data(path: str) -> Iterator[OpenFile]:
    """Open the data file for positioned reads; if a partial file was finished meanwhile, the finished one."""
    if not is_file(path):
        path = path.removesuffix(PARTIAL_SUFFIX)
    with open_file(path) as file:
        yield file


def cipher_of(header: FileHeader | None, key: EncryptionKey | None) -> FileCipher | None:
    """Return the cipher of a file; None if the file is not encrypted, or if the key is missing or wrong."""
    if key is None or header is None or not header.is_encrypted:
        return None
    cipher = key.of_file(header.file_id)
    return cipher if cipher.check == header.key_check else None


def plain_buffers(
    file: OpenFile, extent: Extent, cipher: FileCipher | None, encrypts: bool | None = None
) -> Iterator[FoundBuffer]:
    """Yield the buffers of an extent, each verified and, with a cipher, decrypted. ``encrypts``: whether
    the file's header says that buffers are encrypted; None if no header says: then they must be encrypted
    if there is a cipher, and plain if there is none. Raises as `walk` does, and `Malformed` for a buffer
    that disagrees with ``encrypts``."""
    encrypts = cipher is not None if encrypts is None else encrypts
    for found in walk(file, extent.offset, extent.offset + extent.bytes):
        if found.stored.encrypted != encrypts:
            raise Malformed(_OTHERWISE[encrypts], found.offset)
        yield found if cipher is None else _decrypt(found, extent, cipher)


_OTHERWISE = {
    True: "a buffer is not encrypted, in a file that is",
    False: "a buffer is encrypted, in a file that is not",
}


def _decrypt(found: FoundBuffer, extent: Extent, cipher: FileCipher) -> FoundBuffer:
    stored = found.stored
    source = memoryview(found.memory).cast("B")[stored.start - BUFFER_HEADER_BYTES :][: found.bytes]
    memory, target = aligned_memory(found.bytes)
    place = BufferPlace(found.offset, extent.region, None if stored.broadcast else extent.subpartition)
    try:
        plain = decrypt_buffer(source, stored._replace(start=BUFFER_HEADER_BYTES), cipher, place, target)
    except WrongTagError:
        what = "a payload does not open with the file's own key: it was changed on purpose"
        raise Malformed(what, found.offset) from None
    return replace(found, memory=memory, stored=plain)


def walk(file: OpenFile, start: int, end: int) -> Iterator[FoundBuffer]:
    """Yield the buffers from offset ``start`` to ``end``, each verified first.

    Raises `Malformed` at the first bad buffer, with its offset in the file; OSError if reading fails.
    """
    position, wanted = start, PART_BYTES
    while position < end:
        size = min(wanted, end - position)
        memory = file.read(position, size)
        start_of_part = position
        try:
            for found in _buffers_in(memory, start_of_part):
                yield found
                position = found.offset + found.bytes
            wanted = PART_BYTES
        except CutShort as problem:
            needed = problem.expected  # bytes, from `position` on
            if memory.size < size or position + needed > end:
                raise _at_offset_of(problem, start_of_part) from None
            wanted = max(PART_BYTES, needed)
        except Malformed as problem:
            raise _at_offset_of(problem, start_of_part) from None


def _buffers_in(memory: pa.Buffer, start: int) -> Iterator[FoundBuffer]:
    """Yield the buffers in ``memory``, which holds the file from offset ``start`` on. Raises `Malformed`."""
    view = memoryview(memory)
    position = 0
    while position < len(view) or position == 0:
        scan = scan_buffer(view, position)
        stored = scan.buffer
        raw = raw_bytes_of(view, stored)
        yield FoundBuffer(start + position, scan.end - position, raw, scan.checksum, memory, stored)
        position = scan.end


def _at_offset_of(problem: Malformed, start: int) -> Malformed:
    return type(problem)(problem.what, start + problem.offset, problem.expected, problem.found)


class _Checker:
    """One pass over a data file: the extents of the index, then the bytes after them."""

    def __init__(
        self,
        inspection: Inspection,
        data: FoundFile,
        file: OpenFile,
        counter: RecordCounter | None,
        advance: Callable[[int], None],
        cipher: FileCipher | None,
    ) -> None:
        self._cipher = cipher
        self._encrypts = None if inspection.header is None else inspection.header.is_encrypted
        self._inspection = inspection
        self._data = data
        self._file = file
        self._counter = counter
        self._advance = advance
        self._faults: list[FileFault] = []
        self._loose: list[LooseBuffer] = []
        self._stopped_at: int | None = None
        self._unchecked = ""

    def check(self) -> DataCheck:
        table = self._inspection.table if self._inspection.is_pair else None
        if table is not None:
            for extent in table.extents():
                if extent.bytes:
                    self._check_extent(extent, table.is_broadcast(extent.region))
                    self._advance(extent.bytes)
            self._check_end()
        self._walk_loose(HEADER_BYTES if table is None else table.end)
        return DataCheck(tuple(self._faults), tuple(self._loose), self._stopped_at, self._unchecked)

    def _check_extent(self, extent: Extent, is_broadcast: bool) -> None:
        place = Place(
            self._data.path, extent.region, None if is_broadcast else extent.subpartition, extent.offset
        )
        if extent.offset >= self._data.bytes:
            self._faults.append(FileFault(place, "the extent lies behind the end of the file"))
            return
        checksums: list[int] = []
        raw_bytes = 0
        records: int | None = None if self._counter is None else 0
        counter = self._counter.of_extent() if self._counter is not None else None
        end = extent.offset + extent.bytes
        try:
            for found in plain_buffers(self._file, extent, self._cipher, self._encrypts):
                checksums.append(found.checksum)
                raw_bytes += found.raw_bytes
                if counter is not None:
                    try:
                        with _at(found.offset):
                            count = counter.count(found.memory, found.stored)
                    except _HOSTS_ERRORS as error:
                        self._leave_unchecked(error)
                        counter = count = None
                    records = None if count is None or records is None else records + count
            if counter is not None:
                with _at(end):
                    counter.finish()
        except Malformed as problem:
            place = replace(place, offset=problem.offset)
            self._faults.append(FileFault(place, problem.what, problem.expected, problem.found))
            return
        comparisons = (
            ("buffers", extent.buffers, len(checksums)),
            ("checksum", f"{extent.checksum:#018x}", f"{checksum_of_checksums(checksums):#018x}"),
            ("raw bytes", extent.raw_bytes, raw_bytes),
            ("records", extent.records, extent.records if records is None else records),
        )
        for what, expected, actual in comparisons:
            if expected != actual:
                self._faults.append(FileFault(place, f"the extent has other {what}", expected, actual))
                return

    def _check_end(self) -> None:
        is_whole = not (self._faults or self._inspection.faults or self._inspection.unfinished)
        if self._counter is None or self._unchecked or not is_whole:
            return
        try:
            self._counter.finish()
        except Malformed as problem:
            place = Place(self._data.path, offset=self._data.bytes)
            self._faults.append(FileFault(place, problem.what, problem.expected, problem.found))

    def _walk_loose(self, start: int) -> None:
        """List the buffers that no entry covers.

        After a bad buffer, continue at its end according to its size field, if a good buffer begins there.
        """
        problem = self._list_buffers(start)
        while problem is not None:
            if self._inspection.unfinished:
                # a killed task may leave its file cut anywhere, and there may be bytes of the file that it
                # was written over
                self._stopped_at = problem.offset
                return
            place = Place(self._data.path, offset=problem.offset)
            self._faults.append(FileFault(place, problem.what, problem.expected, problem.found))
            next_start = self._claimed_end(problem.offset)
            if next_start != self._data.bytes and not self._begins_buffer(next_start):
                self._stopped_at = problem.offset
                return
            problem = self._list_buffers(next_start)

    def _list_buffers(self, start: int) -> Malformed | None:
        """Add the buffers from ``start`` on. Return the error that ended this early, or None."""
        try:
            for found in walk(self._file, start, self._data.bytes):
                if self._encrypts is not None and found.stored.encrypted != self._encrypts:
                    raise Malformed(_OTHERWISE[self._encrypts], found.offset)
                kind, records = found.stored.data_type.name, self._count_loose(found)
                self._loose.append(LooseBuffer(found.offset, found.bytes, found.raw_bytes, kind, records))
                self._advance(found.bytes)
        except Malformed as problem:
            return problem
        return None

    def _begins_buffer(self, offset: int) -> bool:
        try:
            return next(walk(self._file, offset, self._data.bytes), None) is not None
        except Malformed:
            return False

    def _claimed_end(self, offset: int) -> int:
        size = bytes(self._file.read(offset, _SIZE_FIELD.stop))[_SIZE_FIELD]
        return offset + sealed_size(int.from_bytes(size, "little"))

    def _count_loose(self, found: FoundBuffer) -> int | None:
        if self._counter is None or found.stored.encrypted:  # decrypting needs the region, which is unknown
            return None
        try:
            with _at(found.offset):
                return self._counter.count_loose(found.memory, found.stored)
        except _HOSTS_ERRORS as error:
            self._leave_unchecked(error)
            return None

    def _leave_unchecked(self, error: OSError | MemoryError) -> None:
        what = error.strerror if isinstance(error, OSError) else None
        self._unchecked = self._unchecked or what or str(error)


@contextmanager
def _at(offset: int) -> Iterator[None]:
    """Give a counter's `Malformed` this offset in the file."""
    try:
        yield
    except Malformed as problem:
        raise Malformed(problem.what, offset, problem.expected, problem.found) from None
