"""On the oldest Spark that is supported: the same rows as plain PySpark of that release, for each kind of
operator and for two jobs of examples/jobs; and PySpark's methods with their parameters.

That PySpark is installed once, by pip, into a directory of the checkout that git ignores, and put in front of
the environment's own. Some 470 MB, in half a minute or more; without an index in reach the test is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from engine import ROOT

OLDEST = "4.1"
INSTALLED = ROOT / ".oldest" / f"pyspark-{OLDEST}"
JOB = Path(__file__).parent / "jobs" / "every_operator.py"
PATIENCE = 450  # seconds; the job took 250 beside other tests, on a slow machine
INSTALLING = 400  # seconds


@pytest.fixture
def pyspark() -> Path:
    """Where the oldest PySpark is, and nothing else."""
    if not INSTALLED.exists():
        unfinished = INSTALLED.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        packages = [f"pyspark=={OLDEST}.*", "py4j==0.10.9.9"]  # py4j as that PySpark's jars have it
        into = ["--no-deps", "--target", str(unfinished)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", *into, *packages],
            capture_output=True,
            text=True,
            timeout=INSTALLING,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"pip could not install PySpark {OLDEST}: {done.stderr.strip()[-300:]}")
        unfinished.rename(INSTALLED)
    return INSTALLED


@pytest.mark.timeout(PATIENCE + INSTALLING + 20)
def test_each_kind_of_operator_gives_the_rows_that_plain_pyspark_gives(pyspark: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join(map(str, (pyspark, ROOT, ROOT / "tests", ROOT / "tests" / "spark")))
    done = subprocess.run(
        [sys.executable, str(JOB), str(tmp_path), "classic"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "SPARK_HOME": str(pyspark / "pyspark")},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["version"].startswith(f"{OLDEST}.")
    assert found["differing"] == {}
    assert found["signatures"] == {}
    assert found["cases"] >= 20
    assert found["stages"] == 2
    assert "the SparkContext has been stopped" in found["stopped"]
    kind, sparks, message = found["worker_error"]
    assert (kind, sparks) == ("SchemaMismatchError", "PythonException")
    assert "mapInArrow(<lambda>): PySparkRuntimeError: [RESULT_COLUMN_" in message
