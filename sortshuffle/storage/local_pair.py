"""`LocalPair`: the two new files of a result partition, where they are files of this host.

    new --append_data, append_index--> new --commit--> both have their names
                                           --discard--> nothing is left

On a local disk the data file is locked until the index has its name: a ``.partial`` without a lock holder is
a dead task's, and anyone may delete it (`storage.lifetime`). A directory that all hosts have mounted
(``file:///mount``) has no janitor and needs no lock; but there, closing is what brings the last bytes to the
server, and tells of the room that they did not find: so the files are closed before they get their names.

Single-threaded. Owns both descriptors; they are closed by `commit` and `discard`, whatever these raise.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence

from sortshuffle.errors import OutOfDiskError
from sortshuffle.format.checksum import BytesLike
from sortshuffle.storage.lifetime import delete_unfinished
from sortshuffle.storage.partitioned_file import PartitionedFile

IOV_MAX = os.sysconf("SC_IOV_MAX")  # pieces that one gathered write takes; 1024 on Linux
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = -1


class LocalPair:
    """``mounted``: other hosts see the directory. ``makes_directory``: it is made if need be. Raises as
    `PartitionedFileWriter` does."""

    def __init__(self, file: PartitionedFile, mounted: bool = False, makes_directory: bool = False) -> None:
        self._file = file
        self._mounted = mounted
        if makes_directory:
            os.makedirs(os.path.dirname(file.base), mode=0o700, exist_ok=True)
        self._data, self._index = _create_pair(file, locked=not mounted)

    def append_data(self, pieces: Sequence[BytesLike]) -> None:
        """One gathered write, or several past `IOV_MAX` pieces."""
        _write_all(self._data, pieces, self._file.partial_data_path)

    def append_index(self, data: bytes) -> None:
        _write_all(self._index, [data], self._file.partial_index_path)

    def commit(self) -> None:
        """Give both files their names, the index last: an index means a complete pair."""
        if self._mounted:
            self._close()
        os.rename(self._file.partial_data_path, self._file.data_path)
        os.rename(self._file.partial_index_path, self._file.index_path)
        self._close()

    def discard(self) -> None:
        """Delete both files."""
        try:
            delete_unfinished(self._file)
        finally:
            self._close()

    def _close(self) -> None:
        data, self._data = self._data, _CLOSED
        index, self._index = self._index, _CLOSED
        try:
            _close(data, self._file.partial_data_path)
        finally:
            _close(index, self._file.partial_index_path)


def _create_pair(file: PartitionedFile, locked: bool) -> tuple[int, int]:
    """Descriptors of the two new files; no file and no descriptor on an error."""
    for path in (file.data_path, file.index_path):
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "this attempt's map output is there already", path)
    data = _create(file.partial_data_path)
    try:
        if locked:
            fcntl.flock(data, fcntl.LOCK_EX)
        return data, _create(file.partial_index_path)
    except BaseException:
        try:
            os.unlink(file.partial_data_path)
        finally:
            os.close(data)
        raise


def _create(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _translated(error, path, 0) from error


def _close(descriptor: int, path: str) -> None:
    if descriptor == _CLOSED:
        return
    try:
        os.close(descriptor)
    except OSError as error:
        raise _translated(error, path, 0) from error


def _write_all(descriptor: int, pieces: Sequence[BytesLike], path: str) -> None:
    """Append all pieces, in as few gathered writes as the system allows, finishing short ones."""
    views = [piece if isinstance(piece, bytes) else memoryview(piece).cast("B") for piece in pieces]
    start = 0
    while start < len(views):
        some = views[start : start + IOV_MAX]
        try:
            written = os.writev(descriptor, some)
        except OSError as error:
            raise _translated(error, path, sum(map(len, views[start:]))) from error
        if written == sum(map(len, some)):
            start += len(some)
            continue
        while written >= len(views[start]):
            written -= len(views[start])
            start += 1
        views[start] = memoryview(views[start])[written:]


def _translated(error: OSError, path: str, wanted: int) -> OSError:
    if error.errno not in _NO_SPACE:
        error.filename = path  # a write's own error names none
        return error
    directory = os.path.dirname(path)
    space = os.statvfs(directory)
    return OutOfDiskError(directory, wanted, space.f_bavail * space.f_frsize)
