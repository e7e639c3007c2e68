"""`ClassicShadow`: a shadow in a session with a JVM, whose analysed plan Py4J reads and changes.

A column of a plan has an id. In a self join Spark gives one side new ids, to all columns of one node at a
time. `with_ids` gives a plan the shadow's ids. It must make them in as many nodes as the shadow has, with the
same columns in each, or Spark would renew ids in one plan that it leaves in the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.classic import dataframe as classic

from sortshuffle.spark.frame.shadow import Base, HiddenColumnError, Shadow, next_base
from sortshuffle.spark.session.java import java_class, scala_object

_BASE_TAG = "sortshuffle.base"
_PROJECT = "org.apache.spark.sql.catalyst.plans.logical.Project"
_SEPARATOR = "\x1f"
# A column of a DataFrame, in the text of an expression
_REFERENCE = re.compile(r"#(\d+)L?,Origin\(")
_ID = re.compile(r"#(\d+)L?$")


class ClassicShadow(Shadow):
    """A shadow in a session with a JVM."""

    impassable = frozenset(("sample",))
    # What follows is read of the JVM when it is first needed
    _ids: list[int] | None = None  # of the columns
    _groups: Mapping[int, object] | None = None  # of the columns' ids: one for all that a node makes
    _grouped: tuple[ClassicShadow, ...] = ()  # shadows whose groups this one continues

    def _set(self, made: DataFrame) -> None:
        self._grouped = tuple(each for each in self._sources if isinstance(each, ClassicShadow))
        if self.base is not None:
            analysed(made).setTagValue(_tag(made), self.base)

    def ids(self) -> list[int]:
        """Return the ids of the columns."""
        if self._ids is None:
            self._ids = column_ids(analysed(self.dataframe()))
        return self._ids

    def groups(self) -> Mapping[int, object]:
        """Return the group of each column by its id."""
        self.dataframe()
        pending = [self]
        while pending:  # no recursion, as in `dataframe`
            shadow = pending[-1]
            unknown = [each for each in shadow._grouped if each._groups is None]
            if unknown:
                pending += unknown
            else:
                pending.pop()._find_groups()
        assert self._groups is not None
        return self._groups

    def _find_groups(self) -> None:
        with self._lock:
            if self._groups is None:
                self._groups = self._groups_of_sources() if self._grouped else _groups_in(self.dataframe())
            self._grouped = ()

    def _groups_of_sources(self) -> Mapping[int, object]:
        known: dict[int, object] = {}
        for source in self._grouped:
            assert source._groups is not None
            known |= source._groups
        new = object()
        return {number: known.get(number, new) for number in self.ids()}

    def with_ids(self, plan: DataFrame) -> DataFrame:
        shadow = self.dataframe()
        ids, rows = self.ids(), analysed(plan)
        if not ids:
            return plan
        if ids == column_ids(rows):  # made of the same DataFrame
            if self.base is None and not self.bases:
                return shadow  # it has the rows, too
            project = java_class(_jvm(plan), _PROJECT)
            return _planned(plan, project(analysed(shadow).output(), rows))  # for the qualifiers
        groups = self.groups()
        nodes = dict.fromkeys(groups.get(number, number) for number in ids)
        for group in nodes:
            renamed = [groups.get(number, number) == group for number in ids]
            rows = _with_columns_of(plan, rows, analysed(shadow).output(), renamed)
        return _planned(plan, rows)

    def has_ids_of(self, plan: DataFrame) -> bool:
        return self.ids() == column_ids(analysed(plan))

    def renewed(self, plan: DataFrame) -> DataFrame:
        # Spark renews the ids of the right side of a join that the left side gives, too
        columns = (sf.lit(0).alias(f"c{at}") for at in range(len(self.ids())))
        left = self.with_ids(plan.sparkSession.range(0).select(*columns))
        try:
            right = _children(analysed(left.crossJoin(plan)))[1]
        except (PySparkException, Py4JJavaError):  # Spark renews none of a command's result, for example
            return plan
        return _planned(plan, right) if right.sameResult(analysed(plan)) else plan

    def replaced_by(self, plan: DataFrame) -> ClassicShadow:
        shadow, groups = ClassicShadow(None), self.groups()
        ids = zip(column_ids(analysed(plan)), self.ids(), strict=True)
        shadow._made, shadow._groups = plan, {new: groups.get(old, old) for new, old in ids}
        return shadow

    def kept(self) -> ClassicShadow:
        if self.base is not None or not self.is_passable:
            return self
        return ClassicShadow(lambda: _copy_of(self.dataframe()), [self], base=next_base(), bases=self.bases)

    def has(self, columns: Sequence[Column], others: Sequence[Shadow]) -> bool:
        """Return whether ``columns`` are columns of this shadow or of ``others``, or of no DataFrame."""
        wanted = {int(number) for each in columns for number in _REFERENCE.findall(_text(each))}
        if not wanted:
            return True
        shadows = [each for each in (self, *others) if isinstance(each, ClassicShadow)]
        return wanted <= {number for each in shadows for number in each.ids()}

    def needs_hidden(self, result: DataFrame) -> bool:
        # Spark leaves the plan below a call as it is, unless it needs hidden columns of it
        try:
            own, pending = analysed(self.dataframe()), [analysed(result)]
        except AnalysisException:
            return False  # a correlated subquery, which Spark analyses with the outer query alone
        while pending:
            plan = pending.pop()
            if plan.fastEquals(own):
                return False
            pending += _children(plan)
        return True

    def with_rows(self, result: DataFrame, bases: Mapping[int, Base]) -> DataFrame:
        """As in `Shadow`. Goes through the plan without recursion, because it may be deeper than Python's
        stack."""
        tag = _tag(result)
        pending = [(analysed(result), False)]  # plans, and whether their children are the last of `plans`
        plans: list[Any] = []  # with rows in them
        while pending:
            plan, has_children = pending.pop()
            if has_children:
                first = len(plans) - plan.children().length()
                plans[first:] = [plan.withNewChildren(_sequence(result, plans[first:]))]
                continue
            rows = _rows_of_base(plan, tag, bases)
            if rows is not None:
                plans.append(rows)
            elif children := _children(plan):
                pending += [(plan, True), *((each, False) for each in reversed(children))]
            else:
                plans.append(plan)
        return _planned(result, plans[0])


def _rows_of_base(plan: Any, tag: Any, bases: Mapping[int, Base]) -> Any:
    """Return the plan of the rows of the base that ``plan`` is; None if it is none, or if hidden columns pass
    it. Raises `HiddenColumnError` if these may not pass it."""
    number = plan.getTagValue(tag)
    if not number.isDefined():
        return None
    base = bases.get(number.get())
    count = plan.output().length()
    if base is None or count != len(base.frame._own_schema):
        if base is None or not base.is_passable:
            raise HiddenColumnError
        plan.unsetTagValue(tag)  # a node that Spark has made for this call; it is the base no longer
        return None
    rows = base.frame._to_spark()
    if column_ids(analysed(rows)) == column_ids(plan):
        return analysed(rows)
    # Spark has renewed the ids here
    return _with_columns_of(rows, analysed(rows), plan.output(), [True] * count)


def _copy_of(frame: DataFrame) -> DataFrame:
    """Return a DataFrame of an equal plan, whose nodes can have other tags."""
    return _planned(frame, analysed(frame).clone())


def analysed(frame: DataFrame) -> Any:
    """Return the logical plan of a DataFrame, after Spark's analysis."""
    return frame._jdf.queryExecution().analyzed()


