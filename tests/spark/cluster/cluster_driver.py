"""What the tests on a cluster use: an application that they ask to run jobs, and the marks that its tasks
leave."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cluster import Cluster
from driver_process import DriverProcess
from engine import ROOT, eventually

from sortshuffle.errors import ServiceUnavailableError
from sortshuffle.service.host.rendezvous import STATUS_FILE
from sortshuffle.service.pages.http import fetch_status
from sortshuffle.service.pages.status import ServiceStatus
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

JOBS = Path(__file__).parent / "jobs"
PATIENCE = 150.0  # seconds until a job counts as hanging
TASK_PATIENCE = 90.0  # seconds until what tasks do by themselves counts as not done
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.locality.wait": "0s",  # tasks go to all hosts
    "spark.executorEnv.PYTHONPATH": os.pathsep.join(
        map(str, (JOBS, JOBS.parents[1] / "jobs", JOBS.parents[1], ROOT))
    ),
}


class Application(DriverProcess):
    """A driver on the cluster, which has started. Jobs may be asked for side by side."""

    def __init__(self, cluster: Cluster, log: Path, settings: Mapping[str, str]) -> None:
        state = cluster.state()
        assert state is not None
        self.cluster = cluster
        self._jobs: list[Job] = []
        chosen = {**SETTINGS, "spark.master": state.master, **settings}
        paths = chosen["spark.executorEnv.PYTHONPATH"]
        super().__init__(
            [sys.executable, str(JOBS / "driver.py"), json.dumps(chosen)],
            log,
            {**os.environ, **cluster.driver_environment(), "PYTHONPATH": paths},
        )
        self.id = self.started()

    def start(self, name: str, directory: Path, settings: Mapping[str, str] = {}, **arguments: Any) -> Job:
        """Ask for a job."""
        directory.mkdir(parents=True, exist_ok=True)
        answer = self.request(
            job=name, directory=str(directory), settings=dict(settings), arguments=arguments
        )
        job = Job(answer, directory)
        self._jobs.append(job)
        return job

    def run(self, name: str, directory: Path, settings: Mapping[str, str] = {}, **arguments: Any) -> Any:
        return self.start(name, directory, settings, **arguments).result()

    def release(self) -> None:
        """Let all tasks go on that still wait, so that a test that failed is not in the way of the next."""
        for job in self._jobs:
            if not job.answer.done():
                for what in ("map", "between", "reduce"):
                    job.go(what)
        self._jobs.clear()

    def kill_executor(self, host: str) -> set[int]:
        """Kill a host's executor with SIGKILL, and its Python, which would go on for a moment. Return the
        executor's processes."""
        # an executor that just starts a process is two for a moment: the child still has its command line
        killed = self.cluster.kill(host, "executor")
        assert killed, f"none on {host}: {self.cluster.processes()}"
        self.cluster.kill(host, "python")
        return set(killed)


@dataclass(frozen=True, slots=True)
class Mark:
    """Of one attempt of a task."""

    partition: int
    attempt: int
    host: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was asked for, and what its tasks say in its directory."""

    answer: Future[Any]
    directory: Path

    def result(self, patience: float = PATIENCE) -> Any:
        """Raises `JobError` if it failed, TimeoutError if it hangs."""
        return self.answer.result(patience)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that the job does; an error of its own comes first."""

        def is_so() -> bool:
            if self.answer.done():
                self.answer.result()
            return bool(condition())

        eventually(is_so, what, TASK_PATIENCE)

    def until_mapped(self) -> None:
        """Wait until it is between its stages."""
        self.until((self.directory / "all-mapped").exists, "the map stage")

    def go(self, what: str) -> None:
        """Let those go on that wait for it."""
        (self.directory / f"go-{what}").touch()

    def marks(self, what: str) -> list[Mark]:
        names = [path.name.split("-") for path in self.directory.glob(f"{what}-*-*-*")]
        return [Mark(int(partition), int(attempt), host) for _, partition, attempt, host in names]

    def runs(self, what: str) -> dict[int, int]:
        """How many attempts did it, by partition."""
        return dict(sorted(Counter(each.partition for each in self.marks(what)).items()))

    def hosts(self, what: str) -> dict[str, set[int]]:
        """Who did it: partitions by host."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        for each in self.marks(what):
            found[each.host].add(each.partition)
        return dict(found)

    def first_runs(self, what: str, host: str) -> set[int]:
        """The partitions whose first attempt ran on a host."""
        first: dict[int, Mark] = {}
        for each in sorted(self.marks(what), key=lambda mark: mark.attempt):
            first.setdefault(each.partition, each)
        return {each.partition for each in first.values() if each.host == host}


def map_outputs(directories: Iterable[Path], application: Application) -> dict[str, list[PartitionedFile]]:
    """Finished map outputs below these directories, by the host that wrote them."""
    found: defaultdict[str, list[PartitionedFile]] = defaultdict(list)
    for path in (path for directory in directories for path in files_below(directory)):
        home = path.parent
        if path.suffix == ".index" and home.parent.name == application.id:
            found[home.name.rsplit("-", 2)[0]].append(PartitionedFile(str(path.with_suffix(""))))
    return found


def remote_bytes(outputs: Mapping[str, Iterable[PartitionedFile]], job: Job) -> int:
    """What the consumers of a job had to get from other hosts: the extents of their subpartitions there."""
    readers = job.hosts("reduce")
    total = 0
    for host, files in outputs.items():
        elsewhere = [s for other, subpartitions in readers.items() if other != host for s in subpartitions]
        for file in files:
            total += int(read_index(file).entries["bytes"][:, elsewhere].sum())
    return total


def services_of(application: Application) -> dict[str, ServiceStatus]:
    """What the services do that the application's tasks have started, by host: those that run now. A service
    that has just started tells a moment later where its page is."""
    found: dict[str, ServiceStatus] = {}

    def all_answer() -> bool:
        for directory in meetings_of(application):
            try:
                status = fetch_status(json.loads((directory / STATUS_FILE).read_text()))
            except (FileNotFoundError, ServiceUnavailableError):
                return False
            host = status.address.rpartition(":")[0]
            found[host] = status
            if status.pid not in application.cluster.pids(host, "service"):
                return False
        return bool(found)

    eventually(all_answer, "the pages of all services")
    return found


def meetings_of(application: Application) -> list[Path]:
    """Where its tasks meet to find their services."""
    own = Path(tempfile.gettempdir(), f"sortshuffle-{os.geteuid()}")
    return list(own.glob(f"{application.id}*"))


class Left(NamedTuple):
    """What there is of an application: processes by kind, files on the hosts' disks, where its tasks met."""

    processes: Counter[str]
    files: list[Path]
    meetings: list[Path]


def left_of(application: Application) -> Left:
    cluster = application.cluster
    kinds = Counter(each.kind for each in cluster.processes() if each.kind not in ("master", "worker"))
    files = [path for path in files_below(cluster.directory) if "sortshuffle" in path.parts]
    return Left(kinds, files, meetings_of(application))


@contextmanager
def lost_host(cluster: Cluster, host: str) -> Iterator[None]:
    """All that runs on it is killed, and its disk is gone. Whatever happens meanwhile, its worker comes back:
    the tests that follow need it."""
    try:
        cluster.kill_host(host)
        shutil.rmtree(cluster.local_directory(host))
        yield
    finally:
        cluster.kill_host(host)  # it may have been interrupted
        cluster.restart_worker(host)


def files_below(directory: Path) -> Iterator[Path]:
    """Files and directories; some may be going at this moment."""
    for parent, directories, names in os.walk(directory):
        yield from (Path(parent, name) for name in (*directories, *names))
