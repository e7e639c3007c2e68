"""`IndexCache`: verified indexes of the map outputs that were read last, for the readers that come next.

Used by the `ReadScheduler`s of a shuffle service, and by an engine for map outputs elsewhere
(`service.jvm.nonlocal_blocks`). Consumers read a map output one after another; without this each of them
would have the whole index read and verified again.

Rules
* All indexes together take at most ``most`` bytes. The least recently used go first. An index that takes more
  alone is not kept.
* An id names its bytes for ever, so an index that is kept is never stale. It says nothing of the files:
  whether they are gone shows when they are read. Who finds that may `forget` the index.

Lock order: the lock is a leaf. Nothing is read under it.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict

from sortshuffle.format.index import Index

FIXED_BYTES = 2048  # of an index beside its entries, kinds and schema; tracemalloc counted 1,900 to 2,060


class IndexCache:
    """Keeps ``most`` bytes of indexes, by the id of their files."""

    def __init__(self, most: int) -> None:
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
        """Keep the index, if there is room for it, and drop others for it."""
        size = _size_of(index)
        if size > self._most:
            return
        with self._lock:
            self._drop(index.header.file_id)
            while self._size + size > self._most:
                self._drop(next(iter(self._kept)))
            self._kept[index.header.file_id] = index
            self._size += size

    def forget(self, file_id: bytes) -> None:
        """Drop the index of the files with this id."""
        with self._lock:
            self._drop(file_id)

    def forget_all(self, exchange: int) -> None:
        """Drop the indexes of all map outputs of an exchange."""
        with self._lock:
            ids = [file_id for file_id, index in self._kept.items() if index.writer.exchange == exchange]
            for file_id in ids:
                self._drop(file_id)

    def _drop(self, file_id: bytes) -> None:
        index = self._kept.pop(file_id, None)
        if index is not None:
            self._size -= _size_of(index)


def _size_of(index: Index) -> int:
    return index.entries.nbytes + sys.getsizeof(index.kinds) + len(index.schema) + FIXED_BYTES
