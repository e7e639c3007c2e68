"""Finds files that no live application owns, for `sortshuffle clean`.

Usually there are none: the janitor of an executor deletes its files (`homes.janitor`). The janitor cannot do
so if its machine or container went down, and must not under ``spark.sortshuffle.keep``.

Below a directory, without following symbolic links, this module judges

* *homes*, ``sortshuffle/<application>/<host>-<pid>-<digest>``, each by its ``owner.json``;
* in homes of live executors, the map outputs that are dead by the engine's own rules (`homes.lifetime`):
  unfinished ones that no process writes, and finished ones that Spark has forgotten.

Rules
* A home that cannot be judged from here is kept, unless it has not changed for as long as the caller says.
* A home with a foreign file is kept, whatever its owner: a person must look at it.
* The owner of a home of the shuffle manager (`homes.shared_home`) only keeps a service running, and may have
  been killed while the application lives. What its executors and driver registered decides (`_phase_of`).
* A home in which a process holds a lock is kept, whatever its owner: processes of other containers are not
  visible, but their locks are.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from sortshuffle import calls
from sortshuffle.cli.durations import duration
from sortshuffle.errors import UsageError
from sortshuffle.homes import forgotten_exchanges
from sortshuffle.homes.home_failures import MARKER_FILE
from sortshuffle.homes.host import is_this_host
from sortshuffle.homes.janitor import LOCK_FILE
from sortshuffle.homes.lifetime import dead_outputs, dead_partials, finished_outputs, remove_home
from sortshuffle.homes.owner import HOME_ROOT, NAME_DIGEST_BYTES, OWNER_FILE, SILENT_FILE, Owner
from sortshuffle.homes.processes import process_start
from sortshuffle.homes.shared_home import is_shared
from sortshuffle.service.host import rendezvous, rendezvous_directory
from sortshuffle.service.host.registration import ApplicationPhase, Registration, phase_of
from sortshuffle.storage.files import spare_files
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone, is_locked

OWNER_IS_WRITTEN = 60.0  # seconds; a younger home without owner.json may be a new one
_HOME_NAME = re.compile(rf".+-\d+-[0-9a-f]{{{2 * NAME_DIGEST_BYTES}}}")


class CleanTarget(Enum):
    """What a verdict is about."""

    HOME = "home"
    UNFINISHED_OUTPUT = "unfinished map output"
    FINISHED_OUTPUT = "finished map output"
    APPLICATION = "all of an application on shared storage"


@dataclass(frozen=True, slots=True)
class HomeVerdict:
    """The verdict on a home, on a map output in it, or on all files of an application on shared storage.
    ``bytes``: size of its files. ``path``: of the home, of the map output without suffix, or a URL."""

    path: str
    what: CleanTarget
    is_dead: bool
    bytes: int
    reason: str


def judge_all(
    directory: str, older_than: float | None, on_error: Callable[[OSError], None]
) -> Iterator[HomeVerdict]:
    """Yield a verdict on every home at or below a directory, and on the dead map outputs of live homes.

    ``older_than``: seconds; a home that cannot be judged counts as dead if it has not changed for longer.
    ``on_error`` is called for directories that cannot be listed, and homes that cannot be looked at.
    """
    now = time.time()
    for path in homes_below(directory, on_error):
        home = _Home.of(path, on_error)
        if home is not None:
            yield from _judge(home, older_than, now)


def homes_below(directory: str, on_error: Callable[[OSError], None]) -> Iterator[str]:
    """Yield, in order, the directories at or below ``directory`` whose position is that of a home."""
    for path, names, _ in calls.walk(calls.realpath(directory), onerror=on_error):
        names.sort()
        application = os.path.dirname(path)
        if os.path.basename(os.path.dirname(application)) == HOME_ROOT:
            names.clear()
            yield path


def remove(verdict: HomeVerdict) -> bool:
    """Delete a home or a map output on this host. Return False if something is left of it."""
    try:
        if verdict.what is CleanTarget.HOME:
            remove_home(verdict.path)
            return is_gone(verdict.path)
        if verdict.what is CleanTarget.UNFINISHED_OUTPUT:
            PartitionedFile(verdict.path).delete_unfinished()
        else:
            PartitionedFile(verdict.path).delete()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Home:
    """A snapshot of a home. ``changed``: when the home or a file in it last changed, seconds since 1970.
    ``foreign``: a name in it that is not ours. ``is_held``: a process holds a lock in it. ``is_bare``: it has
    no files except temporary ones of an owner.json."""

    path: str
    owner: Owner | None
    bytes: int
    changed: float
    foreign: str | None
    is_held: bool
    is_bare: bool

    @staticmethod
    def of(path: str, on_error: Callable[[OSError], None]) -> _Home | None:
        """Look at a directory. Return None if it is not a home, is gone, or cannot be looked at: in the last
        case ``on_error`` gets the error."""
        is_named_so = _HOME_NAME.fullmatch(os.path.basename(path)) is not None
        try:
            owner = Owner.read(path) if is_named_so else Owner.load(path)
            if owner is None and not is_named_so:
                return None
            found = _files_in(path)
            changed = calls.lstat(path).st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            on_error(error)
            return None
        return _Home(
            path,
            owner,
            sum(each.st_size for each in found.values()) + _spare_bytes(path),
            max([changed, *(each.st_mtime for each in found.values())]),
            next((name for name in sorted(found) if not _is_ours(name, found[name])), None),
            any(is_locked(os.path.join(path, name)) for name in found if not name.startswith(OWNER_FILE)),
            all(name.startswith(f"{OWNER_FILE}.") for name in found),
        )


def _files_in(home: str) -> dict[str, os.stat_result]:
    """Return what is in a home, by name. Raises OSError."""
    found = {}
    with calls.scandir(home) as scan:
        for entry in scan:
            try:
                found[entry.name] = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # a live executor has removed or renamed it
    return found


def _spare_bytes(home: str) -> int:
    try:
        return spare_files.bytes_of(home)
    except OSError:
        return 0


def _is_ours(name: str, status: os.stat_result) -> bool:
    if name == spare_files.DIRECTORY:
        return stat.S_ISDIR(status.st_mode)
    named_so = name.startswith((OWNER_FILE, SILENT_FILE, forgotten_exchanges.PREFIX))
    named_so = named_so or name in (LOCK_FILE, MARKER_FILE)
    named_so = named_so or PartitionedFile.of(name) is not None
    return named_so and stat.S_ISREG(status.st_mode)


def _judge(home: _Home, older_than: float | None, now: float) -> Iterator[HomeVerdict]:
    owner = home.owner
    if owner is not None and owner.on_this_host() and owner.is_visible and owner.is_live():
        reason = f"application {owner.application} is live (process {owner.pid})"
        yield HomeVerdict(home.path, CleanTarget.HOME, False, home.bytes, reason)
        yield from _dead_outputs(home.path, owner, now)
        return
    # 1. the owner and the machine decide, if they can
    has_files = owner is not None and _has_files_of_spark(home.path, owner, now)
    is_dead, reason = _is_dead(home, has_files, now)
    # 2. otherwise the age decides
    if is_dead is None:
        age = now - home.changed
        is_dead = older_than is not None and age > older_than
        reason += f"; nothing has changed in it for {duration(age)}"
    # 3. a foreign file, or a lock, keeps the home in any case
    if is_dead and home.foreign is not None:
        is_dead, reason = False, f"{home.foreign!r} in it is not sortshuffle's ({reason})"
    if is_dead and home.is_held:
        is_dead, reason = False, f"a process holds a lock in it ({reason})"
    yield HomeVerdict(home.path, CleanTarget.HOME, is_dead, home.bytes, reason)
    if owner is not None and has_files and not is_dead:
        yield from _dead_outputs(home.path, owner, now)


def _is_dead(home: _Home, has_files: bool, now: float) -> tuple[bool | None, str]:
    """Judge a home without a live owner. Return whether it is dead (None: cannot be told), and the reason.
    ``has_files``: the result of `_has_files_of_spark`."""
    owner = home.owner
    if owner is None and home.is_bare:
        if now - home.changed < OWNER_IS_WRITTEN:
            return False, "it is being made"
        return True, "its executor ended before it wrote anything"
    if owner is None:
        return None, "it has no owner.json that can be read"
    if owner.on_this_host() and not owner.is_visible:
        return None, f"it belongs to another container of {owner.host}, whose processes are not seen here"
    if has_files:
        return None, f"{_end_of(owner)}, but Spark's shuffle service may still serve what it had finished"
    if owner.on_this_host() and owner.outlived and not owner.application_has_ended():
        return (
            None,
            f"{_end_of(owner)}, but its application may still be served from here (sortshuffle serve)",
        )
    if owner.on_this_host() and is_shared(home.path):
        return _is_shared_dead(home.path, owner)
    if owner.on_this_host():
        return True, _end_of(owner)
    if not is_this_host(owner.host):
        return None, f"it belongs to host {owner.host}"
    if home.changed < _boot_time():
        return True, "the machine was started again after it was written"
    return None, f"it belongs to another machine called {owner.host}"


def _is_shared_dead(home: str, owner: Owner) -> tuple[bool | None, str]:
    """Judge a home of the shuffle manager, whose service has ended, as `_is_dead` does."""
    end = f"its service has ended (process {owner.pid}){_kept(owner)}"
    match _phase_of(home):
        case ApplicationPhase.LIVE:
            return False, f"application {owner.application} is live, though {end}"
        case ApplicationPhase.WAITING:
            return None, f"{end}, but its application may get executors here again"
        case ApplicationPhase.OVER:
            return True, f"{end}, and so has its application here"
    return None, f"{end}, and nothing that this user can read tells whether its application has"


def _phase_of(home: str) -> ApplicationPhase | None:
    """Return what is known of the application of a shared home by the executors that registered with this
    user's services. None if none of them names the home, or if that cannot be read."""
    own, name = rendezvous_directory.own_directory(), os.path.basename(home)  # its token is unique
    try:
        if is_gone(own):
            return None
        rendezvous_directory.make_own(own)  # makes nothing: refuses what another user could have put there
        places = [os.path.join(own, each) for each in rendezvous_directory.names_in(own)]
        found = [rendezvous.registrations(place) for place in places if calls.isdir(place)]
    except (OSError, UsageError):
        return None
    phases = [phase_of(each) for each in found if any(_names(one, name) for one in each)]
    return max(phases, default=None)


