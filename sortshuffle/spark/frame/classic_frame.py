"""`ClassicFrame`: the `ShuffleFrame` of sessions with a JVM. It is a DataFrame of PySpark's classic kind. Its
plan (``_jdf``) is made when PySpark's own methods first need it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.classic import dataframe as classic
from pyspark.sql.streaming import DataStreamWriter

from sortshuffle.errors import ColumnError
from sortshuffle.spark.frame.delegation import delegating
from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame
from sortshuffle.spark.frame.two_sided import TwoSidedFrame
from sortshuffle.spark.session.java import scala_object
from sortshuffle.spark.session.requirements import plain_session

_SEPARATOR = "\x1f"
# A column of a DataFrame, in the text of an expression
_REFERENCE = re.compile(r"#(\d+)L?,Origin\(")
_ID = re.compile(r"#(\d+)L?$")


@delegating(classic.DataFrame)
class ClassicFrame(ShuffleFrame, classic.DataFrame):
    """A frame of a session with a JVM."""

    def __init__(self, jdf: Any, sql_ctx: Any) -> None:
        self._runs, self._lock = [], threading.RLock()
        classic.DataFrame.__init__(self, jdf, sql_ctx)

    @classmethod
    def _without_rows(cls, session: Any) -> ClassicFrame:
        frame: ClassicFrame = object.__new__(cls)
        frame._session, frame._sc = session, session._sc
        frame.is_cached = frame._support_repr_html = False
        return frame

    @classmethod
    def _of_plain(cls, plain: DataFrame, session: Any) -> ClassicFrame:
        frame = super()._of_plain(plain, session)
        frame._jdf = plain._jdf  # for a DataFrame of the plain session
        return frame

    @property
    def _jdf(self) -> Any:
        return self._as_plain()._jdf

    @_jdf.setter
    def _jdf(self, jdf: Any) -> None:
        self._plain = classic.DataFrame(jdf, plain_session(self._session))

    def _check_columns(self, columns: Sequence[Column], others: Sequence[TwoSidedFrame] = ()) -> None:
        wanted = {int(number) for each in columns for number in _REFERENCE.findall(_text(each))}
        if wanted:
            known = {number for each in (self, *others) for number in _ids(_analysed(each._shadow()))}
            if not wanted <= known:
                raise ColumnError("a column of another DataFrame is used, which only Spark may resolve")

    def _groups_of(self, shadow: DataFrame, sources: Sequence[TwoSidedFrame]) -> dict[int, object]:
        """Return the group of each column by its id. Columns of a group were made by one node of a plan, and
        Spark renews their ids together: in a self join, those of the right side."""
        known: dict[int, object] = {}
        for source in sources:
            known |= source._column_groups or _groups_in(source._shadow())
        if not sources:
            return _groups_in(shadow)
        new = object()
        return {number: known.get(number, new) for number in _ids(_analysed(shadow))}

    def _with_ids(self, plain: DataFrame, shadow: DataFrame) -> DataFrame:
        session: Any = plain.sparkSession
        jvm = session._jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        none, nothing = scala_object(jvm, "scala.None"), jvm.PythonUtils.toSeq(jvm.java.util.ArrayList())
        plan = _analysed(plain)
        columns = [plan.output().apply(at) for at in range(plan.output().length())]
        wanted, ids = _analysed(shadow).output(), _ids(_analysed(shadow))
        if not ids:
            return plain
        if ids == _ids(plan):
            return shadow  # made of the same DataFrame, for which the plan below would get other ids
        groups = self._column_groups or {}
        # a node for each group, because Spark renews the ids of all columns that are made in one node
        for group in dict.fromkeys(groups.get(number, number) for number in ids):
            made = jvm.java.util.ArrayList()
            for at, number in enumerate(ids):
                if groups.get(number, number) != group:
                    made.add(columns[at])
                    continue
                other = wanted.apply(at)
                names = (other.name(), other.exprId(), other.qualifier(), none, nothing)
                alias = catalyst.expressions.Alias(columns[at], *names)
                made.add(alias)
                columns[at] = alias.toAttribute()
            plan = catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(made), plan)
        datasets = scala_object(jvm, "org.apache.spark.sql.classic.Dataset")
        return classic.DataFrame(datasets.ofRows(session._jsparkSession, plan), session)

    @property
    def writeStream(self) -> DataStreamWriter:
        """A writer of streams. The function of its ``foreachBatch`` gets frames."""
        return _StreamWriter(self)

    def _has_observation(self, other: DataFrame) -> bool:
        return "CollectMetrics" in str(_analysed(other).toString())

    def _has_broadcast_hint(self, other: DataFrame) -> bool:
        plan = other._jdf.queryExecution().analyzed()
        return plan.nodeName() == "ResolvedHint" and "broadcast" in plan.hints().toString()

    # ---- columns ------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Column:
        if self._plain is None and name in self.columns:
            column: Column = getattr(self._shadow(), name)
            return column
        return super().__getattr__(name)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str | int):
            return self._shadow()[item]
        return super().__getitem__(item)


def _text(column: Any) -> str:
    return str(column._jc.node().toString())


def _analysed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _ids(plan: Any) -> list[int]:
    """Return the ids of a plan's columns. The text of a column ends with its id, as in ``k#12L``."""
    text = str(plan.output().mkString(_SEPARATOR))
    found = [_ID.search(column) for column in text.split(_SEPARATOR)]
    count = plan.output().length()
    if len(found) == count and None not in found:
        return [int(each[1]) for each in found if each is not None]
    # a name has the separator in it, or there are no columns
    return [int(plan.output().apply(at).exprId().id()) for at in range(count)]


def _groups_in(frame: DataFrame) -> dict[int, object]:
    """Return the groups of the columns of a plan: those of each source, and each other column alone."""
    plan = _analysed(frame)
    groups: dict[int, object] = {number: number for number in _ids(plan)}
    leaves = plan.collectLeaves()
    for at in range(leaves.length()):
        source = object()
        groups |= {number: source for number in _ids(leaves.apply(at)) if number in groups}
    return groups


class _StreamWriter(DataStreamWriter):
    """A writer of streams, whose ``foreachBatch`` passes frames."""

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        def with_frame(batch: DataFrame, number: int) -> None:
            func(ClassicFrame._of_plain(batch, batch.sparkSession), number)

        return super().foreachBatch(with_frame)
