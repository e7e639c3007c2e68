"""`join`: joins two frames by equal keys.

The result's names, types and nullability are those of a join of the frames' twins. Two kinds of join:

    shuffled    both sides are placed by Spark's hash of the keys into one number of partitions, and each
                partition is joined separately (`ShuffledJoin`). A side that is so placed already stays there
    broadcast   every task of one side reads the whole other side, which `sortshuffle.broadcast` has marked.
                The first side stays where it is (`operators.broadcast`)

Paired keys have one type, or two integer or two floating types, of which the narrower is widened as in Spark.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as at
from pyspark.sql import Column
from pyspark.sql.types import StructField, StructType

from sortshuffle.compute.join.hash_join import JoinKind, JoinSpec, OutputColumn
from sortshuffle.compute.join.keys import JoinKeyColumns
from sortshuffle.errors import ColumnError, UnsupportedError, UsageError
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.operators.broadcast import broadcast_join
from sortshuffle.spark.operators.expressions import Attribute, Call, Node, node_of, resolve
from sortshuffle.spark.operators.key_checks import check_placement_key
from sortshuffle.spark.operators.layouts import KeyPlacement, common_context, common_placement
from sortshuffle.spark.operators.selection import select_columns
from sortshuffle.spark.operators.twin import empty_twin
from sortshuffle.spark.plan.chain import UNKNOWN_LAYOUT, Chain, Layout, Rows
from sortshuffle.spark.plan.origins import TogetherOrigin
from sortshuffle.spark.schema import quote
from sortshuffle.spark.steps.row_steps import Arrange
from sortshuffle.spark.steps.shuffled_join import ShuffledJoin

# PySpark's names of the kinds, in lower case and without underscores
_KINDS = {
    "inner": JoinKind.INNER,
    "cross": JoinKind.INNER,  # the same if there is a condition
    "left": JoinKind.LEFT,
    "leftouter": JoinKind.LEFT,
    "right": JoinKind.RIGHT,
    "rightouter": JoinKind.RIGHT,
    "outer": JoinKind.FULL,
    "full": JoinKind.FULL,
    "fullouter": JoinKind.FULL,
    "semi": JoinKind.SEMI,
    "leftsemi": JoinKind.SEMI,
    "anti": JoinKind.ANTI,
    "leftanti": JoinKind.ANTI,
}


@dataclass(frozen=True, slots=True)
class Pair:
    """The positions of a left and a right column that must be equal. ``null_safe``: nulls are equal."""

    left: int
    right: int
    null_safe: bool = False


def join(left: Rows, right: Rows, on: Any, how: str | None) -> Rows:
    """Join the rows for which ``on`` is true. Raises the errors of Spark's analysis of the same join,
    `ColumnError` for keys that cannot be compared here, `UnsupportedError` for conditions that are not
    equalities of columns, and for a result with several columns of one name."""
    context = common_context(left, right, "join")
    using, pairs = _condition(left, right, on)
    schema = _joined_schema(left, right, using, pairs, how)
    kind = _KINDS["inner" if how is None else how.lower().replace("_", "")]
    if kind.is_existence:
        right, pairs = _only_keys(right, pairs)
    output = _output(left, right, kind, pairs, using=bool(using))
    label = f"{kind.value} join on {_text_of(left, right, pairs, using)}"
    left, right, pairs, output = _widened(left, right, pairs, output)
    for pair in pairs:
        _check_key(left, pair.left)
        _check_key(right, pair.right)
    keys = JoinKeyColumns(
        *(tuple(getattr(pair, each) for pair in pairs) for each in ("left", "right", "null_safe"))
    )
    spec = JoinSpec(kind, keys, output, context.wire(schema))
    joined = broadcast_join(left, right, spec, schema, label)
    return joined if joined is not None else _shuffled_join(left, right, spec, schema, label)


# ---- conditions and results -------------------------------------------------------------------------------


def _condition(left: Rows, right: Rows, on: Any) -> tuple[list[str], list[Pair]]:
    """Return the names in ``on``, or the pairs of columns that its conditions require to be equal."""
    listed = list(on) if isinstance(on, list | tuple) else [] if on is None else [on]
    if not listed:
        raise UnsupportedError(
            "join() pairs every row with every other here, because it has no columns to join by"
        )
    if all(isinstance(each, str) for each in listed):
        return listed, []  # `_joined_schema` adds the pairs, after Spark has checked the names
    if not all(isinstance(each, Column) for each in listed):
        raise UsageError("join() takes a name, a Column, or a list of either for on")
    return [], [pair for each in listed for pair in _pairs(left, right, node_of(each), each)]


def _pairs(left: Rows, right: Rows, node: Node, condition: Column) -> list[Pair]:
    """Return the pairs of columns that a condition requires to be equal."""
    if isinstance(node, Call) and node.function == "and":
        return [pair for each in node.arguments for pair in _pairs(left, right, each, condition)]
    if isinstance(node, Call) and node.function in ("=", "<=>") and len(node.arguments) == 2:
        one, other = node.arguments
        if isinstance(one, Attribute) and isinstance(other, Attribute):
            return [_pair(left, right, one.name, other.name, null_safe=node.function == "<=>")]
    raise UnsupportedError(
        f"join() cannot join by {condition}: it takes equalities of a left and a right column (==,"
        " eqNullSafe) with & between them. Make a column of an expression first, with withColumn(); filter by"
        " any other condition on the sides, or behind an inner join"
    )


def _pair(left: Rows, right: Rows, one: str, other: str, *, null_safe: bool) -> Pair:
    if one == other:
        raise ColumnError(
            f"column {one} of the join condition is looked for on both sides: join by its name, as in"
            f' join(other, "{one}"), or rename it on one side first'
        )
    context, split = left.context, len(left.columns)
    both = StructType([*left.schema.fields, *right.schema.fields])
    first, last = sorted(resolve(name, both, context.case_sensitive) for name in (one, other))
    if not first < split <= last:
        raise UnsupportedError(
            f"columns {one} and {other} of the join condition are of one side: filter by them before the join"
        )
    return Pair(first, last - split, null_safe)


def _joined_schema(
    left: Rows, right: Rows, using: list[str], pairs: list[Pair], how: str | None
) -> StructType:
    """Return Spark's schema of the result. If the join is by names, append their columns to ``pairs``."""
    context = left.context
    lefts, rights = empty_twin(context, left.schema), empty_twin(context, right.schema)
    on: Any = using
    if not using:
        on = functools.reduce(operator.and_, (_equality(lefts, rights, pair) for pair in pairs))
    schema = lefts.join(rights, on, how).schema
    pairs += [
        Pair(
            resolve(name, left.schema, context.case_sensitive),
            resolve(name, right.schema, context.case_sensitive),
        )
        for name in using
    ]
    names = schema.names
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise UnsupportedError(
            f"the result of the join would have several columns named {', '.join(dict.fromkeys(duplicates))}:"
            " rename them on one side first, with withColumnRenamed(), or leave them out"
        )
    return schema


