"""What a command was to look at and could not: never the same as what it has looked at and found wrong.

A directory that cannot be listed is passed over, and the rest is looked at; the command then exits 1. What a
store refuses, or a service, ends the command with an exit code of its own: nothing is known of the files. So
does a store whose library is not installed. Both are in the documents that are printed for programs, with
path and reason, but for `dump` of what cannot be looked at, which prints none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from sortshuffle.errors import WorkerSetupError
from sortshuffle.storage.files.urls import is_url


class CannotLook(click.ClickException):
    """A store or a service refuses or does not answer, or a store's library is not installed; exits 4."""

    exit_code = 4

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.document = {"path": path, "why": why}

    @staticmethod
    def of(error: OSError) -> CannotLook:
        return CannotLook(str(error.filename), str(error.strerror))


@contextmanager
def storage_errors() -> Iterator[None]:
    """What a store refuses is `CannotLook`, and so is a store whose library is missing."""
    try:
        yield
    except WorkerSetupError as error:
        if error.path is None:
            raise
        raise CannotLook(error.path, str(error).removeprefix(error.path).strip()) from None
    except OSError as error:
        if not is_url(str(error.filename)):
            raise
        raise CannotLook.of(error) from None


class PassedOver:
    """The directories that cannot be listed. Each is said on standard error when it is met."""

    def __init__(self) -> None:
        self.documents: list[dict[str, str]] = []

    def add(self, error: OSError) -> None:
        warn(error)
        self.documents.append({"path": str(error.filename), "why": str(error.strerror)})


def warn(error: OSError) -> None:
    click.echo(f"{error.filename} is passed over: {error.strerror}", err=True)
