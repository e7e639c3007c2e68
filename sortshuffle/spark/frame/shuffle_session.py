"""`session`: a SparkSession whose DataFrames are frames, so that a PySpark job runs on sortshuffle as it is.

    spark = sortshuffle.session(SparkSession.builder.appName("nightly"))

The returned session works on the same session of Spark's JVM as PySpark's own, which
``SparkSession.builder.getOrCreate()`` still returns. So a library may make ordinary DataFrames, and they meet
frames. This package's own plans are made in PySpark's session (`requirements.plain_session`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.catalog import Catalog
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.tvf import TableValuedFunction

from sortshuffle.spark.frame.classic_frame import ClassicFrame
from sortshuffle.spark.frame.delegation import delegating, own_errors
from sortshuffle.spark.frame.frames import framed
from sortshuffle.spark.plan.estimated_sizes import note_sent
from sortshuffle.spark.session import progress
from sortshuffle.spark.session.requirements import configure, is_classic, require_session, settings_of


def session(spark: SparkSession.Builder | SparkSession) -> SparkSession:
    """Return a session whose DataFrames are `ShuffleFrame`s. ``spark``: a builder, to which `configure` is
    applied; or a running session, whose shuffle manager stays as it is.

    Raises `UsageError` for anything else, `StateError` if the session was stopped, and what `configure`
    raises.
    """
    # the builders of PySpark's two kinds of sessions have no common class
    if hasattr(spark, "config") and not isinstance(spark, type):
        spark = configure(spark).getOrCreate()
    plain = require_session(spark)
    if is_classic(plain):
        DataFrame.__new__ = staticmethod(_new)
        return ShuffleSession._of(plain)
    # imports packages that classic sessions do without
    from sortshuffle.spark.frame.connect_session import ConnectShuffleSession

    return ConnectShuffleSession._of(plain)


_sparks_new: Any = DataFrame.__new__


def _new(cls: type, *args: Any, **kwargs: Any) -> Any:
    """Return what ``DataFrame(jdf, session)`` makes: a frame, if ``session`` is one of ours. Machine learning
    and libraries with a JVM part make DataFrames so. PySpark's own ``__new__`` chooses the class, too."""
    if any(isinstance(each, ShuffleSession) for each in (*args, *kwargs.values())):
        if issubclass(ClassicFrame, cls):
            return object.__new__(ClassicFrame)  # Python calls its `__init__`
        return ClassicFrame(*args, **kwargs)
    return _sparks_new(cls, *args, **kwargs)


@delegating(SparkSession)
class ShuffleSession(SparkSession):
    """A session with a JVM, whose DataFrames are frames."""

    def __init__(self, sparkContext: Any, jsparkSession: Any = None, options: Any = None) -> None:
        # in this order, because the session that is made last is the one of `RDD.toDF`
        self._plain_session = SparkSession(sparkContext, jsparkSession, options or {})
        super().__init__(sparkContext, self._plain_session._jsparkSession)

    @classmethod
    def _of(cls, plain: Any) -> ShuffleSession:
        session = cls(plain.sparkContext, plain._jsparkSession)
        session._plain_session = plain
        session._profiler_collector = plain._profiler_collector
        if progress.in_notebook():  # elsewhere nothing is asked of the JVM
            option = settings_of(plain).get(progress.OPTION, "auto")
            progress.watch(plain.sparkContext, option, plain.sparkContext.applicationId)
        return session

    @property
    def read(self) -> DataFrameReader:
        """A reader, whose DataFrames are frames."""
        return _SessionReader(self)

    @property
    def readStream(self) -> DataStreamReader:
        """A reader of streams, whose DataFrames are frames."""
        return _SessionStreamReader(self)

    @property
    def tvf(self) -> TableValuedFunction:
        """Table functions, whose DataFrames are frames."""
        return _TableFunctions(self)

    @property
    def catalog(self) -> Catalog:
        """The catalog, whose DataFrames are frames."""
        return _Catalog(self)

    @functools.wraps(SparkSession.createDataFrame)
    def createDataFrame(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with own_errors():
                made = super().createDataFrame(*args, **kwargs)
        finally:
            # PySpark has made this session the active one, also for what knows nothing of frames
            SparkSession._activeSession = self._plain_session
        values = (*args, *kwargs.values())
        note_sent(made, next((data for data in values if isinstance(data, RDD)), None))
        return framed(made, self)

    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        return framed(result, self)


class _SessionReader(DataFrameReader):
    def _df(self, jdf: Any) -> DataFrame:
        frame: DataFrame = framed(super()._df(jdf), self._spark)
        return frame


class _SessionStreamReader(DataStreamReader):
    def _df(self, jdf: Any) -> DataFrame:
        frame: DataFrame = framed(super()._df(jdf), self._spark)
        return frame


@delegating(TableValuedFunction)
class _TableFunctions(TableValuedFunction):
    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        return framed(result, self._sparkSession)


@delegating(Catalog)
class _Catalog(Catalog):
    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        return framed(result, self._sparkSession)
