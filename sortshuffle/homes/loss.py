"""Lost map outputs: how to make Spark run their producers again.

Spark knows a map output by its own shuffle files, which hold the control rows. Python code cannot report a
failed fetch to Spark. But if those files are gone, the next task that asks for them has a failed fetch, and
Spark runs the map task again. So they are removed: by a consumer on their host, or by its shuffle service.

An error of the system, other than that a file is gone, ends nothing here. ``on_error`` gets it: something may
be left, so the caller must not rely on the removal. By default such errors are ignored: a task has an error
of its own to raise, and its next attempt tries again.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable

from sortshuffle import calls
from sortshuffle.homes.lifetime import OnError, control_files, ignore, matching
from sortshuffle.homes.listings import SETTLES
from sortshuffle.homes.owner import Owner
from sortshuffle.storage.files.partitioned_file import DATA_SUFFIX, PartitionedFile


def make_producer_run_again(
    file: PartitionedFile,
    own_directories: tuple[str, ...] = (),
    on_error: OnError = ignore,
    roots: tuple[str, ...] = (),
) -> None:
    """Remove Spark's own control files of this map output, as far as this process can reach them.

    ``own_directories``: local directories of the executor that this process works for, or those above them.
    They are searched if no home names the map output's owner: it is on storage that every host sees, or its
    home is gone or cannot be read. Attempt numbers are unique in an application.
    ``roots``: more directories in which the map output's executor may have homes.
    """
    if file.attempt is None:
        return
    home = os.path.dirname(file.base)
    owner = _owner_of(home, on_error)
    if owner is not None and owner.outlived:
        _keep_from_adoption(file, on_error)
    directories = own_directories if owner is None else owner.local_directories
    for each in _homes_of_one_owner(home, owner, directories, roots):
        _touch_all(each, file.attempt, on_error)
    remove_control_files(directories, file.attempt, on_error)


def remove_control_files(directories: Iterable[str], attempt: int, on_error: OnError = ignore) -> None:
    """Remove Spark's own files of a task attempt from these local directories, and from those below."""
    for path in control_files(directories, attempt, on_error):
        try:
            calls.unlink(path)
        except FileNotFoundError:
            continue  # another process has removed it
        except OSError as error:
            on_error(error)


def _owner_of(home: str, on_error: OnError) -> Owner | None:
    try:
        return Owner.load(home)
    except OSError as error:
        on_error(error)
        return None


def _homes_of_one_owner(
    home: str, owner: Owner | None, directories: Iterable[str], roots: Iterable[str]
) -> set[str]:
    """Return where the owner of a home may have homes, all of one name: in the roots, and in each local
    directory, or above if Spark's shuffle files outlive their executor (`homes.directories`). Other users may
    have directories of that name above, so nobody looks there without need."""
    places = {*roots}
    if owner is None or not owner.served_by_spark:
        places.update(directories)
    if owner is None or owner.served_by_spark:
        places.update(map(os.path.dirname, directories))
    below = os.path.join(*home.split(os.sep)[-3:])
    return {home, *(os.path.join(each, below) for each in places)}


def _touch_all(home: str, attempt: int, on_error: OnError) -> None:
    """Give the grace time to all map outputs of a task attempt in a home: tasks that have its control rows
    may still read those of its other exchanges. The janitor cannot tell who removed Spark's file, but sees
    that these were touched after its own first look at that file."""
    later = time.time() + SETTLES  # a system may keep whole seconds, and the janitor may look at this moment
    for path in matching(home, f"*-attempt-{attempt}{DATA_SUFFIX}", on_error):
        try:
            calls.utime(path, (later, later))
        except OSError:
            continue  # it may be gone, or be of another user


def _keep_from_adoption(file: PartitionedFile, on_error: OnError) -> None:
    """Delete the pair, under all its names in homes of its application. Otherwise the map task that runs
    again would adopt it as its finished output."""
    homes = os.path.dirname(os.path.dirname(file.base))
    map_output = os.path.basename(file.base).rpartition("-attempt-")[0]
    pattern = f"{glob.escape(map_output)}-attempt-*{DATA_SUFFIX}"
    found = [path for home in matching(homes, "*", on_error) for path in matching(home, pattern, on_error)]
    same = [path for path in found if _is_same(path, file.data_path, on_error)]
    for other in filter(None, map(PartitionedFile.of, [*same, file.data_path])):
        try:
            other.delete()
        except OSError as error:
            on_error(error)


def _is_same(one: str, other: str, on_error: OnError) -> bool:
    try:
        return calls.samefile(one, other)
    except FileNotFoundError:
        return False
    except OSError as error:
        on_error(error)
        return False
