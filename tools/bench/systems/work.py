"""The cases: what work is done, by which systems, on which data, with how much memory.

Data are Parquet files, made once and kept under `harness.DATA`. The name of a directory
says what is in it, so that a changed case makes data of its own.

    exchange    k: any of 2^40 numbers; v, w: doubles; s: 40 letters. 68 bytes a row
    sort        records of 100 random bytes, of which 10 are the key
    groups      k: 20 rows of each; v: a double
    facts       few: below 50,000; many: below 5 M; id: of one of the others; v: a double
    others      id: each number once, in random order; w: a double
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sort_records
from harness import DATA
from rows import parquet_files

GIB = 1 << 30
ROWS_PER_FILE = 1_250_000
OURS = ("sortshuffle", "frames")  # they measure this checkout, and need its jar
PEERS = ("dask", "ray", "flink", "duckdb", "polars")
SYSTEMS = (*OURS, "spark", *PEERS)
ONLY_EXCHANGE = ("flink",)
FEW, MANY = 50_000, 5_000_000
ROWS_PER_GROUP = 20
QUICK = 500  # so many times fewer rows


@dataclass(frozen=True, slots=True)
class Work:
    """``case``: the function that contestants have for it. ``about``: the work, in words. ``arguments``: of
    the function, without its `output`; makes the data, with a divisor for the number of rows. ``memory``:
    that a contestant may have. ``warm_ups``: before each run; fewer where a run takes a minute, none where it
    takes several."""

    name: str
    case: str
    about: str
    arguments: Callable[[int], dict[str, Any]]
    memory: int = 6 * GIB
    warm_ups: int = 2

    @property
    def systems(self) -> tuple[str, ...]:
        """Those that can do it."""
        return tuple(name for name in SYSTEMS if self.case == "exchange" or name not in ONLY_EXCHANGE)

    def check(self, answer: Any) -> Any:
        """Return what must be equal among contestants. Raises `ValueError` if an answer is wrong in
        itself."""
        return _sorted(answer) if self.case == "sort" else answer


def input_files(arguments: dict[str, Any]) -> list[str]:
    """Return the input files among the arguments of a case's function."""
    return [*arguments["files"], *arguments.get("others", ())]


def _sorted(files: list[str]) -> Any:
    """Read the files of a sort, which are told in their order."""
    found = sort_records.summary_of(list(map(Path, files)), in_order=True)
    return [found.rows, found.checksum]


# ---- data -------------------------------------------------------------------------------------------------


def _exchange(rows: int, files: int, partitions: int, fewer: int) -> dict[str, Any]:
    count = rows // fewer
    made = parquet_files(DATA / f"compare-exchange-{count}-{files}", count, files)
    return {"files": made, "partitions": partitions}


def _sort(rows: int, fewer: int) -> dict[str, Any]:
    made = sort_records.input_files(DATA / f"sort-{rows // fewer}", rows // fewer)
    return {"files": sorted(map(str, made.glob("part-*.parquet")))}


def _groups(count: int, fewer: int) -> dict[str, Any]:
    return {"files": _files("groups", ROWS_PER_GROUP * count // fewer, _group_rows)}


def _aggregate(rows: int, key: str, fewer: int) -> dict[str, Any]:
    return {"files": _files("facts", rows // fewer, _facts), "key": key}


def _join(rows: int, fewer: int) -> dict[str, Any]:
    count = rows // fewer
    return {"files": _files("facts", count, _facts), "others": _files("others", count // 4, _others)}


def _files(kind: str, rows: int, make: Callable[[int, int, int], pa.Table]) -> list[str]:
    directory = DATA / f"compare-{kind}-{rows}"
    if not directory.exists():
        partial_directory = directory.with_name(f"{directory.name}.partial")
        shutil.rmtree(partial_directory, ignore_errors=True)
        partial_directory.mkdir(parents=True)
        for number, (start, end) in enumerate(_parts(rows)):
            path = partial_directory / f"part-{number:05d}.parquet"
            pq.write_table(make(start, end, rows), path, compression="none", use_dictionary=False)
        partial_directory.rename(directory)
    return sorted(map(str, directory.iterdir()))


def _parts(rows: int) -> Iterator[tuple[int, int]]:
    """Return where files begin and end. There are at least two, so that two tasks share them."""
    size = min(ROWS_PER_FILE, max(1, rows // 2))
    return ((start, min(start + size, rows)) for start in range(0, rows, size))


def _group_rows(start: int, end: int, rows: int) -> pa.Table:
    random = np.random.default_rng(start)
    keys = _shuffled(start, end, rows) % (rows // ROWS_PER_GROUP)
    return pa.table({"k": keys, "v": random.random(end - start)})


def _facts(start: int, end: int, rows: int) -> pa.Table:
    random, count = np.random.default_rng(start), end - start
    return pa.table(
        {
            "few": random.integers(0, FEW, count),
            "many": random.integers(0, MANY, count),
            "id": random.integers(0, rows // 4, count),
            "v": random.random(count),
        }
    )


def _others(start: int, end: int, rows: int) -> pa.Table:
    random = np.random.default_rng(start)
    return pa.table({"id": _shuffled(start, end, rows), "w": random.random(end - start)})


def _shuffled(start: int, end: int, count: int) -> Any:
    """Return some of the numbers below ``count``, each of which is in one part, as if in random order."""
    step = 1_000_003  # a prime that divides no count here
    return np.arange(start, end, dtype=np.int64) * step % count


# ---- cases ------------------------------------------------------------------------------------------------

MEGA = 1_000_000
WORKS = [
    Work(
        "exchange",
        "exchange",
        "exchange of 10 M rows (0.7 GB), 64 partitions",
        partial(_exchange, 10 * MEGA, 8, 64),
    ),
    Work(
        "exchange-large",
        "exchange",
        "exchange of 100 M rows (6.8 GB), 64 partitions, 8 GiB of memory",
        partial(_exchange, 100 * MEGA, 80, 64),
        memory=8 * GIB,
        warm_ups=0,
    ),
    Work(
        "exchange-beyond",
        "exchange",
        "exchange of 100 M rows (6.8 GB), 64 partitions, 2.25 GiB of memory",
        partial(_exchange, 100 * MEGA, 80, 64),
        memory=9 * GIB // 4,
        warm_ups=0,
    ),
    Work(
        "blocks",
        "exchange",
        "1000 files of 10,000 rows into 1000 partitions",
        partial(_exchange, 10 * MEGA, 1000, 1000),
        warm_ups=1,
    ),
    Work(
        "sort",
        "sort",
        "sort of 20 M records of 100 bytes into Parquet",
        partial(_sort, 20 * MEGA),
        warm_ups=1,
    ),
    Work(
        "groups",
        "groups",
        "a pandas function for each of 200,000 groups of 20 rows",
        partial(_groups, 200_000),
        warm_ups=1,
    ),
    Work(
        "aggregate-few",
        "aggregate",
        "aggregates of 50,000 groups, 30 M rows",
        partial(_aggregate, 30 * MEGA, "few"),
    ),
    Work(
        "aggregate-many",
        "aggregate",
        "aggregates of 5 M groups, 30 M rows",
        partial(_aggregate, 30 * MEGA, "many"),
    ),
    Work("join", "join", "join of 30 M with 7.5 M rows", partial(_join, 30 * MEGA)),
]
