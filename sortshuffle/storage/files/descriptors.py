"""Descriptors of files that are read, and of locks: what several modules do with them.

Standard library only: the janitor uses it, too.
"""

from __future__ import annotations

import errno
import fcntl
import time
from contextlib import suppress

from sortshuffle import calls


def close_after_reading(descriptor: int) -> None:
    """Close it and ignore an error: the descriptor is closed all the same, and the error can only be about
    written bytes, of which there are none."""
    with suppress(OSError):
        calls.close(descriptor)


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """``size`` bytes, fewer only at the end of the file. Raises OSError."""
    data = calls.pread(descriptor, size, offset)
    while len(data) < size and (more := calls.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def lock_until(descriptor: int, path: str, until: float, pause: float) -> None:
    """Take the lock of a file. ``until``: on the monotonic clock; ``pause``: seconds between tries. Raises
    TimeoutError if others hold it until then, and any other OSError."""
    while True:
        try:
            calls.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, "other processes hold the lock", path) from None
            time.sleep(pause)
