"""A session whose map outputs lie at a URL: nothing of them is on local disks, no executor's end costs any,
one that is lost costs one task, and all go with the application, however that ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from both_sides import CONTROL
from engine import eventually, kill
from fault_stages import attempts, map_runs, paused
from served_session import EXECUTOR, GONE, ON_EXECUTORS, Session
from stores import Store, s3_fixture, store_of  # noqa: F401

PATIENCE = 90.0  # seconds until something must have happened
MAPS = 6


def hold(session: Session, store: Store, job: str) -> list[str]:
    """Run a map stage; its data objects, by map index."""
    shuffle = session.run(job, name="held", maps=MAPS).value["shuffle"]
    found = [name for name in store.names() if f"/exchange-{shuffle}-" in name and name.endswith(".data")]
    return sorted(found, key=lambda name: int(name.split("-map-")[1].split("-")[0]))


def local_files(session: Session) -> list[Path]:
    return [path for path in session.local.rglob("exchange-*") if path.is_file()]


# ---- executors, and a directory that all of them have mounted ----------------------------------------------


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(f"file://{tmp_path_factory.mktemp('mounted')}")


@contextmanager
def logged(session: Session) -> Iterator[Session]:
    """A session that is killed behind the block. What it said is printed."""
    try:
        yield session
        print(session.log.read_text()[-3000:], session.engine_log()[-3000:])
    finally:
        session.kill()


@pytest.fixture(scope="module")
def cluster(mounted: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Two executors on this host."""
    settings = {
        **ON_EXECUTORS,
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executor.memory": "768m",
        "spark.sortshuffle.dir": mounted.root,
    }
    with logged(Session(tmp_path_factory.mktemp("stored"), True, settings)) as session:
        yield session


def test_executors_killed_between_the_stages_cost_nothing(cluster: Session, mounted: Store) -> None:
    eventually(lambda: len(cluster.run("executors").value) == 2, "two executors", PATIENCE)
    outputs = hold(cluster, mounted, "hold_rows")
    assert len(outputs) == MAPS
    assert local_files(cluster) == []
    victims = cluster.executors(2)
    for victim in victims:
        kill(victim)
    eventually(lambda: not any(psutil.pid_exists(victim) for victim in victims), "the executors are gone")
    found = cluster.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)
    (stage,) = found["stages"]
    assert stage["read"] == stage["remote"] > 0
    assert local_files(cluster) == []


def test_a_lost_map_output_is_one_task_run_again(cluster: Session, mounted: Store) -> None:
    mounted.remove(f"{mounted.root}/{hold(cluster, mounted, 'hold_pairs')[-1]}")
    found = cluster.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 1, 2)


def test_however_many_are_lost_the_stage_has_one_more_attempt(cluster: Session, mounted: Store) -> None:
    for name in hold(cluster, mounted, "hold_rows"):
        mounted.remove(f"{mounted.root}/{name}")
    os.kill(cluster.engine(), signal.SIGKILL)  # which has kept the small ones that it has written
    found = cluster.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, MAPS, 2)


def test_an_executor_killed_in_a_map_stage_costs_what_it_had_not_finished(cluster: Session) -> None:
    """Its finished tasks do not run again, although the stage still runs."""
    eventually(lambda: len(cluster.run("executors").value) == 2, "two executors", PATIENCE)
    answer = cluster.start("one_task_waits", maps=MAPS)
    directory = cluster.last_directory

    def ran() -> list[str]:
        return [path.name.split("-")[1] for path in directory.glob("ran-*")]

    eventually((directory / "known").exists, "Spark knows that all but one have ended", PATIENCE)
    (other,) = {int(pid) for pid in ran()}
    (waits,) = [int(path.name.split("-")[1]) for path in directory.glob("waits-*")]
    assert {other, waits} == set(cluster.executors(2))
    kill(other)
    eventually(lambda: other not in cluster.pids(EXECUTOR), "it is gone")
    cluster.executors(2, PATIENCE)  # Spark knows it, and has another
    (directory / "go").touch()
    assert answer.result(PATIENCE).value["right"]
    assert len(ran()) == MAPS


def test_storage_counts_as_reliable_while_no_shuffle_is_sparks_own(cluster: Session) -> None:
    found = cluster.run("is_reliable_beside_a_frame")
    assert found.value == {"right": True, "beside": False, "again": False, "after": True}
    assert found.decisions[CONTROL] == 1
    assert "are Spark's own, on the executors' disks" in cluster.log.read_text()


def test_a_forgotten_shuffle_goes(cluster: Session, mounted: Store) -> None:
    outputs = hold(cluster, mounted, "hold_rows")
    assert len(outputs) == MAPS
    cluster.run("forget_held")

    def are_gone() -> bool:
        cluster.run("collect_garbage")
        return not set(outputs) & set(mounted.names())

    eventually(are_gone, "its objects go", PATIENCE)


def test_when_the_session_has_stopped_all_is_gone(cluster: Session, mounted: Store) -> None:
    """The last test of this session."""
    assert len(hold(cluster, mounted, "hold_rows")) == MAPS
    cluster.stop()
    assert mounted.names() == []
    cluster.nothing_is_left()


# ---- an object store ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket(s3: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with store_of("s3", tmp_path_factory.mktemp("bucket"), s3) as store:
        yield store


@pytest.fixture(scope="module")
def session(bucket: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    settings = {"spark.master": "local[2,4]", "spark.sortshuffle.dir": bucket.root}
    with logged(Session(tmp_path_factory.mktemp("objects"), True, settings)) as session:
        yield session


def test_what_is_written_to_a_store_is_read_from_there(session: Session, bucket: Store) -> None:
    """Also by an engine that has not written it; and what is lost there is one task run again."""
    outputs = hold(session, bucket, "hold_rows")
    assert len(outputs) == MAPS
    os.kill(session.engine(), signal.SIGKILL)
    bucket.remove(f"{bucket.root}/{outputs[0]}")
    for map_tasks, tries in ((1, 2), (0, 1)):
        found = session.run("read_held", name="held").value
        assert (found["right"], map_runs(found), attempts(found)) == (True, map_tasks, tries)
    assert local_files(session) == []


def test_it_is_all_gone_after_the_driver_is_killed(session: Session, bucket: Store) -> None:
    """The last test of this session. Two tasks are writing."""
    answer, _ = paused(session, "map", PATIENCE)
    assert not answer.done()
    assert bucket.names()
    session.kill()
    eventually(lambda: not bucket.names() and not bucket.uploads(), "the store is empty", 2 * GONE)
    session.nothing_is_left()
