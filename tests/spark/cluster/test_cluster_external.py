"""With an administrator's services map outputs outlive their executors: what was finished is adopted, and no
user code runs again. Tasks that run twice at the same time are no other matter than anywhere."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster_driver import Application, files_below, left_of, map_outputs, remote_bytes
from engine import ROOT, eventually

from sortshuffle.service.pages.http import fetch_status
from sortshuffle.service.pages.status import ServiceStatus

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
SECOND = HOSTS[1]
ROWS, MAPS, REDUCES = 60_000, 6, 9
RIGHT = {"rows": ROWS, "total": ROWS * (ROWS - 1) // 2, "wrong": 0, "partitions": list(range(REDUCES))}
ONCE = dict.fromkeys(range(MAPS), 1)
SPECULATION = {
    "spark.speculation": "true",  # for the job that asks for it
    "spark.speculation.quantile": "1.0",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
}


class Services:
    """`sortshuffle serve`, once for each host, all on one port and over one directory."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.directory = directory
        with socket.create_server((HOSTS[0], 0)) as free:
            self.port = free.getsockname()[1]
        self._processes: dict[str, subprocess.Popen[str]] = {}
        try:
            for host in HOSTS:
                self._processes[host] = self._started(cluster, host)
            self._pages = {host: self._page(host) for host in HOSTS}
        except BaseException:
            self.kill()
            raise

    def _page(self, host: str) -> str:
        """Where its status is. It says so once it has started."""
        stdout = self._processes[host].stdout
        assert stdout is not None
        line = stdout.readline()
        found = re.search(r"at (\S+); status: (\S+)", line)
        assert found is not None and found[1] == f"{host}:{self.port}", line
        return found[2]

    def _started(self, cluster: Cluster, host: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sortshuffle.cli.main", "serve", str(self.directory), "--host", host]
        return subprocess.Popen(
            [*command, "--port", str(self.port), "--http-port", "0"],
            stdout=subprocess.PIPE,
            env={**cluster.host_environment(host), "PYTHONPATH": str(ROOT)},
            text=True,
        )

    def status(self, host: str) -> ServiceStatus:
        return fetch_status(self._pages[host])

    def moved(self) -> tuple[int, int]:
        """Bytes that all of them have read and sent so far."""
        found = [self.status(host) for host in HOSTS]
        return sum(each.bytes_read_total for each in found), sum(each.bytes_sent_total for each in found)

    def end(self) -> dict[str, int]:
        """Ask them to end, as an administrator would; their exit codes."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        return {host: process.wait(30) for host, process in self._processes.items()}

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(scope="module")
def services(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with ExitStack() as opened:
        services = Services(cluster, tmp_path_factory.mktemp("disks"))
        opened.callback(services.kill)
        yield services


@pytest.fixture(scope="module")
def started(
    cluster: Cluster, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    settings = {
        "spark.sortshuffle.service": "external",
        "spark.sortshuffle.service.port": str(services.port),
        "spark.sortshuffle.dir": str(services.directory),
        **SPECULATION,
    }
    application = Application(cluster, tmp_path_factory.mktemp("driver") / "log", settings)
    try:
        yield application
    finally:
        application.kill()


@pytest.fixture
def application(started: Application, tmp_path: Path) -> Iterator[Application]:
    assert started.run("await_hosts", tmp_path, hosts=3) == list(HOSTS)
    yield started
    started.release()


def test_what_lies_on_other_hosts_is_what_the_services_send(
    services: Services, application: Application, tmp_path: Path
) -> None:
    """They read it to the byte, and send it with little around it."""
    before = services.moved()
    job = application.start("exchange", tmp_path, reducers=3)
    assert job.result() == RIGHT
    outputs = map_outputs([services.directory], application)
    assert sum(map(len, outputs.values())) == MAPS
    expected = remote_bytes(outputs, job)
    assert expected > 0
    read, sent = (after - earlier for after, earlier in zip(services.moved(), before, strict=True))
    assert read == expected
    assert expected < sent < 1.05 * expected
    status = services.status(SECOND)
    assert status.address == f"{SECOND}:{services.port}"
    assert application.id in [each.application for each in status.applications]
    assert status.errors_total == 0


def test_what_a_lost_executor_had_finished_is_adopted(
    services: Services, application: Application, tmp_path: Path
) -> None:
    job = application.start("exchange", tmp_path, between=True)
    job.until_mapped()
    assert job.hosts("map")[SECOND]
    application.kill_executor(SECOND)
    job.go("between")

    assert job.result() == RIGHT
    assert job.runs("mapping") == job.runs("map") == ONCE


def test_consumers_read_on_when_an_executor_is_lost(
    services: Services, application: Application, tmp_path: Path
) -> None:
    """One of them has only its first batch."""
    settings = {
        "spark.sortshuffle.codec": "none",
        "spark.sortshuffle.memory": "2m",
        "spark.sortshuffle.read.memory": "1m",
    }
    job = application.start("exchange", tmp_path, settings, rows=240_000, reduces=6, held_reduces=(0,))
    job.until(lambda: job.marks("reading") and len(job.marks("reduce")) >= 2, "some reduce tasks")
    (reader,) = job.hosts("reading")
    victim = next(host for host in HOSTS if host != reader)
    assert job.hosts("map")[victim]
    application.kill_executor(victim)
    job.go("reduce")

    found: Any = job.result()
    assert (found["rows"], found["total"], found["wrong"]) == (240_000, 240_000 * 239_999 // 2, 0)
    assert job.runs("mapping") == job.runs("map") == ONCE


def test_tasks_that_run_twice_at_once_count_once(
    services: Services, application: Application, tmp_path: Path
) -> None:
    """The first attempts of a map task and of a reduce task get stuck; Spark starts others beside them."""
    job = application.start("exchange", tmp_path, held_maps=(0,), held_reduces=(0,), speculation=True)
    assert job.result() == RIGHT
    assert job.runs("mapping")[0] >= 2
    assert job.runs("reducing")[0] >= 2
    assert set(job.runs("map")) == set(ONCE)
    assert len(job.marks("waiting")) == len(job.marks("reading")) == 1  # and these never went on
    stuck = {each.attempt for each in (*job.marks("waiting"), *job.marks("reading"))}
    assert not stuck & {each.attempt for each in (*job.marks("map"), *job.marks("reduce"))}
    eventually(
        lambda: not [path for path in files_below(services.directory) if path.suffix == ".partial"],
        "the file of the attempt that lost to go",
    )


def test_the_services_remove_what_an_application_leaves(services: Services, application: Application) -> None:
    """Last, for it ends them all."""
    assert any(map_outputs([services.directory], application).values())
    application.stop()
    eventually(lambda: not list((services.directory / "sortshuffle").glob("*")), "its files to go", 30.0)
    services_alone = {"other": len(HOSTS)}
    eventually(lambda: left_of(application).processes == services_alone, "its processes to end", 30.0)
    assert services.end() == dict.fromkeys(HOSTS, 0)
