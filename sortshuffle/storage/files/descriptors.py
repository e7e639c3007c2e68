"""Functions that several modules need for the descriptors of locks and of files that are read.

Standard library only: the janitor uses it too.
"""

from __future__ import annotations

import errno
import fcntl
import time
from contextlib import suppress

from sortshuffle import calls


def close_after_reading(descriptor: int) -> None:
    """Close a descriptor and ignore an error: the descriptor is closed nevertheless, and the error can only
    concern written bytes, of which there are none."""
    with suppress(OSError):
        calls.close(descriptor)


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Return ``size`` bytes, or fewer at the end of the file. Raises OSError."""
    data = calls.pread(descriptor, size, offset)
    while len(data) < size and (more := calls.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def lock_until(descriptor: int, path: str, until: float, pause: float) -> None:
    """Take the lock of a file. ``until``: a time on the monotonic clock; ``pause``: seconds between attempts.
    Raises TimeoutError if others hold the lock until then, and any other OSError."""
    while True:
        try:
            calls.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, "other processes hold the lock", path) from None
            time.sleep(pause)
