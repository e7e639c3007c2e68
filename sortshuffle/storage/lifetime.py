"""Who owns map outputs, and when they may be deleted.

Layout: ``<local directory>/sortshuffle/<application>/<host>-<pid>-<digest>/`` holds map outputs of one
executor (a *home* of it in that directory) and an ``owner.json`` that says whose they are. The process is
the executor's JVM; the digest is of all that ``owner.json`` says (`Owner.home_name`). So no two executors
ever have one home, in whichever containers they are, and what is to happen to its files never changes.

A map output lives exactly as long as Spark's own shuffle files of the same task attempt. What is dead:

* a ``.partial`` pair whose data file nobody holds a lock on (its task failed or was killed);
* a finished pair older than the grace time for which none of the executor's local directories has
  ``shuffle_<any>_<attempt>_0.index`` any more (Spark removes that when no frame can use it);
* a whole home whose executor has ended: its process is gone, or Spark removed its local directories. Where
  an external shuffle service serves its files they outlive it, and the service sweeps them.

Only the standard library is imported here: the janitor process (`storage.janitor`) must stay small.
Nothing outside directories named as above is ever deleted, and symbolic links are never followed.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from sortshuffle.errors import UsageError
from sortshuffle.storage.host import host_name, is_this_host
from sortshuffle.storage.partitioned_file import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    PARTIAL_SUFFIX,
    PartitionedFile,
)

HOME_ROOT = "sortshuffle"
OWNER_FILE = "owner.json"
NAME_DIGEST_BYTES = 6  # of a few executors and settings of one host and pid
# seconds; a file is created before it is locked, and renamed before it is unlocked: both take
# microseconds, so a partial that nobody has touched for this long is in neither of those moments
PARTIAL_SETTLES = 5.0

_CONTROL_FILE = re.compile(r"shuffle_\d+_(\d+)_0\.")
_ENDED = ("Z", "X", "x")  # states of a process that has ended, but that its parent has not yet asked about


@dataclass(frozen=True, slots=True)
class Owner:
    """The executor that a home belongs to.

    ``pid`` and ``started``: its JVM and the start time of that process in clock ticks since boot, so that
    a recycled pid is not taken for it. ``namespace``: of process numbers, in which the JVM has its own; empty
    if unknown. ``local_directories``: Spark's, empty if unknown. ``keep``: the user wants finished files
    left where they are. ``outlived``: finished files outlive the executor, because the host's shuffle
    service serves them until it sweeps (`sortshuffle serve`).
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

    @staticmethod
    def of_process(
        pid: int,
        application: str,
        local_directories: tuple[str, ...],
        grace: float,
        keep: bool,
        outlived: bool = False,
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
        )

    @property
    def home_name(self) -> str:
        """What the homes are called in which everything belongs to this owner."""
        from hashlib import blake2b  # 4 MB, which the janitor does without

        digest = blake2b(json.dumps(asdict(self)).encode(), digest_size=NAME_DIGEST_BYTES).hexdigest()
        return f"{self.host}-{self.pid}-{digest}"

    def write(self, home: str) -> None:
        path = os.path.join(home, OWNER_FILE)
        partial = f"{path}.{os.getpid()}"
        try:
            with open(partial, "w", encoding="utf-8") as opened:
                json.dump(asdict(self), opened)
            os.replace(partial, path)
        except BaseException:
            _remove(partial)
            raise

    @staticmethod
    def read(home: str) -> Owner | None:
        """The owner of a home; None where the file is missing or not readable as one."""
        try:
            with open(os.path.join(home, OWNER_FILE), encoding="utf-8") as opened:
                found = json.load(opened)
            found["local_directories"] = tuple(found["local_directories"])
            return Owner(**found)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @property
    def is_seen(self) -> bool:
        """Whether its process can be seen from here: in another container it cannot. Only for this host."""
        return self.namespace in ("", process_namespace())

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

    def sees_the_end(self) -> bool:
        """Whether its application is known to have ended: Spark (standalone, YARN) removes the directories
        above an executor's local ones with the application, not with the executor. Only for this host."""
        above = {os.path.dirname(directory) for directory in self.local_directories}
        return bool(above) and all(map(is_gone, above))


def boot_id() -> str:
    """Identifies this run of the operating system; empty where it cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as opened:
            return opened.read().strip()
    except OSError:
        return ""


def process_namespace() -> str:
    """Which processes this one can see, by their numbers; empty where it cannot be told."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


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


