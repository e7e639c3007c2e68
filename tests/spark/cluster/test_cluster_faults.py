"""What a job on a cluster survives: whatever is broken meanwhile, its result is right, and what did not have
to run again did not."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from cluster import Cluster
from cluster_driver import Application, Job, files_below, left_of, lost_host, services_of
from driver_process import JobError
from engine import eventually

HOSTS = FIRST, SECOND, THIRD = "127.0.0.2", "127.0.0.3", "127.0.0.4"
ROWS, MAPS, REDUCES = 60_000, 6, 9
# as the job `exchange` counts them
RIGHT = {"rows": ROWS, "total": ROWS * (ROWS - 1) // 2, "wrong": 0, "partitions": list(range(REDUCES))}
ONCE = dict.fromkeys(range(MAPS), 1)
# extents of some 100 KB and little read ahead, so that a reader that has its first batch is in the middle
MANY_EXTENTS = {
    "spark.sortshuffle.codec": "none",
    "spark.sortshuffle.memory": "2m",
    "spark.sortshuffle.read.memory": "1m",
}
MANY_ROWS: dict[str, Any] = {"rows": 240_000, "maps": 3, "reduces": 3, "reducers": 3}
MANY_RIGHT = {"rows": 240_000, "total": 240_000 * 239_999 // 2, "wrong": 0, "partitions": [0, 1, 2]}


@pytest.fixture(scope="module")
def started(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    # tasks of a stage do not come back to an executor on which they have failed
    settings = {"spark.excludeOnFailure.taskAndStage.enabled": "true"}
    application = Application(cluster, tmp_path_factory.mktemp("driver") / "log", settings)
    try:
        yield application
    finally:
        application.kill()


@pytest.fixture
def application(started: Application, tmp_path: Path) -> Iterator[Application]:
    """The application, with an executor on each host: a test before may have killed one."""
    assert started.run("await_hosts", tmp_path, hosts=3) == list(HOSTS)
    yield started
    started.release()


def again_where_lost(job: Job, host: str) -> dict[int, int]:
    """How often map tasks ran if those of a host ran once more, and no others."""
    victims = job.first_runs("map", host)
    assert victims, f"no map task ran on {host}"
    return {p: 2 if p in victims else 1 for p in ONCE}


def homes(cluster: Cluster, host: str) -> list[Path]:
    """Directories of map outputs on a host's disk."""
    return [
        path
        for path in files_below(cluster.local_directory(host))
        if path.parent.parent.name == "sortshuffle"
    ]


# ---- executors ---------------------------------------------------------------------------------------------


def test_an_executor_killed_during_map(cluster: Cluster, application: Application, tmp_path: Path) -> None:
    job = application.start("exchange", tmp_path, held_maps=tuple(range(MAPS)))
    job.until(lambda: len(job.hosts("waiting")) == 3, "a map task in the middle on each host")
    victims = job.hosts("waiting")[SECOND]
    application.kill_executor(SECOND)
    job.go("map")

    assert job.result() == RIGHT
    assert job.runs("map") == ONCE
    assert job.runs("mapping") == {p: 2 if p in victims else 1 for p in ONCE}
    eventually(
        lambda: not [path for path in files_below(cluster.directory) if path.suffix == ".partial"],
        "the unfinished files to go",
    )


def test_an_executor_killed_between_the_stages(application: Application, tmp_path: Path) -> None:
    job = application.start("exchange", tmp_path, between=True)
    job.until_mapped()
    application.kill_executor(SECOND)
    job.go("between")

    assert job.result() == RIGHT
    assert job.runs("map") == again_where_lost(job, SECOND)


def test_an_executor_killed_during_reduce(cluster: Cluster, application: Application, tmp_path: Path) -> None:
    """When some tasks of the last stage have finished, and one has begun to read."""
    job = application.start("exchange", tmp_path, held_reduces=(0,))
    job.until(lambda: job.marks("reading") and len(job.marks("reduce")) >= 2, "some reduce tasks")
    (reader,) = job.hosts("reading")
    victim = THIRD if reader == FIRST else FIRST
    killed = application.kill_executor(victim)
    job.until(lambda: set(cluster.pids(victim, "executor")) - killed, "another executor")
    job.go("reduce")

    assert job.result() == RIGHT
    # the reader may have had all it needs; if not, what was lost ran again
    assert job.runs("map") in (ONCE, again_where_lost(job, victim))


def test_a_host_lost_with_all_that_runs_on_it(
    cluster: Cluster, application: Application, tmp_path: Path
) -> None:
    """Worker, executor, services, janitor and disk, while consumers on other hosts read from it."""
    settings = {**MANY_EXTENTS, "spark.sortshuffle.service.timeout": "2s"}
    job = application.start("exchange", tmp_path, settings, held_reduces=(0, 1, 2), **MANY_ROWS)
    job.until(lambda: len(job.marks("reading")) == 3, "all readers in the middle")
    with lost_host(cluster, THIRD):
        job.go("reduce")

        assert job.result() == MANY_RIGHT
        assert job.runs("map") == {p: 2 if p in job.first_runs("map", THIRD) else 1 for p in range(3)}
        assert cluster.alive_hosts() == [FIRST, SECOND]


# ---- disks -------------------------------------------------------------------------------------------------


def test_map_outputs_wiped_between_the_stages(
    cluster: Cluster, application: Application, tmp_path: Path
) -> None:
    """All of a host's, with the directories that they were in, while its executor lives."""
    job = application.start("exchange", tmp_path, between=True)
    job.until_mapped()
    wiped = homes(cluster, SECOND)
    assert wiped
    for home in wiped:
        shutil.rmtree(home)
    job.go("between")

    assert job.result() == RIGHT
    assert job.runs("map") == again_where_lost(job, SECOND)


