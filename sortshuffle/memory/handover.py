"""How the pools lock and wait: a lock that a finalizer never blocks on, and one thread's wait for a segment.

The difficulty: a finalizer may recycle a buffer at any time. Garbage collection may end a generator while
this very thread holds the pool's lock. To take the lock there would be a deadlock, and a re-entrant lock
would let the finalizer into a half-made change. So recycling is submitted as an action: it runs at once if
the lock is free. If not, the thread that holds the lock runs it when it lets go. Closing and destroying a
pool do wait for the lock: only the pool's maker does that. The pool of a generator's partition is that
partition's own, so no thread is inside it when the generator ends.

Used by `ReadBufferPool`, `NetworkBufferPool` and `LocalBufferPool`.
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
    """A lock with an inbox of actions, which run under it.

    Rules
    * An action changes state and must not raise or block.
    * Nothing stays in the inbox: a thread that finds the lock taken leaves its action to the holder, and
      every holder looks into the inbox again after it has let go.
    """

    __slots__ = ("_inbox", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inbox: deque[Callable[[], None]] = deque()

    def submit(self, action: Callable[[], None]) -> None:
        """Run ``action`` under the lock, now or as soon as the lock is free. Never blocks."""
        self._inbox.append(action)
        # If the lock is taken, stop here: this may be a finalizer on the holder's own thread, in the middle
        # of the holder's change
        if self._lock.acquire(blocking=False):
            self._let_go()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Empty the inbox and free the lock."""
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

    To deliver is safe under any lock and in finalizers: it stores the result and releases a latch.
    (`threading.Event.set` takes a lock, which a finalizer may find taken.)
    """

    __slots__ = ("_cause", "_latch", "_result")

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._latch.acquire()
        self._result: T | None = None
        self._cause: BaseException | None = None

    def deliver(self, result: T) -> None:
        """The result belongs to the waiting thread from now on."""
        self._result = result
        self._latch.release()

    def refuse(self, cause: BaseException) -> None:
        """It will never come."""
        self._cause = cause
        self._latch.release()

    def wait(self, seconds: float) -> None:
        """Return when there is a result, or a refusal, or the time is over."""
        if not self._latch.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX)):
            return
        self._latch.release()

    @property
    def is_over(self) -> bool:
        """Whether a result was delivered, or refused."""
        return not self._latch.locked()

    @property
    def delivered(self) -> T | None:
        """The result, or None; for an interrupted thread, which must give it back."""
        return self._result

    @property
    def result(self) -> T | None:
        """The result, or None if there is none yet. Raises `StateError` if it was refused."""
        if self._cause is not None:
            raise StateError(f"gave up waiting: {self._cause}") from self._cause
        return self._result
