"""What an external shuffle service deletes: homes of applications that have ended.

With external services finished map outputs outlive their executors (`Owner.outlived`), so the janitors leave
them, and the service sweeps.

    live --its last executor on this host has ended--> lingering --Spark has removed its directories-->   gone
                                                           |------so many seconds have passed------>
                                                           |--an executor comes again--> live

An application lingers because its other executors read here, and adopt what its lost ones had finished. That
it has ended itself shows in the directory *above* those that an executor had for its blocks: Spark
(standalone, YARN) removes it with the application, not with the executor. Where it stays, because the daemon
that would have removed it died first, time is all that can be gone by.

Rules
* Only homes whose owner says that they outlive their executor, of executors that ran on this host, are looked
  at. Homes that are to be kept are not looked at.
* While the application goes on, what executors that have ended left of an exchange that Spark has forgotten
  is deleted (`homes.forgotten_exchanges`): no task reads it or adopts it any more. Homes that are left
  without a map output go, too. Of other exchanges nothing is deleted, however old: a task that runs again may
  adopt it, and consumers may read what another host has adopted where it lies.
* An executor lives if its process does, or if its janitor holds the lock of one of its homes: the processes
  of other containers cannot be seen, but their locks can. A janitor that was killed holds none for a moment:
  so such a home is removed only when its application is over.
* The directories of other containers cannot be seen either: only time tells that their application is over.
* What is in homes of live executors is their janitors' business.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sortshuffle import calls
from sortshuffle.errors import DataLossError
from sortshuffle.homes import janitor
from sortshuffle.homes.forgotten_exchanges import read_exchanges
from sortshuffle.homes.lifetime import finished_outputs, remove_home
from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.reader import read_index

# seconds; longer than a job whose executors on this host are all gone is likely to read what they left, and
# short enough for a disk on which nothing else tells that the application has ended
LINGER = 12 * 3600.0
SWEEP_EVERY = 10.0  # seconds; a look costs some system calls for each home


class LingeringSweep:
    """Sweeps below ``roots``. ``linger``: seconds after an application's last executor on this host ended.
    ``clock``: seconds. For one thread."""

    def __init__(
        self,
        roots: Callable[[], Sequence[str]],
        linger: float = LINGER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roots = roots
        self._linger = linger
        self._clock = clock
        self._ended: dict[str, float] = {}  # applications without a live executor, and since when

    def sweep(self) -> list[str]:
        """Delete what is due; the homes that are gone."""
        homes = _homes_by_application(self._roots())
        self._ended = {name: since for name, since in self._ended.items() if name in homes}
        gone: list[str] = []
        for application, owners in homes.items():
            if self._is_over(application, owners):
                gone += [home for home in owners if _is_removed(home)]
            else:
                gone += _without_forgotten(owners)
        return gone

    def _is_over(self, application: str, owners: dict[str, Owner]) -> bool:
        if any(_is_live(home, owner) for home, owner in owners.items()):
            self._ended.pop(application, None)
            return False
        since = self._ended.setdefault(application, self._clock())
        return self._clock() - since >= self._linger or all(
            owner.is_visible and owner.application_has_ended() for owner in owners.values()
        )


def _without_forgotten(owners: Mapping[str, Owner]) -> list[str]:
    """Delete what ended executors of an application have of forgotten exchanges; the homes that are gone with
    their last map output. In a home whose executor cannot be seen, and may live, this deletes nothing else:
    nobody reads what is forgotten."""
    forgotten = {each for home in owners for each in _told(home)}
    gone = []
    for home, owner in owners.items():
        if _is_live(home, owner):
            continue
        try:
            for file in finished_outputs(home):
                if _is_forgotten(file, forgotten):
                    file.delete()
            if owner.is_visible and not finished_outputs(home) and _is_removed(home):
                gone.append(home)
        except OSError:
            continue  # the next sweep tries again
    return gone


def _told(home: str) -> set[tuple[str, int]]:
    try:
        return read_exchanges(home)
    except OSError:
        return set()


def _is_forgotten(file: PartitionedFile, forgotten: Collection[tuple[str, int]]) -> bool:
    """Whether it is of one of these exchanges: its index says of whose."""
    if file.exchange not in {exchange for _, exchange in forgotten}:
        return False
    try:
        writer = read_index(file).writer
    except DataLossError:
        return False  # damaged: it goes with the application
    return (writer.driver, writer.exchange) in forgotten


def _is_live(home: str, owner: Owner) -> bool:
    return (owner.is_visible and owner.is_live()) or janitor.is_running(home)


def _homes_by_application(roots: Sequence[str]) -> dict[str, dict[str, Owner]]:
    found: dict[str, dict[str, Owner]] = {}
    for root in roots:
        for application in _directories(os.path.join(root, HOME_ROOT)):
            for home in _directories(application):
                owner = Owner.read(home)
                if owner is not None and owner.outlived and not owner.keep and owner.on_this_host():
                    found.setdefault(owner.application, {})[home] = owner
    return found


def _is_removed(home: str) -> bool:
    try:
        remove_home(home)
    except OSError:
        pass  # the next sweep tries again; other homes are not to wait for this one
    return is_gone(home)


def _directories(directory: str) -> Iterator[str]:
    try:
        with calls.scandir(directory) as scan:
            yield from sorted(entry.path for entry in scan if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
