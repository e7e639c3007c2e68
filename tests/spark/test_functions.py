"""Adaptors against plain PySpark: the same function over the same data sees and returns the same.

`Spark` is the oracle: what PySpark's own method gives for a function is compared with what the adaptor gives
in this process, as Arrow values of the wire schema.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.loose_version import LooseVersion
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

import sortshuffle
from sortshuffle.errors import (
    CorruptDataError,
    Place,
    SchemaMismatchError,
    UnsupportedError,
    UsageError,
)
from sortshuffle.spark.functions import (
    FunctionConf,
    GroupApplyInArrow,
    GroupApplyInPandas,
    MapInArrow,
    MapInPandas,
    user_errors,
)
from sortshuffle.spark.schema import conform, to_arrow

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

CONF = FunctionConf(timezone="America/New_York")
PACKAGE = os.path.dirname(sortshuffle.__file__)
OLD = LooseVersion(pyspark.__version__) < LooseVersion("4.3")
# where earlier releases are stricter or laxer than the rules of 4.3, which hold here for all
OTHERWISE_BEFORE_4_3 = {"text view", "group frames with twins", "too many in tables"}


# --- data -----------------------------------------------------------------------------------------------

SCHEMA = (
    "g int, bo boolean, by byte, sh short, i int, lo long, f float, d double, de decimal(10,2),"
    " dx decimal(38,18), st string, bi binary, da date, ts timestamp, nt timestamp_ntz,"
    " iv interval day to second"
)
NESTED = (
    "a array<int>, at array<timestamp>, an array<timestamp_ntz>, m map<string,int>, mt map<string,timestamp>,"
    " x struct<p:int,q:string>, y struct<t:timestamp,z:struct<d:date,e:decimal(10,2)>>,"
    " ax array<struct<p:int>>"
)
ZERO = dt.datetime(2024, 3, 10, 6, 59, 59, 123456)
PLAIN = (
    True,
    1,
    2,
    3,
    4,
    0.5,
    1.25,
    Decimal("1.20"),
    Decimal("0.5"),
    "text",
    b"\x00\xff",
    dt.date(2024, 2, 29),
)
PLAIN += (ZERO, ZERO, dt.timedelta(days=1, microseconds=1))
EDGES = (
    False,
    -128,
    -(2**15),
    -(2**31),
    -(2**63),
    -0.0,
    1e300,
    Decimal("-99999999.99"),
    Decimal(-1) / 8,
    "",
    b"",
)
EDGES += (dt.date(1582, 10, 15), dt.datetime(1883, 11, 18), dt.datetime(1700, 1, 1), dt.timedelta(-999))
INNER = (
    [1, None],
    [ZERO, None],
    [ZERO],
    {"k": 1, "": None},
    {"k": ZERO},
    (1, None),
    (ZERO, (None, Decimal("2.50"))),
)
INNER += ([(1,), None],)
EMPTY: tuple[Any, ...] = ([], [], [], {}, {}, (None, ""), (None, None), [])


def rows(with_nulls: bool, nested: bool) -> list[tuple[Any, ...]]:
    full = [(1, *PLAIN, *(INNER if nested else ())), (2, *EDGES, *(EMPTY if nested else ()))]
    nulls = (2, *(None,) * (len(full[0]) - 1))
    return [*full, nulls] if with_nulls else full


FRAMES = {
    "everything": (f"{SCHEMA}, {NESTED}", rows(with_nulls=True, nested=True)),
    "without nulls": (f"{SCHEMA}, {NESTED}", rows(with_nulls=False, nested=True)),
    "scalars": (SCHEMA, rows(with_nulls=True, nested=False)),
    # PySpark converts a frame without text, decimals and nested values by another path
    "numbers": (
        "g int, bo boolean, by byte, sh short, i int, lo long, f float, d double, bi binary, da date,"
        " ts timestamp",
        [
            (1, True, 1, 2, 3, 4, 0.5, 1.25, b"x", dt.date(2024, 1, 1), ZERO),
            (2, None, None, None, None, None, None, None, None, None, None),
        ],
    ),
}


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> dict[str, DataFrame]:
    """The frames of `FRAMES`, each in one partition and in the order given."""
    made = {name: spark.createDataFrame(data, schema) for name, (schema, data) in FRAMES.items()}
    return {name: frame.coalesce(1).persist() for name, frame in made.items()}


@pytest.fixture(scope="module")
def small(spark: SparkSession) -> DataFrame:
    data = [(1, "a", 1.5, ZERO), (2, "b", None, None), (1, "c", 2.5, None)]
    return spark.createDataFrame(data, "k int, s string, v double, ts timestamp").coalesce(1).persist()


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """The session with other settings for a while; skips the test where Spark is too old to know them."""
    try:
        before = {name: spark.conf.get(name) for name in values}
    except PySparkException as error:
        pytest.skip(f"Spark {pyspark.__version__} has no such setting: {error}")
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value or "")


# --- running a function both ways -----------------------------------------------------------------------

GROUPS = {"applyInArrow": GroupApplyInArrow, "applyInPandas": GroupApplyInPandas}
MAPS = {"mapInArrow": MapInArrow, "mapInPandas": MapInPandas}


def wire_batches(df: DataFrame) -> list[pa.RecordBatch]:
    wire = to_arrow(df.schema, CONF.timezone)
    return [part for batch in df.toArrow().to_batches() for part in conform(batch, wire, "input")]


@functools.cache
def input_batches(df: DataFrame) -> list[pa.RecordBatch]:
    """The batches of a frame that many tests use: one Spark job for all of them."""
    return wire_batches(df)


def group_tables(df: DataFrame, keys: list[str]) -> list[pa.Table]:
    """The groups in order of appearance. Keys are compared by how they print, nulls and NaN included."""
    table = pa.Table.from_batches(input_batches(df))
    printed = [repr(row) for row in table.select(keys).to_pylist()]
    return [
        table.take([position for position, other in enumerate(printed) if other == key])
        for key in dict.fromkeys(printed)
    ]


def by_spark(df: DataFrame, method: str, function: Any, schema: Any, keys: list[str]) -> list[str]:
    target = df.groupBy(*keys) if method in GROUPS else df
    return printed_rows(getattr(target, method)(function, schema))


def printed_rows(result: DataFrame) -> list[str]:
    return [repr(row) for batch in wire_batches(result) for row in batch.to_pylist()]


def by_us(df: DataFrame, method: str, function: Any, schema: Any, keys: list[str]) -> list[str]:
    conf = FunctionConf.of(df.sparkSession)
    if method in GROUPS:
        adaptor: Any = GROUPS[method].of(function, schema, conf, [df.columns.index(key) for key in keys])
        given: Any = group_tables(df, keys)
    else:
        adaptor, given = MAPS[method].of(function, schema, conf), input_batches(df)
    adaptor = cloudpickle.loads(cloudpickle.dumps(adaptor))
    result = list(adaptor(iter(given)))
    assert all(batch.schema.equals(adaptor.declared.wire, check_metadata=True) for batch in result)
    for batch in result:
        batch.validate(full=True)
    return [repr(row) for batch in result for row in batch.to_pylist()]


def assert_same(
    df: DataFrame, method: str, function: Any, schema: Any, keys: list[str] | None = None
) -> None:
    keys = keys or [df.columns[0]]
    expected = sorted(by_spark(df, method, function, schema, keys))
    assert sorted(by_us(df, method, function, schema, keys)) == expected
    assert expected


def skip_if_otherwise(case: str) -> None:
    if OLD and case in OTHERWISE_BEFORE_4_3:
        pytest.skip(f"Spark {pyspark.__version__} decides otherwise")


# --- what functions see ---------------------------------------------------------------------------------


def described(values: Any) -> list[str]:
    return [f"{type(value).__module__}.{type(value).__name__} {value!r}" for value in values]


def arrow_seen(rows: pa.RecordBatch | pa.Table) -> str:
    columns = [f"{field.name} {field.type}" for field in nullable(rows.schema)]
    return f"{type(rows).__name__} {columns} {rows.to_pylist()}"


def nullable(schema: pa.Schema) -> pa.Schema:
    """Whether fields are nullable is the one thing that functions see otherwise than in Spark."""
    return to_arrow(st.StructType.fromJson(spark_json(schema)), CONF.timezone)


def spark_json(schema: pa.Schema) -> dict[str, Any]:
    from pyspark.sql.pandas.types import from_arrow_schema

    return dict(from_arrow_schema(schema).jsonValue())


def pandas_seen(frame: pd.DataFrame) -> str:
    columns = [f"{name} {frame[name].dtype} {described(frame[name])}" for name in frame.columns]
    return f"{type(frame).__name__} {frame.index!r} {frame.columns!r} {columns}"


def map_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"seen": [arrow_seen(batch)]})


def map_pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"seen": [pandas_seen(frame)]})


def group_arrow(table: pa.Table) -> pa.Table:
    return pa.table({"seen": [arrow_seen(table)]})


def group_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"seen": [pandas_seen(frame)]})


def keyed_arrow(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
    return pa.table(
        {"seen": [f"{type(key)} {described(key)} {[part.type for part in key]} {table.num_rows}"]}
    )


def keyed_pandas(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"seen": [f"{type(key)} {described(key)} {len(frame)}"]})


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


# --- what functions return ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FRAMES)
def test_all_types_come_back_through_arrow(frames: dict[str, DataFrame], name: str) -> None:
    df = frames[name]
    assert_same(df, "mapInArrow", lambda batches: batches, df.schema)


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("method", ["mapInPandas", "applyInPandas"])
def test_all_types_come_back_through_pandas(frames: dict[str, DataFrame], method: str, name: str) -> None:
    df = frames[name]
    assert_same(df, method, lambda same: same, df.schema)


def test_all_types_come_back_through_groups_of_arrow(frames: dict[str, DataFrame]) -> None:
    df = frames["everything"]
    ours = by_us(df, "applyInArrow", lambda table: table, df.schema, ["g"])
    # PySpark refuses timestamps that carry the session's zone, the very ones that it gave to the function
    with pytest.raises(PySparkException, match="MISMATCH"):
        by_spark(df, "applyInArrow", lambda table: table, df.schema, ["g"])
    assert sorted(ours) == sorted(printed_rows(df))


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def yielding(*results: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function that reads its input and yields these."""

    def function(given: Iterator[Any]) -> Iterator[Any]:
        for _ in given:
            pass
        yield from results

    return function


