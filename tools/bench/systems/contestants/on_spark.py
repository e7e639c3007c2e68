"""Plain PySpark, with Spark's own shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark_jobs import CASES
from spark_session import builder
from turn import Limits, take_part


@contextmanager
def start(limits: Limits) -> Iterator[SparkSession]:
    spark = builder(limits).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


if __name__ == "__main__":
    take_part(start, CASES, ("pyspark", "pyarrow", "pandas"))
