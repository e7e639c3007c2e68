"""`NetworkBufferPool`: all the segments that a process moves bytes in, given to local pools.

The map tasks of `ShuffleRDD` and `sortshuffle.engine` use one for each partition they write; the shuffle
manager's engine uses one for all its writers. Reads use a separate pool (`ReadBufferPool`).

A local pool is guaranteed its size, or it is not created. It may still wait for segments in use by closed
pools.

Invariants, whenever the segment lock is free
* Every segment is in one place: free in the store, or ``requested`` by one local pool, open or closed.
* The pool never guarantees more segments than it has.

Lock order: the factory lock (which pools there are), then the segment lock (where every segment is;
`SegmentStore`).
"""

from __future__ import annotations

import threading

from sortshuffle.errors import InsufficientBuffersError, StateError, UsageError
from sortshuffle.memory import leaks
from sortshuffle.memory.local_buffer_pool import LocalBufferPool
from sortshuffle.memory.segment import allocate_segments
from sortshuffle.memory.segment_store import SegmentStore

REQUEST_TIMEOUT = 30.0  # seconds; not recycling guaranteed segments for longer is a fault (Flink's figure)


class NetworkBufferPool:
    """A pool of ``total`` segments of ``segment_bytes`` each. ``option``: the setting that sized it.

    ``request_timeout``: seconds that blocking requests wait in local pools. Raises MemoryError, naming the
    option, if there is no address space for the segments.
    """

    def __init__(
        self,
        total_segments: int,
        segment_bytes: int,
        *,
        option: str,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> None:
        if total_segments < 1:
            raise UsageError(f"{option}: a pool of {total_segments} segments is none")
        self.total = total_segments
        self.segment_bytes = segment_bytes
        self.option = option
        self.request_timeout = request_timeout
        self._store = SegmentStore(allocate_segments(total_segments, segment_bytes, option=option), option)
        self._factory = threading.Lock()
        self._pools: list[LocalBufferPool] = []
        self._destroyed = False

    @property
    def available(self) -> int:
        """Number of segments that no local pool has taken."""
        return self._store.available

    @property
    def guaranteed(self) -> int:
        """Number of segments that local pools are guaranteed."""
        return sum(pool.size for pool in self._pools)

    def create_pool(self, size: int, name: str = "") -> LocalBufferPool:
        """Create a local pool that is guaranteed ``size`` segments. The caller closes it.

        Raises `InsufficientBuffersError` if that many cannot be guaranteed.
        """
        if size < 1:
            raise UsageError(f"a local pool has 1 segment at least, not {size}")
        with self._factory:
            self._guarantee(size, f"local buffer pool {name!r}")
            pool = LocalBufferPool(self, self._store, size, name)
            self._pools.append(pool)
            leaks.track(self, [pool], f"local buffer pool {name!r}, never closed")
        return pool

    def destroy(self) -> None:
        """Destroy the pool and close all local pools: waiting requests fail, and segments that are recycled
        later are dropped. May be called again."""
        with self._factory:
            if self._destroyed:
                return
            self._destroyed = True
            with self._store.lock:
                self._store.empty()
            for pool in self._pools:
                pool.shut(StateError(f"{self} was destroyed"))
            self._pools = []
        leaks.report(self)

    def forget(self, pool: LocalBufferPool) -> None:
        """Stop counting ``pool``, so that others can have its segments. Called by `LocalBufferPool.close`."""
        with self._factory:
            if pool in self._pools:  # else `destroy` has shut all pools in the meantime
                self._pools.remove(pool)

    def _guarantee(self, count: int, what: str) -> None:
        """Raise an error unless ``count`` more segments can be guaranteed to ``what``."""
        self._expect_alive()
        promised = self.guaranteed
        if promised + count > self.total:
            raise InsufficientBuffersError(
                f"{what} requires {count} segments of {self.segment_bytes} bytes; the process has"
                f" {self.total}, of which {promised} are guaranteed to others. Raise {self.option} to"
                f" {(promised + count) * self.segment_bytes} bytes at least, or let fewer tasks run at a time"
            )

    def _expect_alive(self) -> None:
        if self._destroyed:
            raise StateError(f"{self} is destroyed")

    def __repr__(self) -> str:
        return f"the network buffer pool of {self.total} segments ({self.option})"
