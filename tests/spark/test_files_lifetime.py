"""Files live as long as they can be read and no longer: across actions, garbage collection, cancelled jobs.
What is left when an application ends is looked at in `test_shared_storage.py`.
"""

from __future__ import annotations

import fnmatch
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from job_process import run_job
from pyspark import InheritableThread
from pyspark.sql import SparkSession

import sortshuffle

JOBS = Path(__file__).parent / "jobs"
PATIENCE = 60.0  # seconds until a condition that comes by itself counts as not coming
POLL_SECONDS = 0.05


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that another process does in its own time; fail with ``what`` if it does not."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"still waiting: {what}"
        threading.Event().wait(POLL_SECONDS)


def files(directory: Path, pattern: str = "exchange-*") -> list[str]:
    """Names below a directory, which may be going away at this moment."""
    return sorted(name for _, _, names in os.walk(directory) for name in fnmatch.filter(names, pattern))


@pytest.fixture
def own_directory(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Map outputs of this test alone, with a short grace time: Spark hears of a map output after it is
    finished, so without any the janitor could be quicker."""
    spark.conf.set("spark.sortshuffle.dir", str(tmp_path))
    spark.conf.set("spark.sortshuffle.grace", "5s")
    yield tmp_path
    spark.conf.unset("spark.sortshuffle.dir")
    spark.conf.unset("spark.sortshuffle.grace")


def test_a_second_action_and_derived_frames_write_nothing_new(
    spark: SparkSession, own_directory: Path
) -> None:
    frame = sortshuffle.frame(spark.range(0, 1000, 1, 2)).repartition(4, "id")
    assert frame.count() == 1000
    written = files(own_directory)
    assert len(written) == 4  # two map tasks, data and index

    assert frame.count() == 1000
    assert len(frame.select("id").collect()) == 1000
    assert frame.toDF().where("id < 10").count() == 10

    assert files(own_directory) == written


def test_fifty_forgotten_exchanges_go_when_the_driver_has_collected_garbage(tmp_path: Path) -> None:
    found = run_job(JOBS / "forget.py", str(tmp_path), str(PATIENCE))

    assert len(found["kept"]) == 2
    assert len(found["made"]) >= 2 + 50
    assert set(found["kept"]) <= set(found["left"])
    assert len(found["left"]) <= 2 + found["unseen"]


def test_small_jobs_leave_no_files_and_no_descriptors(tmp_path: Path) -> None:
    found = run_job(JOBS / "small_jobs.py", str(tmp_path), "15", str(PATIENCE))

    assert found["left"]["outputs"] <= found["unseen"]
    assert found["ran"]["descriptors"] <= found["warm"]["descriptors"] + 20


def test_a_cancelled_job_leaves_no_unfinished_file(
    spark: SparkSession, own_directory: Path, tmp_path: Path
) -> None:
    def endless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while True:
                yield batch

    context = spark.sparkContext
    failures: list[BaseException] = []

    def job() -> None:
        context.setJobGroup("endless", "until cancelled")
        try:
            sortshuffle.frame(spark.range(0, 1000, 1, 2)).mapInArrow(endless, "id long").repartition(
                4, "id"
            ).count()
        except Exception as error:
            failures.append(error)

    thread = InheritableThread(target=job)
    thread.start()
    eventually(lambda: files(own_directory, "*.partial"), "the map tasks are writing")
    context.cancelJobGroup("endless")
    thread.join(PATIENCE)

    assert not thread.is_alive()
    assert "cancelled" in str(failures[0])
    eventually(lambda: not files(own_directory), "the janitor removes what the killed workers left")
