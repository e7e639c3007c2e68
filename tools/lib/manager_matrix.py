"""The tests of the shuffle manager in the places, and on the data, that take too long for each time.

Used by `tools/manager_matrix`. A place is a run of pytest with variables that say where the sessions of the
tests run, and on how much data. Another release of PySpark has an environment of its own (`other_spark`).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import click
from checkout import commit
from cluster import ROOT, Cluster
from other_spark import run_with

RESULTS = ROOT / "tools" / "manager_matrix.jsonl"
MASTER, SCALE = "SORTSHUFFLE_MATRIX_MASTER", "SORTSHUFFLE_MATRIX_SCALE"
TESTS = "tests/spark/manager"
MATRIX, TPCH = f"{TESTS}/test_manager_matrix.py", f"{TESTS}/test_manager_tpch.py"
CLUSTER_FAULTS = "tests/spark/cluster/test_cluster_manager.py"
TWO_EXECUTORS = "local-cluster[2,1,1024]"
HOSTS, CORES, MEMORY = 3, 2, "2g"  # a core and an executor of each host for each of two sessions


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of one place. ``seconds``: of the whole run."""

    place: str
    tests: tuple[str, ...]
    passed: int
    failed: tuple[str, ...]
    skipped: int
    seconds: float


@contextmanager
def _local() -> Iterator[Mapping[str, str]]:
    yield {SCALE: "1"}


@contextmanager
def _local_cluster() -> Iterator[Mapping[str, str]]:
    yield {MASTER: TWO_EXECUTORS}


@contextmanager
def _cluster() -> Iterator[Mapping[str, str]]:
    with tempfile.TemporaryDirectory(prefix="matrix-") as directory:
        cluster = Cluster(Path(directory))
        state = cluster.up(HOSTS, cores=CORES, memory=MEMORY)
        try:
            yield {MASTER: state.master}
        finally:
            cluster.down()


@contextmanager
def _as_they_are() -> Iterator[Mapping[str, str]]:
    """Those tests say themselves where they run: here, or on a cluster that they start, and break."""
    yield {}


PLACES = {
    "tests": ((_as_they_are, (TESTS,)),),
    "local": ((_local, (TPCH,)),),
    "local-cluster": ((_local_cluster, (MATRIX, TPCH)),),
    "cluster": ((_cluster, (MATRIX, TPCH)), (_as_they_are, (CLUSTER_FAULTS,))),
}
LONG = ("local", "local-cluster", "cluster")
"""What is run if no place is named. The other one is what `tools/test` runs with its own release of Spark."""


def run(place: str, tests: tuple[str, ...], variables: Mapping[str, str]) -> Outcome:
    """Those tests with these variables, whose output goes to the terminal."""
    with tempfile.TemporaryDirectory(prefix="matrix-") as directory:
        report = Path(directory, "report.xml")
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *tests]
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode
        seconds = round(time.monotonic() - started, 1)
        passed, failed, skipped = counted(report)
    return Outcome(place, tests, passed, failed or why_not_passed(status, passed), skipped, seconds)


def counted(report: Path) -> tuple[int, tuple[str, ...], int]:
    """How many tests of pytest's report have passed, which have failed, how many were skipped."""
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failed = [each for each in cases if each.find("failure") is not None or each.find("error") is not None]
    skipped = sum(each.find("skipped") is not None for each in cases)
    names = tuple(f"{each.get('classname')}::{each.get('name')}" for each in failed)
    return len(cases) - len(failed) - skipped, names, skipped


def why_not_passed(status: int, passed: int) -> tuple[str, ...]:
    """What else is a failure where no test has failed."""
    if status != 0:
        return (f"pytest ended with status {status}",)
    return () if passed else ("no test has passed",)


def record(outcome: Outcome) -> None:
    found = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "software": version("sortshuffle"),
        "commit": commit(),
        "spark": version("pyspark"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **asdict(outcome),
    }
    with open(RESULTS, "a") as opened:
        opened.write(json.dumps(found) + "\n")


@click.command()
@click.option("--spark", metavar="RELEASE", default="", help="Another release of PySpark, such as 4.1.4.")
@click.argument("places", nargs=-1, type=click.Choice(list(PLACES)))
def main(places: tuple[str, ...], spark: str) -> None:
    """Run the tests of the shuffle manager in PLACES. Without PLACES: in local, local-cluster and cluster, or
    in tests with --spark."""
    if spark:
        run_with(spark, [__file__, *(places or ("tests",))])
    outcomes = []
    for place in places or LONG:
        for around, tests in PLACES[place]:
            with around() as variables:
                outcomes.append(run(place, tests, variables))
            record(outcomes[-1])
    for each in outcomes:
        what = ", ".join(Path(test).stem for test in each.tests)
        click.echo(
            f"{each.place}: {what}: {each.passed} passed, {len(each.failed)} failed, {each.skipped} skipped,"
            f" {each.seconds:g} s"
        )
        for name in each.failed:
            click.echo(f"    {name}")
    if any(each.failed for each in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
