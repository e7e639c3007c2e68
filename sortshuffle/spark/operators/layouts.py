"""`place_rows` and `order_rows` prepare rows to be grouped, aggregated, sorted or joined.

Both return the rows unchanged if their layout already satisfies the request. Otherwise `place_rows` adds an
exchange. `order_rows` changes the exchange that the rows come from, so that extents are sorted when they are
written and merged when they are read. After steps that make other rows, it adds a sort within each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    origin = ExchangeOrigin(Exchange(chain, count, scheme, is_default=layout.is_default))
    return Rows(Chain(chain.context, origin, chain.schema, chain.wire), layout)


def hash_exchanged(rows: Rows, keys: tuple[int, ...], count: int | None = None) -> Rows:
    """Place the rows by Spark's hash of these columns. ``count``: the number of partitions, if the user asks
    for one. Raises `ColumnError` if a type is not hashed here."""
    if count is None:
        return _hash_exchanged(rows, keys, default_partitions(rows) if keys else 1, is_default=True)
    return _hash_exchanged(rows, keys, count, is_default=False)


def _hash_exchanged(rows: Rows, keys: tuple[int, ...], count: int, *, is_default: bool) -> Rows:
    for key in keys:
        check_placement_key(rows.schema.fields[key], rows.chain.wire.field(key).type)
    return exchange_rows(rows, Hash(keys), count, Layout(keys, count, is_default=is_default))


def place_rows(rows: Rows, keys: tuple[int, ...]) -> Rows:
    """Return the rows with those of equal keys in one partition, by Spark's hash of all or some of the keys.

    Any existing placement serves. Without keys all rows are in one partition. Raises `ColumnError` for keys
    by which rows cannot be placed.
    """
    layout = rows.layout
    if layout.placed_by and set(layout.placed_by) <= set(keys):
        return rows
    return hash_exchanged(rows, keys)


# ---- several rows, placed alike ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyPlacement:
    """How the rows of several sides are placed: by their keys at the positions ``by``, into this number of
    partitions. ``is_default``: whether the user did not ask for the number."""

    by: tuple[int, ...]
    partitions: int
    is_default: bool

    def place(self, rows: Rows, keys: tuple[int, ...]) -> Rows:
        """Place a side's rows. ``keys``: positions of its keys. The result begins with an exchange."""
        layout, columns = rows.layout, tuple(keys[at] for at in self.by)
        is_placed = (layout.placed_by, layout.partitions) == (columns, self.partitions)
        if is_placed and isinstance(rows.chain.origin, ExchangeOrigin):
            return rows
        return _hash_exchanged(rows, columns, self.partitions, is_default=self.is_default)

    def is_enough_for(self, rows: Rows, own: KeyPlacement | None) -> bool:
        """Return whether a side's rows may be placed so. ``own``: how they are placed already. Alone they
        may get as many partitions, not more: with the rows of both sides, partitions are still small."""
        if not self.is_default or (own and (own.by, own.partitions) == (self.by, self.partitions)):
            return True
        return default_partitions(rows) <= self.partitions


def common_placement(sides: Sequence[Rows], keys: Sequence[tuple[int, ...]]) -> KeyPlacement:
    """Return how to place the rows of all sides. ``keys``: positions of the keys of each side.

    A placement that one side has already is followed by the others; of several, the one with the most
    partitions. If the user did not ask for its number, it must be enough for each of the others: a small side
    that was placed in one partition must not draw a large one there.
    """
    found = [_placement_of(each, own) for each, own in zip(sides, keys, strict=True)]
    existing = [
        placement
        for placement in found
        if placement and all(placement.is_enough_for(*each) for each in zip(sides, found, strict=True))
    ]
    if existing:
        return max(existing, key=lambda each: each.partitions)
    count = default_partitions(*sides) if keys[0] else 1
    return KeyPlacement(tuple(range(len(keys[0]))), count, is_default=True)


def _placement_of(rows: Rows, keys: tuple[int, ...]) -> KeyPlacement | None:
    """Return how rows are placed by their ``keys``. None if they are not placed so, or do not begin with an
    exchange, as rows read together with others must."""
    layout = rows.layout
    if not layout.placed_by or layout.partitions is None or not set(layout.placed_by) <= set(keys):
        return None
    if not isinstance(rows.chain.origin, ExchangeOrigin):
        return None
    by = tuple(keys.index(column) for column in layout.placed_by)
    return KeyPlacement(by, layout.partitions, layout.is_default)


# ---- order ------------------------------------------------------------------------------------------------


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
    if origin.order is not None:  # rows with equal keys keep the order that they have now
        columns = {key.column for key in keys}
        keys += [key for key in origin.order.keys if key.column not in columns]
    at_exchange = RowOrder(tuple(keys))
    return replace(chain, origin=ExchangeOrigin(origin.exchange.ordered_by(at_exchange), at_exchange))
