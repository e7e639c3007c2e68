"""When map outputs may be deleted. `homes.owner` describes their owners, and where they lie.

A map output lives exactly as long as Spark's own shuffle files of the same task attempt. These are dead:

* a ``.partial`` pair whose data file has no lock (its task failed or was killed);
* a finished pair that Spark no longer knows. Spark knows a pair by ``shuffle_<any>_<attempt>_0.index`` in one
  of the executor's local directories: it writes that file when the task ends, and removes it when no frame
  can use it. If the file is missing, the pair is dead
  - at once, if the janitor saw the file earlier and misses it at two looks (`dropped_outputs`); if map
    outputs outlive the executor, the file must have been missing for five seconds;
  - after the grace time, if the janitor has never seen the file, or if this package removed it
    (`homes.loss`);
* a whole home whose executor has ended: its process is gone, or Spark removed its local directories.

The data file of a pair that Spark has dropped may become a spare (`storage.files.spare_files`).

There are two exceptions for an executor that has ended. If Spark's own shuffle files outlive it
(`Owner.served_by_spark`), each map output is deleted with Spark's files of its attempt, without a grace time:
none of the executor's tasks can still finish. If an external service of this package serves its map outputs,
they outlive it too, and the service sweeps them.

Only the standard library is imported here: the janitor process (`homes.janitor`) must stay small. Only
directories named like homes are deleted, and symbolic links are never followed.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.homes.home_listings import HomeListings
from sortshuffle.homes.owner import HOME_ROOT, OWNER_FILE, Owner
from sortshuffle.storage.files import spare_files
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone, is_locked
from sortshuffle.storage.files.spare_files import SpareKeeper

_BLOCK_DIRECTORY = "[0-9a-f][0-9a-f]*"  # in which Spark's DiskBlockManager puts a file; usually two digits
BLOCKS = "blockmgr-*"  # an executor's local directories, in those that Spark makes for the application
# seconds; a file is created before it is locked, and renamed before it is unlocked. Both take microseconds,
# so a partial file that was not written to for this long is not between these steps
PARTIAL_SETTLES = 5.0
# seconds for which Spark's index file must be missing until its pair counts as dropped: from one look of the
# janitor to the next. If map outputs outlive the executor, it may be ending, and be removing its directories
MISSING = 0.25
MISSING_IF_OUTLIVED = 5.0

OnError: TypeAlias = Callable[[OSError], None]
"""Gets an error of the system that does not end the work."""


def dead_partials(home: str, now: float, listings: HomeListings | None = None) -> Iterator[PartitionedFile]:
    """Yield the unfinished pairs that no process writes. ``listings``: kept between sweeps."""
    for file in (listings or HomeListings()).partial(home):
        # the lock first: a pair that is finished meanwhile was unlocked after its index was written
        is_old = not _is_being_written(file) and _last_touched(file, now) > PARTIAL_SETTLES
        # once more: its writer may have put a spare in its place after it was opened to look for the lock
        if is_old and not _is_being_written(file):
            yield file


def dead_outputs(
    home: str, owner: Owner, now: float, listings: HomeListings | None = None
) -> Iterator[PartitionedFile]:
    """Yield the finished pairs that Spark does not know and that are older than the grace time. There is no
    grace time if the executor has ended and left them to Spark. Raises OSError if Spark's directories cannot
    be read. ``listings``: kept between sweeps."""
    if owner.keep or not owner.local_directories:
        return
    # check this before listing the files: no task of an ended executor adds one
    grace = float("-inf") if owner.leaves_outputs_to_spark and owner.has_ended() else owner.grace
    forgotten = (listings or HomeListings()).forgotten(home, owner.local_directories)
    dead = [file for file in forgotten if _last_touched(file, now) > grace]
    if dead and listings is not None:  # rare: kept listings may be stale, so list again before a deletion
        forgotten_now = set(HomeListings().forgotten(home, owner.local_directories))
        dead = [file for file in dead if file in forgotten_now]
    yield from dead


def dropped_outputs(home: str, owner: Owner, now: float, listings: HomeListings) -> Iterator[PartitionedFile]:
    """Yield the finished pairs that Spark has known and dropped, each once. Raises OSError if Spark's
    directories cannot be read. ``listings``: kept between looks."""
    if owner.keep or not owner.local_directories:
        return
    listings.look(home, owner.local_directories)
    dropped = listings.dropped(home, MISSING_IF_OUTLIVED if owner.outlived else MISSING)
    if dropped and owner.outlived and not owner.is_live():
        return  # it has removed its directories, and its files are the service's now
    for file, seen in dropped.items():
        # `homes.loss` touches the others of an attempt whose index file it removes: these wait for the grace
        # time
        if now - _last_touched(file, now) <= seen:
            yield file


def finished_outputs(home: str) -> list[PartitionedFile]:
    """Return the finished pairs of a home, and halves of pairs. Raises OSError."""
    return HomeListings().finished(home)


def ignore(error: OSError) -> None:
    """Do nothing about an error."""


def control_files(directories: Iterable[str], attempt: int, on_error: OnError = ignore) -> Iterator[str]:
    """Yield the paths of Spark's own shuffle files of a task attempt, which hold our control rows.
    ``directories``: executors' local directories, or those above, which Spark makes for the application.
    ``on_error``: gets the errors of directories that cannot be listed."""
    name = f"shuffle_*_{attempt}_0.*"
    for directory in directories:
        for local in (directory, *matching(directory, BLOCKS, on_error)):
            for block in matching(local, _BLOCK_DIRECTORY, on_error):
                yield from matching(block, name, on_error)


def matching(directory: str, pattern: str, on_error: OnError) -> list[str]:
    """Return the paths in a directory whose names match a pattern; none if there is no such directory. If it
    cannot be listed, ``on_error`` gets the error: `glob` would return nothing."""
    try:
        names = _names(directory)
    except OSError as error:
        on_error(error)
        return []
    return [os.path.join(directory, name) for name in fnmatch.filter(names, pattern)]


def sweep(home: str, owner: Owner, listings: HomeListings | None = None) -> list[str]:
    """Delete dead files in a home whose executor lives, or has left its map outputs to Spark. Returns their
    base paths. Raises OSError; a file that cannot be deleted keeps no other. ``listings``: kept between
    sweeps."""
    now, deleted = time.time(), list[str]()
    try:
        deleted += sweep_partials(home, now, listings)
    finally:
        deleted += _delete(dead_outputs(home, owner, now, listings), PartitionedFile.delete)
    return deleted


def sweep_dropped(home: str, owner: Owner, listings: HomeListings) -> list[str]:
    """Delete `dropped_outputs`, or keep their data files as spares; return their base paths. Raises OSError;
    a file that cannot be deleted keeps no other."""
    return _delete(dropped_outputs(home, owner, time.time(), listings), SpareKeeper(home).keep)


def sweep_partials(home: str, now: float, listings: HomeListings | None = None) -> list[str]:
    """Delete the unfinished pairs without a writer; return their base paths. Raises OSError; a file that
    cannot be deleted keeps no other."""
    return _delete(dead_partials(home, now, listings), PartitionedFile.delete_unfinished)


def _delete(files: Iterable[PartitionedFile], how: Callable[[PartitionedFile], None]) -> list[str]:
    deleted, last_error = [], None
    for file in files:
        try:
            how(file)
            deleted.append(file.base)
        except OSError as error:
            last_error = error
    if last_error is not None:
        raise last_error
    return deleted


def sweep_ended(place: str, listings: HomeListings | None = None) -> bool:
    """Sweep all homes in an application's directory whose executors have ended and left their map outputs to
    Spark. Removes homes without a map output. Returns whether any home is left; a home whose owner cannot be
    read for the moment counts as left."""
    is_left = False
    listings = listings or HomeListings()
    for name in _names(place):
        home = os.path.join(place, name)
        try:
            owner = Owner.load(home)
            if owner is None or not owner.leaves_outputs_to_spark:
                continue
            if not owner.has_ended():
                is_left = is_left or not owner.is_host_known
                continue
            spare_files.delete_all(home)  # there are no writers any more
            sweep(home, owner, listings)
            # kept listings may be stale, so list again before a deletion
            if not listings.has_finished(home) and not HomeListings().has_finished(home):
                remove_home(home)
        except OSError:
            pass  # the next look tries again
        is_left = is_left or not is_gone(home)
    listings.forget_unvisited()
    return is_left


def remove_home(home: str) -> None:
    """Delete a dead executor's home, and the directories above it that become empty.

    The owner file is deleted last, so that a removal that failed or was interrupted is tried again. Raises
    `UsageError` for a directory that is not named like a home.
    """
    if not _is_home(home):
        raise UsageError(f"{home} is not <directory>/{HOME_ROOT}/<application>/<home>: not deleted")
    for name in _names(home):
        if name != OWNER_FILE:
            _remove(os.path.join(home, name))
    if _names(home) in ([], [OWNER_FILE]):
        calls.rmtree(home, ignore_errors=True)
    application = os.path.dirname(home)
    _remove_empty(application, os.path.dirname(application))


def remove_unowned(home: str) -> None:
    """Remove a home whose owner file could not be written, and the directories above it that become empty: no
    janitor would know of the home. It stays if another process has written an owner file meanwhile."""
    application = os.path.dirname(home)
    _remove_empty(home, application, os.path.dirname(application))


def _remove_empty(*directories: str) -> None:
    """Remove these directories, each of which lies in the next one, as far as they are empty."""
    for directory in directories:
        try:
            calls.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError:
            return


def _is_home(path: str) -> bool:
    path = os.path.abspath(path)
    application = os.path.dirname(path)
    in_home_root = os.path.basename(os.path.dirname(application)) == HOME_ROOT
    return in_home_root and not calls.islink(path) and not calls.islink(application)


def _names(directory: str) -> list[str]:
    try:
        return calls.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(path: str) -> None:
    try:
        calls.unlink(path)
    except IsADirectoryError:
        calls.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # the caller sees that the name is still there


def _last_touched(file: PartitionedFile, now: float) -> float:
    """Return the seconds since any file of the pair was written to; 0 if there is no file, or if the system
    gives an error."""
    newest = 0.0
    for path in (file.data_path, file.index_path, file.partial_data_path, file.partial_index_path):
        try:
            newest = max(newest, calls.lstat(path).st_mtime)
        except FileNotFoundError:
            continue
        except OSError:
            return 0.0  # not known to be old
    return now - newest if newest else 0.0


def _is_being_written(file: PartitionedFile) -> bool:
    """Return whether a writer holds its lock: on the partial file, or for a moment on the finished one."""
    return is_locked(file.partial_data_path) or is_locked(file.data_path)
