"""The cases of the `manager` benchmark."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from cases import MOST_QUICK_PARTITIONS, Aim, Case, quick_partitions
from harness import DATA
from manager_jobs import PAIRS_TASKS
from rounds import Effort, Measured
from sides import MIB, OURS, SPARK, BenchError, Request, Setup
from tpch_data import QUICK_SCALE, all_tables, read_once
from tpch_queries import QUERIES

QUICK_QUERIES = ("q3", "q18", "q21")  # tests/spark/manager/test_manager_tpch.py has all of them
QUICK_TASKS = 20
ROOM_FOR_SCALE_10 = 40 << 30  # bytes of disk: shuffles of both sides, and some room
# Spark's side then has 1 GiB of heap, 0.2 GB of it for each of two map tasks, which have 0.5 GB of rows each.
LITTLE_MEMORY = 1024 * MIB
# What a container has: the heap, what the JVM and Python need beside it, and some room for files.
CONTAINER_MEMORY = 2048 * MIB
PAIRS, QUICK_PAIRS, PAIRS_PARTITIONS = 5_000_000, 80_000, 64
CLUSTER_HOSTS, CLUSTER_MEMORY = 3, 1536 * MIB  # each host's: an executor with one core, and its engine
FOUR_TASKS, ONE_TASK = ", 4 tasks at once", ", 1 task"
# As many map tasks with either number at once; Spark would cut files by the number of cores.
SCALING_SETTINGS = (("spark.sql.files.minPartitionNum", "8"),)


def queries(scale: float, partitions: int, quick: bool) -> list[Request]:
    """All queries of TPC-H; the tables are in the page cache then. Tiny: some of them, in few partitions."""
    scale = QUICK_SCALE if quick else scale
    partitions = quick_partitions(partitions) if quick else partitions
    arguments = {"data": str(_tables(scale)), "scale": scale, "partitions": partitions}
    names = QUICK_QUERIES if quick else QUERIES
    return [Request(query, "tpch", arguments | {"query": query}) for query in names]


def lineitem(partitions: int, quick: bool) -> list[Request]:
    return [Request("repartition", "repartition", _lineitem(partitions, quick))]


def lineitem_placed(partitions: int, quick: bool) -> list[Request]:
    """Which rows are in which partition."""
    return [Request("placement", "repartition", _lineitem(partitions, quick) | {"is_placed": True})]


def _lineitem(partitions: int, quick: bool) -> dict[str, object]:
    return {
        "data": str(_tables(QUICK_SCALE if quick else 1.0)),
        "partitions": min(partitions, MOST_QUICK_PARTITIONS) if quick else partitions,
    }


def small_blocks(tasks: int, rows: int, quick: bool) -> list[Request]:
    return [Request("blocks", "blocks", _blocks(tasks, rows, quick))]


def blocks_placed(tasks: int, rows: int, quick: bool) -> list[Request]:
    """Which rows are in which partition."""
    return [Request("placement", "blocks", _blocks(tasks, rows, quick) | {"is_placed": True})]


def _blocks(tasks: int, rows: int, quick: bool) -> dict[str, object]:
    tasks = QUICK_TASKS if quick else tasks
    return {"maps": tasks, "partitions": tasks, "rows": rows}


def tiny_jobs(quick: bool) -> list[Request]:
    return [Request("tiny", "tiny", {"jobs": 5} if quick else {})]


def first_shuffle(quick: bool) -> list[Request]:
    return [Request("first", "first")]


def first_function(quick: bool) -> list[Request]:
    return [Request("first function", "first", {"has_function": True})]


def pairs(quick: bool) -> list[Request]:
    count, partitions = (QUICK_PAIRS, PAIRS_TASKS) if quick else (PAIRS, PAIRS_PARTITIONS)
    return [Request("pairs", "reduce_by_key", {"pairs": count, "partitions": partitions})]


def _tables(scale: float) -> Path:
    if scale >= 10 and shutil.disk_usage(DATA.parent).free < ROOM_FOR_SCALE_10:
        raise BenchError(f"TPC-H at scale {scale:g} needs {ROOM_FOR_SCALE_10 >> 30} GiB of free disk")
    data = all_tables(scale)
    read_once(data)
    return data


def does_not_spill(measured: Measured) -> None:
    spilled = measured.most(SPARK, "memory_spilled")
    if spilled:
        raise BenchError(f"Spark's side spills {spilled / 1e6:.0f} MB in a case that is to be in memory")


def spills(measured: Measured) -> None:
    if not measured.most(SPARK, "disk_spilled"):
        raise BenchError("Spark's side does not spill in the case that is to show it")


def _tpch(partitions: int, wall: float) -> Case:
    about = f"TPC-H scale 1, 22 queries, {partitions} partitions"
    return Case(
        f"tpch-{partitions}", about, partial(queries, 1.0, partitions), Aim(wall=wall, cpu=1.0, query=1.1)
    )


def _repartition(partitions: int) -> Case:
    return Case(
        f"repartition-{partitions}",
        f"lineitem into {partitions} partitions, in memory",
        partial(lineitem, partitions),
        Aim(wall=0.9, cpu=0.9),
        verification=partial(lineitem_placed, partitions),
        check=does_not_spill,
    )


CASES = [
    _tpch(64, 0.95),
    _tpch(200, 0.95),
    _tpch(16, 1.0),
    Case(
        "tpch10-200",
        "TPC-H scale 10, 22 queries, 200 partitions",
        partial(queries, 10.0, 200),
        Aim(wall=0.95, cpu=1.0),
        effort=Effort(rounds=3),
        warm_up=partial(queries, 1.0, 200, False),
    ),
    Case(
        "tpch-cluster",
        f"TPC-H scale 1, 22 queries, 64 partitions, a cluster of {CLUSTER_HOSTS} hosts",
        partial(queries, 1.0, 64),
        Aim(wall=1.0),
        setup=Setup(memory=CLUSTER_MEMORY, hosts=CLUSTER_HOSTS),
    ),
    _repartition(64),
    _repartition(1000),
    Case(
        "spill",
        "lineitem into 1000 partitions, little memory",
        partial(lineitem, 1000),
        Aim(wall=0.75, cpu=0.9),
        setup=Setup(memory=LITTLE_MEMORY),
        verification=partial(lineitem_placed, 1000),
        check=spills,
    ),
    Case(
        "spill-container",
        "the same in a container, whose limit counts the page cache",
        partial(lineitem, 1000),
        Aim(wall=0.75, cpu=0.9),
        setup=Setup(memory=LITTLE_MEMORY, container=CONTAINER_MEMORY),
        verification=partial(lineitem_placed, 1000),
        check=spills,
    ),
    Case(
        "blocks-200",
        "200 x 200 blocks of 10 rows",
        partial(small_blocks, 200, 10),
        Aim(wall=0.6, cpu=0.5),
        verification=partial(blocks_placed, 200, 10),
    ),
    Case(
        "blocks-1000",
        "1000 x 1000 blocks of 1 row",
        partial(small_blocks, 1000, 1),
        Aim(wall=1.0, cpu=1.0),
        verification=partial(blocks_placed, 1000, 1),
    ),
    Case("tiny", "100 tiny jobs", tiny_jobs, Aim(wall=0.95)),
    Case("rdd", "PySpark's reduceByKey, 5 M pairs", pairs, Aim(wall=1.0, cpu=1.0)),
]

FIRST = Case("first", "the first shuffle of a session", first_shuffle, Aim(seconds=0.5))
FIRST_FUNCTION = Case(
    "first-function",
    "the first shuffle of a session, of what a Python function returns",
    first_function,
    Aim(seconds=0.0),
)
FRESH = (FIRST, FIRST_FUNCTION)
SCALING = Case(
    "scaling",
    "CPU per byte written, 4 tasks at once / 1 task",
    partial(lineitem, 200),
    Aim(cpu_per_byte=1.1),
    setup=Setup(
        masters=tuple(
            (side + tasks, master)
            for side in (OURS, SPARK)
            for tasks, master in ((FOUR_TASKS, "local[4]"), (ONE_TASK, "local[1]"))
        ),
        settings=SCALING_SETTINGS,
    ),
)

NAMES = [case.name for case in (*CASES, *FRESH, SCALING)]
