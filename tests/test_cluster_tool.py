"""`tools/cluster`: hosts that Spark tells apart, and no process left however it went."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from cluster import Cluster, ClusterError, main
from engine import ROOT, eventually

FIRST, SECOND = "127.0.0.2", "127.0.0.3"


def call(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--directory", str(directory)])


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    Cluster(tmp_path / "cluster").down()


def variables(pid: int) -> dict[str, str]:
    pairs = Path("/proc", str(pid), "environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def test_from_up_to_down(directory: Path) -> None:
    up = call(directory, "up", "2", "--memory", "1g")
    assert up.exit_code == 0, up.output
    cluster = Cluster(directory)
    state = cluster.state()
    assert state is not None
    assert (state.hosts, state.cores, state.memory) == ((FIRST, SECOND), 1, "1g")
    assert cluster.alive_hosts() == [FIRST, SECOND]
    assert {(each.host, each.kind) for each in cluster.processes()} == {
        ("127.0.0.1", "master"),
        (FIRST, "worker"),
        (SECOND, "worker"),
    }
    # what can be pasted: an environment, a command of this Python's, the master
    pasted = re.search(
        r"^  SPARK_LOCAL_IP=127\.0\.0\.1 PYSPARK_PYTHON=(\S+)(?: JAVA_HOME=\S+)? (\S+) (\S+) --master (\S+)$",
        up.output,
        re.MULTILINE,
    )
    assert pasted is not None, up.output
    assert pasted.groups() == (
        sys.executable,
        sys.executable,
        f"{ROOT}/examples/demo/flights.py",
        state.master,
    )
    assert f"/tools/cluster down --directory {directory}\n" in up.output

    # hosts: an address and a disk each
    for host in state.hosts:
        (pid,) = cluster.pids(host, "worker")
        found = variables(pid)
        assert found["SPARK_LOCAL_IP"] == host
        assert found["SPARK_LOCAL_DIRS"] == str(directory / host / "local")
        assert found["PYSPARK_PYTHON"] == sys.executable

    # a second one is refused, and harms nothing
    second = call(directory, "up", "1")
    assert second.exit_code == 1
    assert "is up already" in second.output and "tools/cluster down" in second.output
    assert cluster.state() == state

    # a lost worker is seen, and can come back
    (worker,) = cluster.pids(FIRST, "worker")
    assert call(directory, "kill", FIRST, "worker").output == f"Killed {worker}.\n"
    nothing = call(directory, "kill", FIRST, "executor")
    assert (nothing.exit_code, nothing.output) == (1, f"Error: nothing of that kind runs on {FIRST}\n")
    eventually(lambda: cluster.alive_hosts() == [SECOND], "the master to miss the worker")
    status = call(directory, "status")
    assert status.exit_code == 0
    assert f"{FIRST}, cores 1, memory 1g, LOST" in status.output
    assert f"{SECOND}, cores 1, memory 1g\n" in status.output
    cluster.restart_worker(FIRST)
    assert cluster.alive_hosts() == [FIRST, SECOND]

    # Spark's external shuffle service answers at all hosts
    port = cluster.start_shuffle_service().shuffle_service
    for host in (FIRST, SECOND):
        with socket.create_connection((host, port), 10):
            pass
    assert f"shuffle service, port {port} of all hosts" in call(directory, "status").output
    assert len(cluster.pids("127.0.0.1", "shuffle-service")) == 1

    down = call(directory, "down")
    assert down.exit_code == 0
    assert down.output == "Stopped 4 processes.\n"
    assert cluster.processes() == []
    assert cluster.state() is None
    assert not (directory / FIRST / "local").exists()
    assert "Starting Spark worker" in (directory / SECOND / "worker.log").read_text()


def test_what_is_not_up(directory: Path) -> None:
    status = call(directory, "status")
    assert (status.exit_code, status.output) == (1, "No cluster is up.\n")
    down = call(directory, "down")
    assert (down.exit_code, down.output) == (0, "No cluster is up.\n")
    with pytest.raises(ClusterError, match="no cluster is up"):
        Cluster(directory).alive_hosts()


def test_a_start_that_fails_leaves_nothing(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(click.ClickException, match=f"port {port} is taken"):
            Cluster(directory).up(1, port=port)
    assert Cluster(directory).processes() == []


def test_a_worker_that_cannot_start_is_told_with_the_end_of_its_log(directory: Path) -> None:
    with pytest.raises(ClusterError, match=r"(?s)all workers to register.*worker\.log.*memory"):
        Cluster(directory).up(1, memory="much")
    assert Cluster(directory).processes() == []


def test_down_after_an_up_that_was_killed(directory: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "tools" / "lib" / "cluster.py"),
        "up",
        "1",
        "--directory",
        str(directory),
    ]
    cluster = Cluster(directory)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starting:
        eventually(cluster.processes, "a first process")
        os.kill(starting.pid, signal.SIGKILL)

    assert re.fullmatch(r"Stopped \d+ process(es)?\.\n", call(directory, "down").output)
    assert cluster.processes() == []


def test_a_host_is_killed_though_a_process_ends_by_itself(directory: Path) -> None:
    class WithOneEnding(Cluster):
        """One of its processes ends after it was found."""

        def pids(self, host: str | None = None, kind: str | None = None) -> list[int]:
            found = [each.pid for each in (ending, alive, spared) if each.poll() is None]
            ending.communicate()
            return found

    with ExitStack() as opened:
        ending, alive, spared = (
            opened.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE)) for _ in range(3)
        )
        WithOneEnding(directory).kill_host(FIRST, spared=[spared.pid])
        assert (ending.returncode, alive.poll(), spared.poll()) == (0, -signal.SIGKILL, None)


@pytest.mark.parametrize("workers", [0, 101])
def test_a_number_of_workers_that_cannot_be_meant(directory: Path, workers: int) -> None:
    with pytest.raises(ClusterError, match=f"1 to 100 workers, not {workers}"):
        Cluster(directory).up(workers)
