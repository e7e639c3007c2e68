"""`NetworkBufferPool`: all the segments that a process moves bytes in, given to local pools.

Used by the map tasks of `ShuffleRDD` and by `sortshuffle.engine`, one for each partition that is written, and
by the shuffle manager's engine, one for all its writers. Reads have memory of their own (`ReadBufferPool`).

A local pool is guaranteed its size, or it is not created. It may still wait for segments of closed pools that
are in use.

Invariants, whenever the segment lock is free
* Every segment is in one place: free in the store, or ``requested`` by one local pool, open or closed.
* No more segments are guaranteed than there are.

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

REQUEST_TIMEOUT = 30.0  # seconds; guaranteed segments that nobody recycles for so long are a fault (Flink's)


class NetworkBufferPool:
    """``total`` segments of ``segment_bytes`` each. ``option`` is the setting that sized it.

    ``request_timeout``: seconds that blocking requests wait in local pools. Raises MemoryError,
    naming the option, when there is no address space for the segments.
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
        """Segments that no local pool has taken."""
        return self._store.available

    @property
    def guaranteed(self) -> int:
        """Segments that local pools are guaranteed."""
        return sum(pool.size for pool in self._pools)

    def create_pool(self, size: int, name: str = "") -> LocalBufferPool:
        """A local pool that is guaranteed ``size`` segments. The caller closes it.

        Raises `InsufficientBuffersError` when so many cannot be guaranteed.
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
        """End the pool and all local pools: requests that wait fail, and what is recycled later is dropped. A
        second time does nothing."""
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
        """For `LocalBufferPool.close`: others may be guaranteed the pool's segments."""
        with self._factory:
            if pool in self._pools:  # else all of them were shut by `destroy` meanwhile
                self._pools.remove(pool)

    def _guarantee(self, count: int, what: str) -> None:
        """Raise unless ``count`` more can be guaranteed."""
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