def is_gone(path: str) -> bool:
    """Whether nothing has that name. What the system does not tell counts as there."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


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


def dead_partials(home: str, now: float) -> Iterator[PartitionedFile]:
    """Unfinished pairs that no process is writing any more."""
    for file in _files(home, PARTIAL_SUFFIX):
        # in this order: a pair that is finished meanwhile was unlocked after its index was written
        if not _is_being_written(file) and _last_touched(file, now) > PARTIAL_SETTLES:
            yield file


def delete_unfinished(file: PartitionedFile) -> None:
    """Remove what a writer that did not finish has left. A finished pair of that name stays."""
    paths = [file.partial_index_path, file.partial_data_path]
    if not os.path.lexists(file.index_path):
        paths.append(file.data_path)  # the writer ended between the two renames of its `finish()`
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue


def dead_outputs(home: str, owner: Owner, now: float) -> Iterator[PartitionedFile]:
    """Finished pairs that Spark has forgotten for longer than the grace time."""
    if owner.keep or not owner.local_directories:
        return
    old = [
        file
        for file in _files(home, DATA_SUFFIX, INDEX_SUFFIX)
        if file.attempt is not None and _last_touched(file, now) > owner.grace
    ]
    if old:
        known = _attempts_known_to_spark(owner.local_directories)
        yield from (file for file in old if file.attempt not in known)


def control_files(local_directories: Iterable[str], attempt: int) -> Iterator[str]:
    """Spark's own shuffle files written by a task attempt: those of our control rows."""
    for directory in local_directories:
        yield from glob.iglob(os.path.join(glob.escape(directory), "??", f"shuffle_*_{attempt}_0.*"))


def sweep(home: str, owner: Owner) -> list[str]:
    """Delete what is dead in a live executor's home; returns the base paths deleted."""
    deleted = sweep_partials(home, time.time())
    for file in dead_outputs(home, owner, time.time()):
        file.delete()
        deleted.append(file.base)
    return deleted


def sweep_partials(home: str, now: float) -> list[str]:
    """Delete the unfinished pairs without a writer; returns their base paths."""
    dead = list(dead_partials(home, now))
    for file in dead:
        delete_unfinished(file)
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
        shutil.rmtree(home, ignore_errors=True)
    for above in (os.path.dirname(home), os.path.dirname(os.path.dirname(home))):
        try:
            os.rmdir(above)
        except OSError:
            return


def _is_home(path: str) -> bool:
    path = os.path.abspath(path)
    application = os.path.dirname(path)
    named_so = os.path.basename(os.path.dirname(application)) == HOME_ROOT
    return named_so and not os.path.islink(path) and not os.path.islink(application)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # seen by the caller: the name is still there


def _files(home: str, *suffixes: str) -> list[PartitionedFile]:
    names = [name for name in _names(home) if name.endswith(suffixes)]
    found = {PartitionedFile.of(os.path.join(home, name)) for name in names}
    return sorted((file for file in found if file is not None), key=lambda file: file.base)


def _last_touched(file: PartitionedFile, now: float) -> float:
    """Seconds since any file of the pair was written to; 0 if there is none."""
    newest = 0.0
    for path in (file.data_path, file.index_path, file.partial_data_path, file.partial_index_path):
        try:
            newest = max(newest, os.lstat(path).st_mtime)
        except FileNotFoundError:
            continue
    return now - newest if newest else 0.0


def _attempts_known_to_spark(local_directories: Iterable[str]) -> set[int]:
    """Task attempts that have control files: all of them in one walk, for there may be many outputs."""
    return {
        int(match[1])
        for directory in local_directories
        for path in glob.iglob(os.path.join(glob.escape(directory), "??", "shuffle_*_0.*"))
        if (match := _CONTROL_FILE.match(os.path.basename(path)))
    }


def _is_being_written(file: PartitionedFile) -> bool:
    """Whether a writer holds its lock: on the partial data file, and for a moment of `finish()` on the
    renamed one."""
    return is_locked(file.partial_data_path) or is_locked(file.data_path)


def is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # cannot be told: leave it alone
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat behind the command name, which may contain anything; None if there is no
    such process. Raises OSError if the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as opened:
            return opened.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as opened:
            return opened.read().strip()
    except OSError:
        return ""
