"""`Liveness`: whether a service that owes something makes progress.

Arithmetic only: the receiving thread, which alone uses it, reports what arrives.

Rules
* Silence counts only while this process listens: time in which the process stood still is not the service's.
* Progress is `LEAST_BYTES` within the time limit, or the end of something requested (an extent, an index, an
  answer), however small, which the receiver reports (`progress`). So a service with slow disks may send
  little at a time, and a service that sends a byte now and then does not hold up its consumers for ever.
* A service that owes nothing may be silent.
"""

from __future__ import annotations

from collections.abc import Callable

from sortshuffle.errors import ServiceUnavailableError

# Bytes that count as progress: 2 KB/s at the default time-out, in whole buffers or parts of them. A service
# reads and sends at least this much at a time, unless an extent ends earlier
LEAST_BYTES = 64 << 10
MOST_TICK = 1.0  # seconds between two checks of a silent connection
TICKS = 10  # checks, at least, before giving up
MOST_APART = 2  # ticks between two checks: a wait that ends just short of a tick is followed by another


class Liveness:
    """Watches one connection. ``limit``: seconds that the service may go without progress.
    ``is_expecting``: whether the service owes anything. ``last_progress``: when it last made progress,
    or owed nothing. ``tick``: seconds between two checks."""

    def __init__(self, limit: float, is_expecting: Callable[[], bool], clock: Callable[[], float]) -> None:
        self.tick = min(MOST_TICK, limit / TICKS)
        self.last_progress = clock()
        self._limit = limit
        self._is_expecting = is_expecting
        self._clock = clock
        self._gained = 0  # bytes since ``last_progress``
        self._last_check = self.last_progress  # when it was last checked

    def progress(self) -> None:
        """Record progress: something requested is complete, or enough of it has arrived."""
        self.last_progress = self._last_check = self._clock()
        self._gained = 0

    def count(self, size: int) -> None:
        """Count bytes that arrived. Raises as `check` does."""
        self._gained += size
        if self._gained >= LEAST_BYTES:
            self.progress()
        else:
            self.check()

    def check(self) -> None:
        """Raise `ServiceUnavailableError` if the service makes no progress. Checks at most once in a tick,
        because `is_expecting` takes a lock. If checks are further apart than `MOST_APART`, this process stood
        still (stopped, or its machine frozen) and could see no progress: that time is not counted."""
        now = self._clock()
        apart = now - self._last_check
        if apart < self.tick:
            return
        self.last_progress += max(0.0, apart - MOST_APART * self.tick)
        self._last_check = now
        if not self._is_expecting():
            self.progress()
        elif now - self.last_progress >= self._limit:
            what = f"only {self._gained} bytes" if self._gained else "nothing"
            raise ServiceUnavailableError(f"it sent {what} for {now - self.last_progress:.1f} s")
