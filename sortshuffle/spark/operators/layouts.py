"""Where rows must be before they can be grouped, aggregated, sorted or joined: `placed` and `ordered`.

Both give the frame they were given where its layout says so already. Otherwise rows are placed by an
exchange; and they are put in order by the exchange that they come from, whose extents are then sorted where
they are written and merged where they are read, or, behind steps that make other rows of them, by a sort
within the task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from sortshuffle.errors import UsageError
from sortshuffle.payload.ordering import RowOrder, SortKey
from sortshuffle.spark.exchange import Exchange
from sortshuffle.spark.keys import check_placement_key
from sortshuffle.spark.local_sort import LocalSort
from sortshuffle.spark.origins import ExchangeOrigin
from sortshuffle.spark.plan import UNKNOWN_LAYOUT, Chain, FrameContext, Layout
from sortshuffle.spark.schemes import Hash, Scheme
from sortshuffle.spark.stages import PER_BATCH, PerBatchStep

if TYPE_CHECKING:
    from sortshuffle.spark.frame import ShuffleFrame


def common_context(frame: ShuffleFrame, other: ShuffleFrame, what: str) -> FrameContext:
    """The context of what is made of two frames by the method ``what``. Raises `UsageError` for what is no
    frame, and for frames of two sessions."""
    if not isinstance(other, type(frame)):
        kind = type(other).__name__
        raise UsageError(f"{what}() takes another ShuffleFrame, not {kind}: wrap it in frame()")
    context = frame._chain.context
    if context.spark is not other._chain.context.spark:
        raise UsageError(f"the frames of {what}() must be of one Spark session")
    return context


def exchanged(
    frame: ShuffleFrame, scheme: Scheme, count: int, layout: Layout = UNKNOWN_LAYOUT
) -> ShuffleFrame:
    """The frame's rows behind an exchange of their own."""
    chain = frame._chain
    origin = ExchangeOrigin(Exchange(chain, count, scheme))
    return frame._derived(Chain(chain.context, origin, chain.schema, chain.wire), layout)


def hash_exchanged(frame: ShuffleFrame, keys: tuple[int, ...], count: int) -> ShuffleFrame:
    """The rows where Spark's hash of these columns places them. Raises `ColumnError` where it cannot be
    matched."""
    for key in keys:
        check_placement_key(frame.schema.fields[key], frame._chain.wire.field(key).type)
    return exchanged(frame, Hash(keys), count, Layout(keys, count))


def placed(frame: ShuffleFrame, keys: tuple[int, ...], count: int | None = None) -> ShuffleFrame:
    """The frame with rows of equal keys in one partition, by Spark's hash of the keys or of some of them.

    ``count``: into so many partitions; None: where there is no exchange yet, into
    ``spark.sql.shuffle.partitions``. Without keys all rows are in one partition. Raises `ColumnError` for
    keys by which rows cannot be placed.
    """
    layout = frame._layout
    if layout.placed_by and set(layout.placed_by) <= set(keys) and count in (None, layout.partitions):
        return frame
    if count is None:
        count = frame._shuffle_partitions() if keys else 1
    return hash_exchanged(frame, keys, count)


def placement_of(frame: ShuffleFrame, keys: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
    """By which of the keys (positions in ``keys``) a frame is placed, and into how many partitions. None if
    by none, or if it does not begin with an exchange, as what is read together with another frame must."""
    layout = frame._layout
    if not layout.placed_by or layout.partitions is None or not set(layout.placed_by) <= set(keys):
        return None
    if not isinstance(frame._chain.origin, ExchangeOrigin):
        return None
    return tuple(keys.index(column) for column in layout.placed_by), layout.partitions


def placed_exactly(frame: ShuffleFrame, keys: tuple[int, ...], count: int) -> ShuffleFrame:
    """The frame placed by exactly these columns into so many partitions, straight from an exchange."""
    layout = frame._layout
    is_placed = (layout.placed_by, layout.partitions) == (keys, count)
    if is_placed and isinstance(frame._chain.origin, ExchangeOrigin):
        return frame
    return hash_exchanged(frame, keys, count)


def ordered(frame: ShuffleFrame, order: RowOrder) -> ShuffleFrame:
    """The frame with every partition sorted; ties keep the order in which the rows are."""
    layout = frame._layout
    if layout.ordered_by[: len(order.keys)] == order.keys:
        return frame
    chain = frame._chain
    sorted_layout = replace(layout, ordered_by=order.keys)
    at_exchange = _at_exchange(chain, order)
    if at_exchange is not None:
        return frame._derived(at_exchange, sorted_layout)
    step = LocalSort(order, chain.wire, order.describe(chain.schema.names))
    return frame._derived(chain.then(step, chain.schema), sorted_layout)


def _at_exchange(chain: Chain, order: RowOrder) -> Chain | None:
    """The same chain with its exchange delivering in the order of these columns of its last step; None if it
    begins with none, or if the columns are not those of the exchange."""
    origin = chain.origin
    if not isinstance(origin, ExchangeOrigin) or not all(isinstance(step, PER_BATCH) for step in chain.steps):
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
