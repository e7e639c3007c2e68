"""Data that the tests of users' functions share."""

from __future__ import annotations

import pytest
from function_cases import FRAMES, ZERO
from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="session")
def frames(spark: SparkSession) -> dict[str, DataFrame]:
    """The frames of `FRAMES`, each in one partition and in the order given."""
    made = {name: spark.createDataFrame(data, schema) for name, (schema, data) in FRAMES.items()}
    return {name: frame.coalesce(1).persist() for name, frame in made.items()}


@pytest.fixture(scope="session")
def small(spark: SparkSession) -> DataFrame:
    data = [(1, "a", 1.5, ZERO), (2, "b", None, None), (1, "c", 2.5, None)]
    return spark.createDataFrame(data, "k int, s string, v double, ts timestamp").coalesce(1).persist()
