"""A Spark cluster on this machine: a standalone master and some workers from the pip package, each worker on
a loopback address of its own, so that Spark and sortshuffle take them for hosts with disks of their own.

Used by `tools/cluster`, for people, and by the tests of faults, which kill its parts.

    DIRECTORY/lock                held while a cluster is started or stopped
    DIRECTORY/cluster.json        the cluster that was started (`State`); gone when it is down
    DIRECTORY/master.log
    DIRECTORY/shuffle-service.log     what Spark's external shuffle service says, if it was started
    DIRECTORY/HOST/worker.log     what the worker says
    DIRECTORY/HOST/work/          what its executors say: APPLICATION/EXECUTOR/stderr
    DIRECTORY/HOST/local/         its disk: SPARK_LOCAL_DIRS; removed when the cluster is stopped

Every process of a cluster, whoever started it, carries two environment variables that say which cluster and
which host it belongs to: executors, their Python workers, and what those start inherit them. So processes are
found whatever they are called, and those of a start that failed too.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / ".cluster"
MASTER_HOST = "127.0.0.1"
MOST_WORKERS = 100  # addresses and memory; a laptop ends long before
DAEMON = "org.apache.spark.deploy"
CLUSTER_VARIABLE = "SORTSHUFFLE_CLUSTER"
HOST_VARIABLE = "SORTSHUFFLE_CLUSTER_HOST"
START_PATIENCE = 60.0  # seconds until all workers have registered; takes about 3, on a busy machine 15
STOP_PATIENCE = 15.0  # seconds in which processes end by themselves before they are killed; takes about 3
POLL_SECONDS = 0.05  # seconds between looks at what another process does
LOG_TAIL = 30  # lines of a log that an error shows
KINDS = {
    "master": f"{DAEMON}.master.Master",
    "worker": f"{DAEMON}.worker.Worker",
    "shuffle-service": f"{DAEMON}.ExternalShuffleService",
    "executor": "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "python": "pyspark.worker",  # an argument of its daemon, be that Spark's or ours
    "janitor": "sortshuffle.homes.janitor",
    "supervisor": "sortshuffle.service.host.supervisor",
    "service": "sortshuffle.service.host.process",
}
"""What processes are called, and the word of their command line that they are known by."""
DAEMON_OPTIONS = (
    # the second compiler never pays for a process that does next to nothing
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -Dspark.master.rest.enabled=false"  # it would take a fixed port
)
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_WEB_URL = re.compile(r"Bound MasterWebUI to \S+,? and started at (http://\S+)")


class ClusterError(click.ClickException):
    """A cluster cannot be started, or is not there."""


@dataclass(frozen=True, slots=True)
class State:
    """A cluster that was started. ``web``: the master's page. ``memory``: of a worker, as Spark writes it.
    ``shuffle_service``: the port of Spark's external shuffle service, 0 if it was not started."""

    master: str
    web: str
    hosts: tuple[str, ...]
    cores: int
    memory: str
    shuffle_service: int = 0

    @property
    def settings(self) -> dict[str, str]:
        """What an application must be told beside the master."""
        if not self.shuffle_service:
            return {}
        return {
            "spark.shuffle.service.enabled": "true",
            "spark.shuffle.service.port": str(self.shuffle_service),
        }


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a cluster. ``kind``: one of `KINDS`, or other."""

    pid: int
    host: str
    kind: str


class Cluster:
    """The cluster of a directory. Any number of these objects, in any process, may speak of the same one.

    ``variables``: what else is in the environment of the processes that this object starts. SPARK_HOME is the
    installed PySpark, unless ``variables`` has another.
    """

    def __init__(
        self, directory: Path | str = DIRECTORY, variables: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.directory = Path(directory).resolve()
        self._variables = variables

    # ---- starting and stopping ---------------------------------------------------------------------------

    def up(
        self,
        workers: int,
        *,
        cores: int = 1,
        memory: str = "2g",
        port: int = 0,
        shuffle_service: bool = False,
    ) -> State:
        """Start the master and so many workers; returns when all have registered.

        ``cores`` and ``memory``: what each worker has to give. ``port``: the master's, 0 for a free one.
        ``shuffle_service``: start Spark's external shuffle service, too.
        Raises `ClusterError`, and then nothing is left running.
        """
        if not 1 <= workers <= MOST_WORKERS:
            raise ClusterError(f"a cluster has 1 to {MOST_WORKERS} workers, not {workers}")
        with self._alone():
            if self.processes():
                raise ClusterError(
                    f"a cluster is up already in {self.directory}: stop it with tools/cluster down"
                )
            self._clear()
            try:
                state = self._start(workers, cores, memory, port)
                return self.start_shuffle_service() if shuffle_service else state
            except BaseException:
                self._stop()
                raise

    def down(self) -> int:
        """Stop every process of the cluster, executors included, and remove its disks; logs stay. Returns
        how many processes there were."""
        with self._alone():
            return self._stop()

    def state(self) -> State | None:
        """The cluster that is up; None if there is none."""
        try:
            found = json.loads(self._state_file.read_text())
        except FileNotFoundError:
            return None
        state = State(**{**found, "hosts": tuple(found["hosts"])})
        return state if self.processes(kind="master") else None

    def restart_worker(self, host: str) -> None:
        """Start the worker of a host again, after it was killed; returns when it has registered."""
        state = self._running()
        before = {each["id"] for each in self._alive_workers(host)}  # the master may not miss it yet
        started = self._start_worker(host, state.master, state.cores, state.memory)
        log = self._log(host)
        _wait(
            lambda: {each["id"] for each in self._alive_workers(host)} - before,
            f"the worker on {host} to register",
            {log: started},
        )

    def start_shuffle_service(self) -> State:
        """Start Spark's external shuffle service; returns when it answers.

        One process for all hosts: it listens at all addresses, and executors look for it at their own host's.
        """
        state = self._running()
        log = self.directory / "shuffle-service.log"
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        options = f"-Dspark.shuffle.service.enabled=true -Dspark.shuffle.service.port={port}"
        variables = {"SPARK_DAEMON_JAVA_OPTS": f"{DAEMON_OPTIONS} {options}"}
        started = self._launch(MASTER_HOST, KINDS["shuffle-service"], [], variables, log)
        _wait(lambda: _answers(port), "the shuffle service to answer", {log: started})
        state = replace(state, shuffle_service=port)
        self._state_file.write_text(json.dumps(asdict(state)))
        return state

    # ---- looking -----------------------------------------------------------------------------------------

    def processes(self, host: str | None = None, kind: str | None = None) -> list[Process]:
        """The processes of this cluster that run now."""
        mark = str(self.directory)
        return [
            process
            for process in _marked(mark)
            if host in (None, process.host) and kind in (None, process.kind)
        ]

    def pids(self, host: str | None = None, kind: str | None = None) -> list[int]:
        return [process.pid for process in self.processes(host, kind)]

    def alive_hosts(self) -> list[str]:
        """The hosts whose workers the master has."""
        return sorted({each["host"] for each in self._alive_workers()})

    def _alive_workers(self, host: str | None = None) -> list[dict[str, Any]]:
        """What the master says of the workers that it has; of those of one host."""
        alive = [each for each in self.page()["workers"] if each["state"] == "ALIVE"]
        return [each for each in alive if host in (None, each["host"])]

    def page(self) -> dict[str, Any]:
        """What the master's page says: workers, applications."""
        return _page(self._running().web)

    def local_directory(self, host: str) -> Path:
        """A host's disk."""
        return self.directory / host / "local"

    def work_directory(self, host: str) -> Path:
        """Where a host's executors write what they say."""
        return self.directory / host / "work"

    def driver_environment(self) -> dict[str, str]:
        """What a driver needs in its environment: an address of its own, and this checkout's Python."""
        found = {"SPARK_LOCAL_IP": MASTER_HOST, "PYSPARK_PYTHON": sys.executable}
        if java := os.environ.get("JAVA_HOME"):
            found["JAVA_HOME"] = java  # the one that the cluster runs on
        return found

    def host_environment(self, host: str) -> dict[str, str]:
        """The environment of what runs on a host: what is started with it ends with the cluster."""
        return {
            **_own_environment(),
            **self._variables,
            "SPARK_LOCAL_IP": host,
            "SPARK_PUBLIC_DNS": host,
            "PYSPARK_PYTHON": sys.executable,
            CLUSTER_VARIABLE: str(self.directory),
            HOST_VARIABLE: host,
        }

    # ---- breaking ----------------------------------------------------------------------------------------

    def kill(self, host: str, kind: str) -> list[int]:
        """Kill a host's processes of a kind with SIGKILL; returns which."""
        return self.signal(host, kind, signal.SIGKILL)

    def signal(self, host: str, kind: str, number: int) -> list[int]:
        """Send a signal to a host's processes of a kind; returns which."""
        pids = self.pids(host, kind)
        for pid in pids:
            signal_if_there(pid, number)
        return pids

    def kill_host(self, host: str, spared: Collection[int] = ()) -> None:
        """Kill what runs on a host, but the spared processes, with SIGKILL; returns when it has ended."""
        while left := set(self.pids(host)).difference(spared):
            for pid in left:
                signal_if_there(pid, signal.SIGKILL)
            time.sleep(0.01)

    # ---- how ---------------------------------------------------------------------------------------------

    @property
    def _state_file(self) -> Path:
        return self.directory / "cluster.json"

    def _log(self, host: str) -> Path:
        return self.directory / "master.log" if host == MASTER_HOST else self.directory / host / "worker.log"

    def _running(self) -> State:
        state = self.state()
        if state is None:
            raise ClusterError(f"no cluster is up in {self.directory}: start one with tools/cluster up 3")
        return state

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _clear(self) -> None:
        """Remove what an earlier cluster has left: nothing but what this module makes."""
        self._state_file.unlink(missing_ok=True)
        self._log(MASTER_HOST).unlink(missing_ok=True)
        (self.directory / "shuffle-service.log").unlink(missing_ok=True)
        for old in self.directory.glob("127.0.*.*"):
            shutil.rmtree(old, ignore_errors=True)

    def _start(self, workers: int, cores: int, memory: str, port: int) -> State:
        master, web = self._start_master(port)
        state = State(master, web, tuple(_worker_host(number) for number in range(workers)), cores, memory)
        self._state_file.write_text(json.dumps(asdict(state)))
        started = {self._log(host): self._start_worker(host, master, cores, memory) for host in state.hosts}
        _wait(lambda: len(self.alive_hosts()) == workers, "all workers to register", started)
        return state

    def _start_master(self, port: int) -> tuple[str, str]:
        """Returns the URL of the master and of its page."""
        log = self._log(MASTER_HOST)
        arguments = ["--host", MASTER_HOST, "--port", str(port), "--webui-port", "0"]
        started = self._launch(MASTER_HOST, f"{DAEMON}.master.Master", arguments, {})
        _wait(lambda: _WEB_URL.search(_read(log)), "the master to start", {log: started})
        text = _read(log)
        urls = _MASTER_URL.search(text), _WEB_URL.search(text)
        assert urls[0] and urls[1]
        master, web = urls[0][1], urls[1][1]
        if port and not master.endswith(f":{port}"):
            raise ClusterError(
                f"port {port} is taken: the master would be {master}. Name another with --port"
            )
        return master, web

    def _start_worker(self, host: str, master: str, cores: int, memory: str) -> subprocess.Popen[bytes]:
        local, work = self.local_directory(host), self.work_directory(host)
        local.mkdir(parents=True, exist_ok=True)
        arguments = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", str(cores)]
        arguments += ["--memory", memory, "--work-dir", str(work), master]
        return self._launch(host, f"{DAEMON}.worker.Worker", arguments, {"SPARK_LOCAL_DIRS": str(local)})

    def _launch(
        self,
        host: str,
        main: str,
        arguments: list[str],
        variables: Mapping[str, str],
        log: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        environment = {
            "SPARK_HOME": str(_spark_home()),
            **self.host_environment(host),
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_DAEMON_JAVA_OPTS": DAEMON_OPTIONS,
            **variables,
        }
        with open(log or self._log(host), "ab") as opened:
            return subprocess.Popen(
                [f"{environment['SPARK_HOME']}/bin/spark-class", main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.directory,
                start_new_session=True,  # an interrupt at the terminal is for the driver alone
            )

    def _stop(self) -> int:
        """Workers end their executors, executors their Python; only what does not end by itself is killed."""
        found = self.processes()
        for process in found:
            if process.kind in ("master", "worker", "shuffle-service"):
                signal_if_there(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_PATIENCE
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        while left := self.processes():
            for process in left:
                signal_if_there(process.pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        for local in self.directory.glob("127.0.*.*/local"):
            shutil.rmtree(local, ignore_errors=True)
        self._state_file.unlink(missing_ok=True)
        return len(found)


def _worker_host(number: int) -> str:
    return f"127.0.0.{number + 2}"


def _spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ClusterError(f"{sys.executable} has no pyspark")
    return Path(found.origin).parent


def _own_environment() -> dict[str, str]:
    """This process's environment without the settings of a Spark that it may know."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}


def _page(web: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{web}/json/", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _wait(
    condition: Callable[[], object], what: str, started: Mapping[Path, subprocess.Popen[bytes]]
) -> None:
    """Until it is so. Raises `ClusterError` with the end of a log if one of these processes ends, or after
    `START_PATIENCE`."""
    deadline = time.monotonic() + START_PATIENCE
    while not condition():
        for log, process in started.items():
            if process.poll() is not None:
                raise ClusterError(
                    f"waited for {what}, but a process has ended. The end of {log}:\n{_tail(log)}"
                )
        if time.monotonic() > deadline:
            logs = "\n".join(f"The end of {log}:\n{_tail(log)}" for log in started)
            raise ClusterError(f"waited {START_PATIENCE:.0f} s for {what}. {logs}")
        time.sleep(POLL_SECONDS)


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((MASTER_HOST, port)) == 0


def _read(log: Path) -> str:
    return log.read_text(errors="replace")


def _tail(log: Path) -> str:
    return "\n".join(f"    {line}" for line in _read(log).splitlines()[-LOG_TAIL:])


def signal_if_there(pid: int, number: int) -> None:
    """Send a signal to a process, unless it has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended meanwhile


# ---- processes ---------------------------------------------------------------------------------------------


def _marked(mark: str) -> Iterator[Process]:
    """The processes that carry the mark of a cluster; those that have ended carry none."""
    wanted = f"{CLUSTER_VARIABLE}={mark}".encode()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        variables = _proc(name, "environ").split(b"\0")
        if wanted in variables:
            host = next((v for v in variables if v.startswith(f"{HOST_VARIABLE}=".encode())), b"=")
            yield Process(int(name), host.partition(b"=")[2].decode(), _kind(_proc(name, "cmdline").decode()))


def _kind(command: str) -> str:
    """What a process is, by its command line."""
    words = command.split("\0")
    return next((kind for kind, word in KINDS.items() if word in words), "other")


def _proc(pid: str, name: str) -> bytes:
    try:
        return Path("/proc", pid, name).read_bytes()
    except OSError:
        return b""


# ---- the command -------------------------------------------------------------------------------------------

_directory = click.option(
    "--directory",
    default=str(DIRECTORY),
    type=click.Path(file_okay=False),
    help="Where logs and the workers' disks are; one cluster for each.  [default: .cluster of the checkout]",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A Spark cluster on this machine, for trying: a master, and workers that are hosts to Spark.

    Each worker has a loopback address and a directory for a disk. See docs/cluster.md.
    """


@main.command()
@click.argument("workers", metavar="N", type=click.IntRange(1, MOST_WORKERS))
@click.option("--cores", default=1, show_default=True, type=click.IntRange(min=1), help="Of each worker.")
@click.option("--memory", default="2g", show_default=True, help="Of each worker, for its executors.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="The master's.  [default: a free one]")
@click.option("--shuffle-service", is_flag=True, help="Start Spark's external shuffle service, too.")
@_directory
def up(workers: int, cores: int, memory: str, port: int, shuffle_service: bool, directory: str) -> None:
    """Start a master and N workers, and say how to use them."""
    cluster = Cluster(directory)
    state = cluster.up(workers, cores=cores, memory=memory, port=port, shuffle_service=shuffle_service)
    _describe(cluster, state)
    variables = " ".join(f"{name}={value}" for name, value in cluster.driver_environment().items())
    commands = Path(sys.executable).parent
    click.echo("\nRun the demo there:")
    demo = ROOT / "examples" / "demo" / "flights.py"
    click.echo(f"  {variables} {sys.executable} {demo} --master {state.master}")
    click.echo("or a job of your own:")
    settings = "".join(f" --conf {name}={value}" for name, value in state.settings.items())
    click.echo(f"  {variables} {commands}/spark-submit --master {state.master}{settings} JOB.py")
    click.echo("Stop it:")
    click.echo(f"  {ROOT}/tools/cluster down" + _option(directory))


@main.command()
@_directory
def down(directory: str) -> None:
    """Stop the cluster: every process; its disks are removed, its logs stay."""
    stopped = Cluster(directory).down()
    processes = "1 process" if stopped == 1 else f"{stopped} processes"
    click.echo(f"Stopped {processes}." if stopped else "No cluster is up.")


@main.command()
@_directory
def status(directory: str) -> None:
    """Show what is up. Exits 1 if nothing is."""
    cluster = Cluster(directory)
    state = cluster.state()
    if state is None:
        click.echo("No cluster is up.")
        sys.exit(1)
    _describe(cluster, state)
    for application in cluster.page()["activeapps"]:
        click.echo(f"Running    {application['id']} {application['name']}: {application['cores']} cores")


@main.command()
@click.argument("host", metavar="HOST")
@click.argument("kind", metavar="WHAT", type=click.Choice([kind for kind in KINDS if kind != "master"]))
@_directory
def kill(host: str, kind: str, directory: str) -> None:
    """Kill what runs on HOST with SIGKILL, to see what is made of it. Exits 1 if there is nothing.

    WHAT: worker, executor, python (the executor's Python workers), janitor, supervisor, service, or on
    127.0.0.1 shuffle-service.
    """
    killed = Cluster(directory).kill(host, kind)
    if not killed:
        raise ClusterError(f"nothing of that kind runs on {host}")
    click.echo(f"Killed {', '.join(map(str, killed))}.")


def _option(directory: str) -> str:
    return "" if Path(directory) == DIRECTORY else f" --directory {shlex.quote(directory)}"


def _describe(cluster: Cluster, state: State) -> None:
    alive = cluster.alive_hosts()
    click.echo(f"Master     {state.master}, page {state.web}")
    for host in state.hosts:
        lost = "" if host in alive else ", LOST"
        click.echo(f"Worker     {host}, cores {state.cores}, memory {state.memory}{lost}")
    if state.shuffle_service:
        click.echo(f"Service    Spark's external shuffle service, port {state.shuffle_service} of all hosts")
    click.echo(f"Directory  {cluster.directory}")


if __name__ == "__main__":
    main(prog_name="tools/cluster")
