"""`SegmentStore`: the free segments of a network pool, and the threads and pools that wait for them.

`NetworkBufferPool` and its `LocalBufferPool`s share it. Its lock, the segment lock, guards where every
segment is, here and in all the local pools. A segment moves from one place to another in one step.

Rules
* A claim is for several segments and gets all or none: no thread waits while it holds part of what it needs.
* A pool is hungry when threads wait for one of its segments and it has not taken all that it is guaranteed.
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
    """A pool for whose segments threads wait."""

    @property
    def is_hungry(self) -> bool:
        """Whether it can use one more segment now."""

    def feed(self, segment: MemorySegment) -> None:
        """Deliver the segment to the thread that has waited longest. The segment lock is held."""


class Claim(Waiter[list[MemorySegment]]):
    """A thread's wait for several segments at once: ``missing()``, when so many are free."""

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
    """Free segments. Call all but `wait_for`, `timeout_error` and the counts with the `lock` held."""

    def __init__(self, segments: list[MemorySegment], option: str) -> None:
        self.total = len(segments)
        self.option = option
        self.lock = HandoverLock()
        self._free = segments
        self._claims: list[Claim] = []
        self._hungry: dict[HungryPool, None] = {}  # in the order of their turns
        self._emptied = False

    @property
    def available(self) -> int:
        """Segments that are free."""
        return len(self._free)

    def take(self, count: int) -> list[MemorySegment]:
        """This many for the caller; no more than there are."""
        split = len(self._free) - count
        segments = self._free[split:]
        del self._free[split:]
        return segments

    def put(self, segments: Iterable[MemorySegment]) -> None:
        """Take these over, and deliver them where they are waited for."""
        if not self._emptied:
            self._free.extend(segments)
            self.serve()

    def add_hungry(self, pool: HungryPool) -> None:
        """Give the pool a turn, if it is hungry."""
        if pool.is_hungry:
            self._hungry[pool] = None

    def serve(self) -> None:
        """Deliver free segments: to claims that can be met, then to hungry pools in turn."""
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
        """End the claims of this owner with an error."""
        for claim in self._claims.copy():
            if claim.owner is owner:
                self._claims.remove(claim)
                claim.refuse(cause)

    def empty(self) -> None:
        """Drop all segments, and those that come later."""
        self._emptied = True
        self._free = []

    def wait_for(self, claim: Claim, timeout: float, expect_open: Callable[[], None]) -> None:
        """Wait until the claim is met. Without the lock held.

        ``expect_open`` raises if the owner is closed. Raises `BufferTimeoutError` after ``timeout`` seconds,
        `StateError` when the owner is closed meanwhile. Nothing is taken then.
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
        """The error for ``what``, which was not free in time."""
        return BufferTimeoutError(
            f"{what}: not to be had within {seconds:.1f} s, {self.available} of {self.total} segments of the"
            f" process are free. Raise {self.option}, or let fewer tasks run at a time"
        )

    def _withdraw(self, claim: Claim) -> bool:
        """End the wait of a claim. Returns whether it was still waiting."""
        with self.lock:
            waiting = claim in self._claims
            if waiting:
                self._claims.remove(claim)
            return waiting
