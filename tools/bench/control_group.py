"""`ControlGroup`: the processes of one side together, with a limit on their memory, and what they use.

Version 1 and 2 of Linux's control groups. Whoever makes them must be allowed to; root is.

* The limit counts the page cache, as in a container. So the page cache of shuffle files is part of the memory
  that a side shares out, and files that are larger than that are read from the disk.
* `peak` counts what the kernel cannot take back: anonymous pages and shared memory (Ray's objects are there).
  It is looked at every `INTERVAL`, by a thread.
* Bytes that are written are those of files, when their pages become dirty, whether they reach the disk or
  not. Of processes that end, the kernel adds them to the parent that waits for them; others' are missed.
* What is read is counted by the disk, for all processes of the machine: nothing else may run. The groups of
  version 1 count reads only where a rule limits them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from machine import machine_seconds
from watching import watching

ROOT = Path("/sys/fs/cgroup")
VERSION_1 = ("memory", "cpuacct")
SECTOR = 512  # bytes, in the kernel's figures of every disk
INTERVAL = 0.05  # seconds between looks at memory; one look takes 0.1 ms
PATIENCE = 20.0  # seconds for all processes to end


@dataclass(frozen=True, slots=True)
class Usage:
    """What a group has used so far. ``cpu``: seconds of user and system. ``disk_read``, ``disk_reads``: bytes
    that came from the disk, and in how many reads, those of other processes included; None if the file system
    is on no disk that the kernel counts. ``written``: bytes of files. ``foreign``: CPU seconds of processes
    outside of the group. ``stolen``: seconds of cores that the host of a virtual machine gave to others."""

    cpu: float
    disk_read: int | None
    disk_reads: int | None
    written: int
    foreign: float
    stolen: float

    def since(self, before: Usage) -> Usage:
        return Usage(
            self.cpu - before.cpu,
            _difference(self.disk_read, before.disk_read),
            _difference(self.disk_reads, before.disk_reads),
            self.written - before.written,
            max(0.0, self.foreign - before.foreign),
            self.stolen - before.stolen,
        )


class ControlGroup:
    """A group in each hierarchy that counts or limits."""

    def __init__(self, directories: dict[str, Path], is_second_version: bool) -> None:
        self._directories = directories
        self._is_second_version = is_second_version
        self._peak = 0

    # ---- processes ----------------------------------------------------------------------------------

    def add(self, pid: int) -> None:
        """Put a process in. What it starts from now on is in the group, too."""
        for directory in self._directories.values():
            (directory / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """Return the processes. Raises `OSError` if some are another container's, which cannot be seen."""
        found = [int(line) for line in (self._memory / "cgroup.procs").read_text().split()]
        if 0 in found:  # `os.kill(0)` would end our own process group
            raise OSError(f"{self._memory} has processes of another container")
        return found

    def wait_until_empty(self) -> list[int]:
        """Wait until all processes have ended; kill those that do not, and return them."""
        until = time.monotonic() + PATIENCE
        while self.pids() and time.monotonic() < until:
            time.sleep(0.05)
        return self.kill()

    def kill(self) -> list[int]:
        """Kill all processes, and those that they start meanwhile, and return them. Raises `TimeoutError` if
        some stay."""
        killed: set[int] = set()
        until = time.monotonic() + PATIENCE
        while left := self.pids():
            if time.monotonic() > until:
                raise TimeoutError(f"{len(left)} processes cannot be killed: {left}")
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(left)
            time.sleep(0.05)
        return sorted(killed)

    # ---- figures ------------------------------------------------------------------------------------

    def usage(self, directory: Path) -> Usage:
        """Return what has been used. ``directory``: on the disk whose reads count."""
        read, reads = _disk_reads(directory) or (None, None)
        cpu, (busy, stolen) = self._cpu(), machine_seconds()
        return Usage(cpu, read, reads, sum(map(_written, self.pids())), busy - cpu, stolen)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look for the peak of memory while the block runs."""
        with watching(self._look, INTERVAL):
            yield
        self._look()

    @property
    def peak(self) -> int:
        """The most bytes of memory that were seen by `watched`."""
        return self._peak

    def _look(self) -> None:
        self._peak = max(self._peak, self._resident())

    @property
    def _memory(self) -> Path:
        return self._directories["memory"]

    def _resident(self) -> int:
        values = _table(self._memory / "memory.stat")
        if self._is_second_version:
            return values["anon"] + values["shmem"]
        return values["total_rss"] + values["total_shmem"]

    def _cpu(self) -> float:
        if self._is_second_version:
            return _table(self._memory / "cpu.stat")["usage_usec"] / 1e6
        return int((self._directories["cpuacct"] / "cpuacct.usage").read_text()) / 1e9


@contextmanager
def control_group(memory: int, owner: str = "bench") -> Iterator[ControlGroup]:
    """A group that may have so many bytes of memory. It goes with the block, and so do its processes.
    ``owner``: by which `kill_left` finds it. Raises `OSError` where groups cannot be made."""
    name = f"sortshuffle-{owner}-{uuid.uuid4().hex[:8]}"
    is_second_version = _is_second_version()
    directories = _directories(name, is_second_version)
    limit = "memory.max" if is_second_version else "memory.limit_in_bytes"
    made: list[Path] = []
    try:
        for directory in directories.values():
            directory.mkdir()
            made.append(directory)
        (directories["memory"] / limit).write_text(str(memory))
        group = ControlGroup(directories, is_second_version)
        try:
            yield group
        finally:
            group.kill()
    finally:
        for directory in reversed(made):  # that of memory, by which `kill_left` finds the group, comes last
            _remove(directory)


def kill_left(owner: str) -> None:
    """Kill the processes of an owner's groups, and remove the groups: what a program that was killed has
    left."""
    is_second_version = _is_second_version()
    for path in sorted(_hierarchies(is_second_version)["memory"].glob(f"sortshuffle-{owner}-*")):
        directories = _directories(path.name, is_second_version)
        ControlGroup(directories, is_second_version).kill()
        for directory in reversed(list(directories.values())):  # that by which the group is found comes last
            _remove(directory)


def _is_second_version() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _directories(name: str, is_second_version: bool) -> dict[str, Path]:
    """Return a group's directory in each hierarchy."""
    return {kind: path / name for kind, path in _hierarchies(is_second_version).items()}


def _hierarchies(is_second_version: bool) -> dict[str, Path]:
    return {"memory": ROOT} if is_second_version else {kind: ROOT / kind for kind in VERSION_1}


def why_no_groups() -> str:
    """Return why control groups cannot be made here; empty if they can."""
    try:
        with control_group(1 << 30) as group, group.watched():
            group.usage(Path())
            return ""
    except OSError as error:
        return str(error)


def _remove(directory: Path) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            directory.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > until:
                print(f"a control group stays: {error}", file=sys.stderr)
                return
            time.sleep(0.05)


def _table(path: Path) -> dict[str, int]:
    """A file of lines "name number"."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value in pairs}


def _disk_reads(directory: Path) -> tuple[int, int] | None:
    """Return the bytes that the disk of a directory has read, and in how many reads; None if the kernel
    counts none for its file system, such as one in memory or over others."""
    device = os.stat(directory).st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    if not stat.exists():
        return None
    reads, _, sectors = map(int, stat.read_text().split()[:3])
    return sectors * SECTOR, reads


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _written(pid: int) -> int:
    """Bytes of files that a process has written, and those of its children that it has waited for."""
    try:
        fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    except OSError:
        return 0  # it has ended
    return int(fields["write_bytes"])
