"""Columns as plain data, and the names in a schema, with Spark's analyzer as the oracle."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from sortshuffle.errors import ColumnError
from sortshuffle.spark.operators.expressions import (
    Alias,
    Attribute,
    Call,
    Literal,
    Node,
    Other,
    Sorted,
    Star,
    column_name,
    node_of,
    resolve,
    sort_key,
)

K, S = Attribute("k"), Attribute("s")
PLAIN = [None, True, 5, 2**40, 1.5, "a", "", b"ab", Decimal("1.20")]
# fmt: off
AGGREGATES = [
    "sum", "avg", "mean", "min", "max", "count", "first", "last", "stddev", "stddev_samp", "stddev_pop",
    "variance", "var_samp", "var_pop", "collect_list", "collect_set", "any_value", "bool_and",
    "bool_or", "every", "some", "mode", "median", "skewness", "kurtosis", "product",
    "approx_count_distinct", "first_value", "last_value",
]
# fmt: on


def expressions(f: Any) -> dict[str, tuple[Any, Node]]:
    """Columns, made with the functions of ``f``, and what they are as data."""
    k, s = f.col("k"), f.col("s")
    is_one = Call("=", (K, Literal(1)))
    return {
        "reference": (k, K),
        "field": (f.col("q.k"), Attribute("q.k")),
        "in backticks": (f.col("`a.b`"), Attribute("`a.b`")),
        "star": (f.col("*"), Star()),
        "star of": (f.col("t.*"), None),
        "count all": (f.count("*"), Call("count", (Star(),))),
        "count distinct": (f.count_distinct("k", s), Call("count", (K, S), distinct=True)),
        "sum distinct": (f.sum_distinct(k), Call("sum", (K,), distinct=True)),
        "arguments": (f.first("k", True), Call("first", (K, Literal(True)))),
        "two columns": (f.min_by("k", s), Call("min_by", (K, S))),
        "nested": (f.sum(k + 1).alias("a.b"), Alias(Call("sum", (Call("+", (K, Literal(1))),)), "a.b")),
        "renamed": (k.alias("x"), Alias(K, "x")),
        "two names": (f.explode(f.create_map("k", "s")).alias("x", "y"), None),
        "equal": (k == 1, is_one),
        "not equal": (k != 1, Call("!", (is_one,))),
        "not": (~(k == 1), Call("!", (is_one,))),
        "null safe": (k.eqNullSafe(s), Call("<=>", (K, S))),
        "and": ((k == 1) & (k == s), Call("and", (is_one, Call("=", (K, S))))),
        "negative": (-k, Call("negative", (K,))),
        "is null": (k.isNull(), Call("isnull", (K,))),
        "is nan": (f.isnan("k"), Call("isnan", (K,))),
        "ascending": (k.asc(), Sorted(K, False, False)),
        "descending": (f.desc("k"), Sorted(K, True, True)),
        "nulls first": (k.desc_nulls_first(), Sorted(K, True, False)),
        "nulls last": ((k + 1).asc_nulls_last(), Sorted(Call("+", (K, Literal(1))), False, True)),
        "list": (f.lit([1, 2]), Call("array", (Literal(1), Literal(2)))),
        "date": (f.lit(dt.date(2024, 2, 29)), Other("2024-02-29")),
        "time": (f.lit(dt.datetime(2024, 2, 29)), None),
        "interval": (f.lit(dt.timedelta(1)), None),
        "cast": (k.cast("int"), Other("CAST(k AS INT)")),
        "sql": (f.expr("k + 1"), Other("k + 1")),
        "when": (f.when(k > 1, 2), None),
        "part": (s["x"], None),
        "user's": (f.call_function("sum", k), None),
        **{f"literal {value!r}": (f.lit(value), Literal(value)) for value in PLAIN},
        **{name: (getattr(f, name)("k"), None) for name in AGGREGATES},
    }


def expected(name: str, node: Node | None, found: Node) -> bool:
    """Whether a node is the one of `expressions`. None: of an aggregate a call of its name, of others no node
    of their own."""
    if node is not None:
        return found == node and type(found) is type(node)
    if name in AGGREGATES:
        return isinstance(found, Call) and found.arguments[0] == K
    return isinstance(found, Other) and found.text != ""


# ---- nodes ------------------------------------------------------------------------------------------------


def test_a_classic_column_as_data(spark: SparkSession) -> None:
    for name, (column, node) in expressions(sf).items():
        found = node_of(column)
        assert expected(name, node, found), (name, found)


def test_a_connect_column_is_the_same_data(spark: SparkSession) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's packages are not installed: the extra `connect`")
    from pyspark.sql.connect.functions import builtin as connect

    classic = {name: node_of(column) for name, (column, _) in expressions(sf).items()}
    for name, (column, node) in expressions(connect).items():
        found = node_of(column)
        assert expected(name, node, found), (name, found)
        assert found == classic[name] or node is None, name
        if name in AGGREGATES:
            assert found == classic[name], name


def test_columns_of_a_frame_are_references(frame: DataFrame) -> None:
    assert node_of(frame.k) == node_of(frame.alias("t")["k"]) == node_of("k") == K
    assert node_of(frame["`a.b`"]) == Attribute("`a.b`")
    assert node_of(frame.k == frame.s) == Call("=", (K, S))
    assert node_of("*") == Star()
    for column in (frame["*"], frame["x.y"], frame.colRegex("`k`"), sf.udf(lambda _: 1)("k")):
        assert isinstance(node_of(column), Other)
    window = sf.sum("k").over(Window.partitionBy("s"))
    assert node_of(window) == Other("sum(k) OVER (PARTITION BY s)")


def test_what_is_no_column_is_refused() -> None:
    for column in (3, None, ["k"]):
        with pytest.raises(ColumnError, match="must be a name or a Column, not"):
            node_of(column)  # type: ignore[arg-type]
        with pytest.raises(ColumnError, match="must be a name or a Column, not"):
            column_name(column)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], "k int, s string, `a.b` double, x struct<y: int>")


# ---- directions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nulls", ["", "_nulls_first", "_nulls_last"])
@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_a_direction_is_read_off_a_column(frame: DataFrame, direction: str, nulls: str) -> None:
    directed = f"{direction}{nulls}"
    last = nulls == "_nulls_last" or (nulls == "" and direction == "desc")
    for column in (
        getattr(frame.k, directed)(),
        getattr(sf, directed)("k"),
        getattr(sf.col("k"), directed)(),
    ):
        plain, *found = sort_key(column)
        assert found == [direction == "desc", last]
        assert column_name(plain) == "k"


def test_a_connect_column_loses_its_direction() -> None:
    pytest.importorskip("grpc", reason="Spark Connect's packages are not installed: the extra `connect`")
    from pyspark.sql.connect.functions import builtin as connect

    plain, *found = sort_key(connect.col("k").desc_nulls_first())
    assert (column_name(plain), found) == ("k", [True, False])


def test_a_column_without_a_direction_ascends_with_nulls_first(frame: DataFrame) -> None:
    assert sort_key("k") == ("k", False, False)
    plain, *found = sort_key(frame.k)
    assert (column_name(plain), found) == ("k", [False, False])


# ---- names in a schema ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["k", "K", "`a.b`", "with space", "`tick``s`", "ü"])
def test_a_reference_resolves_to_the_column_that_spark_takes(spark: SparkSession, name: str) -> None:
    df = spark.range(1).select(
        *(
            sf.lit(position).alias(column)
            for position, column in enumerate(["k", "a.b", "with space", "tick`s", "ü"])
        )
    )
    position = resolve(name, df.schema, case_sensitive=False)
    assert [position] == list(df.select(df[name]).first())
    quoted = name if name.startswith("`") or name == "with space" else f"`{name}`"
    for reference in (name, sf.col(name), df[name], sf.col(quoted)):
        assert resolve(column_name(reference), df.schema, case_sensitive=False) == position


def test_attribute_access_is_a_reference(spark: SparkSession) -> None:
    df = spark.range(1)
    assert column_name(df.id) == "id"
    assert column_name(df.alias("q")["id"]) == "id"


def test_expressions_are_refused(spark: SparkSession) -> None:
    df = spark.range(1).select("id", sf.struct("id").alias("s"))
    expressions = [
        sf.col("id") + 1,
        sf.col("id").alias("x"),
        sf.col("id").cast("int"),
        sf.col("id").desc(),
        sf.lit(1),
        sf.upper("id"),
        sf.col("*"),
        sf.col("s")["id"],
        df["s.id"],
        sf.expr("id"),
    ]
    for expression in expressions:
        with pytest.raises(ColumnError, match=r"is an expression.*withColumn\(\)"):
            column_name(expression)
    with pytest.raises(ColumnError, match="must be a name or a Column, not 3"):
        column_name(3)  # type: ignore[arg-type]


NAMED = (
    st.StructType().add("key", "integer").add("Key", "integer").add("value", "integer").add("a.b", "integer")
)
NAMED = NAMED.add("s", st.StructType().add("x", "integer"))


@pytest.mark.parametrize(
    ("name", "case_sensitive", "says"),
    [
        ("key", False, "column 'key' is ambiguous: it could be any of key, Key"),
        (
            "valeu",
            False,
            "no column 'valeu'. Did you mean 'value'[?] The columns are: key, Key, value, a.b, s",
        ),
        ("VALUE", True, "no column 'VALUE'. Did you mean 'value'"),
        ("zzz", False, "no column 'zzz'. The columns are: key"),
        ("a.b", False, "write `a.b` in backticks"),
        ("s.x", False, "field inside the column s"),
        ("t.value", False, "no column 't.value'. Did you mean 'value'"),
    ],
)
def test_names_that_do_not_resolve(spark: SparkSession, name: str, case_sensitive: bool, says: str) -> None:
    with pytest.raises(ColumnError, match=says):
        resolve(name, NAMED, case_sensitive)
    if name != "s.x":
        spark.conf.set("spark.sql.caseSensitive", str(case_sensitive).lower())
        try:
            with pytest.raises(AnalysisException):
                spark.createDataFrame([], NAMED).select(name)
        finally:
            spark.conf.unset("spark.sql.caseSensitive")


def test_case_tells_columns_apart_where_it_counts() -> None:
    assert resolve("key", NAMED, case_sensitive=True) == 0
    assert resolve("Key", NAMED, case_sensitive=True) == 1


def test_a_column_without_a_name_is_found_in_backticks() -> None:
    assert resolve("``", st.StructType([st.StructField("", st.LongType())]), case_sensitive=False) == 0


@pytest.mark.parametrize("name", ["", "a.", ".a", "`a", "a`b", "`a`b", "a..b", "```"])
def test_malformed_names_are_refused(name: str) -> None:
    with pytest.raises(ColumnError, match="is not a column name"):
        resolve(name, NAMED, case_sensitive=False)


def test_a_frame_without_columns_says_so() -> None:
    with pytest.raises(ColumnError, match="The columns are: none"):
        resolve("k", st.StructType([]), case_sensitive=False)
