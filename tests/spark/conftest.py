"""A session of `sortshuffle.session()` for all tests here."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import sortshuffle


# for each module, because `RDD.toDF` uses the session that was made last
@pytest.fixture(scope="module")
def job(spark: SparkSession) -> SparkSession:
    return sortshuffle.session(spark)
