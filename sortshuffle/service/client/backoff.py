"""`Backoff`: when to try again what failed, and when to give up.

Used by `Trouble` for a connection, and by each of its channels for requests that the service refused.
Arithmetic only: the caller waits.

    calm --failed--> in trouble --failed--> .. --failed, too long--> given up
      ^                  |
      +-----progress-----+

The delay doubles from `FIRST_DELAY` to `MOST_DELAY`; the last one is cut so that one more attempt is made
when the time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_DELAY = 0.1  # seconds; a service that its supervisor starts again is back after a few of these
MOST_DELAY = 10.0  # seconds; so that hundreds of consumers do not keep a host busy that has just come up


class Backoff:
    """``limit``: seconds without progress after which it is given up."""

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._since: float | None = None
        self._delay = FIRST_DELAY

    @property
    def lasted(self) -> float:
        """Seconds since the trouble began, 0 if there is none."""
        return 0.0 if self._since is None else self._clock() - self._since

    def progress(self) -> None:
        """Something came: whatever fails from now on is new trouble."""
        self._since = None
        self._delay = FIRST_DELAY

    def failed(self, since: float | None = None) -> float | None:
        """Seconds to wait before the next attempt, None when it is to be given up. ``since``: when what
        failed was begun, on the clock; now, if it is not told."""
        if self._since is None:
            self._since = self._clock() if since is None else since
        left = self._limit - self.lasted
        if left <= 0:
            return None
        delay, self._delay = self._delay, min(2 * self._delay, MOST_DELAY)
        return min(delay, left)
