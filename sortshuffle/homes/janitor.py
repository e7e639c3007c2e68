"""The janitor: one small process beside each executor that deletes dead files in its homes.

Why a process: Spark kills the worker of a cancelled task with SIGKILL, so the task cannot remove its
unfinished files; and an executor that dies by SIGKILL leaves everything behind. The janitor outlives both.

    python -m sortshuffle.homes.janitor HOME [HOME ...]

* One per home: it holds the lock ``janitor.lock`` there while the executor lives. A janitor whose homes all
  have one ends within a second. An executor has several janitors if its tasks use further directories later,
  or if its frames have different settings.
* Every second it removes unfinished files without a writer; every five, finished ones that Spark has
  forgotten (`homes.lifetime` says which).
* When the executor ends it deletes the homes and ends itself, within two seconds. Where files are kept, or
  outlive the executor, it deletes only the unfinished ones. It also ends when its homes are gone.
* Where Spark's external shuffle service serves an ended executor's files, map outputs are deleted one by one,
  with Spark's own files. The first janitor whose executor has ended does that, for all ended executors whose
  homes are in the same directory of the application: it holds that directory's lock. The others end. So there
  is one process for all executors that have ended. If it is killed, a later task of the application starts
  another.

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
# seconds for which a home or a lock is tried again after an error of the system, which may be out of
# descriptors for minutes. After that the home is left to `sortshuffle clean`
RETRY_FOR = 600.0
OF_THIS_PROCESS = (*OUT_OF, errno.ENOLCK)
LOOKS_AFTER = 60.0  # seconds between a worker's checks whether homes of ended executors have a janitor

_last_looks: dict[str, float] = {}  # of applications' directories: when this process last looked
_janitors: list[subprocess.Popen[bytes]] = []  # started here; else Python warns of processes still running


def ensure(homes: Sequence[str]) -> None:
    """Start a janitor for those of these homes that have none, and another for homes of ended executors
    beside them, if they need one. The caller has made the homes."""
    unattended = [home for home in homes if not is_running(home)]
    if unattended:
        _start(unattended)
    for place in dict.fromkeys(map(os.path.dirname, homes)):
        if (left := _unattended_ended(place)) is not None:
            _start([left])


def _unattended_ended(place: str) -> str | None:
    """A home of an ended executor in an application's directory, if these have no janitor. It looks only now
    and then, because there may be many homes."""
    now = time.monotonic()
    if now < _last_looks.get(place, float("-inf")) + LOOKS_AFTER:
        return None
    _last_looks[place] = now
    lock = _lock_place_soon(place)
    if lock is None:
        return None
    # before the homes are read: a janitor that found this lock taken leaves them to us
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
    _janitors[:] = [process for process in _janitors if process.poll() is None]
    _janitors.append(
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
    """Run until the executor has ended and its homes need nothing more."""
    locks = _take_over(homes)
    unread, ended_homes = dict.fromkeys(locks), []
    looks = 0
    while unread and looks < RETRY_FOR / TICK:
        owners = _until_the_end(unread)
        for home, owner in owners.items():
            if owner.leaves_outputs_to_spark:
                ended_homes.append(home)
            else:
                _clear(home, owner)
            # `sortshuffle clean --older-than` may remove a home without this lock
            close_after_reading(locks.pop(home))
        looks = 0 if owners else looks + 1
        if unread:
            time.sleep(TICK)
    for lock in locks.values():
        close_after_reading(lock)
    _look_after_ended(map(os.path.dirname, ended_homes))


def _until_the_end(unread: dict[str, None]) -> dict[str, Owner]:
    """Sweep homes until their executor has ended. Returns the owners that could be read; their homes leave
    ``unread``."""
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
    """The owners of these homes. A home that the system cannot read now stays in ``unread``, so that it is
    tried again: else everything in it would be left behind."""
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

    An executor has ended before its janitor comes here. So a janitor that finds a lock taken can rely on its
    holder, which looks once more after it has released the lock.
    """
    untried, locks = dict.fromkeys(places), dict[str, int]()
    listings = HomeListings()
    looks = 0
    while True:
        locks.update(_locks_of(untried))
        looks = looks + 1 if untried else 0
        for place in list(locks):
            if _is_any_left(place, listings):
                continue
            close_after_reading(locks.pop(place))
            if _is_any_left(place, listings):
                untried[place] = None
        if not locks and (not untried or looks * TICK * TICKS_PER_SWEEP >= RETRY_FOR):
            return
        time.sleep(TICK * TICKS_PER_SWEEP)


def _locks_of(untried: dict[str, None]) -> dict[str, int]:
    """The locks of these directories that this process gets. A directory whose lock cannot be tried now stays
    in ``untried``: perhaps no other process has it."""
    locks: dict[str, int] = {}
    for place in list(untried):
        try:
            lock = _lock_place(place)
        except OSError:
            continue
        del untried[place]
        if lock is not None:
            locks[place] = lock
    return locks


def _is_any_left(place: str, listings: HomeListings) -> bool:
    try:
        return sweep_ended(place, listings)
    except OSError:
        return True  # unknown: the next look tries again


def _lock_place(place: str) -> int | None:
    """A descriptor that holds the lock of an application's directory, None if another process has it, or the
    directory is gone. Raises OSError."""
    try:
        descriptor = calls.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _locked(descriptor)


def _lock_place_soon(place: str) -> int | None:
    """The same in a task, which cannot wait for long: None also after some errors."""
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
    """The homes whose locks this process gets, with the descriptors that hold them. It tries for a while,
    because a task that checks for a janitor holds the lock for a moment; for longer after an error of the
    system, because the next task may come late."""
    locks: dict[str, int] = {}
    pause = TICK / TRIES
    tries = 0
    while True:
        has_errors = _try_locks(homes, locks)
        tries += 1
        if len(locks) == len(homes) or tries >= (RETRY_FOR / pause if has_errors else TRIES):
            return locks
        time.sleep(pause)


def _try_locks(homes: Sequence[str], locks: dict[str, int]) -> bool:
    """Add the free locks to ``locks``. Returns whether the system gave an error for any."""
    has_errors = False
    for home in (home for home in homes if home not in locks):
        try:
            lock = _lock(home)
        except OSError:
            has_errors = True
            continue
        if lock is not None:
            locks[home] = lock
    return has_errors


def is_running(home: str) -> bool:
    """Whether a janitor holds the home's lock; True where the system gives an error."""
    try:
        return is_locked(os.path.join(home, LOCK_FILE))
    except OSError:
        return True


def _lock(home: str) -> int | None:
    """A descriptor that holds the lock, None if another process has it, or the home takes no lock. Raises
    OSError where the host lacks descriptors, memory or locks for the moment."""
    try:
        descriptor = calls.open(os.path.join(home, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return _locked(descriptor)
    except OSError as error:
        if error.errno in OF_THIS_PROCESS:
            raise
        return None  # this janitor's other homes must not wait for this one


def _locked(descriptor: int) -> int | None:
    """The descriptor, which holds its lock now; None if another process has the lock. The descriptor is
    closed then, and where this raises OSError."""
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
