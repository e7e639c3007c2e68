"""Whatever shuffles in a session gives the same with the manager as without it, and no shuffle falls back to
Spark's own. The plans are the same, too, where they do not depend on the stage that ends first."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from both_sides import CONTROL, MASTER, ONE_HOST, Sides
from engine import eventually

HERE = MASTER.startswith("local")
LATE = 60.0  # seconds for whatever comes by itself; about 7 for a map output that Spark does not know
COALESCING = {"spark.sql.adaptive.coalescePartitions.enabled": "true"}
"""As by default: neighbouring partitions are read together."""
MOST_THREADS = 40  # of an engine whose JVM runs two tasks at a time: its own and some for each connection


@pytest.fixture(scope="module")
def sides(sides_with: Callable[..., Sides]) -> Sides:
    return sides_with(COALESCING)


# ---- SQL ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job",
    [
        "queries",
        "queries_without_adaption",
        "queries_of_nothing",
        "sort",
        "limits",
        "wide",
        "big_rows",
        "every_kind_of_column",
    ],
)
def test_sql(sides: Sides, job: str) -> None:
    sides.equal(job)


def test_shuffled_joins(sides: Sides) -> None:
    found = plan(sides, "joins")
    assert re.search("SortMergeJoin.* FullOuter", found)
    assert re.search("SortMergeJoin.* LeftAnti", found)
    assert "ShuffledHashJoin" in found


def test_one_shuffle_that_two_stages_read(sides: Sides) -> None:
    assert "ReusedExchange" in plan(sides, "reused_exchange")


def test_skew_joins_read_ranges_of_map_outputs(sides: Sides) -> None:
    found = plan(sides, "skew_join")
    assert found.count("SortMergeJoin(skew=true)") == 2
    assert "AQEShuffleRead coalesced and skewed" in found or "AQEShuffleRead skewed" in found


def test_a_local_read_reads_whole_map_outputs(sides: Sides) -> None:
    found = plan(sides, "local_read")
    assert "BroadcastHashJoin" in found
    assert "AQEShuffleRead local" in found


def test_a_coalesced_read_reads_neighbouring_partitions(sides: Sides) -> None:
    assert "AQEShuffleRead coalesced" in plan(sides, "coalesced")


def test_a_rebalanced_read_splits_a_large_partition(sides: Sides) -> None:
    assert "AQEShuffleRead coalesced and skewed" in plan(sides, "rebalanced")


def plan(sides: Sides, job: str) -> str:
    """A job's plan, the same on both sides."""
    return str(sides.equal(job).value["plan"])


def test_the_metrics_are_those_of_sparks_own_shuffle(sides: Sides) -> None:
    found = sides.equal("metrics").value
    assert (found["rows"], found["shuffleRecordsWritten"], found["recordsRead"]) == (20_000,) * 3
    assert found["dataSize"] > 20_000 * 40


def test_three_thousand_partitions(sides: Sides) -> None:
    sides.equal("many_partitions")


# ---- RDDs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["operations", "sorting_operations", "persisted"])
def test_rdds_of_python(sides: Sides, job: str) -> None:
    sides.equal(job)


def test_rdds_of_java_objects(sides: Sides) -> None:
    sides.equal("java_operations")


# ---- what else a session does ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job",
    [
        "streams",
        "cached",
        "collected_twice",
        "files_cleaned_up",
        "checkpointed",
        "python_functions",
        "side_by_side",
    ],
)
def test_a_session(sides: Sides, job: str) -> None:
    sides.equal(job)


@pytest.mark.parametrize("job", ["own_frames", "own_rdds"])
def test_frames_and_rdds_of_this_package(sides: Sides, job: str) -> None:
    sides.equal(job, control=1)


def test_tasks_that_fail_leave_nothing_and_spoil_nothing(sides: Sides) -> None:
    assert sides.equal("failing_tasks").value["failed"] == {"map": "told to fail", "reduce": "told to fail"}
    eventually(lambda: not sides.ours.unfinished(), "the unfinished files go")


def test_cancelled_jobs_leave_nothing_and_spoil_nothing(sides: Sides) -> None:
    found = sides.equal("cancelled").value["outcomes"]
    cases = ("map, without interrupts", "map, with interrupts", "reduce, with interrupts")
    assert found == {case: ["cancelled"] for case in cases}
    eventually(lambda: not sides.ours.unfinished(), "the unfinished files go")


# ---- control rows stay with Spark's own shuffle, and nothing else does -------------------------------------


@pytest.fixture(scope="module")
def shuffles(sides: Sides) -> dict[str, Any]:
    if not ONE_HOST:
        pytest.skip("whose a shuffle is does not depend on where executors are")
    found: dict[str, Any] = sides.ours.run("control_rows").value
    return found


