"""`SharedBudget`: one byte budget of a process, divided among the tasks that use it at the same time.

    SharedBudget.open --> BudgetShare (a `MemoryBudget`) --close--> its bytes go to the other shares

A `MemoryBudget` is for a single thread. The shuffle manager's engine writes and reads for many tasks at once,
each in its own thread, so each gets a share.

Rules
* A share's limit is an equal part of the whole, or ``most`` if that is less. It shrinks when other shares
  open, and grows when they close.
* Shrinking is lazy. If a share holds more than its limit, its next `would_exceed` says that nothing more
  fits, and its task writes what it holds. Until then the other shares can use only what is actually free.
* A share may always hold ``floor`` bytes, whatever the other shares hold: no share waits for another, so none
  waits for ever. The whole may therefore be exceeded: by ``floor`` for each share, by two shares that ask at
  the same moment, and by a single item that is larger than the share.

Lock order: the lock is a leaf.
"""

from __future__ import annotations

import threading

from sortshuffle.errors import StateError
from sortshuffle.memory.budget import MemoryBudget


class SharedBudget:
    """A budget of ``limit`` bytes for all shares together. ``floor``: bytes that a share may always hold.
    ``most``: bytes that it may never exceed; by default the whole."""

    def __init__(self, limit: int, floor: int, most: int | None = None) -> None:
        self.limit = limit
        self.floor = floor
        self._most = limit if most is None else most
        self.peak = 0
        self._lock = threading.Lock()
        self._used = 0
        self._shares = 0

    @property
    def used(self) -> int:
        """Bytes that all shares hold together."""
        return self._used

    @property
    def shares(self) -> int:
        """Number of open shares."""
        return self._shares

    def open(self, name: str) -> BudgetShare:
        """Open a share, which the caller closes. ``name``: for errors."""
        with self._lock:
            self._shares += 1
        return BudgetShare(self, name)

    def leave(self) -> None:
        """Count one open share less. Called by `BudgetShare.close`."""
        with self._lock:
            self._shares -= 1

    def count(self, size: int) -> None:
        """Count ``size`` more bytes as held, or fewer if it is negative. Called by the shares."""
        with self._lock:
            self._used += size
            if self._used > self.peak:
                self.peak = self._used

    def limit_of_share(self) -> int:
        """Return the bytes that one share may hold now."""
        return max(self.floor, min(self._most, self.limit // max(1, self._shares)))

    def exceeds(self, size: int) -> bool:
        """Return whether ``size`` more bytes would go over the limit of the whole."""
        return self._used + size > self.limit


class BudgetShare(MemoryBudget):
    """One task's share, made by `SharedBudget.open`; single-threaded. ``limit``: the limit at its opening."""

    __slots__ = ("_closed", "_whole")

    def __init__(self, whole: SharedBudget, name: str) -> None:
        super().__init__(whole.limit_of_share(), name)
        self._whole = whole
        self._closed = False

    def would_exceed(self, size: int) -> bool:
        """Return whether charging ``size`` more bytes would exceed the share's current limit, or the
        whole's."""
        wanted = self.used + size
        if wanted <= self._whole.floor:
            return False
        return wanted > self._whole.limit_of_share() or self._whole.exceeds(size)

    @property
    def least(self) -> int:
        return min(self.limit, self._whole.floor)

    def charge(self, size: int) -> None:
        if self._closed:
            raise StateError(f"the {self.name} share of memory is closed")
        super().charge(size)
        self._whole.count(size)

    def release(self, size: int) -> None:
        super().release(size)
        self._whole.count(-size)

    def close(self) -> None:
        """Release everything that the share still holds. May be called again."""
        if not self._closed:
            self._closed = True
            self.release_all()
            self._whole.leave()
