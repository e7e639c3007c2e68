"""`groupBy().agg` and what is like it: `count`, `sum`, ..., `distinct`, `dropDuplicates`.

    rows -> partial aggregation -> exchange by the keys, sorted by them -> one row per group as it completes

The exchange is that of `layouts.placed`: none where rows are placed by some of the keys already. Then partial
states are sorted within the task; and where rows also come sorted by the keys, each is made a state by
itself, because nothing has to be gathered.

A frame without keys has one row, in one partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NumericType, StructType

from sortshuffle.compute.aggregate import Aggregation, Call, FirstRows, PlainStates
from sortshuffle.compute.aggregate_partial import partial
from sortshuffle.compute.aggregate_results import first_rows, results
from sortshuffle.errors import ColumnError, UnsupportedError
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.columns import resolve
from sortshuffle.spark.keys import check_group_key
from sortshuffle.spark.operators.aggregate_calls import (
    Expression,
    Request,
    call_of,
    expressions_of,
    position_expression,
)
from sortshuffle.spark.operators.layouts import ordered, placed
from sortshuffle.spark.plan import FrameContext, Layout
from sortshuffle.spark.stages import Batches, TaskStep
from sortshuffle.spark.task import Task
from sortshuffle.spark.twin import twin

if TYPE_CHECKING:
    from sortshuffle.spark.frame import ShuffleFrame


def aggregate(
    frame: ShuffleFrame, keys: tuple[int, ...], exprs: Sequence[Column | dict[str, str]]
) -> ShuffleFrame:
    """``groupBy(*keys).agg(*exprs)``."""
    context = frame._chain.context
    expressions = expressions_of(exprs, frame.schema, context.case_sensitive)
    groups = _twin_groups(frame, keys)
    if exprs and isinstance(exprs[0], dict):
        # Spark gives the columns of a dict in an order of its own
        schema = groups.agg(exprs[0]).schema
        names = [groups.agg(each.column()).schema.names[-1] for each in expressions]
        by_name = dict(zip(names, expressions, strict=True))
        expressions = [by_name[name] for name in schema.names[len(schema) - len(expressions) :]]
    else:
        schema = groups.agg(*(each.column() for each in expressions)).schema
    return _aggregated(frame, keys, expressions, schema)


def count(frame: ShuffleFrame, keys: tuple[int, ...]) -> ShuffleFrame:
    """``groupBy(*keys).count()``."""
    expression = Expression("count", (), False, False, "count(1)", "count")
    return _aggregated(frame, keys, [expression], _twin_groups(frame, keys).count().schema)


def numeric(frame: ShuffleFrame, keys: tuple[int, ...], function: str, cols: Sequence[str]) -> ShuffleFrame:
    """``groupBy(*keys).sum(*cols)`` and ``avg``, ``min``, ``max``. As in Spark of all numeric columns, keys
    included, where none is named."""
    schema = getattr(_twin_groups(frame, keys), function)(*cols).schema
    case_sensitive = frame._chain.context.case_sensitive
    positions = [resolve(name, frame.schema, case_sensitive) for name in cols] or [
        at for at, field in enumerate(frame.schema) if isinstance(field.dataType, NumericType)
    ]
    expressions = [position_expression(function, at, frame.schema) for at in positions]
    return _aggregated(frame, keys, expressions, schema)


def distinct(frame: ShuffleFrame) -> ShuffleFrame:
    """``distinct()``."""
    twin(frame._chain.context, frame.schema).distinct()  # refuses maps
    return _deduplicated(frame, tuple(range(len(frame.columns))), "distinct()")


def drop_duplicates(frame: ShuffleFrame, subset: Sequence[str] | None) -> ShuffleFrame:
    """``dropDuplicates(subset)``."""
    twin(frame._chain.context, frame.schema).dropDuplicates(subset)  # refuses the rest
    if subset is None:
        return _deduplicated(frame, tuple(range(len(frame.columns))), "dropDuplicates()")
    keys = [at for name in subset for at in _named(frame, name)]
    return _deduplicated(frame, tuple(dict.fromkeys(keys)), f"dropDuplicates({', '.join(subset)})")


def _named(frame: ShuffleFrame, name: str) -> list[int]:
    """The columns of a name, which is taken as it is."""
    if frame._chain.context.case_sensitive:
        return [at for at, other in enumerate(frame.columns) if other == name]
    return [at for at, other in enumerate(frame.columns) if other.lower() == name.lower()]


def _twin_groups(frame: ShuffleFrame, keys: tuple[int, ...]) -> GroupedData:
    """The groups of an empty DataFrame of the frame's columns."""
    empty: DataFrame = twin(frame._chain.context, frame.schema)
    return empty.groupBy(*("`" + frame.columns[key].replace("`", "``") + "`" for key in keys))


# --- aggregates --------------------------------------------------------------------------------------------


def _aggregated(
    frame: ShuffleFrame, keys: tuple[int, ...], expressions: Sequence[Expression], schema: StructType
) -> ShuffleFrame:
    """``schema``: of the result, as Spark has it."""
    frame, keys, expressions = _of_needed_columns(frame, keys, expressions)
    chain = frame._chain
    calls = _calls(frame, expressions, schema)
    aggregation = Aggregation(chain.wire, keys, calls)
    names = ", ".join(frame.columns[key] for key in keys)
    label = f"groupBy({names}).agg({', '.join(each.text.replace('`', '') for each in expressions)})"
    states = from_arrow_schema(aggregation.states, prefer_timestamp_ntz=True)
    layout = frame._layout
    if not aggregation.sets and _comes_in_groups(layout, keys):
        step: TaskStep | Lift = Lift(aggregation, label)
        rows = frame._derived(chain.then(step, states), _moved(layout, keys))
    else:
        step = PartialAggregate(aggregation, label)
        rows = frame._derived(chain.then(step, states), _moved(replace(layout, ordered_by=()), keys))
        rows = ordered(placed(rows, tuple(range(len(keys)))), aggregation.order)
    result = rows._chain.then(Aggregate(aggregation, chain.context.wire(schema), label), schema)
    if len(schema) < len(keys) + len(calls):
        return frame._derived(result)  # spark.sql.retainGroupColumns is off
    key_order = rows._layout.ordered_by[: len(keys)]
    return frame._derived(result, replace(rows._layout, ordered_by=key_order))


