"""`DataFrameFacts`: schema, source and end of DataFrames, as PySpark and Spark's plans have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.operators import dataframe_facts
from sortshuffle.spark.operators.dataframe_facts import DataFrameFacts

KINDS = (
    'id long NOT NULL, `a.b` string, `quote"` decimal(20, 3), d date, t timestamp, n timestamp_ntz,'
    " a array<struct<x: int, y: map<string, binary>>>, v variant, c string COLLATE UNICODE, e void,"
    " i interval day to second"
)


def test_the_schema_is_pysparks(spark: SparkSession) -> None:
    metadata = {"comment": "ü \\ \n", "limit": 3}
    df = spark.createDataFrame([], KINDS).withColumn("m", sf.lit(1).alias("m", metadata=metadata))
    assert DataFrameFacts.of(df).schema == df.schema
    assert DataFrameFacts.of(df).schema["m"].metadata == metadata


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (lambda spark, _: spark.range(3), "Range"),
        (lambda spark, _: spark.range(3).union(spark.range(3)), ""),
        (lambda spark, _: spark.createDataFrame([(1,)], "id long"), "LogicalRDD"),
        (lambda spark, path: spark.read.parquet(path).filter("id > 1").select("id"), "HadoopFsRelation"),
        (lambda spark, path: spark.read.parquet(path).join(spark.range(3), "id"), ""),
    ],
)
def test_the_source_is_that_of_the_plan(
    spark: SparkSession, tmp_path: Path, make: object, source: str
) -> None:
    path = str(tmp_path / "rows")
    spark.range(3).write.parquet(path)
    assert callable(make)
    facts = DataFrameFacts.of(make(spark, path))
    assert facts.source.rsplit(".", 1)[-1] == source
    assert (facts.why_no_source, facts.reads_files) == ("", source == "HadoopFsRelation")


def test_a_stream_has_no_end(spark: SparkSession) -> None:
    assert DataFrameFacts.of(spark.readStream.format("rate").load()).is_streaming
    assert not DataFrameFacts.of(spark.range(3)).is_streaming


def test_without_a_jar_pyspark_is_asked(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> DataFrame:
        raise UnsupportedError("there is no jar")

    monkeypatch.setattr(dataframe_facts, "jar_method", refuse)
    df = spark.range(3)
    facts = DataFrameFacts.of(df)
    df.schema.add("other", "long")  # which is the user's
    schema = st.StructType([st.StructField("id", st.LongType(), nullable=False)])
    assert facts == DataFrameFacts(False, schema, "", "there is no jar")
