"""A session of `sortshuffle.session()` for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from spark.oracle import confs

import sortshuffle


# for each module, because `RDD.toDF` uses the session that was made last
@pytest.fixture(scope="module")
def job(spark: SparkSession) -> Iterator[SparkSession]:
    with confs(spark, {"spark.sql.adaptive.coalescePartitions.enabled": "true"}):  # as by default
        yield sortshuffle.session(spark)
