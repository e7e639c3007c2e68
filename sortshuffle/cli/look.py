"""Looking at pairs: inspection and, unless it should be quick, a pass over all the data, with a bar."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from sortshuffle.cli.output import progress
from sortshuffle.cli.records import row_counter
from sortshuffle.errors import UsageError
from sortshuffle.storage.inspection import (
    DataCheck,
    Fault,
    Inspection,
    State,
    check_data,
    find_pairs,
    inspect,
)


@dataclass(frozen=True, slots=True)
class Look:
    """One pair and what is known of it. ``check``: None if its data was not read."""

    inspection: Inspection
    check: DataCheck | None

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self.inspection.faults + (self.check.faults if self.check else ())

    @property
    def state(self) -> State:
        return self.inspection.state(self.check.faults if self.check else ())

    @property
    def name(self) -> str:
        return os.path.basename(self.inspection.base)

    @property
    def directory(self) -> str:
        return os.path.dirname(self.inspection.base)


def look(path: str, quick: bool = False, position: str = "") -> Look:
    """Look at the pair that a file belongs to. ``position``: how far this is in a list of them, for display.

    Raises `UsageError` if the file is not one of ours, or is gone.
    """
    inspection = inspect(path)
    if quick:
        return Look(inspection, None)
    size = inspection.data.bytes if inspection.data else 0
    with progress(f"{position}{os.path.basename(inspection.base)}", size) as advance:
        found = Look(inspection, check_data(inspection, row_counter(inspection), advance))
    if found.faults and not _is_there(inspection):
        raise UsageError(f"{inspection.base} has been removed meanwhile")
    return found


def _is_there(inspection: Inspection) -> bool:
    files = (inspection.data, inspection.index)
    return any(file is not None and os.path.lexists(file.path) for file in files)


def look_at_all(paths: Sequence[str], quick: bool = False) -> Iterator[Look]:
    """Look at pairs that were found in directories; those that are gone by now are passed over."""
    for number, path in enumerate(paths, start=1):
        try:
            yield look(path, quick, f"{number} of {len(paths)}: ")
        except UsageError:
            if os.path.lexists(path):
                raise


def pairs_below(directory: str) -> list[str]:
    """One path of each pair at or below a directory; says on standard error what cannot be listed."""
    return list(find_pairs(directory, on_error=warn))


def warn(error: OSError) -> None:
    """Say that a directory cannot be listed."""
    click.echo(f"{error.filename} is passed over: {error.strerror}", err=True)
