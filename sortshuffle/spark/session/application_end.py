"""`ApplicationEnd`: calls functions when an application ends, because its SparkContext stops or Python exits.

Spark's Python has no listener for a context that stops, so the context's ``stop`` is replaced. When Python
exits, even by an exception, the context is stopped first. A killed driver calls nothing. So does Spark
Connect, where no client knows the end of the application.

Rules
* ``before`` is called while the context runs, ``after`` when no task runs any more. Each function is called
  once. One that fails is logged.
* A forked process has functions of its own. When it exits, it leaves the context to its parent, and calls
  only those of ``after``.
* At exit Python starts no more threads.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.util
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark import SparkContext

_log = logging.getLogger(__name__)
_ends: dict[tuple[str, int], ApplicationEnd] = {}
"""By application and process, until its context is stopped. A forked process also has its parent's."""
_lock = threading.Lock()  # of _ends, and of adding functions


class ApplicationEnd:
    """What one process does at the end of an application."""

    def __init__(self, context: SparkContext, application: str) -> None:
        self._key = application, os.getpid()
        self._process = os.getpid()
        self._has_parents_context = not _is_made_here(context)
        self._before: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        self._is_over = False
        self._stopping = threading.Lock()
        self._stopper: int | None = None  # the thread that holds it
        self._stop_context = context.stop
        own: Any = context
        own.stop = self.stop
        self._forget_exit = _at_exit(self._exit)

    @staticmethod
    def of(context: SparkContext, application: str) -> ApplicationEnd:
        """Return the one of this process. The first call makes it."""
        key = application, os.getpid()
        with _lock:
            if key not in _ends:
                _ends[key] = ApplicationEnd(context, application)
            return _ends[key]

    def before(self, function: Callable[[], None]) -> None:
        """Have a function called before the context stops."""
        self._add(self._before, function)

    def after(self, function: Callable[[], None]) -> None:
        """Have a function called when the context has stopped."""
        self._add(self._after, function)

    def _add(self, functions: list[Callable[[], None]], function: Callable[[], None]) -> None:
        with _lock:
            if not self._is_over:
                functions.append(function)
                return
        _call_all([function])  # the context has stopped

    def stop(self) -> None:
        """Stop the context, between the functions. Safe to call again: another thread waits until it has
        stopped; a signal's handler, which interrupts this very call, does not."""
        if not self._is_own():
            self._stop_context()
            return
        if self._stopper == threading.get_ident():
            return
        with self._stopping:
            self._stopper = threading.get_ident()
            try:
                _call_all(self._before)
            finally:
                self._before.clear()  # an interrupt has left some: they need a context that runs
                try:
                    self._stop_context()
                finally:
                    self._stopper = None
                    self._end()

    def _exit(self) -> None:
        if not self._is_own():
            return
        if self._has_parents_context:
            self._end()
        else:
            self.stop()

    def _is_own(self) -> bool:
        """Whether this process made this object. A forked process has a copy, and its parent goes on."""
        return self._process == os.getpid()

    def _end(self) -> None:
        self._forget_exit()
        with _lock:
            _ends.pop(self._key, None)
            self._is_over = True
        try:
            _call_all(self._before)  # those that were added meanwhile
        finally:
            _call_all(self._after)


def _call_all(functions: list[Callable[[], None]]) -> None:
    while functions:
        try:
            functions.pop(0)()
        except Exception:
            _log.exception("something that was to be done at the end of the application failed")


def _is_made_here(context: Any) -> bool:
    """Whether this process made the context, and was not forked from the one that did. The context has a
    server for accumulators, whose thread does not outlive a fork."""
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return True
    targets = (getattr(thread, "_target", None) for thread in threading.enumerate())
    return server.serve_forever in targets


def _at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Have a function called when this process exits. Return a function that undoes that."""
    if multiprocessing.parent_process() is None:
        atexit.register(function)
        return partial(atexit.unregister, function)
    # a process of multiprocessing may end without calling what `atexit` knows
    return multiprocessing.util.Finalize(None, function, exitpriority=0).cancel
