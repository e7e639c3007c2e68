"""`Backoff`: when to retry what failed, and when to give up.

Used by `ReconnectPolicy` for a link's connections, and by each channel for requests that the service refused.
Arithmetic only: the caller waits.

    calm --failed--> in trouble --failed--> .. --failed, too long--> given up
      ^                  |
      +-----progress-----+

The delay doubles from `FIRST_DELAY` to `MOST_DELAY`. The last delay is cut to end with the time limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_DELAY = 0.1  # seconds; a service that its supervisor restarts is back after a few of these
MOST_DELAY = 10.0  # seconds; long enough that hundreds of consumers do not swamp a host that has just come up


class Backoff:
    """The state of one operation that is retried. ``limit``: seconds without progress before giving up."""

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
        """Record progress: the next failure starts new trouble."""
        self._since = None
        self._delay = FIRST_DELAY

    def failed(self, since: float | None = None) -> float | None:
        """Return the seconds to wait before the next attempt, or None to give up. ``since``: when new trouble
        began, by the clock; None: now."""
        if self._since is None:
            self._since = self._clock() if since is None else since
        left = self._limit - self.lasted
        if left <= 0:
            return None
        delay, self._delay = self._delay, min(2 * self._delay, MOST_DELAY)
        return min(delay, left)
