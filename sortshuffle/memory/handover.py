"""How the pools lock and wait: a lock that never blocks a finalizer, and one thread's wait for segments.

Used by `ReadBufferPool`, `NetworkBufferPool` and `LocalBufferPool`.

A finalizer may recycle a buffer at any time: garbage collection may end a generator while the same thread
holds the pool's lock. Acquiring the lock there would deadlock, and a re-entrant lock would let the finalizer
see a half-made change. So recycling is submitted as an action. The action runs at once if the lock is free;
if not, the thread that holds the lock runs it when it leaves the lock.

Closing and destroying a pool do wait for the lock. That is safe, because only the pool's maker calls them,
never a finalizer that interrupts a thread inside the pool: a generator that writes owns its pool alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from sortshuffle.errors import StateError

T = TypeVar("T")


class HandoverLock:
    """A lock with an inbox of actions that run under it.

    Rules
    * An action changes state and must not raise or block.
    * No action stays in the inbox: a thread that finds the lock taken leaves its action to the holder, and
      every holder checks the inbox once more after releasing the lock.
    """

    __slots__ = ("_inbox", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inbox: deque[Callable[[], None]] = deque()

    def submit(self, action: Callable[[], None]) -> None:
        """Run ``action`` under the lock, now or as soon as the lock is free. Never blocks."""
        self._inbox.append(action)
        # Do not wait for the lock: this may be a finalizer that interrupts the holder on its own thread
        if self._lock.acquire(blocking=False):
            self._drain_and_release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drain_and_release()

    def _drain_and_release(self) -> None:
        while True:
            try:
                while self._inbox:
                    self._inbox.popleft()()
            finally:
                self._lock.release()
            if not self._inbox or not self._lock.acquire(blocking=False):
                return


class Waiter(Generic[T]):
    """One thread's wait for one result, which another thread delivers or refuses, once.

    Delivering is safe under any lock and in finalizers: it stores the result and releases a latch.
    (`threading.Event.set` acquires a lock, which the thread running a finalizer may already hold.)
    """

    __slots__ = ("_cause", "_latch", "_result")

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._latch.acquire()
        self._result: T | None = None
        self._cause: BaseException | None = None

    def deliver(self, result: T) -> None:
        """Hand ``result`` over to the waiting thread, which owns it from now on."""
        self._result = result
        self._latch.release()

    def refuse(self, cause: BaseException) -> None:
        """End the wait without a result, because of ``cause``."""
        self._cause = cause
        self._latch.release()

    def wait(self, seconds: float) -> None:
        """Wait for a result or a refusal, for at most ``seconds``."""
        if not self._latch.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX)):
            return
        self._latch.release()

    @property
    def is_over(self) -> bool:
        """Whether a result was delivered or refused."""
        return not self._latch.locked()

    @property
    def delivered(self) -> T | None:
        """The result, or None. An interrupted thread must give back a result that it finds here."""
        return self._result

    @property
    def result(self) -> T | None:
        """The result, or None if there is none yet. Raises `StateError` if the result was refused."""
        if self._cause is not None:
            raise StateError(f"gave up waiting: {self._cause}") from self._cause
        return self._result
