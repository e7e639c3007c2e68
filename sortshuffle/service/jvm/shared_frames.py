"""`SharedFrames`: memory that a JVM's task fills with frames and the engine reads in place.

    JVM: SHARE -> the engine makes the memory and replies with a path -> the JVM maps it
    JVM: fills a slot, SHARED_FRAME -> the engine takes the records, acknowledges -> the JVM fills it again

So the bytes need no copy and no system call. Through the socket they would be copied three times.

Rules
* The memory belongs to one connection and is never reused: no task sees or writes another task's bytes.
* The memory is freed when both processes have unmapped it, however they end. No file can be left over.
* It is anonymous memory (``memfd_create``). Neither a disk nor /dev/shm limits its size.
* All pages are allocated, and the size is sealed, before the JVM learns the path. So no access fails with
  SIGBUS, even where memory must not be overcommitted.
* The engine reads only the ranges that a frame names, after checking that they lie inside the memory.

Where the system has no such memory, or too little, `make` returns None, and frames come through the socket.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
from contextlib import suppress

import numpy as np

from sortshuffle import calls
from sortshuffle.errors import ProtocolError
from sortshuffle.options import MIB
from sortshuffle.service.jvm.protocol import SharedFrame
from sortshuffle.storage.files.descriptors import close_after_reading
from sortshuffle.writing.placed_records import PlacedRecords

MOST_BYTES = 64 * MIB  # for one connection; a JVM of this release asks for 5 MiB
_NAME = "sortshuffle-frames"  # shown by /proc
_ID_BYTES = 4

_log = logging.getLogger(__name__)


class SharedFrames:
    """``size``: bytes to allocate. The caller closes it. Raises OSError if the system has no such memory."""

    def __init__(self, size: int) -> None:
        self._fd = calls.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            calls.posix_fallocate(self._fd, 0, size)
            calls.fcntl(self._fd, fcntl.F_ADD_SEALS, _seals())
            self._map = calls.mmap(self._fd, size, prot=mmap.PROT_READ)
            self._view = memoryview(self._map)
        except BaseException:
            calls.close(self._fd)
            raise

    @property
    def path(self) -> str:
        """The path at which the JVM, a process of the same user, opens the memory until `close`."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def records(self, frame: SharedFrame) -> PlacedRecords:
        """Return a frame's records, in place. Raises `ProtocolError` if they are not inside the memory."""
        id_bytes = _ID_BYTES * frame.records
        ids = np.frombuffer(self._part(frame.ids, id_bytes), np.int32)
        ends = np.frombuffer(self._part(frame.ends, id_bytes), np.int32)
        return PlacedRecords(ids, ends, self._part(frame.data, frame.size))

    def close(self) -> None:
        """Unmap the memory. The JVM may still have it mapped."""
        close_after_reading(self._fd)
        with suppress(BufferError):  # a pending exception may hold records; they are freed with it
            self._view.release()
            self._map.close()

    def _part(self, position: int, size: int) -> memoryview:
        if position < 0 or size < 0 or position + size > len(self._view):
            raise ProtocolError(f"{size} bytes at {position} of {len(self._view)} that are shared")
        return self._view[position : position + size]


def _seals() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make(size: int) -> SharedFrames | None:
    """Return shared memory, or None if the system has none. Raises `ProtocolError` for an excessive size."""
    if not 0 < size <= MOST_BYTES:
        raise ProtocolError(f"{size} bytes to be shared, where {MOST_BYTES} are allowed")
    try:
        return SharedFrames(size)
    except (OSError, AttributeError) as error:
        _log.warning("frames come through the socket, because no memory can be shared: %s", error)
        return None
