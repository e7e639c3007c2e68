"""`KeptIndexes`: verified indexes of the map outputs that were read last, for the readers that come next.

Used by the `ReadScheduler`s of a shuffle service. Consumers read a map output one after another; without this
each of them would have the whole index read and verified again.

Rules
* All indexes together take at most ``most`` bytes. The least recently used go first. An index that is larger
  than an eighth of that is not kept: it would drive out many others.
* An id names its bytes for ever, so an index that is kept is never stale. It says nothing of the files: they
  are opened for each reader, and whether they are gone shows then.

Lock order: the lock is a leaf. Nothing is read under it.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict

from sortshuffle.format.index import Index
from sortshuffle.options import MIB

# bytes of all indexes that a service keeps: those of 1,000 map outputs with 300 extents each. A service then
# takes 6 % less CPU for a GB in extents of 4 MiB
KEPT_BYTES = 16 * MIB
LARGE_PART = 8  # an index larger than this part of all is not kept
FIXED_BYTES = 2048  # of an index beside its entries, kinds and schema; tracemalloc counted 1,900 to 2,060


class KeptIndexes:
    """Keeps ``most`` bytes of indexes, by the id of their files."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Index] = OrderedDict()  # least recently used first
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes that the indexes take."""
        return self._size

    def get(self, file_id: bytes) -> Index | None:
        """Return the index of the files with this id, if it is kept."""
        with self._lock:
            index = self._kept.get(file_id)
            if index is not None:
                self._kept.move_to_end(file_id)
            return index

    def keep(self, index: Index) -> None:
        """Keep the index, if it is not too large, and drop others for it."""
        size = _size_of(index)
        if size > self._most // LARGE_PART:
            return
        with self._lock:
            if index.header.file_id in self._kept:
                return
            self._kept[index.header.file_id] = index
            self._size += size
            while self._size > self._most:
                self._size -= _size_of(self._kept.popitem(last=False)[1])


def _size_of(index: Index) -> int:
    return index.entries.nbytes + sys.getsizeof(index.kinds) + len(index.schema) + FIXED_BYTES
