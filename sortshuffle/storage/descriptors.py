"""Descriptors of files that are read: what every reader of this package does with them alike.

Standard library only: the janitor uses it, too.
"""

from __future__ import annotations

from contextlib import suppress

from sortshuffle import calls


def close_after_reading(descriptor: int) -> None:
    """Close it. The system has closed it even where it gives an error, which can only tell of bytes that were
    written: none were, and those that were read have been verified."""
    with suppress(OSError):
        calls.close(descriptor)


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """``size`` bytes, fewer at the end of the file only: one call may give less. Raises OSError."""
    data = calls.pread(descriptor, size, offset)
    while len(data) < size and (more := calls.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data
