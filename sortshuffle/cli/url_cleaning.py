"""Finds dead applications on storage that every host sees, for `sortshuffle clean`.

Usually there are none: a driver removes its files when it ends. Storage does not show whether an application
is live. So it counts as dead if the caller names it, or if it has not changed for as long as the caller says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sortshuffle.cli.cleaning import CleanTarget, HomeVerdict
from sortshuffle.cli.durations import duration
from sortshuffle.cli.output import plural
from sortshuffle.storage.files.urls import root_and_application
from sortshuffle.storage.stored.stored_cleaning import Remains, remains_below, remove_remains


def judge_stored(url: str, application: str | None, older_than: float | None) -> Iterator[HomeVerdict]:
    """Yield a verdict on each application below a URL, or only on the one with this id or directory name.

    ``older_than``: seconds; without it only a named application is dead. Raises OSError if the storage cannot
    be listed.
    """
    now = time.time()
    for remains in remains_below(url, application):
        age = max(0.0, now - remains.changed)
        is_dead = age > older_than if older_than is not None else application is not None
        yield HomeVerdict(remains.url, CleanTarget.APPLICATION, is_dead, remains.bytes, _reason(remains, age))


def remove_stored(verdict: HomeVerdict) -> None:
    """Delete all files of an application. Raises OSError if the storage refuses."""
    remove_remains(*root_and_application(verdict.path))


def _reason(remains: Remains, age: float) -> str:
    parts = [plural(remains.map_outputs, "map output")]
    if remains.uploads:
        parts.append(plural(remains.uploads, "unfinished upload"))
    reason = f"{' and '.join(parts)}; nothing has changed for {duration(age)}"
    if remains.foreign is not None:
        reason += f"; {remains.foreign!r} there is not sortshuffle's and stays"
    return reason
