"""Reads an analysed plan of Spark, as ``LogicalPlan.toJSON`` prints it: which columns of its only leaf the
rows are, and under which conditions.

Nodes of a plan, and of each expression in it, are listed parents first, each with its number of children. A
plan of one leaf that only selects, renames and filters is therefore a list from the root down to the leaf.
Attributes are known by the numbers of their ``exprId``. This module needs no running Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sortshuffle.errors import UnsupportedError

Expression: TypeAlias = Sequence[Mapping[str, Any]]
"""An expression: its nodes, parents first."""

RELATION = "org.apache.spark.sql.execution.datasources.LogicalRelation"
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_ATTRIBUTE = f"{_EXPRESSIONS}AttributeReference"
_ALIAS = f"{_EXPRESSIONS}Alias"
_AND = f"{_EXPRESSIONS}And"


@dataclass(frozen=True, slots=True)
class PlannedColumns:
    """Some columns of a relation, of the rows that satisfy all conditions. ``relation``: the leaf's node.
    ``positions``: of the columns in the relation. ``attributes``: the positions by exprId, for the
    conditions."""

    relation: Mapping[str, Any]
    positions: tuple[int, ...]
    conditions: tuple[Expression, ...]
    attributes: Mapping[int, int]


def planned_columns(plan: Sequence[Mapping[str, Any]]) -> PlannedColumns:
    """Return the columns and conditions of a plan that has one leaf.

    Raises `UnsupportedError` if a plan does anything else than select columns, and rows by conditions.
    """
    *above, leaf = plan
    current = [_number(attribute) for (attribute,) in leaf["output"]]
    attributes = {number: at for at, number in enumerate(current)}
    conditions: list[Expression] = []
    for node in reversed(above):
        if node["class"] == f"{_LOGICAL}Project":
            for each in node["projectList"]:
                if not _is_reference(each) or _number(each[-1]) not in attributes:
                    raise UnsupportedError("it computes columns")
                attributes[_number(each[0])] = attributes[_number(each[-1])]
            current = [_number(each[0]) for each in node["projectList"]]
        elif node["class"] == f"{_LOGICAL}Filter":
            if not attributes_in(node["condition"]) <= attributes.keys():
                raise UnsupportedError("its filter uses more than its columns")
            conditions += _conjuncts(node["condition"])
        elif node["class"] != f"{_LOGICAL}SubqueryAlias":
            raise UnsupportedError(f"Spark applies {_kind(node)} to its rows")
    positions = tuple(attributes[number] for number in current)
    return PlannedColumns(leaf, positions, tuple(conditions), attributes)


def attributes_in(condition: Expression) -> set[int]:
    """Return the exprIds of the attributes that a condition uses."""
    return {_number(node) for node in condition if node["class"] == _ATTRIBUTE}


def _is_reference(expression: Expression) -> bool:
    kinds = [node["class"] for node in expression]
    return kinds in ([_ATTRIBUTE], [_ALIAS, _ATTRIBUTE])


def _number(node: Mapping[str, Any]) -> int:
    return int(node["exprId"]["id"])


def _kind(node: Mapping[str, Any]) -> str:
    return str(node["class"]).rsplit(".", 1)[-1]


def _conjuncts(condition: Expression) -> Iterator[Expression]:
    """Yield the conditions of which ``condition`` is the conjunction: apart, each may skip row groups."""
    if condition[0]["class"] != _AND:
        yield condition
        return
    end = _end(condition, 1)
    yield from _conjuncts(condition[1:end])
    yield from _conjuncts(condition[end:])


def _end(expression: Expression, start: int) -> int:
    """Return where the subtree ends that begins at ``start``."""
    open_nodes, at = 1, start
    while open_nodes:
        open_nodes += expression[at]["num-children"] - 1
        at += 1
    return at
