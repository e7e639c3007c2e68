"""A fault at any call: the n-th call of a function of the package, in this thread, raises MemoryError.

for fault in faults("write", "payload"):
    ...                       # what is to be whole in any case
    with fault:
        ...                   # fails one call later each time; the last time not at all
    ...                       # what must hold, wherever it failed
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from engine import ROOT


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