def column_ids(plan: Any) -> list[int]:
    """Return the ids of a plan's columns. The text of a column ends with its id, as in ``k#12L``."""
    columns = plan.output()
    found = [_ID.search(column) for column in str(columns.mkString(_SEPARATOR)).split(_SEPARATOR)]
    count = columns.length()
    if len(found) == count and None not in found:
        return [int(each[1]) for each in found if each is not None]
    # a name has the separator in it, or there are no columns
    return [int(columns.apply(at).exprId().id()) for at in range(count)]


def _groups_in(frame: DataFrame) -> dict[int, object]:
    """Return the groups of the columns of a plan: those of each source, and each other column alone."""
    plan = analysed(frame)
    groups: dict[int, object] = {number: number for number in column_ids(plan)}
    leaves = plan.collectLeaves()
    for at in range(leaves.length()):
        source = object()
        groups |= {number: source for number in column_ids(leaves.apply(at)) if number in groups}
    return groups


def _with_columns_of(frame: DataFrame, plan: Any, columns: Any, renamed: Sequence[bool]) -> Any:
    """Return a node above ``plan`` that gives those of its columns for which ``renamed`` is true the names,
    ids and qualifiers of ``columns``. ``frame``: any DataFrame of the session."""
    jvm = _jvm(frame)
    aliases = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.Alias")
    project = java_class(jvm, _PROJECT)
    none, nothing = scala_object(jvm, "scala.None"), _sequence(frame, ())
    made = []
    for at, is_renamed in enumerate(renamed):
        column = plan.output().apply(at)
        if is_renamed:
            other = columns.apply(at)
            column = aliases(column, other.name(), other.exprId(), other.qualifier(), none, nothing)
        made.append(column)
    return project(_sequence(frame, made), plan)


def _planned(frame: DataFrame, plan: Any) -> DataFrame:
    """Return a DataFrame of a logical plan, in the session of ``frame``."""
    session: Any = frame.sparkSession
    datasets = scala_object(session._jvm, "org.apache.spark.sql.classic.Dataset")
    return classic.DataFrame(datasets.ofRows(session._jsparkSession, plan), session)


def _tag(frame: DataFrame) -> Any:
    return java_class(_jvm(frame), "org.apache.spark.sql.catalyst.trees.TreeNodeTag")(_BASE_TAG)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(at) for at in range(children.length())]


def _sequence(frame: DataFrame, items: Any) -> Any:
    made = java_class(_jvm(frame), "java.util.ArrayList")()
    for item in items:
        made.add(item)
    return java_class(_jvm(frame), "org.apache.spark.api.python.PythonUtils").toSeq(made)


def _jvm(frame: DataFrame) -> Any:
    session: Any = frame.sparkSession
    return session._jvm


def _text(column: Any) -> str:
    return str(column._jc.node().toString())
