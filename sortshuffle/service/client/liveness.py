"""`Liveness`: whether a service that owes something gets on.

Arithmetic only: whoever receives says what came.

Rules
* Silence is what somebody listened to: time in which this process stood still is not the service's.
* Getting on: `LEAST_BYTES` came within the time, or the end of something that was asked for (an extent, an
  index, an answer), however small: whoever receives says so (`got_on`). So a service whose disks are slow may
  send little at a time, and one that sends a byte now and then keeps nobody.
* A service that owes nothing may be silent.

Only the receiving thread uses it.
"""

from __future__ import annotations

from collections.abc import Callable

from sortshuffle.errors import ServiceUnavailableError

# Bytes that count as getting on by themselves: 2 KB/s at the default time-out, of whole buffers and of parts
# of them. A service reads and sends at least so much at a time, unless an extent ends before
LEAST_BYTES = 64 << 10
MOST_TICK = 1.0  # seconds between two looks at whether a silent connection should not be silent
TICKS = 10  # at least so many looks before it is given up
MOST_APART = 2  # ticks between two looks: a wait that ends just before a tick is over is followed by another


class Liveness:
    """``limit``: seconds in which the service may not get on. ``is_expecting``: whether it owes anything.
    ``heard``: when it last got on, or owed nothing. ``tick``: seconds between two looks."""

    def __init__(self, limit: float, is_expecting: Callable[[], bool], clock: Callable[[], float]) -> None:
        self.tick = min(MOST_TICK, limit / TICKS)
        self.heard = clock()
        self._limit = limit
        self._is_expecting = is_expecting
        self._clock = clock
        self._gained = 0  # bytes since it was heard
        self._looked = self.heard  # whether anything is expected

    def got_on(self) -> None:
        """Something that was asked for is whole, or enough of it came."""
        self.heard = self._looked = self._clock()
        self._gained = 0

    def count(self, size: int) -> None:
        """So many bytes came. Raises as `look` does."""
        self._gained += size
        if self._gained >= LEAST_BYTES:
            self.got_on()
        else:
            self.look()

    def look(self) -> None:
        """Raises `ServiceUnavailableError` if it does not get on. Looks at most once in a tick, because it
        asks under a lock. Where looks are further apart than `MOST_APART`, this process stood still (stopped,
        or its machine frozen): in that time nobody could see that the service got on, and it is not
        counted."""
        now = self._clock()
        apart = now - self._looked
        if apart < self.tick:
            return
        self.heard += max(0.0, apart - MOST_APART * self.tick)
        self._looked = now
        if not self._is_expecting():
            self.got_on()
        elif now - self.heard >= self._limit:
            what = f"only {self._gained} bytes" if self._gained else "nothing"
            raise ServiceUnavailableError(f"it sent {what} for {now - self.heard:.1f} s")
