"""Processes of this host: what identifies a process, and whether it still runs.

A number does not identify a process, because the system reuses numbers. A process is identified by its number
and start time, with the run of the system (`boot_id`) and the namespace of the number.

Only the standard library is imported here: the janitor process (`homes.janitor`) must stay small.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sortshuffle import calls

_ENDED = ("Z", "X", "x")  # states of a process that has ended, but that its parent has not waited for


@dataclass(slots=True)
class _SystemIds:
    """This process's boot id and namespace, which never change. Empty until they are known."""

    boot: str = ""
    namespace: str = ""


_ids = _SystemIds()


def boot_id() -> str:
    """Return the id of this run of the operating system; empty if unknown."""
    if not _ids.boot:
        try:
            with calls.open_file("/proc/sys/kernel/random/boot_id", encoding="ascii") as opened:
                _ids.boot = opened.read().strip()
        except OSError:
            pass
    return _ids.boot


def process_namespace() -> str:
    """Return the namespace of process numbers in which this process sees others; empty if unknown."""
    if not _ids.namespace:
        try:
            _ids.namespace = calls.readlink("/proc/self/ns/pid")
        except OSError:
            pass
    return _ids.namespace


def process_start(pid: int) -> int | None:
    """Return the start time of a process in ticks since boot; None if there is no such process or it has
    ended. Raises OSError if it cannot be read."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in _ENDED else int(fields[19])


def is_running(pid: int, started: int) -> bool:
    """Return whether the process with this start time still runs. If that cannot be read, for example for
    lack of descriptors, it counts as running."""
    try:
        return process_start(pid) == started
    except OSError:
        return True


def executor_pid() -> int:
    """Return the JVM that this worker works for: its nearest ancestor that runs Java, or else its parent."""
    pid = os.getppid()
    while pid > 0:  # in a container the JVM may be process 1
        try:
            fields = _stat_fields(pid)
        except PermissionError:  # process 1, where users do not see processes of others
            break
        if fields is None:
            break
        if _command(pid) == "java":
            return pid
        pid = int(fields[1])
    return os.getppid()


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat after the command name, which may contain anything; None if there
    is no such process. Raises OSError if they cannot be read."""
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
