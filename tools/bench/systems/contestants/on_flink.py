"""Flink's own sort shuffle, in batch mode with a cluster in one process. Only the exchange.

Its rows are made by Flink's generator, as many and as wide as those in the files, because no Parquet reader
comes with it. It sums in the JVM. So it does other work than the rest: it makes random rows instead of
reading them, and calls no Python. Flink starts its cluster anew for each job, within the time measured.
Aggregation before the exchange is off. But letters are counted there: the strings do not cross, only some 28
of the 68 bytes of a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.parquet as pq
from turn import Limits, take_part

HEAP = 0.5  # of the limit, as for Spark; Flink's buffers for shuffles come on top
NETWORK = 0.1  # of the limit: Flink's default


@contextmanager
def start(limits: Limits) -> Iterator[Any]:
    os.environ["JVM_ARGS"] = f"-Xmx{int(limits.memory * HEAP)}"  # read when the JVM is started
    from pyflink.table import EnvironmentSettings, TableEnvironment

    tables = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
    settings = {
        "taskmanager.numberOfTaskSlots": str(limits.cores),
        "taskmanager.memory.network.min": f"{int(limits.memory * NETWORK)}b",
        "taskmanager.memory.network.max": f"{int(limits.memory * NETWORK)}b",
        "io.tmp.dirs": limits.directory,
        "table.optimizer.agg-phase-strategy": "ONE_PHASE",
    }
    for name, value in settings.items():
        tables.get_config().set(name, value)
    yield tables


def exchange(tables: Any, files: list[str], partitions: int) -> Any:
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    # for the generator, too: with fewer tasks there, Flink would exchange all rows once more
    tables.get_config().set("table.exec.resource.default-parallelism", str(partitions))
    tables.execute_sql("DROP TABLE IF EXISTS numbers")
    tables.execute_sql(
        "CREATE TABLE numbers (k BIGINT, v DOUBLE, w DOUBLE, s STRING) WITH ('connector' = 'datagen',"
        f" 'number-of-rows' = '{rows}', 'rows-per-second' = '1000000000', 'fields.s.length' = '40',"
        " 'fields.k.min' = '0')"
    )
    sums = tables.execute_sql(
        f"SELECT MOD(k, {partitions}) p, COUNT(*), SUM(v), SUM(w), SUM(CHAR_LENGTH(s)) FROM numbers"
        f" GROUP BY MOD(k, {partitions})"
    )
    with sums.collect() as found:
        parts = list(found)
    return {"rows": str(sum(part[1] for part in parts)), "letters": str(sum(part[4] for part in parts))}


CASES = {"exchange": exchange}

if __name__ == "__main__":
    take_part(start, CASES, ("apache-flink",))
