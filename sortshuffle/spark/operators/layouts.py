"""`place_rows` and `order_rows` prepare rows to be grouped, aggregated, sorted or joined.

Both return the rows unchanged if their layout already satisfies the request. Otherwise `place_rows` adds an
exchange. `order_rows` changes the exchange that the rows come from, so that extents are sorted when they are
written and merged when they are read. After steps that make other rows, it adds a sort within each task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from sortshuffle.errors import UsageError
from sortshuffle.payload.ordering import RowOrder, SortKey
from sortshuffle.spark.operators.key_checks import check_placement_key
from sortshuffle.spark.operators.partition_counts import default_partitions
from sortshuffle.spark.plan.chain import UNKNOWN_LAYOUT, Chain, FrameContext, Layout, Rows
from sortshuffle.spark.plan.exchange import Exchange
from sortshuffle.spark.plan.origins import ExchangeOrigin
from sortshuffle.spark.plan.schemes import Hash, Scheme
from sortshuffle.spark.steps.local_sort import LocalSort
from sortshuffle.spark.worker.stages import PerBatchStep


def common_context(rows: Rows, other: Rows, what: str) -> FrameContext:
    """Return the context of two frames. Raises `UsageError` naming ``what`` if their sessions differ."""
    context = rows.context
    if context.spark is not other.context.spark:
        raise UsageError(f"the frames of {what}() must be of one Spark session")
    return context


def exchange_rows(rows: Rows, scheme: Scheme, count: int, layout: Layout = UNKNOWN_LAYOUT) -> Rows:
    """Return the rows after a new exchange."""
    chain = rows.chain
    origin = ExchangeOrigin(Exchange(chain, count, scheme))
    return Rows(Chain(chain.context, origin, chain.schema, chain.wire), layout)


def hash_exchanged(rows: Rows, keys: tuple[int, ...], count: int) -> Rows:
    """Place the rows by Spark's hash of these columns. Raises `ColumnError` if a type is not hashed here."""
    for key in keys:
        check_placement_key(rows.schema.fields[key], rows.chain.wire.field(key).type)
    return exchange_rows(rows, Hash(keys), count, Layout(keys, count))


def place_rows(rows: Rows, keys: tuple[int, ...], count: int | None = None) -> Rows:
    """Return the rows with those of equal keys in one partition, by Spark's hash of all or some of the keys.

    ``count``: the number of partitions. None accepts any existing placement; a new exchange then has
    `default_partitions`. Without keys all rows are in one partition. Raises `ColumnError` for
    keys by which rows cannot be placed.
    """
    layout = rows.layout
    if layout.placed_by and set(layout.placed_by) <= set(keys) and count in (None, layout.partitions):
        return rows
    if count is None:
        count = default_partitions(rows) if keys else 1
    return hash_exchanged(rows, keys, count)


def placement_of(rows: Rows, keys: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
    """Return by which keys (positions in ``keys``) rows are placed, and the number of partitions. None if
    they are not placed so, or do not begin with an exchange, as rows read together with others must."""
    layout = rows.layout
    if not layout.placed_by or layout.partitions is None or not set(layout.placed_by) <= set(keys):
        return None
    if not isinstance(rows.chain.origin, ExchangeOrigin):
        return None
    return tuple(keys.index(column) for column in layout.placed_by), layout.partitions


def placed_exactly(rows: Rows, keys: tuple[int, ...], count: int) -> Rows:
    """Place rows by exactly these columns into ``count`` partitions. The chain begins with an exchange."""
    layout = rows.layout
    is_placed = (layout.placed_by, layout.partitions) == (keys, count)
    if is_placed and isinstance(rows.chain.origin, ExchangeOrigin):
        return rows
    return hash_exchanged(rows, keys, count)


def order_rows(rows: Rows, order: RowOrder) -> Rows:
    """Return the rows with every partition sorted. Rows with equal keys keep their order."""
    layout = rows.layout
    if layout.ordered_by[: len(order.keys)] == order.keys:
        return rows
    chain = rows.chain
    sorted_layout = replace(layout, ordered_by=order.keys)
    at_exchange = _at_exchange(chain, order)
    if at_exchange is not None:
        return Rows(at_exchange, sorted_layout)
    step = LocalSort(order, chain.wire, order.describe(chain.schema.names))
    return Rows(chain.then(step, chain.schema), sorted_layout)


def _at_exchange(chain: Chain, order: RowOrder) -> Chain | None:
    """Return the chain with its exchange delivering rows in ``order``, which is by columns of the last step.
    None if it does not begin with an exchange, or if a step made one of these columns."""
    origin = chain.origin
    by_batch = all(isinstance(step, PerBatchStep) for step in chain.steps)
    if not isinstance(origin, ExchangeOrigin) or not by_batch:
        return None
    keys: list[SortKey] = []
    for key in order.keys:
        column: int | None = key.column
        for step in reversed(chain.steps):
            column = None if column is None else cast(PerBatchStep, step).source_of(column)
        if column is None:
            return None
        keys.append(replace(key, column=column))
    at_exchange = RowOrder(tuple(keys))
    return replace(chain, origin=ExchangeOrigin(origin.exchange.ordered_by(at_exchange), at_exchange))
