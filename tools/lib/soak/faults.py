"""What is broken, and how. Everything here is in the soak's own namespaces (`soak.place`).

A fault finds something to break, or not: then it is tried again as long as the job runs. Some faults pass;
what ends them is in `Faults.ends`, which the loop does when it is due, or at the job's end.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from cluster import Cluster, signal_if_there

from soak.administrator import Administrator
from sortshuffle.service.host.rendezvous_directory import socket_path

STOPPED = 2.0  # seconds that a service, or a network, is away; less than spark.sortshuffle.service.timeout
FULL = 3.0  # seconds that a disk is full
HOST_DISK = "600m"  # of each host; what a job writes is some 30 MB
SMALL_DISK = "100m"  # of which sortshuffle leaves 64 MiB free
BALLAST = "ballast"
_CONNECTION = re.compile(r"^\S+\s+\S+\s+(\S+)\s+(\S+)\s+users:.*?pid=(\d+),", re.MULTILINE)


class Faults:
    """``temporary``: where the tasks of all hosts meet their services. ``disks``: for map outputs in place of
    the hosts' own, if there are any. The first one is the smallest: that one is filled."""

    def __init__(
        self, cluster: Cluster, administrator: Administrator, temporary: Path, disks: tuple[Path, ...]
    ) -> None:
        self._cluster = cluster
        self._administrator = administrator
        self._temporary = temporary
        self._disks = disks
        self._since = 0.0
        self.ends: list[tuple[float, Callable[[], None]]] = []
        self._kinds: dict[str, Callable[[str], object]] = {
            "executor": self._executor,
            "python": lambda host: cluster.kill(host, "python"),
            "service": lambda host: cluster.kill(host, "service"),
            "supervisor": lambda host: cluster.kill(host, "supervisor"),
            "both": lambda host: [*cluster.kill(host, "supervisor"), *cluster.kill(host, "service")],
            "janitor": lambda host: cluster.kill(host, "janitor"),
            "host": self._host,
            "administrator": administrator.kill,
            "outputs": self._outputs,
            "damage": self._damage,
            "full": self._full,
            "cut": self._cut,
            "stopped": self._stop,
            "unreachable": self._unreachable,
        }

    def inflict(self, what: str, host: str, since: float) -> bool:
        """Whether there was something to break, and it is broken. ``since``: when the job began, in seconds
        since 1970."""
        self._since = since
        return bool(self._kinds[what](host))

    def end(self, every: bool = False) -> None:
        """End what is due, or everything."""
        now = time.monotonic()
        due = [each for each in self.ends if every or each[0] <= now]
        self.ends = [each for each in self.ends if each not in due]
        with ExitStack() as ends:  # all of them end, even if one fails
            for _, undo in reversed(due):
                ends.callback(undo)

    # ---- processes ---------------------------------------------------------------------------------------

    def _executor(self, host: str) -> bool:
        """With its Python, which would go on for a moment."""
        killed = self._cluster.kill(host, "executor")
        self._cluster.kill(host, "python")
        return bool(killed)

    def _host(self, host: str) -> bool:
        """Everything that runs on it, but an administrator's service, and its disk. Then it comes back, with
        nothing in its temporary directory: nobody is left there who could have tidied it."""
        self._cluster.kill_host(host, spared=self._administrator.pids())
        for path in self._cluster.local_directory(host).iterdir():
            shutil.rmtree(path, ignore_errors=True)
        for meeting in self._temporary.glob(f"sortshuffle-*/*-{host}-*"):
            Path(socket_path(str(meeting))).unlink(missing_ok=True)
            shutil.rmtree(meeting, ignore_errors=True)
        self._cluster.restart_worker(host)
        return True

    # ---- files -------------------------------------------------------------------------------------------

    def _map_outputs(self, host: str) -> list[Path]:
        """The data files that this job has finished on a host: what earlier ones have left, nobody reads."""
        directories = [self._cluster.local_directory(host), *self._disks]
        return map_outputs(directories, host, self._since)

    def _outputs(self, host: str) -> bool:
        homes = {path.parent for path in self._map_outputs(host)}
        for home in homes:
            shutil.rmtree(home, ignore_errors=True)
        return bool(homes)

    def _damage(self, host: str) -> bool:
        """One bit in the middle of the largest map output."""
        with suppress(OSError):  # it goes at this moment
            found = self._map_outputs(host)
            path = max(found, key=lambda each: (each.stat().st_size, str(each)), default=None)
            if path is None:
                return False
            with open(path, "r+b", buffering=0) as opened:
                at = path.stat().st_size // 2
                byte = os.pread(opened.fileno(), 1, at)
                os.pwrite(opened.fileno(), bytes([byte[0] ^ 1]), at)
            return True
        return False

    def _full(self, host: str) -> bool:
        """To the last byte; for some time."""
        ballast = (*self._disks, self._cluster.local_directory(host))[0] / BALLAST
        if ballast.exists():
            return False
        with open(ballast, "wb", buffering=0) as opened:
            size = 1 << 20
            while size:
                try:
                    opened.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
        self._later(FULL, lambda: ballast.unlink(missing_ok=True))
        return True

    # ---- connections -------------------------------------------------------------------------------------

    def _services(self, host: str) -> set[int]:
        return {*self._cluster.pids(host, "service"), *self._administrator.pids(host)}

    def _cut(self, host: str) -> bool:
        """The connections of its services, in the middle of whatever goes over them."""
        found = set(connections(self._services(host)))
        for here, there in found:
            subprocess.run(["ss", "-K", "src", here, "dst", there], capture_output=True, check=False)
        # not every kernel can; then ss says nothing, and they are still there
        return bool(found - set(connections(self._services(host))))

    def _stop(self, host: str) -> bool:
        """Its services do not answer for some time; their connections stay."""
        pids = self._services(host)
        for pid in pids:
            signal_if_there(pid, signal.SIGSTOP)
        self._later(STOPPED, lambda: [signal_if_there(pid, signal.SIGCONT) for pid in pids])
        return bool(pids)

    def _unreachable(self, host: str) -> bool:
        """From nowhere for some time, for Spark neither."""
        route = ["unreachable", host, "table", "local"]
        if subprocess.run(["ip", "route", "add", *route], check=False).returncode:
            return False
        self._later(STOPPED, lambda: subprocess.run(["ip", "route", "del", *route], check=True))
        return True

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        self.ends.append((time.monotonic() + seconds, lambda: (undo(), None)[1]))


