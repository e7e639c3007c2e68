"""`SingleFlight`: one thread does what several threads ask for at the same time.

At the start of a reduce stage all tasks of a host ask for the same map outputs, and none is known yet. Each
map output is then read from a store once, not once for each task.

Thread-safe; the lock is a leaf. The call runs under no lock, in the thread that asked first. If it fails, the
threads that waited for it fail with it. If it takes longer than ``patience``, one of these makes the call
itself, and the others wait for that one, as long again. So a request that hangs does not hold up a host, and
not all threads ask a slow store at once. Nothing is kept: a later thread asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

Result = TypeVar("Result")

WAITS = 2  # for others, before a thread asks on its own
PATIENCE = 30.0  # seconds; a read of an index takes up to 0.2 s, and some seconds where a store tries again


class SingleFlight(Generic[Result]):
    """``patience``: seconds. Only a call that hangs takes longer."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._under_way: dict[bytes, Future[Result]] = {}

    def do(self, key: bytes, call: Callable[[], Result]) -> Result:
        """What ``call`` returns, or another thread's call with the same key that is under way."""
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
                # else this call was slow, and another has taken its place
                if self._under_way.get(key) is own:
                    del self._under_way[key]
        return own.result()

    def _begin(self, key: bytes, own: Future[Result], slow: Future[Result] | None) -> Future[Result]:
        """The call that is under way. It is ``own`` if there was none, or only the slow one."""
        with self._lock:
            other = self._under_way.get(key)
            if other is None or other is slow:
                self._under_way[key] = own
                return own
            return other
