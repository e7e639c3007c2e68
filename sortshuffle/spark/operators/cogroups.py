"""``cogroup``: pairs the groups of two frames that have equal keys.

Both frames are placed by Spark's hash of their keys, and sorted by them. In each partition the two sorted
streams are read in step (`compute.groups.cogroup`), so only one group and one batch of each side are held. A
side that is already placed by all or some of its keys does not move, and the other side follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from sortshuffle.compute.groups.cogroup import comparable
from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.functions.cogrouped import CoGroupFunction
from sortshuffle.spark.operators.layouts import (
    common_context,
    common_placement,
    order_rows,
)
from sortshuffle.spark.plan.chain import Chain, Rows
from sortshuffle.spark.plan.origins import TogetherOrigin
from sortshuffle.spark.steps.group_steps import CoGroupApply


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows and the positions of their grouping columns, in the order given."""

    rows: Rows
    keys: tuple[int, ...]


def cogroup(
    left: GroupedRows,
    right: GroupedRows,
    adaptor: type[CoGroupFunction],
    func: Callable[..., Any],
    schema: StructType | str,
) -> Rows:
    """Return the results of a function of both groups of each key. ``adaptor``: calls the function.

    Raises `UsageError` or `ColumnError` if the keys do not agree in number and types.
    """
    _check_sides(left, right)
    sides, keys = (left.rows, right.rows), (left.keys, right.keys)
    context = left.rows.context
    function = adaptor.of(func, schema, context.conf, *keys)
    orders = [RowOrder(own) for own in keys]
    placement = common_placement(sides, keys)
    alike = [placement.place(each, own) for each, own in zip(sides, keys, strict=True)]
    chains = [order_rows(each, order).chain for each, order in zip(alike, orders, strict=True)]
    named = (", ".join(side.columns[key] for key in own) for side, own in zip(sides, keys, strict=True))
    label = function.declared.place.replace("cogroup()", "cogroup({} with {})".format(*named))
    combine = CoGroupApply(function, (orders[0], orders[1]), (chains[0].wire, chains[1].wire), label)
    declared = function.declared.schema
    origin = TogetherOrigin(tuple(chains), combine)
    return Rows(Chain(context, origin, declared, context.wire(declared)))


def _check_sides(left: GroupedRows, right: GroupedRows) -> None:
    lefts, rights = left.rows, right.rows
    common_context(lefts, rights, "cogroup")
    if len(left.keys) != len(right.keys):
        raise UsageError(
            f"both sides of a cogroup must have the same number of keys, not {len(left.keys)} and"
            f" {len(right.keys)}"
        )
    for own, other in zip(left.keys, right.keys, strict=True):
        ours, theirs = lefts.schema.fields[own], rights.schema.fields[other]
        if not comparable(lefts.chain.wire.field(own).type, rights.chain.wire.field(other).type):
            raise ColumnError(
                f"the keys of a cogroup must be of the same types: {ours.name} is"
                f" {ours.dataType.simpleString()} and {theirs.name} {theirs.dataType.simpleString()}, whose"
                " equal values are placed apart. Cast one of them first"
            )
