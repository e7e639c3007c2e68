"""`MemoryBudget`: the byte budget of a task, and shares of it.

A budget counts; it does not allocate. Code that holds memory charges the budget, and releases the charge
when it frees the memory or has handed it on. The writing side calls `would_exceed` and flushes; the reading
side calls it and postpones the next fetch. Neither side ever blocks on a budget, so a budget cannot deadlock.

Rules
* A share's charges count in its parent too.
* Every charged byte must be released exactly once.
* Memory that was handed over to user code is not charged.
* Single-threaded: read-ahead threads do not charge, the thread that starts them does.
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
        """Bytes that may be held whatever other shares hold; here, the limit. Flushes size their working
        memory by it."""
        return self.limit

    def share(self, limit: int, name: str) -> MemoryBudget:
        """Return a share of this budget with its own limit. The share's charges count here too."""
        return MemoryBudget(min(limit, self.limit), name, self)

    def would_exceed(self, size: int) -> bool:
        """Return whether charging ``size`` more bytes would go over the limit of this share."""
        return self.used + size > self.limit

    def charge(self, size: int) -> None:
        """Count ``size`` bytes as held, even beyond the limit: a single item may be larger than the limit."""
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
        """Release everything that this share still holds (after an error, or at its end)."""
        self.release(self.used)
