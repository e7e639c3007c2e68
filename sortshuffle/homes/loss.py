"""Lost map outputs: how to make Spark run their producers again.

Spark knows a map output by its own shuffle files, which hold the control rows. Python code cannot report a
failed fetch to Spark. But if those files are gone, the next task that asks for them has a failed fetch, and
Spark runs the map task again. So they are removed: by a consumer on their host, or by its shuffle service.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable

from sortshuffle import calls
from sortshuffle.homes.lifetime import control_files
from sortshuffle.homes.listings import SETTLES
from sortshuffle.homes.owner import Owner
from sortshuffle.storage.files.partitioned_file import DATA_SUFFIX, PartitionedFile


def make_producer_run_again(file: PartitionedFile, own_directories: tuple[str, ...] = ()) -> None:
    """Remove Spark's own control files of this map output, as far as this process can reach them.

    ``own_directories``: local directories of the executor that this process works for, or those above them.
    They are searched if no home names the map output's owner: it is on storage that every host sees, or its
    home is gone. Attempt numbers are unique in an application.
    """
    if file.attempt is None:
        return
    owner = Owner.read(os.path.dirname(file.base))
    if owner is not None and owner.outlived:
        _keep_from_adoption(file)
    _touch_all(os.path.dirname(file.base), file.attempt)
    remove_control_files(own_directories if owner is None else owner.local_directories, file.attempt)


def remove_control_files(directories: Iterable[str], attempt: int) -> None:
    """Remove Spark's own files of a task attempt from these local directories, and from those below."""
    for path in control_files(directories, attempt):
        try:
            calls.unlink(path)
        except OSError:
            continue  # another process may have removed it


def _touch_all(home: str, attempt: int) -> None:
    """Give the grace time to all map outputs of a task attempt in a home: tasks that have its control rows
    may still read those of its other exchanges. The janitor cannot tell who removed Spark's file, but sees
    that these were touched after its own first look at that file."""
    pattern = os.path.join(glob.escape(home), f"*-attempt-{attempt}{DATA_SUFFIX}")
    later = time.time() + SETTLES  # a system may keep whole seconds, and the janitor may look at this moment
    for path in calls.iglob(pattern):
        try:
            calls.utime(path, (later, later))
        except OSError:
            continue  # it may be gone, or be of another user


def _keep_from_adoption(file: PartitionedFile) -> None:
    """Delete the pair, under all its names in homes of its application. Otherwise the map task that runs
    again would adopt it as its finished output."""
    homes = os.path.dirname(os.path.dirname(file.base))
    map_output = os.path.basename(file.base).rpartition("-attempt-")[0]
    pattern = os.path.join(glob.escape(homes), "*", f"{glob.escape(map_output)}-attempt-*{DATA_SUFFIX}")
    same = [path for path in calls.glob(pattern) if _is_same(path, file.data_path)]
    for other in filter(None, map(PartitionedFile.of, [*same, file.data_path])):
        _delete(other)


def _is_same(one: str, other: str) -> bool:
    try:
        return calls.samefile(one, other)
    except OSError:
        return False


def _delete(file: PartitionedFile) -> None:
    try:
        file.delete()
    except OSError:
        pass  # a pair that cannot be deleted cannot be read either