@pytest.mark.parametrize("where", ["frame", "in a thread"])
def test_a_frames_control_rows_are_sparks_and_the_shuffles_of_its_source_are_ours(
    shuffles: dict[str, Any], where: str
) -> None:
    assert shuffles[where] == [[3, "Spark's"], [7, "ours"]]


def test_control_rows_of_several_exchanges_are_sparks(shuffles: dict[str, Any]) -> None:
    assert shuffles["two exchanges in one pass"] == [[7, "Spark's"], [7, "ours"]]


def test_an_rdds_control_rows_are_sparks_and_the_shuffles_of_its_source_are_ours(
    shuffles: dict[str, Any],
) -> None:
    assert shuffles["RDD"] == [[3, "Spark's"], [7, "ours"]]
    assert shuffles["cogrouped"] == [[3, "Spark's"], [7, "ours"], [7, "ours"]]


def test_shuffles_behind_them_are_ours(shuffles: dict[str, Any]) -> None:
    assert shuffles["behind a frame"] == [[5, "ours"], [3, "Spark's"], [7, "ours"]]
    assert shuffles["behind an RDD"] == [[5, "ours"], [3, "Spark's"], [7, "ours"]]


def test_rows_of_sql_whose_columns_are_not_found_are_sparks(shuffles: dict[str, Any]) -> None:
    assert shuffles["unknown columns"] == [[2, "Spark's"], [2, "ours"]] * 2


# ---- another session, without compression, and with a short grace time -------------------------------------


@pytest.fixture(scope="module")
def others(sides: Sides, sides_with: Callable[..., Sides]) -> Sides:
    if not HERE:
        pytest.skip("the other sessions have all the cores")
    settings = {"spark.sortshuffle.codec": "none", "spark.sortshuffle.grace": "5s", **COALESCING}
    return sides_with(settings, sides.plain)


@pytest.mark.skipif(not ONE_HOST, reason="the hosts' disks are elsewhere")
def test_map_outputs_of_frames_live_as_long_as_they_can_be_read(others: Sides) -> None:
    """Also when that is longer than their grace time: their control rows are in Spark's own shuffle files,
    which say so. They go when nobody can read them."""
    found = others.ours.run("late_reads", below=str(others.ours.directory), seconds=LATE)
    for what in ("frame", "RDD"):
        read = found.value[what]
        assert read["found"] == list(range(1000))
        assert read["after"] == read["before"] != []
    assert found.value["left"] == []
    assert found.decisions == {CONTROL: 2, "sortshuffle": 1}


def test_without_compression(others: Sides) -> None:
    """The last test of this session. `test_manager_tpch` has the third codec."""
    others.writes("none")
    others.ours.stop()


# ---- what there is of it: these are the last ---------------------------------------------------------------


@pytest.mark.skipif(not HERE, reason="the hosts' disks are elsewhere")
def test_the_map_outputs_verify_and_can_be_shown(sides: Sides) -> None:
    shuffle = sides.ours.run("hold_rows", name="kept", maps=3, partitions=4, rows=3000).value["shuffle"]
    files = sides.ours.outputs_of(shuffle)
    assert len(files) == 3

    verified = sortshuffle("verify", str(files[0].parent))
    shown = sortshuffle("dump", "--records", "5", "--schema", "id long, t string", str(files[1]))

    assert verified.count("OK") >= 6
    assert "FAULT" not in verified
    rows = [(int(number), text) for number, text in re.findall(r"^ *(\d+) +([0-9a-f]{128})$", shown, re.M)]
    assert len(rows) == 5
    assert {number // 1000 for number, _ in rows} == {1}  # the second of three map tasks had 1000 to 1999
    assert rows == [(number, hashlib.sha512(str(number).encode()).hexdigest()) for number, _ in rows]


@pytest.mark.skipif(not HERE, reason="executors elsewhere write")
def test_shuffles_that_nobody_needs_lose_their_files(sides: Sides) -> None:
    sides.ours.run("forget_held")
    assert sides.ours.run("forgotten").value["files"] > 0
    engine = psutil.Process(sides.ours.engine())
    eventually(lambda: not sides.ours.deleted_files(), "descriptors of files that are gone are closed")
    assert engine.num_threads() < MOST_THREADS


def test_nothing_is_left_when_the_session_ends(sides: Sides) -> None:
    sides.ours.stop()
    sides.ours.nothing_is_left()


def sortshuffle(*arguments: str) -> str:
    """What the command line tool prints."""
    command = [sys.executable, "-m", "sortshuffle.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
