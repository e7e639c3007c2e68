"""Ray Data on one node. Its objects are in shared memory, 30 % of the limit, which is Ray's default. Ray
reads the limit of the machine's group, not that of its own, so it is told.

What was tried, one run each, commit cdfee72: by default Ray reserves half of the cores and memory for each
operator's own tasks. Without that the exchange of 10 M rows took 11.0 s instead of 13.2 and the groups 43 s
instead of 71; but the sort 54 s instead of 41, and the aggregate of 5 M groups 18.5 s instead of 16.3. (With
100 M rows and 8 GiB the exchange took 89 s without it, and 86 with it.) With `map_groups`, which makes a data
frame for each group, the groups took 239 s. Without Polars, which Ray has an option for, the sort took 45 s
instead of 41. With 0.7 instead of 0.5 of the memory for tasks it took 72 s instead of 52 (d8cccca).

Two runs each, 32ca2b9: with LZ4 instead of ZSTD the exchange of 10 M rows took 12.6 and 14.9 s instead of
11.9 and 16.1.
"""

from __future__ import annotations

import glob
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import ray
import ray.data
from consumers import number, spreads, sums_of, total
from ray.data.aggregate import Count, Sum
from turn import Limits, take_part

OBJECTS = 0.3  # of the limit
TASKS = 0.5  # of the limit; the rest is for Ray's own processes and the page cache
# Blocks are put together for a map task of a shuffle until they have so many bytes. With Ray's default of
# 1 GiB a task asks for more memory than all tasks have where the limit is 2.25 GiB, and waits for ever. With
# 64 MiB the exchange of 100 M rows took 148 s there in two turns, and lost processes in a third. With 10 M
# rows (two runs each) it took 11.9 and 16.1 s instead of 13.5 and 15.5, with 256 MiB 14.2 and 12.3; with 1000
# files (one run each) 54.8 s instead of 50.8 (32ca2b9)
MAP_INPUT = 64 << 20
QUICKER_WITHOUT_RESERVATION = ("exchange", "groups")
PARTITIONS = 64  # of joins, whose number Ray asks for, and of groups, as many


@contextmanager
def start(limits: Limits) -> Iterator[None]:
    short = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # its sockets' paths have at most 107 characters
    ray.init(
        num_cpus=limits.cores,
        object_store_memory=int(limits.memory * OBJECTS),
        _memory=int(limits.memory * TASKS),
        include_dashboard=False,
        logging_level=logging.ERROR,
        object_spilling_directory=limits.directory,
        _temp_dir=short,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.use_polars_sort = True
    context.shuffle_input_batch_bytes = MAP_INPUT
    context.op_resource_reservation_enabled = limits.case not in QUICKER_WITHOUT_RESERVATION
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(short, ignore_errors=True)


def sums_of_block(block: pa.Table) -> pa.Table:
    return pa.Table.from_pylist([total(block.to_batches())])


def exchange(_: None, files: list[str], partitions: int) -> Any:
    rows = ray.data.read_parquet(files).repartition(partitions, keys=["k"])
    return sums_of(rows.map_batches(sums_of_block, batch_size=None, batch_format="pyarrow").take_all())


def sort(_: None, files: list[str], output: str) -> Any:
    ray.data.read_parquet(files).sort("key").write_parquet(output)
    return sorted(glob.glob(f"{output}/*.parquet"))


def groups(_: None, files: list[str]) -> Any:
    rows = ray.data.read_parquet(files).repartition(PARTITIONS, keys=["k"])
    made = rows.map_batches(spreads, batch_size=None, batch_format="pandas")
    found = made.aggregate(Count(), Sum("spread"))
    return [found["count()"], number(found["sum(spread)"])]


def aggregate(_: None, files: list[str], key: str) -> Any:
    rows = ray.data.read_parquet(files, columns=[key, "v"])
    sums = rows.groupby(key, num_partitions=PARTITIONS).aggregate(
        Count(alias_name="n"), Sum("v", alias_name="total")
    )
    found = sums.aggregate(Count(), Sum("n"), Sum("total"))
    return [found["count()"], found["sum(n)"], number(found["sum(total)"])]


def join(_: None, files: list[str], others: list[str]) -> Any:
    left = ray.data.read_parquet(files, columns=["id", "v"])  # or its join would move all columns
    right = ray.data.read_parquet(others, columns=["id", "w"])
    found = left.join(right, "inner", PARTITIONS, on=("id",)).aggregate(Count(), Sum("v"), Sum("w"))
    return [found["count()"], number(found["sum(v)"]), number(found["sum(w)"])]


CASES = {"exchange": exchange, "sort": sort, "groups": groups, "aggregate": aggregate, "join": join}

if __name__ == "__main__":
    take_part(start, CASES, ("ray", "polars", "pyarrow", "pandas"))
