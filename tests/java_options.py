"""Options of the JVMs that tests start, and the archives of classes that these map.

    python tests/java_options.py        makes the archives that are missing, in a minute

A session of Spark loads and verifies thousands of classes, which is a third of what a short one costs. A JVM
with an archive maps them instead: 14 s became 10 s. An archive is for one class path, so there are two, one
for drivers that have the shuffle manager's jar in front. A JVM that an archive does not fit goes without, and
says nothing. `tools/test` makes them. Whoever runs pytest alone uses them if they are there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spark_home import DIRECTORY, ROOT, spark_home

JAR = ROOT / "sortshuffle" / "spark" / "manager" / "sortshuffle-manager.jar"
PATIENCE = 300  # seconds

# Every JVM of the tests lives for seconds or plans tiny jobs: the optimising compiler and the parallel
# collector cost more than they give. 23 tests of joins and lifetimes took 81 s with these and 112 s without.
# Without the optimising compiler a JVM reserves 48 MB for code instead of 240. A session that hundreds of
# tests share fills that: "Out of space in CodeCache for method handle intrinsic".
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"

JOB = """
import sys
from pyspark.sql import SparkSession, functions as F
import sortshuffle
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = sortshuffle.configure(builder).getOrCreate()
rows = spark.range(1000).withColumn("k", F.col("id") % 7).withColumn("t", F.col("id").cast("string"))
rows.groupBy("k").agg(F.sum("id"), F.max("t")).orderBy("k").toPandas()
rows.join(spark.createDataFrame([(1, "a")], "k long, name string"), "k").distinct().collect()
rows.repartition(3).mapInArrow(lambda batches: batches, rows.schema).write.parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).cache().count()
pairs = spark.sparkContext.parallelize(range(100), 4).map(lambda number: (number % 3, number))
pairs.reduceByKey(lambda one, other: one + other).sortByKey().collect()
sortshuffle.frame(rows).repartition(3, "k").toDF().count()
spark.stop()
gateway = spark.sparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def java_options(has_manager: bool = False) -> str:
    """Of a JVM, with the manager's jar in front of its class path or without."""
    archive = archive_path(has_manager)
    return (
        f"{SHORT_LIVED} -XX:SharedArchiveFile={archive} -Xlog:cds*=off" if archive.exists() else SHORT_LIVED
    )


def submit_arguments(manager: str, has_manager: bool = False) -> str:
    """What PYSPARK_SUBMIT_ARGS says in tests. ``manager``: for sessions that do not set it."""
    return _submit_arguments(manager, java_options(has_manager))


def _submit_arguments(manager: str, options: str) -> str:
    return (
        f"--conf spark.sortshuffle.manager={manager}"
        f" --conf 'spark.driver.extraJavaOptions={options}'"
        f" --conf 'spark.executor.extraJavaOptions={java_options()}' pyspark-shell"
    )


def archive_path(has_manager: bool) -> Path:
    """A name for what an archive must fit."""
    fits = [os.environ.get("JAVA_HOME", ""), str(spark_home())]
    if has_manager and JAR.exists():
        fits.append(str(JAR.stat().st_mtime_ns))
    name = hashlib.sha256("\0".join(fits).encode()).hexdigest()[:16]
    return DIRECTORY / f"{'manager' if has_manager else 'spark'}-{name}.jsa"


def make_archive(has_manager: bool) -> None:
    path = archive_path(has_manager)
    unfinished = path.with_suffix(".unfinished")
    for old in DIRECTORY.glob(f"{path.name.partition('-')[0]}-*"):
        old.unlink()
    options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={unfinished} -Xlog:cds*=off"
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": _submit_arguments("on" if has_manager else "off", options),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-c", JOB, f"{work}/rows"]
        done = subprocess.run(
            command, env=environment, cwd=work, capture_output=True, text=True, timeout=PATIENCE
        )
    if done.returncode or not unfinished.exists():
        raise SystemExit(f"no archive of classes could be made:\n{done.stderr[-3000:]}")
    unfinished.rename(path)


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    with open(DIRECTORY / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        to_make = [has_manager for has_manager in (False, True) if not archive_path(has_manager).exists()]
        with ThreadPoolExecutor() as pool:
            list(pool.map(make_archive, to_make))


if __name__ == "__main__":
    main()
