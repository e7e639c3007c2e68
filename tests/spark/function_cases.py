"""What the tests of users' functions share: the same function over the same data, run by PySpark and by an
adaptor.

Spark is the oracle: what PySpark's own method gives for a function is compared with what the adaptor gives in
this process, as Arrow values of the wire schema.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.loose_version import LooseVersion
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

import sortshuffle
from sortshuffle.compute.groups.groups import GroupRun
from sortshuffle.spark.conforming import conform
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.grouped import (
    GroupApplyInArrow,
    GroupApplyInPandas,
    GroupIterateInArrow,
    GroupIterateInPandas,
)
from sortshuffle.spark.functions.maps import MapInArrow, MapInPandas
from sortshuffle.spark.schema import to_arrow

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
    """The rows of a frame that many tests use, in one batch: one Spark job for all of them, whatever the
    session cuts batches into when it runs."""
    return pa.Table.from_batches(wire_batches(df)).combine_chunks().to_batches()


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


def as_given(adaptor: Any, tables: Iterable[Any]) -> Iterable[Any]:
    """Groups' tables as this adaptor wants them."""
    if isinstance(adaptor, GroupApplyInPandas):
        return (GroupRun(table, [0]) for table in tables)
    return tables


def in_worker(adaptor: Any) -> Any:
    """The adaptor as a worker gets it, with the function itself."""
    return cloudpickle.loads(cloudpickle.dumps(adaptor))


def by_us(df: DataFrame, method: str, function: Any, schema: Any, keys: list[str]) -> list[str]:
    conf = FunctionConf.of(df.sparkSession)
    if method in GROUPS:
        adaptor: Any = GROUPS[method].of(function, schema, conf, [df.columns.index(key) for key in keys])
        given: Any = group_tables(df, keys)
        if isinstance(adaptor, GroupIterateInArrow | GroupIterateInPandas):
            given = (iter(table.to_batches(max_chunksize=1)) for table in given)
        given = as_given(adaptor, given)
    else:
        adaptor, given = MAPS[method].of(function, schema, conf), input_batches(df)
    adaptor = in_worker(adaptor)
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


# --- functions that return what a test says ---


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


def text(value: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": [value]})


BY_POSITION = {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false"}
UNSAFE = {"spark.sql.execution.pandas.convertToArrowArraySafely": "false"}
COERCED = {"spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "true"}
STRICT = {"spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true"}
ITERATORS = {"spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled": "false"}
