"""Data of three times what a task may hold, through every door, in processes whose address space is limited;
and single batches and values of more than 2 GiB."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from limited import run

from sortshuffle.memory.limit import INTERPRETER_RESERVE

MIB, GIB = 1 << 20, 1 << 30
MEMORY = 64 * MIB  # of a task
LIMIT = INTERPRETER_RESERVE + MEMORY
EACH = 3 * MEMORY  # that each of two map tasks makes, and each of two reduce tasks gets
ROW = 16 << 10


def settings(tmp_path: Path, **more: str) -> str:
    chosen = {
        "spark.local.dir": str(tmp_path / "local"),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.driver.memory": "1g",
        "spark.sortshuffle.memory": str(MEMORY),
        "spark.sortshuffle.codec": "none",
        "spark.sortshuffle.manager": "off",
    }
    return json.dumps({**chosen, **{name.replace("_", "."): value for name, value in more.items()}})


# distinct: so many that the interpreter leaves no room in the limit for a partition twice
@pytest.mark.parametrize(
    ("door", "row", "each"), [("frame", ROW, EACH), ("distinct", ROW, 2 * EACH), ("rdd", 4096, EACH)]
)
def test_python_tasks(tmp_path: Path, door: str, row: int, each: int) -> None:
    chosen = settings(tmp_path, spark_executor_pyspark_memory=f"{LIMIT // MIB}m")
    found = run("doors.py", door, each, chosen)
    total = 2 * (each // row)
    assert sum(found["rows"]) == total
    assert (found["sum"], found["right"], found["limits"]) == (total * (total - 1) // 2, True, [LIMIT])


def test_the_managers_engine(tmp_path: Path) -> None:
    limited, told = tmp_path / "python", tmp_path / "limit"
    limit = LIMIT // 1024
    limited.write_text(f'#!/bin/sh\nulimit -v {limit}\nulimit -v >>{told}\nexec {sys.executable} "$@"\n')
    os.chmod(limited, 0o755)
    more = {"spark_sortshuffle_manager_memory": f"{MEMORY // MIB}m"}
    more |= {"spark_sortshuffle_manager_python": str(limited)}
    chosen = json.dumps({**json.loads(settings(tmp_path, **more)), "spark.sortshuffle.manager": "on"})
    found = run("doors.py", "manager", EACH, chosen)
    total = 2 * (EACH // 1024)
    assert (found["rows"], found["sum"], found["right"]) == ([total], total * (total - 1) // 2, True)
    assert set(told.read_text().split()) == {str(limit)}


def test_one_batch_beyond_2_gib(tmp_path: Path) -> None:
    rows = (5 * GIB // 2) // ROW
    found = run("one_batch.py", tmp_path, rows)
    assert found.pop("bytes") > 2 * GIB
    assert found == {"rows": rows, "sum": rows * (rows - 1) // 2, "right": True}


def test_one_batch_beyond_2_gib_of_a_function(tmp_path: Path) -> None:
    rows = (5 * GIB // 2) // ROW
    found = run("doors.py", "one_batch", rows * ROW, settings(tmp_path))
    assert (sum(found["rows"]), found["sum"], found["right"]) == (rows, rows * (rows - 1) // 2, True)


def test_one_value_beyond_2_gib_is_refused_by_name(tmp_path: Path) -> None:
    found = run("doors.py", "one_value", 2 * GIB + 1, settings(tmp_path))
    assert "SchemaMismatchError" in found["error"]
    assert "column 'bytes'" in found["error"] and "2 GiB" in found["error"]
