"""New columns: ``withColumn``, ``withColumns``, and projections.

`with_columns` takes Arrow expressions, such as ``pyarrow.compute.field("a") + 1``, which follow Arrow's
rules; docs/spark.md lists the differences from Spark's rules. It also takes Spark's plain column references
and plain literals. Spark determines names and types, and reports errors, by analysing the call on a twin of
the frame: a DataFrame of the same columns. `project` takes what `operators.translation` has made of Spark's
expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.operators.expressions import Alias, Attribute, Literal, node_of, resolve
from sortshuffle.spark.operators.translation import Projection
from sortshuffle.spark.plan.chain import Rows
from sortshuffle.spark.schema import from_arrow, to_arrow
from sortshuffle.spark.steps.with_columns import WithColumns, evaluate

Source: TypeAlias = "int | pc.Expression"
"""The source of a column: a position in the input, or an expression over its columns."""

_LONGEST_LABEL = 120  # characters of an expression that are shown


def with_columns(rows: Rows, columns: Mapping[str, pc.Expression | Column], twin: DataFrame) -> Rows:
    """Return the rows with these columns, which replace those of the same names, or come after all others.

    The expressions are over the columns of ``rows``. Raises `UsageError` for anything but an expression over
    them, `UnsupportedError` for Spark's other expressions and for types that Spark lacks; and Spark's errors.
    """
    if not isinstance(columns, Mapping):
        raise UsageError(f"withColumns() takes a dict of names and columns, not {type(columns).__name__}")
    chain = rows.chain
    context = chain.context
    requested = [_source_and_twin(rows, twin, name, column) for name, column in columns.items()]
    types = {name: of_type for name, (_, of_type) in zip(columns, requested, strict=True)}
    schema = twin.withColumns(types).schema

    new = {name: source for name, (source, _) in zip(columns, requested, strict=True)}
    # Spark has matched the names, by its setting of now; a column that is replaced gets the new name as it is
    sources = tuple(new.get(name, at) for at, name in enumerate(schema.names))
    described = ", ".join(f"{name} = {_shown(column)}" for name, column in columns.items())
    step = WithColumns(sources, context.wire(schema), f"withColumn({described})")
    kept = [source if isinstance(source, int) else -1 for source in sources]
    return Rows(chain.then(step, schema), rows.layout.selected(kept))


def project(rows: Rows, projection: Projection, label: str) -> Rows:
    """Return the rows of a projection."""
    sources, schema = projection.sources, projection.schema
    kept = [source if isinstance(source, int) else -1 for source in sources]
    step = WithColumns(sources, rows.context.wire(schema), label)
    return Rows(rows.chain.then(step, schema), rows.layout.selected(kept))


def _source_and_twin(rows: Rows, twin: DataFrame, name: str, column: Any) -> tuple[Source, Column]:
    """Return the source of a new column, and a Column of the same type for the frame's twin."""
    if isinstance(column, pc.Expression):
        return column, sf.lit(None).cast(_type_of(name, column, rows.chain.wire))
    if not isinstance(column, Column):
        raise UsageError(
            f"withColumn('{name}') takes a pyarrow expression, such as pyarrow.compute.field('a') + 1, or a"
            f" plain column reference, not {type(column).__name__}"
        )
    node = node_of(column)
    while isinstance(node, Alias):
        node = node.child
    if isinstance(node, Attribute):
        # by name: the twin may be another plan than the one that the Column belongs to
        return resolve(node.name, rows.schema, rows.context.case_sensitive), sf.col(node.name)
    if isinstance(node, Literal):
        (kind,) = to_arrow(twin.select(column).schema, rows.context.conf.timezone).types
        return pc.scalar(pa.scalar(node.value, kind)), column
    raise UnsupportedError(
        f"withColumn('{name}'): {column} is an expression of Spark's, which does not run here: write it as a"
        " pyarrow expression, such as pyarrow.compute.field('a') + 1, compute it in a mapInArrow function, or"
        " on the DataFrame before frame(df)"
    )


def _type_of(name: str, expression: pc.Expression, wire: pa.Schema) -> st.DataType:
    """Return Spark's type of an expression's values."""
    if "FieldPath(" in str(expression):
        raise UsageError(
            f"withColumn('{name}'): {expression} means a column by its position: give its name to"
            " pyarrow.compute.field()"
        )
    try:
        arrow = evaluate(pa.RecordBatch.from_pylist([], wire), [expression], [name]).schema.field(0).type
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"withColumn('{name}'): {expression} is no expression over the columns {', '.join(wire.names)}:"
            f" {error}"
        ) from error
    if pa.types.is_null(arrow):
        return st.NullType()
    if pa.types.is_duration(arrow):
        return st.DayTimeIntervalType()
    try:
        return from_arrow(pa.schema([pa.field(name, arrow)])).fields[0].dataType
    except UnsupportedError as error:
        raise UnsupportedError(
            f"withColumn('{name}'): {expression} is of type {arrow}, which Spark has not: cast it to one that"
            " it has"
        ) from error


def _shown(column: Any) -> str:
    text = str(column)
    return text if len(text) <= _LONGEST_LABEL else f"{text[:_LONGEST_LABEL]}..."
