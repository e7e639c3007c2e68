"""A session that runs many small jobs. Prints as JSON what grows, after some of them and after all: files of
map outputs, bytes of Spark's local directory, descriptors of the driver and of its JVM, the workers' too.

    python small_jobs.py DIRECTORY JOBS SECONDS

By hand, for a hundred jobs: `.venv/bin/python tests/spark/jobs/small_jobs.py /tmp/small 100 60`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import sortshuffle

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WARM = 5  # jobs until everything is loaded
GRACE = "20s"  # less than what the test waits for files to go
UNSEEN = 10  # files that may be left: Spark forgets the last jobs' within a moment, or keeps them for now


def doubled(frames: Any) -> Any:
    for frame in frames:
        yield frame.assign(v=frame.v * 2)


def total(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [frame.k.iloc[0]], "v": [frame.v.sum()]})


def job(spark: SparkSession, number: int) -> float:
    """Run a job; return how long it took."""
    started = time.perf_counter()
    rows = spark.createDataFrame([(at % 3, float(at + number)) for at in range(12)], "k long, v double")
    found = rows.mapInPandas(doubled, rows.schema).groupBy("k").applyInPandas(total, rows.schema).collect()
    assert sorted(row.v for row in found) == [2.0 * (4 * number + first) for first in (18, 22, 26)]
    return time.perf_counter() - started


def processes(root: int) -> list[int]:
    """The process and all below it."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        below.setdefault(parent, []).append(int(path.parent.name))
    found = [root]
    for each in found:
        found += below.get(each, [])
    return found


def figures(directory: str) -> dict[str, int]:
    paths = [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]
    found = {"outputs": sum(os.path.basename(path).startswith("exchange-") for path in paths)}
    found["bytes"] = found["descriptors"] = found["resident"] = 0
    for path in paths:
        if os.path.exists(path):
            found["bytes"] += os.path.getsize(path)
    for process in processes(os.getpid()):
        try:
            found["descriptors"] += len(os.listdir(f"/proc/{process}/fd"))
            found["resident"] += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096
        except OSError:
            continue
    return found


def main(directory: str, jobs: str, seconds: str) -> None:
    spark: Any = sortshuffle.session(
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", directory)
        .config("spark.sql.shuffle.partitions", "2")
        # a janitor that starts late, on a busy machine, has not seen the first files while Spark knew them
        .config("spark.sortshuffle.grace", GRACE)
    )
    spark.sparkContext.setLogLevel("OFF")
    times = [job(spark, number) for number in range(WARM)]
    warm = figures(directory)
    times += [job(spark, number) for number in range(WARM, int(jobs))]
    ran = figures(directory)

    deadline = time.monotonic() + float(seconds)
    while (left := figures(directory))["outputs"] > UNSEEN and time.monotonic() < deadline:
        gc.collect()
        spark.sparkContext._jvm.System.gc()
        threading.Event().wait(1.0)
    print(json.dumps({"warm": warm, "ran": ran, "left": left, "unseen": UNSEEN, "times": times}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
