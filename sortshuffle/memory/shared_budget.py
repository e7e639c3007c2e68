"""`SharedMemory`: one byte budget of a process, divided among the tasks that write at the same time.

    SharedMemory.open --> ShareOfMemory (a `MemoryBudget`) --close--> its bytes go to the other shares

A budget of a task is one thread's (`memory.budget`). The shuffle manager's engine writes for many tasks at
once, each in a thread of its own, so each gets a share.

Rules
* A share's limit is an equal part of the whole. It shrinks when others open, and grows when they close.
* Shrinking is lazy: a share that holds more than its limit hears at its next question that nothing more fits,
  and writes what it has. Until then the others have what is really free.
* A share may always hold ``floor`` bytes, whatever the others hold: no share waits for another, so none waits
  for ever. The whole may therefore be exceeded: by ``floor`` for each share, by two shares that ask at the
  same moment, and by a single item that is larger than the share.

Lock order: the lock is a leaf.
"""

from __future__ import annotations

import threading

from sortshuffle.errors import StateError
from sortshuffle.memory.budget import MemoryBudget


class SharedMemory:
    """``limit`` bytes in all. ``floor``: bytes that each share may hold in any case."""

    def __init__(self, limit: int, floor: int) -> None:
        self.limit = limit
        self.floor = floor
        self.peak = 0
        self._lock = threading.Lock()
        self._used = 0
        self._shares = 0

    @property
    def used(self) -> int:
        """Bytes that all shares hold."""
        return self._used

    @property
    def shares(self) -> int:
        """How many shares are open."""
        return self._shares

    def open(self, name: str) -> ShareOfMemory:
        """A new share, which the caller closes. ``name``: for errors."""
        with self._lock:
            self._shares += 1
        return ShareOfMemory(self, name)

    def leave(self) -> None:
        """For `ShareOfMemory.close`."""
        with self._lock:
            self._shares -= 1

    def count(self, size: int) -> None:
        """For shares: ``size`` more bytes are held; less, if it is negative."""
        with self._lock:
            self._used += size
            if self._used > self.peak:
                self.peak = self._used

    def limit_of_share(self) -> int:
        """Bytes that one share may hold now."""
        return max(self.floor, self.limit // max(1, self._shares))

    def exceeds(self, size: int) -> bool:
        """Whether ``size`` more bytes go over the whole."""
        return self._used + size > self.limit


class ShareOfMemory(MemoryBudget):
    """One task's share. For one thread, as every budget."""

    __slots__ = ("_closed", "_whole")

    def __init__(self, whole: SharedMemory, name: str) -> None:
        super().__init__(whole.limit_of_share(), name)
        self._whole = whole
        self._closed = False

    def would_exceed(self, size: int) -> bool:
        """Whether charging ``size`` more bytes would go over this share, as it is now, or over the whole.
        ``limit`` is what the share was when it was opened."""
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
        """Release all that it still holds. May be called again."""
        if not self._closed:
            self._closed = True
            self.release_all()
            self._whole.leave()
