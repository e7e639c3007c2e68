"""Where a task writes: the executor's homes in the local directories, one task after another.

A task calls `Homes.of` once, which makes the homes (mode 0700), records their owner, and starts the janitor.
A directory that cannot be used is passed over; it is an error only if none can be used.

A home is skipped if it has no room, if it is read-only or gone, and for a while after it failed
(`homes.home_failures`). So if a task runs out of space in the middle of its map output, its next attempt goes
elsewhere, although the space of the first attempt is free again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sortshuffle import calls
from sortshuffle.errors import OutOfDiskError, UsageError
from sortshuffle.homes import home_failures, janitor
from sortshuffle.homes.lifetime import remove_unowned
from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.homes.processes import executor_pid
from sortshuffle.options import MIB, Options, format_size
from sortshuffle.storage.files.private import make_private

Made = TypeVar("Made")

LOCAL_DIRS_VARIABLE = "SPARK_LOCAL_DIRS"  # set by Spark in every Python worker: the executor's own
LEAST_FREE = 64 * MIB  # a directory with less free space is passed over: the first region may not fit
REMEDY = "mend one, or name others with spark.sortshuffle.dir (spark.local.dir sets the default)"


@dataclass(frozen=True, slots=True)
class Directories:
    """Homes among which tasks are distributed. ``paths``: in the order of the local directories."""

    paths: tuple[str, ...]

    def pick(self, turn: int) -> str:
        """Return the home of task number ``turn``: tasks rotate over the homes that have room and did not
        fail lately. If all of these failed lately, it is the one that failed longest ago.

        Raises `OutOfDiskError` if none has room, OSError if none can be used at all. The message, or that of
        its cause, has the reason for each home.
        """
        return self._in_turn(turn)[0]

    def create(self, turn: int, make: Callable[[str], Made]) -> Made:
        """Call ``make`` with the home for a task, or with the next one if that home fails; return the result.

        ``make`` raises OSError if it cannot make a file in the home. Raises as `pick` does.
        """
        for home in self._in_turn(turn):
            try:
                return make(home)
            except OSError as error:
                if not home_failures.is_homes_fault(error):
                    raise
                home_failures.remember(home, error)
        raise self._unusable()

    def _in_turn(self, turn: int) -> list[str]:
        """Return the homes with room, at least one, in the order in which to try them. Those that failed
        lately come last, as they are better than none."""
        roomy = [home for home in self.paths if _free_bytes(home) >= LEAST_FREE]
        if not roomy:
            raise self._unusable()
        failures = {home: at for home in roomy if (at := home_failures.failed_at(home)) is not None}
        sound = [home for home in roomy if home not in failures]
        start = turn % len(sound) if sound else 0
        return [*sound[start:], *sound[:start], *sorted(failures, key=failures.__getitem__)]

    def _unusable(self) -> OSError:
        """Return the error when no home is left. Its cause has the reason for each home."""
        free = {home: _free_bytes(home) for home in self.paths}
        reasons = OSError("; ".join(f"{home}: {_reason(home, free[home])}" for home in self.paths))
        roomiest = max(self.paths, key=free.__getitem__)
        last = home_failures.last_error(roomiest)
        if _is_short(free[roomiest]) or isinstance(last, OutOfDiskError):
            error: OSError = OutOfDiskError(roomiest, LEAST_FREE, free[roomiest])
        else:
            code = last.errno if last and last.errno else errno.EIO
            error = OSError(code, f"no local directory can be written to ({reasons}): {REMEDY}")
        error.__cause__ = reasons
        return error


@dataclass(frozen=True, slots=True)
class Homes(Directories):
    """This executor's homes. ``owner``: the executor."""

    owner: Owner

    @staticmethod
    def of(options: Options, application: str, served_by_spark: bool = False) -> Homes:
        """Return the homes of the executor that this process works for, and make them on first use.

        ``served_by_spark``: as in `Owner`. Raises `UsageError` if no directory is known, `OutOfDiskError` or
        OSError if none can be used.
        """
        owner = owner_of_homes(options, application, served_by_spark)
        homes = Homes(_make_homes(roots(options, served_by_spark), owner), owner)
        home_failures.watch(homes.paths)
        janitor.ensure(homes.paths)
        return homes


def roots(options: Options, served_by_spark: bool = False) -> tuple[str, ...]:
    """Return the local directories for this executor's homes. Raises `UsageError` if none is known.

    If Spark's shuffle files outlive the executor, these are the application's directories above the
    executor's. In the directories of an ended executor Spark deletes all files but its own kinds.
    """
    found = options.directories or (application_directories() if served_by_spark else spark_directories())
    if not found:
        raise UsageError(
            f"no directory to write to: {LOCAL_DIRS_VARIABLE} is not set in this worker; set"
            " spark.sortshuffle.dir"
        )
    return found


def owner_of_homes(options: Options, application: str, served_by_spark: bool = False) -> Owner:
    """Return the executor that this process works for, as the owner of its homes."""
    return Owner.of_process(
        executor_pid(),
        application,
        local_directories=spark_directories(),
        grace=options.grace,
        keep=options.keep,
        outlived=options.service == "external",
        served_by_spark=served_by_spark,
    )


def spark_directories() -> tuple[str, ...]:
    """Return the block directories of the executor that this process works for; none without an executor."""
    return tuple(filter(None, os.environ.get(LOCAL_DIRS_VARIABLE, "").split(",")))


def application_directories() -> tuple[str, ...]:
    """Return the directories above these, which Spark (standalone, YARN) makes for all executors of the
    application."""
    return tuple(dict.fromkeys(map(os.path.dirname, spark_directories())))


def _make_homes(roots: Sequence[str], owner: Owner) -> tuple[str, ...]:
    """Make the homes, and return those that could be made. Homes that failed lately are the last resort."""
    homes = [os.path.join(root, HOME_ROOT, owner.application, owner.home_name) for root in roots]
    failed = [home for home in homes if home_failures.failed_at(home) and not calls.isdir(home)]
    made = [home for home in homes if home not in failed and _is_made(home, owner)]
    made = made or [home for home in failed if _is_made(home, owner)]
    problem = home_failures.last_error(homes[-1])
    if not made and problem is not None:
        raise problem
    return tuple(made)


def _is_made(home: str, owner: Owner) -> bool:
    try:
        try:
            _make_home(home, owner)
        except FileNotFoundError:  # another worker could not write an owner to it, and has removed it
            _make_home(home, owner)
    except OSError as error:
        if home_failures.is_homes_fault(error):
            remove_unowned(home)
        home_failures.remember_in_process(home, error)
        return False
    return True


def _make_home(home: str, owner: Owner) -> None:
    make_private(home)
    if Owner.read(home) != owner:
        owner.write(home)


def _free_bytes(home: str) -> int:
    """Return the bytes that may be written; -1 if the home cannot be used: then the reason is remembered."""
    try:
        space = calls.statvfs(home)
        if space.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), home)
    except OSError as error:
        home_failures.remember(home, error)
        return -1
    return space.f_bavail * space.f_frsize


def _is_short(free: int) -> bool:
    return 0 <= free < LEAST_FREE


def _reason(home: str, free: int) -> str:
    error = home_failures.last_error(home)
    return f"{format_size(free)} free" if error is None or _is_short(free) else str(error)
