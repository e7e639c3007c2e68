"""Translates Spark's expressions to Arrow's, where both give the same result for every value.

* `filter_of` and `projection_of` translate a whole call of ``filter``, ``select`` or ``withColumns``, so that
  it can run where the rows already are, in Python workers. They return None for anything else, and Spark
  must run the call.
* Each class of expression has a rule below. No rule guesses: a class, a type, a collation or a cast that is
  not listed is refused. So is whatever may fail or depends on the ANSI mode, which Spark's JSON does not
  show: arithmetic of integers and decimals, casts that do not always fit. What cannot fail may be computed
  for rows that Spark would skip, in branches of a CASE for example.
* An expression is of exactly the type that the column has in the wire schema (`spark.schema`).

                       Spark                                   Arrow
    comparisons        null if either side is null; text       the same
                       and bytes by unsigned bytes
      of floats        NaN = NaN, and it is the largest;       NaN is unequal to all: it is asked for
                       -0.0 = 0.0
    AND, OR            null OR true is true                    and_kleene, or_kleene
    conditions         null means false                        if_else gives null: false is put in its place
    IN                 null if not found, and if the value     is_in gives false: null is put in its place
                       or an element is null
    isnan(null)        false                                   null: false is put in its place
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sortshuffle.spark.operators.catalyst import AnalysedStep, CatalystTree, analysed_step
from sortshuffle.spark.operators.catalyst_types import arrow_type, is_exact_cast, literal_value, scalar_of

Constants: TypeAlias = Callable[[CatalystTree], Any]
"""Spark's own value of an expression without attributes. Raises `ValueError` if it has none."""

_COMPARISONS = {
    "EqualTo": pc.equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
}
_LOGIC = {"And": pc.and_kleene, "Or": pc.or_kleene, "Not": pc.invert}
_NULL_TESTS = {"IsNull": pc.is_null, "IsNotNull": pc.is_valid}
# One operation of IEEE 754 each, which both round to the nearest value
_ARITHMETIC = {"Add": pc.add, "Subtract": pc.subtract, "Multiply": pc.multiply, "UnaryMinus": pc.negate}
_SEARCHES = {"StartsWith": pc.starts_with, "EndsWith": pc.ends_with, "Contains": pc.match_substring}
# Their only child is the expression that Spark runs instead
_REPLACED = {"Between", "Nvl", "Nvl2"}

# How text begins that Spark may be asked to cast
_DATES = re.compile(r"\d{4}(-|$)")
_NUMBERS = re.compile(r"[+-]?\.?\d|nan|inf|true|false", re.IGNORECASE)

_DEEPEST = 128  # levels of a tree: rules call each other
_DEEPEST_REPEATED = 6  # levels of an operand that the translation holds several times


# ---- a call of filter, select or withColumns --------------------------------------------------------------


def filter_of(df: DataFrame, filtered: DataFrame, timezone: str) -> pc.Expression | None:
    """Return the condition of ``filtered``, which is ``df.filter(condition)``, over a batch with the columns
    of ``df``. None if it cannot be translated. ``timezone``: the label of timestamps in the wire schema."""
    step = analysed_step(df, filtered)
    if step is None or not step.is_filter:
        return None
    return arrow_expression(step.expression(), _names(step), timezone, step.constant)


@dataclass(frozen=True, slots=True)
class Projection:
    """A selection of a DataFrame. ``sources``: for each column of its ``schema`` the position of a column of
    the DataFrame, or an expression over a batch of them."""

    sources: tuple[int | pc.Expression, ...]
    schema: StructType


def projection_of(df: DataFrame, projected: DataFrame, timezone: str) -> Projection | None:
    """Return ``projected``, which is ``df.select(...)`` or ``df.withColumns(...)``. None if any of its
    columns cannot be translated. ``timezone``: as for `filter_of`."""
    step = analysed_step(df, projected)
    if step is None or step.is_filter:
        return None
    names = _names(step)
    positions = {id_: position for position, id_ in enumerate(step.columns)}
    columns: list[int | pc.Expression] = []
    for number, id_ in enumerate(step.results):
        source = positions.get(id_)
        if source is None:
            source = _source(step, number, positions, names, timezone)
        if source is None:
            return None
        columns.append(source)
    return Projection(tuple(columns), step.schema)


def _names(step: AnalysedStep) -> dict[int, str]:
    """Return the columns' names by the ids of attributes, but for names that several columns have."""
    counts = Counter(step.names)
    return {id_: name for id_, name in zip(step.columns, step.names, strict=True) if counts[name] == 1}


