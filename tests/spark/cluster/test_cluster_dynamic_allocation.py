"""Executors that dynamic allocation removes: with Spark's external shuffle service what they had finished is
read on; without it their map tasks run again, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import MASTER_HOST, Cluster
from cluster_driver import Application, Job, left_of, map_outputs
from engine import eventually

from sortshuffle.storage.files.partitioned_file import PartitionedFile

ROWS, MAPS, REDUCES = 60_000, 6, 9
RIGHT = {"rows": ROWS, "total": ROWS * (ROWS - 1) // 2, "wrong": 0, "partitions": list(range(REDUCES))}
ONCE = dict.fromkeys(range(MAPS), 1)
EXECUTORS = 2  # each on a host of its own
GONE = 60.0  # seconds until executors that are idle have gone
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": str(EXECUTORS),
    "spark.dynamicAllocation.maxExecutors": str(EXECUTORS),
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
}
DOORS = ["exchange", "exchange_pairs"]


def until_executors_are_gone(cluster: Cluster) -> None:
    eventually(lambda: not cluster.pids(kind="executor"), "idle executors to be removed", GONE)


def mapped(application: Application, directory: Path, door: str) -> Job:
    """A job that waits between its stages. One comes after the other, for each waits for all executors."""
    job = application.start(door, directory, between=True, hosts=EXECUTORS)
    job.until_mapped()
    assert len(job.hosts("map")) == EXECUTORS
    assert job.runs("map") == ONCE
    return job


# ---- with Spark's external shuffle service -----------------------------------------------------------------


@pytest.fixture(scope="module")
def served(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application whose shuffle files Spark's external shuffle service serves."""
    settings = {**DYNAMIC, **cluster.start_shuffle_service().settings}
    application = Application(cluster, tmp_path_factory.mktemp("served") / "log", settings)
    try:
        yield application
    finally:
        application.kill()
        cluster.kill(MASTER_HOST, "shuffle-service")
        eventually(lambda: not cluster.pids(kind="shuffle-service"), "Spark's service to end")


def test_what_removed_executors_left_goes_when_spark_forgets_it(
    cluster: Cluster, served: Application, tmp_path: Path
) -> None:
    """First, while nothing of others is there."""
    job = served.start("hold", tmp_path)
    job.until_mapped()
    until_executors_are_gone(cluster)
    # before, Spark would tell executors that are no more to remove its files, and nobody would
    eventually(lambda: served.run("executors", tmp_path) == 0, "the driver to notice", GONE)
    assert map_outputs([cluster.directory], served)
    job.go("between")
    job.result()

    def is_gone() -> bool:
        served.run("collect_garbage", tmp_path)
        return not map_outputs([cluster.directory], served)

    eventually(is_gone, "map outputs of forgotten frames go", GONE)
    eventually(lambda: not cluster.pids(kind="janitor"), "the janitors to end with them")


@dataclass(frozen=True, slots=True)
class Removed:
    """Jobs between whose stages all executors were removed. ``outputs``: what ``robbed`` has written."""

    doors: dict[str, Job]
    robbed: Job
    outputs: dict[str, list[PartitionedFile]]


@pytest.fixture(scope="module")
def removed(cluster: Cluster, served: Application, tmp_path_factory: pytest.TempPathFactory) -> Removed:
    """All of them lose the same executors, for each that starts is seconds."""
    doors = {door: mapped(served, tmp_path_factory.mktemp(door), door) for door in DOORS}
    before = {file.base for files in map_outputs([cluster.directory], served).values() for file in files}
    robbed = mapped(served, tmp_path_factory.mktemp("robbed"), "exchange")
    found = map_outputs([cluster.directory], served)
    outputs = {host: [file for file in files if file.base not in before] for host, files in found.items()}
    until_executors_are_gone(cluster)
    # of all that ran beside the executors one process for each host looks after what they left
    eventually(lambda: len(cluster.pids(kind="janitor")) == len(found), "janitors of executors to end")
    return Removed(doors, robbed, outputs)


@pytest.mark.parametrize("door", DOORS)
def test_nothing_runs_again_where_sparks_service_serves_what_they_left(removed: Removed, door: str) -> None:
    job = removed.doors[door]
    job.go("between")
    assert job.result() == RIGHT
    assert job.runs("map") == ONCE


def test_map_outputs_of_removed_executors_that_are_lost(removed: Removed) -> None:
    """Spark drops all that the executor had; its map tasks run again, and no others. This test comes after
    those that read what the same executors have left."""
    job = removed.robbed
    host = max(job.hosts("map"))
    Path(removed.outputs[host][0].data_path).unlink()
    job.go("between")
    assert job.result() == RIGHT
    victims = job.first_runs("map", host)
    assert job.runs("map") == {p: 2 if p in victims else 1 for p in ONCE}


def test_with_the_application_all_of_it_goes(cluster: Cluster, served: Application, tmp_path: Path) -> None:
    """Last, for it ends the application. Its executors are gone, and its frame's files are still needed."""
    served.start("hold", tmp_path, maps=1).until_mapped()
    until_executors_are_gone(cluster)
    assert left_of(served).files
    served.stop()
    expected = {"shuffle-service": 1}
    eventually(lambda: left_of(served).processes == expected, "its processes to end", GONE)
    eventually(lambda: not left_of(served).files and not left_of(served).meetings, "its files to go", GONE)


# ---- without a service of Spark's --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tracked(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application whose idle executors are decommissioned although they have shuffle files, which go with
    them."""
    settings = {
        **DYNAMIC,
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "false",
    }
    application = Application(cluster, tmp_path_factory.mktemp("tracked") / "log", settings)
    try:
        yield application
    finally:
        application.kill()


@pytest.fixture(scope="module")
def decommissioned(tracked: Application, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """Jobs between whose stages the same executors are removed, by door."""
    jobs = {door: mapped(tracked, tmp_path_factory.mktemp(door), door) for door in DOORS}
    until_executors_are_gone(tracked.cluster)
    return jobs


@pytest.mark.parametrize("door", DOORS)
def test_without_it_what_decommissioned_executors_had_run_runs_again_once(
    decommissioned: dict[str, Job], door: str
) -> None:
    job = decommissioned[door]
    job.go("between")
    assert job.result() == RIGHT
    assert job.runs("map") == dict.fromkeys(ONCE, 2)
