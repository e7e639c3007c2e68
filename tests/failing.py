"""A fault at any call: the n-th call of a function of the package, in this thread, raises MemoryError.

for fault in faults("writing", "payload"):
    ...                       # what is to be whole in any case
    with fault:
        ...                   # fails one call later each time; the last time not at all
    ...                       # what must hold, wherever it failed

And a system that has no thread for the process (`no_threads`), or does not tell it what it asks (`not_told`).
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

import pytest
from engine import ROOT

from sortshuffle import calls
from sortshuffle.homes import processes


class Fault:
    """Raises at the ``left``-th call within the context, which passes it over. ``where``: the name of the
    function that failed, "" as long as none has."""

    def __init__(self, left: int, modules: tuple[str, ...]) -> None:
        self.where = ""
        self._left = left
        self._paths = tuple(str(ROOT / "sortshuffle" / module) for module in modules)
        self._before: Any = None

    def __enter__(self) -> Fault:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        sys.settrace(self._before)
        return bool(self.where) and isinstance(error, MemoryError)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self._paths):
            self._left -= 1
            if self._left == 0:
                self.where = frame.f_code.co_name
                raise MemoryError(f"in {self.where}, as a test wanted")


def faults(*modules: str) -> Iterator[Fault]:
    """Faults at the first, second, .. call of functions in these modules (paths in the package), until one
    finds no call to fail at."""
    number = 0
    while True:
        number += 1
        fault = Fault(number, modules)
        yield fault
        if not fault.where:
            return


@contextmanager
def no_threads() -> Iterator[None]:
    """A stack takes all of the address space: the system has none for a thread."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)


@contextmanager
def not_told(*paths: str) -> Iterator[None]:
    """The system does not tell what is in files of these names, or where links of these names lead; nor has
    it told this process before which one it is."""

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def told(path: Any, *arguments: Any, **named: Any) -> Any:
            if str(path).endswith(paths):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return call(path, *arguments, **named)

        return told

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processes, "_ids", processes._SystemIds())
        for name in ("open_file", "readlink"):
            patched.setattr(calls, name, failing(getattr(calls, name)))
        yield
