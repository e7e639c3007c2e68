"""When a record writer pushes out what it still collects: never, after every record, or every so often.

For record writers (`RecordWriter`) whose target has somebody who waits for the data already. For a
sort-merge partition every policy is as good as `NEVER`: it is read when it is finished
(`SortMergeResultPartition.flush`).

    OutputFlusher: running --close--> ended
                           --flush fails--> failed; `check` raises that from then on
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from sortshuffle.errors import UsageError


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """``seconds`` between flushes: 0 for one after every call that emits, None for none before the end."""

    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 <= self.seconds <= threading.TIMEOUT_MAX:
            raise UsageError(f"the time between flushes must be 0 or more seconds, not {self.seconds}")

    @property
    def is_always(self) -> bool:
        return self.seconds == 0

    @property
    def is_periodic(self) -> bool:
        return bool(self.seconds)


NEVER = FlushPolicy(None)
ALWAYS = FlushPolicy(0)


class OutputFlusher:
    """A thread that calls ``flush`` every so many seconds, until it is closed or a flush fails.

    It holds ``lock`` meanwhile, and until the failure is known: whoever has the lock and asks `check` does
    not go on with what a flush left half done. Not so whoever calls `close`, which waits for the flush.
    """

    def __init__(self, flush: Callable[[], None], seconds: float, lock: threading.Lock) -> None:
        self._flush = flush
        self._seconds = seconds
        self._lock = lock
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sortshuffle-flush", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what a flush raised."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the thread, and wait for the flush that it may be in. May be called again."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            with self._lock:
                try:
                    self._flush()
                except BaseException as error:
                    self._failure = error
                    return
