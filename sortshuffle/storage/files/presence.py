"""What the system tells of a path: whether anything is there, and whether its writer still works on it.

What the system does not tell, because it is out of files for example, never counts as gone or as left.
"""

from __future__ import annotations

import fcntl
import os

from sortshuffle import calls
from sortshuffle.storage.files.descriptors import close_after_reading


def is_gone(path: str) -> bool:
    """Whether nothing has that name. What the system does not tell counts as there."""
    try:
        calls.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def is_locked(path: str) -> bool:
    """Whether another process holds a lock on this file, as writers do until they are done with it."""
    try:
        descriptor = calls.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # cannot be told: leave it alone
    try:
        calls.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        close_after_reading(descriptor)
    return False
