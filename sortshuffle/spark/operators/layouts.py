"""Where rows must be before they can be grouped, aggregated, sorted or joined: `placed` and `ordered`.

Both give the rows they were given where their layout says so already. Otherwise rows are placed by an
exchange; and they are put in order by the exchange that they come from, whose extents are then sorted where
they are written and merged where they are read, or, behind steps that make other rows of them, by a sort
within the task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from sortshuffle.errors import UsageError
from sortshuffle.payload.ordering import RowOrder, SortKey
from sortshuffle.spark.operators.key_checks import check_placement_key
from sortshuffle.spark.plan.chain import UNKNOWN_LAYOUT, Chain, FrameContext, Layout, Rows
from sortshuffle.spark.plan.exchange import Exchange
from sortshuffle.spark.plan.origins import ExchangeOrigin
from sortshuffle.spark.plan.schemes import Hash, Scheme
from sortshuffle.spark.steps.local_sort import LocalSort
from sortshuffle.spark.worker.stages import PerBatchStep


def common_context(rows: Rows, other: Rows, what: str) -> FrameContext:
    """The context of what is made of two frames by the method ``what``. Raises `UsageError` for frames of two
    sessions."""
    context = rows.context
    if context.spark is not other.context.spark:
        raise UsageError(f"the frames of {what}() must be of one Spark session")
    return context


def exchanged(rows: Rows, scheme: Scheme, count: int, layout: Layout = UNKNOWN_LAYOUT) -> Rows:
    """The frame's rows behind an exchange of their own."""
    chain = rows.chain
    origin = ExchangeOrigin(Exchange(chain, count, scheme))
    return Rows(Chain(chain.context, origin, chain.schema, chain.wire), layout)


def hash_exchanged(rows: Rows, keys: tuple[int, ...], count: int) -> Rows:
    """The rows where Spark's hash of these columns places them. Raises `ColumnError` where it cannot be
    matched."""
    for key in keys:
        check_placement_key(rows.schema.fields[key], rows.chain.wire.field(key).type)
    return exchanged(rows, Hash(keys), count, Layout(keys, count))


def placed(rows: Rows, keys: tuple[int, ...], count: int | None = None) -> Rows:
    """The frame with rows of equal keys in one partition, by Spark's hash of the keys or of some of them.

    ``count``: into so many partitions; None: where there is no exchange yet, into
    ``spark.sql.shuffle.partitions``. Without keys all rows are in one partition. Raises `ColumnError` for
    keys by which rows cannot be placed.
    """
    layout = rows.layout
    if layout.placed_by and set(layout.placed_by) <= set(keys) and count in (None, layout.partitions):
        return rows
    if count is None:
        count = rows.context.shuffle_partitions() if keys else 1
    return hash_exchanged(rows, keys, count)


def placement_of(rows: Rows, keys: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
    """By which of the keys (positions in ``keys``) a frame is placed, and into how many partitions. None if
    by none, or if it does not begin with an exchange, as what is read together with another frame must."""
    layout = rows.layout
    if not layout.placed_by or layout.partitions is None or not set(layout.placed_by) <= set(keys):
        return None
    if not isinstance(rows.chain.origin, ExchangeOrigin):
        return None
    return tuple(keys.index(column) for column in layout.placed_by), layout.partitions


def placed_exactly(rows: Rows, keys: tuple[int, ...], count: int) -> Rows:
    """The frame placed by exactly these columns into so many partitions, straight from an exchange."""
    layout = rows.layout
    is_placed = (layout.placed_by, layout.partitions) == (keys, count)
    if is_placed and isinstance(rows.chain.origin, ExchangeOrigin):
        return rows
    return hash_exchanged(rows, keys, count)


def ordered(rows: Rows, order: RowOrder) -> Rows:
    """The frame with every partition sorted; ties keep the order in which the rows are."""
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
    """The same chain with its exchange delivering in the order of these columns of its last step; None if it
    begins with none, or if the columns are not those of the exchange."""
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
