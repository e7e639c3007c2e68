"""Converts Spark Columns to plain data, and looks up names in a schema.

* `node_of` converts a Column to frozen values, which are the same for classic sessions (where a Column is a
  tree in the JVM) and for Spark Connect (where it is a tree in Python). An expression without a type of node
  becomes `Other`, with its text. Callers refuse it with a message, and never guess.
* Making a node looks nothing up: an `Attribute` holds the name as it was written, whichever DataFrame the
  Column came from. `resolve` finds the name in a schema, by Spark's rules for case, backticks and dots.
* Neither kind of tree is public in PySpark. When they change, only this module should break.

Only Columns of a classic session need a running Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, TypeAlias

from pyspark import SparkContext
from pyspark.sql import Column
from pyspark.sql import types as st

from sortshuffle.errors import ColumnError
from sortshuffle.spark.schema import quote
from sortshuffle.spark.session.java import java_class

PlainValue: TypeAlias = bool | int | float | str | bytes | Decimal | None

_PLAIN_TYPES = (bool, int, float, str, bytes, Decimal, type(None))
_PLAIN_LITERALS = (
    st.NullType,
    st.BooleanType,
    st.IntegralType,
    st.FractionalType,
    st.StringType,
    st.BinaryType,
)
_NAME_PART = re.compile(r"`(?P<quoted>(?:[^`]|``)*)`|(?P<plain>[^`.]+)")


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column by name, in Spark's syntax: parts separated by dots, in backticks where needed."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant, without its type in Spark: 1 may be an int or a long."""

    value: PlainValue


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a built-in function or operator of Spark, such as ``sum`` or ``=``. ``function``: the name in
    lower case. ``distinct``: duplicate arguments are ignored, as in ``count_distinct``."""

    function: str
    arguments: tuple[Node, ...]
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Alias:
    """``child`` under another name, without metadata. The name is a single one, even if it contains dots."""

    child: Node
    name: str


@dataclass(frozen=True, slots=True)
class Sorted:
    """``child`` with a sort direction."""

    child: Node
    descending: bool
    nulls_last: bool


@dataclass(frozen=True, slots=True)
class Star:
    """All columns: ``*``."""


@dataclass(frozen=True, slots=True)
class Other:
    """Any other expression: a cast, SQL text, a window, a user's function, ... ``text``: how it prints."""

    text: str


# Names that differ between the trees of classic sessions and of Spark Connect, made the same
_ONE_NAME = {"==": "=", "not": "!"}

Node: TypeAlias = Attribute | Literal | Call | Alias | Sorted | Star | Other


def node_of(column: str | Column) -> Node:
    """Convert a column argument to a node. A string is a name, or ``*``.

    Raises `ColumnError` for anything but a string or a Column.
    """
    if isinstance(column, str):
        return Star() if column == "*" else Attribute(column)
    if not isinstance(column, Column):
        raise ColumnError(f"a column must be a name or a Column, not {column!r}")
    tree: Any = column
    return _classic(tree._jc.node()) if hasattr(tree, "_jc") else _connect(tree._expr)


def column_name(column: str | Column) -> str:
    """Return the name in a reference (``"k"``, ``F.col("k")``, ``df.k`` or ``df["k"]``), in Spark's syntax.

    Raises `ColumnError` for an expression, which is not a column yet.
    """
    return column if isinstance(column, str) else name_of(node_of(column), column)


def name_of(node: Node, column: str | Column) -> str:
    """Return the name that a node refers to. ``column``: the argument that holds the node, for the error.

    Raises `ColumnError` for anything but an attribute.
    """
    if isinstance(node, Attribute):
        return node.name
    raise ColumnError(
        f"{column} is an expression: only columns that are there can be named. Compute it first, with"
        " withColumn() or in a mapInArrow function, and name the new column"
    )


def sort_key(column: str | Column) -> tuple[str | Column, bool, bool]:
    """Split a sort argument into the plain column, whether it descends, and whether nulls come last.

    As in Spark, a column without a direction ascends, and nulls sort as the least value unless the direction
    says otherwise (``asc_nulls_last`` and so on).
    """
    node = node_of(column)
    if isinstance(column, str) or not isinstance(node, Sorted):
        return column, False, False
    return _without_direction(column), node.descending, node.nulls_last


def _without_direction(column: Any) -> Column:
    if not hasattr(column, "_jc"):
        return type(column)(column._expr._child)
    jvm: Any = SparkContext._active_spark_context._jvm
    return type(column)(java_class(jvm, "org.apache.spark.sql.Column")(column._jc.node().child()))


# ---- the trees of a classic session, in the JVM -----------------------------------------------------------


def _classic(node: Any) -> Node:
    kind = _class_of(node)
    if kind == "UnresolvedAttribute" and not node.isMetadataColumn():
        return Attribute(".".join(map(_part, _items(node.nameParts()))))
    if kind == "ExpressionColumnNode" and _class_of(node.expression()) == "AttributeReference":
        return Attribute(_part(node.expression().name()))
    if kind == "UnresolvedStar" and node.unparsedTarget().isEmpty():
        return Star()
    if kind == "Literal" and isinstance(node.value(), _PLAIN_TYPES):
        return Literal(node.value())
    if kind == "UnresolvedFunction" and not node.isUserDefinedFunction():
        arguments = tuple(map(_classic, _items(node.arguments())))
        return Call(_function(node.functionName()), arguments, node.isDistinct())
    if kind == "Alias" and node.name().length() == 1 and node.metadata().isEmpty():
        return Alias(_classic(node.child()), node.name().apply(0))
    if kind == "SortOrder":
        descending = _class_of(node.sortDirection()) == "Descending$"
        return Sorted(_classic(node.child()), descending, _class_of(node.nullOrdering()) == "NullsLast$")
    return Other(node.sql())


