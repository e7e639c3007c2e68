"""`ClassicFrame`: the `ShuffleFrame` of sessions with a JVM. It is a DataFrame of PySpark's classic kind. Its
plan (``_jdf``) is made when PySpark's own methods first need it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.classic import dataframe as classic
from pyspark.sql.streaming import DataStreamWriter

from sortshuffle.spark.frame.classic_shadow import ClassicShadow, analysed
from sortshuffle.spark.frame.delegation import delegating, own_errors
from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame
from sortshuffle.spark.frame.two_sided import ACTIONS, TwoSidedFrame
from sortshuffle.spark.session.java import scala_object
from sortshuffle.spark.session.requirements import plain_session

# PySpark's methods that only make a plan. They read no row, and change nothing
_PLANS = {"crossJoin", "describe", "dropDuplicatesWithinWatermark", "dropna", "exceptAll", "fillna"}
_PLANS |= {"freqItems", "intersect", "intersectAll", "lateralJoin", "melt", "nearestByJoin", "offset"}
_PLANS |= {"replace", "sampleBy", "subtract", "summary", "to", "unpivot", "withMetadata", "withWatermark"}
_PLANS |= {"zipWithIndex"}


@delegating(classic.DataFrame, lambda frame, *call: frame._target(*call))
class ClassicFrame(ShuffleFrame, classic.DataFrame):
    """A frame of a session with a JVM."""

    _shadow_class = ClassicShadow

    def __init__(self, jdf: Any, sql_ctx: Any) -> None:
        self._runs, self._lock = [], threading.RLock()
        self._is_new = True
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
        return self._to_spark()._jdf

    @_jdf.setter
    def _jdf(self, jdf: Any) -> None:
        self._plain = classic.DataFrame(jdf, plain_session(self._session))

    def _target(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DataFrame:
        """Return the DataFrame on which a method of PySpark runs. Spark analyses the call on the shadow
        before. So a wrong call fails before the rows are planned, which may take a job that samples them."""
        if not self._is_in_python:
            return self
        if method in _PLANS and self._plain is None:
            self._shadow_of(method, args, kwargs).dataframe()
        if method not in ACTIONS:
            return self
        target = self._for_action()
        if method == "toLocalIterator":
            self._rows_for_spark.chain.leave_to_spark()  # it returns before the rows are read
        return target

    def cache(self) -> ClassicFrame:
        """Return `persist` with the level that ``spark.sql.defaultCacheStorageLevel`` names."""
        session: Any = self._session
        name = session.conf.get("spark.sql.defaultCacheStorageLevel", "MEMORY_AND_DISK").upper()
        level = scala_object(session._jvm, "org.apache.spark.storage.StorageLevel").fromString(name)
        self.persist(
            StorageLevel(
                level.useDisk(),
                level.useMemory(),
                level.useOffHeap(),
                level.deserialized(),
                level.replication(),
            )
        )
        return self

    def unpersist(self, blocking: bool = False) -> ClassicFrame:
        """Drop the rows from Spark's cache. Return this frame."""
        super().unpersist(blocking)
        self.is_cached = False
        return self

    @property
    def rdd(self) -> RDD[Any]:
        """The rows as an RDD of PySpark's."""
        plain = self._to_spark()
        if "rdd" not in vars(plain):  # where PySpark keeps it
            self._log_read("rdd")
        rdd: RDD[Any] = plain.rdd
        return rdd

    def createTempView(self, name: str) -> None:
        """Make a view of the frame, like `DataFrame.createTempView`."""
        if self._is_in_python and self._catalog.getTempView(name).isDefined():
            self._shadow.dataframe().createTempView(name)  # fails
        super().createTempView(name)

    @property
    def _catalog(self) -> Any:
        session: Any = self._session
        return session._jsparkSession.sessionState().catalog()

    @property
    def writeStream(self) -> DataStreamWriter:
        """A writer of streams. The function of its ``foreachBatch`` gets frames."""
        if self._is_in_python:
            return DataStreamWriter(self._shadow.dataframe())  # fails
        return _StreamWriter(self)

    def _has_observation(self) -> bool:
        # in the plan, because views hide it. Spark knows of each plan which kinds of nodes are in it
        if self._is_in_python:
            return False
        session: Any = self._session
        kinds = scala_object(session._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
        return bool(analysed(self._to_spark()).containsPattern(kinds.COLLECT_METRICS()))

    def _has_broadcast_hint(self, other: DataFrame) -> bool:
        plan = other._jdf.queryExecution().analyzed()
        return plan.nodeName() == "ResolvedHint" and "broadcast" in plan.hints().toString()

    if hasattr(DataFrame, "zip"):  # since PySpark 4.3; before, a column may have this name

        def zip(self, other: DataFrame) -> DataFrame:
            """Pair the rows of two selections of one frame, like `DataFrame.zip`. Both must be plans with the
            same rows below their columns: those of the bases that they were made of, or of both frames."""
            with own_errors():
                return self._delegated("zip", self._zipped(other), [other])

    def _zipped(self, other: Any) -> Any:
        """Return what Spark's ``zip`` makes of the plans on the bases, or of those of both frames."""
        own: Any = self._on_bases()
        is_frame = isinstance(other, TwoSidedFrame)
        try:
            return own.zip(other._on_bases() if is_frame else other)
        except AnalysisException:
            if self._is_in_python == (is_frame and other._is_in_python):
                raise  # the plans of both frames are the same, or each begins with a stage of its own
        own = self._to_spark()
        return own.zip(other._to_spark() if is_frame else other)

    # ---- columns ------------------------------------------------------------------------------------

    def _has(self, columns: Sequence[Column], others: Sequence[TwoSidedFrame]) -> bool:
        shadow = self._shadow
        assert isinstance(shadow, ClassicShadow)
        return shadow.has(columns, [each._shadow for each in others])

    def colRegex(self, colName: str) -> Column:
        """Return the columns whose names match, like `DataFrame.colRegex`."""
        return self._shadow.dataframe().colRegex(colName)

    def metadataColumn(self, colName: str) -> Column:
        """Return a column of metadata, like `DataFrame.metadataColumn`."""
        return self._shadow.dataframe().metadataColumn(colName)

    def __getattr__(self, name: str) -> Column:
        if self._is_in_python and name in self._own_schema.names:
            column: Column = self._shadow.dataframe()[name]  # as an attribute, PySpark would read the schema
            return column
        return super().__getattr__(name)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str | int):
            return self._shadow.dataframe()[item]
        return super().__getitem__(item)


class _StreamWriter(DataStreamWriter):
    """A writer of streams, whose ``foreachBatch`` passes frames."""

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        session: Any = self._df.sparkSession
        is_plain = plain_session(session) is session

        def with_frame(batch: DataFrame, number: int) -> None:
            # PySpark makes a session for the batch, and `RDD.toDF` uses the session that is made last
            own = batch.sparkSession if is_plain else session._of(batch.sparkSession)
            func(ClassicFrame._of_plain(batch, own), number)

        return super().foreachBatch(with_frame)
