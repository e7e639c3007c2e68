"""`Listings`: what is in directories. A directory is listed again only when a name came or went.

For the janitor and the shuffle service, which look at the same directories again and again: a look at one
that did not change costs one call, however many files it has.

Rules
* A directory's time of change says that a name came or went. A directory that changed just before a look may
  change again at the same time, so the next look lists it again.
* Before a deletion list afresh, with new `Listings`: a system may note changes late.
* The result of a listing is kept, so that known names need not be parsed again (``before``).

Not for several threads at once. Only the standard library is imported here: the janitor must stay small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from sortshuffle import calls

# seconds; longer than a tick of the clock of file systems: 10 ms on most, one second on ext3 and old NFS, two
# on FAT
SETTLES = 2.5

Made = TypeVar("Made")
Stamp = tuple[int, int, int]


class Listings(Generic[Made]):
    """``make``: makes a result of the names in a directory and of its result before, if there is one.
    ``clock``: seconds since 1970, as in the times of file systems."""

    def __init__(
        self, make: Callable[[list[str], Made | None], Made], clock: Callable[[], float] = time.time
    ) -> None:
        self._make = make
        self._clock = clock
        self._known: dict[str, tuple[Stamp | None, Made]] = {}
        self._unvisited: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        """The directories that are known."""
        return iter(list(self._known))

    def list_if_changed(self, directory: str) -> Made | None:
        """The result for the directory as it is now; None if there is none. Raises OSError."""
        self._unvisited.discard(directory)
        now = self._clock()  # first: a later change has a later time than a settled directory
        try:
            stamp = _stamp(directory)
            known, made = self._known.get(directory, (None, None))
            if made is None or known != stamp:
                made = self._make(calls.listdir(directory), made)
                self._known[directory] = (stamp if _is_settled(stamp, now) else None, made)
        except (FileNotFoundError, NotADirectoryError):
            self._known.pop(directory, None)
            return None
        return made

    def forget_unvisited(self) -> None:
        """Forget the directories that nobody has looked at since the last call."""
        self.forget(self._unvisited)
        self._unvisited = set(self._known)

    def forget(self, directories: Iterable[str]) -> None:
        """Forget these directories."""
        for directory in directories:
            self._known.pop(directory, None)


def _stamp(directory: str) -> Stamp:
    found = calls.stat(directory)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _is_settled(stamp: Stamp, now: float) -> bool:
    """Whether a later change gives the directory another stamp."""
    return now - stamp[2] / 1e9 > SETTLES
