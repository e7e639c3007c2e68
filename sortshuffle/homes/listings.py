"""`Listings`: what is in directories. A directory is listed again only when a name was added or removed.

For the janitor and the shuffle service, which look at the same directories again and again: a look at a
directory that did not change costs one system call, however many files it has.

Rules
* A directory's modification time shows that a name was added or removed. A directory that changed just before
  a look may change again within the same tick of the clock, so the next look lists it again.
* Before a deletion, list again with new `Listings`: a system may record changes late.
* The result of a listing is kept, and passed to the next one: known names need not be parsed again.

Not for several threads at once. Only the standard library is imported here: the janitor must stay small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from sortshuffle import calls

# seconds; longer than a tick of a file system's clock: 10 ms on most, 1 s on ext3 and old NFS, 2 s on FAT
SETTLES = 2.5

Made = TypeVar("Made")
Stamp = tuple[int, int, int]


class Listings(Generic[Made]):
    """Results made from the names in directories. ``make``: makes the result for a directory from its names
    and from its last result, if there is one. ``clock``: seconds since 1970, as file systems use. ``version``
    grows with each result, and when a directory is forgotten or found to be gone: if it has not grown, all
    results are those of the last look."""

    def __init__(
        self, make: Callable[[list[str], Made | None], Made], clock: Callable[[], float] = time.time
    ) -> None:
        self.version = 0
        self._make = make
        self._clock = clock
        self._known: dict[str, tuple[Stamp | None, Made]] = {}
        self._unvisited: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._known))

    def list_if_changed(self, directory: str) -> Made | None:
        """Return the result for the directory as it is now; None if it is gone. Raises OSError."""
        self._unvisited.discard(directory)
        now = self._clock()  # first: a later change has a later time than a settled directory
        try:
            stamp = _stamp(directory)
            known, made = self._known.get(directory, (None, None))
            if made is None or known != stamp:
                made = self._make(calls.listdir(directory), made)
                self.version += 1
                self._known[directory] = (stamp if _is_settled(stamp, now) else None, made)
        except (FileNotFoundError, NotADirectoryError):
            if self._known.pop(directory, None) is not None:
                self.version += 1
            return None
        return made

    def forget_unvisited(self) -> None:
        """Forget the directories that were not looked at since the last call."""
        self.forget(self._unvisited)
        self._unvisited = set(self._known)

    def forget(self, directories: Iterable[str]) -> None:
        """Forget these directories."""
        for directory in directories:
            if self._known.pop(directory, None) is not None:
                self.version += 1


def _stamp(directory: str) -> Stamp:
    found = calls.stat(directory)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _is_settled(stamp: Stamp, now: float) -> bool:
    """Return whether a later change will give the directory another stamp."""
    return now - stamp[2] / 1e9 > SETTLES
