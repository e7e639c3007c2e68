"""`SegmentStore`: where the free segments of a network pool lie, and who waits for them.

The part that `NetworkBufferPool` and its `LocalBufferPool`s share. Its lock, the segment lock, guards where
every segment is, here and in all the local pools: a segment moves from one place to another in one step.

Rules
* A claim is for several segments and gets all or none: nobody waits while holding part of what he needs.
* A pool is hungry when threads wait for one of its segments while it has not taken all that it is guaranteed.
  Hungry pools take turns.
* Claims that can be met are met first. Those that can't do not hold up hungry pools: a pool takes only what
  it is guaranteed, and what a claim was promised comes from closed pools.

Lock order: the segment lock is the last one; under it nothing else is taken or called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from sortshuffle.errors import BufferTimeoutError
from sortshuffle.memory.handover import HandoverLock, Waiter
from sortshuffle.memory.segment import MemorySegment


class HungryPool(Protocol):
    """A pool for which somebody waits."""

    @property
    def is_hungry(self) -> bool:
        """Whether it can use one more segment, now."""

    def feed(self, segment: MemorySegment) -> None:
        """Take the segment over for whoever waits first. The segment lock is held."""


class Claim(Waiter[list[MemorySegment]]):
    """A thread's wait for several segments at once: as many as ``missing`` says when they are there."""

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
    """Free segments. All but `meet`, `late` and the counts is to be called with the `lock` held."""

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
        """Segments that lie here."""
        return len(self._free)

    def take(self, count: int) -> list[MemorySegment]:
        """This many, which are then the caller's; no more than there are."""
        split = len(self._free) - count
        taken = self._free[split:]
        del self._free[split:]
        return taken

    def put(self, segments: Iterable[MemorySegment]) -> None:
        """Take these over, and hand them to whoever waits."""
        if not self._emptied:
            self._free.extend(segments)
            self.serve()

    def add_hungry(self, pool: HungryPool) -> None:
        """Let the pool have its turn when there is something."""
        if pool.is_hungry:
            self._hungry[pool] = None

    def serve(self) -> None:
        """Hand out what is free to those who wait for it."""
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
        """Let the claims of this owner fail."""
        for claim in self._claims.copy():
            if claim.owner is owner:
                self._claims.remove(claim)
                claim.refuse(cause)

    def empty(self) -> None:
        """Let go of all segments, and of those that come later."""
        self._emptied = True
        self._free = []

    def meet(self, claim: Claim, timeout: float, expect_open: Callable[[], None]) -> None:
        """Hand over what is claimed, now or when it is free. Without the lock held.

        ``expect_open`` raises if the owner may claim nothing any more. Raises `BufferTimeoutError` after
        ``timeout`` seconds, `StateError` when the owner is closed meanwhile. Nothing is taken then.
        """
        begun = time.monotonic()
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
            raise self.late(f"{claim.missing()} segments for {claim.owner}", time.monotonic() - begun)
        claim.result  # noqa: B018  # raises if it was refused

    def late(self, what: str, seconds: float) -> BufferTimeoutError:
        """The error that says what did not come."""
        return BufferTimeoutError(
            f"{what}: not to be had within {seconds:.1f} s, {self.available} of {self.total} segments of the"
            f" process are free. Raise {self.option}, or let fewer tasks run at a time"
        )

    def _withdraw(self, claim: Claim) -> bool:
        """Whether the claim was still waiting; it no longer is."""
        with self.lock:
            waiting = claim in self._claims
            if waiting:
                self._claims.remove(claim)
            return waiting
