"""`SingleFlight`: what several threads ask for at the same time is done by one of them, for all.

At the start of a reduce stage all tasks of a host ask for the same map outputs, none of which is known yet.
Each of them is then read from a store once, not once for each task.

Thread-safe; the lock is a leaf. The call runs under no lock, in the thread that asked first. If it fails,
those who waited for it fail with it. If it takes longer than `PATIENCE`, each of them does it itself: one
request that hangs must not hold up a host. Nothing is kept: who asks later asks anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

Result = TypeVar("Result")

PATIENCE = 30.0  # seconds; a read of an index takes up to 0.2 s, and some seconds where a store tries again


class SingleFlight(Generic[Result]):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[bytes, Future[Result]] = {}

    def do(self, key: bytes, call: Callable[[], Result]) -> Result:
        """What ``call`` returns, or another thread's call with the same key that is under way."""
        with self._lock:
            other = self._under_way.get(key)
            if other is None:
                own = self._under_way[key] = Future()
        if other is not None:
            done, _ = wait([other], PATIENCE)
            return other.result() if done else call()
        try:
            own.set_result(call())
        except BaseException as error:
            own.set_exception(error)
        finally:
            with self._lock:
                del self._under_way[key]
        return own.result()
