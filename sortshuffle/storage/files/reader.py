"""`PartitionedFileReader`: reads extents of a finished result partition whose files this process can open.

Rules
* Only positioned reads, of whole extents or whole buffers. There is no shared seek position, so many threads
  may use one reader.
* Nothing is handed out before its checksum has been verified (`storage.files.extents`).
* Whatever is wrong with the files becomes a `CorruptDataError` or `MissingDataError` with the place. Only an
  OSError about this process (too many open files, no memory) becomes a `FileAccessError`.
* In a directory that all hosts have mounted, a file is lost only if it is not there. Any other error may be a
  passing one of its server: it becomes an OSError with URL and remedy.

The caller closes the reader. The pyarrow buffers own the memory that is handed out.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NoReturn

import pyarrow as pa

from sortshuffle import calls
from sortshuffle.errors import (
    OUT_OF,
    CorruptDataError,
    DecryptionError,
    FileAccessError,
    MissingDataError,
    Place,
)
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, FileHeader
from sortshuffle.format.index import Index, unpack_index
from sortshuffle.format.malformed import Malformed
from sortshuffle.storage.files.descriptors import close_after_reading, read_at
from sortshuffle.storage.files.extents import BY_KEY_ALONE, Extent, ExtentReader, aligned_memory
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.urls import MOUNTED_SCHEMES, store_error

INDEX_READ_BYTES = 64 << 20  # per read, when a mount returns less of an index than was requested


class PartitionedFileReader(ExtentReader):
    """Reads the extents of one data file.

    ``file_id``: the id that the file must have; None for any. ``writer``: the task that wrote it, for errors.
    ``mounted``: the file is in a directory that all hosts have mounted. ``key``: the application's, if its
    files are encrypted and payloads are read. Raises `MissingDataError` if the file is gone or another one,
    `CorruptDataError` if its header is damaged, `DecryptionError` for a wrong key.
    """

    def __init__(
        self,
        file: PartitionedFile,
        file_id: bytes | None = None,
        writer: str | None = None,
        mounted: bool = False,
        key: EncryptionKey | None = None,
    ) -> None:
        super().__init__(file.data_path, writer, key)
        self.file = file
        self._mounted = mounted
        try:
            self._descriptor = calls.open(file.data_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            _raise_unless_lost(error, file.data_path, mounted)
            raise self._missing(f"the data file cannot be opened: {error.strerror}") from error
        try:
            if not mounted:
                self._expect_its_name()
            with self.damage(0):
                self.header = FileHeader.unpack(self._read_header(), DATA_MAGIC)
            if file_id is not None and self.header.file_id != file_id:
                raise self._missing("the data file is another one", file_id.hex(), self.header.file_id.hex())
            self._file_id = self.header.file_id
            if key is not None and self.header.is_encrypted:
                self._check_key(key)
        except BaseException:
            close_after_reading(self._descriptor)
            raise

    def _expect_its_name(self) -> None:
        """Raise `MissingDataError` if the file was removed while it was opened: it may be written over now
        (`storage.files.spare_files`). If it still has its name, the janitor finds it open."""
        if is_gone(self.file.data_path):
            raise self._missing("the data file was removed while it was opened")

    def _check_key(self, key: EncryptionKey) -> None:
        if self._file_cipher(key).check != self.header.key_check:
            raise DecryptionError(self.place(), "the file is encrypted with another key", BY_KEY_ALONE)

    def fetch(self, size: int, extent: Extent, position: int = 0) -> pa.Buffer:
        memory, view = aligned_memory(size)
        done = 0
        while done < size:
            at = extent.offset + position + done
            try:
                count = calls.preadv(self._descriptor, [view[done:]], at)
            except OSError as error:
                self._fail(error, extent)
            if count == 0:
                raise self.cut_short(extent, position + done)
            done += count
        return memory

    def expect_size(self, wanted: int) -> None:
        """Check the file's size. ``wanted``: bytes according to its index. So a file that is cut short is
        found before any byte of it is read, and a reader of many files finds all such files at once. Not for
        mounted files: their server may report an old size. Raises `CorruptDataError`."""
        try:
            found = calls.fstat(self._descriptor).st_size
        except OSError as error:
            self._fail(error)
        if found != wanted:
            is_short = found < wanted
            what = "the data file is " + ("cut short" if is_short else "longer than its index says")
            raise CorruptDataError(self.place(), what, expected=wanted, found=found)

    def fileno(self) -> int:
        """Return the descriptor, for positioned reads into the caller's own memory."""
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close_after_reading(descriptor)

    def _read_header(self) -> bytes:
        try:
            return read_at(self._descriptor, HEADER_BYTES, 0)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError, extent: Extent | None = None) -> NoReturn:
        _raise_unless_lost(error, self.path, self._mounted)
        place = self.place(extent.offset if extent else 0, extent)
        raise CorruptDataError(place, f"the data file cannot be read: {error.strerror}") from error

    def _missing(self, what: str, expected: object = None, found: object = None) -> MissingDataError:
        return MissingDataError(self.place(), what, expected=expected, found=found)


def read_index(file: PartitionedFile, file_id: bytes | None = None, mounted: bool = False) -> Index:
    """Return the whole, verified index of a finished pair. Raises as `PartitionedFileReader` does."""
    try:
        data = _contents(file.index_path)
    except OSError as error:
        _raise_unless_lost(error, file.index_path, mounted)
        what = f"the index file cannot be opened: {error.strerror}"
        raise MissingDataError(Place(file.index_path), what) from error
    return verified_index(data, file.index_path, file_id)


def open_unlinked(
    file: PartitionedFile, file_id: bytes, task: str, key: EncryptionKey | None
) -> tuple[Index, PartitionedFileReader]:
    """Open a file that only this process reads, and delete its names. The system frees it with the reader's
    descriptor, however the process ends. If a name cannot be deleted, the janitor removes it later. ``task``:
    the writer, for errors. Raises as `PartitionedFileReader`."""
    try:
        return read_index(file, file_id), PartitionedFileReader(file, file_id, task, key=key)
    finally:
        with suppress(OSError):
            file.delete()


def _raise_unless_lost(error: OSError, path: str, mounted: bool) -> None:
    if error.errno in OUT_OF:
        raise FileAccessError(error.errno, path) from error
    if mounted and not isinstance(error, FileNotFoundError):
        raise store_error("reading a map output", MOUNTED_SCHEMES[0] + path, error) from error


def _contents(path: str) -> bytes:
    """Return the bytes of a file, with four system calls where ``open`` takes nine. Each call releases
    Python's lock, for which many threads of the shuffle manager's engine wait."""
    descriptor = calls.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = calls.fstat(descriptor).st_size
        data = calls.pread(descriptor, size + 1, 0)
        if len(data) == size:
            return data
        while more := calls.pread(descriptor, INDEX_READ_BYTES, len(data)):  # a mount may return less
            data += more
        return data
    finally:
        close_after_reading(descriptor)


def verified_index(data: BytesLike, path: str, file_id: bytes | None = None) -> Index:
    """Return the index that ``data`` holds. ``path``: of its file. Raises as `read_index` does."""
    try:
        index = unpack_index(data)
    except Malformed as problem:
        place = Place(path, offset=problem.offset)
        raise CorruptDataError(place, problem.what, expected=problem.expected, found=problem.found) from None
    if file_id is not None and index.header.file_id != file_id:
        found = index.header.file_id.hex()
        what = "the index file is another one"
        raise MissingDataError(Place(path), what, expected=file_id.hex(), found=found)
    return index
