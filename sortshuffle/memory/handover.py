"""What the pools wait and hand over with: a lock that finalizers can get past, and a place to wait in.

The difficulty: a buffer may be given back anywhere, also by a generator that ends in a garbage collection,
which may start while this very thread holds the pool's lock. Taking the lock there would be a deadlock, and a
lock that the same thread may take twice would let it into a half-made change. So what gives back is
submitted: it is done at once if the lock is free, and by the thread that holds the lock, when it lets go, if
not. Closing and destroying a pool do wait for its lock: only whoever made the pool does that, and the pool of
a generator's partition is that partition's own, so nobody is within it when the generator ends.

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
    """A lock with an inbox of actions, done under it.

    Rules
    * An action changes state and must not raise or block.
    * Nothing stays in the inbox: who finds the lock taken leaves its action to the holder, and every holder
      looks into the inbox after it has let go.
    """

    __slots__ = ("_inbox", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inbox: deque[Callable[[], None]] = deque()

    def submit(self, action: Callable[[], None]) -> None:
        """Do it under the lock, now or as soon as the lock is free. Never blocks."""
        self._inbox.append(action)
        # Where the lock is taken nothing more may happen here: a finalizer may have come in the middle of the
        # holder's change, on the holder's own thread
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
    """One thread's wait for one thing, which another thread hands over or refuses, once.

    Handing over is safe under any lock and in finalizers: it is one store and the release of a lock that is
    never taken for long. (`threading.Event.set` takes a lock, which a finalizer may find taken.)
    """

    __slots__ = ("_cause", "_latch", "_result")

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._latch.acquire()
        self._result: T | None = None
        self._cause: BaseException | None = None

    def deliver(self, result: T) -> None:
        """Hand it over: it is the waiting thread's from now on."""
        self._result = result
        self._latch.release()

    def refuse(self, cause: BaseException) -> None:
        """It will never come."""
        self._cause = cause
        self._latch.release()

    def wait(self, seconds: float) -> None:
        """Until something was handed over, or refused, or the time is over."""
        if not self._latch.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX)):
            return
        self._latch.release()

    @property
    def is_over(self) -> bool:
        """Whether something was handed over, or refused."""
        return not self._latch.locked()

    @property
    def delivered(self) -> T | None:
        """What was handed over; None if nothing was. For whoever must give it back."""
        return self._result

    @property
    def result(self) -> T | None:
        """What was handed over; None if nothing was yet. Raises `StateError` if it was refused."""
        if self._cause is not None:
            raise StateError(f"gave up waiting: {self._cause}") from self._cause
        return self._result
