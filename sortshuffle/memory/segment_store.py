"""`SegmentStore`: the free segments of a network pool, and the threads and pools that wait for them.

A `NetworkBufferPool` and its `LocalBufferPool`s share one store. Its lock, the segment lock, guards where
every segment is, here and in the local pools. A segment moves from place to place in one step.

Rules
* A claim is for several segments and gets all or none: no thread waits while it holds part of what it needs.
* A pool is hungry if threads wait for one of its segments and it has not taken all that it is guaranteed.
  Hungry pools take turns.
* Claims for which there are enough segments come first. Other claims do not hold up hungry pools: a pool
  takes only what it is guaranteed, and a claim's segments come from closed pools.

Lock order: the segment lock is the last one. Under it no other lock is taken, and no other code called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from sortshuffle.errors import BufferTimeoutError
from sortshuffle.memory.handover import HandoverLock, Waiter
from sortshuffle.memory.segment import MemorySegment


class HungryPool(Protocol):
    """A pool that may have threads waiting for its segments. Called with the segment lock held."""

    @property
    def is_hungry(self) -> bool:
        """Whether the pool can use one more segment now."""

    def feed(self, segment: MemorySegment) -> None:
        """Deliver the segment to the thread that has waited longest."""


class Claim(Waiter[list[MemorySegment]]):
    """A thread's wait for ``missing()`` segments at once. ``take_over``: called with them before it ends."""

    __slots__ = ("missing", "owner", "take_over")

    def __init__(
        self,
        owner: object,
        missing: Callable[[], int],
        take_over: Callable[[list[MemorySegment]], None],
    ) -> None:
        super().__init__()
        self.owner = owner
        self.missing = missing
        self.take_over = take_over

    def deliver(self, result: list[MemorySegment]) -> None:
        self.take_over(result)
        super().deliver(result)


class SegmentStore:
    """The free segments of a network pool. Hold the `lock` to call any method except `wait_for`,
    `timeout_error` and the counts."""

    def __init__(self, segments: list[MemorySegment], option: str) -> None:
        self.total = len(segments)
        self.option = option
        self.lock = HandoverLock()
        self._free = segments
        self._claims: list[Claim] = []
        self._hungry: dict[HungryPool, None] = {}  # an ordered set: the next to be served is first
        self._emptied = False

    @property
    def available(self) -> int:
        """Number of free segments."""
        return len(self._free)

    def take(self, count: int) -> list[MemorySegment]:
        """Remove ``count`` segments and return them. At least that many must be free."""
        split = len(self._free) - count
        segments = self._free[split:]
        del self._free[split:]
        return segments

    def put(self, segments: Iterable[MemorySegment]) -> None:
        """Take segments over, and deliver them to waiting threads."""
        if not self._emptied:
            self._free.extend(segments)
            self.serve()

    def add_hungry(self, pool: HungryPool) -> None:
        """Put the pool at the end of the queue of hungry pools, if it is hungry and not queued."""
        if pool.is_hungry:
            self._hungry[pool] = None

    def serve(self) -> None:
        """Deliver free segments, first to claims that can be met, then to hungry pools one after another."""
        for claim in self._claims.copy():
            missing = claim.missing()
            if missing <= len(self._free):
                self._claims.remove(claim)
                claim.deliver(self.take(missing))
        while self._free and self._hungry:
            pool = next(iter(self._hungry))
            del self._hungry[pool]
            if pool.is_hungry:
                pool.feed(self._free.pop())
                self.add_hungry(pool)

    def refuse(self, owner: object, cause: BaseException) -> None:
        """End the claims of ``owner`` with an error."""
        for claim in self._claims.copy():
            if claim.owner is owner:
                self._claims.remove(claim)
                claim.refuse(cause)

    def empty(self) -> None:
        """Drop all segments, and those that are put back later."""
        self._emptied = True
        self._free = []

    def wait_for(self, claim: Claim, timeout: float, expect_open: Callable[[], None]) -> None:
        """Wait until the claim is met. Call without the lock held.

        ``expect_open`` raises an error if the owner is closed. Raises `BufferTimeoutError` after ``timeout``
        seconds, `StateError` if the owner is closed during the wait. In either case no segment is taken.
        """
        start = time.monotonic()
        with self.lock:
            expect_open()
            self._claims.append(claim)
            self.serve()
        try:
            claim.wait(timeout)
        except BaseException:  # interrupted
            self._withdraw(claim)
            raise
        if self._withdraw(claim):
            seconds = time.monotonic() - start
            raise self.timeout_error(f"{claim.missing()} segments for {claim.owner}", seconds)
        claim.result  # noqa: B018  # raises if it was refused

    def timeout_error(self, what: str, seconds: float) -> BufferTimeoutError:
        """Return the error that says that ``what`` was not free within ``seconds``."""
        return BufferTimeoutError(
            f"{what}: not to be had within {seconds:.1f} s, {self.available} of {self.total} segments of the"
            f" process are free. Raise {self.option}, or let fewer tasks run at a time"
        )

    def _withdraw(self, claim: Claim) -> bool:
        """End the wait of a claim. Returns whether the claim was still waiting."""
        with self.lock:
            waiting = claim in self._claims
            if waiting:
                self._claims.remove(claim)
            return waiting
