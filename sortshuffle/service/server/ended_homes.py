"""`EndedHomes`: remembers which map outputs ended executors left on this host's disks.

Every map task that may adopt a map output asks (`Catalog.adoptable`), and most find nothing. So a query costs
one system call for each home of an ended executor, a few for that of a live one, and no listing, unless names
came or went (`Listings`).

    home of a live executor --executor ends--> listed --(a name comes or goes)--> listed again --> gone

Rules
* Map outputs of a live executor are not offered: its task may still run, and fail. Each query checks whether
  the executor lives; an executor that has ended stays ended.
* A result may be gone or damaged on the disk: the caller checks.
* Homes that leave an application's directory are forgotten when the directory is listed again. Applications
  that are gone are forgotten when a new one appears, at most once in `FORGETS_EVERY`.

Each root has a lock: only one thread lists its directories. Others wait for the holder, at most
`WAITED_AT_MOST`. They skip the root as soon as the holder has not finished a home for `HELD_AT_MOST`: its
disk may hang. So a hanging disk blocks its first caller only, and the others miss only what is on it. Lock
order: the lock of `EndedHomes` is never held together with a root's, and no disk is used under it.
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

HELD_AT_MOST = 0.5  # seconds per home; listing 10,000 files on a healthy disk takes a tenth of that
# seconds for all homes of a root. The client has given up by then, and few threads answer queries
WAITED_AT_MOST = 5.0
FORGETS_EVERY = 60.0  # seconds; it costs a system call for each known application
_INDEX = re.compile(rf"exchange-(\d+)-map-(\d+)-attempt-(\d+){re.escape(INDEX_SUFFIX)}")

Attempts: TypeAlias = "dict[int, dict[int, tuple[int, ...]]]"
"""Attempts of finished map outputs, by exchange and map index."""


class EndedHomes:
    """The homes of ended executors below all roots. Thread-safe. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._roots: dict[str, _Root] = {}

    def outputs(
        self, roots: Iterable[str], application: str, exchange: int, map_index: int
    ) -> list[tuple[PartitionedFile, Owner]]:
        """Return the map outputs of one map task that ended executors left, with their owners, the first
        attempt first. Roots whose disks may hang are skipped. Raises OSError if this process lacks
        descriptors or memory."""
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
    """The homes of ended executors below one root."""

    def __init__(self, root: str, clock: Callable[[], float]) -> None:
        self._above = os.path.join(root, HOME_ROOT)
        self._clock = clock
        self._lock = threading.Lock()
        self._held_since: float | None = None  # last progress of the lock's holder; None if none is known
        self._applications: Listings[list[str]] = Listings(lambda names, before: sorted(names))
        self._homes: Listings[Attempts] = Listings(lambda names, before: _attempts(names))
        self._names: dict[str, list[str]] = {}  # homes by application directory, as last listed
        self._ended: dict[str, Owner] = {}  # by home
        self._forgot_at = float("-inf")

    def outputs(
        self, application: str, exchange: int, map_index: int
    ) -> list[tuple[int, PartitionedFile, Owner]]:
        """Return the same as `EndedHomes.outputs`, unsorted, each with its attempt."""
        found: list[tuple[int, PartitionedFile, Owner]] = []
        with self._held() as is_held:
            if not is_held:
                return []
            for home in self._homes_in(os.path.join(self._above, application)):
                self._held_since = self._clock()
                owner = self._ended_owner(home)
                attempts = None if owner is None else _list_if_possible(self._homes, home)
                if owner is None or attempts is None:
                    self._ended.pop(home, None)
                    continue
                for attempt in attempts.get(exchange, {}).get(map_index, ()):
                    file = PartitionedFile.named(home, exchange, map_index, attempt)
                    found.append((attempt, file, owner))
        return found

    @contextmanager
    def _held(self) -> Iterator[bool]:
        """Take the lock. Yields False, without the lock, if its holder may hang or takes too long."""
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
        """Return the seconds that this thread may still wait for the lock."""
        since, now = self._held_since, self._clock()
        held = HELD_AT_MOST if since is None else since + HELD_AT_MOST - now
        return max(0.0, min(held, until - now))

    def _homes_in(self, directory: str) -> list[str]:
        """Return the homes of executors in this directory of an application."""
        if directory not in self._names:
            self._forget_gone()
        names = _list_if_possible(self._applications, directory) or []
        if names is not self._names.get(directory):
            self._forget(directory, set(self._names.get(directory, ())).difference(names))
            self._names[directory] = names
        if not names:
            del self._names[directory]
        return [os.path.join(directory, name) for name in names if not is_shared(name)]

    def _ended_owner(self, home: str) -> Owner | None:
        owner = self._ended.get(home)
        if owner is None:
            owner = Owner.read(home)  # None for a moment: it is written after the directory is made
            if owner is None or not owner.has_ended():
                return None
            self._ended[home] = owner
        return owner

    def _forget_gone(self) -> None:
        """Forget applications that are gone: no task will ask about them."""
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


def _list_if_possible(listings: Listings[Made], directory: str) -> Made | None:
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