def _names(registration: Registration, home: str) -> bool:
    """Return whether an executor registered a shared home with this name."""
    return home in map(os.path.basename, registration.shared_homes)


def _end_of(owner: Owner) -> str:
    if process_start(owner.pid) == owner.started:
        what = "Spark has removed the directories of its executor"
    else:
        what = f"its executor has ended (process {owner.pid})"
    return what + _kept(owner)


def _kept(owner: Owner) -> str:
    return ", it was kept by spark.sortshuffle.keep" if owner.keep else ""


def _has_files_of_spark(home: str, owner: Owner, now: float) -> bool:
    """Return whether Spark may still have an ended executor's shuffle files for map outputs of this home."""
    if not (owner.leaves_outputs_to_spark and owner.has_ended()):
        return False
    try:
        return len(finished_outputs(home)) > len(list(dead_outputs(home, owner, now)))
    except OSError:
        return True


def _dead_outputs(home: str, owner: Owner, now: float) -> Iterator[HomeVerdict]:
    try:
        for file in dead_partials(home, now):
            reason = "its task ended before it was finished"
            yield HomeVerdict(file.base, CleanTarget.UNFINISHED_OUTPUT, True, _size_of(file), reason)
        for file in dead_outputs(home, owner, now):
            yield HomeVerdict(
                file.base, CleanTarget.FINISHED_OUTPUT, True, _size_of(file), "Spark has forgotten it"
            )
    except OSError:
        return  # the home, or Spark's directories, cannot be read: nothing is known to be dead


def _size_of(file: PartitionedFile) -> int:
    size = 0
    for path in (file.data_path, file.index_path, file.partial_data_path, file.partial_index_path):
        try:
            size += calls.lstat(path).st_size
        except OSError:
            continue
    return size


def _boot_time() -> float:
    """Return when this machine was started, in seconds since 1970; 0 if that cannot be told."""
    try:
        with calls.open_file("/proc/stat", encoding="ascii") as opened:
            lines = [line.split() for line in opened]
    except OSError:
        return 0.0
    return next((float(words[1]) for words in lines if words[0] == "btime"), 0.0)
