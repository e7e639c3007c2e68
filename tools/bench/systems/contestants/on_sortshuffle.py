"""This package, in plain PySpark jobs: only the line that makes the session is another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark_jobs import CASES
from spark_session import builder
from turn import Limits, take_part

import sortshuffle


@contextmanager
def start(limits: Limits) -> Iterator[SparkSession]:
    # "on" makes it an error if the manager cannot be used: Spark's own shuffle would be measured in its place
    spark = sortshuffle.session(builder(limits).config("spark.sortshuffle.manager", "on"))
    try:
        yield spark
    finally:
        spark.stop()


if __name__ == "__main__":
    take_part(start, CASES, ("sortshuffle", "pyspark", "pyarrow", "pandas"))
