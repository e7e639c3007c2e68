"""`SingleFlight`: makes one call for all threads that ask for the same thing at the same time.

At the start of a reduce stage all tasks of a host ask for the same map outputs, and none of these is known
yet. Each map output is then read from a store once, not once for each task.

Thread-safe; the lock is a leaf. The first thread that asks makes the call, and holds no lock meanwhile. If
the call fails, the threads that wait for it fail with the same error. Results are not kept.

If the call takes longer than ``patience``, one waiting thread makes it again, and the others wait for that
one. After `WAITS` waits a thread calls by itself. So another thread's hanging call blocks no thread for more
than ``WAITS * patience``, and a store that is only slow is asked by few threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

Result = TypeVar("Result")

WAITS = 2  # how often a thread waits for another thread's call before it calls itself
PATIENCE = 30.0  # seconds; a read of an index takes up to 0.2 s, and some seconds where a store tries again


class SingleFlight(Generic[Result]):
    """``patience``: seconds to wait for another thread's call. Only a call that hangs should take longer."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._under_way: dict[bytes, Future[Result]] = {}

    def do(self, key: bytes, call: Callable[[], Result]) -> Result:
        """Return the result of ``call``, or of a call for the same key that another thread is making."""
        own: Future[Result] = Future()
        slow = None
        for _ in range(WAITS):
            other = self._begin(key, own, slow)
            if other is own:
                return self._make(key, own, call)
            if wait([other], self._patience).done:
                return other.result()
            slow = other
        return call()

    def _make(self, key: bytes, own: Future[Result], call: Callable[[], Result]) -> Result:
        try:
            own.set_result(call())
        except BaseException as error:
            own.set_exception(error)
        finally:
            with self._lock:
                # if this call was slow, another may have taken its place: leave that one
                if self._under_way.get(key) is own:
                    del self._under_way[key]
        return own.result()

    def _begin(self, key: bytes, own: Future[Result], slow: Future[Result] | None) -> Future[Result]:
        """Return the call under way. That is ``own`` if there was none, or only the slow one."""
        with self._lock:
            other = self._under_way.get(key)
            if other is None or other is slow:
                self._under_way[key] = own
                return own
            return other