def _source(
    step: AnalysedStep, number: int, positions: Mapping[int, int], names: Mapping[int, str], timezone: str
) -> int | pc.Expression | None:
    """Return the source of a new column, or of one that only has a new name."""
    tree = step.expression(number)
    while tree is not None and tree.kind == "Alias":
        (tree,) = tree.children
    if tree is not None and tree.kind == "AttributeReference":
        return positions.get(_id_of(tree))
    return arrow_expression(tree, names, timezone, functools.partial(step.constant, number=number))


def _id_of(attribute: CatalystTree) -> int:
    return int(attribute.fields["exprId"]["id"])


# ---- an expression ----------------------------------------------------------------------------------------


def _no_constants(tree: CatalystTree) -> Any:
    raise ValueError(f"nobody knows the value of {tree.kind}")


def arrow_expression(
    tree: CatalystTree | None,
    columns: Mapping[int, str],
    timezone: str,
    constants: Constants = _no_constants,
) -> pc.Expression | None:
    """Return an Arrow expression over a batch with exactly the result of Spark's, or None.

    ``tree``: an expression that Spark has analysed; None if it could not be read.
    ``columns``: the fields of the batch by the ids of attributes. ``timezone``: the label of timestamps in
    the wire schema. ``constants``: for literals that the tree does not show exactly, and casts of literals.
    """
    if tree is None or tree.depth > _DEEPEST:
        return None
    try:
        return _Translator(columns, timezone, constants).typed(tree).expression
    except (ValueError, LookupError, TypeError, pa.ArrowException):  # a rule, or Arrow, refuses it
        return None


@dataclass(frozen=True, slots=True)
class _Typed:
    """A translated expression and its type. ``literal``: its value, if it is a constant."""

    expression: Any
    type: pa.DataType
    literal: pa.Scalar | None = None

    @staticmethod
    def constant(value: pa.Scalar) -> _Typed:
        return _Typed(pc.scalar(value), value.type, value)


