"""Jobs on two executors that count as two hosts, through both doors. Prints what happened as JSON.

python read_remotely.py DIRECTORY
"""

from __future__ import annotations

import glob
import json
import operator
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from hosts import ONE_HOST_EACH
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.homes.processes import process_start

ROWS, MAPS, REDUCES = 40_000, 6, 8


def processes(module: str, words: list[str]) -> list[int]:
    """Those that run a module, with one of these words among their arguments."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{entry}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if module in arguments and set(words) & set(arguments):
            found.append(int(entry))
    return found


def session(directory: str) -> Any:
    return (
        sortshuffle.configure(SparkSession.builder)
        .master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", os.path.join(directory, "local"))
        .config("spark.driver.host", "127.0.0.1")
        .config(map=ONE_HOST_EACH)
        .config("spark.executorEnv.SORTSHUFFLE_TEST_OPENED", os.path.join(directory, "opened"))
        .config("spark.executorEnv.TMPDIR", directory)
        .config("spark.sql.shuffle.partitions", str(REDUCES))
        .getOrCreate()
    )


def main(directory: str) -> None:
    spark = session(directory)
    spark.sparkContext.setLogLevel("OFF")

    def plus_one(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            yield pa.record_batch([batch.column(0), pa.array([1] * batch.num_rows)], names=["id", "one"])

    source = spark.range(0, ROWS, 1, MAPS)
    frame = sortshuffle.frame(source).mapInArrow(plus_one, "id long, one long").repartition(REDUCES, "id")
    found = sorted(row.id for row in frame.collect())
    sums = {row["k"]: row["s"] for row in keyed(frame).collect()}
    pairs = sortshuffle.rdd(spark.sparkContext.parallelize([(n % 100, n) for n in range(ROWS)], MAPS))
    reduced = dict(pairs.reduceByKey(operator.add, REDUCES).collect())
    beside = os.path.join(directory, f"sortshuffle-{os.geteuid()}", "*")
    rendezvous = [path for path in glob.glob(beside) if os.path.isdir(path)]  # without their sockets
    running = [
        *processes("sortshuffle.service.host.supervisor", rendezvous),
        *processes("sortshuffle.service.host.process", rendezvous),
    ]
    opened = [line.split(" ", 1) for line in Path(directory, "opened").read_text().splitlines()]
    print(
        json.dumps(
            {
                "rows": found == list(range(ROWS)),
                "sums": sums == {k: len(range(k, ROWS, 100)) for k in range(100)},
                "reduced": reduced == {k: sum(range(k, ROWS, 100)) for k in range(100)},
                "hosts": sorted({host for host, _ in opened}),
                "others": [path for host, path in opened if f"/{host}-" not in path],
                "rendezvous": rendezvous,
                "running": [(pid, process_start(pid)) for pid in running],
            }
        ),
        flush=True,
    )
    spark.stop()


def keyed(frame):  # type: ignore[no-untyped-def]
    def key(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            numbers = [value % 100 for value in batch.column(0).to_pylist()]
            yield pa.record_batch([pa.array(numbers), batch.column(1)], names=["k", "one"])

    def total(table: pa.Table) -> pa.Table:
        k = table.column("k")[0].as_py()
        return pa.table({"k": [k], "s": [table.num_rows]})

    return frame.mapInArrow(key, "k long, one long").groupBy("k").applyInArrow(total, "k long, s long")


if __name__ == "__main__":
    main(*sys.argv[1:])
