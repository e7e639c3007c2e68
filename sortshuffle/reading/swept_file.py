"""`SweptFile`: the data file of a result partition, as a `BatchReader` reads it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from sortshuffle import calls
from sortshuffle.errors import CorruptDataError, Place
from sortshuffle.storage.files.ranges import RangeExtent
from sortshuffle.storage.files.reader import PartitionedFileReader

IOV_MAX = os.sysconf("SC_IOV_MAX")  # the most pieces that one scattered read takes; 1024 on Linux


class SweptFile(PartitionedFileReader):
    """A data file that is read into segments. The bytes are *not* verified here: the consumer verifies them,
    because it has whole buffers."""

    def read_into(self, views: Sequence[memoryview], offset: int, extent: RangeExtent) -> None:
        """Fill ``views`` with the file's bytes from ``offset`` on. ``extent``: the extent there, for errors.

        Raises `CorruptDataError` if the file ends too early or cannot be read; OSError if the system has no
        memory for the read, which does not mean that the file is damaged.
        """
        left, at = list(views), offset
        while left:
            try:
                got = calls.preadv(self.fileno(), left[:IOV_MAX], at)
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    raise
                problem = f"the data file cannot be read: {error.strerror}"
                raise CorruptDataError(self._place_in(extent, at), problem) from error
            if got == 0:
                end = offset + sum(map(len, views))
                raise CorruptDataError(
                    self._place_in(extent, at), "the data file is cut short", expected=end, found=at
                )
            at += got
            left = _skip(left, got)

    def _place_in(self, extent: RangeExtent, offset: int) -> Place:
        return Place(self.path, extent.region, extent.subpartitions.first, offset, self._writer)


def _skip(views: list[memoryview], size: int) -> list[memoryview]:
    """Return what is left of ``views`` after their first ``size`` bytes."""
    for number, view in enumerate(views):
        if size < len(view):
            return [view[size:], *views[number + 1 :]]
        size -= len(view)
    return []
