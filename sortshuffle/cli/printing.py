"""Printing to a standard output that may take no more: a full disk, or a pipe whose reader has seen enough.

Rule: an error of standard output is never taken for one of the files that are looked at. So it has a class of
its own from the write on, whoever prints: a command, click's help, or rich. Its exit code is its own, too: 1
would say that files are damaged.
"""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click


class CannotPrint(click.ClickException):
    """Standard output takes no more; exits 3. Whoever closed a pipe on purpose is told nothing."""

    exit_code = 3

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")
        self._was_closed = error.errno == errno.EPIPE

    def show(self, file: IO[Any] | None = None) -> None:
        if not self._was_closed:
            super().show(file)


class _Descriptor(io.FileIO):
    """Standard output's. ``is_done``: set at the end. What is still in the buffers is then dropped if it
    cannot be written. Otherwise Python would try again at its exit, and print an error."""

    is_done = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.is_done:
                return memoryview(data).nbytes
            raise CannotPrint(error) from None


@contextmanager
def printing() -> Iterator[None]:
    """While the block runs, what is printed and cannot be written raises `CannotPrint`, in every thread. Only
    of the process's own standard output: a caller that has put another in its place sees to that itself."""
    own = sys.__stdout__
    if own is None or sys.stdout is not own:
        yield
        return
    own.flush()
    descriptor = _Descriptor(own.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(descriptor), own.encoding, own.errors, line_buffering=own.isatty()
    )
    try:
        yield
    finally:
        descriptor.is_done = True
        sys.stdout.flush()
        sys.stdout = own
