"""Dynamic allocation with Spark's external shuffle service: what idle executors leave is read after they have
gone, and what is lost of it is made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import MASTER_HOST, Cluster
from cluster_driver import Application, Job, files_below
from engine import eventually

from sortshuffle.storage.partitioned_file import DATA_SUFFIX

HOSTS = _, SECOND, _ = "127.0.0.2", "127.0.0.3", "127.0.0.4"
ROWS, MAPS, REDUCES = 60_000, 6, 9
# as the job `exchange` counts them
RIGHT = {"rows": ROWS, "total": ROWS * (ROWS - 1) // 2, "wrong": 0, "partitions": list(range(REDUCES))}
ONCE = dict.fromkeys(range(MAPS), 1)
SHUFFLE_SERVICE = "shuffle-service"


@pytest.fixture(scope="module")
def application(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    settings = {
        **cluster.start_shuffle_service().settings,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
    }
    application = Application(cluster, tmp_path_factory.mktemp("driver") / "log", settings)
    try:
        yield application
    finally:
        application.kill()
        cluster.kill(MASTER_HOST, SHUFFLE_SERVICE)
        eventually(lambda: not cluster.pids(MASTER_HOST, SHUFFLE_SERVICE), "Spark's service to end")


def mapped_by_executors_that_have_gone(application: Application, directory: Path) -> Job:
    """A job between its stages."""
    job = application.start("exchange", directory, between=True)
    job.until_mapped()
    cluster = application.cluster
    job.until(lambda: not any(cluster.pids(host, "executor") for host in HOSTS), "the executors to go")
    assert job.runs("map") == ONCE
    return job


def test_idle_executors_go_and_nothing_runs_again(application: Application, tmp_path: Path) -> None:
    job = mapped_by_executors_that_have_gone(application, tmp_path)
    job.go("between")

    assert job.result() == RIGHT
    assert job.runs("map") == ONCE


def test_of_an_executor_that_has_gone_all_map_tasks_run_again_if_one_output_is_lost(
    application: Application, tmp_path: Path
) -> None:
    job = mapped_by_executors_that_have_gone(application, tmp_path)
    attempts = {mark.attempt: mark.partition for mark in job.marks("map") if mark.host == SECOND}
    assert attempts, f"no map task ran on {SECOND}"
    lost = f"-attempt-{min(attempts)}{DATA_SUFFIX}"
    disk = application.cluster.local_directory(SECOND)
    (path,) = (path for path in files_below(disk) if path.name.endswith(lost))
    path.unlink()
    job.go("between")

    assert job.result() == RIGHT
    assert job.runs("map") == {p: 2 if p in attempts.values() else 1 for p in ONCE}
