"""`SilentServices`: tells which services on other hosts do not answer requests to remove a shuffle, and are
skipped for a while.

As a rule the host of such a service is gone. With dynamic allocation hundreds may be gone, and each would
cost a time-out per shuffle. A short network failure looks the same, though. So attempts that overlap count as
one failure, and a skipped service is tried again after a delay, which doubles with each failure.

Thread-safe; the lock is a leaf.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

MOST_FAILURES = 3  # in a row; after that the service is skipped
RETRY_AFTER = 600.0  # seconds between attempts; an attempt takes 10 s of one of 4 threads
LONGEST_RETRY = 86400.0  # seconds; the longest delay: hundreds of dead hosts must not keep a thread busy


@dataclass(frozen=True, slots=True)
class _Silence:
    """``failures``: in a row. ``tried_at``: when the last attempt failed, or the current one began."""

    failures: int
    tried_at: float

    def retry_after(self) -> float:
        return min(RETRY_AFTER * 2.0 ** (self.failures - MOST_FAILURES), LONGEST_RETRY)


class SilentServices:
    """``clock``: returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._silences: dict[str, _Silence] = {}

    def begin_attempt(self, service: str) -> float | None:
        """Return the time at which an attempt begins, or None if the service is skipped. When the delay of a
        skipped service is over, only one caller gets a time."""
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
        """Count a failed attempt. ``began``: when the attempt began. It does not count if another attempt has
        failed since then. Returns True if the service is skipped from this failure on."""
        now = self._clock()
        with self._lock:
            silence = self._silences.get(service)
            if silence is not None and began < silence.tried_at:
                return False
            failures = silence.failures + 1 if silence is not None else 1
            self._silences[service] = _Silence(failures, now)
        return failures == MOST_FAILURES
