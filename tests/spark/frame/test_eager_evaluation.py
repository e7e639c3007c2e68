"""Where an interpreter or a notebook shows a frame, it shows the rows of PySpark's eager evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

import sortshuffle
from sortshuffle.errors import SchemaMismatchError

SETTINGS = {"enabled": "true", "maxNumRows": "3", "truncate": "5"}


@pytest.fixture
def eager(spark: SparkSession) -> Iterator[SparkSession]:
    for name, value in SETTINGS.items():
        spark.conf.set(f"spark.sql.repl.eagerEval.{name}", value)
    yield spark
    for name in SETTINGS:
        spark.conf.unset(f"spark.sql.repl.eagerEval.{name}")


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 40, 1, 3).select("id", (col("id") * 1_000_000).cast("string").alias("<text>"))


def unchanged(frame: Any, schema: Any) -> Any:
    """The frame behind a function, which is pickled by value: workers do not find this module."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return frame.mapInArrow(same, schema)


@pytest.fixture(params=["spark", "python", "sorted"])
def frame(request: pytest.FixtureRequest, eager: SparkSession) -> Any:
    df = rows(eager)
    if request.param == "spark":
        return sortshuffle.session(eager).range(0, 40, 1, 3).select(*df.columns[:1], rows_text())
    frame = unchanged(sortshuffle.frame(df), df.schema)
    return frame.orderBy("id") if request.param == "sorted" else frame


def rows_text() -> Any:
    return (col("id") * 1_000_000).cast("string").alias("<text>")


def test_the_rows_are_those_of_pyspark(frame: Any, eager: SparkSession) -> None:
    plain = rows(eager)
    text, html = repr(plain), plain._repr_html_()
    assert repr(frame) == text
    assert frame._repr_html_() == html
    assert "only showing top 3 rows" in html
    assert "&lt;text&gt;" in html
    # a notebook asks for both, and PySpark then shows the rows once
    assert repr(frame) == repr(plain) == "DataFrame[id: bigint, <text>: string]"


def test_without_the_setting_nothing_runs(spark: SparkSession) -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ZeroDivisionError

    frame = sortshuffle.frame(rows(spark)).mapInArrow(fails, "id long")
    assert repr(frame) == "DataFrame[id: bigint]"
    assert frame._repr_html_() is None


def test_a_function_that_returns_other_columns_raises_this_packages_error(eager: SparkSession) -> None:
    frame = unchanged(sortshuffle.frame(rows(eager)), "id binary")
    with pytest.raises(SchemaMismatchError, match="id"):
        repr(frame)
    with pytest.raises(SchemaMismatchError, match="id"):
        frame._repr_html_()
