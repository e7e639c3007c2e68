"""The janitor: one small process beside each executor that deletes dead files in its homes.

Why a process: Spark kills the worker of a cancelled task with SIGKILL, so the task cannot remove its
unfinished files; and an executor that dies by SIGKILL leaves all its files. The janitor outlives both.

    python -m sortshuffle.homes.janitor HOME [HOME ...]

* Each home has one janitor, which holds the lock ``janitor.lock`` there while the executor lives. A janitor
  that gets none of its locks ends within a second. An executor has several janitors if its tasks use further
  directories later, or if its frames have different settings.
* Every second a janitor removes unfinished files without a writer, and looks after spares
  (`storage.files.spare_files`). Every five seconds it removes finished files that Spark does not know and
  that are older than the grace time.
* Four times a second it checks which task attempts Spark knows. If Spark's file of an attempt has gone
  (`homes.lifetime` has the rule), the janitor removes the attempt's map outputs, or makes spares of their
  data files.
* When the executor ends, the janitor deletes the homes and ends itself, within two seconds. If files are
  kept, or outlive the executor, it deletes only the unfinished ones. It also ends when its homes are gone.
* If Spark's external shuffle service serves an ended executor's files, map outputs are deleted one by one,
  with Spark's own files. The first janitor whose executor has ended does that, for all ended executors with
  homes in the same directory of the application, whose lock it holds. The others end. So there is one process
  for all executors that have ended. If it is killed, a later task of the application starts another.

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
from sortshuffle.homes.lifetime import (
    MISSING,
    remove_home,
    sweep,
    sweep_dropped,
    sweep_ended,
    sweep_partials,
)
from sortshuffle.homes.owner import Owner
from sortshuffle.storage.files import spare_files
from sortshuffle.storage.files.descriptors import close_after_reading
from sortshuffle.storage.files.partitioned_file import PARTIAL_SUFFIX
from sortshuffle.storage.files.presence import is_gone, is_locked

LOCK_FILE = "janitor.lock"
TICK = 1.0  # seconds between checks of the executor and its unfinished files
TICKS_PER_SWEEP = 5
LOOKS_PER_TICK = int(TICK / MISSING)
TRIES = 10
# seconds to retry after a system error: the system may lack descriptors for minutes. After that the home is
# left to `sortshuffle clean`
RETRY_FOR = 600.0
LOCAL_SHORTAGES = (*OUT_OF, errno.ENOLCK)
LOOKS_AFTER = 60.0  # seconds between a worker's checks whether homes of ended executors have a janitor

_last_looks: dict[str, float] = {}  # by application directory: when this process last looked
_janitors: list[subprocess.Popen[bytes]] = []  # started here; else Python warns of processes still running


def ensure(homes: Sequence[str]) -> None:
    """Start a janitor for those of these homes that have none, and another if homes of ended executors beside
    them need one. The caller has made the homes."""
    unattended = [home for home in homes if not is_running(home)]
    if unattended:
        _start(unattended)
    for place in dict.fromkeys(map(os.path.dirname, homes)):
        if (left := _unattended_ended(place)) is not None:
            _start([left])


def _unattended_ended(place: str) -> str | None:
    """Return a home of an ended executor in an application's directory, if such homes have no janitor. Looks
    only every `LOOKS_AFTER` seconds, because there may be many homes."""
    now = time.monotonic()
    if now < _last_looks.get(place, float("-inf")) + LOOKS_AFTER:
        return None
    _last_looks[place] = now
    lock = _lock_place_soon(place)
    if lock is None:
        return None
    # release it before reading the homes: a janitor that found it taken meanwhile leaves its homes to us
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
    """Run until the executor has ended and its homes need no more work."""
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
            # release the lock, so that `sortshuffle clean --older-than` may remove the home
            close_after_reading(locks.pop(home))
        looks = 0 if owners else looks + 1
        if unread:
            time.sleep(TICK)
    for lock in locks.values():
        close_after_reading(lock)
    _look_after_ended(map(os.path.dirname, ended_homes))


def _until_the_end(unread: dict[str, None]) -> dict[str, Owner]:
    """Sweep homes until their executor has ended. Returns the owners that could be read, and removes their
    homes from ``unread``."""
    owners = _read_owners(unread)
    listings = HomeListings()
    tick = 0
    while any(not is_gone(home) and owner.is_live() for home, owner in owners.items()):
        for home, owner in owners.items():
            _tidy(home, owner, listings, whole=tick % TICKS_PER_SWEEP == 0)
            _trim_spares(home)
        tick += 1
        for _ in range(LOOKS_PER_TICK):
            time.sleep(TICK / LOOKS_PER_TICK)
            for home, owner in owners.items():
                _look(home, owner, listings)
        owners.update(_read_owners(unread))
    return owners


def _look(home: str, owner: Owner, listings: HomeListings) -> None:
    """Note which finished files Spark knows now, and delete those that it has dropped."""
    try:
        sweep_dropped(home, owner, listings)
    except OSError:
        pass  # the next look tries again


def _read_owners(unread: dict[str, None]) -> dict[str, Owner]:
    """Return the owners of these homes. A home that the system cannot read now stays in ``unread``, to be
    tried again: otherwise its files would never be deleted."""
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
    """Sweep the homes of ended executors in these directories until none is left, or other janitors do so.

    An executor has ended before its janitor comes here. So a janitor that finds a lock taken can rely on the
    lock's holder, which looks once more after it has released the lock.
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
    """Return the locks of these directories that this process gets. A directory whose lock cannot be tried
    now stays in ``untried``: perhaps no other process has it."""
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
    """Return a descriptor that holds the lock of an application's directory; None if another process has the
    lock, or the directory is gone. Raises OSError."""
    try:
        descriptor = calls.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _locked(descriptor)


