"""One byte budget for a task, and shares of it.

A budget counts; it does not allocate. Code that holds memory charges it, and releases it when the memory is
handed on or freed. The writing side asks `would_exceed` and flushes; the reading side asks and waits its
turn. Neither ever blocks on a budget, so a budget cannot deadlock.

Rules
* A share's charges count in its parent too.
* What is charged must be released, and no more than that.
* Memory that user code keeps is not charged: it was handed over.
* One thread only: read-ahead threads do not charge, the thread that starts them does.
"""

from __future__ import annotations

from sortshuffle.errors import StateError


class MemoryBudget:
    """Counts bytes in use against ``limit`` (bytes) and remembers the high-water mark."""

    __slots__ = ("_parent", "limit", "name", "peak", "used")

    def __init__(self, limit: int, name: str = "task", parent: MemoryBudget | None = None) -> None:
        self.limit = limit
        self.name = name
        self.used = 0
        self.peak = 0
        self._parent = parent

    @property
    def least(self) -> int:
        """Bytes that may be held whatever others hold. Here that is the limit: there are no others. A flush
        takes a part of it."""
        return self.limit

    def share(self, limit: int, name: str) -> MemoryBudget:
        """A part of this budget with a limit of its own; its charges count here too."""
        return MemoryBudget(min(limit, self.limit), name, self)

    def would_exceed(self, size: int) -> bool:
        """Whether charging ``size`` more bytes would go over the limit of this share."""
        return self.used + size > self.limit

    def charge(self, size: int) -> None:
        """Count ``size`` bytes as held; over the limit too, because a single item may be larger than that."""
        self.used += size
        if self.used > self.peak:
            self.peak = self.used
        if self._parent is not None:
            self._parent.charge(size)

    def release(self, size: int) -> None:
        """Count ``size`` bytes as no longer held."""
        if size > self.used:
            raise StateError(f"the {self.name} budget got back {size} bytes of {self.used} in use")
        self.used -= size
        if self._parent is not None:
            self._parent.release(size)

    def release_all(self) -> None:
        """Release all that this share still holds (after an error, or at its end)."""
        self.release(self.used)
