"""Files that the command line reads, on this host or in a store by URL.

    OpenFile      positioned reads; payloads are aligned in memory as in the file
      _LocalFile      by descriptor
      _StoredFile     by ranges, some MiB at a time, because files are read from front to back

Used by `storage.inspection.finding`, `storage.inspection.contents` and `storage.inspection.data_check`. For a
URL of a mounted directory, callers use its local path (`urls.mounted_path`). Errors are OSErrors with the
path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from sortshuffle import calls
from sortshuffle.options import MIB
from sortshuffle.storage.files.descriptors import close_after_reading
from sortshuffle.storage.files.extents import aligned_memory
from sortshuffle.storage.files.presence import is_locked
from sortshuffle.storage.files.urls import is_url, open_store, store_errors

BLOCK_BYTES = 8 * MIB  # per read of a store: reading that much takes far longer than a request's latency
_LARGEST_OFFSET = 2**62  # the system's limit; a damaged entry may have any offset


class OpenFile(Protocol):
    """A file for positioned reads. ``bytes``: its size when it was opened."""

    @property
    def bytes(self) -> int: ...

    def read(self, offset: int, size: int) -> pa.Buffer:
        """Return ``size`` bytes in `aligned_memory`, fewer at the end of the file."""


@contextmanager
def open_file(path: str) -> Iterator[OpenFile]:
    """Open a file for positioned reads."""
    if is_url(path):
        yield _StoredFile(path)
        return
    descriptor = calls.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield _LocalFile(descriptor)
    finally:
        close_after_reading(descriptor)


def is_file(path: str) -> bool:
    """Return whether the file exists now. Raises OSError if a store cannot be asked."""
    if not is_url(path):
        return calls.isfile(path)
    with store_errors("looking for a file", path):
        filesystem, inside = open_store(path)
        found: bool = filesystem.isfile(inside)
        return found


def is_directory(path: str) -> bool:
    """Return whether the directory exists, or whether anything is below a URL."""
    if not is_url(path):
        return calls.isdir(path)
    with store_errors("looking for a directory", path):
        filesystem, inside = open_store(path)
        found: bool = filesystem.isdir(inside)
        return found


def size_of(path: str) -> int:
    """Return the size of a file in bytes, 0 if there is none."""
    if not is_url(path):
        return calls.getsize(path) if calls.isfile(path) else 0
    if not is_file(path):
        return 0
    with open_file(path) as file:
        return file.bytes


def absolute(path: str) -> str:
    return path if is_url(path) else os.path.abspath(path)


def is_being_written(path: str) -> bool:
    """Return whether a live task writes this partial file and holds its lock. A store has no locks."""
    return not is_url(path) and is_locked(path)


class _LocalFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.bytes = calls.fstat(descriptor).st_size

    def read(self, offset: int, size: int) -> pa.Buffer:
        memory, view = aligned_memory(size)
        done = 0
        while done < size:
            at = offset + done
            count = calls.preadv(self._descriptor, [view[done:]], at) if at < _LARGEST_OFFSET else 0
            if count == 0:
                break
            done += count
        return memory.slice(0, done)


class _StoredFile:
    def __init__(self, url: str) -> None:
        self._url = url
        with store_errors("opening a file", url):
            self._filesystem, self._path = open_store(url)
            self.bytes = int(self._filesystem.size(self._path))
        self._block = b""
        self._start = 0  # of the block

    def read(self, offset: int, size: int) -> pa.Buffer:
        end = max(offset, min(offset + size, self.bytes))
        if not self._start <= offset <= end <= self._start + len(self._block):
            self._fetch(offset, max(end, min(offset + BLOCK_BYTES, self.bytes)))
        part = memoryview(self._block)[offset - self._start : end - self._start]
        memory, view = aligned_memory(len(part))
        view[:] = part
        return memory

    def _fetch(self, start: int, end: int) -> None:
        self._start, self._block = start, b""
        if start < end:
            with store_errors("reading a file", self._url):
                self._block = self._filesystem.cat_file(self._path, start=start, end=end)
