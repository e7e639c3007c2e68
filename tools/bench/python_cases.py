"""The cases of `exchange`, `sort`, `tpch`, `small` and `rdd`: jobs whose Python stages exchange rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import sort_records
from cases import ONE_COMPILER, Aim, Case, quick_partitions
from harness import DATA
from rounds import Effort
from rows import parquet_files
from sides import MIB, Door, Request, Setup
from tpch_data import QUICK_SCALE, some_tables

SETUP = Setup(door=Door.FRAMES)
SESSION_SETUP = Setup(door=Door.SESSION, against=Door.FRAMES)
CLUSTER_HOSTS = 2
EXECUTOR_MEMORY = 2048 * MIB  # four run at once
CLUSTER_SETUP = Setup(door=Door.FRAMES, hosts=CLUSTER_HOSTS, memory=EXECUTOR_MEMORY)
PARTITIONS, QUICK_PARTITIONS = 64, quick_partitions(64)
SMALL_PARTITIONS = 3000  # of some hundred rows
ROWS_PER_FILE = 1_250_000
QUICK_ROWS, QUICK_PAIRS = 200_000, 80_000
MANY, FEW = 1_000_003, 10_007  # different keys: hardly any comes twice in a map task, or all do

JVMS_WITH_ONE_COMPILER = tuple(
    (f"spark.{process}.extraJavaOptions", ONE_COMPILER) for process in ("driver", "executor")
)

SCANS = {
    "read": "sortshuffle.read against Spark's own scan",
    "python": "a scan in Python on both sides",
    "wrapped": "sortshuffle.frame(spark.read.parquet(..)) against Spark's own scan",
    "dataframe": "rows that Spark makes on both sides",
}


def _exchange_requests(
    millions: int, scan: str, partitions: int, is_whole: bool, quick: bool
) -> list[Request]:
    rows = QUICK_ROWS if quick else millions * 1_000_000
    files = parquet_files(DATA / f"exchange-{rows}", rows, max(2, rows // ROWS_PER_FILE))
    partitions = quick_partitions(partitions) if quick else partitions
    arguments = {"files": files, "scan": scan, "partitions": partitions, "is_whole": is_whole}
    return [Request("rows" if is_whole else "exchange", "exchange", arguments)]


def _exchange(millions: int, scan: str, wall: float | None) -> Case:
    return Case(
        f"exchange-{millions}-{scan}",
        f"exchange of {millions} M rows, {SCANS[scan]}",
        partial(_exchange_requests, millions, scan, PARTITIONS, False),
        Aim(wall=wall),
        setup=SETUP,
        verification=partial(_exchange_requests, millions, scan, PARTITIONS, True),
    )


EXCHANGE_READ = _exchange(10, "read", 1 / 3)
EXCHANGE = [
    EXCHANGE_READ,
    _exchange(10, "python", 1 / 3),
    _exchange(10, "wrapped", 1 / 3),
    _exchange(10, "dataframe", None),
    _exchange(40, "read", 1 / 4),
    _exchange(40, "python", 1 / 4),
    replace(
        EXCHANGE_READ,
        name="exchange-10-cluster",
        about=f"{EXCHANGE_READ.about}, on a cluster of {CLUSTER_HOSTS} hosts",
        setup=CLUSTER_SETUP,
        # each of a side's three JVMs compiles by itself: the ninth run took two thirds of the fifth
        effort=Effort(least_warm_ups=10, most_warm_ups=14),
    ),
    replace(
        EXCHANGE_READ,
        name="exchange-10-cluster-one-compiler",
        about=f"{EXCHANGE_READ.about}, on a cluster of {CLUSTER_HOSTS} hosts, our JVMs with one compiler",
        # as docs/operations.md advises where the JVM has no rows to work on; Spark's has, and keeps both
        setup=replace(CLUSTER_SETUP, own_settings=JVMS_WITH_ONE_COMPILER),
        effort=Effort(least_warm_ups=10, most_warm_ups=14),
    ),
]


def _sort_requests(millions: int, quick: bool) -> list[Request]:
    rows = QUICK_ROWS if quick else millions * 1_000_000
    source = sort_records.input_files(DATA / f"sort-{rows}", rows)
    expected = sort_records.summary(source, in_order=False)
    output = Path(f"{source}-sorted")
    arguments = {
        "source": str(source),
        "output": str(output),
        "partitions": QUICK_PARTITIONS if quick else PARTITIONS,
        "rows": expected.rows,
        "checksum": expected.checksum,
    }
    return [Request("sort", "sort", arguments)]


SORT = [
    Case(
        "sort-20",
        "20 M records of 100 bytes, Parquet to Parquet, sorted by a key of 10",
        partial(_sort_requests, 20),
        Aim(wall=1.0),
        setup=SETUP,
    )
]


def _parsed_requests(name: str, scale: float, partitions: int, is_whole: bool, quick: bool) -> list[Request]:
    data = some_tables(QUICK_SCALE if quick else scale, ("lineitem", "orders"))
    partitions = quick_partitions(partitions) if quick else partitions
    arguments = {"name": name, "data": str(data), "partitions": partitions, "is_whole": is_whole}
    return [Request("rows" if is_whole else name, "parsed", arguments)]


def _parsed(name: str, scale: float, about: str) -> Case:
    return Case(
        f"tpch-{name}",
        about,
        partial(_parsed_requests, name, scale, PARTITIONS, False),
        Aim(wall=0.5),
        setup=SETUP,
        verification=partial(_parsed_requests, name, scale, PARTITIONS, True),
    )


TPCH = [
    _parsed("group", 0.25, "1.5 M lines, a pandas function for each of 50,000 parts"),
    _parsed("aggregate", 5.0, "30 M lines, sums and averages by supplier"),
    _parsed("join", 5.0, "30 M lines joined with 7.5 M orders, then a Python function"),
]

SESSIONS = [
    replace(
        case,
        name=f"session-{case.name}",
        about=f"{case.about}: PySpark's code in our session, against frames",
        aim=Aim(wall=1.1),
        setup=SESSION_SETUP,
    )
    for case in TPCH
]


def _small(name: str, about: str, wall: float, requests: Callable[[bool, bool], list[Request]]) -> Case:
    return Case(
        f"small-{name}",
        f"{about}: {SMALL_PARTITIONS} small partitions",
        partial(requests, False),
        Aim(wall=wall),
        setup=SETUP,
        verification=partial(requests, True),
    )


SMALL = [
    replace(
        _small(
            "repartition",
            "repartition of 1 M rows",
            2.0,
            partial(_exchange_requests, 1, "read", SMALL_PARTITIONS),
        ),
        effort=Effort(most_warm_ups=2),  # its 3000 tasks took plain PySpark 145 s
    ),
    # nobody has asked for so many: spark.sql.shuffle.partitions says it
    _small(
        "aggregate",
        "1.5 M lines, sums by supplier",
        1.0,
        partial(_parsed_requests, "aggregate", 0.25, SMALL_PARTITIONS),
    ),
    _small(
        "join",
        "1.5 M lines joined with 0.4 M orders",
        1.0,
        partial(_parsed_requests, "join", 0.25, SMALL_PARTITIONS),
    ),
]


def _rdd_requests(method: str, kind: str, different: int, is_whole: bool, quick: bool) -> list[Request]:
    arguments = {
        "method": method,
        "kind": kind,
        "count": QUICK_PAIRS if quick else 5_000_000,
        "different": different,
        "partitions": QUICK_PARTITIONS if quick else PARTITIONS,
        "is_whole": is_whole,
    }
    return [Request("rows" if is_whole else method, "rdd", arguments)]


def _rdd(method: str, kind: str, different: int) -> Case:
    return Case(
        f"rdd-{method}-{kind}-{'many' if different == MANY else 'few'}",
        f"{method} of 5 M pairs, {different:,} {kind} keys",
        partial(_rdd_requests, method, kind, different, False),
        Aim(wall=0.5 if different == MANY and method != "partitionBy" else None),
        setup=SETUP,
        verification=partial(_rdd_requests, method, kind, different, True),
    )


RDD = [
    _rdd(method, kind, different)
    for method in ("partitionBy", "reduceByKey", "groupByKey")
    for kind in ("int", "str")
    for different in ((MANY,) if method == "partitionBy" else (MANY, FEW))
]
