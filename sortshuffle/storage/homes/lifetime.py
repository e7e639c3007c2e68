"""Who owns map outputs, and when they may be deleted.

Layout: ``<local directory>/sortshuffle/<application>/<host>-<pid>-<digest>/`` holds map outputs of one
executor (a *home* of it in that directory) and an ``owner.json`` that says whose they are. The process is
the executor's JVM; the digest is of all that ``owner.json`` says (`Owner.home_name`). So no two executors
ever have one home, in whichever containers they are, and what is to happen to its files never changes.

A map output lives exactly as long as Spark's own shuffle files of the same task attempt. What is dead:

* a ``.partial`` pair whose data file nobody holds a lock on (its task failed or was killed);
* a finished pair older than the grace time for which none of the executor's local directories has
  ``shuffle_<any>_<attempt>_0.index`` any more (Spark removes that when no frame can use it);
* a whole home whose executor has ended: its process is gone, or Spark removed its local directories. But
  where Spark's own shuffle files outlive the executor (`Owner.served_by_spark`) each map output of an ended
  executor goes with its own, without a grace time: none of its tasks can still finish. And where an external
  service of this package serves map outputs they outlive it, and the service sweeps them.

Only the standard library is imported here: the janitor process (`storage.homes.janitor`) must stay small.
Nothing outside directories named as above is ever deleted, and symbolic links are never followed.
"""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone, is_locked
from sortshuffle.storage.homes.home_listings import HomeListings
from sortshuffle.storage.homes.host import host_name, is_this_host
from sortshuffle.storage.homes.small_files import replace_json

HOME_ROOT = "sortshuffle"
OWNER_FILE = "owner.json"
SILENT_FILE = "silent.json"  # which services did not answer an executor's workers (`spark.silence`)
BLOCKS = "blockmgr-*"  # an executor's local directories, in those that Spark makes for the application
NAME_DIGEST_BYTES = 6  # of a few executors and settings of one host and pid
# seconds; a file is created before it is locked, and renamed before it is unlocked: both take
# microseconds, so a partial that nobody has touched for this long is in neither of those moments
PARTIAL_SETTLES = 5.0

_ENDED = ("Z", "X", "x")  # states of a process that has ended, but that its parent has not yet asked about


