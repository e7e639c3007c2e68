"""Jobs with an external service, through both doors; an executor is killed between map stage and reduce.
Prints what happened as JSON.

    python adopt.py DIRECTORY

Executors count as hosts of their own, so what the killed one had finished is adopted by others, and read
through the service. The service listens everywhere: it is that of every host.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hosts import ONE_HOST_EACH
from lose_executor import mark, marks
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

import sortshuffle

ROWS, MAPS, REDUCES = 4000, 4, 3
SWEPT = 60.0  # seconds until the service has removed what the application left


def start_service(directory: str) -> tuple[subprocess.Popen[str], str]:
    """The process, and its port."""
    command = [sys.executable, "-m", "sortshuffle.cli.main", "serve", os.path.join(directory, "served")]
    command += ["--port", "0", "--http-port", "0", "--secret-file", os.path.join(directory, "secret")]
    command += ["--linger", "0s"]  # here Spark's own directories go with this process
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r":(\d+);", process.stdout.readline())
    assert found is not None
    return process, found[1]


def session(directory: str, port: str) -> Any:
    return (
        sortshuffle.configure(SparkSession.builder)
        .master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        # both executors are there before the first job, so that each runs tasks of it
        .config("spark.cores.max", "2")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .config("spark.local.dir", os.path.join(directory, "local"))
        .config(map=ONE_HOST_EACH)
        .config("spark.executorEnv.SORTSHUFFLE_TEST_OPENED", os.path.join(directory, "opened"))
        .config("spark.sortshuffle.dir", os.path.join(directory, "served"))
        .config("spark.sortshuffle.service", "external")
        .config("spark.sortshuffle.service.port", port)
        .config("spark.sortshuffle.service.secret.file", os.path.join(directory, "secret"))
        .getOrCreate()
    )


def main(directory: str) -> None:
    marked = os.path.join(directory, "marks")
    for name in ("marks", "served"):
        os.makedirs(os.path.join(directory, name))
    with open(os.open(os.path.join(directory, "secret"), os.O_CREAT | os.O_WRONLY, 0o600), "w") as secret:
        secret.write(secrets.token_hex(16))
    cloudpickle.register_pickle_by_value(sys.modules[mark.__module__])
    service, port = start_service(directory)
    spark = session(directory, port)
    spark.sparkContext.setLogLevel("OFF")

    def produce(batches):  # type: ignore[no-untyped-def]
        mark(marked, "map", TaskContext.get().partitionId())
        yield from batches

    def produce_pairs(split: int, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        mark(marked, "pairs", split)
        return ((number % 100, number) for number in numbers)

    frame = (
        sortshuffle.frame(spark.range(0, ROWS, 1, MAPS))
        .mapInArrow(produce, "id long")
        .repartition(REDUCES, "id")
    )
    numbers = spark.sparkContext.parallelize(range(ROWS), MAPS)
    pairs = sortshuffle.rdd(numbers).mapPartitionsWithIndex(produce_pairs).partitionBy(REDUCES)
    assert frame.count() == ROWS
    assert pairs.count() == ROWS
    victim = min(pid for _, pid in marks(marked, "map"))
    os.kill(victim, signal.SIGKILL)

    rows = sorted(row.id for row in frame.collect())
    values = sorted(value for _, value in pairs.collect())
    homes = os.path.join(directory, "served", "sortshuffle", spark.sparkContext.applicationId)
    found = {
        "rows": rows == list(range(ROWS)),
        "values": values == list(range(ROWS)),
        "victims": sorted({partition for partition, pid in marks(marked, "map") if pid == victim}),
        "runs": sorted(Counter(partition for partition, _ in marks(marked, "map")).values()),
        "pair_victims": sorted({partition for partition, pid in marks(marked, "pairs") if pid == victim}),
        "pair_runs": sorted(Counter(partition for partition, _ in marks(marked, "pairs")).values()),
        "victim_files": len(list(Path(homes).glob(f"*-{victim}-*/exchange-*.data"))),
        "others": others(directory),
    }
    for path in Path(homes).glob(f"*-{victim}-*/exchange-*"):
        path.unlink()
    found["rows_after_loss"] = sorted(row.id for row in frame.collect()) == list(range(ROWS))
    found["runs_after_loss"] = Counter(partition for partition, _ in marks(marked, "map"))
    spark.stop()
    until = time.monotonic() + SWEPT
    while os.path.exists(homes) and time.monotonic() < until:
        time.sleep(0.1)
    found["left"] = os.path.exists(homes)
    service.terminate()
    found["service"] = service.wait(30)
    print(json.dumps(found), flush=True)


def others(directory: str) -> list[list[str]]:
    """What was opened of another host's home by executors' workers."""
    opened = [line.split(" ", 1) for line in Path(directory, "opened").read_text().splitlines()]
    return [[host, path] for host, path in opened if f"/{host}-" not in path]


if __name__ == "__main__":
    main(*sys.argv[1:])