def _equality(lefts: Any, rights: Any, pair: Pair) -> Column:
    one, other = (each[quote(each.columns[at])] for each, at in ((lefts, pair.left), (rights, pair.right)))
    return one.eqNullSafe(other) if pair.null_safe else one == other


def _output(
    left: Rows, right: Rows, kind: JoinKind, pairs: Sequence[Pair], *, using: bool
) -> tuple[OutputColumn, ...]:
    """Return the sources of the result's columns, in Spark's order."""
    lefts = [OutputColumn(left=position) for position in range(len(left.columns))]
    rights = [OutputColumn(right=position) for position in range(len(right.columns))]
    if kind.is_existence:
        rights = []
    if not using:
        return (*lefts, *rights)
    keys = [lefts[pair.left] for pair in pairs]
    if kind is JoinKind.RIGHT:
        keys = [rights[pair.right] for pair in pairs]
    if kind is JoinKind.FULL:
        keys = [OutputColumn(pair.left, pair.right) for pair in pairs]
    own_left, own_right = {pair.left for pair in pairs}, {pair.right for pair in pairs}
    lefts = [each for each in lefts if each.left not in own_left]
    rights = [each for each in rights if each.right not in own_right]
    return (*keys, *lefts, *rights)


def _only_keys(rows: Rows, pairs: Sequence[Pair]) -> tuple[Rows, list[Pair]]:
    """Reduce the right side of a join without right columns to the keys."""
    columns = tuple(dict.fromkeys(pair.right for pair in pairs))
    kept = select_columns(rows, columns, [rows.columns[at] for at in columns])
    moved = [replace(pair, right=columns.index(pair.right)) for pair in pairs]
    return replace(kept, broadcast=rows.broadcast), moved


def _text_of(left: Rows, right: Rows, pairs: Sequence[Pair], using: Sequence[str]) -> str:
    if using:
        return ", ".join(left.columns[pair.left] for pair in pairs)
    return ", ".join(
        f"{left.columns[pair.left]} {'<=>' if pair.null_safe else '='} {right.columns[pair.right]}"
        for pair in pairs
    )


# ---- keys -------------------------------------------------------------------------------------------------


def _check_key(rows: Rows, position: int) -> None:
    """Raise `ColumnError` if rows cannot be placed by a column, or its values not compared."""
    field, wire = rows.schema.fields[position], rows.chain.wire.field(position)
    check_placement_key(field, wire.type)
    try:
        RowOrder.check(field.name, wire.type)
    except ColumnError:
        raise ColumnError(
            f"column {field.name} of type {field.dataType.simpleString()} cannot be joined by: arrays are not"
            " compared here. Make a column of a plain type from it first, for example a string"
        ) from None


_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""In the metadata of a table's column: its type as declared. The type of the column itself is string."""


