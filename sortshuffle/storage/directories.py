"""Where a task writes: the executor's homes in the local directories, used in turn.

A task calls `Homes.of` once. It makes the homes it can (mode 0700), records their owner, and starts the
janitor. A directory that cannot be used is passed over; only when none is left is that an error.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from sortshuffle.errors import OutOfDiskError, UsageError
from sortshuffle.options import MIB, Options
from sortshuffle.storage import janitor
from sortshuffle.storage.lifetime import HOME_ROOT, Owner, boot_id, executor_pid, process_start

LOCAL_DIRS_VARIABLE = "SPARK_LOCAL_DIRS"  # set by Spark in every Python worker: the executor's own
LEAST_FREE = 64 * MIB  # a directory with less free space is passed over: the first region may not fit


@dataclass(frozen=True, slots=True)
class Homes:
    """This executor's homes, in the order of the local directories. ``owner``: the executor."""

    paths: tuple[str, ...]
    owner: Owner

    @staticmethod
    def of(options: Options, application: str) -> Homes:
        """The homes of the executor that this process works for; makes them on first use.

        Raises `UsageError` if no directory is known, `OutOfDiskError` or OSError if none can be used.
        """
        spark_directories = tuple(filter(None, os.environ.get(LOCAL_DIRS_VARIABLE, "").split(",")))
        roots = options.directories or spark_directories
        if not roots:
            raise UsageError(
                f"no directory to write to: {LOCAL_DIRS_VARIABLE} is not set in this worker; set"
                " spark.sortshuffle.dir"
            )
        pid = executor_pid()
        owner = Owner(
            application=application,
            host=socket.gethostname(),
            boot=boot_id(),
            pid=pid,
            started=process_start(pid) or 0,
            local_directories=spark_directories,
            grace=options.grace,
            keep=options.keep,
        )
        homes = Homes(_make_homes(roots, owner), owner)
        janitor.ensure(homes.paths)
        return homes

    def pick(self, turn: int) -> str:
        """The home for a task: ``turn`` goes around those that have room.

        Raises `OutOfDiskError` if none has.
        """
        roomy = [home for home in self.paths if _free_bytes(home) >= LEAST_FREE]
        if not roomy:
            roomiest = max(self.paths, key=_free_bytes)
            raise OutOfDiskError(roomiest, LEAST_FREE, _free_bytes(roomiest))
        return roomy[turn % len(roomy)]


def _make_homes(roots: Sequence[str], owner: Owner) -> tuple[str, ...]:
    made: list[str] = []
    problem: OSError | None = None
    for root in roots:
        home = os.path.join(root, HOME_ROOT, owner.application, f"{owner.host}-{owner.pid}")
        try:
            os.makedirs(home, mode=0o700, exist_ok=True)
            if Owner.read(home) != owner:
                owner.write(home)
        except OSError as error:
            problem = error
            continue
        made.append(home)
    if not made and problem is not None:
        raise problem
    return tuple(made)


def _free_bytes(path: str) -> int:
    try:
        space = os.statvfs(path)
    except OSError:
        return 0
    return space.f_bavail * space.f_frsize
