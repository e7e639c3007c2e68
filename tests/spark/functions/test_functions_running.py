"""Functions while they run: what is held and what is closed, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from function_cases import CONF, PACKAGE, as_given, batch, by_spark, by_us, in_worker, text
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sortshuffle.errors import CorruptDataError, Place, SchemaMismatchError
from sortshuffle.spark.functions.grouped import GroupApplyInArrow, GroupApplyInPandas
from sortshuffle.spark.functions.maps import MapInArrow, MapInPandas
from sortshuffle.spark.functions.running import user_errors

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])


# --- what is kept alive, and what is closed --------------------------------------------------------------


def test_batches_pass_without_copying(spark: SparkSession) -> None:
    given = batch(k=[1, 2])
    (result,) = in_worker(MapInArrow.of(lambda batches: batches, "k long", CONF))(iter([given]))
    assert result is given


def test_rows_without_columns_are_seen_and_kept(spark: SparkSession) -> None:
    given = batch(k=[1, 2]).select([])
    (result,) = in_worker(MapInArrow.of(lambda batches: batches, "", CONF))(iter([given]))
    assert (result.num_rows, result.num_columns) == (2, 0)
    counted = in_worker(MapInPandas.of(lambda frames: (text(len(frame)) for frame in frames), "a long", CONF))
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
    # the functions themselves: an adaptor has a copy, as workers get it
    first = replace(adaptor.of(log.function("first"), "k long", CONF), function=log.function("first"))
    second = replace(adaptor.of(log.function("second"), "k long", CONF), function=log.function("second"))
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

    results = in_worker(adaptor.of(first_only, "k long", CONF))(log.source([batch(k=[1]), batch(k=[2])]))
    assert [part.to_pylist() for part in results] == [[{"k": 1}]]
    assert log.events == ["source closed"]


@pytest.mark.parametrize("adaptor", [GroupApplyInArrow, GroupApplyInPandas])
def test_closing_group_functions_closes_the_groups(spark: SparkSession, adaptor: Any) -> None:
    log = Log()
    tables: Any = [pa.table({"k": [key] * 2000}) for key in (1, 2)]  # small results would wait
    made = in_worker(adaptor.of(lambda rows: rows, "k long", CONF, [0]))
    results = made(log.source(as_given(made, tables)))
    assert next(results).num_rows == 2000
    assert log.events == []
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

    results = in_worker(adaptor.of(failing_to_close, "k long", CONF))(
        log.source([batch(k=[1]), batch(k=[2])])
    )
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

    adaptor = replace(MapInArrow.of(iter, "k long", CONF), function=large)  # a pool cannot be pickled
    for _ in adaptor(iter([])):
        del _
    assert max(held) == 0


def test_one_group_is_held_at_a_time(spark: SparkSession) -> None:
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    held = []

    def groups() -> Iterator[pa.Table]:
        for _ in range(5):
            held.append(pool.bytes_allocated())
            yield pa.table({"k": pa.array(range(100_000), pa.int64(), memory_pool=pool)})

    adaptor = in_worker(GroupApplyInArrow.of(lambda table: table, "k long", CONF, [0]))
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
        run = in_worker(adaptor.of(function, "k long", CONF))(iter([batch(k=[1])]))
    else:
        made = in_worker(adaptor.of(function, "k long", CONF, [0]))
        run = made(iter(as_given(made, [pa.table({"k": [1]})])))
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
    first, second = (in_worker(adaptor.of(each, "k long", CONF)) for each in (failing_map, passing_map))
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

    run = in_worker(adaptor.of(passing_map, "k long", CONF))(broken_source())
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

    run = in_worker(adaptor.of(swallowing, "k long", CONF))(broken_source())
    assert next(run).to_pylist() == [{"k": 1}]
    with pytest.raises(CorruptDataError) as caught:
        next(run)
    assert caught.value is error


def wrapping(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except Exception as error:
        raise LookupError("by the user") from error


def wrapping_call(items: Iterator[Any]) -> Iterator[Any]:
    try:
        return iter(list(items))
    except Exception:
        raise LookupError("by the user") from None


@pytest.mark.parametrize("adaptor", [MapInArrow, MapInPandas])
@pytest.mark.parametrize("function", [wrapping, wrapping_call])
def test_errors_of_the_input_stay_themselves_when_the_user_wraps_them(
    spark: SparkSession, adaptor: Any, function: Any
) -> None:
    error, cause = corrupt(), OSError()

    def broken_source() -> Iterator[pa.RecordBatch]:
        yield batch(k=[1])
        raise error from cause

    with pytest.raises(CorruptDataError) as caught:
        list(in_worker(adaptor.of(function, "k long", CONF))(broken_source()))
    assert caught.value is error
    assert names(error)[-1] == "broken_source"
    assert error.__cause__ is cause


@pytest.mark.parametrize("adaptor", [MapInArrow, MapInPandas])
@pytest.mark.parametrize("function", [wrapping, wrapping_call])
def test_errors_of_the_input_keep_what_was_handled_when_they_were_raised(
    spark: SparkSession, adaptor: Any, function: Any
) -> None:
    """They may be those of a function before, and the worker looks for a loss among what they hide."""
    loss = corrupt()

    def function_before() -> Iterator[pa.RecordBatch]:
        yield batch(k=[1])
        try:
            raise loss
        except CorruptDataError:
            raise KeyError("by the user before") from None

    with pytest.raises(KeyError, match="by the user before") as caught:
        list(in_worker(adaptor.of(function, "k long", CONF))(function_before()))
    assert caught.value.__context__ is loss


def test_our_own_errors_keep_their_traceback(spark: SparkSession) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        list(in_worker(MapInArrow.of(passing_map, "k int", CONF))(iter([batch(k=[1])])))
    assert "check_types" in our_frames(caught.value)


def test_a_refusal_that_this_pyspark_has_no_words_for_is_said_in_ours(spark: SparkSession) -> None:
    declared = MapInArrow.of(passing_map, "k int", CONF).declared
    assert str(declared.refusal("NEW_CONDITION", missing=" Missing: k.", extra="")) == (
        "mapInArrow(passing_map): PySparkRuntimeError: [NEW_CONDITION] The returned data do not match the"
        " declared schema: missing: Missing: k."
    )


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
    with pytest.raises(RuntimeError, match="STOP_ITERATION_OCCURRED"):
        by_us(small, method, function, "k int", ["k"])
