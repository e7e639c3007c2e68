"""Tells whether a file is there, and whether its writer still works on it.

If the system returns an error instead of an answer, for example for lack of descriptors, a path counts as
present, and as locked.
"""

from __future__ import annotations

import fcntl
import os

from sortshuffle import calls
from sortshuffle.storage.files.descriptors import close_after_reading


def is_gone(path: str) -> bool:
    """Return whether no file has that name."""
    try:
        calls.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def is_locked(path: str) -> bool:
    """Return whether another process holds a lock on this file, as its writer does."""
    try:
        # without O_NONBLOCK, a pipe of that name would wait for somebody to open its other end
        descriptor = calls.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        calls.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # another process has the lock, or the file system gives no answer
        return True
    finally:
        close_after_reading(descriptor)
    return False
