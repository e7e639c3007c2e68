"""`cluster`: the exchange case on a cluster of two hosts with a core each, against `local[2]`.

A process has one SparkContext at a time, so the sessions take turns: A B A B, each with a warm-up run and
then some more. On the cluster half of what a task reads comes from the other host, through its shuffle
service: a process more on the same two cores.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exchange import PARTITIONS, ROW_BYTES, ROWS_PER_FILE, checked, ours, session
from harness import DATA, JOBS, Side, compare
from pyspark.sql import SparkSession
from rows import parquet_files

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

from cluster import Cluster

RUNS = 3  # in each session
SESSIONS = 2  # of each side, besides one to warm up
EXECUTOR_MEMORY = "2g"


def main(quick: bool) -> None:
    rows = 500_000 if quick else 10_000_000
    files = parquet_files(DATA / f"exchange-{rows}", rows, max(2, rows // ROWS_PER_FILE))
    with cluster() as master:
        compare(
            "cluster",
            f"exchange of {rows / 1e6:g} M rows ({rows * ROW_BYTES / 1e9:.2f} GB), {len(files)} files,"
            f" {PARTITIONS} partitions, two hosts with a core each, page cache warm",
            Sessions("cluster", master, files, rows, quick),
            Sessions("local[2]", "local[2]", files, rows, quick),
            rounds=1 if quick else SESSIONS,
            rows=rows,
            partitions=PARTITIONS,
            page_cache="warm",
        )


class Sessions(Side):
    """The runs of sessions, which are made for them and warmed up."""

    def __init__(self, name: str, master: str, files: list[str], rows: int, quick: bool) -> None:
        super().__init__(name, lambda: self.moved)
        self._master, self._files, self._rows = master, files, rows
        self._runs = 1 if quick else RUNS

    def once(self, watched: bool) -> None:
        with running(self._master) as spark:
            warm = Side(self.name, lambda: checked(ours(spark, self._files).collect(), self._rows))
            for _ in range(1 + self._runs):
                warm.once(watched)
        self.seconds += warm.seconds[1:]
        self.peaks += warm.peaks[1:]
        self.moved = warm.moved


@contextmanager
def cluster() -> Iterator[str]:
    """Its master. Two workers with a core each."""
    with tempfile.TemporaryDirectory(prefix="sortshuffle-bench-", dir=os.environ.get("TMPDIR")) as directory:
        started = Cluster(directory)
        state = started.up(2, cores=1, memory="3g")
        try:
            yield state.master
        finally:
            started.down()


@contextmanager
def running(master: str) -> Iterator[SparkSession]:
    spark = session(
        master,
        **{
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executorEnv.PYTHONPATH": JOBS,
        },
    )
    try:
        yield spark
    finally:
        spark.stop()