def _lock_place_soon(place: str) -> int | None:
    """Do the same in a task, which cannot wait for long: return None after several errors, too."""
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
        pass  # the next look tries again; a janitor that ended here would leave all files


def _trim_spares(home: str) -> None:
    try:
        spare_files.trim(home, time.time())
    except OSError:
        pass  # the next look tries again


def _clear(home: str, owner: Owner) -> None:
    for _ in range(TRIES):  # the executor's last workers may still be writing
        try:
            if owner.keep or owner.outlived:
                spare_files.delete_all(home)
                sweep_partials(home, float("inf"))
                has_partial = any(name.endswith(PARTIAL_SUFFIX) for name in calls.listdir(home))
                if not has_partial and not spare_files.bytes_of(home):
                    return
            else:
                remove_home(home)
                if is_gone(home):
                    return
        except OSError:
            pass
        time.sleep(TICK / TRIES)


def _take_over(homes: Sequence[str]) -> dict[str, int]:
    """Take the locks of these homes; return the homes whose locks this process gets, with the descriptors
    that hold them. Tries for a while, because a task that checks for a janitor holds the lock for a moment;
    and longer after a system error, because the next task may come late."""
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
    """Take the locks that are free, and add them to ``locks``. Returns whether there was a system error."""
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
    """Return whether a janitor holds the home's lock; True if the system gives an error."""
    try:
        return is_locked(os.path.join(home, LOCK_FILE))
    except OSError:
        return True


def _lock(home: str) -> int | None:
    """Return a descriptor that holds the lock; None if another process has it, or the home takes no lock.
    Raises OSError if the host lacks descriptors, memory or locks for the moment."""
    try:
        descriptor = calls.open(os.path.join(home, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return _locked(descriptor)
    except OSError as error:
        if error.errno in LOCAL_SHORTAGES:
            raise
        return None  # this janitor's other homes must not wait for this one


def _locked(descriptor: int) -> int | None:
    """Lock the descriptor and return it. Closes it and returns None if another process has the lock; closes
    it and raises OSError if the system does."""
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
