"""`sort` and `sortWithinPartitions`, with PySpark's arguments.

`sort` is a range exchange whose extents are sorted when they are written and merged when they are read. So
the partitions are in order, each is sorted, and no task holds more than its memory. To find the ranges it
samples the keys, as `repartitionByRange` does. Of bare Parquet files only the key columns are read for that
(1.25 M records of 100 bytes, 10 of them the key: 0.09 s instead of 0.37 s). If all rows are already in one
partition, they are sorted there.

`sortWithinPartitions` moves no rows: see `layouts.order_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from pyspark.sql import Column

from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.payload.ordering import RowOrder, SortKey
from sortshuffle.spark.operators.expressions import (
    Alias,
    Attribute,
    Node,
    Sorted,
    name_of,
    node_of,
    resolve,
)
from sortshuffle.spark.operators.key_checks import check_sort_key
from sortshuffle.spark.operators.layouts import exchange_rows, order_rows
from sortshuffle.spark.operators.partition_counts import default_partitions
from sortshuffle.spark.operators.selection import select_columns
from sortshuffle.spark.plan.chain import Rows, next_number
from sortshuffle.spark.plan.schemes import Range
from sortshuffle.spark.schema import quote

Directions: TypeAlias = "bool | int | list[bool | int]"


def sort(rows: Rows, cols: Sequence[Any], ascending: Directions) -> Rows:
    """Return the rows in a total order: each partition is sorted, and below all that follow it.

    Raises `UsageError` for arguments that PySpark does not accept, `ColumnError` for missing or unordered
    columns.
    """
    order = _order("sort", rows, cols, ascending)
    if not order.keys:
        return rows
    if rows.layout.partitions == 1:
        return order_rows(rows, order)
    count = default_partitions(rows)
    key_rows = select_columns(rows, order.columns, [rows.columns[at] for at in order.columns]).chain
    return order_rows(exchange_rows(rows, Range(order.keys, count, next_number(), key_rows), count), order)


def sort_within_partitions(rows: Rows, cols: Sequence[Any], ascending: Directions) -> Rows:
    """Return the rows with every partition sorted. Raises the same errors as `sort`."""
    return order_rows(rows, _order("sortWithinPartitions", rows, cols, ascending))


def _order(method: str, rows: Rows, cols: Sequence[Any], ascending: Directions) -> RowOrder:
    """Return the order that these arguments request. Only the first mention of a column counts."""
    if not cols:
        raise UsageError(f"{method}() takes at least one column")
    if len(cols) == 1 and isinstance(cols[0], list | tuple):
        cols = cols[0]
    nodes = [_node(method, rows, col) for col in cols]
    keys: dict[int, SortKey] = {}
    for col, node, ascends in zip(cols, nodes, _ascends(method, ascending, len(nodes)), strict=False):
        key = _key(rows, col, _directed(col, node, ascends))
        keys.setdefault(key.column, key)
    return RowOrder(keys.values())


def _node(method: str, rows: Rows, col: Any) -> Node:
    """Convert an argument to a node. As an int, the first column is 1, and -1 is the same descending."""
    if isinstance(col, str | Column):
        return node_of(col)
    if isinstance(col, bool) or not isinstance(col, int):
        raise UsageError(f"{method}() takes columns, names and ordinals, not {type(col).__name__}")
    names = rows.columns
    if not 1 <= abs(col) <= len(names):
        raise ColumnError(f"{method}() counts columns from 1 to {len(names)}, or down from -1: not {col}")
    named = Attribute(quote(names[abs(col) - 1]))
    return named if col > 0 else Sorted(named, True, True)


def _ascends(method: str, ascending: Any, count: int) -> Sequence[Any]:
    """Return for each column whether it ascends. As in PySpark, a short list limits the columns."""
    if isinstance(ascending, list):
        return ascending
    if not isinstance(ascending, int):
        raise UsageError(f"{method}() takes a bool or a list of them as ascending, not {ascending!r}")
    return [ascending] * count


def _directed(col: Any, node: Node, ascends: Any) -> Sorted:
    if not isinstance(node, Sorted):
        return Sorted(node, not ascends, not ascends)
    if not ascends or isinstance(node.child, Sorted):
        # Spark would accept this, and fail when it runs
        raise UsageError(
            f"{col} has a direction already: give it only one, either its own, such as desc(), or that of"
            " ascending"
        )
    return node


def _key(rows: Rows, col: Any, column: Sorted) -> SortKey:
    chain = rows.chain
    named = column.child.child if isinstance(column.child, Alias) else column.child
    position = resolve(name_of(named, col), rows.schema, chain.context.case_sensitive)
    check_sort_key(rows.schema.fields[position], chain.wire.field(position).type)
    return SortKey(position, column.descending, column.nulls_last)
