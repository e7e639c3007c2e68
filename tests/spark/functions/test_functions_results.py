"""What functions return: adaptors accept what PySpark accepts, give the same, and refuse what it refuses."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from function_cases import (
    BY_POSITION,
    COERCED,
    CONF,
    FRAMES,
    ITERATORS,
    OLD,
    STRICT,
    UNSAFE,
    ZERO,
    assert_same,
    batch,
    by_spark,
    by_us,
    in_worker,
    input_batches,
    printed_rows,
    returning,
    settings,
    skip_if_otherwise,
    text,
    yielding,
)
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from sortshuffle.errors import SchemaMismatchError
from sortshuffle.spark.functions.maps import MapInPandas

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])


ARROW, PANDAS = "mapInArrow", "mapInPandas"  # functions of all rows, in batches or in frames
TABLES, GROUPS = "applyInArrow", "applyInPandas"  # functions of a group, which is a table or a frame


@pytest.mark.parametrize("name", FRAMES)
def test_all_types_come_back_through_arrow(frames: dict[str, DataFrame], name: str) -> None:
    df = frames[name]
    assert_same(df, ARROW, lambda batches: batches, df.schema)


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("method", [PANDAS, GROUPS])
def test_all_types_come_back_through_pandas(frames: dict[str, DataFrame], method: str, name: str) -> None:
    df = frames[name]
    assert_same(df, method, lambda same: same, df.schema)


def test_all_types_come_back_through_groups_of_arrow(frames: dict[str, DataFrame]) -> None:
    df = frames["everything"]
    ours = by_us(df, TABLES, lambda table: table, df.schema, ["g"])
    # PySpark refuses timestamps that carry the session's zone, the very ones that it gave to the function
    with pytest.raises(PySparkException, match="MISMATCH"):
        by_spark(df, TABLES, lambda table: table, df.schema, ["g"])
    assert sorted(ours) == sorted(printed_rows(df))


NO_ZONE = pa.array([ZERO], pa.timestamp("us"))


def giving(**columns: Any) -> Callable[[Any], pa.Table]:
    return returning(pa.table(columns))


REQUIRED = st.StructType(
    [
        st.StructField("a", st.ArrayType(st.LongType(), containsNull=False), nullable=False),
        st.StructField("x", st.StructType([st.StructField("y", st.LongType(), nullable=False)])),
    ]
)

FITTING: dict[str, tuple[str, Any, Any]] = {
    "required elements of batches": (ARROW, yielding(batch(a=[[1, 2]], x=[{"y": 3}])), REQUIRED),
    "required elements of frames": (
        PANDAS,
        yielding(pd.DataFrame({"a": [[1, 2]], "x": [{"y": 3}]})),
        REQUIRED,
    ),
    "columns by position": (ARROW, yielding(batch(b=[1], a=["x"])), "a long, b string"),
    "further columns left out": (ARROW, yielding(batch(a=[1], b=[2])), "a long"),
    "only null": (ARROW, yielding(batch(a=pa.nulls(1))), "a long"),
    "large text": (ARROW, yielding(batch(a=pa.array(["x"], pa.large_string()))), "a string"),
    "text view": (ARROW, yielding(batch(a=pa.array(["x"], pa.string_view()))), "a string"),
    "another zone": (
        ARROW,
        yielding(batch(a=pa.array([ZERO], pa.timestamp("us", "Asia/Tokyo")))),
        "a timestamp",
    ),
    "no zone for an instant": (ARROW, yielding(batch(a=NO_ZONE)), "a timestamp"),
    "an instant for no zone": (
        ARROW,
        yielding(batch(a=pa.array([ZERO], pa.timestamp("us", "UTC")))),
        "a timestamp_ntz",
    ),
    "struct fields by position": (ARROW, yielding(batch(a=[{"q": 1, "p": 2}])), "a struct<p:long,q:long>"),
    "another precision": (ARROW, yielding(batch(a=[Decimal("1.2")])), "a decimal(10,1)"),
    "several batches": (ARROW, yielding(batch(a=[1]), batch(a=[2]).slice(1), batch(a=[2, 3])), "a long"),
    "a list of batches": (ARROW, returning([batch(a=[1]), batch(a=[2])]), "a long"),
    "frames by name": (PANDAS, yielding(pd.DataFrame({"b": ["x"], "a": [1]})), "a long, b string"),
    "frames by position": (PANDAS, yielding(pd.DataFrame([[1, "x"]])), "a long, b string"),
    "frames' further columns": (PANDAS, yielding(pd.DataFrame({"a": [1], "b": [2]})), "a long"),
    "frames without columns": (PANDAS, yielding(pd.DataFrame(index=[5, 6])), "a long, b string"),
    "empty frames": (PANDAS, yielding(pd.DataFrame(), pd.DataFrame({"a": [1]})), "a long"),
    "a list of frames": (PANDAS, returning([pd.DataFrame({"a": [1]})]), "a long"),
    "text that is a number": (PANDAS, yielding(pd.DataFrame({"a": ["1"]})), "a long"),
    "categories": (PANDAS, yielding(pd.DataFrame({"a": pd.Categorical(["x", None])})), "a string"),
    "nullable integers": (PANDAS, yielding(pd.DataFrame({"a": pd.array([1, None], "Int64")})), "a long"),
    "floats with NaN for integers": (PANDAS, yielding(pd.DataFrame({"a": [1.0, None]})), "a long"),
    "timestamps with and without zone": (
        PANDAS,
        yielding(
            pd.DataFrame(
                {
                    "a": pd.to_datetime(["2024-11-03 01:30:00", None]),
                    "b": pd.to_datetime([ZERO] * 2, utc=True),
                }
            )
        ),
        "a timestamp, b timestamp",
    ),
    "nested values": (
        PANDAS,
        yielding(pd.DataFrame({"a": [[{"p": 1}, None]], "m": [{"k": ZERO}], "x": [(1, "y")]})),
        "a array<struct<p:int>>, m map<string,timestamp>, x struct<p:int,q:string>",
    ),
    "tables by name": (TABLES, returning(pa.table({"b": ["x"], "a": [1]})), "a long, b string"),
    "an empty table": (
        TABLES,
        lambda t: pa.table({"a": pa.array([1] if t["k"][0].as_py() == 1 else [], pa.int64())}),
        "a long",
    ),
    "a table without columns": (
        TABLES,
        lambda t: pa.table({"a": [1]}) if t["k"][0].as_py() == 1 else pa.table({}),
        "a long",
    ),
    "chunked tables": (TABLES, lambda t: pa.concat_tables([t, t]).select(["k", "s"]), "s string, k int"),
    "group frames by name": (GROUPS, returning(pd.DataFrame({"b": ["x"], "a": [1]})), "a long, b string"),
    "group frames by position": (GROUPS, returning(pd.DataFrame([[1, "x"]])), "a long, b string"),
    "group frames without columns": (GROUPS, returning(pd.DataFrame(index=[5, 6])), "a long"),
    "some empty frames": (
        GROUPS,
        lambda f: pd.DataFrame({"a": [1]}) if f["k"][0] == 1 else pd.DataFrame(),
        "a long",
    ),
    "group frames with twins": (GROUPS, lambda f: pd.concat([f[["k"]], f[["k"]]], axis=1), "k int"),
    "two arguments by default value": (GROUPS, lambda key, frame=None: frame[["k"]], "k int"),
    "a partial function": (TABLES, functools.partial(lambda x, t: t.select(["k"]), 3), "k int"),
    "a keyword-only argument": (TABLES, lambda t, *, x=1: t.select(["k"]), "k int"),
}


@pytest.mark.parametrize("case", FITTING)
def test_what_pyspark_accepts_comes_out_the_same(small: DataFrame, case: str) -> None:
    skip_if_otherwise(case)
    method, function, schema = FITTING[case]
    assert_same(small, method, function, schema)


def test_an_empty_batch_may_be_of_any_type(small: DataFrame) -> None:
    function = yielding(batch(a=["x"]).slice(1))
    assert by_spark(small, ARROW, function, "a long", ["k"]) == []
    assert by_us(small, ARROW, function, "a long", ["k"]) == []


@pytest.mark.skipif(OLD, reason="earlier releases lose the rows")
def test_frames_for_a_schema_without_columns_are_counted(small: DataFrame) -> None:
    assert small.mapInPandas(lambda frames: frames, "").count() == 3
    results = in_worker(MapInPandas.of(lambda frames: frames, "", CONF))(iter(input_batches(small)))
    assert [(part.num_rows, part.num_columns) for part in results] == [(3, 0)]


NOT_NULL = st.StructType([st.StructField("a", st.LongType(), nullable=False)])
NEVER_NULL = pa.schema([pa.field("a", pa.int64(), nullable=False)])
ELEMENTS = st.StructType([st.StructField("a", st.ArrayType(st.LongType(), containsNull=False))])

# what each must say of itself
REFUSED: dict[str, tuple[str, Any, Any, str]] = {
    "long for int": (ARROW, yielding(batch(a=[1])), "a int", r"column 'a' \(expected int32, actual int64\)"),
    "int for long": (ARROW, yielding(batch(a=pa.array([1], pa.int32()))), "a long", "int64, actual int32"),
    "float for double": (ARROW, yielding(batch(a=pa.array([1], pa.float32()))), "a double", "actual float"),
    "bytes for text": (ARROW, yielding(batch(a=[b"x"])), "a string", "actual binary"),
    "too few columns": (ARROW, yielding(batch(a=[1])), "a long, b long", "Expected: 2 Actual: 1"),
    "too few in an empty batch": (ARROW, yielding(batch(a=[1]).slice(1)), "a long, b long", "Expected: 2"),
    "null for not null": (
        ARROW,
        yielding(batch(a=[1, None])),
        NOT_NULL,
        "'a' is declared NOT NULL.* is null in 1 of 2 rows",
    ),
    "a table for a batch": (ARROW, yielding(pa.table({"a": [1]})), "a long", "pyarrow.RecordBatch.*Table"),
    "none for a batch": (ARROW, yielding(None), "a long", "iterator of NoneType"),
    "none for an iterator": (
        ARROW,
        returning(None),
        "a long",
        "iterator of pyarrow.RecordBatch, but is NoneType.",
    ),
    "a number for an iterator": (ARROW, returning(5), "a long", "but is int."),
    "a frame for frames": (PANDAS, returning(pd.DataFrame({"a": [1]})), "a long", "iterator of str"),
    "a column for a frame": (PANDAS, yielding(pd.Series([1])), "a long", "iterator of Series"),
    "a missing column": (PANDAS, yielding(text(1)), "a long, b long", "Missing: b"),
    "an unexpected column": (PANDAS, yielding(text(1)), "b long", "Missing: b. Unexpected: a"),
    "too few by position": (PANDAS, yielding(pd.DataFrame([[1]])), "a long, b long", "Expected: 2 Actual: 1"),
    "text for a number": (PANDAS, yielding(text("x")), "a long", "'a'.*int64"),
    "a number for text": (PANDAS, yielding(text(1)), "a string", "'a'.*string"),
    "fractions for integers": (PANDAS, yielding(text(1.5)), "a int", "'a'.*int32"),
    "overflow": (PANDAS, yielding(text(2**40)), "a int", "'a'.*int32"),
    "null for not null in a frame": (PANDAS, yielding(text(None)), NOT_NULL, "'a' is declared NOT NULL"),
    "no dict for a map": (PANDAS, yielding(text(1)), "a map<string,int>", "no attribute 'items'"),
    "a missing column in a table": (TABLES, giving(a=[1]), "a long, b long", "Missing: b"),
    "an unexpected one in a table": (TABLES, lambda t: t, "k int", "Unexpected: s, ts, v"),
    "int for long in a table": (TABLES, lambda t: t.select(["k"]), "k long", "int64, actual int32"),
    "only null in a table": (TABLES, giving(a=pa.nulls(1)), "a long", "actual null"),
    "no zone in a table": (TABLES, giving(a=NO_ZONE), "a timestamp", "actual timestamp"),
    "another precision in a table": (TABLES, giving(a=[Decimal("1.2")]), "a decimal(10,1)", "actual decimal"),
    "other struct names in a table": (TABLES, giving(a=[{"p": 1}]), "a struct<x:long>", "actual struct"),
    "another type in an empty table": (TABLES, giving(a=pa.array([], "string")), "a long", "actual string"),
    "rows without columns": (TABLES, lambda t: t.select([]), "a long", "Missing: a"),
    "twins in a table": (
        TABLES,
        lambda t: pa.Table.from_arrays([t["k"]] * 2, ["k", "k"]),
        "k int",
        "columns are named k",
    ),
    "a batch for a table": (TABLES, lambda t: t.to_batches()[0], "k int", "pyarrow.Table.*RecordBatch"),
    "none for a table": (TABLES, returning(None), "k int", "NoneType"),
    "null for not null in a table": (TABLES, giving(a=pa.array([None], pa.int64())), NOT_NULL, "NOT NULL"),
    "a missing column in a group": (GROUPS, returning(text(1)), "a long, b long", "Missing: b"),
    "an unexpected one in a group": (GROUPS, lambda f: f, "k int", "Unexpected: s, ts, v"),
    "another case in a group": (GROUPS, returning(text(1)), "A long", "Missing: A. Unexpected: a"),
    "too many by position": (GROUPS, returning(pd.DataFrame([[1, 2]])), "a long", "Expected: 1 Actual: 2"),
    "wrong names in an empty frame": (GROUPS, returning(pd.DataFrame({"z": []})), "a long", "Unexpected: z"),
    "a column for a group's frame": (GROUPS, lambda f: f["k"], "k int", "pandas.DataFrame.*Series"),
    "an iterator for a group's frame": (GROUPS, lambda f: iter([f]), "k int", "list_iterator"),
    "text for a number in a group": (GROUPS, returning(text("x")), "a long", "'a'.*int64"),
}


# Spark loses a worker with each refusal, which takes seconds. So it is asked for these cases only, unless
# SORTSHUFFLE_TEST_EXAMPLES wants a longer look.
ASKED = {"long for int", "too few columns", "null for not null", "a table for a batch"}
ASKED |= {"none for an iterator", "a column for a frame", "a missing column", "too few by position"}
ASKED |= {"text for a number", "no dict for a map", "a missing column in a table"}
ASKED |= {"int for long in a table", "twins in a table", "another type in an empty table"}
ASKED |= {"none for a table", "wrong names in an empty frame", "too many by position"}
ASKED |= {"a column for a group's frame", "swapped columns", "mapped frames' names"}
ASKED |= {"integers for decimals", "an empty batch", "nullable", "a list"}


def asked(df: DataFrame, case: str, method: str, function: Any, schema: Any) -> None:
    if case in ASKED or "SORTSHUFFLE_TEST_EXAMPLES" in os.environ:
        with pytest.raises((PySparkException, Py4JError)):  # the latter out of the JVM
            by_spark(df, method, function, schema, ["k"])


@pytest.mark.parametrize("case", REFUSED)
def test_what_pyspark_refuses_is_refused_with_the_functions_name(small: DataFrame, case: str) -> None:
    method, function, schema, says = REFUSED[case]
    asked(small, case, method, function, schema)
    with pytest.raises(SchemaMismatchError, match=rf"(?s){method}\({function.__name__}\).*{says}"):
        by_us(small, method, function, schema, ["k"])


SET_AND_FITTING: dict[str, tuple[dict[str, str], str, Any, str]] = {
    "tables by position": (BY_POSITION, TABLES, lambda t: t.select(["k", "s"]), "x int, y string"),
    "frames by position": (BY_POSITION, GROUPS, lambda f: f[["k", "s"]], "x int, y string"),
    "mapped frames by position": (
        BY_POSITION,
        PANDAS,
        yielding(pd.DataFrame({"b": [1], "a": [2]})),
        "a long, b long",
    ),
    "fractions cut": (UNSAFE, PANDAS, yielding(text(1.5)), "a int"),
    "overflow wrapped": (UNSAFE, GROUPS, returning(text(2**40 + 1)), "a int"),
    "integers for decimals": (COERCED, PANDAS, yielding(text(7)), "a decimal(3,1)"),
    "never null": (
        STRICT,
        ARROW,
        yielding(pa.RecordBatch.from_arrays([pa.array([1])], schema=NEVER_NULL)),
        "a long",
    ),
    "the very schema": (STRICT, ARROW, yielding(batch(a=pa.array(["x"], pa.large_string()))), "a string"),
    "an iterator": (ITERATORS, ARROW, returning(iter([batch(a=[1])])), "a long"),
}


@pytest.mark.parametrize("case", SET_AND_FITTING)
def test_settings_change_what_is_accepted(spark: SparkSession, small: DataFrame, case: str) -> None:
    values, method, function, schema = SET_AND_FITTING[case]
    with settings(spark, values):
        expected = sorted(by_spark(small, method, function, schema, ["k"]))
        if case == "an iterator":
            function = returning(iter([batch(a=[1])]))
        assert sorted(by_us(small, method, function, schema, ["k"])) == expected
        assert expected


SET_AND_REFUSED: dict[str, tuple[dict[str, str], str, Any, Any, str]] = {
    "swapped columns": (
        BY_POSITION,
        TABLES,
        lambda t: t.select(["s", "k"]),
        "k int, s string",
        "actual string",
    ),
    "too many in tables": (BY_POSITION, TABLES, lambda t: t, "k int", "Expected: 1 Actual: 4"),
    "too many in frames": (BY_POSITION, GROUPS, lambda f: f, "k int", "Expected: 1 Actual: 4"),
    "mapped frames' names": (BY_POSITION, PANDAS, yielding(text(1)), "b long", "Missing: b"),
    "integers for decimals": ({}, PANDAS, yielding(text(7)), "a decimal(3,1)", "'a'.*decimal"),
    "other names": (STRICT, ARROW, yielding(batch(x=[1])), "a long", "ARROW_TYPE_MISMATCH.*got x: int64"),
    "further columns": (STRICT, ARROW, yielding(batch(a=[1], b=[2])), "a long", "got a: int64, b: int64"),
    "another order": (STRICT, ARROW, yielding(batch(b=[1], a=[2])), "a long, b long", "got b: int64, a"),
    "another case": (STRICT, ARROW, yielding(batch(A=[1])), "a long", "got A: int64"),
    "an empty batch": (STRICT, ARROW, yielding(batch(x=[1]).slice(1)), "a long", "got x: int64"),
    "nullable": (STRICT, ARROW, yielding(batch(a=[1])), NOT_NULL, "LongType.., False.*got a: int64"),
    "nullable elements": (STRICT, ARROW, yielding(batch(a=[[1]])), ELEMENTS, "got a: list<"),
    "only null": (STRICT, ARROW, yielding(batch(a=pa.nulls(1))), "a long", "got a: null"),
    "no zone": (STRICT, ARROW, yielding(batch(a=NO_ZONE)), "a timestamp", "got a: timestamp"),
    "a list": (
        ITERATORS,
        ARROW,
        returning([batch(a=[1])]),
        "a long",
        "iterator of pyarrow.RecordBatch, but is list.",
    ),
}


@pytest.mark.parametrize("case", SET_AND_REFUSED)
def test_settings_change_what_is_refused(spark: SparkSession, small: DataFrame, case: str) -> None:
    skip_if_otherwise(case)
    values, method, function, schema, says = SET_AND_REFUSED[case]
    with settings(spark, values):
        asked(small, case, method, function, schema)
        with pytest.raises(SchemaMismatchError, match=f"(?s){says}"):
            by_us(small, method, function, schema, ["k"])
