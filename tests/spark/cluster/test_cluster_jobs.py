"""On a cluster of three hosts jobs give what they give on one, unchanged. What lies on another host comes
from its shuffle service, and a consumer that stands still is in nobody's way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster_driver import Application, Job, left_of, map_outputs, remote_bytes, services_of
from engine import eventually

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
ROWS, MAPS, REDUCES = 60_000, 6, 9
RIGHT = {"rows": ROWS, "total": ROWS * (ROWS - 1) // 2, "wrong": 0, "partitions": list(range(REDUCES))}
TIMEOUT = 5.0  # seconds in which a service must answer
STANDS_STILL = 3 * TIMEOUT  # for which a consumer asks it for nothing
OPERATORS_PATIENCE = 250.0  # seconds; all cases take about 30


@pytest.fixture(scope="module")
def application(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    application = Application(
        cluster,
        tmp_path_factory.mktemp("driver") / "log",
        {"spark.sortshuffle.service.timeout": f"{TIMEOUT:g}s"},
    )
    try:
        assert application.run("await_hosts", tmp_path_factory.mktemp("hosts"), hosts=3) == list(HOSTS)
        yield application
    finally:
        application.kill()


def opened_files(cluster: Cluster) -> dict[str, Counter[str]]:
    """Of each host's consumers and producers since the last look: how often they opened a map output, by the
    host on whose disk it lay."""
    found = {}
    for host in HOSTS:
        log = cluster.directory / f"opened-{host}"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        found[host] = Counter(line.split()[0] for line in lines)
    return found


def assert_only_own(opened: dict[str, Counter[str]]) -> None:
    """All but the host whose consumer stands still have opened files, and none another's."""
    assert sum(map(bool, opened.values())) >= 2
    assert all(set(others) <= {host} for host, others in opened.items())


def test_no_task_opens_a_file_of_another_host(
    cluster: Cluster, application: Application, tmp_path: Path
) -> None:
    opened_files(cluster)
    job = application.start("exchange", tmp_path, reducers=3)
    assert job.result() == RIGHT
    assert set(job.hosts("map")) == set(job.hosts("reduce")) == set(HOSTS)
    assert job.runs("map") == dict.fromkeys(range(MAPS), 1)
    assert job.runs("reduce") == dict.fromkeys(range(REDUCES), 1)
    for host, opened in opened_files(cluster).items():
        assert set(opened) == {host}
    # what they had to get from elsewhere is what the services have read, to the byte
    expected = remote_bytes(map_outputs([cluster.directory], application), job)
    services = services_of(application)
    assert set(services) == set(HOSTS)
    assert expected > 0
    assert sum(status.bytes_read_total for status in services.values()) == expected
    assert sum(status.errors_total for status in services.values()) == 0
    assert all(status.authenticated for status in services.values())


def test_the_control_without_services_they_would_be_seen_to(
    cluster: Cluster, application: Application, tmp_path: Path
) -> None:
    """All hosts are this machine, so that files of others can be opened."""
    opened_files(cluster)
    off = {"spark.sortshuffle.service": "off"}
    assert application.run("exchange", tmp_path, off, reducers=3) == RIGHT
    for opened in opened_files(cluster).values():
        assert set(opened) == set(HOSTS)


# ---- beside a consumer that stands still -------------------------------------------------------------------


@dataclass
class Standing:
    """A job one of whose consumers has its first batch and takes no more. The others have finished."""

    job: Job
    since: float


@pytest.fixture(scope="module")
def standing(application: Application, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    settings = {
        "spark.sortshuffle.codec": "none",
        "spark.sortshuffle.memory": "2m",  # extents of 100 KB or so
        "spark.sortshuffle.read.memory": "1m",  # so most of them are not read yet
    }
    directory = tmp_path_factory.mktemp("standing")
    job = application.start("exchange", directory, settings, rows=240_000, reduces=6, held_reduces=(0,))
    job.until(lambda: job.marks("reading") and len(job.marks("reduce")) == 5, "all others to finish")
    yield Standing(job, time.monotonic())
    job.go("reduce")


def test_each_kind_of_operator_and_the_demo_give_what_they_give_on_one_host(
    cluster: Cluster, application: Application, standing: Standing, tmp_path: Path
) -> None:
    """Side by side, each in a session of its own."""
    opened_files(cluster)
    operators = [application.start("every_operator", tmp_path / each, share=int(each)) for each in "01"]
    demo = application.start("flights", tmp_path / "demo")
    found = [job.result(OPERATORS_PATIENCE) for job in operators]
    assert [share["differing"] for share in found] == [{}, {}]
    assert sum(share["cases"] for share in found) >= 22
    airports, aircraft = demo.result()
    assert [(name, stops, late) for name, stops, late, *_ in airports] == [
        ("EWR", 24_056, 5_030),
        ("JFK", 26_062, 4_537),
        ("LGA", 28_850, 4_698),
    ]
    assert aircraft[0][:2] == ["N338AA", 52]
    assert_only_own(opened_files(cluster))


def test_after_several_time_outs_it_goes_on_where_it_stopped(standing: Standing) -> None:
    """The test before has taken the time, unless this one runs alone."""
    eventually(
        lambda: time.monotonic() >= standing.since + STANDS_STILL, "the time to pass", STANDS_STILL + 1
    )
    job = standing.job
    assert not job.answer.done()
    assert len(job.marks("reduce")) == 5
    job.go("reduce")
    found: Any = job.result()
    assert (found["rows"], found["total"], found["wrong"]) == (240_000, 240_000 * 239_999 // 2, 0)
    assert job.runs("reduce") == job.runs("reducing") == dict.fromkeys(range(6), 1)
    assert job.runs("map") == dict.fromkeys(range(MAPS), 1)


# ---- the end -----------------------------------------------------------------------------------------------


def test_nothing_is_left_when_the_application_ends(application: Application) -> None:
    """Last, for it ends the application."""
    there = left_of(application)
    assert [there.processes[kind] for kind in ("executor", "supervisor", "service")] == [3, 3, 3]
    assert len(there.meetings) == 3
    assert there.files
    application.stop()
    eventually(lambda: not any(left_of(application)), "all to be gone", 30.0)