def _class_of(instance: Any) -> str:
    return str(instance.getClass().getSimpleName())


def _items(sequence: Any) -> Iterator[Any]:
    """Iterate over a Scala Seq."""
    return (sequence.apply(position) for position in range(sequence.length()))


# ---- the trees of Spark Connect, in Python ----------------------------------------------------------------


def _connect(node: Any) -> Node:
    # compares class names, because importing the classes needs packages that classic sessions do without
    kind = type(node).__name__
    if kind == "ColumnReference" and not node._is_metadata_column:
        return Attribute(node._unparsed_identifier)
    if kind == "UnresolvedStar" and node._unparsed_target is None and node._plan_id is None:
        return Star()
    if kind == "LiteralExpression" and isinstance(node._dataType, _PLAIN_LITERALS):
        return Literal(node._value)
    if kind == "UnresolvedFunction":
        return Call(_function(node._name), tuple(map(_connect, node._args)), node._is_distinct)
    if kind == "ColumnAlias" and len(node._alias) == 1 and node._metadata is None:
        return Alias(_connect(node._child), node._alias[0])
    if kind == "SortOrder":
        return Sorted(_connect(node._child), not node._ascending, not node._nullsFirst)
    return Other(str(node))


def references(column: Column) -> Iterator[tuple[int, Column]]:
    """Yield the columns of DataFrames in a Column of Spark Connect that is a node other than `Other`, each
    with the id of its DataFrame's plan."""
    tree: Any = column
    pending = [tree._expr]
    while pending:
        node = pending.pop()
        if type(node).__name__ == "ColumnReference" and node._plan_id is not None:
            yield node._plan_id, type(tree)(node)
        pending += getattr(node, "_args", ())
        pending += [node._child] if hasattr(node, "_child") else []


def _function(name: str) -> str:
    lower = name.lower()
    return _ONE_NAME.get(lower, lower)


# ---- names in a schema ------------------------------------------------------------------------------------


def resolve(name: str, schema: st.StructType, case_sensitive: bool) -> int:
    """Return the position of the column ``name`` in ``schema``, by Spark's rules.

    Case is ignored unless ``case_sensitive``. A dot within backticks is part of a name. Raises `ColumnError`
    if there is no such column, or more than one, or if ``name`` is a field of a struct.
    """
    parts = _name_parts(name)
    positions = _positions(parts[0], schema.names, case_sensitive)
    if len(parts) > 1:
        raise ColumnError(_why_not_dotted(name, parts, bool(positions), schema, case_sensitive))
    if not positions:
        raise ColumnError(f"there is no column '{parts[0]}'. {_choices(parts[0], schema.names)}")
    if len(positions) > 1:
        names = ", ".join(schema.names[position] for position in positions)
        raise ColumnError(f"column '{parts[0]}' is ambiguous: it could be any of {names}. Rename all but one")
    return positions[0]


def check_spelling(names: Iterable[str], positions: Iterable[int], columns: Sequence[str]) -> None:
    """Raise `ColumnError` if a name differs from the column that it means, in case: a result of Spark's then
    has the name as it was written."""
    for name, position in zip(names, positions, strict=True):
        if _name_parts(name)[-1] != columns[position]:
            raise ColumnError(f"{name} is written {columns[position]} in the frame")


def positions_to_drop(column: str | Column, schema: st.StructType, case_sensitive: bool) -> list[int]:
    """Return the positions of the columns that `DataFrame.drop` drops; none if there is no such column.

    As in Spark a string is the literal name, including dots and backticks, and a Column is a reference.
    Raises `ColumnError` for a reference that could be any of several columns, and for an expression.
    """
    if isinstance(column, str):
        return _positions(column, schema.names, case_sensitive)
    reference = column_name(column)
    parts = _name_parts(reference)
    if len(parts) > 1:
        raise ColumnError(f"{reference} may be a column of a frame with a name, which only Spark knows")
    if not _positions(parts[0], schema.names, case_sensitive):
        return []
    return [resolve(reference, schema, case_sensitive)]


def _positions(name: str, names: list[str], case_sensitive: bool) -> list[int]:
    if case_sensitive:
        return [position for position, other in enumerate(names) if other == name]
    return [position for position, other in enumerate(names) if other.lower() == name.lower()]


def _why_not_dotted(
    name: str, parts: list[str], parent: bool, schema: st.StructType, case_sensitive: bool
) -> str:
    whole = ".".join(parts)
    if _positions(whole, schema.names, case_sensitive):
        return f"'{name}' means the field {parts[1]} of a column {parts[0]}: write `{whole}` in backticks"
    if parent:
        return (
            f"'{name}' is a field inside the column {parts[0]}: only whole columns can be named."
            f" Make it a column first, with withColumn() or in a mapInArrow function"
        )
    return f"there is no column '{name}'. {_choices(parts[-1], schema.names)}"


def _choices(name: str, names: list[str]) -> str:
    by_lower = {other.lower(): other for other in names}
    near = get_close_matches(name.lower(), by_lower, n=1)
    hint = f"Did you mean '{by_lower[near[0]]}'? " if near else ""
    return f"{hint}The columns are: {', '.join(names) or 'none'}"


def _part(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else quote(name)


def _name_parts(name: str) -> list[str]:
    """Split a name into its parts: ``a.`b.c` `` has the parts a and b.c."""
    parts = []
    position = 0
    while part := _NAME_PART.match(name, position):
        parts.append(part["plain"] or part["quoted"].replace("``", "`"))
        if part.end() == len(name):
            return parts
        if name[part.end()] != ".":
            break
        position = part.end() + 1
    raise ColumnError(f"{name!r} is not a column name: check its backticks and dots")
