"""`UnheardServices`: which services on other hosts do not hear of removals, and are passed over for a while.

As a rule the host of such a service is gone. With dynamic allocation hundreds may be, and each costs a
time-out, for each shuffle anew. But a network that fails for a moment looks the same. So attempts that are
made at the same time fail once, and a service that is passed over is tried again after a while, which is
doubled each time that it does not hear.

Thread-safe; the lock is a leaf.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

MOST_UNHEARD = 3  # times in a row, then it is passed over
RETRY_AFTER = 600.0  # seconds from one attempt to the next; an attempt takes 10 s of one of 4 threads
LONGEST_RETRY = 86400.0  # seconds, to which that grows: hundreds of hosts that are gone must keep no thread


@dataclass(frozen=True, slots=True)
class _Unheard:
    """``times`` in a row. ``tried_at``: when the last attempt failed, or the one that is made now began."""

    times: int
    tried_at: float

    def retry_after(self) -> float:
        return min(RETRY_AFTER * 2.0 ** (self.times - MOST_UNHEARD), LONGEST_RETRY)


class UnheardServices:
    """``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Unheard] = {}

    def begin_attempt(self, service: str) -> float | None:
        """When the attempt to tell it begins, or None where it is passed over. Of one that was passed over
        only one caller makes an attempt."""
        now = self._clock()
        with self._lock:
            known = self._known.get(service)
            if known is None or known.times < MOST_UNHEARD:
                return now
            if now - known.tried_at < known.retry_after():
                return None
            self._known[service] = _Unheard(known.times, now)
            return now

    def heard(self, service: str) -> None:
        with self._lock:
            self._known.pop(service, None)

    def unheard(self, service: str, began: float) -> bool:
        """The attempt that began then has failed. Whether the service is passed over from now on, and was not
        before. An attempt that began before another one failed says nothing new."""
        now = self._clock()
        with self._lock:
            known = self._known.get(service)
            if known is not None and began < known.tried_at:
                return False
            times = known.times + 1 if known is not None else 1
            self._known[service] = _Unheard(times, now)
        return times == MOST_UNHEARD