def test_a_disk_wiped_between_the_stages(cluster: Cluster, application: Application, tmp_path: Path) -> None:
    """Spark's own files, too. Its executor lives on, and fails the tasks that it takes, late."""
    job = application.start("exchange", tmp_path, between=True)
    job.until_mapped()
    assert homes(cluster, SECOND)
    for path in cluster.local_directory(SECOND).iterdir():
        shutil.rmtree(path, ignore_errors=True)
    job.go("between")
    try:
        assert job.result() == RIGHT
    finally:
        application.kill_executor(SECOND)

    expected = again_where_lost(job, SECOND)
    for partition, runs in job.runs("map").items():
        assert runs == 1 if expected[partition] == 1 else runs >= 2


def test_a_disk_that_fills_up_under_one_of_two_directories(application: Application, tmp_path: Path) -> None:
    with busy_disk(tmp_path / "small", "size=100m") as small:
        ours = {"spark.sortshuffle.dir": f"{small},{tmp_path / 'large'}", "spark.sortshuffle.memory": "1m"}
        job = application.start("exchange", tmp_path / "job", ours, held_maps=tuple(range(MAPS)))
        job.until(
            lambda: len(job.hosts("waiting")) == 3 and list(small.glob("**/*.partial")),
            "map tasks in the middle, one of them on the small disk",
        )
        with open(small / "ballast", "wb", buffering=0) as ballast:
            fill(ballast)
        job.go("map")

        assert job.result() == RIGHT
        assert job.runs("map") == ONCE
        assert max(job.runs("mapping").values()) == 2
        assert not list(small.glob("**/*.data"))


@contextmanager
def busy_disk(directory: Path, options: str) -> Iterator[Path]:
    """A disk that janitors may have files open on when it goes. Skips where mounting is not permitted."""
    directory.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=False
    ).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(ballast: IO[bytes]) -> None:
    """Write until the disk is full, to its last byte."""
    size = 1 << 20
    while size:
        try:
            ballast.write(bytes(size))
        except OSError as error:
            assert error.errno == errno.ENOSPC
            size //= 2


# ---- services ----------------------------------------------------------------------------------------------


def test_services_killed_while_they_are_read_from(
    cluster: Cluster, application: Application, tmp_path: Path
) -> None:
    job = application.start("exchange", tmp_path, MANY_EXTENTS, held_reduces=(0, 1, 2), **MANY_ROWS)
    job.until(lambda: len(job.marks("reading")) == 3, "all readers in the middle")
    before = {host: cluster.pids(host, "service") for host in HOSTS}
    assert [len(pids) for pids in before.values()] == [1, 1, 1]
    for host in HOSTS:
        cluster.kill(host, "service")
    for host in HOSTS:
        job.until(lambda h=host: set(cluster.pids(h, "service")) - set(before[h]), "the next service")
    job.go("reduce")

    assert job.result() == MANY_RIGHT
    assert job.runs("map") == {0: 1, 1: 1, 2: 1}
    assert job.runs("reduce") == job.runs("reducing") == {0: 1, 1: 1, 2: 1}
    for host, status in services_of(application).items():
        assert status.pid not in before[host]
        assert status.bytes_sent_total > 1 << 20  # so it was in the middle


def test_services_that_are_down_for_good(cluster: Cluster, application: Application, tmp_path: Path) -> None:
    """They are there and never answer: the job fails with an error that says where. (Were it only one, tasks
    on its own host could still read everything.) When they go on, so does the application."""
    settings = {"spark.sortshuffle.service.timeout": "1s"}
    job = application.start("exchange", tmp_path, settings, between=True)
    job.until_mapped()
    try:
        for kind in ("supervisor", "service"):
            for host in HOSTS:
                assert len(cluster.signal(host, kind, signal.SIGSTOP)) == 1
        job.go("between")
        with pytest.raises(JobError, match=r"ServiceUnavailableError.*127\.0\.0\.\d:\d+"):
            job.result()
    finally:
        for host in HOSTS:
            cluster.signal(host, "service", signal.SIGCONT)
            cluster.signal(host, "supervisor", signal.SIGCONT)
    assert application.run("exchange", tmp_path / "again", settings) == RIGHT


def test_supervisor_and_service_killed_are_started_again_by_a_task(
    cluster: Cluster, application: Application, tmp_path: Path
) -> None:
    job = application.start("exchange", tmp_path, between=True, reducers=3)
    job.until_mapped()
    (supervisor,) = cluster.kill(SECOND, "supervisor")
    cluster.kill(SECOND, "service")  # unless it has ended by itself, which it does then
    job.go("between")

    assert job.result() == RIGHT
    assert job.runs("map") == ONCE
    (found,) = cluster.pids(SECOND, "supervisor")
    assert found != supervisor


# ---- the end -----------------------------------------------------------------------------------------------


def test_nothing_is_left_when_the_driver_is_killed(
    cluster: Cluster, application: Application, tmp_path: Path
) -> None:
    """Last, for it ends the application."""
    assert application.run("exchange", tmp_path) == RIGHT
    there = left_of(application)
    assert [there.processes[kind] for kind in ("executor", "supervisor", "service")] == [3, 3, 3]
    assert len(there.meetings) == 3
    assert all(homes(cluster, host) for host in HOSTS)
    application.kill()
    eventually(lambda: not any(left_of(application)), "all to be gone", 30.0)
