"""What a command was to look at and could not: never the same as what it has looked at and found wrong.

A directory that cannot be listed is passed over, and the rest is looked at. What a store or a service refuses
ends the command, with an exit code of its own: nothing is known of the files. Both are in the documents that
are printed for programs, with path and reason.
"""

from __future__ import annotations

import click


class CannotLook(click.ClickException):
    """A store or a service refuses or does not answer; exits 4."""

    exit_code = 4

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.document = {"path": path, "why": why}

    @staticmethod
    def of(error: OSError) -> CannotLook:
        return CannotLook(str(error.filename), str(error.strerror))


class PassedOver:
    """The directories that cannot be listed. Each is said on standard error when it is met."""

    def __init__(self) -> None:
        self.documents: list[dict[str, str]] = []

    def add(self, error: OSError) -> None:
        warn(error)
        self.documents.append({"path": str(error.filename), "why": str(error.strerror)})


def warn(error: OSError) -> None:
    click.echo(f"{error.filename} is passed over: {error.strerror}", err=True)
