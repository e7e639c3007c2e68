"""`FloatingCredits`: the memory for data ahead of their consumer, which all remote channels of a task share.

A channel has its own room for what its consumer waits for, and for one segment. To receive data before the
consumer wants them, it borrows here as much as the service says it has ready, and gives back what was
consumed. So a task holds no more than ``total`` bytes of such data, however many channels it has.

Rules
* First come, first served, a segment at a time: a channel that wants more goes to the end of the queue.
* A channel may hold as much as it leaves for others. So a single channel gets half of all, and each further
  one finds something. (The dynamic thresholds of Choudhury and Hahne, 1998, as in `reading.read_shares`.)
* No call waits here, and no channel needs a loan to make progress: without one it is only slower.

Lock order: the lock is a leaf. Borrowers are called under no lock, by the thread that gave something back; it
must hold no lock that a borrower takes.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol


class Borrower(Protocol):
    """What this module needs of a channel. ``segment_bytes``: what one credit is worth to it now."""

    @property
    def segment_bytes(self) -> int: ...

    def lent(self, size: int) -> None:
        """Receive ``size`` bytes of what the channel has asked for. Must not block."""


class FloatingCredits:
    """Lends at most ``total`` bytes to the channels of a task."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._lock = threading.Lock()
        self._free = total
        self._held: dict[Borrower, int] = {}
        self._waiting: deque[Borrower] = deque()
        self._wanted: dict[Borrower, int] = {}

    @property
    def free(self) -> int:
        """Bytes that no borrower holds."""
        return self._free

    def held(self, borrower: Borrower) -> int:
        """Return the bytes that the borrower holds."""
        return self._held.get(borrower, 0)

    def borrow(self, borrower: Borrower, segments: int) -> int:
        """Lend what is possible of so many segments, and return the bytes; the others are lent when the
        borrower's turn comes. A later call replaces the number of segments still wanted, 0 for none."""
        with self._lock:
            in_queue = borrower in self._wanted
            taken = 0
            if not self._waiting or (in_queue and len(self._waiting) == 1):
                while taken < segments and self._lend(borrower):
                    taken += 1
            if taken == segments:
                self._leave_queue(borrower)
            else:
                if not in_queue:
                    self._waiting.append(borrower)
                self._wanted[borrower] = segments - taken
            return taken * borrower.segment_bytes

    def give_back(self, borrower: Borrower, size: int) -> None:
        """Take back ``size`` bytes from the borrower, and lend them to the borrowers whose turn it is."""
        with self._lock:
            self._take_back(borrower, size)
            lent = self._lend_in_turn()
        _notify(lent)

    def leave(self, borrower: Borrower) -> None:
        """Take back all that the borrower holds, and drop what it still wants. May be called again."""
        with self._lock:
            self._leave_queue(borrower)
            self._take_back(borrower, self.held(borrower))
            lent = self._lend_in_turn()
        _notify(lent)

    def _lend(self, borrower: Borrower) -> bool:
        held, size = self.held(borrower), borrower.segment_bytes
        if held + size > self._free:
            return False
        self._held[borrower] = held + size
        self._free -= size
        return True

    def _take_back(self, borrower: Borrower, size: int) -> None:
        left = self.held(borrower) - size
        assert left >= 0, "more was given back than was lent"
        self._free += size
        if left:
            self._held[borrower] = left
        else:
            self._held.pop(borrower, None)

    def _lend_in_turn(self) -> dict[Borrower, int]:
        """Lend a segment at a time, round the queue, until no borrower gets one. Returns the bytes lent."""
        lent: dict[Borrower, int] = {}
        passed_over = 0
        while passed_over < len(self._waiting):
            borrower = self._waiting[0]
            self._waiting.rotate(-1)
            if not self._lend(borrower):
                passed_over += 1
                continue
            passed_over = 0
            lent[borrower] = lent.get(borrower, 0) + borrower.segment_bytes
            self._wanted[borrower] -= 1
            if not self._wanted[borrower]:
                self._leave_queue(borrower)
        return lent

    def _leave_queue(self, borrower: Borrower) -> None:
        if self._wanted.pop(borrower, None) is not None:
            self._waiting.remove(borrower)


def _notify(lent: dict[Borrower, int]) -> None:
    for borrower, size in lent.items():
        borrower.lent(size)
