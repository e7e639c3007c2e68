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

ROWS, MAPS, REDUCES = 6_000, 6, 9
RIGHT = {"rows": ROWS, "total": ROWS * (ROWS - 1) // 2, "wrong": 0, "partitions": list(range(REDUCES))}
ONCE = dict.fromkeys(range(MAPS), 1)
EXECUTORS = 2  # each on a host of its own
GONE = 60.0  # seconds until executors that are idle have gone
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    # an executor that waits for a first job would be removed while that starts
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": str(EXECUTORS),
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
}
DOORS = ["exchange", "exchange_pairs"]


def until_executors_are_gone(cluster: Cluster) -> None:
    eventually(lambda: not cluster.pids(kind="executor"), "idle executors to be removed", GONE)


def mapped(application: Application, directory: Path, door: str) -> Job:
    """A job that waits between its stages. One comes after the other, for each waits for all executors."""
    job = application.start(door, directory, rows=ROWS, between=True, hosts=EXECUTORS)
    job.until_mapped()
    assert len(job.hosts("map")) == EXECUTORS
    assert job.runs("map") == ONCE
    return job


def results_of_doors(jobs: dict[str, Job], runs: dict[int, int]) -> None:
    """Both jobs go on, side by side. Their rows are right, and each map task has run as often as ``runs``
    says."""
    for door in DOORS:
        jobs[door].go("between")
    assert {door: jobs[door].result() for door in DOORS} == dict.fromkeys(DOORS, RIGHT)
    assert {door: jobs[door].runs("map") for door in DOORS} == dict.fromkeys(DOORS, runs)


# ---- with Spark's external shuffle service -----------------------------------------------------------------


@pytest.fixture(scope="module")
def served(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application whose shuffle files Spark's external shuffle service serves."""
    try:
        settings = {**DYNAMIC, **cluster.start_shuffle_service().settings}
        application = Application(cluster, tmp_path_factory.mktemp("served") / "log", settings)
        try:
            yield application
        finally:
            application.kill()
    finally:
        cluster.kill(MASTER_HOST, "shuffle-service")
        eventually(lambda: not cluster.pids(kind="shuffle-service"), "Spark's service to end")


@dataclass(frozen=True, slots=True)
class Removed:
    """Jobs between whose stages all executors were removed. ``outputs``: what each of them has written."""

    jobs: dict[str, Job]
    outputs: dict[str, dict[str, list[PartitionedFile]]]


@pytest.fixture(scope="module")
def removed(cluster: Cluster, served: Application, tmp_path_factory: pytest.TempPathFactory) -> Removed:
    """All jobs lose the same executors, because each executor takes seconds to start."""
    jobs, old = dict[str, Job](), set[str]()
    outputs: dict[str, dict[str, list[PartitionedFile]]] = {}
    for name in (*DOORS, "robbed", "forgotten", "needed"):
        directory = tmp_path_factory.mktemp(name)
        if name in ("forgotten", "needed"):
            jobs[name] = served.start("hold", directory)
            jobs[name].until_mapped()
        else:
            jobs[name] = mapped(served, directory, name if name in DOORS else "exchange")
        found = map_outputs([cluster.directory], served)
        outputs[name] = {at: [file for file in files if file.base not in old] for at, files in found.items()}
        old = bases(found)
    until_executors_are_gone(cluster)
    # of all that ran beside the executors one process for each host looks after what they left
    eventually(lambda: len(cluster.pids(kind="janitor")) == len(found), "janitors of executors to end")
    return Removed(jobs, outputs)


def bases(outputs: dict[str, list[PartitionedFile]]) -> set[str]:
    return {file.base for files in outputs.values() for file in files}


def test_what_removed_executors_left_goes_when_spark_forgets_it(
    cluster: Cluster, served: Application, removed: Removed, tmp_path: Path
) -> None:
    """Comes first, while no other executors have started. What is still needed stays."""
    # until then Spark would ask executors that have ended to remove the files
    eventually(lambda: served.run("executors", tmp_path) == 0, "the driver to notice", GONE)
    others = bases(map_outputs([cluster.directory], served)) - bases(removed.outputs["forgotten"])
    assert (
        set() < bases(removed.outputs["needed"]) <= others < bases(map_outputs([cluster.directory], served))
    )
    removed.jobs["forgotten"].go("between")
    removed.jobs["forgotten"].result()

    def is_gone() -> bool:
        served.run("collect_garbage", tmp_path)
        return bases(map_outputs([cluster.directory], served)) == others

    eventually(is_gone, "map outputs of forgotten frames go", GONE)


def test_nothing_runs_again_where_sparks_service_serves_what_they_left(removed: Removed) -> None:
    results_of_doors(removed.jobs, ONCE)


def test_map_outputs_of_removed_executors_that_are_lost(removed: Removed) -> None:
    """Spark drops all that the executor had; its map tasks run again, and no others. This test comes after
    those that read what the same executors have left."""
    job = removed.jobs["robbed"]
    host = max(job.hosts("map"))
    Path(removed.outputs["robbed"][host][0].data_path).unlink()
    job.go("between")
    assert job.result() == RIGHT
    victims = job.first_runs("map", host)
    assert job.runs("map") == {p: 2 if p in victims else 1 for p in ONCE}


def test_with_the_application_all_of_it_goes(cluster: Cluster, served: Application, removed: Removed) -> None:
    """Last, for it ends the application. Its executors are gone, and a frame's files are still needed."""
    until_executors_are_gone(cluster)
    assert not removed.jobs["needed"].answer.done()
    assert set() < bases(removed.outputs["needed"]) <= bases(map_outputs([cluster.directory], served))
    served.stop()
    eventually(lambda: left_of(served).processes == {"shuffle-service": 1}, "its processes to end", GONE)
    eventually(lambda: not left_of(served).files and not left_of(served).meetings, "its files to go", GONE)


# ---- without a service of Spark's --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tracked(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application whose idle executors are decommissioned although they have shuffle files, which go with
    them."""
    settings = {
        **DYNAMIC,
        # Spark decommissions an idle executor even if it gets a task just then, which then runs again.
        # So both are much more than passes between two jobs; the second is for executors with shuffle files.
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "false",
    }
    application = Application(cluster, tmp_path_factory.mktemp("tracked") / "log", settings)
    try:
        yield application
    finally:
        application.kill()


def test_without_it_what_decommissioned_executors_had_run_runs_again_once(
    tracked: Application, tmp_path: Path
) -> None:
    """The jobs of both doors lose the same executors."""
    jobs = {door: mapped(tracked, tmp_path / door, door) for door in DOORS}
    until_executors_are_gone(tracked.cluster)
    results_of_doors(jobs, dict.fromkeys(ONCE, 2))
