"""`ClassicFrame`: the `ShuffleFrame` of sessions with a JVM. It is a DataFrame of PySpark's classic kind. Its
plan (``_jdf``) is made when PySpark's own methods first need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.classic import dataframe as classic
from pyspark.sql.streaming import DataStreamWriter

from sortshuffle.spark.frame.delegation import delegating
from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame
from sortshuffle.spark.session.requirements import plain_session


@delegating(classic.DataFrame)
class ClassicFrame(ShuffleFrame, classic.DataFrame):
    """A frame of a session with a JVM."""

    def __init__(self, jdf: Any, sql_ctx: Any) -> None:
        self._runs = []
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

    def _with_ids(self, plain: DataFrame, shadow: DataFrame) -> DataFrame:
        session: Any = plain.sparkSession
        jvm = session._jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        plan = plain._jdf.queryExecution().analyzed()
        own, others = plan.output(), shadow._jdf.queryExecution().analyzed().output()
        none, nothing = _singleton(jvm.scala, "None"), jvm.PythonUtils.toSeq(jvm.java.util.ArrayList())
        columns = jvm.java.util.ArrayList()
        for at in range(own.length()):
            other = others.apply(at)
            columns.add(
                catalyst.expressions.Alias(
                    own.apply(at), other.name(), other.exprId(), other.qualifier(), none, nothing
                )
            )
        renamed = catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(columns), plan)
        datasets = _singleton(jvm.org.apache.spark.sql.classic, "Dataset")
        return classic.DataFrame(datasets.ofRows(session._jsparkSession, renamed), session)

    @property
    def writeStream(self) -> DataStreamWriter:
        """A writer of streams. The function of its ``foreachBatch`` gets frames."""
        return _StreamWriter(self)

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


def _singleton(package: Any, name: str) -> Any:
    """Return a Scala singleton object."""
    return getattr(package, f"{name}$").__getattr__("MODULE$")


class _StreamWriter(DataStreamWriter):
    """A writer of streams, whose ``foreachBatch`` passes frames."""

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        def with_frame(batch: DataFrame, number: int) -> None:
            func(ClassicFrame._of_plain(batch, batch.sparkSession), number)

        return super().foreachBatch(with_frame)
