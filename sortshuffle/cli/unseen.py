"""Places that a command cannot look into, which is not the same as files that it has found to be wrong.

* `PassedOver`: a file or directory that cannot be looked at. The command looks at the rest, and exits 1.
* `CannotLook`: a store or service that refuses or does not answer, or a missing library of a store. The
  command ends with exit code 4, because nothing is known of the files.

JSON documents name both, with path and reason. `dump` alone prints no document after a `CannotLook`.
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
    """Turn errors of a store, and a missing library, into `CannotLook`."""
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
    """Collects places that cannot be looked at, and warns of each on standard error at once."""

    def __init__(self) -> None:
        self.documents: list[dict[str, str]] = []

    def add(self, error: OSError) -> None:
        warn(error)
        self.documents.append({"path": str(error.filename), "why": str(error.strerror)})


def warn(error: OSError) -> None:
    click.echo(f"{error.filename} is passed over: {error.strerror}", err=True)
