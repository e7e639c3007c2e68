"""The cases in PySpark. In a session of `sortshuffle.session`, with its readers of
frames, and in plain PySpark they are the same code."""

from __future__ import annotations

import glob
from typing import Any

from consumers import SPREAD, SUMS, number, spread, sums_of, totals
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def exchange(spark: SparkSession, files: list[str], partitions: int) -> Any:
    rows = spark.read.parquet(*files).repartition(partitions, "k")
    return sums_of(rows.mapInArrow(totals, SUMS).collect())


def sort(spark: SparkSession, files: list[str], output: str) -> Any:
    spark.read.parquet(*files).sort("key").write.parquet(f"{output}/sorted")
    return sorted(glob.glob(f"{output}/sorted/*.parquet"))


def groups(spark: SparkSession, files: list[str]) -> Any:
    found = spark.read.parquet(*files).groupBy("k").applyInPandas(spread, SPREAD)
    (row,) = found.agg(sf.count("k"), sf.sum("spread")).collect()
    return [row[0], number(row[1])]


def aggregate(spark: SparkSession, files: list[str], key: str) -> Any:
    sums = spark.read.parquet(*files).groupBy(key).agg(sf.count("v").alias("n"), sf.sum("v").alias("total"))
    (row,) = sums.agg(sf.count("n"), sf.sum("n"), sf.sum("total")).collect()
    return [row[0], row[1], number(row[2])]


def join(spark: SparkSession, files: list[str], others: list[str]) -> Any:
    joined = spark.read.parquet(*files).join(spark.read.parquet(*others), "id")
    (row,) = joined.agg(sf.count("id"), sf.sum("v"), sf.sum("w")).collect()
    return [row[0], number(row[1]), number(row[2])]


CASES = {"exchange": exchange, "sort": sort, "groups": groups, "aggregate": aggregate, "join": join}
