"""`FloatingCredits`: the room for data ahead of their consumer, which all remote channels of a task share.

A channel has room of its own for what its consumer waits for, and for one segment. To have data come before
they are asked for it borrows from here, as much as the service says that it has ready, and gives back what
was consumed. So a task holds no more than ``total`` bytes of that, however many channels it has.

Rules
* Who asks first is served first, a segment at a time: a channel that wants more goes to the end of the queue.
* A channel may hold as much as is left for others. So one alone gets half of all, and each further one finds
  something. (The dynamic thresholds of Choudhury and Hahne, 1998, as in `reading.read_shares`.)
* Nobody waits in here, and nobody needs a loan to get on: a channel without one is only slower.

Lock order: the lock is a leaf. Borrowers are called under no lock, by whoever gave something back, who must
hold none that a borrower takes.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol


class Borrower(Protocol):
    """A channel, as far as it is known here. ``segment_bytes``: what one credit is worth to it now."""

    @property
    def segment_bytes(self) -> int: ...

    def lent(self, size: int) -> None:
        """So many bytes, which it asked for, have become free. Must not block."""


class FloatingCredits:
    """``total``: bytes that are lent at most."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._lock = threading.Lock()
        self._free = total
        self._held: dict[Borrower, int] = {}
        self._waiting: deque[Borrower] = deque()
        self._wanted: dict[Borrower, int] = {}

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self._free

    def held(self, borrower: Borrower) -> int:
        """Bytes that it holds."""
        return self._held.get(borrower, 0)

    def borrow(self, borrower: Borrower, segments: int) -> int:
        """Bytes that it gets at once, out of so many segments; the others are lent to it when its turn comes.
        A later call says anew how many it still wants, 0 for none."""
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
        """It holds so many bytes less. Lends them to those whose turn it is."""
        with self._lock:
            self._take_back(borrower, size)
            lent = self._lend_in_turn()
        _tell(lent)

    def leave(self, borrower: Borrower) -> None:
        """It gives back all that it holds, and wants no more. May be called again."""
        with self._lock:
            self._leave_queue(borrower)
            self._take_back(borrower, self.held(borrower))
            lent = self._lend_in_turn()
        _tell(lent)

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


def _tell(lent: dict[Borrower, int]) -> None:
    for borrower, size in lent.items():
        borrower.lent(size)
