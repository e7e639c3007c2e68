"""The twin of a frame: an empty DataFrame with the frame's columns, of which each is made anew."""

from __future__ import annotations

import pytest
from java_calls import java_calls
from oracle import EDGES
from pyspark.sql import SparkSession
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type

from sortshuffle.spark.operators.twin import empty_twin
from sortshuffle.spark.plan.chain import FrameContext

EVERY_TYPE = st.StructType(
    [st.StructField(name, from_arrow_type(kind)) for name, (kind, _) in EDGES.items()]
    + [
        st.StructField("required", st.LongType(), False, {"comment": "as it was"}),
        st.StructField(
            "inside", st.ArrayType(st.StructType([st.StructField("p", st.LongType(), False)]), False)
        ),
        st.StructField("map", st.MapType(st.StringType(), st.LongType(), False), False),
        st.StructField("void", st.NullType()),
        st.StructField("a.b `c`", st.DayTimeIntervalType(1, 2)),
    ]
)


@pytest.mark.parametrize("schema", [EVERY_TYPE, st.StructType([])], ids=["every type", "no columns"])
def test_a_twin_is_what_spark_makes_of_no_rows(spark: SparkSession, schema: st.StructType) -> None:
    empty = empty_twin(FrameContext.of(spark), schema)
    assert empty.schema == spark.createDataFrame([], schema).schema == schema
    assert empty.sparkSession is spark
    assert empty.count() == 0


def test_twins_of_one_schema_have_different_columns(spark: SparkSession) -> None:
    context, schema = FrameContext.of(spark), st.StructType([st.StructField("k", st.LongType())])
    one, other = empty_twin(context, schema), empty_twin(context, schema)
    condition = one.join(other, one["k"] == other["k"])._jdf.queryExecution().analyzed()  # type: ignore[operator]
    left, right = (condition.condition().get().children().apply(at).exprId().id() for at in (0, 1))
    assert left != right


def test_a_twin_takes_four_calls(spark: SparkSession) -> None:
    context, schema = FrameContext.of(spark), EVERY_TYPE
    with java_calls(spark) as calls:
        empty_twin(context, schema)
    assert len(calls) == 4
