"""A job on two executors, one of which is killed and wiped. Prints what happened as JSON.

    python lose_executor.py DIRECTORY before|during

before: after the map stage and before any reduce task. during: by the fourth reduce task, when at least two
have finished, which is when a result stage can no longer start over.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import sys
from collections import Counter
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.homes.processes import executor_pid

MAPS, REDUCES, ROWS = 6, 8, 60_000
KILLER = 3

HEX_DIGIT = "[0-9a-f]"


def mark(directory: str, what: str, partition: int) -> None:
    """Leave a file that says which executor ran what, in which attempt."""
    attempt = TaskContext.get().taskAttemptId()
    with open(os.path.join(directory, f"{what}-{partition}-{attempt}-{executor_pid()}"), "x"):
        pass


def marks(directory: str, what: str) -> list[tuple[int, int]]:
    """(partition, pid of the executor) of each run so far."""
    names = [os.path.basename(path).split("-") for path in glob.glob(os.path.join(directory, f"{what}-*"))]
    return [(int(partition), int(pid)) for _, partition, _, pid in names]


def runs_of(runs: list[tuple[int, int]], victim: int) -> dict[str, Any]:
    """Which partitions ran in the executor that was killed, and how often each partition ran."""
    counts = Counter(partition for partition, _ in runs)
    return {
        "victims": sorted({partition for partition, pid in runs if pid == victim}),
        "runs": {str(partition): count for partition, count in sorted(counts.items())},
    }


def on_two_executors(directory: str) -> Any:
    spark = (
        sortshuffle.configure(SparkSession.builder)
        .master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", os.path.join(directory, "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def kill_as_said(directory: str, pid: int) -> None:
    """And leave a file that says which one it was."""
    with open(os.path.join(directory, "marks", "killed"), "x") as killed:
        killed.write(str(pid))
    kill_and_wipe(directory, pid)


def killed_one(directory: str) -> int | None:
    try:
        with open(os.path.join(directory, "marks", "killed")) as killed:
            return int(killed.read())
    except FileNotFoundError:
        return None


def kill_and_wipe(directory: str, pid: int) -> None:
    pattern = os.path.join(directory, "local", "**", f"*-{pid}-{HEX_DIGIT * 12}")
    homes = glob.glob(pattern, recursive=True)
    assert homes, f"nothing is at {pattern}"  # before a janitor sweeps what is a dead process's
    os.kill(pid, signal.SIGKILL)
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)


def main(directory: str, when: str) -> None:
    os.makedirs(os.path.join(directory, "marks"))
    marked = os.path.join(directory, "marks")
    spark = on_two_executors(directory)

    def produce(batches):  # type: ignore[no-untyped-def]
        mark(marked, "map", TaskContext.get().partitionId())
        yield from batches

    def consume(batches):  # type: ignore[no-untyped-def]
        partition = TaskContext.get().partitionId()
        others = {pid for _, pid in marks(marked, "map")} - {executor_pid()}
        if when == "during" and partition == KILLER and killed_one(directory) is None:
            kill_as_said(directory, min(others))
        total = rows = 0
        for batch in batches:
            rows += batch.num_rows
            total += sum(batch.column(0).to_pylist())
        mark(marked, "reduce", partition)
        yield pa.record_batch(
            [pa.array([partition]), pa.array([rows]), pa.array([total])], names=["p", "n", "t"]
        )

    frame = (
        sortshuffle.frame(spark.range(0, ROWS, 1, MAPS))
        .mapInArrow(produce, "id long")
        .repartition(REDUCES, "id")
    )
    if when == "before":
        frame.count()
        kill_as_said(directory, min(pid for _, pid in marks(marked, "map")))
    rows = frame.mapInArrow(consume, "p long, n long, t long").collect()
    victim = killed_one(directory)
    assert victim is not None
    found = {
        "rows": sum(row.n for row in rows),
        "total": sum(row.t for row in rows),
        "partitions": sorted(row.p for row in rows),
        **runs_of(marks(marked, "map"), victim),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