def returning(result: Any) -> Callable[[Any], Any]:
    """A function that returns the same whatever it is given."""

    def function(given: Any) -> Any:
        if isinstance(given, Iterator):
            list(given)
        return result

    return function


REQUIRED = st.StructType(
    [
        st.StructField("a", st.ArrayType(st.LongType(), containsNull=False), nullable=False),
        st.StructField("x", st.StructType([st.StructField("y", st.LongType(), nullable=False)])),
    ]
)

FITTING: dict[str, tuple[str, Any, Any]] = {
    "required elements of batches": ("mapInArrow", yielding(batch(a=[[1, 2]], x=[{"y": 3}])), REQUIRED),
    "required elements of frames": (
        "mapInPandas",
        yielding(pd.DataFrame({"a": [[1, 2]], "x": [{"y": 3}]})),
        REQUIRED,
    ),
    "columns by position": ("mapInArrow", yielding(batch(b=[1], a=["x"])), "a long, b string"),
    "further columns left out": ("mapInArrow", yielding(batch(a=[1], b=[2])), "a long"),
    "only null": ("mapInArrow", yielding(batch(a=pa.nulls(1))), "a long"),
    "large text": ("mapInArrow", yielding(batch(a=pa.array(["x"], pa.large_string()))), "a string"),
    "text view": ("mapInArrow", yielding(batch(a=pa.array(["x"], pa.string_view()))), "a string"),
    "another zone": (
        "mapInArrow",
        yielding(batch(a=pa.array([ZERO], pa.timestamp("us", "Asia/Tokyo")))),
        "a timestamp",
    ),
    "no zone for an instant": (
        "mapInArrow",
        yielding(batch(a=pa.array([ZERO], pa.timestamp("us")))),
        "a timestamp",
    ),
    "an instant for no zone": (
        "mapInArrow",
        yielding(batch(a=pa.array([ZERO], pa.timestamp("us", "UTC")))),
        "a timestamp_ntz",
    ),
    "struct fields by position": (
        "mapInArrow",
        yielding(batch(a=[{"q": 1, "p": 2}])),
        "a struct<p:long,q:long>",
    ),
    "another precision": ("mapInArrow", yielding(batch(a=[Decimal("1.2")])), "a decimal(10,1)"),
    "several batches": (
        "mapInArrow",
        yielding(batch(a=[1]), batch(a=[2]).slice(1), batch(a=[2, 3])),
        "a long",
    ),
    "a list of batches": ("mapInArrow", returning([batch(a=[1]), batch(a=[2])]), "a long"),
    "frames by name": ("mapInPandas", yielding(pd.DataFrame({"b": ["x"], "a": [1]})), "a long, b string"),
    "frames by position": ("mapInPandas", yielding(pd.DataFrame([[1, "x"]])), "a long, b string"),
    "frames' further columns": ("mapInPandas", yielding(pd.DataFrame({"a": [1], "b": [2]})), "a long"),
    "frames without columns": ("mapInPandas", yielding(pd.DataFrame(index=[5, 6])), "a long, b string"),
    "empty frames": ("mapInPandas", yielding(pd.DataFrame(), pd.DataFrame({"a": [1]})), "a long"),
    "a list of frames": ("mapInPandas", returning([pd.DataFrame({"a": [1]})]), "a long"),
    "text that is a number": ("mapInPandas", yielding(pd.DataFrame({"a": ["1"]})), "a long"),
    "categories": ("mapInPandas", yielding(pd.DataFrame({"a": pd.Categorical(["x", None])})), "a string"),
    "nullable integers": (
        "mapInPandas",
        yielding(pd.DataFrame({"a": pd.array([1, None], "Int64")})),
        "a long",
    ),
    "floats with NaN for integers": ("mapInPandas", yielding(pd.DataFrame({"a": [1.0, None]})), "a long"),
    "timestamps with and without zone": (
        "mapInPandas",
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
        "mapInPandas",
        yielding(pd.DataFrame({"a": [[{"p": 1}, None]], "m": [{"k": ZERO}], "x": [(1, "y")]})),
        "a array<struct<p:int>>, m map<string,timestamp>, x struct<p:int,q:string>",
    ),
    "tables by name": ("applyInArrow", returning(pa.table({"b": ["x"], "a": [1]})), "a long, b string"),
    "an empty table": (
        "applyInArrow",
        lambda t: pa.table({"a": pa.array([1] if t["k"][0].as_py() == 1 else [], pa.int64())}),
        "a long",
    ),
    "a table without columns": (
        "applyInArrow",
        lambda t: pa.table({"a": [1]}) if t["k"][0].as_py() == 1 else pa.table({}),
        "a long",
    ),
    "chunked tables": (
        "applyInArrow",
        lambda t: pa.concat_tables([t, t]).select(["k", "s"]),
        "s string, k int",
    ),
    "group frames by name": (
        "applyInPandas",
        returning(pd.DataFrame({"b": ["x"], "a": [1]})),
        "a long, b string",
    ),
    "group frames by position": ("applyInPandas", returning(pd.DataFrame([[1, "x"]])), "a long, b string"),
    "group frames without columns": ("applyInPandas", returning(pd.DataFrame(index=[5, 6])), "a long"),
    "some empty frames": (
        "applyInPandas",
        lambda f: pd.DataFrame({"a": [1]}) if f["k"][0] == 1 else pd.DataFrame(),
        "a long",
    ),
    "group frames with twins": (
        "applyInPandas",
        lambda f: pd.concat([f[["k"]], f[["k"]]], axis=1),
        "k int",
    ),
    "two arguments by default value": ("applyInPandas", lambda key, frame=None: frame[["k"]], "k int"),
    "a partial function": ("applyInArrow", functools.partial(lambda x, t: t.select(["k"]), 3), "k int"),
    "a keyword-only argument": ("applyInArrow", lambda t, *, x=1: t.select(["k"]), "k int"),
}


