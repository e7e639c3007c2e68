"""Dask DataFrame on a local cluster: a process for each core. Its shuffle is P2P; its aggregates merge
partial results in one task, which is quicker here.

With 2.25 GiB the two processes were killed for too much memory, with smaller blocks too. One process with two
threads was not, with smaller blocks and a smaller buffer for what the shuffle sends (82 s, one run, commit
cdfee72).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
from consumers import number, spread, sums_of, total
from dask.distributed import Client, LocalCluster
from turn import Limits, take_part

BLOCK = "128MiB"  # of files that one task reads together: Spark's default
SMALL_BLOCK = "32MiB"
SMALL_BUFFER = "128MiB"  # of what the shuffle has not sent yet; the default is 1 GiB for each process
LITTLE_MEMORY = 4 << 30  # bytes: with less, as said above
WORKERS = 0.85  # of the limit; the scheduler and the page cache get the rest


@contextmanager
def start(limits: Limits) -> Iterator[Client]:
    dask.config.set({"dataframe.shuffle.method": "p2p"})
    processes = limits.cores
    if limits.memory < LITTLE_MEMORY:
        processes = 1
        dask.config.set({"distributed.p2p.comm.buffer": SMALL_BUFFER})  # workers get a copy
    with (
        LocalCluster(
            n_workers=processes,
            threads_per_worker=limits.cores // processes,
            memory_limit=int(limits.memory * WORKERS / processes),
            local_directory=limits.directory,
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def read(files: list[str], **options: Any) -> Any:
    """Read with pyarrow's file system, which Dask's own pages recommend. It takes a directory. In this
    release it fails where rows are shuffled as they are, and for sorts of bytes."""
    return dd.read_parquet(os.path.dirname(files[0]), filesystem="arrow", **options)


def sums_of_partition(part: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame([total(pa.Table.from_pandas(part, preserve_index=False).to_batches())])


def exchange(client: Client, files: list[str], partitions: int) -> Any:
    block = SMALL_BLOCK if len(client.nthreads()) == 1 else BLOCK  # one process: there is little memory
    rows = dd.read_parquet(files, blocksize=block, aggregate_files=True).shuffle("k", npartitions=partitions)
    meta = {"rows": "i8", "v": "f8", "w": "f8", "letters": "i8"}
    return sums_of(rows.map_partitions(sums_of_partition, meta=meta).compute().to_dict("records"))


def sort(client: Client, files: list[str], output: str) -> Any:
    rows = dd.read_parquet(files, dtype_backend="pyarrow")  # pandas' own objects of bytes have no minimum
    rows.sort_values("key").to_parquet(output, write_index=False)
    return sorted(glob.glob(f"{output}/*.parquet"), key=lambda path: int(re.findall(r"\d+", path)[-1]))


def groups(client: Client, files: list[str]) -> Any:
    grouped = read(files).groupby("k", group_keys=False)[["k", "v"]]
    found = grouped.apply(spread, meta={"k": "i8", "spread": "f8"})
    count, wide = dask.compute(found["k"].count(), found["spread"].sum())
    return [int(count), number(wide)]


def aggregate(client: Client, files: list[str], key: str) -> Any:
    rows = read(files, columns=[key, "v"])
    sums = rows.groupby(key)["v"].agg(["count", "sum"], split_out=1)  # no shuffle: quicker in both cases
    found = dask.compute(sums["count"].count(), sums["count"].sum(), sums["sum"].sum())
    return [int(found[0]), int(found[1]), number(found[2])]


def join(client: Client, files: list[str], others: list[str]) -> Any:
    joined = read(files).merge(read(others), on="id")
    found = dask.compute(joined["id"].count(), joined["v"].sum(), joined["w"].sum())
    return [int(found[0]), number(found[1]), number(found[2])]


CASES = {"exchange": exchange, "sort": sort, "groups": groups, "aggregate": aggregate, "join": join}

if __name__ == "__main__":
    take_part(start, CASES, ("dask", "distributed", "pyarrow", "pandas"))