def _check_padding(fields: Sequence[StructField]) -> None:
    """Raise `ColumnError` if Spark pads a key for the comparison: CHAR columns of different lengths."""
    kinds = [str(field.metadata.get(_DECLARED, "")) for field in fields]
    if kinds[0] != kinds[1] and all(re.search(r"\bchar\(", each) for each in kinds):
        names = [f"{field.name} {kind}" for field, kind in zip(fields, kinds, strict=True)]
        raise ColumnError(f"{' and '.join(names)} are of different lengths, which only Spark compares")


def _widened(
    left: Rows, right: Rows, pairs: Sequence[Pair], output: tuple[OutputColumn, ...]
) -> tuple[Rows, Rows, list[Pair], tuple[OutputColumn, ...]]:
    """Give the keys of each pair one type, by appending a cast of the narrower key to its side. The result
    only uses this column where it has the keys of both sides in one column.

    Each pair is cast by itself, as in Spark: a key may be compared with several of different types."""
    casts: dict[tuple[int, int, str], int] = {}  # positions of casts, by side, key and type
    sides, widened = [left, right], []
    for pair in pairs:
        places = [pair.left, pair.right]
        fields = [side.schema.fields[at] for side, at in zip(sides, places, strict=True)]
        _check_padding(fields)
        if fields[0].dataType.simpleString() != fields[1].dataType.simpleString():
            wires = [side.chain.wire.field(at).type for side, at in zip(sides, places, strict=True)]
            wider = _wider(fields, wires)
            narrow = 1 - wider
            cast = (narrow, places[narrow], fields[wider].dataType.simpleString())
            if cast not in casts:
                casts[cast] = len(sides[narrow].columns)
                sides[narrow] = _with_cast(sides[narrow], places[narrow], fields[wider])
            places[narrow] = casts[cast]
        widened.append(replace(pair, left=places[0], right=places[1]))
    moved: dict[tuple[int | None, int | None], OutputColumn] = {
        (old.left, old.right): OutputColumn(new.left, new.right)
        for old, new in zip(pairs, widened, strict=True)
    }
    columns = tuple(moved.get((each.left, each.right), each) for each in output)
    return sides[0], sides[1], widened, columns


def _wider(fields: Sequence[StructField], wires: Sequence[pa.DataType]) -> int:
    """Return the index of the wider type, to which Spark casts the other for a comparison."""
    for same in (at.is_integer, at.is_floating):
        if all(map(same, wires)):
            return int(wires[1].bit_width > wires[0].bit_width)
    raise ColumnError(
        " and ".join(f"column {each.name} of type {each.dataType.simpleString()}" for each in fields)
        + " cannot be joined: cast one of them to the type of the other first, with withColumn() or in a"
        " mapInArrow function"
    )


def _with_cast(rows: Rows, key: int, like: StructField) -> Rows:
    """Append a column to the rows: a key in the type of ``like``."""
    name = f"{rows.columns[key]} as {like.dataType.simpleString()}"
    while name in rows.columns:
        name += " "
    schema = StructType([*rows.schema.fields, StructField(name, like.dataType)])
    sources = (*range(len(rows.columns)), key)
    step = Arrange(sources, rows.context.wire(schema))
    return replace(rows, chain=rows.chain.then(step, schema))


# ---- a shuffled join --------------------------------------------------------------------------------------


def _shuffled_join(left: Rows, right: Rows, spec: JoinSpec, schema: StructType, label: str) -> Rows:
    both, keys = (left, right), (spec.keys.left, spec.keys.right)
    placement = common_placement(both, keys)
    sides = [placement.place(rows, own).chain for rows, own in zip(both, keys, strict=True)]
    combine = ShuffledJoin(spec, sides[0].wire, sides[1].wire, label)
    context = left.context
    origin = TogetherOrigin((sides[0], sides[1]), combine)
    return Rows(Chain(context, origin, schema, spec.schema), joined_layout(spec, placement))


def joined_layout(spec: JoinSpec, placement: KeyPlacement) -> Layout:
    """Return the layout of a shuffled join whose sides are placed by their keys.

    A row of the result is in the partition of its left and of its right row. So the key columns of a side
    place it, unless the kind of join emits rows without a match on that side.
    """
    kind, keys, by = spec.kind, spec.keys, placement.by
    candidates: list[list[int | None]] = []
    if kind is JoinKind.FULL:
        candidates = [[_index(spec, OutputColumn(keys.left[at], keys.right[at])) for at in by]]
    if kind is not JoinKind.RIGHT and not kind.keeps_right:
        candidates.append([_index(spec, OutputColumn(left=keys.left[at])) for at in by])
    if kind in (JoinKind.INNER, JoinKind.RIGHT):
        candidates.append([_index(spec, OutputColumn(right=keys.right[at])) for at in by])
    for positions in candidates:
        known = tuple(position for position in positions if position is not None)
        if len(known) == len(by):
            return Layout(known, placement.partitions, is_default=placement.is_default)
    return UNKNOWN_LAYOUT


def _index(spec: JoinSpec, column: OutputColumn) -> int | None:
    return spec.output.index(column) if column in spec.output else None
