"""What functions see: adaptors show them what PySpark shows them."""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from function_cases import (
    FRAMES,
    OLD,
    assert_same,
    by_us,
    group_arrow,
    group_pandas,
    keyed_arrow,
    keyed_pandas,
    map_arrow,
    map_pandas,
    settings,
)
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

import sortshuffle
from sortshuffle.spark.functions.conf import FunctionConf

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])


SEEN = {
    "mapInArrow": map_arrow,
    "mapInPandas": map_pandas,
    "applyInArrow": group_arrow,
    "applyInPandas": group_pandas,
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("method", SEEN)
def test_functions_see_what_pyspark_shows_them(frames: dict[str, DataFrame], method: str, name: str) -> None:
    assert_same(frames[name], method, SEEN[method], "seen string")


@pytest.mark.parametrize("method", ["mapInPandas", "applyInPandas"])
def test_extension_integers_are_shown_where_the_session_says_so(
    spark: SparkSession, frames: dict[str, DataFrame], method: str
) -> None:
    with settings(spark, {"spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true"}):
        assert FunctionConf.of(spark).extension_integers
        assert_same(frames["numbers"], method, SEEN[method], "seen string")


@pytest.mark.skipif(OLD, reason="earlier releases refuse the large types that they give to group functions")
@pytest.mark.parametrize("method", ["mapInArrow", "applyInArrow"])
def test_large_types_are_shown_where_the_session_says_so(
    spark: SparkSession, small: DataFrame, method: str
) -> None:
    def see(rows: Any) -> str:
        return f"{rows.schema.field('s').type} {rows.to_pylist()}"

    functions = {
        "mapInArrow": lambda it: (
            pa.RecordBatch.from_pydict({"seen": pa.array([see(b)], pa.large_string())}) for b in it
        ),
        "applyInArrow": lambda table: pa.table({"seen": pa.array([see(table)], pa.large_string())}),
    }
    with settings(spark, {"spark.sql.execution.arrow.useLargeVarTypes": "true"}):
        assert "large_string" in by_us(small, method, functions[method], "seen string", ["k"])[0]
        assert_same(small, method, functions[method], "seen string")


@pytest.mark.parametrize("method", ["mapInPandas", "applyInPandas"])
def test_frames_come_back_under_large_types(spark: SparkSession, small: DataFrame, method: str) -> None:
    with settings(spark, {"spark.sql.execution.arrow.useLargeVarTypes": "true"}):
        assert_same(small, method, lambda same: same, small.schema)


@pytest.mark.parametrize("function", [keyed_arrow, keyed_pandas])
def test_keys_are_those_of_pyspark(frames: dict[str, DataFrame], function: Any) -> None:
    df = frames["everything"]
    keys = [field.name for field in df.schema if not isinstance(field.dataType, st.MapType)]
    keys = [*reversed(keys)]  # keys come in the order of groupBy, not of the table
    assert_same(
        df, "applyInArrow" if function is keyed_arrow else "applyInPandas", function, "seen string", keys
    )


def test_rows_without_columns_are_counted(spark: SparkSession) -> None:
    """PySpark fails on them."""
    frame = sortshuffle.frame(spark.range(3, numPartitions=1).select())

    def shape(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"seen": [str(rows.shape)]})

    for seen in (
        frame.mapInPandas(lambda parts: map(shape, parts), "seen string"),
        frame.groupBy().applyInPandas(shape, "seen string"),
    ):
        assert [row.seen for row in seen.collect()] == ["(3, 0)"]
