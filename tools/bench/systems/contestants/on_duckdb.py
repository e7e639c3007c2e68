"""DuckDB, in one process. It has no exchange: partitions are files by a hash of the key, which Python
reads. It runs no Python function for each group: two processes read half of the groups each, and pandas
groups their rows.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import duckdb
import pandas as pd
import pyarrow.dataset as ds
from consumers import number, spreads, sums_of, total
from turn import Limits, take_part

PROCESSES = 2  # and threads that read partitions: one for each core
# Of the limit: DuckDB's default share. With 0.55 more rows are written aside: the exchange of 100 M rows took
# 40.2 and 43.0 s instead of 35.8 and 34.1, the sort 12.1 and 12.3 s instead of 10.9 and 8.4 (d8cccca, in
# turns; one run each at cdfee72 had the exchange the other way round, 37 s with 0.55 and 43 with 0.8). The
# limit is for the page cache too: with 2.25 GiB the same exchange took 50 s with 0.55, and 55 s with 0.8 (one
# run each, cdfee72)
MEMORY = 0.8
MEMORY_OF_LITTLE = 0.55
LITTLE = 4 << 30  # bytes: between the two limits that were tried, 2.25 and 8 GiB
# Partitioned files: flushed after 65,536 rows of a partition (the default is 524,288), the exchange of 10 M
# rows took 3.5 and 4.0 s instead of 3.1 and 3.4; after 131,072, and with 1024 open files (100), 3.8 and
# 3.4 s. With 1024 open files the 1000 partitions took 6.2 and 5.6 s instead of 5.6 and 6.5 (32ca2b9, in
# turns). So `partitioned_write_flush_threshold` and `partitioned_write_max_open_files` are not set


@contextmanager
def start(limits: Limits) -> Iterator[duckdb.DuckDBPyConnection]:
    share = MEMORY_OF_LITTLE if limits.memory < LITTLE else MEMORY
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {limits.cores}")
        connection.execute(f"SET memory_limit = '{int(limits.memory * share)}B'")
        connection.execute(f"SET temp_directory = '{limits.directory}/spill'")
        connection.execute("SET preserve_insertion_order = false")
        yield connection


def exchange(connection: duckdb.DuckDBPyConnection, files: list[str], partitions: int, output: str) -> Any:
    rows = f"(SELECT *, hash(k) % {partitions} AS p FROM read_parquet({files}))"
    connection.execute(f"COPY {rows} TO '{output}/parts' (FORMAT parquet, PARTITION_BY p)")
    with ThreadPoolExecutor(PROCESSES) as pool:
        parts = pool.map(lambda part: total(ds.dataset(part).to_batches()), glob.glob(f"{output}/parts/*"))
        return sums_of(parts)


def sort(connection: duckdb.DuckDBPyConnection, files: list[str], output: str) -> Any:
    path = f"{output}/sorted.parquet"
    connection.execute(
        f"COPY (SELECT * FROM read_parquet({files}) ORDER BY key) TO '{path}' (FORMAT parquet)"
    )
    return [path]


def spreads_of_part(files: list[str], part: int) -> pd.DataFrame:
    chosen = f"hash(k) % {PROCESSES} = {part}"
    with duckdb.connect(config={"threads": 1}) as connection:
        return spreads(connection.sql(f"SELECT k, v FROM read_parquet({files}) WHERE {chosen}").df())


def groups(_: Any, files: list[str]) -> Any:
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        found = pd.concat(pool.map(partial(spreads_of_part, files), range(PROCESSES)))
    return [len(found), number(found["spread"].sum())]


def aggregate(connection: duckdb.DuckDBPyConnection, files: list[str], key: str) -> Any:
    sums = f"SELECT count(v) n, sum(v) total FROM read_parquet({files}) GROUP BY {key}"
    row = connection.execute(f"SELECT count(n), sum(n), sum(total) FROM ({sums})").fetchall()[0]
    return [int(row[0]), int(row[1]), number(row[2])]


def join(connection: duckdb.DuckDBPyConnection, files: list[str], others: list[str]) -> Any:
    joined = f"read_parquet({files}) l JOIN read_parquet({others}) r USING (id)"
    row = connection.execute(f"SELECT count(id), sum(v), sum(w) FROM {joined}").fetchall()[0]
    return [int(row[0]), number(row[1]), number(row[2])]


CASES = {"exchange": exchange, "sort": sort, "groups": groups, "aggregate": aggregate, "join": join}

if __name__ == "__main__":
    take_part(start, CASES, ("duckdb", "pyarrow", "pandas"))
