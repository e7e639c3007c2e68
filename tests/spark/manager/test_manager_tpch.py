"""All queries of TPC-H: the same rows, in the order that the query asks for, in the same plans,
and no shuffle that is not the manager's. With a codec that is not the default one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from both_sides import ONE_HOST, Sides
from engine import eventually

SCALE = float(os.environ.get("SORTSHUFFLE_MATRIX_SCALE", "0.05"))
PARTITIONS = 8 if SCALE < 1 else 64
CODEC = "zstd"
PARTS = {"lineitem": 3, "orders": 3, "partsupp": 2}  # files, so that there are several map tasks
TABLES = ("lineitem", "orders", "partsupp", "customer", "part", "supplier", "nation", "region")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tpch")
    generator = Path(sys.executable).with_name("tpchgen-cli")
    for table in TABLES:
        parts = f"--parts={PARTS.get(table, 1)}"
        command = [
            generator,
            "parquet",
            "-s",
            str(SCALE),
            f"--tables={table}",
            parts,
            f"--output-dir={directory}",
        ]
        subprocess.run(command, check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def sides(sides_with: Callable[..., Sides], data: Path) -> Sides:
    settings = {
        "spark.sortshuffle.codec": CODEC,
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
    if SCALE >= 1:
        settings["spark.driver.memory"] = "3g"
    both = sides_with(settings)
    both.both("tpch_tables", data=str(data))
    return both


@pytest.mark.parametrize("number", range(1, 23))
def test_a_query(sides: Sides, number: int) -> None:
    sides.equal("tpch", query=f"q{number}", scale=SCALE)


@pytest.mark.skipif(not ONE_HOST, reason="executors elsewhere write")
def test_all_of_it_has_the_codec_of_the_session(sides: Sides) -> None:
    sides.writes(CODEC)


@pytest.mark.skipif(not ONE_HOST, reason="executors elsewhere write")
def test_the_session_holds_nothing_of_queries_that_have_ended(sides: Sides) -> None:
    """Two tasks write at a time, so there are two memories for frames at most."""

    def are_removed() -> bool:
        sides.ours.run("collect_garbage")
        return not sides.ours.map_outputs()

    eventually(are_removed, "the map outputs of queries that have ended go")
    eventually(lambda: not sides.ours.deleted_files(), "descriptors of files that are gone are closed")
    assert not sides.ours.unfinished()
    assert 1 <= sides.ours.frame_memories() <= 2


def test_nothing_is_left(sides: Sides) -> None:
    sides.ours.stop()
    sides.ours.nothing_is_left()
