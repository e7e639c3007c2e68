"""Translates Spark's aggregate Columns to the functions of `compute`.

An expression must be one function of plain columns, with or without an alias: ``F.sum("v").alias("s")``.
Spark determines the name and type of its result, on the frame's twin. This module chooses the function that
computes it. If no function gives Spark's result, the expression is refused, with advice.

The twin gets the expression as new SQL text, because a Column that was taken from a DataFrame (``df.v``)
refers to that DataFrame, not to the twin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.types import DataType, DecimalType, StructType

from sortshuffle.compute.aggregate.columns import has_floats
from sortshuffle.compute.aggregate.functions import (
    AverageDecimal,
    AverageDouble,
    AverageShortDecimal,
    Count,
    CountTrue,
    Function,
    SumDecimal,
    SumDouble,
    SumLong,
    Variance,
)
from sortshuffle.compute.aggregate.value_functions import Collect, Extreme, First
from sortshuffle.errors import ColumnError, UnsupportedError, UsageError
from sortshuffle.spark.operators.expressions import (
    Alias,
    Attribute,
    Call,
    Literal,
    Node,
    Other,
    Star,
    node_of,
    resolve,
)
from sortshuffle.spark.operators.key_checks import check_group_key
from sortshuffle.spark.schema import quote

_MOST_DIGITS = 38
_SUM_DIGITS = 10  # digits that Spark adds for the sum of decimals, up to `_MOST_DIGITS`
# Spark's optimizer computes an average in doubles if the result has at most this many digits
_SHORT_AVERAGE = 15
_NORMALISED_SETS = (4, 2)  # the first Spark whose sets hold one NaN and one zero (SPARK-57298)


@dataclass(frozen=True, slots=True)
class Expression:
    """One aggregate expression. ``columns``: positions of its arguments, empty for ``count(*)``. ``text``:
    the expression in SQL, without the alias."""

    function: str
    columns: tuple[int, ...]
    distinct: bool
    ignore_nulls: bool
    text: str
    alias: str | None = None

    def column(self) -> Column:
        """Return the expression as a Column for the twin."""
        # some functions have names that spark.sql.ansi.enforceReservedKeywords reserves
        plain = sf.expr(f"`{self.function}`{self.text.removeprefix(self.function)}")
        return plain if self.alias is None else plain.alias(self.alias)


def expressions_of(
    exprs: Sequence[Column | dict[str, str]], schema: StructType, case_sensitive: bool
) -> list[Expression]:
    """Parse the arguments of ``agg(*exprs)``: Columns, or one dict of column names and function names.

    Raises `UsageError` for anything else, `ColumnError` for missing columns, `UnsupportedError` as above.
    """
    if len(exprs) == 1 and isinstance(exprs[0], dict):
        return [_of_names(name, function, schema, case_sensitive) for name, function in exprs[0].items()]
    if not exprs or not all(isinstance(each, Column) for each in exprs):
        raise UsageError(
            "agg() takes aggregate Columns, such as F.sum('v'), or one dict of columns and functions, such as"
            " {'v': 'sum'}"
        )
    return [_of_column(each, schema, case_sensitive) for each in exprs]


# names that Spark accepts in a dict in addition to those of its functions
_DICT_NAMES = {"average": "avg", "mean": "avg", "std": "stddev", "size": "count"}


def _of_names(name: str, function: str, schema: StructType, case_sensitive: bool) -> Expression:
    if not isinstance(name, str) or not isinstance(function, str):
        raise UsageError(f"agg() takes a dict of column names and function names, not {name!r}: {function!r}")
    lower = function.lower()
    call = Call(_DICT_NAMES.get(lower, lower), (Star() if name == "*" else Attribute(name),))
    return _of_node(call, f"{function}({name})", schema, case_sensitive)


def _of_column(column: Column, schema: StructType, case_sensitive: bool) -> Expression:
    node, shown = node_of(column), str(column).removeprefix("Column<'").removesuffix("'>")
    if isinstance(node, Alias):
        return replace(_of_node(node.child, shown, schema, case_sensitive, True), alias=node.name)
    return _of_node(node, shown, schema, case_sensitive)


def _of_node(
    node: Node, shown: str, schema: StructType, case_sensitive: bool, has_alias: bool = False
) -> Expression:
    if isinstance(node, Other):
        raise UnsupportedError(
            f"{shown} is SQL text, a cast or the like, which is not read here: write it with functions of"
            " columns, such as F.sum('v')"
        )
    if not isinstance(node, Call) or not node.function.isidentifier():
        raise UnsupportedError(
            f"{shown} is not one aggregate function of columns: compute it of aggregates afterwards, with"
            " withColumn() or in a mapInArrow function"
        )
    if node.function not in _FUNCTIONS:
        known = ", ".join(sorted(_FUNCTIONS))
        raise UnsupportedError(
            f"{shown}: {node.function} is none of the functions that are computed here ({known}). Use"
            " applyInArrow()"
        )
    arguments, ignore_nulls = _without_flag(node, shown)
    prefix = "DISTINCT " if node.distinct else ""
    if _is_row_count(node, has_alias):
        return Expression("count", (), False, False, "count(1)")
    columns = tuple(_position(each, shown, schema, case_sensitive) for each in arguments)
    names = ", ".join(_quoted(each) for each in arguments if isinstance(each, Attribute))
    flag = ", true" if ignore_nulls else ""
    return Expression(
        node.function, columns, node.distinct, ignore_nulls, f"{node.function}({prefix}{names}{flag})"
    )


def _is_row_count(node: Call, has_alias: bool) -> bool:
    """Return whether a call is count(*) or count(1), which have one name; or, with an alias, the count of any
    constant that is not null."""
    if node.function != "count" or node.distinct or len(node.arguments) != 1:
        return False
    (argument,) = node.arguments
    if isinstance(argument, Literal):
        is_one = type(argument.value) is int and argument.value == 1  # true is no 1
        return is_one or (has_alias and argument.value is not None)
    return isinstance(argument, Star)


def _without_flag(node: Call, shown: str) -> tuple[tuple[Node, ...], bool]:
    """Return the arguments without the flag ``ignoreNulls``, and the flag."""
    last = node.arguments[-1] if node.arguments else None
    if node.function not in _WITH_IGNORE_NULLS or not isinstance(last, Literal) or len(node.arguments) != 2:
        return node.arguments, False
    if not isinstance(last.value, bool):
        raise UsageError(f"{shown}: whether nulls are ignored is true or false, not {last.value!r}")
    return node.arguments[:1], last.value


def _position(argument: Node, shown: str, schema: StructType, case_sensitive: bool) -> int:
    if isinstance(argument, Attribute):
        return resolve(argument.name, schema, case_sensitive)
    raise UnsupportedError(
        f"{shown}: only plain columns are aggregated. Compute the argument first, with withColumn() or in a"
        " mapInArrow function"
    )


def _quoted(attribute: Attribute) -> str:
    """Return the name in SQL. The case of letters is kept, because it is part of the result's name."""
    name = attribute.name
    if name.startswith("`"):
        return name
    return f"`{name}`"


