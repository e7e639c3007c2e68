"""Functions of a group's batches or frames: they see, and may return, what PySpark's do, and a group is never
held as a whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from function_cases import (
    BY_POSITION,
    CONF,
    arrow_seen,
    assert_same,
    batch,
    by_spark,
    by_us,
    described,
    in_worker,
    pandas_seen,
    printed_rows,
    settings,
    text,
)
from lifetimes import watched_numbers
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sortshuffle.compute.groups.groups import group_batches
from sortshuffle.errors import SchemaMismatchError
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.grouped import GroupApplyInArrow, GroupApplyInPandas

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
Frames = Iterator[pd.DataFrame]
ONE_ROW_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"}  # as `by_us` cuts groups


# --- what functions see ---------------------------------------------------------------------------------


def see_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number, each in enumerate(batches):
        yield batch(seen=[f"{number} {arrow_seen(each)}"])


def see_keyed_arrow(
    key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    rows = [each.num_rows for each in batches]
    yield batch(seen=[f"{type(key)} {described(key)} {[part.type for part in key]} {rows}"])


def see_pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for number, frame in enumerate(frames):
        yield pd.DataFrame({"seen": [f"{number} {pandas_seen(frame)}"]})


def see_keyed_pandas(key: tuple[Any, ...], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    rows = [len(frame) for frame in frames]
    yield pd.DataFrame({"seen": [f"{type(key)} {described(key)} {rows}"]})


@pytest.mark.parametrize("function", [see_arrow, see_keyed_arrow, see_pandas, see_keyed_pandas])
def test_functions_see_what_pyspark_shows_them(
    spark: SparkSession, frames: dict[str, DataFrame], function: Any
) -> None:
    method = "applyInArrow" if "arrow" in function.__name__ else "applyInPandas"
    keys = ["g", "x", "iv", "dx", "ts", "da", "f", "st", "bo"] if "keyed" in function.__name__ else ["g"]
    with settings(spark, ONE_ROW_BATCHES):
        assert_same(frames["everything"], method, function, "seen string", keys)


def test_frames_of_numbers_are_those_of_pyspark(spark: SparkSession, frames: dict[str, DataFrame]) -> None:
    with settings(spark, ONE_ROW_BATCHES):
        assert_same(frames["numbers"], "applyInPandas", see_pandas, "seen string")


@pytest.mark.parametrize("function", [see_keyed_arrow, see_keyed_pandas])
@pytest.mark.parametrize(("most", "parts"), [("2", [2, 1, 2]), ("0", [3, 2]), ("-1", [3, 2]), ("9", [3, 2])])
def test_parts_have_no_more_rows_than_the_session_allows(
    spark: SparkSession, function: Any, most: str, parts: list[int]
) -> None:
    adaptor = GroupApplyInArrow if function is see_keyed_arrow else GroupApplyInPandas
    with settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": most}):
        made = in_worker(adaptor.of(function, "seen string", FunctionConf.of(spark), [0]))
    group = iter([batch(k=[1, 1, 1]), batch(k=[1, 1])])
    (result,) = made(iter([group]))
    assert result.column(0)[0].as_py().endswith(str(parts))


# --- what functions return ------------------------------------------------------------------------------


def same_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def same_pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return frames


def test_all_types_come_back(frames: dict[str, DataFrame]) -> None:
    df = frames["everything"]
    assert_same(df, "applyInPandas", same_pandas, df.schema)
    # PySpark refuses the timestamps that it gave to the function, here as for tables
    assert sorted(by_us(df, "applyInArrow", same_arrow, df.schema, ["g"])) == sorted(printed_rows(df))


def nothing_read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield batch(b=["x", "y"], a=[1, 2])


def first_only(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    first = next(batches)
    yield batch(a=first["v"], b=first["s"])
    yield batch(a=pa.array([], pa.float64()), b=pa.array([], pa.string()))


def all_after_the_end(key: tuple[Any, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(each.num_rows for each in batches)
    assert next(batches, None) is None
    return iter([batch(a=[rows], k=pa.array([key[0].as_py()], pa.int32()))])


def by_position(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for each in batches:
        yield each.select(["k", "s"])


def list_of_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return [pd.DataFrame({"b": ["x"], "a": [len(frame)]}) for frame in frames]  # type: ignore[return-value]


def odd_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield pd.DataFrame([[1, "by position"]])
    yield pd.DataFrame()
    yield pd.DataFrame(index=[5, 6])
    yield pd.DataFrame({"b": ["x"], "a": ["7"]})


def first_frame_only(key: tuple[Any, ...], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield pd.DataFrame({"a": [len(next(frames))], "b": [str(key)]})


FITTING: dict[str, tuple[dict[str, str], str, Any, str]] = {
    "nothing is read": ({}, "applyInArrow", nothing_read, "a long, b string"),
    "the first batch only": (ONE_ROW_BATCHES, "applyInArrow", first_only, "a double, b string"),
    "an iterator that is no generator": ({}, "applyInArrow", all_after_the_end, "k int, a long"),
    "by position": (BY_POSITION, "applyInArrow", by_position, "x int, y string"),
    "a list of frames": (ONE_ROW_BATCHES, "applyInPandas", list_of_frames, "a long, b string"),
    "frames of all kinds": ({}, "applyInPandas", odd_frames, "a long, b string"),
    "the first frame only": (ONE_ROW_BATCHES, "applyInPandas", first_frame_only, "a long, b string"),
}


@pytest.mark.parametrize("case", FITTING)
def test_what_pyspark_accepts_comes_out_the_same(spark: SparkSession, small: DataFrame, case: str) -> None:
    values, method, function, schema = FITTING[case]
    with settings(spark, values):
        assert_same(small, method, function, schema)


def list_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return list(batches)  # type: ignore[return-value]


def table_for_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.table({"a": [1]})


def int_for_long(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield batch(a=pa.array([1], pa.int32()))


def other_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield batch(b=pa.array([], pa.int64()))


def none_for_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return None  # type: ignore[return-value]


def column_for_frame(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield next(frames)["k"]


def other_columns(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield text(1).rename(columns={"a": "z"})


def text_for_number(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield text("x")


REFUSED = {
    list_of_batches: ("applyInArrow", "should be iterator of pyarrow.RecordBatch, but is list."),
    table_for_batch: ("applyInArrow", "but is iterator of Table."),
    int_for_long: ("applyInArrow", "int64, actual int32"),
    other_names: ("applyInArrow", "Missing: a. Unexpected: b"),
    none_for_frames: ("applyInPandas", "pandas.DataFrame, but is NoneType."),
    column_for_frame: ("applyInPandas", "but is iterator of Series."),
    other_columns: ("applyInPandas", "Missing: a. Unexpected: z"),
    text_for_number: ("applyInPandas", "'a'.*int64"),
}


@pytest.mark.parametrize("function", REFUSED)
def test_what_pyspark_refuses_is_refused_with_the_functions_name(small: DataFrame, function: Any) -> None:
    method, says = REFUSED[function]
    with pytest.raises((PySparkException, Py4JError)):
        by_spark(small, method, function, "a long", ["k"])
    with pytest.raises(SchemaMismatchError, match=rf"(?s){method}\({function.__name__}\).*{says}"):
        by_us(small, method, function, "a long", ["k"])


def test_a_batch_without_rows_and_columns_is_nothing(spark: SparkSession) -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([], names=[])
        yield from batches

    results = in_worker(GroupApplyInArrow.of(function, "k long", CONF, [0]))(groups_of([1, 2]))
    assert [each.to_pylist() for each in results] == [[{"k": 1}, {"k": 2}]]


# --- while they run -------------------------------------------------------------------------------------


def groups_of(keys: list[int], rows: int = 1) -> Iterator[Iterator[pa.RecordBatch]]:
    """Batches of so many rows each, by key."""
    return group_batches((batch(k=[key] * rows) for key in keys), RowOrder((0,)))


def failing_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for each in batches:
        yield each
        raise ZeroDivisionError("by the user")


def swallowing_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except OSError:
        return


def swallowing_pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    try:
        yield from frames
    except OSError:
        return


def test_errors_of_functions_are_their_own(spark: SparkSession) -> None:
    results = in_worker(GroupApplyInArrow.of(failing_arrow, "k long", CONF, [0]))(
        groups_of([1, 1, 2], rows=2000)
    )
    assert next(results).num_rows == 2000
    with pytest.raises(ZeroDivisionError, match="by the user"):
        next(results)


@pytest.mark.parametrize(
    ("adaptor", "function"), [(GroupApplyInArrow, swallowing_arrow), (GroupApplyInPandas, swallowing_pandas)]
)
def test_errors_of_the_input_cannot_be_swallowed(spark: SparkSession, adaptor: Any, function: Any) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(k=[1] * 2000)
        raise OSError("lost")

    step = in_worker(adaptor.of(function, "k long", CONF, [0]))
    results = step(step.cut(broken(), RowOrder((0,))))
    assert next(results).num_rows == 2000
    with pytest.raises(OSError, match="lost"):
        next(results)


def test_closing_closes_the_function(spark: SparkSession) -> None:
    log: list[str] = []

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        finally:
            log.append("function closed")

    adaptor: Any = replace(GroupApplyInArrow.of(function, "k long", CONF, [0]), function=function)
    results: Any = adaptor(groups_of([1, 1, 2], rows=2000))
    assert next(results).num_rows == 2000
    assert log == []
    results.close()
    assert log == ["function closed"]


def test_a_kept_iterator_of_an_earlier_group_is_at_its_end(spark: SparkSession) -> None:
    kept: list[Iterator[pa.RecordBatch]] = []

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert all(next(other, None) is None for other in kept)
        kept.append(batches)
        yield next(batches)

    results = in_worker(GroupApplyInArrow.of(function, "k long", CONF, [0]))(groups_of([1, 1, 2, 2, 3]))
    assert [each.to_pylist() for each in results] == [[{"k": 1}, {"k": 2}, {"k": 3}]]


@pytest.mark.parametrize("takes_key", [False, True])
@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_a_group_is_held_by_the_batch(spark: SparkSession, kind: str, takes_key: bool) -> None:
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    one = 8 * 100_000
    held: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(8):
            held.append(pool.bytes_allocated())
            column = pa.array(range(100_000), pa.int64(), memory_pool=pool)
            yield pa.record_batch([pa.array([1] * 100_000), column], ["k", "v"])

    def arrow(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield batch(k=[sum(each.num_rows for each in rows)])

    def keyed_arrow(key: tuple[Any, ...], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return arrow(rows)

    def pandas(rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [sum(map(len, rows))]})

    def keyed_pandas(key: tuple[Any, ...], rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return pandas(rows)

    function = {"arrow": (arrow, keyed_arrow), "pandas": (pandas, keyed_pandas)}[kind][takes_key]
    made = GroupApplyInArrow if kind == "arrow" else GroupApplyInPandas
    step = in_worker(made.of(function, "k long", CONF, [0]))
    (result,) = step(step.cut(batches(), RowOrder((0,))))
    assert result.to_pylist() == [{"k": 800_000}]
    assert max(held) <= 2 * one


def keyed_arrow(key: tuple[Any, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def keyed_pandas(key: tuple[Any, ...], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


@pytest.mark.parametrize(
    ("adaptor", "function"), [(GroupApplyInArrow, keyed_arrow), (GroupApplyInPandas, keyed_pandas)]
)
def test_the_first_batch_of_a_group_does_not_live_until_the_last(
    spark: SparkSession, adaptor: Any, function: Any
) -> None:
    seen: list[bool] = []
    keys, alive = watched_numbers(2000, value=1)
    parts = [batch(k=keys), batch(k=[1] * 2000), batch(k=[1] * 2000)]
    del keys

    def seeing(key: tuple[Any, ...], parts: Iterator[Any]) -> Iterator[Any]:
        for each in parts:
            seen.append(alive() is not None)
            if len(seen) == 3:
                yield each
            del each

    # not pickled, because a copy would have another list
    step = replace(adaptor.of(function, "k long", CONF, [0]), function=seeing)
    groups = step.cut((parts.pop(0) for _ in range(3)), RowOrder((0,)))
    assert [each.num_rows for each in step(groups)] == [2000]
    assert seen[-1] is False
