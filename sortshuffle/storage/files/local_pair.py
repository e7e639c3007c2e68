"""`LocalPair`: the two new files of a result partition that are files of this host.

    new --append_data, append_index--> new --commit--> both have their names
                                           --discard--> nothing is left

On a local disk the data file stays locked until the index has its name. A ``.partial`` without a lock belongs
to a dead task, and anyone may delete it (`homes.lifetime`). If the directory has spare files, much data is
written over one (`storage.files.spare_files`). A directory that all hosts have mounted
(``file:///mount``) has no janitor and needs no lock. There the last bytes reach the server when a file is
closed, and the close fails if the server has no room: so the files are closed before they get their names.

Single-threaded. Owns both descriptors. `commit` and `discard` close them, whatever these methods raise.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from sortshuffle import calls
from sortshuffle.errors import FileAccessError, OutOfDiskError
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.storage.files import spare_files
from sortshuffle.storage.files.descriptors import close_after_reading
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.private import make_private

IOV_MAX = os.sysconf("SC_IOV_MAX")  # most pieces in one gathered write; 1024 on Linux
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = -1


class LocalPair:
    """``mounted``: other hosts see the directory. ``makes_directory``: make the directory if it is missing.
    Raises as `PartitionedFileWriter` does."""

    def __init__(self, file: PartitionedFile, mounted: bool = False, makes_directory: bool = False) -> None:
        self._file = file
        self._mounted = mounted
        if makes_directory:
            directory = os.path.dirname(file.base)
            with _failing_at(directory):
                make_private(directory)
        self._data, self._index = _create_pair(file, locked=not mounted)
        self._head: bytes | None = b""  # what is in the data file; None if it is more than the header
        self._is_written_over = False

    def append_data(self, pieces: Sequence[BytesLike]) -> None:
        """Append the pieces in one gathered write, or in several beyond `IOV_MAX` pieces."""
        if self._head is not None:
            self._begin(self._head, pieces)
        _write_all(self._data, pieces, self._file.partial_data_path, self._has_freed_spares)

    def _begin(self, head: bytes, pieces: Sequence[BytesLike]) -> None:
        """Decide which file the data goes to: it stays in the new one, unless much is to follow the header
        and there is a spare file. Then the spare gets the header, and takes the new file's name."""
        size = sum(memoryview(piece).nbytes for piece in pieces)
        if not head and size <= HEADER_BYTES:
            self._head = b"".join(pieces)
            return
        self._head = None
        if self._mounted or size < spare_files.SMALLEST:
            return  # a small output would only throw a large spare away
        directory, turn = os.path.dirname(self._file.base), self._file.attempt or 0
        spare = spare_files.reuse(directory, self._file.partial_data_path, head, turn)
        if spare is not None:
            new, self._data, self._is_written_over = self._data, spare, True
            close_after_reading(new)  # it has lost its name, so an error does not matter

    def append_index(self, data: bytes) -> None:
        _write_all(self._index, [data], self._file.partial_index_path, self._has_freed_spares)

    def commit(self) -> None:
        """Give both files their names, the index last: an index means a complete pair."""
        if self._mounted:
            self._close()
        if self._is_written_over:
            self._cut_off_old_bytes()
        # a rename may fail too: a full disk may have no room for the directory entry
        for path, name in (
            (self._file.partial_data_path, self._file.data_path),
            (self._file.partial_index_path, self._file.index_path),
        ):
            with _failing_at(path):
                calls.rename(path, name)
        self._close()

    def _has_freed_spares(self) -> bool:
        return not self._mounted and spare_files.delete_all(os.path.dirname(self._file.base))

    def _cut_off_old_bytes(self) -> None:
        """Remove what a spare file had behind the last byte that was appended."""
        with _failing_at(self._file.partial_data_path):
            end = calls.lseek(self._data, 0, os.SEEK_CUR)
            if calls.fstat(self._data).st_size != end:
                calls.ftruncate(self._data, end)

    def discard(self) -> None:
        """Delete both files. Ignores errors: the task has failed already, and its own error must be seen. A
        file that cannot be deleted is left as a ``.partial`` without a lock, which others delete."""
        with suppress(OSError):
            self._file.delete_unfinished()
        with suppress(OSError):
            self._close()

    def _close(self) -> None:
        data, self._data = self._data, _CLOSED
        index, self._index = self._index, _CLOSED
        try:
            _close(data, self._file.partial_data_path)
        finally:
            _close(index, self._file.partial_index_path)


def _create_pair(file: PartitionedFile, locked: bool) -> tuple[int, int]:
    """Create both files and return their descriptors. On an error, no file and no descriptor is left."""
    _expect_nothing_at(file.data_path)
    _expect_nothing_at(file.index_path)
    data = _create(file.partial_data_path)
    try:
        if locked:
            with _failing_at(file.partial_data_path):
                calls.flock(data, fcntl.LOCK_EX)
        return data, _create(file.partial_index_path)
    except BaseException:
        with suppress(OSError):
            calls.unlink(file.partial_data_path)
        with suppress(OSError):
            calls.close(data)
        raise


def _expect_nothing_at(path: str) -> None:
    """Raise FileExistsError if a finished file is there. (``lexists`` hides errors as "not there".)"""
    try:
        with _failing_at(path):
            calls.lstat(path)
    except FileNotFoundError:
        return
    raise FileExistsError(errno.EEXIST, "this attempt's map output is there already", path)


def _create(path: str) -> int:
    with _failing_at(path):
        return calls.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _close(descriptor: int, path: str) -> None:
    if descriptor == _CLOSED:
        return
    with _failing_at(path):
        calls.close(descriptor)


def _write_all(
    descriptor: int, pieces: Sequence[BytesLike], path: str, makes_room: Callable[[], bool] = lambda: False
) -> None:
    """Append all pieces, in as few gathered writes as the system allows. Completes short writes.
    ``makes_room``: called if there is no space; returns whether it is worth another try."""
    views = [piece if isinstance(piece, bytes) else memoryview(piece).cast("B") for piece in pieces]
    start = 0
    while start < len(views):
        some = views[start : start + IOV_MAX]
        try:
            written = calls.writev(descriptor, some)
        except OSError as error:
            if error.errno in _NO_SPACE and makes_room():
                continue
            _fail(error, path, sum(map(len, views[start:])))
        if written == sum(map(len, some)):
            start += len(some)
            continue
        while written >= len(views[start]):
            written -= len(views[start])
            start += 1
        views[start] = memoryview(views[start])[written:]


@contextmanager
def _failing_at(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _fail(error, path, 0)


def _fail(error: OSError, path: str, wanted: int) -> NoReturn:
    """Raise the package's error with place and remedy; or ``error`` itself, if callers look for its type."""
    if isinstance(error, FileNotFoundError | FileExistsError) or error.errno is None:
        raise error
    if error.errno not in _NO_SPACE:
        raise FileAccessError(error.errno, path) from error
    directory = os.path.dirname(path)
    raise OutOfDiskError(directory, wanted, _free_below(directory)) from error


def _free_below(directory: str) -> int:
    """Return the free bytes; 0 on an error, which must not hide that the disk is full."""
    try:
        space = calls.statvfs(directory)
    except OSError:
        return 0
    return space.f_bavail * space.f_frsize
