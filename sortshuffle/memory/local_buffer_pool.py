"""`LocalBufferPool`: the buffers of one writer, out of those of the process.

Used by result partitions that are written from frames (`FrameEncoder`, for `ShuffleRDD` and
`sortshuffle.engine`), and by the writers of the shuffle manager's engine, each of which receives one frame at
a time.

    open --close--> closed: nothing is handed out any more; what is still out goes home when it is recycled

The counts: ``requested`` segments, of the ``size`` that the pool is guaranteed, were taken from the network
pool; of these ``available`` lie here, the others are in use.

Rules
* A recycled segment goes to whoever waits first, else it stays here; to the network pool if this one is
  closed.
* While somebody waits, nothing lies here.

Lock order: the factory lock of the `NetworkBufferPool`, then the segment lock (`SegmentStore`), which guards
everything here. `recycle` takes neither if it has to wait for it (`HandoverLock`).
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
        """The pool is closed: its guaranteed segments may be promised to others."""


class LocalBufferPool:
    """Made by `NetworkBufferPool.create_pool`; the maker closes it, or the result partition that it was given
    to. Any thread may call any method.

    Every buffer it hands out is the caller's to recycle. Requests raise `StateError` once it is closed, and
    those that wait then fail.
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
        """Segments taken from the network pool: those lying here and those in use."""
        return self._requested

    @property
    def available(self) -> int:
        """Segments that lie here."""
        return len(self._free)

    def reserve(self, timeout: float | None = None) -> None:
        """Wait until the pool has taken all the segments it was guaranteed.

        Raises `BufferTimeoutError` after ``timeout`` seconds (None: the network pool's), with none taken.
        """
        claim = Claim(self, lambda: self.size - self._requested, self._accept)
        self._store.meet(claim, self._seconds(timeout), self._expect_open)

    def request(self) -> Buffer | None:
        """A buffer, or None if none is free within the pool's size."""
        with self._store.lock:
            self._expect_open()
            segment = self._take()
        return None if segment is None else self._handed_out(segment)

    def request_blocking(self, timeout: float | None = None) -> Buffer:
        """A buffer, as soon as there is one. Raises `BufferTimeoutError` after ``timeout`` seconds (None: the
        network pool's)."""
        begun = time.monotonic()
        waiter: Waiter[MemorySegment] = Waiter()
        self._join(waiter)
        try:
            waiter.wait(self._seconds(timeout))
        except BaseException:  # interrupted: what was handed over meanwhile must not be lost
            self._leave(waiter)
            if waiter.delivered is not None:
                self.recycle(waiter.delivered)
            raise
        self._leave(waiter)
        segment = waiter.result
        if segment is None:
            raise self._store.late(f"a buffer of {self}", time.monotonic() - begun)
        return self._handed_out(segment)

    def recycle(self, segment: MemorySegment) -> None:
        """Take a segment back (buffers do this at their last reference). Never blocks."""
        leaks.gave_back((segment,))
        self._store.lock.submit(partial(self._come_home, segment))

    def close(self) -> None:
        """Hand out nothing more; whoever waits fails. A second time does nothing."""
        if self.shut():
            self._owner.forget(self)

    # For the network pool and the store; the segment lock is held, except for `shut`

    def shut(self) -> bool:
        """Close, without telling the network pool. Returns whether it was open."""
        with self._store.lock:
            if self._closed:
                return False
            self._closed = True
            refusal = StateError(f"{self} was closed")
            self._store.refuse(self, refusal)
            while self._waiting:
                self._waiting.popleft().refuse(refusal)
            free, self._free = self._free, []
            self._requested -= len(free)
            self._store.put(free)
        leaks.gave_back((self,))
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
        """A segment from here or, within the size, from the store."""
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

    def _come_home(self, segment: MemorySegment) -> None:
        if self._closed:
            self._requested -= 1
            self._store.put([segment])
        else:
            self._offer(segment)

    def _join(self, waiting: Waiter[MemorySegment]) -> None:
        """Hand over a segment now, or as soon as there is one."""
        with self._store.lock:
            self._expect_open()
            segment = self._take()
            if segment is not None:
                waiting.deliver(segment)
            else:
                self._waiting.append(waiting)
                self._store.add_hungry(self)

    def _leave(self, waiter: Waiter[MemorySegment]) -> None:
        """Wait no longer: from now on nothing is handed over."""
        with self._store.lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _handed_out(self, segment: MemorySegment) -> Buffer:
        leaks.took(self._owner, (segment,), self._what_leaks)
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