def _of_needed_columns(
    frame: ShuffleFrame, keys: tuple[int, ...], expressions: Sequence[Expression]
) -> tuple[ShuffleFrame, tuple[int, ...], Sequence[Expression]]:
    """The aggregate on a frame of the needed columns only, if the source can be asked for those."""
    needed = tuple(sorted({*keys, *(column for each in expressions for column in each.columns)}))
    narrow = frame._reading_only(needed) if len(needed) < len(frame.columns) else None
    if narrow is None:
        return frame, keys, expressions
    place = {column: at for at, column in enumerate(needed)}
    moved = [replace(each, columns=tuple(place[column] for column in each.columns)) for each in expressions]
    return narrow, tuple(place[key] for key in keys), moved


def _calls(frame: ShuffleFrame, expressions: Sequence[Expression], schema: StructType) -> tuple[Call, ...]:
    context, fields, wire = frame._chain.context, frame.schema.fields, frame._chain.wire
    results = context.wire(schema).types[len(schema) - len(expressions) :]
    ansi = _is_set(context, "spark.sql.ansi.enabled")
    legacy_statistics = _is_set(context, "spark.sql.legacy.statisticalAggregate")
    calls = []
    for expression, result in zip(expressions, results, strict=True):
        kinds = tuple(fields[column].dataType for column in expression.columns)
        wires = tuple(wire.field(column).type for column in expression.columns)
        request = Request(expression, kinds, wires, result, ansi, legacy_statistics)
        function, is_distinct = call_of(request, frame.schema, wire)
        calls.append(Call(function, expression.columns, is_distinct))
    return tuple(calls)


def _is_set(context: FrameContext, name: str) -> bool:
    return str(context.spark.conf.get(name)).lower() == "true"


def _comes_in_groups(layout: Layout, keys: tuple[int, ...]) -> bool:
    """Whether the rows of each group are in one partition and stand together."""
    if not layout.placed_by or not set(layout.placed_by) <= set(keys):
        return False
    return {key.column for key in layout.ordered_by[: len(set(keys))]} == set(keys)


def _moved(layout: Layout, keys: tuple[int, ...]) -> Layout:
    """The layout where the keys are the first columns."""
    return layout.selected(keys)


@dataclass(frozen=True)
class PartialAggregate(TaskStep):
    """Rows to states of groups, as far as that makes fewer."""

    aggregation: Aggregation
    label: str

    def run(self, batches: Batches, task: Task, memory: MemoryBudget) -> Batches:
        return partial(batches, self.aggregation.reducers(), memory)

    def describe(self) -> str:
        return f"{self.label}, as far as a task sees"


@dataclass(frozen=True)
class Lift:
    """Every row to a state of its own."""

    aggregation: Aggregation
    label: str

    def __call__(self, batches: Batches) -> Batches:
        reducer = PlainStates(self.aggregation)
        for batch in batches:
            if batch.num_rows:
                yield reducer.given(reducer.lifted(reducer.selected(batch)))

    def describe(self) -> str:
        return f"{self.label}, each row by itself"


@dataclass(frozen=True)
class Aggregate:
    """States that come in groups to one row for each. ``wire``: of the result."""

    aggregation: Aggregation
    wire: pa.Schema
    label: str

    def __call__(self, batches: Batches) -> Batches:
        return results(batches, self.aggregation, self.wire)

    def describe(self) -> str:
        return self.label


# --- different rows ----------------------------------------------------------------------------------------


def _deduplicated(frame: ShuffleFrame, keys: tuple[int, ...], label: str) -> ShuffleFrame:
    chain = frame._chain
    for key in keys:
        try:
            check_group_key(frame.schema.fields[key], chain.wire.field(key).type)
        except ColumnError as error:
            raise ColumnError(f"{label}: {error}; or let Spark do it, behind toDF()") from None
    if not chain.schema.names:
        raise UnsupportedError(f"{label} of a frame without columns: take limit(1) instead")
    # rows keep their order, and are at most fewer: the layout holds
    fewer = frame._derived(chain.then(PartialFirstRows(keys, label), chain.schema), frame._layout)
    rows = ordered(placed(fewer, keys), RowOrder(keys))
    result = rows._chain.then(DifferentRows(keys, label), chain.schema)
    return frame._derived(result, rows._layout)


@dataclass(frozen=True)
class PartialFirstRows(TaskStep):
    """The first row of each key, as far as a task sees: more where that does not pay."""

    keys: tuple[int, ...]
    label: str

    def run(self, batches: Batches, task: Task, memory: MemoryBudget) -> Batches:
        return partial(batches, [FirstRows(self.keys)], memory)

    def describe(self) -> str:
        return f"{self.label}, as far as a task sees"


@dataclass(frozen=True)
class DifferentRows:
    """The first row of each key, of rows sorted by it."""

    keys: tuple[int, ...]
    label: str

    def __call__(self, batches: Batches) -> Batches:
        return first_rows(batches, self.keys)

    def describe(self) -> str:
        return self.label
