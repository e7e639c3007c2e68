"""What is left of an application when it has ended: nothing, says the documentation, within 30 seconds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sortshuffle.homes.processes import is_running
from sortshuffle.service.host.rendezvous_directory import socket_path

PATIENCE = 40.0  # seconds; docs/operations.md says 30, a busy machine needs some more
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Left:
    """``processes``: their command lines. ``files``: of map outputs, and what tasks met by. ``descriptors``:
    of processes that go on, for files that are the application's or gone."""

    processes: tuple[str, ...]
    files: tuple[str, ...]
    sockets: tuple[str, ...]
    descriptors: tuple[str, ...]

    def count(self) -> int:
        return len(self.processes) + len(self.files) + len(self.sockets) + len(self.descriptors)


@dataclass(frozen=True, slots=True)
class Survivors:
    """Who may go on: ``pids``, and all processes of these ``sessions``."""

    pids: frozenset[int]
    sessions: frozenset[int]


def left(
    application: str,
    survivors: Survivors,
    directories: tuple[Path, ...],
    temporary: Path,
    unattended: Collection[Path] = (),
) -> Left:
    """Of an application. ``directories``: below which its map outputs were. ``temporary``: that of all
    processes. ``unattended``: directories in there that may stay."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    strangers = [pid for pid in pids if not _may_stay(pid, survivors)]
    files = [path for directory in directories for path in _below(directory) if _is_ours(path, application)]
    spared = {path for each in unattended for path in _of_meeting(each)}
    meetings = [path for path in _below(temporary) if "sortshuffle" in path and path not in spared]
    return Left(
        tuple(f"{pid} {command}" for pid in strangers if (command := command_of(pid))),
        (*files, *meetings),
        tuple(_unix_sockets(str(temporary))),
        tuple(
            found
            for pid in pids
            if pid not in strangers
            for found in _descriptors(pid, application, directories)
        ),
    )


def _of_meeting(meeting: Path) -> Iterator[str]:
    yield from (str(meeting.parent), str(meeting), socket_path(str(meeting)))
    yield from _below(meeting)


def unattended(temporary: Path, application: str, host: str) -> list[Path]:
    """Where the tasks of an application on a host met, if the supervisor that would remove it was killed. The
    next service that a task starts there removes it (docs/operations.md)."""
    found = temporary.glob(f"sortshuffle-*/{application}-{host}-*")
    return [path for path in found if path.is_dir() and not _is_supervised(path)]


def _is_supervised(meeting: Path) -> bool:
    try:
        supervisor = json.loads((meeting / "service.json").read_text())
    except OSError:
        return True  # whoever made it is at work on it, or was killed, which is not looked for here
    return is_running(supervisor["pid"], supervisor["started"])


def until_nothing_is_left(look: Callable[[], Left]) -> Left:
    """What is left after `PATIENCE` seconds; empty as soon as nothing is."""
    deadline = time.monotonic() + PATIENCE
    while (found := look()).count() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found


def clear_away(found: Left) -> None:
    """Remove what is left."""
    for line in found.processes:
        with suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)
    for path in found.files:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)


def command_of(pid: int) -> str:
    """Its command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _may_stay(pid: int, survivors: Survivors) -> bool:
    if pid in survivors.pids:
        return True
    try:
        return os.getsid(pid) in survivors.sessions
    except ProcessLookupError:
        return True  # it has ended


def _below(directory: Path) -> Iterator[str]:
    for parent, directories, names in os.walk(directory):
        yield from (os.path.join(parent, name) for name in (*directories, *names))


def _is_ours(path: str, application: str) -> bool:
    parts = path.split(os.sep)
    return "sortshuffle" in parts and any(part.startswith(application) for part in parts)


def _unix_sockets(below: str) -> Iterator[str]:
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        path = line.split(maxsplit=7)[7:]
        if path and path[0].startswith(below) and "sortshuffle" in path[0]:
            yield path[0]


def _descriptors(pid: int, application: str, directories: tuple[Path, ...]) -> Iterator[str]:
    try:
        opened = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for each in opened:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{each}")
        except OSError:
            continue
        is_below = any(target.startswith(f"{directory}/") for directory in directories)
        if is_below and (_is_ours(target, application) or target.endswith(" (deleted)")):
            yield f"{pid} has {target}"


def descriptor_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of a process. ``resident``: bytes of memory."""

    resident: int
    threads: int


def footprint(pid: int) -> Footprint:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return Footprint(int(found["VmRSS"].split()[0]) << 10, int(found["Threads"]))
