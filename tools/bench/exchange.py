"""`exchange`: Parquet -> Python -> 64 partitions -> Python sum, end to end in Spark.

Theirs: `spark.range(files).mapInArrow(scan).repartition(64, "k").mapInArrow(fn)`. Ours: the same functions
behind `sortshuffle.read(...)`. Both with Unix sockets between the JVM and its workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from harness import DATA, Side, compare, record
from pyspark.sql import DataFrame, SparkSession
from rows import SCHEMA, parquet_files

import sortshuffle
from sortshuffle.spark.parquet.scanning import BATCH_ROWS, READ_BUFFER

PARTITIONS = 64
ROWS_PER_FILE = 1_250_000
ROW_BYTES = 68
COLUMNS = "k long, v double, w double, s string"
SUMS = "rows long, v double, w double, letters long"


def total(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the consumer does: sums over its partition."""
    rows, v, w, letters = 0, 0.0, 0.0, 0
    for batch in batches:
        rows += batch.num_rows
        v += pc.sum(batch["v"]).as_py() or 0.0
        w += pc.sum(batch["w"]).as_py() or 0.0
        letters += pc.sum(pc.binary_length(batch["s"])).as_py() or 0
    sums = {"rows": rows, "v": v, "w": w, "letters": letters}
    yield pa.RecordBatch.from_pylist([sums])


def session(master: str = "local[2]", **settings: str) -> SparkSession:
    os.environ["PYTHONPATH"] = os.path.dirname(__file__)  # the workers import this module too
    builder = (
        # the other side of these cases is Spark's own shuffle
        sortshuffle.configure(SparkSession.builder.config("spark.sortshuffle.manager", "off"))
        .master(master)
        .appName("sortshuffle bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def plain(spark: SparkSession, files: list[str]) -> DataFrame:
    def scan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with pq.ParquetFile(files[number], pre_buffer=False, buffer_size=READ_BUFFER) as file:
                    yield from file.iter_batches(BATCH_ROWS, use_threads=False)

    numbers = spark.range(0, len(files), 1, len(files))
    return numbers.mapInArrow(scan, COLUMNS).repartition(PARTITIONS, "k").mapInArrow(total, SUMS)


def ours(spark: SparkSession, files: list[str]) -> sortshuffle.ShuffleFrame:
    return sortshuffle.read(spark).parquet(*files).repartition(PARTITIONS, "k").mapInArrow(total, SUMS)


def main(quick: bool) -> None:
    spark = session()
    try:
        for millions in (0.5,) if quick else (10, 40):
            _compare(spark, int(millions * 1e6), quick)
    finally:
        spark.stop()


def _compare(spark: SparkSession, rows: int, quick: bool) -> None:
    files = parquet_files(DATA / f"exchange-{rows}", rows, max(2, rows // ROWS_PER_FILE))
    steps: dict[str, float] = {}

    def run_ours() -> tuple[int, int]:
        frame = ours(spark, files)
        moved = checked(frame.collect(), rows)
        steps.clear()
        for stage in frame.stage_totals():
            for step, seconds in stage.metrics.seconds.items():
                steps[step] = steps.get(step, 0.0) + seconds
        return moved

    run_ours()  # both sides' workers are started and have imported what they need
    compare(
        "exchange",
        f"{rows / 1e6:g} M rows ({rows * ROW_BYTES / 1e9:.2f} GB), {len(files)} files,"
        f" {PARTITIONS} partitions, local[2], page cache warm",
        Side("sortshuffle", run_ours),
        Side("Spark's repartition", lambda: checked(plain(spark, files).collect(), rows)),
        rounds=1 if quick else 2,
        rows=rows,
        partitions=PARTITIONS,
        page_cache="warm",
    )
    shown = ", ".join(f"{step} {seconds:.2f}" for step, seconds in sorted(steps.items(), key=lambda s: -s[1]))
    print(f"  sortshuffle's task seconds by step: {shown}")
    record("exchange steps", rows=rows, seconds=steps)


def checked(sums: list, rows: int) -> tuple[int, int]:
    counted = sum(row.rows for row in sums)
    if counted != rows or sum(row.letters for row in sums) != 40 * rows:
        sys.exit(f"the exchange lost rows: {counted} of {rows}")
    return rows * ROW_BYTES, rows


assert SCHEMA.names == ["k", "v", "w", "s"]
