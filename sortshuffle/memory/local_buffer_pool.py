"""`LocalBufferPool`: the buffers of one writer, a share of the process's segments.

Used by result partitions that are written from frames (`FrameEncoder`, for `ShuffleRDD` and
`sortshuffle.engine`), and by the writers of the shuffle manager's engine, each of which receives one frame at
a time.

    open --close--> closed: requests fail; segments in use go to the network pool when they are recycled

Counts: the pool is guaranteed ``size`` segments. It has taken ``requested`` of them from the network pool, of
which ``available`` are free here; the others are in use.

Rules
* A recycled segment goes to the thread that has waited longest. If no thread waits, the segment stays here.
  If this pool is closed, the segment goes to the network pool.
* While a thread waits, no segment is free here.

Lock order: the factory lock of the `NetworkBufferPool`, then the segment lock (`SegmentStore`), which guards
everything here. `recycle` never waits for either (`HandoverLock`).
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Protocol

from sortshuffle.errors import StateError
from sortshuffle.memory import leaks
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.handover import Waiter
from sortshuffle.memory.segment import MemorySegment
from sortshuffle.memory.segment_store import Claim, SegmentStore


class PoolOwner(Protocol):
    """What a local pool needs of the network pool that made it."""

    request_timeout: float

    def forget(self, pool: LocalBufferPool) -> None:
        """Stop counting ``pool``, which is closed: its segments may be guaranteed to other pools."""


class LocalBufferPool:
    """A pool of buffers for one writer, made by `NetworkBufferPool.create_pool`. Its maker closes it, or the
    result partition that owns it. Any thread may call any method.

    The caller recycles every buffer that it requests. Once the pool is closed, all requests, also waiting
    ones, raise `StateError`.
    """

    def __init__(self, owner: PoolOwner, store: SegmentStore, size: int, name: str) -> None:
        self.size = size
        self.name = name
        self._what_leaks = f"a buffer of local buffer pool {name!r}"
        self._owner = owner
        self._store = store
        self._requested = 0
        self._free: list[MemorySegment] = []
        self._waiting: deque[Waiter[MemorySegment]] = deque()
        self._closed = False

    @property
    def requested(self) -> int:
        """Number of segments taken from the network pool, whether free here or in use."""
        return self._requested

    @property
    def available(self) -> int:
        """Number of segments that are free here."""
        return len(self._free)

    def reserve(self, timeout: float | None = None) -> None:
        """Wait until all the segments that the pool is guaranteed are free, and take them.

        Raises `BufferTimeoutError` after ``timeout`` seconds (None: the network pool's), without taking any.
        """
        claim = Claim(self, lambda: self.size - self._requested, self._accept)
        self._store.wait_for(claim, self._seconds(timeout), self._expect_open)

    def request(self) -> Buffer | None:
        """Return a buffer, or None if none is free."""
        with self._store.lock:
            self._expect_open()
            segment = self._take()
        return None if segment is None else self._buffer_of(segment)

    def request_blocking(self, timeout: float | None = None) -> Buffer:
        """Wait for a buffer and return it. Raises `BufferTimeoutError` after ``timeout`` seconds (None: the
        network pool's time-out)."""
        start = time.monotonic()
        waiter: Waiter[MemorySegment] = Waiter()
        self._join(waiter)
        try:
            waiter.wait(self._seconds(timeout))
        except BaseException:  # interrupted: a segment that has been delivered must not be lost
            self._leave(waiter)
            if waiter.delivered is not None:
                self.recycle(waiter.delivered)
            raise
        self._leave(waiter)
        segment = waiter.result
        if segment is None:
            raise self._store.timeout_error(f"a buffer of {self}", time.monotonic() - start)
        return self._buffer_of(segment)

    def recycle(self, segment: MemorySegment) -> None:
        """Take a segment back (buffers call this when their last reference is recycled). Never blocks."""
        leaks.untrack((segment,))
        self._store.lock.submit(partial(self._take_back, segment))

    def close(self) -> None:
        """Make all requests fail, including those that wait. May be called again."""
        if self.shut():
            self._owner.forget(self)

    # Called by the network pool and the store, with the segment lock held, except for `shut`

    def shut(self, refusal: StateError | None = None) -> bool:
        """Close without calling `PoolOwner.forget`. ``refusal``: the error of waiting requests. Returns
        whether it was open."""
        with self._store.lock:
            if self._closed:
                return False
            self._closed = True
            refusal = refusal or StateError(f"{self} was closed")
            self._store.refuse(self, refusal)
            while self._waiting:
                self._waiting.popleft().refuse(refusal)
            free, self._free = self._free, []
            self._requested -= len(free)
            self._store.put(free)
        leaks.untrack((self,))
        return True

    @property
    def is_hungry(self) -> bool:
        return bool(self._waiting) and self._requested < self.size

    def feed(self, segment: MemorySegment) -> None:
        self._requested += 1
        self._offer(segment)

    def _accept(self, segments: list[MemorySegment]) -> None:
        for segment in segments:
            self.feed(segment)

    def _take(self) -> MemorySegment | None:
        """Take a segment from here or, within the size, from the store. Returns None if there is none."""
        if self._free:
            return self._free.pop()
        if self._requested < self.size and self._store.available:
            self._requested += 1
            return self._store.take(1)[0]
        return None

    def _offer(self, segment: MemorySegment) -> None:
        if self._waiting:
            self._waiting.popleft().deliver(segment)
        else:
            self._free.append(segment)

    def _take_back(self, segment: MemorySegment) -> None:
        if self._closed:
            self._requested -= 1
            self._store.put([segment])
        else:
            self._offer(segment)

    def _join(self, waiting: Waiter[MemorySegment]) -> None:
        """Deliver a segment to the waiter, now or as soon as there is one."""
        with self._store.lock:
            self._expect_open()
            segment = self._take()
            if segment is not None:
                waiting.deliver(segment)
            else:
                self._waiting.append(waiting)
                self._store.add_hungry(self)

    def _leave(self, waiter: Waiter[MemorySegment]) -> None:
        """End the wait: no segment is delivered to this waiter from now on."""
        with self._store.lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _buffer_of(self, segment: MemorySegment) -> Buffer:
        leaks.track(self._owner, (segment,), self._what_leaks)
        return Buffer(segment, self)

    def _seconds(self, timeout: float | None) -> float:
        return self._owner.request_timeout if timeout is None else timeout

    def _expect_open(self) -> None:
        if self._closed:
            raise StateError(f"{self} is closed")

    def __repr__(self) -> str:
        return (
            f"local buffer pool {self.name!r} ({self._requested} of {self.size} segments taken,"
            f" {len(self._free)} of them free)"
        )
