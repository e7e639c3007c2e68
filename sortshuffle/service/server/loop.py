"""`EventLoop`: one thread that waits for sockets, for calls from other threads, and for its tick.

It is the server's only thread apart from those that use disks. No other thread uses the loop's objects
(connections, channels); other threads pass calls to the loop (`call_soon`).

    made --run, in one thread--> running --stop, from any--> stopped --close--> closed

Rules
* Nothing that the loop calls may block.
* A failure of a call is logged and has no other effect; a connection must catch its own failures.
* Work that blocks goes to `in_background`, which passes the result to the loop. `close` still processes the
  pending results, so that everything that a worker opened is closed. Work that has not begun when the loop is
  stopped fails instead.
* Work that takes long has separate threads, so that the opening of a file never waits for it.
* Work that the threads refuse (`reading.submission`) fails, and is not done later: nobody would give back
  what it opens.
* `call_soon` wakes the loop only if the loop sleeps, or is about to.
"""

from __future__ import annotations

import logging
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol, TypeVar

from sortshuffle import calls
from sortshuffle.errors import StateError
from sortshuffle.reading.submission import submit_once

T = TypeVar("T")
_log = logging.getLogger(__name__)

# they wait for disks: index files that are not in the page cache, one seek each
BACKGROUND_THREADS = 4
LONG_THREADS = 2  # they read whole extents: more threads would only take the disk from streaming consumers
TICK = 0.25  # seconds between two checks of time limits, which are seconds long


class Selectable(Protocol):
    """An object with a descriptor that the loop watches."""

    def fileno(self) -> int:
        """Return the descriptor."""

    def on_ready(self, events: int) -> None:
        """Handle selector events. Called in the loop's thread."""


class EventLoop:
    """A loop over a selector. ``on_turn``: called in every round; returns whether there is more to do at
    once. ``on_tick``: called every `TICK` seconds."""

    def __init__(self) -> None:
        self.on_turn: Callable[[], bool] = lambda: False
        self.on_tick: Callable[[], None] = lambda: None
        self._selector = calls.new_selector()
        self._calls: deque[Callable[[], None]] = deque()
        self._awake = False
        self._stopped = False
        self._thread: int | None = None
        self._background = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="sortshuffle-open")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="sortshuffle-long")
        self._wake, self._waker = calls.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Run the loop in this thread until `stop`."""
        self._thread = threading.get_ident()
        next_tick = time.monotonic() + TICK
        busy = False
        while not self._stopped:
            self._awake = False  # first: a call added from here on is seen below, or wakes the loop
            self._wait(0.0 if busy or self._calls else max(0.0, next_tick - time.monotonic()))
            self._make_calls()
            busy = self.on_turn()
            if time.monotonic() >= next_tick:
                _guarded(self.on_tick)
                next_tick = time.monotonic() + TICK

    def stop(self) -> None:
        """End `run` soon. May be called from any thread, and again."""
        self._stopped = True
        self._wake_up()

    def close(self) -> None:
        """Wait for the work in the background and process its results. Call it after `run`. While a disk
        hangs, it does not return."""
        self._background.shutdown()
        self._long.shutdown()
        while self._calls:
            self._make_calls()
        self._selector.close()
        self._wake.close()
        self._waker.close()

    def watch(self, watched: Selectable, events: int) -> None:
        """Call the object's `on_ready` for these events from now on; 0: for none."""
        known = watched.fileno() in self._selector.get_map()
        if known and not events:
            self._selector.unregister(watched)
        elif known:
            self._selector.modify(watched, events, watched)
        elif events:
            self._selector.register(watched, events, watched)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make the loop's thread call ``call``. May be called from any thread; never blocks."""
        self._calls.append(call)
        if not self._awake:
            self._wake_up()

    def in_background(
        self, work: Callable[[], T], done: Callable[[Future[T]], None], takes_long: bool = False
    ) -> None:
        """Call ``work`` in a thread that may block, then ``done`` in the loop's thread with the completed
        future. It has a `StateError` if the loop was stopped before the work began, and the threads' error if
        none can be started."""
        future: Future[T] = Future()
        future.add_done_callback(lambda over: self.call_soon(lambda: done(over)))
        threads = self._long if takes_long else self._background
        submit_once(threads, lambda: self._complete(future, work), future.set_exception)

    def ask(self, question: Callable[[], T], timeout: float) -> T:
        """Return the result of ``question``, called in the loop's thread, or here if the loop does not run.
        Raises TimeoutError if the loop does not call it within ``timeout`` seconds."""
        if self._thread is None or self._stopped or threading.get_ident() == self._thread:
            return question()
        answer: Future[T] = Future()

        def call() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        self.call_soon(call)
        try:
            return answer.result(timeout)
        except FutureTimeoutError:  # which is not a TimeoutError before Python 3.11
            raise TimeoutError(f"the shuffle service's loop did not answer within {timeout:g} s") from None

    def _complete(self, future: Future[T], work: Callable[[], T]) -> None:
        try:
            if self._stopped:
                raise StateError("the shuffle service is stopped")
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            del future  # which has the error, whose traceback has this frame

    def _wait(self, seconds: float) -> None:
        ready = calls.select(self._selector, seconds)
        self._awake = True
        for key, events in ready:
            if key.data is None:
                self._drain_wakeups()
            else:
                _guarded(key.data.on_ready, events)

    def _drain_wakeups(self) -> None:
        try:
            calls.recv(self._wake, 4096)
        except BlockingIOError:
            pass

    def _wake_up(self) -> None:
        self._awake = True
        try:
            calls.send(self._waker, b"\0")
        except OSError:
            pass  # full: the loop is awake. Closed: the loop has ended

    def _make_calls(self) -> None:
        for _ in range(len(self._calls)):
            _guarded(self._calls.popleft())


def _guarded(call: Callable[..., None], *arguments: int) -> None:
    try:
        call(*arguments)
    except Exception:
        _log.exception("a call of the shuffle service's loop failed: %r", call)