@pytest.mark.parametrize("case", FITTING)
def test_what_pyspark_accepts_comes_out_the_same(small: DataFrame, case: str) -> None:
    skip_if_otherwise(case)
    method, function, schema = FITTING[case]
    assert_same(small, method, function, schema)


def test_an_empty_batch_may_be_of_any_type(small: DataFrame) -> None:
    function = yielding(batch(a=["x"]).slice(1))
    assert by_spark(small, "mapInArrow", function, "a long", ["k"]) == []
    assert by_us(small, "mapInArrow", function, "a long", ["k"]) == []


@pytest.mark.skipif(OLD, reason="earlier releases lose the rows")
def test_frames_for_a_schema_without_columns_are_counted(small: DataFrame) -> None:
    assert small.mapInPandas(lambda frames: frames, "").count() == 3
    results = MapInPandas.of(lambda frames: frames, "", CONF)(iter(input_batches(small)))
    assert [(part.num_rows, part.num_columns) for part in results] == [(3, 0)]


def text(value: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": [value]})


NOT_NULL = st.StructType([st.StructField("a", st.LongType(), nullable=False)])

# what each must say of itself
REFUSED: dict[str, tuple[str, Any, Any, str]] = {
    "long for int": (
        "mapInArrow",
        yielding(batch(a=[1])),
        "a int",
        r"column 'a' \(expected int32, found int64\)",
    ),
    "int for long": (
        "mapInArrow",
        yielding(batch(a=pa.array([1], pa.int32()))),
        "a long",
        "int64, found int32",
    ),
    "float for double": (
        "mapInArrow",
        yielding(batch(a=pa.array([1], pa.float32()))),
        "a double",
        "found float",
    ),
    "bytes for text": ("mapInArrow", yielding(batch(a=[b"x"])), "a string", "found binary"),
    "too few columns": (
        "mapInArrow",
        yielding(batch(a=[1])),
        "a long, b long",
        "expected 2 columns .*found 1",
    ),
    "too few in an empty batch": (
        "mapInArrow",
        yielding(batch(a=[1]).slice(1)),
        "a long, b long",
        "expected 2",
    ),
    "null for not null": (
        "mapInArrow",
        yielding(batch(a=[1, None])),
        NOT_NULL,
        "'a' is declared NOT NULL.* 1 of its 2",
    ),
    "a table for a batch": (
        "mapInArrow",
        yielding(pa.table({"a": [1]})),
        "a long",
        "pyarrow.RecordBatch.*Table",
    ),
    "none for a batch": ("mapInArrow", yielding(None), "a long", "iterator of NoneType"),
    "none for an iterator": ("mapInArrow", returning(None), "a long", "returned NoneType"),
    "a number for an iterator": ("mapInArrow", returning(5), "a long", "returned int"),
    "a frame for frames": ("mapInPandas", returning(pd.DataFrame({"a": [1]})), "a long", "iterator of str"),
    "a column for a frame": ("mapInPandas", yielding(pd.Series([1])), "a long", "iterator of Series"),
    "a missing column": ("mapInPandas", yielding(text(1)), "a long, b long", "Missing: b"),
    "an unexpected column": ("mapInPandas", yielding(text(1)), "b long", "Missing: b. Unexpected: a"),
    "too few by position": (
        "mapInPandas",
        yielding(pd.DataFrame([[1]])),
        "a long, b long",
        "expected 2 .*found 1",
    ),
    "text for a number": ("mapInPandas", yielding(text("x")), "a long", "'a'.*int64"),
    "a number for text": ("mapInPandas", yielding(text(1)), "a string", "'a'.*string"),
    "fractions for integers": ("mapInPandas", yielding(text(1.5)), "a int", "'a'.*int32"),
    "overflow": ("mapInPandas", yielding(text(2**40)), "a int", "'a'.*int32"),
    "null for not null in a frame": (
        "mapInPandas",
        yielding(text(None)),
        NOT_NULL,
        "'a' is declared NOT NULL",
    ),
    "no dict for a map": ("mapInPandas", yielding(text(1)), "a map<string,int>", "no attribute 'items'"),
    "a missing column in a table": (
        "applyInArrow",
        returning(pa.table({"a": [1]})),
        "a long, b long",
        "Missing: b",
    ),
    "an unexpected one in a table": ("applyInArrow", lambda t: t, "k int", "Unexpected: s, ts, v"),
    "int for long in a table": ("applyInArrow", lambda t: t.select(["k"]), "k long", "int64, found int32"),
    "only null in a table": ("applyInArrow", returning(pa.table({"a": pa.nulls(1)})), "a long", "found null"),
    "no zone in a table": (
        "applyInArrow",
        returning(pa.table({"a": pa.array([ZERO], pa.timestamp("us"))})),
        "a timestamp",
        "found timestamp",
    ),
    "another precision in a table": (
        "applyInArrow",
        returning(pa.table({"a": [Decimal("1.2")]})),
        "a decimal(10,1)",
        "found decimal128",
    ),
    "other struct names in a table": (
        "applyInArrow",
        returning(pa.table({"a": [{"p": 1}]})),
        "a struct<x:long>",
        "found struct",
    ),
    "another type in an empty table": (
        "applyInArrow",
        returning(pa.table({"a": pa.array([], "string")})),
        "a long",
        "found string",
    ),
    "rows without columns": ("applyInArrow", lambda t: t.select([]), "a long", "Missing: a"),
    "twins in a table": (
        "applyInArrow",
        lambda t: pa.Table.from_arrays([t["k"]] * 2, ["k", "k"]),
        "k int",
        "columns named k",
    ),
    "a batch for a table": (
        "applyInArrow",
        lambda t: t.to_batches()[0],
        "k int",
        "pyarrow.Table.*RecordBatch",
    ),
    "none for a table": ("applyInArrow", returning(None), "k int", "NoneType"),
    "null for not null in a table": (
        "applyInArrow",
        returning(pa.table({"a": pa.array([None], pa.int64())})),
        NOT_NULL,
        "NOT NULL",
    ),
    "a missing column in a group": ("applyInPandas", returning(text(1)), "a long, b long", "Missing: b"),
    "an unexpected one in a group": ("applyInPandas", lambda f: f, "k int", "Unexpected: s, ts, v"),
    "another case in a group": ("applyInPandas", returning(text(1)), "A long", "Missing: A. Unexpected: a"),
    "too many by position": (
        "applyInPandas",
        returning(pd.DataFrame([[1, 2]])),
        "a long",
        "expected 1 .*found 2",
    ),
    "wrong names in an empty frame": (
        "applyInPandas",
        returning(pd.DataFrame({"z": []})),
        "a long",
        "Unexpected: z",
    ),
    "a column for a group's frame": ("applyInPandas", lambda f: f["k"], "k int", "pandas.DataFrame.*Series"),
    "an iterator for a group's frame": ("applyInPandas", lambda f: iter([f]), "k int", "list_iterator"),
    "text for a number in a group": ("applyInPandas", returning(text("x")), "a long", "'a'.*int64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_pyspark_refuses_is_refused_with_the_functions_name(small: DataFrame, case: str) -> None:
    method, function, schema, says = REFUSED[case]
    with pytest.raises((PySparkException, Py4JError)):  # the latter out of the JVM
        by_spark(small, method, function, schema, ["k"])
    with pytest.raises(SchemaMismatchError, match=rf"(?s){method}\({function.__name__}\).*{says}"):
        by_us(small, method, function, schema, ["k"])


BY_POSITION = {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false"}
UNSAFE = {"spark.sql.execution.pandas.convertToArrowArraySafely": "false"}
COERCED = {"spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "true"}
STRICT = {"spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true"}
ITERATORS = {"spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled": "false"}

SET_AND_FITTING: dict[str, tuple[dict[str, str], str, Any, str]] = {
    "tables by position": (BY_POSITION, "applyInArrow", lambda t: t.select(["k", "s"]), "x int, y string"),
    "frames by position": (BY_POSITION, "applyInPandas", lambda f: f[["k", "s"]], "x int, y string"),
    "mapped frames by position": (
        BY_POSITION,
        "mapInPandas",
        yielding(pd.DataFrame({"b": [1], "a": [2]})),
        "a long, b long",
    ),
    "fractions cut": (UNSAFE, "mapInPandas", yielding(text(1.5)), "a int"),
    "overflow wrapped": (UNSAFE, "applyInPandas", returning(text(2**40 + 1)), "a int"),
    "integers for decimals": (COERCED, "mapInPandas", yielding(text(7)), "a decimal(3,1)"),
    "the very schema": (
        STRICT,
        "mapInArrow",
        yielding(batch(a=pa.array(["x"], pa.large_string()))),
        "a string",
    ),
    "an iterator": (ITERATORS, "mapInArrow", returning(iter([batch(a=[1])])), "a long"),
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


SET_AND_REFUSED: dict[str, tuple[dict[str, str], str, Any, str, str]] = {
    "swapped columns": (
        BY_POSITION,
        "applyInArrow",
        lambda t: t.select(["s", "k"]),
        "k int, s string",
        "found string",
    ),
    "too many in tables": (BY_POSITION, "applyInArrow", lambda t: t, "k int", "expected 1 .*found 4"),
    "too many in frames": (BY_POSITION, "applyInPandas", lambda f: f, "k int", "expected 1 .*found 4"),
    "mapped frames' names": (BY_POSITION, "mapInPandas", yielding(text(1)), "b long", "Missing: b"),
    "integers for decimals": ({}, "mapInPandas", yielding(text(7)), "a decimal(3,1)", "'a'.*decimal"),
    "other names": (STRICT, "mapInArrow", yielding(batch(x=[1])), "a long", "Missing: a. Unexpected: x"),
    "further columns": (
        STRICT,
        "mapInArrow",
        yielding(batch(a=[1], b=[2])),
        "a long",
        "expected 1 .*found 2",
    ),
    "only null": (STRICT, "mapInArrow", yielding(batch(a=pa.nulls(1))), "a long", "found null"),
    "no zone": (
        STRICT,
        "mapInArrow",
        yielding(batch(a=pa.array([ZERO], pa.timestamp("us")))),
        "a timestamp",
        "found timestamp",
    ),
    "a list": (ITERATORS, "mapInArrow", returning([batch(a=[1])]), "a long", "iterator .*returned list"),
}


@pytest.mark.parametrize("case", SET_AND_REFUSED)
def test_settings_change_what_is_refused(spark: SparkSession, small: DataFrame, case: str) -> None:
    skip_if_otherwise(case)
    values, method, function, schema, says = SET_AND_REFUSED[case]
    with settings(spark, values):
        with pytest.raises((PySparkException, Py4JError)):
            by_spark(small, method, function, schema, ["k"])
        with pytest.raises(SchemaMismatchError, match=f"(?s){says}"):
            by_us(small, method, function, schema, ["k"])


# --- functions and schemas that are refused at the call --------------------------------------------------


class Grouper:
    def __call__(self, table: pa.Table) -> pa.Table:
        return table

    def keyed(self, key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return table


@pytest.mark.parametrize("adaptor", [GroupApplyInArrow, GroupApplyInPandas])
def test_group_functions_take_one_or_two_arguments(spark: SparkSession, adaptor: Any) -> None:
    for function in (lambda: 1, lambda a, b, c: a, lambda *a: a, lambda **a: a):
        with pytest.raises(UsageError, match=r"groupBy\(\)\.apply.* one argument .* or two \(key, "):
            adaptor.of(function, "k int", CONF, [0])
    assert not adaptor.of(Grouper(), "k int", CONF, [0]).takes_key
    assert adaptor.of(Grouper().keyed, "k int", CONF, [0]).takes_key
    assert adaptor.of(lambda a, b=1: a, "k int", CONF, [0]).takes_key


@pytest.mark.parametrize("adaptor", [MapInArrow, MapInPandas, GroupApplyInArrow, GroupApplyInPandas])
def test_bad_calls_are_refused_on_the_driver(spark: SparkSession, adaptor: Any) -> None:
    keys = () if adaptor in (MapInArrow, MapInPandas) else ([0],)
    with pytest.raises(UsageError, match="needs a function, not 3"):
        adaptor.of(3, "k int", CONF, *keys)
    with pytest.raises(UsageError, match="single type bigint"):
        adaptor.of(lambda x: x, "long", CONF, *keys)
    with pytest.raises(UnsupportedError, match="'k' is of type variant"):
        adaptor.of(lambda x: x, "k variant", CONF, *keys)


def test_functions_of_group_iterators_are_refused(spark: SparkSession) -> None:
    def arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    def keyed(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    def pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return frames

    for function in (arrow, keyed):
        with pytest.raises(UnsupportedError, match=r"not supported yet.*pyarrow\.Table per group"):
            GroupApplyInArrow.of(function, "k int", CONF, [0])
    with pytest.raises(UnsupportedError, match=r"not supported yet.*pandas\.DataFrame per group"):
        GroupApplyInPandas.of(pandas, "k int", CONF, [0])


def test_hints_that_mean_nothing_are_ignored(spark: SparkSession) -> None:
    def half_hinted(key: Any, table):  # type: ignore[no-untyped-def]
        return table

    assert GroupApplyInArrow.of(half_hinted, "k int", CONF, [0]).takes_key


def test_functions_are_named_in_errors(spark: SparkSession) -> None:
    partial = functools.partial(functools.partial(map_arrow))
    assert MapInArrow.of(map_arrow, "k int", CONF).declared.place == "mapInArrow(map_arrow)"
    assert MapInArrow.of(partial, "k int", CONF).declared.place == "mapInArrow(map_arrow)"
    place = GroupApplyInArrow.of(Grouper(), "k int", CONF, [0]).declared.place
    assert place == "groupBy().applyInArrow(Grouper)"


def test_settings_are_read_from_the_session(spark: SparkSession) -> None:
    assert FunctionConf.of(spark) == CONF
    with settings(spark, {**BY_POSITION, **UNSAFE, **COERCED, **STRICT, **ITERATORS}):
        assert FunctionConf.of(spark) == FunctionConf(
            timezone="America/New_York",
            assign_by_name=False,
            safe_cast=False,
            int_to_decimal=True,
            any_iterable=False,
            exact_schema=True,
        )


# --- what is kept alive, and what is closed --------------------------------------------------------------


def test_batches_pass_without_copying(spark: SparkSession) -> None:
    given = batch(k=[1, 2])
    (result,) = MapInArrow.of(lambda batches: batches, "k long", CONF)(iter([given]))
    assert result is given


def test_rows_without_columns_are_seen_and_kept(spark: SparkSession) -> None:
    given = batch(k=[1, 2]).select([])
    (result,) = MapInArrow.of(lambda batches: batches, "", CONF)(iter([given]))
    assert (result.num_rows, result.num_columns) == (2, 0)
    counted = MapInPandas.of(lambda frames: (text(len(frame)) for frame in frames), "a long", CONF)
    assert next(counted(iter([given]))).to_pylist() == [{"a": 2}]


class Log:
    """What happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def source(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        finally:
            self.events.append("source closed")

    def function(self, name: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
        def function(items: Iterator[Any]) -> Iterator[Any]:
            try:
                yield from items
            finally:
                self.events.append(f"{name} closed")

        return function


@pytest.mark.parametrize("adaptor", [MapInArrow, MapInPandas])
def test_closing_closes_functions_then_their_input(spark: SparkSession, adaptor: Any) -> None:
    log = Log()
    first = adaptor.of(log.function("first"), "k long", CONF)
    second = adaptor.of(log.function("second"), "k long", CONF)
    chain = second(first(log.source([batch(k=[1]), batch(k=[2])])))
    assert next(chain).to_pylist() == [{"k": 1}]
    assert log.events == []
    chain.close()
    assert log.events == ["second closed", "first closed", "source closed"]


@pytest.mark.parametrize("adaptor", [MapInArrow, MapInPandas])
def test_a_function_that_stops_early_closes_its_input(spark: SparkSession, adaptor: Any) -> None:
    log = Log()

    def first_only(items: Iterator[Any]) -> Iterator[Any]:
        yield next(items)

    results = adaptor.of(first_only, "k long", CONF)(log.source([batch(k=[1]), batch(k=[2])]))
    assert [part.to_pylist() for part in results] == [[{"k": 1}]]
    assert log.events == ["source closed"]


@pytest.mark.parametrize("adaptor", [GroupApplyInArrow, GroupApplyInPandas])
def test_closing_group_functions_closes_the_groups(spark: SparkSession, adaptor: Any) -> None:
    log = Log()
    tables: Any = [pa.table({"k": [1]}), pa.table({"k": [2]})]
    results = adaptor.of(lambda rows: rows, "k long", CONF, [0])(log.source(tables))
    assert next(results).to_pylist() == [{"k": 1}]
    results.close()
    assert log.events == ["source closed"]


@pytest.mark.parametrize("adaptor", [MapInArrow, MapInPandas])
def test_what_fails_on_closing_is_not_lost(spark: SparkSession, adaptor: Any) -> None:
    log = Log()

    def failing_to_close(items: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from items
        finally:
            helper_that_fails()

    results = adaptor.of(failing_to_close, "k long", CONF)(log.source([batch(k=[1]), batch(k=[2])]))
    next(results)
    with pytest.raises(ZeroDivisionError, match="by the user"):
        results.close()
    assert log.events == ["source closed"]


def test_one_result_is_held_at_a_time(spark: SparkSession) -> None:
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    held = []

    def large(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in range(5):
            held.append(pool.bytes_allocated())
            yield pa.RecordBatch.from_arrays([pa.array(range(100_000), pa.int64(), memory_pool=pool)], ["k"])

    for _ in MapInArrow.of(large, "k long", CONF)(iter([])):
        del _
    assert max(held) == 0


def test_one_group_is_held_at_a_time(spark: SparkSession) -> None:
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    held = []

    def groups() -> Iterator[pa.Table]:
        for _ in range(5):
            held.append(pool.bytes_allocated())
            yield pa.table({"k": pa.array(range(100_000), pa.int64(), memory_pool=pool)})

    adaptor = GroupApplyInArrow.of(lambda table: table, "k long", CONF, [0])
    for _ in adaptor(groups()):
        del _
    assert max(held) == 0


# --- errors of users' functions --------------------------------------------------------------------------


def our_frames(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in frames if frame.filename.startswith(PACKAGE)]


def names(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def helper_that_fails() -> None:
    raise ZeroDivisionError("by the user")


def failing_map(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        helper_that_fails()
        yield item


def failing_group(rows: Any) -> Any:
    helper_that_fails()


def failing_call(items: Iterator[Any]) -> Iterator[Any]:
    helper_that_fails()
    return items


FAILING = [
    (MapInArrow, failing_map),
    (MapInArrow, failing_call),
    (MapInPandas, failing_map),
    (MapInPandas, failing_call),
    (GroupApplyInArrow, failing_group),
    (GroupApplyInPandas, failing_group),
]


@pytest.mark.parametrize(("adaptor", "function"), FAILING)
def test_tracebacks_show_the_users_frames(spark: SparkSession, adaptor: Any, function: Any) -> None:
    if adaptor in (MapInArrow, MapInPandas):
        run = adaptor.of(function, "k long", CONF)(iter([batch(k=[1])]))
    else:
        run = adaptor.of(function, "k long", CONF, [0])(iter([pa.table({"k": [1]})]))
    with pytest.raises(ZeroDivisionError, match="by the user") as caught:
        list(run)
    assert our_frames(caught.value) == ["user_errors"]
    assert names(caught.value)[1:] == ["user_errors", function.__name__, "helper_that_fails"]
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def passing_map(items: Iterator[Any]) -> Iterator[Any]:
    yield from items


@pytest.mark.parametrize("adaptor", [MapInArrow, MapInPandas])
def test_tracebacks_of_chained_functions_show_only_functions(spark: SparkSession, adaptor: Any) -> None:
    first, second = adaptor.of(failing_map, "k long", CONF), adaptor.of(passing_map, "k long", CONF)
    with pytest.raises(ZeroDivisionError) as caught:
        list(user_errors(second(first(iter([batch(k=[1])])))))
    shown = ["user_errors", "passing_map", "failing_map", "helper_that_fails"]
    assert names(caught.value)[1:] == shown


def test_workers_report_the_users_traceback(small: DataFrame) -> None:
    adaptor = MapInArrow.of(failing_map, "k long", CONF)
    with pytest.raises(PySparkException) as caught:
        small.mapInArrow(lambda batches: adaptor(batches), "k long").collect()
    message = str(caught.value)
    assert message.count(os.path.join(PACKAGE, "")) == 1
    assert message.index("in failing_map") < message.index("in helper_that_fails")
    assert "ZeroDivisionError: by the user" in message


def corrupt() -> CorruptDataError:
    return CorruptDataError(Place("f.data", region=1), "the checksum differs", expected=1, found=2)


@pytest.mark.parametrize("adaptor", [MapInArrow, MapInPandas])
def test_errors_of_the_input_stay_themselves(spark: SparkSession, adaptor: Any) -> None:
    error = corrupt()

    def broken_source() -> Iterator[pa.RecordBatch]:
        yield batch(k=[1])
        raise error

    run = adaptor.of(passing_map, "k long", CONF)(broken_source())
    assert next(run).to_pylist() == [{"k": 1}]
    with pytest.raises(CorruptDataError) as caught:
        next(run)
    assert caught.value is error
    assert names(error)[-1] == "broken_source"
    assert "passing_map" in names(error)


@pytest.mark.parametrize("adaptor", [MapInArrow, MapInPandas])
def test_errors_of_the_input_cannot_be_swallowed(spark: SparkSession, adaptor: Any) -> None:
    error = corrupt()

    def swallowing(items: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from items
        except Exception:
            return

    def broken_source() -> Iterator[pa.RecordBatch]:
        yield batch(k=[1])
        raise error

    run = adaptor.of(swallowing, "k long", CONF)(broken_source())
    assert next(run).to_pylist() == [{"k": 1}]
    with pytest.raises(CorruptDataError) as caught:
        next(run)
    assert caught.value is error


def test_our_own_errors_keep_their_traceback(spark: SparkSession) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        list(MapInArrow.of(passing_map, "k int", CONF)(iter([batch(k=[1])])))
    assert "check_types" in our_frames(caught.value)


STOPPING = [
    ("mapInArrow", lambda items: next(iter([]))),
    ("mapInPandas", lambda items: next(iter([]))),
    ("applyInArrow", lambda rows: next(iter([]))),
    ("applyInPandas", lambda rows: next(iter([]))),
]


@pytest.mark.parametrize(("method", "function"), STOPPING)
def test_stop_iteration_is_not_the_end_of_the_data(small: DataFrame, method: str, function: Any) -> None:
    with pytest.raises(PySparkException, match="STOP_ITERATION_OCCURRED"):
        by_spark(small, method, function, "k int", ["k"])
    with pytest.raises(RuntimeError, match="StopIteration"):
        by_us(small, method, function, "k int", ["k"])
