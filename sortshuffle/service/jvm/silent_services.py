"""`SilentServices`: services on other hosts that do not answer requests to remove a shuffle. They are passed
over for a while.

As a rule the host of such a service is gone. With dynamic allocation hundreds may be, and each costs a
time-out for each shuffle. But a network that fails for a moment looks the same. So attempts that overlap
count as one failure, and a service that is passed over is tried again after a while, which doubles with each
failure.

Thread-safe; the lock is a leaf.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

MOST_FAILURES = 3  # in a row; then the service is passed over
RETRY_AFTER = 600.0  # seconds from one attempt to the next; an attempt takes 10 s of one of 4 threads
LONGEST_RETRY = 86400.0  # seconds, to which that grows: hundreds of hosts that are gone must keep no thread


@dataclass(frozen=True, slots=True)
class _Silence:
    """``failures`` in a row. ``tried_at``: when the last attempt failed, or the attempt under way began."""

    failures: int
    tried_at: float

    def retry_after(self) -> float:
        return min(RETRY_AFTER * 2.0 ** (self.failures - MOST_FAILURES), LONGEST_RETRY)


class SilentServices:
    """``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._silences: dict[str, _Silence] = {}

    def begin_attempt(self, service: str) -> float | None:
        """The time at which an attempt begins; None where the service is passed over. When that time is over,
        only one caller makes an attempt."""
        now = self._clock()
        with self._lock:
            silence = self._silences.get(service)
            if silence is None or silence.failures < MOST_FAILURES:
                return now
            if now - silence.tried_at < silence.retry_after():
                return None
            self._silences[service] = _Silence(silence.failures, now)
            return now

    def answered(self, service: str) -> None:
        with self._lock:
            self._silences.pop(service, None)

    def failed(self, service: str, began: float) -> bool:
        """Note that the attempt that began then has failed. It counts only if no other attempt failed since
        it began. True if this failure is the one from which on the service is passed over."""
        now = self._clock()
        with self._lock:
            silence = self._silences.get(service)
            if silence is not None and began < silence.tried_at:
                return False
            failures = silence.failures + 1 if silence is not None else 1
            self._silences[service] = _Silence(failures, now)
        return failures == MOST_FAILURES