def position_expression(function: str, position: int, schema: StructType) -> Expression:
    """Return the expression of ``function`` on one column."""
    return Expression(function, (position,), False, False, f"{function}({quote(schema.names[position])})")


# --- which function computes it ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AggregateRequest:
    """An expression with the types that choose its function. ``kinds``: Spark's types of the arguments.
    ``wires``, ``result``: Arrow's types. ``is_set``: whether a setting of the session is true. ``version``:
    the first two numbers of the version of its Spark. Both are asked only if they matter, because each takes
    a call of the JVM."""

    expression: Expression
    kinds: tuple[DataType, ...]
    wires: tuple[pa.DataType, ...]
    result: pa.DataType
    is_set: Callable[[str], bool]
    version: Callable[[], tuple[int, int]]

    @property
    def ansi(self) -> bool:
        return self.is_set("spark.sql.ansi.enabled")

    @property
    def label(self) -> str:
        return self.expression.alias or self.expression.text.replace("`", "")

    def refusal(self, instead: str) -> UnsupportedError:
        kinds = ", ".join(kind.simpleString() for kind in self.kinds)
        return UnsupportedError(f"{self.expression.text} of {kinds} is not computed here: {instead}")


def call_of(request: AggregateRequest, schema: StructType, wire: pa.Schema) -> tuple[Function, bool]:
    """Return the function that computes a request, and whether it takes only distinct values.

    Raises `UnsupportedError` if no function gives Spark's result.
    """
    expression = request.expression
    distinct = expression.distinct and expression.function not in _IGNORING_DUPLICATES
    distinct |= expression.function == "collect_set"
    if distinct or expression.function in _COMPARING:
        for column in expression.columns:
            _check_comparable(request, schema.fields[column], wire.field(column).type)
    return _FUNCTIONS[expression.function](request), distinct


