"""Ray Data on one node. Its objects are in shared memory, 30 % of the limit, which is Ray's default. Ray
reads the limit of the machine's group, not that of its own, so it is told."""

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
from consumers import number, spread, sums_of, total
from ray.data.aggregate import Count, Sum
from turn import Limits, take_part

OBJECTS = 0.3  # of the limit
PARTITIONS = 64  # of joins, whose number Ray asks for, and of groups, as many


@contextmanager
def start(limits: Limits) -> Iterator[None]:
    short = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # its sockets' paths have at most 107 characters
    ray.init(
        num_cpus=limits.cores,
        object_store_memory=int(limits.memory * OBJECTS),
        _memory=int(limits.memory * (1 - OBJECTS)),
        include_dashboard=False,
        logging_level=logging.ERROR,
        object_spilling_directory=limits.directory,
        _temp_dir=short,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
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
    grouped = ray.data.read_parquet(files).groupby("k", num_partitions=PARTITIONS)
    found = grouped.map_groups(spread, batch_format="pandas").aggregate(Count(), Sum("spread"))
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
    take_part(start, CASES, ("ray", "pyarrow", "pandas"))