@dataclass(frozen=True, slots=True)
class Owner:
    """The executor that a home belongs to.

    ``pid`` and ``started``: its JVM and the start time of that process in clock ticks since boot, so that
    a recycled pid is not taken for it. ``namespace``: of process numbers, in which the JVM has its own; empty
    if unknown. ``local_directories``: Spark's, empty if unknown. ``keep``: the user wants finished files
    left where they are. ``outlived``: finished files outlive the executor, because the host's shuffle
    service serves them until it sweeps (`sortshuffle serve`). ``served_by_spark``: Spark's own shuffle files
    outlive the executor, because Spark's external shuffle service serves them.
    """

    application: str
    host: str
    boot: str
    pid: int
    started: int
    local_directories: tuple[str, ...]
    grace: float
    keep: bool
    outlived: bool = False
    namespace: str = ""
    served_by_spark: bool = False

    @staticmethod
    def of_process(
        pid: int,
        application: str,
        local_directories: tuple[str, ...],
        grace: float,
        keep: bool,
        outlived: bool = False,
        served_by_spark: bool = False,
    ) -> Owner:
        """A process that this one can see. One that has ended is an owner that is not live."""
        return Owner(
            application,
            host_name(),
            boot_id(),
            pid,
            process_start(pid) or 0,
            local_directories,
            grace,
            keep,
            outlived,
            process_namespace(),
            served_by_spark,
        )

    @property
    def home_name(self) -> str:
        """What the homes are called in which everything belongs to this owner."""
        from hashlib import blake2b  # 4 MB, which the janitor does without

        digest = blake2b(json.dumps(asdict(self)).encode(), digest_size=NAME_DIGEST_BYTES).hexdigest()
        return f"{self.host}-{self.pid}-{digest}"

    def write(self, home: str) -> None:
        replace_json(os.path.join(home, OWNER_FILE), asdict(self))

    @staticmethod
    def read(home: str) -> Owner | None:
        """The owner of a home; None where the file is missing or not readable as one."""
        try:
            return Owner.found(home)
        except OSError:
            return None

    @staticmethod
    def found(home: str) -> Owner | None:
        """The same. Raises OSError where the system does not tell."""
        try:
            with calls.open_file(os.path.join(home, OWNER_FILE), encoding="utf-8") as opened:
                found = json.load(opened)
            found["local_directories"] = tuple(found["local_directories"])
            return Owner(**found)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def is_seen(self) -> bool:
        """Whether its process can be seen from here: in another container it cannot. Only for this host."""
        return self.namespace in ("", process_namespace())

    @property
    def is_told_apart(self) -> bool:
        """Whether the system has told this process what tells it from those of other machines and containers,
        as far as it has told the owner."""
        return bool(boot_id() or not self.boot) and bool(process_namespace() or not self.namespace)

    def on_this_host(self) -> bool:
        return self.boot == boot_id() and is_this_host(self.host)

    def is_live(self) -> bool:
        """Whether the executor still runs and still has its local directories. Only for this host. What the
        system does not tell counts as running: what is deleted cannot be had back."""
        if not self.is_seen:
            return True
        if not is_running(self.pid, self.started):
            return False
        return not self.local_directories or not all(map(is_gone, self.local_directories))

    @property
    def leaves_outputs_to_spark(self) -> bool:
        """Whether what it had finished when it ended stays as long as Spark serves its own shuffle files."""
        return self.served_by_spark and bool(self.local_directories) and not (self.outlived or self.keep)

    def has_ended(self) -> bool:
        """Whether it is known to have ended, which is so only on its own host."""
        return self.on_this_host() and not self.is_live()

    def sees_the_end(self) -> bool:
        """Whether its application is known to have ended: Spark (standalone, YARN) removes the directories
        above an executor's local ones with the application, not with the executor. Only for this host."""
        above = {os.path.dirname(directory) for directory in self.local_directories}
        return bool(above) and all(map(is_gone, above))


@dataclass(slots=True)
class _Told:
    """What the system has told this process of itself, which stays so. Empty until it has."""

    boot: str = ""
    namespace: str = ""


_told = _Told()


def boot_id() -> str:
    """Identifies this run of the operating system; empty where it cannot be told."""
    if not _told.boot:
        try:
            with calls.open_file("/proc/sys/kernel/random/boot_id", encoding="ascii") as opened:
                _told.boot = opened.read().strip()
        except OSError:
            pass
    return _told.boot


def process_namespace() -> str:
    """Which processes this one can see, by their numbers; empty where it cannot be told."""
    if not _told.namespace:
        try:
            _told.namespace = calls.readlink("/proc/self/ns/pid")
        except OSError:
            pass
    return _told.namespace


def process_start(pid: int) -> int | None:
    """Start time of a process in ticks since boot, None if there is no such process or it has ended.
    Raises OSError if the system does not tell."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in _ENDED else int(fields[19])


def is_running(pid: int, started: int) -> bool:
    """Whether the process that began then still runs. What the system does not tell, because it is out of
    files for example, counts as running."""
    try:
        return process_start(pid) == started
    except OSError:
        return True


def executor_pid() -> int:
    """The JVM that this Python worker works for: the nearest ancestor that is a Java process, or else
    the parent."""
    pid = os.getppid()
    while pid > 1:
        fields = _stat_fields(pid)
        if fields is None:
            break
        if _command(pid) == "java":
            return pid
        pid = int(fields[1])
    return os.getppid()


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
            owner = Owner.found(home)
            if owner is None or not owner.leaves_outputs_to_spark:
                continue
            if not owner.has_ended():
                is_left = is_left or not owner.is_told_apart
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


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat behind the command name, which may contain anything; None if there is no
    such process. Raises OSError if the system does not tell."""
    try:
        with calls.open_file(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as opened:
            return opened.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _command(pid: int) -> str:
    try:
        with calls.open_file(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as opened:
            return opened.read().strip()
    except OSError:
        return ""
