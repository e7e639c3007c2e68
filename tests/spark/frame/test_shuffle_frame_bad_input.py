"""What bad input gets: an error of the right class, at the call where that is possible, with the words that a
user needs to mend it, and no unfinished files.

Errors of a running job reach the driver as Spark's `PythonException`, whose text is the worker's traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from oracle import confs
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sortshuffle
from sortshuffle import ShuffleFrame
from sortshuffle.errors import OptionError, UnsupportedError, UsageError

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
SCHEMA = "id long, k long, s string"


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> DataFrame:
    """1000 rows in one partition: ``id``, a key ``k`` of 7 values, a text ``s``."""
    return spark.range(0, 1000, 1, 1).selectExpr("id", "id % 7 as k", "cast(id as string) as s")


@pytest.fixture(scope="module")
def frame(numbers: DataFrame) -> ShuffleFrame:
    return sortshuffle.frame(numbers)


def same(batches: Batches) -> Batches:
    yield from batches


def whole(table: pa.Table) -> pa.Table:
    return table


# --- calls that PySpark refuses -------------------------------------------------------------------------

not_callable: Any = "parse"

WRONG_CALLS: dict[str, Callable[[Any], Any]] = {
    "an unknown column in select": lambda frame: frame.select("sum"),
    "an unknown column in a filter": lambda frame: frame.filter("sum > 1"),
    "an unknown column in repartition": lambda frame: frame.repartition(3, "sum"),
    "an unknown column in groupBy": lambda frame: frame.groupBy("sum").count(),
    "an unknown column of a join": lambda frame: frame.join(frame, "sum"),
    "an unknown column of an aggregate": lambda frame: frame.groupBy("k").agg(sf.sum("sum")),
    "an aggregate in a filter": lambda frame: frame.filter(sf.sum("id") > 1),
    "a text in a sum": lambda frame: frame.withColumn("m", sf.create_map("s", "k")).select(sf.sum("m")),
    "no partitions": lambda frame: frame.repartition(0),
    "fewer than no partitions": lambda frame: frame.repartition(-1, "k"),
    "half a partition": lambda frame: frame.repartition(2.5, "k"),
    "None partitions": lambda frame: frame.repartition(None, "k"),
    "a condition that is a number": lambda frame: frame.filter("id + 1"),
    "a schema that cannot be parsed": lambda frame: frame.mapInArrow(same, "id lung"),
    "a schema that is a number": lambda frame: frame.mapInArrow(same, 5),
    "a schema that is one type": lambda frame: frame.groupBy("k").applyInPandas(with_frame, "long"),
    "no function": lambda frame: frame.mapInArrow(not_callable, SCHEMA),
    "a function of no arguments": lambda frame: frame.groupBy("k").applyInArrow(lambda: None, SCHEMA),
    "a negative limit": lambda frame: frame.limit(-1).count(),
    "too few names": lambda frame: frame.toDF("a"),
    "an unknown kind of join": lambda frame: frame.join(frame, "k", "sideways"),
    "a drop of a number": lambda frame: frame.drop(1),
}


def with_frame(group: pd.DataFrame) -> pd.DataFrame:
    return group


def refusal(call: Callable[[Any], Any], frame: DataFrame) -> tuple[str, str | None]:
    """Return the class of the error that a call raises, and its condition if it has one."""
    with pytest.raises(Exception) as raised:
        call(frame)
    condition = getattr(raised.value, "getCondition", lambda: None)()
    return type(raised.value).__name__, condition


@pytest.mark.parametrize("call", WRONG_CALLS.values(), ids=WRONG_CALLS.keys())
def test_a_wrong_call_raises_what_pyspark_raises(
    frame: ShuffleFrame, numbers: DataFrame, call: Callable[[Any], Any]
) -> None:
    assert refusal(call, frame) == refusal(call, numbers)


def test_a_name_that_two_columns_have_is_refused_by_spark(spark: SparkSession) -> None:
    twins = sortshuffle.frame(spark.sql("select 1 as a, 2 as A"))
    with pytest.raises(AnalysisException, match="AMBIGUOUS_REFERENCE"):
        twins.repartition(2, "a")


# --- calls that only Spark can do -----------------------------------------------------------------------

HANDED_OVER: dict[str, Callable[[Any], DataFrame]] = {
    "an expression as a key": lambda frame: frame.groupBy(sf.col("id") % 7).count(),
    "an expression in a repartition": lambda frame: frame.repartition(3, sf.col("id") % 7),
    "several columns of one name": lambda frame: frame.select("id", "k", "id"),
    "a list as a key": lambda frame: frame.select(sf.array("k").alias("a")).groupBy("a").count(),
    "arithmetic in a filter": lambda frame: frame.filter("id * id > 100"),
    "a join on an expression": lambda frame: frame.join(frame.select("k").distinct(), sf.lit(True)),
}


@pytest.mark.parametrize("call", HANDED_OVER.values(), ids=HANDED_OVER.keys())
def test_what_python_refuses_spark_does_with_the_same_result(
    frame: ShuffleFrame, numbers: DataFrame, call: Callable[[Any], DataFrame]
) -> None:
    ours = call(frame.repartition(2))

    assert isinstance(ours, ShuffleFrame)
    assert ours._own_rows is None
    assert [crossing.to for crossing in ours._crossings] == ["Spark"]
    assert sorted(map(tuple, ours.collect())) == sorted(map(tuple, call(numbers).collect()))


def test_a_frame_of_columns_that_arrow_cannot_carry_is_refused(numbers: DataFrame) -> None:
    with pytest.raises(UnsupportedError, match="several columns are named k: rename all but one"):
        sortshuffle.frame(numbers.select("k", "k"))


# --- Arrow's expressions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (pc.field("id") + 1, "is not a boolean expression over the columns id, k, s"),
        (pc.field("nothing") > 1, "is not a boolean expression over the columns id, k, s"),
        (pc.field("s") > 1, "is not a boolean expression over the columns id, k, s"),
        (pc.field(1) > 1, "means a column by its position: give its name"),
    ],
    ids=str,
)
def test_a_filter_that_is_no_condition_over_the_columns_is_refused(
    frame: ShuffleFrame, condition: Any, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        frame.filter(condition)


# --- results of functions -------------------------------------------------------------------------------


def narrow(batches: Batches) -> Batches:
    for batch in batches:
        yield pa.record_batch([batch["id"].cast(pa.float64()), batch["k"]], names=["id", "k"])


def narrow_group(table: pa.Table) -> pa.Table:
    return table.select(["id", "k"]).cast(pa.schema([("id", pa.float64()), ("k", pa.int64())]))


def text_group(group: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"id": ["x"], "k": [1]})


def not_batches(batches: Batches) -> Iterator[Any]:
    yield from (batch.to_pydict() for batch in batches)


def not_a_frame(group: pd.DataFrame) -> Any:
    return list(group["id"])


WRONG_RESULTS: dict[str, tuple[Callable[[ShuffleFrame], ShuffleFrame], list[str]]] = {
    "mapInArrow yields other types": (
        lambda frame: frame.mapInArrow(narrow, "id long, k long"),
        ["mapInArrow(narrow)", "column 'id' (expected int64, actual double).\n"],
    ),
    "mapInArrow yields fewer columns": (
        lambda frame: frame.mapInArrow(narrow, SCHEMA),
        ["mapInArrow(narrow)", "Expected: 3 Actual: 2\n", "Declared: id, k, s. Returned: id, k"],
    ),
    "mapInArrow yields no batches": (
        lambda frame: frame.mapInArrow(not_batches, SCHEMA),
        [
            "mapInArrow(not_batches): PySparkTypeError: [UDF_RETURN_TYPE] Return type of the user-defined"
            " function should be iterator of pyarrow.RecordBatch, but is iterator of dict."
        ],
    ),
    "applyInArrow returns other types": (
        lambda frame: frame.groupBy("k").applyInArrow(narrow_group, "id long, k long"),
        ["groupBy().applyInArrow(narrow_group)", "column 'id' (expected int64, actual double)"],
    ),
    "applyInArrow returns other columns": (
        lambda frame: frame.groupBy("k").applyInArrow(whole, "id long, k long, t string"),
        ["groupBy().applyInArrow(whole)", "Missing: t. Unexpected: s."],
    ),
    "applyInPandas returns other types": (
        lambda frame: frame.groupBy("k").applyInPandas(text_group, "id long, k long"),
        ["groupBy().applyInPandas(text_group)", "id"],
    ),
    "applyInPandas returns no frame": (
        lambda frame: frame.groupBy("k").applyInPandas(not_a_frame, "id long"),
        ["groupBy().applyInPandas(not_a_frame): PySparkTypeError: ", "pandas.DataFrame, but is list."],
    ),
}


@pytest.mark.parametrize(("job", "words"), WRONG_RESULTS.values(), ids=WRONG_RESULTS.keys())
def test_a_result_that_is_not_as_declared_names_function_column_and_types(
    frame: ShuffleFrame, job: Callable[[ShuffleFrame], ShuffleFrame], words: list[str]
) -> None:
    with pytest.raises(PythonException) as raised:
        job(frame).collect()

    assert "sortshuffle.errors.SchemaMismatchError: " in str(raised.value)
    for word in words:
        assert word in str(raised.value)


def test_a_wrong_result_fails_a_count_and_a_shuffle_too(frame: ShuffleFrame) -> None:
    wrong = frame.mapInArrow(narrow, "id long, k long")
    for action in (wrong.count, wrong.repartition(2).count):
        with pytest.raises(PythonException, match=r"mapInArrow\(narrow\).*expected int64, actual double"):
            action()


def bad_luck(batches: Batches) -> Batches:
    for batch in batches:
        yield batch
        explode(batch)


def bad_group(table: pa.Table) -> pa.Table:
    explode(table)
    return table


def bad_frame(group: pd.DataFrame) -> pd.DataFrame:
    explode(group)
    return group


def explode(rows: object) -> None:
    raise ZeroDivisionError(f"not with {type(rows).__name__}")


RAISING: dict[str, tuple[Callable[[ShuffleFrame], ShuffleFrame], list[str]]] = {
    "mapInArrow": (lambda frame: frame.mapInArrow(bad_luck, SCHEMA), ["bad_luck", "explode"]),
    "in a chain": (
        lambda frame: frame.mapInArrow(same, SCHEMA).mapInArrow(bad_luck, SCHEMA).mapInArrow(same, SCHEMA),
        ["same", "bad_luck", "explode"],
    ),
    "behind a shuffle": (
        lambda frame: frame.repartition(2, "k").mapInArrow(bad_luck, SCHEMA),
        ["bad_luck", "explode"],
    ),
    "before a shuffle": (
        lambda frame: frame.mapInArrow(bad_luck, SCHEMA).repartition(2, "k"),
        ["bad_luck", "explode"],
    ),
    "applyInArrow": (
        lambda frame: frame.groupBy("k").applyInArrow(bad_group, SCHEMA),
        ["bad_group", "explode"],
    ),
    "applyInPandas": (
        lambda frame: frame.groupBy("k").applyInPandas(bad_frame, SCHEMA),
        ["bad_frame", "explode"],
    ),
}


@pytest.mark.parametrize(("job", "functions"), RAISING.values(), ids=RAISING.keys())
def test_what_a_function_raises_arrives_with_its_own_traceback(
    frame: ShuffleFrame, job: Callable[[ShuffleFrame], ShuffleFrame], functions: list[str]
) -> None:
    with pytest.raises(PythonException, match="ZeroDivisionError: not with") as raised:
        job(frame).collect()
    lines = [line for line in str(raised.value).splitlines() if line.strip().startswith("File ")]
    ours = [line for line in lines if "/sortshuffle/" in line]
    theirs = [line for line in lines if Path(__file__).name in line]

    assert len(ours) == 1
    assert [line.rsplit(" in ")[-1] for line in theirs] == functions


# --- sources and settings -------------------------------------------------------------------------------


def test_what_is_no_dataframe_is_refused() -> None:
    not_a_frame: Any = [1, 2]
    with pytest.raises(UsageError, match=r"frame\(\) takes a DataFrame, not list"):
        sortshuffle.frame(not_a_frame)


def test_a_streaming_frame_is_refused_with_the_way_out(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()

    with pytest.raises(UnsupportedError, match=r"streaming.*use foreachBatch"):
        sortshuffle.frame(stream)


def test_what_is_no_session_is_refused() -> None:
    not_a_session: Any = object()
    with pytest.raises(UsageError, match="a SparkSession is needed, not object"):
        sortshuffle.read(not_a_session)


def test_a_column_that_arrow_cannot_carry_is_refused_by_its_name(spark: SparkSession) -> None:
    with pytest.raises(UnsupportedError, match="column 'y' is of type interval year"):
        sortshuffle.frame(spark.sql("select 1 as k, interval '2' year as y"))


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("spark.sortshuffle.memroy", "1g", "is not an option. Did you mean spark.sortshuffle.memory?"),
        (
            "spark.sortshuffle.memory",
            "much",
            "spark.sortshuffle.memory = 'much' is not allowed: give 1m to 1t",
        ),
        ("spark.sortshuffle.codec", "snappy", "give lz4, zstd, none"),
        ("spark.sortshuffle.read.threads", "0", "give 1 to 256"),
        ("spark.sortshuffle.dir", "relative/path", "give absolute local paths"),
        ("spark.sortshuffle.keep", "true", "spark.sortshuffle.keep=true needs spark.sortshuffle.dir"),
    ],
)
def test_a_bad_setting_fails_where_the_frame_is_made(
    spark: SparkSession, numbers: DataFrame, setting: str, value: str, words: str
) -> None:
    with confs(spark, {setting: value}):
        for make in (lambda: sortshuffle.frame(numbers), lambda: sortshuffle.read(spark)):
            with pytest.raises(OptionError) as raised:
                make()

            assert words in str(raised.value)
            assert setting in str(raised.value)


# --- nothing half-written -------------------------------------------------------------------------------


def test_a_failed_map_task_leaves_no_files(spark: SparkSession, tmp_path: Path) -> None:
    def late_failure(batches: Batches) -> Batches:
        for number, batch in enumerate(batches):
            if number == 15:
                written = [path for path in tmp_path.rglob("*.partial") if path.stat().st_size > 100_000]
                raise ZeroDivisionError(f"with {len(written)} unfinished files")
            yield batch

    tiny = {
        "spark.sortshuffle.dir": str(tmp_path),
        "spark.sortshuffle.memory": "1m",
        "spark.sortshuffle.codec": "none",
    }
    with confs(spark, tiny):
        ours = (
            sortshuffle.frame(spark.range(0, 200_000, 1, 1))
            .mapInArrow(late_failure, "id long")
            .repartition(3, "id")
        )
    # regions were in the file already
    with pytest.raises(PythonException, match="with 1 unfinished files"):
        ours.count()

    assert [path.name for path in tmp_path.rglob("exchange-*")] == []


def test_a_failed_reduce_task_leaves_only_the_finished_map_outputs(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    with confs(spark, {"spark.sortshuffle.dir": str(tmp_path)}):
        placed = sortshuffle.frame(numbers).repartition(1, "k")
    failing = placed.mapInArrow(bad_luck, SCHEMA).repartition(2, "id")
    with pytest.raises(PythonException, match="ZeroDivisionError"):
        failing.count()

    left = sorted(path.suffix for path in tmp_path.rglob("exchange-*"))
    assert left == [".data", ".index"]
    assert placed.count() == 1000
