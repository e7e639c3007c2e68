"""The janitor: one small process beside each executor that deletes what is dead in its homes.

Why a process: Spark kills the worker of a cancelled task with SIGKILL, so the task itself cannot remove its
unfinished files; and an executor that dies by SIGKILL leaves everything behind. The janitor outlives both.

    python -m sortshuffle.homes.janitor HOME [HOME ...]

* One per home: it holds a lock on ``janitor.lock`` there while the executor lives, and one that finds all its
  homes taken ends within a second. An executor has one janitor, or more if its tasks came to use further
  directories later, or if its frames have different settings.
* Every second it removes unfinished files without a writer; every five, finished ones that Spark has
  forgotten (`homes.lifetime` says which).
* When the executor ends it deletes the homes and ends itself, within two seconds. Where files are to be kept,
  or outlive the executor, it deletes only the unfinished ones. It ends as well when its homes are gone.
* Where Spark's external shuffle service serves what an ended executor has left, map outputs go with Spark's
  own files, one by one. The first janitor whose executor has ended sees to that, for all ended executors
  whose homes are in the same directory of the application: it holds the lock of that directory. Others leave
  it to that one, and end. So executors may come and go, and there is one process for all that went. If it is
  killed, the next task of the application that looks starts another.

Started by the first producer task of an executor (`ensure`). Standard library only: about 10 MB.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

from sortshuffle import calls
from sortshuffle.errors import OUT_OF
from sortshuffle.homes.environment import environment
from sortshuffle.homes.home_listings import HomeListings
from sortshuffle.homes.lifetime import remove_home, sweep, sweep_ended, sweep_partials
from sortshuffle.homes.owner import Owner
from sortshuffle.storage.files.descriptors import close_after_reading
from sortshuffle.storage.files.partitioned_file import PARTIAL_SUFFIX
from sortshuffle.storage.files.presence import is_gone, is_locked

LOCK_FILE = "janitor.lock"
TICK = 1.0  # seconds between looks at the executor and its unfinished files
TICKS_PER_SWEEP = 5
TRIES = 10
# seconds for which a home or a lock is asked for again that the system does not tell of: it may be out of
# files for minutes. What it never tells of is left to `sortshuffle clean`
RETRY_FOR = 600.0
OF_THIS_PROCESS = (*OUT_OF, errno.ENOLCK)
LOOKS_AFTER = 60.0  # seconds between looks of a worker whether homes of ended executors have a janitor

_looked: dict[str, float] = {}  # applications' directories, and when this process last looked
_started: list[subprocess.Popen[bytes]] = []  # keeps them from being reported as forgotten


def ensure(homes: Sequence[str]) -> None:
    """Start a janitor for those of these homes that have none, and one for homes of ended executors beside
    them that should have one. The caller has made the homes."""
    unattended = [home for home in homes if not is_running(home)]
    if unattended:
        _start(unattended)
    for place in dict.fromkeys(map(os.path.dirname, homes)):
        if (left := _unattended_ended(place)) is not None:
            _start([left])


def _unattended_ended(place: str) -> str | None:
    """A home of an ended executor in an application's directory, if these have no janitor. Looked at now and
    then: that a janitor was killed is seen soon enough, and there may be many homes."""
    now = time.monotonic()
    if now < _looked.get(place, float("-inf")) + LOOKS_AFTER:
        return None
    _looked[place] = now
    lock = _lock_place_soon(place)
    if lock is None:
        return None
    # before the homes are looked at: a janitor that found it taken leaves them to us
    close_after_reading(lock)
    try:
        homes = [os.path.join(place, name) for name in calls.listdir(place)]
    except OSError:
        return None
    owners = ((home, Owner.read(home)) for home in homes)
    return next((home for home, owner in owners if owner and _is_left_to_spark(owner)), None)


def _is_left_to_spark(owner: Owner) -> bool:
    return owner.leaves_outputs_to_spark and owner.has_ended()


def _start(homes: Sequence[str]) -> None:
    _started[:] = [process for process in _started if process.poll() is None]
    _started.append(
        calls.Popen(
            [sys.executable, "-m", __name__, *homes],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,  # Spark's daemon hangs up its own process group when it ends
            cwd="/",
        )
    )


def main(homes: Sequence[str]) -> None:
    """Run until the executor has ended and left nothing to look after."""
    locks = _take_over(homes)
    unread, left = dict.fromkeys(locks), []
    looks = 0
    while unread and looks < RETRY_FOR / TICK:
        owners = _until_the_end(unread)
        for home, owner in owners.items():
            if owner.leaves_outputs_to_spark:
                left.append(home)
            else:
                _clear(home, owner)
            # a home that nobody holds can be removed: `sortshuffle clean --older-than`
            close_after_reading(locks.pop(home))
        looks = 0 if owners else looks + 1
        if unread:
            time.sleep(TICK)
    for lock in locks.values():
        close_after_reading(lock)
    _look_after_ended(map(os.path.dirname, left))


def _until_the_end(unread: dict[str, None]) -> dict[str, Owner]:
    """Keep homes tidy until their executor has ended; those whose owner was told, which ``unread`` loses."""
    owners = _read_owners(unread)
    listings = HomeListings()
    tick = 0
    while any(not is_gone(home) and owner.is_live() for home, owner in owners.items()):
        for home, owner in owners.items():
            _tidy(home, owner, listings, whole=tick % TICKS_PER_SWEEP == 0)
        tick += 1
        time.sleep(TICK)
        owners.update(_read_owners(unread))
    return owners


def _read_owners(unread: dict[str, None]) -> dict[str, Owner]:
    """The owners of these homes. A home that the system does not tell of stays in ``unread``: a janitor that
    passed it over would leave everything in it behind."""
    owners: dict[str, Owner] = {}
    for home in list(unread):
        try:
            owner = Owner.load(home)
        except OSError:
            continue
        del unread[home]
        if owner is not None:
            owners[home] = owner
    return owners


def _look_after_ended(places: Iterable[str]) -> None:
    """Sweep the homes of ended executors in these directories until none is left, or others do so.

    An executor has ended before its janitor comes here. So whoever finds a lock taken can rely on the holder,
    which looks once more when it has let go of the lock.
    """
    untried, held = dict.fromkeys(places), dict[str, int]()
    listings = HomeListings()
    looks = 0
    while True:
        held.update(_locks_of(untried))
        looks = looks + 1 if untried else 0
        for place in list(held):
            if _is_any_left(place, listings):
                continue
            close_after_reading(held.pop(place))
            if _is_any_left(place, listings):
                untried[place] = None
        if not held and (not untried or looks * TICK * TICKS_PER_SWEEP >= RETRY_FOR):
            return
        time.sleep(TICK * TICKS_PER_SWEEP)


def _locks_of(untried: dict[str, None]) -> dict[str, int]:
    """The locks of these directories that this process gets. A directory whose lock cannot be asked for now
    stays in ``untried``: nobody else may have it."""
    taken: dict[str, int] = {}
    for place in list(untried):
        try:
            lock = _lock_place(place)
        except OSError:
            continue
        del untried[place]
        if lock is not None:
            taken[place] = lock
    return taken


def _is_any_left(place: str, listings: HomeListings) -> bool:
    try:
        return sweep_ended(place, listings)
    except OSError:
        return True  # it cannot be told: the next look tries again


def _lock_place(place: str) -> int | None:
    """A descriptor that holds the lock of an application's directory, None if another process has it, or the
    directory is gone. Raises OSError where the system does not tell."""
    try:
        descriptor = calls.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _locked(descriptor)


def _lock_place_soon(place: str) -> int | None:
    """The same in a task, which is not kept for long: None as well where the system does not tell."""
    for _ in range(TRIES):
        try:
            return _lock_place(place)
        except OSError:
            time.sleep(TICK / TRIES)
    return None


def _tidy(home: str, owner: Owner, listings: HomeListings, whole: bool) -> None:
    try:
        if whole:
            sweep(home, owner, listings)
        else:
            sweep_partials(home, time.time(), listings)
    except OSError:
        pass  # the next look tries again; a janitor that ended here would leave everything behind


def _clear(home: str, owner: Owner) -> None:
    for _ in range(TRIES):  # the executor's last workers may still be writing
        try:
            if owner.keep or owner.outlived:
                sweep_partials(home, float("inf"))
                if not any(name.endswith(PARTIAL_SUFFIX) for name in calls.listdir(home)):
                    return
            else:
                remove_home(home)
                if is_gone(home):
                    return
        except OSError:
            pass
        time.sleep(TICK / TRIES)


def _take_over(homes: Sequence[str]) -> dict[str, int]:
    """The homes whose locks this process gets, and the descriptors that hold these. Tries for a while: a task
    that looks whether there is a janitor holds a lock for a moment. Longer where the system does not tell
    whether a lock is free: the next task might be long in coming."""
    taken: dict[str, int] = {}
    pause = TICK / TRIES
    tries = 0
    while True:
        untold = _take(homes, taken)
        tries += 1
        if len(taken) == len(homes) or tries >= (RETRY_FOR / pause if untold else TRIES):
            return taken
        time.sleep(pause)


def _take(homes: Sequence[str], taken: dict[str, int]) -> bool:
    """Add the locks that are free to ``taken``. Whether the system does not tell of some."""
    untold = False
    for home in (home for home in homes if home not in taken):
        try:
            lock = _lock(home)
        except OSError:
            untold = True
            continue
        if lock is not None:
            taken[home] = lock
    return untold


def is_running(home: str) -> bool:
    """Whether a janitor holds the home's lock. What the system does not tell counts as held."""
    try:
        return is_locked(os.path.join(home, LOCK_FILE))
    except OSError:
        return True


def _lock(home: str) -> int | None:
    """A descriptor that holds the lock, None if another process has it, or the home takes no lock. Raises
    OSError where the host is out of something for the moment."""
    try:
        descriptor = calls.open(os.path.join(home, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return _locked(descriptor)
    except OSError as error:
        if error.errno in OF_THIS_PROCESS:
            raise
        return None  # other homes of this janitor must not wait for it


def _locked(descriptor: int) -> int | None:
    """The descriptor, which holds its lock now. None if another process has the lock; then, and where this
    raises OSError, the descriptor is closed."""
    try:
        calls.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        close_after_reading(descriptor)
        return None
    except OSError:
        close_after_reading(descriptor)
        raise
    return descriptor


if __name__ == "__main__":
    main(sys.argv[1:])
