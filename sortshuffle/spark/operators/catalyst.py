"""Expressions as Spark's analyzer leaves them: `CatalystTree`, and `AnalysedStep`, one filter or selection.

* The JVM tells how it analysed a call in one text (``AnalysedSteps`` in the manager's jar), in which
  expressions are Spark's JSON. What the JSON does not say exactly, such as the bytes of a literal,
  `AnalysedStep.constant` asks Spark for.
* Names of classes and of fields are those of Catalyst. They are not public in Spark. When they change, a tree
  has other names, and `translation` refuses those that it does not know.

Only classic sessions have such trees.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.manager.jar_methods import jar_method

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

    ``is_filter``: else a selection. ``names``: of the DataFrame's columns. ``columns``: the ids with which
    attributes refer to them. ``schema``: of the result. ``results``: the ids of the result's columns; a
    column that is passed on keeps its id.
    """

    is_filter: bool
    names: tuple[str, ...]
    columns: tuple[int, ...]
    schema: StructType
    results: tuple[int, ...]
    _printed: tuple[str | None, ...]
    _result: Any
    _asked: itertools.count[int] = field(default_factory=itertools.count)

    def expression(self, number: int = 0) -> CatalystTree | None:
        """Return the condition of a filter, or a selected column that is new. None if Spark cannot print
        it."""
        text = self._printed[number]
        return None if text is None else parse(text)

    def constant(self, tree: CatalystTree, number: int = 0) -> Any:
        """Let Spark compute a part without attributes, and return its internal value, such as days for dates.

        ``number``: of the expression that ``tree`` is a part of. Raises `ValueError` if Spark cannot compute
        it, or was asked too often.
        """
        if next(self._asked) == _MOST_CONSTANTS:
            raise ValueError(f"more than {_MOST_CONSTANTS} constants")
        try:
            expressions = self._result._jdf.queryExecution().analyzed().expressions()
            node = expressions.apply(number).apply(tree.position)
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
        text = jar_method("AnalysedSteps", "describe")(df._jdf, result._jdf)
    except AnalysisException:  # a subquery that refers to columns outside of it is analysed with them
        return None
    except UnsupportedError:  # there is no jar
        return None
    if not text:
        return None
    told = json.loads(text)
    names, columns, results, printed = (
        tuple(told[name]) for name in ("names", "columns", "results", "expressions")
    )
    schema = StructType.fromJson(told["schema"])
    return AnalysedStep(told["filter"], names, columns, schema, results, printed, result)