@dataclass(frozen=True, slots=True)
class _Translator:
    """The rules. ``shared``: the expression that references within a ``With`` stand for."""

    columns: Mapping[int, str]
    timezone: str
    constants: Constants
    shared: _Typed | None = None

    def typed(self, tree: CatalystTree) -> _Typed:
        if tree.kind not in _RULES:
            raise ValueError(tree.kind)
        return _RULES[tree.kind](self, tree)

    def alike(self, *trees: CatalystTree) -> list[_Typed]:
        """Translate operands that must be of one type."""
        operands = [self.typed(tree) for tree in trees]
        if len({operand.type for operand in operands}) != 1:
            raise ValueError("operands of several types")
        return operands

    def booleans(self, *trees: CatalystTree) -> list[Any]:
        return [_of_type(self.typed(tree), pa.bool_()).expression for tree in trees]

    # ---- columns and constants ----

    def attribute(self, tree: CatalystTree) -> _Typed:
        return _Typed(self._field(tree), self._type(tree))

    def _field(self, tree: CatalystTree) -> Any:
        return pc.field(self.columns[_id_of(tree)])

    def _type(self, tree: CatalystTree) -> pa.DataType:
        return arrow_type(tree.fields["dataType"], self.timezone)

    def literal(self, tree: CatalystTree) -> _Typed:
        of_type, text = self._type(tree), tree.fields["value"]
        value = None if text is None else literal_value(text, of_type)
        if text is not None and value is None:
            return self._constant(tree, of_type)
        return _Typed.constant(pa.scalar(value, of_type))

    def _constant(self, tree: CatalystTree, of_type: pa.DataType) -> _Typed:
        value = self.constants(tree)
        if value is None:  # of a value that the type lacks, unless Spark's optimizer knows better
            raise ValueError("null of something else")
        return _Typed.constant(scalar_of(value, of_type))

    def cast(self, tree: CatalystTree) -> _Typed:
        (child,) = tree.children
        target = self._type(tree)
        operand = self.typed(child)
        if operand.type == target:
            return operand
        if operand.literal is not None and not operand.literal.is_valid:
            return _Typed.constant(pa.scalar(None, target))
        if not is_exact_cast(operand.type, target):
            return self._constant_cast(tree, operand, target)
        if operand.literal is not None:
            return _Typed.constant(operand.literal.cast(target, safe=False))
        # Not safe: Arrow would refuse integers that floats can only hold rounded; both round to the nearest
        return _Typed(operand.expression.cast(target, safe=False), target)

    def _constant_cast(self, tree: CatalystTree, operand: _Typed, target: pa.DataType) -> _Typed:
        if operand.literal is None:
            raise ValueError(f"cast of {operand.type} to {target}")
        if at.is_string(operand.type):
            # Not for "today", nor for a time without a date: they depend on the day on which the query runs.
            # Nor for what is no value: PySpark would log an error here.
            known = _DATES if at.is_temporal(target) else _NUMBERS
            if not known.match(operand.literal.as_py()):
                raise ValueError("text that may not be a value")
        return self._constant(tree, target)

    # ---- logic ----

    def logic(self, tree: CatalystTree) -> _Typed:
        return _Typed(_LOGIC[tree.kind](*self.booleans(*tree.children)), pa.bool_())

    def null_test(self, tree: CatalystTree) -> _Typed:
        (child,) = tree.children
        is_column = child.kind == "AttributeReference"  # of any type, also of those without rules
        operand = self._field(child) if is_column else self.typed(child).expression
        return _Typed(_NULL_TESTS[tree.kind](operand), pa.bool_())

    def comparison(self, tree: CatalystTree) -> _Typed:
        left, right = self.alike(*tree.children)
        if at.is_floating(left.type):
            list(map(_repeatable, tree.children))
        return _Typed(_compared(tree.kind, left, right), pa.bool_())

    def null_safe_equality(self, tree: CatalystTree) -> _Typed:
        left, right = self.alike(*map(_repeatable, tree.children))
        both = pc.and_kleene(pc.is_null(left.expression), pc.is_null(right.expression))
        return _Typed(pc.coalesce(_compared("EqualTo", left, right), both), pa.bool_())

    def membership(self, tree: CatalystTree) -> _Typed:
        if len(tree.children) == 1:
            raise ValueError("null IN () depends on the configuration")
        _repeatable(tree.children[0])
        value, *elements = self.alike(*tree.children)
        if at.is_floating(value.type) or at.is_null(value.type):
            raise ValueError("Spark's sets of floats")
        constants: list[Any] = [element.literal for element in elements]
        if any(constant is None for constant in constants):
            equal = [_compared("EqualTo", value, element) for element in elements]
            return _Typed(functools.reduce(pc.or_kleene, equal), pa.bool_())
        present = [constant for constant in constants if constant.is_valid]
        found = pc.is_in(value.expression, value_set=pa.array(present, value.type))
        unknown = pc.scalar(pa.scalar(None, pa.bool_()))
        if len(present) < len(constants):
            return _Typed(pc.if_else(found, pc.scalar(True), unknown), pa.bool_())
        return _Typed(pc.if_else(pc.is_valid(value.expression), found, unknown), pa.bool_())

    def nan_test(self, tree: CatalystTree) -> _Typed:
        (operand,) = self.alike(*tree.children)
        return _Typed(pc.coalesce(pc.is_nan(_floating(operand)), pc.scalar(False)), pa.bool_())

    # ---- choices ----

    def coalesce(self, tree: CatalystTree) -> _Typed:
        operands = self.alike(*tree.children)
        return _Typed(pc.coalesce(*[operand.expression for operand in operands]), operands[0].type)

    def choice(self, tree: CatalystTree) -> _Typed:
        """IF and CASE: conditions and values in turns, and perhaps what else."""
        rest = list(tree.children)
        otherwise = [rest.pop()] if len(rest) % 2 else []
        values = self.alike(*rest[1::2], *otherwise)
        of_type = values[0].type
        chosen = values.pop().expression if otherwise else pc.scalar(pa.scalar(None, of_type))
        for condition, value in zip(reversed(self.booleans(*rest[::2])), reversed(values), strict=True):
            chosen = pc.if_else(pc.coalesce(condition, pc.scalar(False)), value.expression, chosen)
        return _Typed(chosen, of_type)

    # ---- numbers and text ----

    def arithmetic(self, tree: CatalystTree) -> _Typed:
        operands = self.alike(*tree.children)
        plain = [child.kind in ("AttributeReference", "Literal") for child in tree.children]
        # Acero evaluates sums of sums, and products of products, in another order. With floats the result
        # differs; a coalesce between them, which does nothing else, keeps the order.
        ordered = [
            _floating(operand) if is_plain else pc.coalesce(_floating(operand))
            for operand, is_plain in zip(operands, plain, strict=True)
        ]
        return _Typed(_ARITHMETIC[tree.kind](*ordered), operands[0].type)

    def division(self, tree: CatalystTree) -> _Typed:
        dividend, divisor = self.alike(*tree.children)
        if divisor.literal is None or not divisor.literal.is_valid or divisor.literal.as_py() == 0:
            raise ValueError("a division by 0 fails, or is null")
        return _Typed(pc.divide(_floating(dividend), _floating(divisor)), dividend.type)

    def search(self, tree: CatalystTree) -> _Typed:
        text, pattern = (_of_type(operand, pa.string()) for operand in self.alike(*tree.children))
        if pattern.literal is None or not pattern.literal.is_valid:
            raise ValueError("Arrow searches for constants alone")
        return _Typed(_SEARCHES[tree.kind](text.expression, pattern.literal.as_py()), pa.bool_())

    # ---- what stands for another expression ----

    def only_child(self, tree: CatalystTree) -> _Typed:
        (child,) = tree.children
        return self.typed(child)

    def with_shared(self, tree: CatalystTree) -> _Typed:
        body, definition = tree.children
        if self.shared is not None or definition.kind != "CommonExpressionDef":
            raise ValueError("references that do not say to which expression they refer")
        shared = self.only_child(_repeatable(definition))
        return replace(self, shared=shared).typed(body)

    def reference(self, tree: CatalystTree) -> _Typed:
        if self.shared is None:
            raise ValueError(tree.kind)
        return self.shared


