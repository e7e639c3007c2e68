"""When map outputs may be deleted. Who owns them, and where they lie, says `homes.owner`.

A map output lives exactly as long as Spark's own shuffle files of the same task attempt. What is dead:

* a ``.partial`` pair whose data file nobody holds a lock on (its task failed or was killed);
* a finished pair older than the grace time for which none of the executor's local directories has
  ``shuffle_<any>_<attempt>_0.index`` any more (Spark removes that when no frame can use it);
* a whole home whose executor has ended: its process is gone, or Spark removed its local directories. But
  where Spark's own shuffle files outlive the executor (`Owner.served_by_spark`) each map output of an ended
  executor goes with its own, without a grace time: none of its tasks can still finish. And where an external
  service of this package serves map outputs they outlive it, and the service sweeps them.

Only the standard library is imported here: the janitor process (`homes.janitor`) must stay small.
Nothing outside directories named as there is ever deleted, and symbolic links are never followed.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable, Iterator

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.homes.home_listings import HomeListings
from sortshuffle.homes.owner import HOME_ROOT, OWNER_FILE, Owner
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone, is_locked

BLOCKS = "blockmgr-*"  # an executor's local directories, in those that Spark makes for the application
# seconds; a file is created before it is locked, and renamed before it is unlocked: both take
# microseconds, so a partial that nobody has touched for this long is in neither of those moments
PARTIAL_SETTLES = 5.0


def dead_partials(home: str, now: float, listings: HomeListings | None = None) -> Iterator[PartitionedFile]:
    """Unfinished pairs that no process is writing any more. ``listings``: what is known of earlier ones."""
    for file in (listings or HomeListings()).partial(home):
        # in this order: a pair that is finished meanwhile was unlocked after its index was written
        if not _is_being_written(file) and _last_touched(file, now) > PARTIAL_SETTLES:
            yield file


def dead_outputs(
    home: str, owner: Owner, now: float, listings: HomeListings | None = None
) -> Iterator[PartitionedFile]:
    """Finished pairs that Spark has forgotten for longer than the grace time; of an executor that has ended,
    and has left them to Spark, those that Spark does not have. Raises OSError where Spark's directories
    cannot be read: then nothing is known to be dead. ``listings``: what is known of earlier ones."""
    if owner.keep or not owner.local_directories:
        return
    # asked before the files are listed: then no task of an executor that has ended adds one
    grace = float("-inf") if owner.leaves_outputs_to_spark and owner.has_ended() else owner.grace
    forgotten = (listings or HomeListings()).forgotten(home, owner.local_directories)
    dead = [file for file in forgotten if _last_touched(file, now) > grace]
    if dead and listings is not None:  # rare: what is kept does not decide alone
        afresh = set(HomeListings().forgotten(home, owner.local_directories))
        dead = [file for file in dead if file in afresh]
    yield from dead


def finished_outputs(home: str) -> list[PartitionedFile]:
    """The finished pairs of a home, and what is left of such. Raises OSError."""
    return HomeListings().finished(home)


def control_files(directories: Iterable[str], attempt: int) -> Iterator[str]:
    """Spark's own shuffle files written by a task attempt: those of our control rows. ``directories``: local
    ones of executors, or those above them, which Spark makes for the application."""
    name = f"shuffle_*_{attempt}_0.*"
    for directory in map(glob.escape, directories):
        yield from calls.iglob(os.path.join(directory, "??", name))
        yield from calls.iglob(os.path.join(directory, BLOCKS, "??", name))


def sweep(home: str, owner: Owner, listings: HomeListings | None = None) -> list[str]:
    """Delete what is dead in a home whose executor lives, or has left its map outputs to Spark; returns the
    base paths deleted. Raises OSError. ``listings``: what is known of earlier ones."""
    deleted = sweep_partials(home, time.time(), listings)
    for file in dead_outputs(home, owner, time.time(), listings):
        file.delete()
        deleted.append(file.base)
    return deleted


def sweep_ended(place: str, listings: HomeListings | None = None) -> bool:
    """The same for all homes in an application's directory whose executors have ended and have left their map
    outputs to Spark. Homes without a map output are removed; returns whether any is left. A home whose owner
    cannot be read for the moment counts as left."""
    is_left = False
    listings = listings or HomeListings()
    for name in _names(place):
        home = os.path.join(place, name)
        try:
            owner = Owner.load(home)
            if owner is None or not owner.leaves_outputs_to_spark:
                continue
            if not owner.has_ended():
                is_left = is_left or not owner.knows_its_system
                continue
            sweep(home, owner, listings)
            # listed afresh, too, before it goes
            if not listings.has_finished(home) and not HomeListings().has_finished(home):
                remove_home(home)
        except OSError:
            pass  # the next look tries again
        is_left = is_left or not is_gone(home)
    listings.forget_unvisited()
    return is_left


def sweep_partials(home: str, now: float, listings: HomeListings | None = None) -> list[str]:
    """Delete the unfinished pairs without a writer; returns their base paths."""
    dead = list(dead_partials(home, now, listings))
    for file in dead:
        file.delete_unfinished()
    return [file.base for file in dead]


def remove_home(home: str) -> None:
    """Delete a dead executor's home, and the directories above it that this leaves empty.

    Its owner goes last, so that what cannot be removed, or an interrupted removal, is found again.
    Raises `UsageError` for a directory that is not named like a home.
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
    """Remove a home that no owner could be written to, and the directories above it that this leaves empty.
    No janitor would know of it. One that another process has written an owner to meanwhile stays."""
    application = os.path.dirname(home)
    _remove_empty(home, application, os.path.dirname(application))


def _remove_empty(*directories: str) -> None:
    """Each lies in the next one."""
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
    named_so = os.path.basename(os.path.dirname(application)) == HOME_ROOT
    return named_so and not calls.islink(path) and not calls.islink(application)


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
        pass  # seen by the caller: the name is still there


def _last_touched(file: PartitionedFile, now: float) -> float:
    """Seconds since any file of the pair was written to; 0 if there is none."""
    newest = 0.0
    for path in (file.data_path, file.index_path, file.partial_data_path, file.partial_index_path):
        try:
            newest = max(newest, calls.lstat(path).st_mtime)
        except FileNotFoundError:
            continue
    return now - newest if newest else 0.0


def _is_being_written(file: PartitionedFile) -> bool:
    """Whether a writer holds its lock: on the partial data file, and for a moment of `finish()` on the
    renamed one."""
    return is_locked(file.partial_data_path) or is_locked(file.data_path)