def map_outputs(directories: Iterable[Path], host: str, since: float) -> list[Path]:
    """The data files below these directories of map outputs that were finished on a host since then."""
    found = []
    for directory in directories:
        for parent, _, names in os.walk(directory):  # which passes over what goes meanwhile
            home = Path(parent)
            # the home of an executor is named after its host; a shared one is on the host's own disk
            if home.parts[-3:-2] == ("sortshuffle",) and home.name.startswith((f"{host}-", "shared-")):
                found += [
                    home / name for name in names if name.startswith("exchange-") and name.endswith(".data")
                ]
    return [path for path in found if _finished_at(path) >= since]


def _finished_at(path: Path) -> float:
    """In seconds since 1970; 0 if it is unfinished or gone. The index comes last."""
    try:
        return path.with_suffix(".index").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def connections(pids: set[int]) -> Iterator[tuple[str, str]]:
    """The TCP connections of these processes: own and other address."""
    shown = subprocess.run(
        ["ss", "-tnpH", "state", "established"], capture_output=True, text=True, check=True
    ).stdout
    for here, there, pid in _CONNECTION.findall(shown):
        if int(pid) in pids:
            yield here, there


def mount_disk(directory: Path, size: str) -> None:
    """A small disk, gone with the namespace."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], check=True)
