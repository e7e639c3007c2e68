"""The sweep of an external shuffle service: deletes homes of applications that have ended.

With external services, finished map outputs outlive their executors (`Owner.outlived`). So the janitors leave
them, and the service deletes them.

    live --its last executor on this host ended--> lingering --(Spark removed its directories)--> gone
      ^                                               |        (or ``linger`` seconds have passed)
      +--------(a new executor on this host)----------+

An application lingers because its other executors read here, and adopt map outputs that its lost executors
finished. The end of the application shows in the directory *above* those that an executor had for its blocks:
Spark (standalone, YARN) removes it with the application, not with the executor. If the daemon that would have
removed it died first, the directory stays, and only time can tell.

Rules
* The sweep considers only homes of executors of this host whose owner says that they outlive the executor.
  Homes to keep (`Owner.keep`) are not considered.
* While the application runs, the map outputs of ended executors are deleted if Spark has forgotten their
  exchange (`homes.forgotten_exchanges`): no task will read or adopt them. A home left without map outputs is
  removed, too. Map outputs of other exchanges stay, however old: a task that runs again may adopt them, and
  consumers may read in place what another host has adopted.
* An executor lives if its process lives, or its janitor holds the lock of one of its homes: processes of
  other containers are invisible, but their locks are not. When a janitor is killed, its lock is free for a
  moment. So a home of another container is removed only when its application is over.
* The directories of other containers are invisible, too: only time tells that their application is over.
* Files in the homes of live executors are left to the janitors.
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
from sortshuffle.storage.files import spare_files
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.reader import read_index

# seconds; longer than a job is likely to need the map outputs of a host where its executors have all ended,
# and short enough for a disk if nothing else shows that the application has ended
LINGER = 12 * 3600.0
SWEEP_EVERY = 10.0  # seconds; a sweep costs some system calls for each home


class LingeringSweep:
    """Sweeps the homes below ``roots``. ``linger``: seconds that an application's homes stay after its last
    executor on this host ended. ``clock``: seconds. For one thread."""

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
        """Delete what is due, and return the homes that were removed."""
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
    """Delete the map outputs of forgotten exchanges, and spare files, in homes of an application's ended
    executors. Return the homes that lost their last map output and were removed. A home whose executor is
    invisible, and may live, is not removed; deleting these files there does no harm."""
    forgotten = {each for home in owners for each in _recorded_exchanges(home)}
    gone = []
    for home, owner in owners.items():
        if _is_live(home, owner):
            continue
        spare_files.delete_all(home)
        try:
            for file in finished_outputs(home):
                if _is_forgotten(file, forgotten):
                    file.delete()
            if owner.is_visible and not finished_outputs(home) and _is_removed(home):
                gone.append(home)
        except OSError:
            continue  # the next sweep tries again
    return gone


def _recorded_exchanges(home: str) -> set[tuple[str, int]]:
    try:
        return read_exchanges(home)
    except OSError:
        return set()


def _is_forgotten(file: PartitionedFile, forgotten: Collection[tuple[str, int]]) -> bool:
    """Return whether the file is of one of these exchanges: its index names the driver."""
    if file.exchange not in {exchange for _, exchange in forgotten}:
        return False
    try:
        writer = read_index(file).writer
    except DataLossError:
        return False  # damaged: it is deleted with the application
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
        pass  # the next sweep tries again; this sweep goes on with other homes
    return is_gone(home)


def _directories(directory: str) -> Iterator[str]:
    try:
        with calls.scandir(directory) as scan:
            yield from sorted(entry.path for entry in scan if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
