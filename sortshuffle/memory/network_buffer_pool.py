"""`NetworkBufferPool`: all the segments that a process moves bytes in, shared out to local pools.

Used by the map tasks of `ShuffleRDD`, one for each partition that is written, and by the shuffle manager's
engine, one for all its writers. Its memory is apart from that for reading (`ReadBufferPool`).

Shares: every local pool is guaranteed what it requires, or is not created. What is left is shared out in
proportion to what each pool could still use, whenever a pool comes or goes (`proportional_shares`). Requests
without a pool are guaranteed in the same way, for as long as they hold their segments.

Invariants, whenever the segment lock is free
* Every segment is in one place: free in the store, ``requested`` by one local pool, or held by one request.
* The guaranteed segments, of pools and requests, are never more than there are.
* The shares of all pools add up to no more than what requests leave, and to all of it if pools can use it.

Lock order: the factory lock (which pools there are, and their shares), then the segment lock (where every
segment is; `SegmentStore`). Who holds one of them calls no listener before both are free; only a finalizer
that comes in between may.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sortshuffle.errors import InsufficientBuffersError, StateError, UsageError
from sortshuffle.memory import leaks
from sortshuffle.memory.local_buffer_pool import LocalBufferPool
from sortshuffle.memory.segment import MemorySegment, allocate_segments
from sortshuffle.memory.segment_store import Claim, SegmentStore

REQUEST_TIMEOUT = 30.0  # seconds; guaranteed segments that do not come home for so long are a fault (Flink's)


class NetworkBufferPool:
    """``total`` segments of ``segment_bytes`` each. ``option`` is the setting that sized it.

    ``request_timeout``: seconds that blocking requests wait, here and in local pools. Raises MemoryError,
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
        self._unpooled = 0  # segments guaranteed to requests without a pool
        self._destroyed = False

    @property
    def available(self) -> int:
        """Segments that nobody has taken."""
        return self._store.available

    @property
    def guaranteed(self) -> int:
        """Segments promised to local pools and to requests."""
        return self._unpooled + sum(pool.required for pool in self._pools)

    @property
    def is_destroyed(self) -> bool:
        return self._destroyed

    def create_pool(self, required: int, maximum: int | None = None, name: str = "") -> LocalBufferPool:
        """A local pool that is guaranteed ``required`` segments and may grow to ``maximum`` (None: as many as
        there are). The caller closes it.

        Raises `InsufficientBuffersError` when so many cannot be guaranteed.
        """
        most = self.total if maximum is None else maximum
        if required < 1 or (maximum is not None and maximum < required):
            raise UsageError(f"a local pool requires 1 to {most} segments (its maximum), not {required}")
        with self._changing():
            self._guarantee(required, f"local buffer pool {name!r}")
            pool = LocalBufferPool(self, self._store, required, most, name)
            self._pools.append(pool)
            leaks.took(self, [pool], f"local buffer pool {name!r}, never closed")
        return pool

    def request_segments(self, count: int, timeout: float | None = None) -> list[MemorySegment]:
        """``count`` segments, all of them, waiting until local pools have given back what is above their
        shares. The caller gives them back with `recycle_segments`.

        Raises `InsufficientBuffersError` when so many cannot be guaranteed, `BufferTimeoutError` after
        ``timeout`` seconds (None: `request_timeout`), `StateError` when the pool is destroyed meanwhile.
        """
        if count < 1:
            raise UsageError(f"a request is for 1 segment at least, not {count}")
        with self._changing():
            self._guarantee(count, "a request without a pool")
            self._unpooled += count
        try:
            claim = Claim(self, lambda: count)
            seconds = self.request_timeout if timeout is None else timeout
            segments = self._store.meet(claim, seconds, self._expect_alive)
        except BaseException:
            with self._changing():
                self._unpooled -= count
            raise
        leaks.took(self, segments, f"a segment of {self}")
        return segments

    def recycle_segments(self, segments: Sequence[MemorySegment]) -> None:
        """Take back segments that `request_segments` gave, in any number. After `destroy` they are dropped.

        Raises `StateError` for more of them than are missing. Not for finalizers: it takes the factory lock.
        """
        with self._changing():
            if len(segments) > self._unpooled:
                raise StateError(
                    f"{len(segments)} segments recycled into {self}, which misses {self._unpooled}"
                )
            leaks.gave_back(segments)
            self._unpooled -= len(segments)
            with self._store.lock.quietly():
                self._store.put(segments)

    def destroy(self, cause: BaseException | None = None) -> None:
        """End the pool and all local pools: whoever waits fails, with the cause; what is recycled later is
        dropped. A second time does nothing."""
        refusal = cause or StateError(f"{self} was destroyed")
        with self._factory:
            if self._destroyed:
                return
            self._destroyed = True
            with self._store.lock.quietly():
                self._store.empty()
                self._store.refuse(self, refusal)
            for pool in self._pools:
                pool.shut(refusal)
            self._pools = []
        self._store.lock.call_back()
        leaks.report(self)

    def forget(self, pool: LocalBufferPool) -> None:
        """For `LocalBufferPool.close`: share out what the pool had."""
        with self._changing():
            if pool in self._pools:  # else all of them were shut by `destroy` meanwhile
                self._pools.remove(pool)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change what is guaranteed, under the factory lock; afterwards the shares are right again."""
        try:
            with self._factory:
                yield
                self._share_out()
        finally:
            self._store.lock.call_back()

    def _guarantee(self, count: int, what: str) -> None:
        """Raise unless so many more can be promised."""
        self._expect_alive()
        promised = self.guaranteed
        if promised + count > self.total:
            raise InsufficientBuffersError(
                f"{what} requires {count} segments of {self.segment_bytes} bytes; the process has"
                f" {self.total}, of which {promised} are guaranteed to others. Raise {self.option} to"
                f" {(promised + count) * self.segment_bytes} bytes at least, or let fewer tasks run at a time"
            )

    def _share_out(self) -> None:
        spare = self.total - self.guaranteed
        uses = [min(spare, pool.maximum - pool.required) for pool in self._pools]
        shares = proportional_shares(min(spare, sum(uses)), uses)
        with self._store.lock.quietly():
            for pool, share in zip(self._pools, shares, strict=True):
                pool.resize(pool.required + share)
            for pool in self._pools:  # when all have their new shares, so that none takes by an old one
                pool.give_up_excess()
            self._store.serve()

    def _expect_alive(self) -> None:
        if self._destroyed:
            raise StateError(f"{self} is destroyed")

    def __repr__(self) -> str:
        return f"the network buffer pool of {self.total} segments ({self.option})"


def proportional_shares(amount: int, weights: Sequence[int]) -> list[int]:
    """``amount`` in whole shares proportional to the weights, no share above its weight if the amount is not
    above their sum.

    Nothing is lost in rounding: a share is the difference of two cumulative ones, each rounded down.
    """
    whole = sum(weights)
    shares: list[int] = []
    weight = given = 0
    for each in weights:
        weight += each
        cumulative = amount * weight // whole if whole else 0
        shares.append(cumulative - given)
        given = cumulative
    return shares
