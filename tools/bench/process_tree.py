"""CPU time and memory of one side of a benchmark: all of its processes together.

A side is a *root* process and whatever descends from it: the JVM, Python workers, the launcher, the service,
its supervisor. The supervisor is in a session of its own and its parent ends, so two things keep it in sight:

* the root is a *subreaper*: an orphan that descends from it becomes its child, not init's;
* the root's environment has `MARKER`, which its descendants inherit. Whoever has it belongs to the side, even
  where the first rule does not hold.

CPU time is user and system time of the processes that live, and of their children that have ended and were
waited for (the kernel adds those to the parent). `used` gives what was spent between two looks.

What is missed
* A child that ends between the looks and is never waited for, because its parent ignores SIGCHLD: what it
  spent between them. PySpark's daemon does that, so a Python worker that ends within a timed run is missed.
* Work of the kernel that belongs to no process: writing pages back to the disk.
* The kernel counts each of the four times in ticks of 10 ms: a run of 1 s is right to about 1 %.

Memory is PSS, the proportional set size: private pages, and of each shared page its share. Pages that both
sides share (the files of the Java runtime) count half for each. The page cache of shuffle files is no part.
Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from machine import TICKS_PER_SECOND
from watching import watching

MARKER = "SORTSHUFFLE_BENCH_SIDE"
# One look at a side with a JVM of 3 GB takes 10 to 30 ms of a core, so this is up to half of one: only for a
# pass that is not timed.
MEMORY_INTERVAL = 0.1  # seconds
_PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h
_SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1)


@dataclass(frozen=True, slots=True)
class Process:
    """One look at a process. ``start``: in ticks since boot; with the pid it names a process for good."""

    pid: int
    start: int
    parent: int
    state: str
    ticks: int  # of its own, and of ended children that were waited for
    ignores_children: bool  # children that end leave no trace in its ticks


@dataclass(frozen=True, slots=True)
class Look:
    """All processes of a side at one time."""

    processes: dict[tuple[int, int], Process]

    @property
    def ticks(self) -> int:
        return sum(each.ticks for each in self.processes.values())


class ProcessTree:
    """The processes of one side. ``root``: its first process; ``mark``: its value of `MARKER`."""

    def __init__(self, root: int, mark: str) -> None:
        self._root = root
        self._entry = f"{MARKER}={mark}".encode()

    def look(self) -> Look:
        found = [_stat(pid) for pid in _pids()]
        stats = {each.pid: each for each in found if each is not None}
        members = _descendants(stats, self._root)
        members |= {pid for pid in stats.keys() - members if self._is_marked(pid)}
        processes = {(pid, stats[pid].start): stats[pid] for pid in members}
        return Look(processes)

    def memory(self) -> Counter[str]:
        """PSS of all processes now, bytes, by what they run: a program, or a module of Python's."""
        found: Counter[str] = Counter()
        for each in self.look().processes.values():
            found[_program(each.pid)] += _pss(each.pid)
        return found

    def _is_marked(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as opened:
                return self._entry in opened.read().split(b"\0")
        except OSError:
            return False  # ended meanwhile, or another user's


def used(before: Look, after: Look) -> float:
    """CPU seconds that a side spent between two looks."""
    gone = [each for key, each in before.processes.items() if key not in after.processes]
    by_pid = {each.pid: each for each in before.processes.values()}
    # Their earlier time is in no process now: without it they would count as negative.
    lost = sum(each.ticks for each in gone if _leaves_no_trace(each, by_pid))
    return (after.ticks - before.ticks + lost) / TICKS_PER_SECOND


def _leaves_no_trace(process: Process, by_pid: dict[int, Process]) -> bool:
    parent = by_pid.get(process.parent)
    return parent is None or parent.ignores_children


def become_subreaper() -> None:
    """Make this process the parent of its descendants' orphans. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_orphans(own_children: set[int]) -> None:
    """Wait for adopted children that have ended. ``own_children``: pids that somebody else waits for."""
    me = os.getpid()
    for pid in _pids():
        found = _stat(pid)
        if found is not None and found.parent == me and found.state == "Z" and pid not in own_children:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


@dataclass(slots=True)
class Peaks:
    """``most``: `ProcessTree.memory` of each side when it had most, of so many ``looks``."""

    most: list[Counter[str]]
    looks: int = 1


@contextmanager
def peak_memory(trees: list[ProcessTree]) -> Iterator[Peaks]:
    """The peaks of all sides while the block runs; looked at every `MEMORY_INTERVAL`. Raises what looking
    raised, when the block has ended."""
    peaks = Peaks([tree.memory() for tree in trees])

    def look() -> None:
        for at, tree in enumerate(trees):
            peaks.most[at] = max(peaks.most[at], tree.memory(), key=Counter.total)
        peaks.looks += 1

    with watching(look, MEMORY_INTERVAL):
        yield peaks


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _descendants(stats: dict[int, Process], root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for each in stats.values():
        children.setdefault(each.parent, []).append(each.pid)
    found: set[int] = set()
    waiting = [root] if root in stats else []
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting.extend(children.get(pid, ()))
    return found


def _stat(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as opened:
            # behind the name, which may hold spaces and brackets; then fields 3, 4, ... of proc_pid_stat(5)
            fields = opened.read().rpartition(b")")[2].split()
        ignored = _ignored_signals(pid)
    except OSError:
        return None
    return Process(
        pid=pid,
        start=int(fields[19]),
        parent=int(fields[1]),
        state=fields[0].decode(),
        ticks=sum(int(field) for field in fields[11:15]),
        ignores_children=bool(ignored & _SIGCHLD_BIT),
    )


def _ignored_signals(pid: int) -> int:
    with open(f"/proc/{pid}/status", "rb") as opened:
        for line in opened:
            if line.startswith(b"SigIgn:"):
                return int(line.split()[1], 16)
    return 0


def _program(pid: int) -> str:
    """What a process runs: the module behind ``-m``, the script, or the program itself."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as opened:
            words = [os.path.basename(word.decode(errors="replace")) for word in opened.read().split(b"\0")]
    except OSError:
        return ""  # ended meanwhile
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return next((word for word in words if word.endswith(".py")), words[0])


def _pss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as opened:
            for line in opened:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # ended meanwhile
    return 0
