"""The jobs of examples/jobs: one line makes each run on sortshuffle, and its rows stay PySpark's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engine import ROOT
from example_jobs import JOBS, NAMES, example, in_order, result_of
from java_options import java_options
from pyspark.sql import DataFrame, SparkSession

import sortshuffle

PATIENCE = 240  # seconds; takes about 20
SETTINGS = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

Step = Callable[[Any, SparkSession, str], DataFrame]
PYTHON_STEPS: dict[str, tuple[Step, str]] = {
    "duplicates": (lambda module, *place: module.normalised(*place), "mapInPandas(normalise)"),
    "etl": (lambda module, *place: module.cleaned(*place), "groupBy(station).applyInPandas(fill)"),
    "features": (lambda module, *place: module.trends(*place), "groupBy(customer).applyInPandas(trend)"),
    "models": (
        lambda module, spark, directory: module.models(spark.read.parquet(f"{directory}/sales")),
        "groupBy(shop).applyInPandas(fit)",
    ),
    "pipeline": (
        lambda module, spark, directory: module.Smooth().transform(spark.read.parquet(f"{directory}/loads")),
        "groupBy(machine).applyInPandas(smooth)",
    ),
    "sessions": (
        lambda module, *place: module.sessions(*place),
        "groupBy(user, session).applyInPandas(summarise)",
    ),
    "skewed": (lambda module, *place: module.parsed(*place), "mapInArrow(parse)"),
}
"""A frame of each job in which a Python function has the last word, and what `explain` calls that step."""


@pytest.fixture
def job(request: pytest.FixtureRequest) -> ModuleType:
    """The job that a test's parameter names."""
    return example(request.param)


each_job = pytest.mark.parametrize("job", NAMES, indirect=True)


def test_there_are_jobs_of_eight_kinds() -> None:
    assert sorted([*PYTHON_STEPS, "words"]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_only_one_line_differs_from_plain_pyspark(name: str) -> None:
    lines = (JOBS / f"{name}.py").read_text().splitlines()
    builder = f'SparkSession.builder.appName("{name}")'
    ours = [number for number, line in enumerate(lines) if "sortshuffle" in line]
    assert [lines[number].strip() for number in ours] == [
        "import sortshuffle",
        f"spark = sortshuffle.session({builder})",
    ]
    assert lines[ours[1] - 1].strip() == f"# was: spark = {builder}.getOrCreate()"
    assert len(lines) <= 80


@pytest.mark.usefixtures("generated_code")
@each_job
def test_rows_are_those_of_plain_pyspark(job: ModuleType, spark: SparkSession, tmp_path: Path) -> None:
    found = result_of(job, sortshuffle.session(spark), str(tmp_path / "ours"))
    expected = result_of(job, spark, str(tmp_path / "plain"))
    assert found.schema == expected.schema
    rows = in_order(found.collect())
    assert len(rows) > 5
    assert rows == in_order(expected.collect())


@pytest.mark.parametrize("job", PYTHON_STEPS, indirect=True)
def test_python_functions_run_here(
    job: ModuleType, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step, label = PYTHON_STEPS[job.__name__]
    job.data(spark, str(tmp_path))
    step(job, sortshuffle.session(spark), str(tmp_path)).explain()
    assert f"\n    {label}\n    -> rows" in capsys.readouterr().out.replace("-> " + label, label)


@pytest.mark.parametrize("job", ["sessions", "words"], indirect=True)
def test_as_a_program_it_shows_the_same(
    job: ModuleType, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result_of(job, spark, str(tmp_path / "data")).show(5)
    expected = capsys.readouterr().out
    assert re.search(r"^only showing top 5 rows$", expected, re.MULTILINE)
    assert output_of(job, tmp_path).startswith(expected)


def output_of(job: ModuleType, directory: Path) -> str:
    """What the job prints as a program of its own, which Spark's file of defaults tells where to run."""
    defaults = "".join(f"{name} {value}\n" for name, value in SETTINGS.items())
    (directory / "spark-defaults.conf").write_text(defaults)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [sys.executable, str(JOBS / f"{job.__name__}.py")],
        env={
            **inherited,
            "PYTHONPATH": str(ROOT),
            "SPARK_CONF_DIR": str(directory),
            "JDK_JAVA_OPTIONS": java_options(has_manager=True),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout
