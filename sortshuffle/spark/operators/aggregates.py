"""`groupBy().agg` and related operators: `count`, `sum`, ..., `distinct`, `dropDuplicates`.

    rows -> partial aggregation -> exchange by the keys, sorted by them -> one row per group as it completes

There is no exchange if the rows are already placed by some of the keys (`layouts.place_rows`). Partial
states are then sorted within the task. If the rows are also sorted by the keys, and no aggregate is of
distinct values, each row becomes a state without a partial aggregation.

Without keys the result has one row, in one partition.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NumericType, StructType

from sortshuffle.compute.aggregate.aggregation import AggregateCall, Aggregation
from sortshuffle.errors import ColumnError, UnsupportedError
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.operators.aggregate_calls import (
    AggregateRequest,
    Expression,
    call_of,
    expressions_of,
    position_expression,
)
from sortshuffle.spark.operators.expressions import resolve
from sortshuffle.spark.operators.key_checks import check_group_key
from sortshuffle.spark.operators.layouts import order_rows, place_rows
from sortshuffle.spark.operators.selection import reading_only
from sortshuffle.spark.plan.chain import FrameContext, Layout, Rows
from sortshuffle.spark.schema import quote
from sortshuffle.spark.steps.aggregate_steps import Aggregate, PartialAggregate, RowsToStates
from sortshuffle.spark.steps.distinct_steps import FirstRowOfEachKey, PartialFirstRows
from sortshuffle.spark.worker.stages import TaskStep


def aggregate(
    rows: Rows, keys: tuple[int, ...], twin: DataFrame, exprs: Sequence[Column | dict[str, str]]
) -> Rows:
    """Return ``groupBy(*keys).agg(*exprs)``. ``twin``: a DataFrame of the same columns, on which Spark
    analyses the call."""
    context = rows.context
    expressions = expressions_of(exprs, rows.schema, context.case_sensitive)
    groups = _twin_groups(rows, keys, twin)
    if exprs and isinstance(exprs[0], dict):
        # Spark does not keep the order of a dict's columns
        schema = groups.agg(exprs[0]).schema
        names = [groups.agg(each.column()).schema.names[-1] for each in expressions]
        by_name = dict(zip(names, expressions, strict=True))
        expressions = [by_name[name] for name in schema.names[len(schema) - len(expressions) :]]
    else:
        schema = groups.agg(*(each.column() for each in expressions)).schema
    return _aggregated(rows, keys, expressions, schema)


def count(rows: Rows, keys: tuple[int, ...], twin: DataFrame) -> Rows:
    """Return ``groupBy(*keys).count()``."""
    expression = Expression("count", (), False, False, "count(1)", "count")
    return _aggregated(rows, keys, [expression], _twin_groups(rows, keys, twin).count().schema)


def numeric(rows: Rows, keys: tuple[int, ...], twin: DataFrame, function: str, cols: Sequence[str]) -> Rows:
    """Return ``groupBy(*keys).sum(*cols)``, or ``avg``, ``min`` or ``max``. As in Spark, no ``cols`` means
    all numeric columns, including keys."""
    schema = getattr(_twin_groups(rows, keys, twin), function)(*cols).schema
    case_sensitive = rows.context.case_sensitive
    positions = [resolve(name, rows.schema, case_sensitive) for name in cols] or [
        at for at, field in enumerate(rows.schema) if isinstance(field.dataType, NumericType)
    ]
    expressions = [position_expression(function, at, rows.schema) for at in positions]
    return _aggregated(rows, keys, expressions, schema)


def distinct(rows: Rows, twin: DataFrame) -> Rows:
    """Return ``distinct()``."""
    twin.distinct()  # refuses maps
    return _deduplicated(rows, tuple(range(len(rows.columns))), "distinct()")


def drop_duplicates(rows: Rows, subset: Sequence[str] | None, twin: DataFrame) -> Rows:
    """Return ``dropDuplicates(subset)``."""
    twin.dropDuplicates(subset)  # raises Spark's errors; over Spark Connect only those of the types
    if subset is None:
        return _deduplicated(rows, tuple(range(len(rows.columns))), "dropDuplicates()")
    label = f"dropDuplicates({', '.join(subset)})"
    keys: list[int] = []
    for name in subset:
        found = _named(rows, name)
        if not found:
            raise ColumnError(f"{label}: there is no column {name!r} among {', '.join(rows.columns)}")
        keys += found
    return _deduplicated(rows, tuple(dict.fromkeys(keys)), label)


def _named(rows: Rows, name: str) -> list[int]:
    """Return the positions of all columns of a name, in which dots and backticks have no meaning."""
    if rows.context.case_sensitive:
        return [at for at, other in enumerate(rows.columns) if other == name]
    return [at for at, other in enumerate(rows.columns) if other.lower() == name.lower()]


def _twin_groups(rows: Rows, keys: tuple[int, ...], twin: DataFrame) -> GroupedData:
    return twin.groupBy(*(quote(rows.columns[key]) for key in keys))


# --- aggregates --------------------------------------------------------------------------------------------


def _aggregated(
    rows: Rows, keys: tuple[int, ...], expressions: Sequence[Expression], schema: StructType
) -> Rows:
    """``schema``: that of the result, as Spark determines it."""
    rows, keys, expressions = _of_needed_columns(rows, keys, expressions)
    chain = rows.chain
    calls = _calls(rows, expressions, schema)
    aggregation = Aggregation(chain.wire, keys, calls)
    names = ", ".join(rows.columns[key] for key in keys)
    label = f"groupBy({names}).agg({', '.join(each.text.replace('`', '') for each in expressions)})"
    states = from_arrow_schema(aggregation.states, prefer_timestamp_ntz=True)
    layout = rows.layout
    if not aggregation.sets and _comes_in_groups(layout, keys):
        step: TaskStep | RowsToStates = RowsToStates(aggregation, label)
        grouped = Rows(chain.then(step, states), layout.selected(keys))
    else:
        step = PartialAggregate(aggregation, label)
        partial = Rows(chain.then(step, states), replace(layout, ordered_by=()).selected(keys))
        grouped = order_rows(place_rows(partial, tuple(range(len(keys)))), aggregation.order)
    result = grouped.chain.then(Aggregate(aggregation, chain.context.wire(schema), label), schema)
    if len(schema) < len(keys) + len(calls):
        return Rows(result)  # spark.sql.retainGroupColumns is off
    key_order = grouped.layout.ordered_by[: len(keys)]
    return Rows(result, replace(grouped.layout, ordered_by=key_order))


def _of_needed_columns(
    rows: Rows, keys: tuple[int, ...], expressions: Sequence[Expression]
) -> tuple[Rows, tuple[int, ...], Sequence[Expression]]:
    """Reduce an aggregate's input to the needed columns, if its source can read only those."""
    needed = tuple(sorted({*keys, *(column for each in expressions for column in each.columns)}))
    narrow = reading_only(rows, needed) if len(needed) < len(rows.columns) else None
    if narrow is None:
        return rows, keys, expressions
    place = {column: at for at, column in enumerate(needed)}
    moved = [replace(each, columns=tuple(place[column] for column in each.columns)) for each in expressions]
    return narrow, tuple(place[key] for key in keys), moved


def _calls(rows: Rows, expressions: Sequence[Expression], schema: StructType) -> tuple[AggregateCall, ...]:
    context, fields, wire = rows.context, rows.schema.fields, rows.chain.wire
    results = context.wire(schema).types[len(schema) - len(expressions) :]
    is_set = functools.cache(functools.partial(_is_set, context))
    version = functools.cache(functools.partial(_version, context))
    calls = []
    for expression, result in zip(expressions, results, strict=True):
        kinds = tuple(fields[column].dataType for column in expression.columns)
        wires = tuple(wire.field(column).type for column in expression.columns)
        request = AggregateRequest(expression, kinds, wires, result, is_set, version)
        function, is_distinct = call_of(request, rows.schema, wire)
        calls.append(AggregateCall(function, expression.columns, is_distinct))
    return tuple(calls)


def _is_set(context: FrameContext, name: str) -> bool:
    return str(context.spark.conf.get(name)).lower() == "true"


def _version(context: FrameContext) -> tuple[int, int]:
    """Return the first two numbers of the version of the session's Spark."""
    major, minor = str(context.spark.version).split(".")[:2]
    return int(major), int(minor)


def _comes_in_groups(layout: Layout, keys: tuple[int, ...]) -> bool:
    """Return whether the rows of each group are in one partition, one after another."""
    if not layout.placed_by or not set(layout.placed_by) <= set(keys):
        return False
    return {key.column for key in layout.ordered_by[: len(set(keys))]} == set(keys)


# --- different rows ----------------------------------------------------------------------------------------


def _deduplicated(rows: Rows, keys: tuple[int, ...], label: str) -> Rows:
    chain = rows.chain
    for key in keys:
        try:
            check_group_key(rows.schema.fields[key], chain.wire.field(key).type)
        except ColumnError as error:
            raise ColumnError(f"{label}: {error}") from None
    if not chain.schema.names:
        raise UnsupportedError(f"{label} of a frame without columns: take limit(1) instead")
    # the layout stays true, because rows keep their order and only some are dropped
    fewer = Rows(chain.then(PartialFirstRows(keys, label), chain.schema), rows.layout)
    grouped = order_rows(place_rows(fewer, keys), RowOrder(keys))
    result = grouped.chain.then(FirstRowOfEachKey(keys, label), chain.schema)
    return Rows(result, grouped.layout)
