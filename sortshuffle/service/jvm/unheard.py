"""`UnheardServices`: which services on other hosts do not hear of removals, and are passed over for a while.

As a rule the host of such a service is gone. With dynamic allocation hundreds may be, and each costs a
time-out, for each shuffle anew. But a network that fails for a moment looks the same. So a service that is
passed over is tried again after a while.

Thread-safe; the lock is a leaf.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

MOST_UNHEARD = 3  # times in a row, then it is passed over
RETRY_AFTER = 600.0  # seconds from one attempt to the next; an attempt takes 10 s of one of 4 threads


@dataclass(frozen=True, slots=True)
class _Unheard:
    """``times`` in a row. ``tried_at``: when the last attempt began or failed."""

    times: int
    tried_at: float


class UnheardServices:
    """``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Unheard] = {}

    def may_try(self, service: str) -> bool:
        """Whether to tell it. Of one that was passed over only one caller is told so."""
        now = self._clock()
        with self._lock:
            known = self._known.get(service)
            if known is None or known.times < MOST_UNHEARD:
                return True
            if now - known.tried_at < RETRY_AFTER:
                return False
            self._known[service] = _Unheard(known.times, now)
            return True

    def heard(self, service: str) -> None:
        with self._lock:
            self._known.pop(service, None)

    def unheard(self, service: str) -> bool:
        """It did not hear. Whether it is passed over from now on, and was not before."""
        now = self._clock()
        with self._lock:
            known = self._known.get(service)
            times = known.times + 1 if known is not None else 1
            self._known[service] = _Unheard(times, now)
        return times == MOST_UNHEARD
