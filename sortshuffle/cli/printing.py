"""Printing to a standard output that may fail because of a full disk, or a pipe whose reader has ended.

Rule: an error of standard output must never be mistaken for an error of a file that a command reads. So the
write itself raises a separate class, whether a command, click's help or rich prints. It also has its own exit
code: 1 would mean that files are damaged.
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
    """Standard output cannot be written to; exits 3. Says nothing of a pipe that its reader has closed."""

    exit_code = 3

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")
        self._was_closed = error.errno == errno.EPIPE

    def show(self, file: IO[Any] | None = None) -> None:
        if not self._was_closed:
            super().show(file)


class _Descriptor(io.FileIO):
    """Standard output. ``is_done``: set when the command has ended. From then on buffers that cannot be
    written are dropped: Python would retry them at exit, and print an error."""

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
    """Make failed writes to standard output raise `CannotPrint`, in every thread, while the block runs. Does
    nothing if the caller has replaced ``sys.stdout``: it handles errors itself."""
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
