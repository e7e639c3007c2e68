"""Expressions as Spark's analyzer leaves them: `CatalystTree`, and `AnalysedStep`, one filter or selection.

* Spark prints an expression as JSON, in one call over Py4J. What the JSON does not say exactly, such as the
  bytes of a literal, `AnalysedStep.constant` asks Spark for.
* Names of classes and of fields are those of Catalyst. They are not public in Spark. When they change, a tree
  has other names, and `translation` refuses those that it does not know.

Only classic sessions have such trees.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_MOST_CONSTANTS = 64  # that Spark is asked for: about a millisecond each


@dataclass(frozen=True, slots=True)
class CatalystTree:
    """An expression. ``kind``: its class, without the package if that is Catalyst's for expressions.
    ``fields``: what Spark prints of the node. ``position``: in the order in which Spark numbers the nodes of
    the whole expression. ``depth``: the number of levels."""

    kind: str
    fields: Mapping[str, Any]
    children: tuple[CatalystTree, ...]
    position: int
    depth: int

    def nodes(self) -> list[Mapping[str, Any]]:
        """Return the fields of all nodes, as Spark prints them: each node before its children."""
        return [self.fields, *itertools.chain.from_iterable(child.nodes() for child in self.children)]


def parse(text: str) -> CatalystTree:
    """Return the tree of what ``toJSON()`` of an expression in the JVM returned."""
    return tree_of(json.loads(text))


def tree_of(nodes: Sequence[Any]) -> CatalystTree:
    """Return the tree of an expression's nodes, parents first."""
    done: list[CatalystTree] = []  # the trees after the node, the nearest one last
    for position in reversed(range(len(nodes))):
        fields = nodes[position]
        children = tuple(done.pop() for _ in range(fields["num-children"]))
        depth = 1 + max((child.depth for child in children), default=0)
        done.append(
            CatalystTree(fields["class"].removeprefix(_EXPRESSIONS), fields, children, position, depth)
        )
    (root,) = done
    return root


@dataclass(frozen=True)
class AnalysedStep:
    """A filter or a selection of a DataFrame, directly on it.

    ``is_filter``: else a selection. ``columns``: the ids with which attributes refer to the DataFrame's
    columns. ``results``: the ids of the result's columns; a column that is passed on keeps its id.
    """

    is_filter: bool
    columns: tuple[int, ...]
    results: tuple[int, ...]
    _expressions: Any
    _asked: itertools.count[int] = field(default_factory=itertools.count)

    def expression(self, number: int = 0) -> CatalystTree | None:
        """Return the condition of a filter, or a selected column. None if Spark cannot print it."""
        try:
            return parse(self._expressions.apply(number).toJSON())
        except (
            Py4JError,
            PySparkException,
        ):  # a class whose fields differ from the arguments of its constructor
            return None

    def constant(self, tree: CatalystTree, number: int = 0) -> Any:
        """Let Spark compute a part without attributes, and return its internal value, such as days for dates.

        ``number``: of the expression that ``tree`` is a part of. Raises `ValueError` if Spark cannot compute
        it, or was asked too often.
        """
        if next(self._asked) == _MOST_CONSTANTS:
            raise ValueError(f"more than {_MOST_CONSTANTS} constants")
        try:
            node = self._expressions.apply(number).apply(tree.position)
            if json.loads(node.toJSON()) != tree.nodes():  # Spark numbers nodes in another order
                raise ValueError(f"node {tree.position} is not {tree.kind}")
            return node.eval(None)
        except (Py4JError, PySparkException) as error:
            raise ValueError(f"{tree.kind} has no value") from error


def analysed_step(df: DataFrame, result: DataFrame) -> AnalysedStep | None:
    """Return how Spark analysed ``result``, made by one call of ``filter``, ``select`` or ``withColumns`` of
    ``df``. None if that is anything but one filter or selection, as with windows and generators, or if the
    DataFrames are those of Spark Connect."""
    if getattr(result, "_jdf", None) is None:
        return None
    try:
        before, after = (each._jdf.queryExecution().analyzed() for each in (df, result))
    except AnalysisException:  # a subquery that refers to columns outside of it is analysed with them
        return None
    name = after.nodeName()
    if name not in ("Filter", "Project") or not after.child().equals(before):
        return None
    columns = _ids(before, df.columns)
    results = columns if name == "Filter" else _ids(after, result.columns)
    if columns is None or results is None:
        return None
    return AnalysedStep(name == "Filter", columns, results, after.expressions())


def _ids(plan: Any, names: list[str]) -> tuple[int, ...] | None:
    """Return the ids of a plan's columns, from how they print: ``List(a#1, b#2L)``. None if they print in
    another way. As JSON they would be longer than Py4J's buffer, which costs 40 ms."""
    printed = str(plan.output().toString())
    attributes = re.sub(r"(#\d+)L(?=, |\)$)", r"\1", printed[printed.find("(") + 1 :])
    ids = re.findall(r"#(\d+)(?=, |\)$)", attributes)
    if attributes != ", ".join(map("#".join, zip(names, ids, strict=False))) + ")":
        return None
    return tuple(map(int, ids))
