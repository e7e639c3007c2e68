"""Polars with its streaming engine, in one process. It has no exchange: partitions are files by a hash of the
key, which Python reads. Its `map_groups` would call Python functions on one core, and make a data frame of
pandas for each group: so two processes read half of the groups each, and pandas groups their rows.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
from consumers import number, spreads, sums_of, total
from turn import Limits, take_part

PROCESSES = 2  # and threads that read partitions: one for each core


@contextmanager
def start(limits: Limits) -> Iterator[Any]:
    os.environ["POLARS_MAX_THREADS"] = str(limits.cores)  # these are read when polars is loaded
    os.environ["POLARS_OVERRIDE_TOTAL_MEMORY_MB"] = str(limits.memory >> 20)
    os.environ["POLARS_OOC_SPILL_DIR"] = limits.directory
    import polars

    polars.Config.set_engine_affinity("streaming")
    yield polars


def exchange(pl: Any, files: list[str], partitions: int, output: str) -> Any:
    rows = pl.scan_parquet(files).with_columns(p=pl.col("k").hash() % partitions)
    rows.sink_parquet(
        pl.PartitionBy(f"{output}/parts", key="p", include_key=False),
        mkdir=True,
        compression="snappy",
        maintain_order=False,  # the exchange of 100 M rows took 26 s instead of 27
    )
    with ThreadPoolExecutor(PROCESSES) as pool:
        parts = pool.map(lambda part: total(ds.dataset(part).to_batches()), glob.glob(f"{output}/parts/*"))
        return sums_of(parts)


def sort(pl: Any, files: list[str], output: str) -> Any:
    path = f"{output}/sorted.parquet"
    pl.scan_parquet(files).sort("key").sink_parquet(path, compression="snappy")
    return [path]


def spreads_of_part(files: list[str], part: int) -> pd.DataFrame:
    os.environ["POLARS_MAX_THREADS"] = "1"  # this process has one of the cores, and its part of the memory
    memory = int(os.environ["POLARS_OVERRIDE_TOTAL_MEMORY_MB"])
    os.environ["POLARS_OVERRIDE_TOTAL_MEMORY_MB"] = str(memory // PROCESSES)
    import polars as pl

    rows = pl.scan_parquet(files).filter(pl.col("k").hash() % PROCESSES == part)
    return spreads(rows.collect(engine="streaming").to_pandas())


def groups(_: Any, files: list[str]) -> Any:
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        found = pd.concat(pool.map(partial(spreads_of_part, files), range(PROCESSES)))
    return [len(found), number(found["spread"].sum())]


def aggregate(pl: Any, files: list[str], key: str) -> Any:
    sums = pl.scan_parquet(files).group_by(key).agg(n=pl.col("v").count(), total=pl.col("v").sum())
    found = sums.select(pl.len().alias("groups"), pl.col("n").sum(), pl.col("total").sum()).collect()
    count, rows, all_of_it = found.row(0)
    return [count, rows, number(all_of_it)]


def join(pl: Any, files: list[str], others: list[str]) -> Any:
    joined = pl.scan_parquet(files).join(pl.scan_parquet(others), on="id")
    found = joined.select(pl.len(), pl.col("v").sum(), pl.col("w").sum()).collect()
    count, v, w = found.row(0)
    return [count, number(v), number(w)]


CASES = {"exchange": exchange, "sort": sort, "groups": groups, "aggregate": aggregate, "join": join}

if __name__ == "__main__":
    take_part(start, CASES, ("polars", "pyarrow", "pandas"))