def _check_comparable(request: AggregateRequest, field: st.StructField, wire: pa.DataType) -> None:
    try:
        check_group_key(field, wire)
    except ColumnError as error:
        raise UnsupportedError(
            f"{request.expression.text}: values of {field.name}, a {field.dataType.simpleString()}, are not"
            " compared here as Spark compares them: make a column of a plain type of it first"
        ) from error


Builder: TypeAlias = Callable[[AggregateRequest], Function]


def _count(request: AggregateRequest) -> Function:
    return Count()


def _count_if(request: AggregateRequest) -> Function:
    if request.expression.distinct:
        raise request.refusal("leave out distinct")
    return CountTrue()


def _sum(request: AggregateRequest) -> Function:
    (kind,) = request.kinds
    if isinstance(kind, st.IntegralType):
        return SumLong(request.label, request.ansi)
    if isinstance(kind, st.FloatType | st.DoubleType):
        return SumDouble()
    if isinstance(kind, DecimalType):
        return SumDecimal(request.label, request.result, request.ansi)
    raise request.refusal("cast the column to a number first")


def _average(request: AggregateRequest) -> Function:
    (kind,) = request.kinds
    if isinstance(kind, DecimalType):
        if request.result.precision <= _SHORT_AVERAGE:
            return AverageShortDecimal(kind.scale, request.result)
        total = pa.decimal128(min(_MOST_DIGITS, kind.precision + _SUM_DIGITS), kind.scale)
        return AverageDecimal(request.label, request.result, total, request.ansi)
    if isinstance(kind, st.NumericType):
        return AverageDouble()
    raise request.refusal("cast the column to a number first")


def _variance(*, sample: bool, root: bool) -> Builder:
    def build(request: AggregateRequest) -> Function:
        (kind,) = request.kinds
        if not isinstance(kind, st.NumericType):
            raise request.refusal("cast the column to a number first")
        if request.is_set("spark.sql.legacy.statisticalAggregate"):
            raise request.refusal("set spark.sql.legacy.statisticalAggregate to false")
        return Variance(sample, root)

    return build


def _extreme(*, greatest: bool) -> Builder:
    def build(request: AggregateRequest) -> Function:
        return Extreme(request.wires[0], greatest)

    return build


def _first(*, last: bool) -> Builder:
    def build(request: AggregateRequest) -> Function:
        if request.expression.distinct:
            raise request.refusal("leave out distinct")
        return First(request.wires[0], last, request.expression.ignore_nulls)

    return build


def _collect(request: AggregateRequest) -> Function:
    return Collect(request.result)


def _collect_set(request: AggregateRequest) -> Function:
    if any(map(has_floats, request.wires)) and request.version() < _NORMALISED_SETS:
        raise request.refusal("before Spark 4.2 such a set may hold NaN or zero several times")
    return _collect(request)


_DEVIATION, _VARIANCE = _variance(sample=True, root=True), _variance(sample=True, root=False)
_LEAST, _GREATEST = _extreme(greatest=False), _extreme(greatest=True)

_FUNCTIONS: dict[str, Builder] = {
    "count": _count,
    "count_if": _count_if,
    "sum": _sum,
    "avg": _average,
    "mean": _average,
    "std": _DEVIATION,
    "stddev": _DEVIATION,
    "stddev_samp": _DEVIATION,
    "stddev_pop": _variance(sample=False, root=True),
    "variance": _VARIANCE,
    "var_samp": _VARIANCE,
    "var_pop": _variance(sample=False, root=False),
    "min": _LEAST,
    "max": _GREATEST,
    "bool_and": _LEAST,
    "every": _LEAST,
    "bool_or": _GREATEST,
    "any": _GREATEST,
    "some": _GREATEST,
    "first": _first(last=False),
    "first_value": _first(last=False),
    "any_value": _first(last=False),
    "last": _first(last=True),
    "last_value": _first(last=True),
    "collect_list": _collect,
    "array_agg": _collect,
    "collect_set": _collect_set,
}
_WITH_IGNORE_NULLS = {"first", "first_value", "any_value", "last", "last_value"}
_IGNORING_DUPLICATES = {"min", "max", "bool_and", "every", "bool_or", "any", "some"}
_COMPARING = {"min", "max"}
