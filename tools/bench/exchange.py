"""The exchange of frames for cases that run it in this process: Parquet -> 64 partitions -> Python sums."""

from __future__ import annotations

import os
import sys
from typing import Any

from harness import JOBS
from pyspark.sql import SparkSession
from systems.contestants.consumers import SUMS, totals

import sortshuffle
from sortshuffle.spark.session.requirements import address_this_host

PARTITIONS = 64
ROWS_PER_FILE = 1_250_000
ROW_BYTES = 68


def session(master: str, **settings: str) -> SparkSession:
    os.environ["PYTHONPATH"] = JOBS
    # frames alone: their control rows go through Spark's own shuffle in any case
    builder = SparkSession.builder.master(master).config("spark.sortshuffle.manager", "off")
    builder = (
        sortshuffle.configure(builder)
        .appName("sortshuffle bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    address_this_host(master)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def ours(spark: SparkSession, files: list[str]) -> sortshuffle.ShuffleFrame:
    return sortshuffle.read(spark).parquet(*files).repartition(PARTITIONS, "k").mapInArrow(totals, SUMS)


def checked(sums: list[Any], rows: int) -> tuple[int, int]:
    counted = sum(row.rows for row in sums)
    if counted != rows or sum(row.letters for row in sums) != 40 * rows:
        sys.exit(f"the exchange lost rows: {counted} of {rows}")
    return rows * ROW_BYTES, rows
