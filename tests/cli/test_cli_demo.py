"""`sortshuffle demo` in a clone without the shuffle manager's jar: it works, and says what Spark uses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from engine import ROOT

PATIENCE = 180  # seconds; takes about 15


def test_without_the_jar_the_demo_works_and_says_so(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__", "*.jar")
    shutil.copytree(ROOT / "sortshuffle", clone / "sortshuffle", ignore=ignored)
    table = tmp_path / "table.parquet"
    pq.write_table(pa.table({"k": [1, 2, 2, 3]}), table)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sortshuffle.cli.main",
            "demo",
            "--parquet",
            table,
            "--key",
            "k",
            "--partitions",
            "2",
        ],
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    jar = clone / "sortshuffle" / "spark" / "manager" / "sortshuffle-manager.jar"
    reason = f"its jar {jar} is not there. In a clone, tools/jar builds it"
    assert f"\nSpark's own stages use Spark's own shuffle: {reason}" in done.stdout
    assert "What was shuffled" in done.stdout
    assert "session's shuffles" not in done.stderr
