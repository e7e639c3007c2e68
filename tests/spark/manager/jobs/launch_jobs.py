"""Tasks that begin at once while nobody knows yet where the engine is."""

from __future__ import annotations

from pathlib import Path

from fault_jobs import PATIENCE, wait_until
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from registry import job


@job
def wait_for_one_launch(spark: SparkSession, directory: str, *, tasks: int, go: str) -> str:
    """A job whose map tasks all ask for the engine while the launcher hangs, which may end as soon as they
    do: when ``go`` is there. The job's error."""
    errors = []

    def run() -> None:
        pairs = spark.sparkContext.parallelize(range(tasks), tasks).map(lambda number: (number, number))
        try:
            pairs.partitionBy(2).collect()
        except Exception as error:
            errors.append(str(error))

    thread = InheritableThread(target=run)
    thread.start()
    everybody = tasks + 1  # a thread of the driver starts the engine in advance
    wait_until(lambda: _asking(spark) == everybody, "all tasks ask for the engine")
    Path(go).touch()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    wait_until(lambda: _asking(spark) == 0, "nobody waits any more")
    return errors[0] if errors else ""


def _asking(spark: SparkSession) -> int:
    """How many threads of the driver's JVM start the engine, or wait for one that does."""
    traces = spark.sparkContext._jvm.java.lang.Thread.getAllStackTraces().values()
    return sum(any("org.sortshuffle.Engine.start(" in str(call) for call in trace) for trace in traces)
