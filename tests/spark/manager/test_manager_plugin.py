"""What the manager's Java half makes of settings that no Python has seen: lines given to spark-submit."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sortshuffle.spark.manager.jar import jar_path
from sortshuffle.spark.manager.settings import manager_settings

PATIENCE = 180.0  # seconds
SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert spark.range(100).repartition(3).count() == 100
print(spark.sparkContext._jsc.sc().shuffleDriverComponents().supportsReliableStorage())
print(spark.sparkContext.getConf().get("spark.dynamicAllocation.shuffleTracking.timeout", "not set"))
print(dict(spark.sparkContext._jvm.org.sortshuffle.SortMergeShuffleManager.decisions()))
spark.stop()
"""


def session_with(
    directory: Path, others: Mapping[str, str] = {}, **settings: str
) -> subprocess.CompletedProcess[str]:
    """A session that runs a job with a shuffle, and prints whether storage counts as reliable, when idle
    executors go that have written map outputs, and the manager's decisions."""
    chosen = {
        **manager_settings(jar_path(), sys.executable, {}),
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory),
        **{f"spark.sortshuffle.{name}": value for name, value in settings.items()},
        **others,
    }
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(chosen)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "TMPDIR": str(directory)},
    )


def test_off_is_off_with_spaces_around_it(tmp_path: Path) -> None:
    done = session_with(tmp_path, manager=" OFF ")
    assert done.returncode == 0, done.stderr
    (decision,) = done.stdout.splitlines()[-1:]
    assert decision.startswith("{'spark.sortshuffle.manager is off': ")


def test_a_url_that_no_library_knows_fails_the_job_and_is_named(tmp_path: Path) -> None:
    done = session_with(tmp_path, manager="on", dir=" s4://bucket/x/")
    assert done.returncode != 0
    assert "s4://bucket/x" in done.stderr
    assert "fsspec knows no storage s4://" in done.stderr
    assert "Lost task" not in done.stderr, "it fails before the first task"
    assert "manager.python to a Python" not in done.stderr


def test_storage_is_reliable_at_a_url_only_whatever_settings_were_copied(tmp_path: Path) -> None:
    """The manager's own class is among the settings of a SparkContext that had a URL."""
    others = {"spark.shuffle.sort.io.plugin.class": "org.sortshuffle.Storage"}
    for directory, is_reliable in (
        (f"file://{tmp_path}/mounted", "true"),
        (str(tmp_path / "local"), "false"),
    ):
        done = session_with(tmp_path, others, manager="on", dir=directory)
        assert done.returncode == 0, done.stderr
        assert done.stdout.lower().splitlines()[-3] == is_reliable
        assert "Spark asks it" not in done.stderr


def test_what_spark_asks_of_storage_is_what_somebody_else_has_set(tmp_path: Path) -> None:
    components = "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO"
    others = {"spark.shuffle.sort.io.plugin.class": components}
    done = session_with(tmp_path, others, manager="on", dir=f"file://{tmp_path}/mounted")
    assert done.returncode == 0, done.stderr
    assert f"spark.shuffle.sort.io.plugin.class is {components}: Spark asks it" in done.stderr
    assert done.stdout.splitlines()[-1] == "{'sortshuffle': 2}"
    assert [path for path in (tmp_path / "mounted").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"spark.shuffle.push.enabled": "true"}, "has no push-based shuffle: set spark.shuffle.push.enabled"),
        ({"spark.shuffle.service.enabled": "true"}, "has a service of its own: set spark.shuffle.service"),
        ({"spark.shuffle.manager": "sort"}, "spark.shuffle.manager is sort: set it to org.sortshuffle."),
    ],
)
def test_what_it_does_not_work_beside_starts_no_context(
    tmp_path: Path, others: dict[str, str], why: str
) -> None:
    """Whoever sets it by settings alone has not been told by `configure`."""
    done = session_with(tmp_path, others, manager="on")
    assert done.returncode != 0
    assert why in done.stderr
    assert "Or leave sortshuffle's manager out, by spark.sortshuffle.manager=off" in done.stderr


def test_with_encryption_every_shuffle_is_sparks_which_is_counted(tmp_path: Path) -> None:
    done = session_with(tmp_path, {"spark.io.encryption.enabled": "true"}, manager="on")
    assert done.returncode == 0, done.stderr
    reason = "spark.io.encryption.enabled is true, and sortshuffle's files are not encrypted"
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == {reason: 2}


@pytest.mark.parametrize(
    ("others", "timeout"),
    [
        ({}, "0"),
        ({"spark.dynamicAllocation.shuffleTracking.timeout": "1h"}, "1h"),
        ({"spark.io.encryption.enabled": "true"}, "not set"),  # then map outputs are Spark's
    ],
)
def test_idle_executors_may_go_although_they_have_written_map_outputs(
    tmp_path: Path, others: dict[str, str], timeout: str
) -> None:
    done = session_with(tmp_path, others, manager="on")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2] == timeout
