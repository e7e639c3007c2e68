"""`LocalBufferPool`: the buffers of one writer, out of those of the process.

Used by result partitions that are written from frames (`FrameEncoder`, for `ShuffleRDD`), and by the writers
of the shuffle manager's engine, each of which receives one frame at a time.

    open --close--> closed: nothing is handed out any more; what is still out goes home when it is recycled

The counts: ``requested`` segments were taken from the network pool; of these ``available`` lie here, the
others are in use. ``size`` is the pool's share now, between ``required`` (guaranteed) and ``maximum``.

Rules
* A recycled segment goes to whoever waits first; if the pool has more than its share, back to the network
  pool; else it stays here. So a share that shrinks does it lazily, as segments come home.
* While somebody waits, nothing lies here.
* A listener is called once, outside the segment lock, with one buffer that is then its own, or with None when
  the pool was closed. It may be called before `add_listener` returns, and on any thread, at any point,
  finalizers included (whose thread may hold any lock): it hands the buffer over (to a queue, an event loop),
  or recycles it, and does nothing else. What it raises is logged.

Lock order: the factory lock of the `NetworkBufferPool`, then the segment lock (`SegmentStore`), which guards
everything here. `recycle` takes neither if it has to wait for it (`HandoverLock`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

from sortshuffle.errors import StateError
from sortshuffle.memory import leaks
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.handover import Waiter
from sortshuffle.memory.segment import MemorySegment
from sortshuffle.memory.segment_store import Claim, SegmentStore

Listener: TypeAlias = Callable[[Buffer | None], None]
"""Is given one buffer, which it must recycle, or None when there will be none."""


class PoolOwner(Protocol):
    """What a local pool needs of the network pool that made it."""

    segment_bytes: int
    request_timeout: float

    def forget(self, pool: LocalBufferPool) -> None:
        """The pool is closed: its guaranteed segments may be promised to others."""


class LocalBufferPool:
    """Made by `NetworkBufferPool.create_pool`; the maker closes it, or the result partition that it was given
    to. Any thread may call any method.

    Every buffer it hands out is the caller's to recycle. Requests raise `StateError` once it is closed, and
    those that wait then fail with its cause.
    """

    def __init__(self, owner: PoolOwner, store: SegmentStore, required: int, maximum: int, name: str) -> None:
        self.required = required
        self.maximum = maximum
        self.name = name
        self._what_leaks = f"a buffer of local buffer pool {name!r}"
        self._owner = owner
        self._store = store
        self._size = required
        self._requested = 0
        self._free: list[MemorySegment] = []
        self._waiting: deque[Waiter[MemorySegment] | _Listening] = deque()
        self._closed = False

    @property
    def size(self) -> int:
        """Segments that are this pool's share now."""
        return self._size

    @property
    def requested(self) -> int:
        """Segments taken from the network pool: those lying here and those in use."""
        return self._requested

    @property
    def available(self) -> int:
        """Segments that lie here."""
        return len(self._free)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def reserve(self, timeout: float | None = None) -> None:
        """Wait until the pool has taken all the segments it was guaranteed.

        Raises `BufferTimeoutError` after ``timeout`` seconds (None: the network pool's), with none taken.
        """
        claim = Claim(self, lambda: max(0, self.required - self._requested), self._accept)
        self._store.meet(claim, self._seconds(timeout), self._expect_open)

    def request(self) -> Buffer | None:
        """A buffer, or None if none is free within the pool's share."""
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

    def add_listener(self, listener: Listener) -> None:
        """Have it called with the next buffer that is free for it: see the module's rules."""
        self._join(_Listening(self, listener, leaks.here()))

    def recycle(self, segment: MemorySegment) -> None:
        """Take a segment back (buffers do this at their last reference). Never blocks."""
        leaks.gave_back((segment,))
        self._store.lock.submit(partial(self._come_home, segment))

    def close(self, cause: BaseException | None = None) -> None:
        """Hand out nothing more; whoever waits fails, with the cause. A second time does nothing."""
        if self.shut(cause):
            self._owner.forget(self)

    # For the network pool and the store; the segment lock is held, except for `shut`

    def shut(self, cause: BaseException | None = None) -> bool:
        """Close, without telling the network pool. Returns whether it was open. Calls no listener: the caller
        does that (`HandoverLock.call_back`) when it holds no lock."""
        with self._store.lock.quietly():
            if self._closed:
                return False
            self._closed = True
            refusal = cause or StateError(f"{self} was closed")
            self._store.refuse(self, refusal)
            while self._waiting:
                self._waiting.popleft().refuse(refusal)
            free, self._free = self._free, []
            self._requested -= len(free)
            self._store.put(free)
        leaks.gave_back((self,))
        return True

    def resize(self, size: int) -> None:
        """Set the pool's share."""
        self._size = size
        self._store.add_hungry(self)

    def give_up_excess(self) -> None:
        """Give back what lies here above the share. What is in use above it goes back when it comes home."""
        excess = min(self._requested - self._size, len(self._free))
        if excess > 0:
            given, self._free = self._free[:excess], self._free[excess:]
            self._requested -= excess
            self._store.put(given)

    @property
    def is_hungry(self) -> bool:
        return bool(self._waiting) and self._requested < self._size

    def feed(self, segment: MemorySegment) -> None:
        self._requested += 1
        self._offer(segment)

    def _accept(self, segments: list[MemorySegment]) -> None:
        for segment in segments:
            self.feed(segment)

    def _take(self) -> MemorySegment | None:
        """A segment from here or, within the share, from the store."""
        if self._free:
            return self._free.pop()
        if self._requested < self._size and self._store.available:
            self._requested += 1
            return self._store.take(1)[0]
        return None

    def _offer(self, segment: MemorySegment) -> None:
        if self._waiting:
            self._waiting.popleft().deliver(segment)
        else:
            self._free.append(segment)

    def _come_home(self, segment: MemorySegment) -> None:
        if self._closed or self._requested > self._size:
            self._requested -= 1
            self._store.put([segment])
        else:
            self._offer(segment)

    def _join(self, waiting: Waiter[MemorySegment] | _Listening) -> None:
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

    def _handed_out(self, segment: MemorySegment, place: tuple[str, ...] = ()) -> Buffer:
        leaks.took(self._owner, (segment,), self._what_leaks, place)
        return Buffer(segment, self)

    def _seconds(self, timeout: float | None) -> float:
        return self._owner.request_timeout if timeout is None else timeout

    def _expect_open(self) -> None:
        if self._closed:
            raise StateError(f"{self} is closed")

    def __repr__(self) -> str:
        return (
            f"local buffer pool {self.name!r} ({self._requested} of {self._size} segments taken,"
            f" {len(self._free)} of them free; required {self.required}, maximum {self.maximum})"
        )


class _Listening:
    """A listener in the line of those who wait."""

    __slots__ = ("_listener", "_place", "_pool")

    def __init__(self, pool: LocalBufferPool, listener: Listener, place: tuple[str, ...]) -> None:
        self._pool = pool
        self._listener = listener
        self._place = place

    def deliver(self, segment: MemorySegment) -> None:
        self._pool._store.lock.afterwards(partial(self._hand_over, segment))

    def refuse(self, cause: BaseException) -> None:
        self._pool._store.lock.afterwards(partial(self._listener, None))

    def _hand_over(self, segment: MemorySegment) -> None:
        self._listener(self._pool._handed_out(segment, self._place))
