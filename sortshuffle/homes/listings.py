"""`Listings`: what is in directories, which are listed anew only where something came or went.

For whoever looks at the same directories again and again (the janitor, the shuffle service): a look at one
that did not change costs one call, however many files it has.

Rules
* A directory's time of change says that something came or went. One that changed a moment before it was
  looked at may change again without another time, so it is listed again with the next look.
* Whoever deletes lists afresh before, with new `Listings`: a system may note changes later than it should.
* What is made of a listing is kept; names that were there before need not be looked at again (``before``).

Not for several threads at once. Only the standard library is imported here: the janitor must stay small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from sortshuffle import calls

# seconds; longer than a tick of the clock by which file systems note changes: 10 ms on most, one second on
# ext3 and old NFS, two on FAT
SETTLES = 2.5

Made = TypeVar("Made")
Stamp = tuple[int, int, int]


class Listings(Generic[Made]):
    """What ``make`` makes of the names in a directory, and of what it made of them before, if it did.
    ``clock``: seconds since 1970, as file systems note changes."""

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
        """As the directory is now; None if there is none. Raises OSError where the system does not tell."""
        self._unvisited.discard(directory)
        now = self._clock()  # before all else: what changes later has a later time than one that is settled
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
        """Nobody looks at these any more."""
        for directory in directories:
            self._known.pop(directory, None)


def _stamp(directory: str) -> Stamp:
    found = calls.stat(directory)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _is_settled(stamp: Stamp, now: float) -> bool:
    """Whether a directory gets another stamp when it changes from then on."""
    return now - stamp[2] / 1e9 > SETTLES