_RULES: dict[str, Callable[[_Translator, CatalystTree], _Typed]] = {
    "AttributeReference": _Translator.attribute,
    "Literal": _Translator.literal,
    "Cast": _Translator.cast,
    "Alias": _Translator.only_child,
    **dict.fromkeys(_COMPARISONS, _Translator.comparison),
    **dict.fromkeys(_LOGIC, _Translator.logic),
    **dict.fromkeys(_NULL_TESTS, _Translator.null_test),
    "EqualNullSafe": _Translator.null_safe_equality,
    "In": _Translator.membership,
    "IsNaN": _Translator.nan_test,
    "Coalesce": _Translator.coalesce,
    "If": _Translator.choice,
    "CaseWhen": _Translator.choice,
    **dict.fromkeys(_ARITHMETIC, _Translator.arithmetic),
    "Divide": _Translator.division,
    **dict.fromkeys(_SEARCHES, _Translator.search),
    **dict.fromkeys(_REPLACED, _Translator.only_child),
    "With": _Translator.with_shared,
    "CommonExpressionRef": _Translator.reference,
}


def _of_type(operand: _Typed, wanted: pa.DataType) -> _Typed:
    if operand.type != wanted:
        raise ValueError(f"{operand.type} instead of {wanted}")
    return operand


def _floating(operand: _Typed) -> Any:
    if not at.is_floating(operand.type):
        raise ValueError(f"{operand.type} depends on the ANSI mode, or has no such function")
    return operand.expression


def _repeatable(tree: CatalystTree) -> CatalystTree:
    """Return ``tree``, if the translation may hold it several times. Within each other, such operands would
    double the translation at each level."""
    if tree.depth > _DEEPEST_REPEATED:
        raise ValueError("an operand that is too large to be repeated")
    return tree


def _compared(kind: str, left: _Typed, right: _Typed) -> Any:
    """Return a comparison of two values of one type."""
    if at.is_null(left.type):
        raise ValueError("Arrow has no comparisons of untyped nulls")
    compare = _FLOAT_COMPARISONS if at.is_floating(left.type) else _COMPARISONS
    return compare[kind](left.expression, right.expression)


def _floats_equal(left: Any, right: Any) -> Any:
    both = pc.and_kleene(pc.is_nan(left), pc.is_nan(right))  # never true if either is null
    return pc.or_kleene(pc.equal(left, right), both)


def _float_less(left: Any, right: Any) -> Any:
    below_nan = pc.and_kleene(pc.invert(pc.is_nan(left)), pc.is_nan(right))  # never true if either is null
    return pc.or_kleene(pc.less(left, right), below_nan)


_FLOAT_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": _floats_equal,
    "LessThan": _float_less,
    "LessThanOrEqual": lambda left, right: pc.invert(_float_less(right, left)),
    "GreaterThan": lambda left, right: _float_less(right, left),
    "GreaterThanOrEqual": lambda left, right: pc.invert(_float_less(left, right)),
}
