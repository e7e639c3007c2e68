"""`EndedHomes`: what executors that have ended left on this host's disks, kept in memory.

Every map task that may adopt asks for it (`Catalog.adoptable`), and most find nothing. So a question costs a
look at each home, and no listing, unless something came or went (`Listings`).

    home of a live executor --it ends--> listed --(something goes, or comes late)--> listed anew --> gone

Rules
* What an executor that lives wrote is not given: its task may not have ended, and may still fail. Whether it
  lives is looked at with each question; one that has ended stays ended.
* What is here may be gone or damaged on the disk: whoever is given it looks.
* What leaves an application's directory is forgotten when that is listed anew. Applications that are gone are
  forgotten when another comes, at most once in `FORGETS_EVERY`.

Each root has a lock, which is held while directories are looked at and listed: others would list the same.
Where one question has held it for `HELD_AT_MOST` and got on by no home, the disk may stand still. Others then
pass the root over: a disk that stands still stops the first who asks, and of the others keeps only what is on
it. One that gets on is waited for, at the longest `WAITED_AT_MOST`. Lock order: that of `EndedHomes`, under
which nothing is looked at, is never held together with one of a root.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sortshuffle.errors import OUT_OF
from sortshuffle.homes.listings import Listings, Made
from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.homes.shared_home import is_shared
from sortshuffle.storage.files.partitioned_file import INDEX_SUFFIX, PartitionedFile
from sortshuffle.storage.files.presence import is_gone

HELD_AT_MOST = 0.5  # seconds, for one home; to list 10,000 files of a disk that gets on takes a tenth of that
# seconds, for all homes of a root. Who asks has given up by then, and the service has few threads for that
WAITED_AT_MOST = 5.0
FORGETS_EVERY = 60.0  # seconds; a look at each application that is known
_INDEX = re.compile(rf"exchange-(\d+)-map-(\d+)-attempt-(\d+){re.escape(INDEX_SUFFIX)}")

Attempts: TypeAlias = "dict[int, dict[int, tuple[int, ...]]]"
"""Of finished map outputs, by exchange and map index."""


class EndedHomes:
    """For any number of threads. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._roots: dict[str, _Root] = {}

    def outputs(
        self, roots: Iterable[str], application: str, exchange: int, map_index: int
    ) -> list[tuple[PartitionedFile, Owner]]:
        """What ended executors of an application left of one map task, and whose it was; the first attempt
        first. Nothing of a root whose disk may stand still. Raises OSError where this process cannot look for
        want of descriptors or memory."""
        found = [
            each for root in roots for each in self._root(root).outputs(application, exchange, map_index)
        ]
        return [(file, owner) for _, file, owner in sorted(found, key=lambda each: each[0])]

    def _root(self, root: str) -> _Root:
        with self._lock:
            if root not in self._roots:
                self._roots[root] = _Root(root, self._clock)
            return self._roots[root]


class _Root:
    """What ended executors left below one root."""

    def __init__(self, root: str, clock: Callable[[], float]) -> None:
        self._above = os.path.join(root, HOME_ROOT)
        self._clock = clock
        self._lock = threading.Lock()
        self._held_since: float | None = None  # it was taken, or got on; None for a moment when it is taken
        self._applications: Listings[list[str]] = Listings(lambda names, before: sorted(names))
        self._homes: Listings[Attempts] = Listings(lambda names, before: _attempts(names))
        self._names: dict[str, list[str]] = {}  # by directory of an application, as last listed
        self._ended: dict[str, Owner] = {}  # by home
        self._forgot_at = float("-inf")

    def outputs(
        self, application: str, exchange: int, map_index: int
    ) -> list[tuple[int, PartitionedFile, Owner]]:
        """As `EndedHomes.outputs`, not in order, each with its attempt."""
        found: list[tuple[int, PartitionedFile, Owner]] = []
        with self._held() as is_held:
            if not is_held:
                return []
            for home in self._homes_in(os.path.join(self._above, application)):
                self._held_since = self._clock()
                owner = self._ended_owner(home)
                left = None if owner is None else _listed(self._homes, home)
                if owner is None or left is None:
                    self._ended.pop(home, None)
                    continue
                for attempt in left.get(exchange, {}).get(map_index, ()):
                    file = PartitionedFile.named(home, exchange, map_index, attempt)
                    found.append((attempt, file, owner))
        return found

    @contextmanager
    def _held(self) -> Iterator[bool]:
        """Whether this thread has the lock. Not where one other thread has had it for long."""
        until = self._clock() + WAITED_AT_MOST
        while not self._lock.acquire(timeout=self._patience(until)):
            if not self._patience(until):
                yield False
                return
        self._held_since = self._clock()
        try:
            yield True
        finally:
            self._held_since = None
            self._lock.release()

    def _patience(self, until: float) -> float:
        """Seconds for which whoever has the lock may have it still, and this thread waits for it."""
        since, now = self._held_since, self._clock()
        held = HELD_AT_MOST if since is None else since + HELD_AT_MOST - now
        return max(0.0, min(held, until - now))

    def _homes_in(self, directory: str) -> list[str]:
        """Those in this directory of an application."""
        if directory not in self._names:
            self._forget_gone()
        names = _listed(self._applications, directory) or []
        if names is not self._names.get(directory):
            self._forget(directory, set(self._names.get(directory, ())).difference(names))
            self._names[directory] = names
        if not names:
            del self._names[directory]
        return [os.path.join(directory, name) for name in names if not is_shared(name)]

    def _ended_owner(self, home: str) -> Owner | None:
        """Whose it was, if that executor has ended."""
        owner = self._ended.get(home)
        if owner is None:
            owner = Owner.read(home)  # it is written after the directory is made
            if owner is None or not owner.has_ended():
                return None
            self._ended[home] = owner
        return owner

    def _forget_gone(self) -> None:
        """Of applications that are gone nobody asks any more."""
        if self._clock() < self._forgot_at + FORGETS_EVERY:
            return
        self._forgot_at = self._clock()
        for directory in [each for each in self._names if is_gone(each)]:
            self._forget(directory, self._names.pop(directory))
            self._applications.forget([directory])

    def _forget(self, directory: str, names: Iterable[str]) -> None:
        homes = [os.path.join(directory, name) for name in names]
        self._homes.forget(homes)
        for home in homes:
            self._ended.pop(home, None)


def _listed(listings: Listings[Made], directory: str) -> Made | None:
    try:
        return listings.list_if_changed(directory)
    except OSError as error:
        if error.errno in OUT_OF:
            raise
        return None


def _attempts(names: Iterable[str]) -> Attempts:
    found: Attempts = {}
    for match in filter(None, map(_INDEX.fullmatch, names)):
        exchange, map_index, attempt = map(int, match.groups())
        of_exchange = found.setdefault(exchange, {})
        of_exchange[map_index] = (*of_exchange.get(map_index, ()), attempt)
    return found
