"""Functions, schemas and settings as the driver finds them at the call."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from function_cases import BY_POSITION, COERCED, CONF, ITERATORS, STRICT, UNSAFE, map_arrow, settings
from pyspark.sql import SparkSession

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.functions.cogrouped import CoGroupInArrow, CoGroupInPandas
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.grouped import (
    GroupApplyInArrow,
    GroupApplyInPandas,
    GroupIterateInArrow,
    GroupIterateInPandas,
)
from sortshuffle.spark.functions.maps import MapInArrow, MapInPandas


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


@pytest.mark.parametrize(
    "adaptor",
    [MapInArrow, MapInPandas, GroupApplyInArrow, GroupApplyInPandas, CoGroupInArrow, CoGroupInPandas],
)
def test_bad_calls_are_refused_on_the_driver(spark: SparkSession, adaptor: Any) -> None:
    keys: Any = () if adaptor in (MapInArrow, MapInPandas) else ([0],)
    keys *= 2 if adaptor in (CoGroupInArrow, CoGroupInPandas) else 1
    with pytest.raises(UsageError, match="needs a function, not 3"):
        adaptor.of(3, "k int", CONF, *keys)
    with pytest.raises(UsageError, match="single type bigint"):
        adaptor.of(lambda x: x, "long", CONF, *keys)
    with pytest.raises(UnsupportedError, match="'k' is of type variant"):
        adaptor.of(lambda x: x, "k variant", CONF, *keys)


def test_hints_tell_functions_of_iterators(spark: SparkSession) -> None:
    def arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    def keyed(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    def pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return frames

    def table(table: pa.Table) -> pa.Table:
        return table

    def tables(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return tables

    for function, form, takes_key in (
        (arrow, GroupIterateInArrow, False),
        (keyed, GroupIterateInArrow, True),
        (table, GroupApplyInArrow, False),
        (tables, GroupApplyInArrow, False),
        (pandas, GroupApplyInArrow, False),
    ):
        adaptor = GroupApplyInArrow.of(function, "k int", CONF, [0])
        assert (type(adaptor), adaptor.takes_key) == (form, takes_key)
    assert type(GroupApplyInPandas.of(pandas, "k int", CONF, [0])) is GroupIterateInPandas
    assert type(GroupApplyInPandas.of(arrow, "k int", CONF, [0])) is GroupApplyInPandas


@pytest.mark.parametrize("adaptor", [CoGroupInArrow, CoGroupInPandas])
def test_functions_of_two_groups_take_two_or_three_arguments(spark: SparkSession, adaptor: Any) -> None:
    for function in (lambda a: a, lambda a, b, c, d: a, lambda *a: a):
        with pytest.raises(
            UsageError, match=r"cogroup\(\)\.apply.* two arguments \(left, right\) or three \(key, "
        ):
            adaptor.of(function, "k int", CONF, [0], [1])
    assert not adaptor.of(lambda a, b: a, "k int", CONF, [0], [1]).takes_key
    assert adaptor.of(lambda a, b, c: a, "k int", CONF, [0], [1]).takes_key


def test_hints_that_mean_nothing_are_ignored(spark: SparkSession) -> None:
    def half_hinted(key: Any, table):  # type: ignore[no-untyped-def]
        return table

    assert GroupApplyInArrow.of(half_hinted, "k int", CONF, [0]).takes_key


@pytest.mark.parametrize("adaptor", [GroupApplyInArrow, GroupApplyInPandas])
def test_functions_that_do_not_tell_their_arguments_are_refused(spark: SparkSession, adaptor: Any) -> None:
    with pytest.raises(UsageError, match=r"the arguments of dict, given to groupBy\(\)\.apply"):
        adaptor.of(dict, "k int", CONF, [0])


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
