"""`ConnectShuffleSession`: the session of `sortshuffle.session` over Spark Connect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.connect.catalog import Catalog
from pyspark.sql.connect.readwriter import DataFrameReader
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.connect.streaming.readwriter import DataStreamReader
from pyspark.sql.connect.tvf import TableValuedFunction

from sortshuffle.spark.frame.delegation import delegating
from sortshuffle.spark.frame.frames import framed
from sortshuffle.spark.session.requirements import NO_ROLLBACK


@delegating(SparkSession)
class ConnectShuffleSession(SparkSession):
    """A session of Spark Connect, whose DataFrames are frames. It uses the client of the session that it was
    made of, and sets what shuffles need there."""

    @classmethod
    def _of(cls, plain: Any) -> Any:
        for key, value in NO_ROLLBACK.items():
            plain.conf.set(key, value)
        session = object.__new__(cls)
        session.__dict__.update(plain.__dict__)
        session._plain_session = plain
        return session

    def __del__(self) -> None:
        """Leave the client's state to the plain session."""

    @property
    def read(self) -> DataFrameReader:
        """A reader, whose DataFrames are frames."""
        return _ConnectReader(self)

    @property
    def readStream(self) -> DataStreamReader:
        """A reader of streams, whose DataFrames are frames."""
        return _ConnectStreamReader(self)

    @property
    def tvf(self) -> TableValuedFunction:
        """Table functions, whose DataFrames are frames."""
        return _ConnectTableFunctions(self)

    @property
    def catalog(self) -> Catalog:
        """The catalog, whose DataFrames are frames."""
        return _ConnectCatalog(self)

    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        if isinstance(result, SparkSession):  # a new one, or a clone
            return ConnectShuffleSession._of(result)
        return framed(result, self)


class _ConnectStreamReader(DataStreamReader):
    def _df(self, plan: Any) -> DataFrame:
        frame: DataFrame = framed(super()._df(plan), self._client)
        return frame


class _ConnectReader(DataFrameReader):
    def _df(self, plan: Any) -> DataFrame:
        frame: DataFrame = framed(super()._df(plan), self._client)
        return frame


@delegating(TableValuedFunction)
class _ConnectTableFunctions(TableValuedFunction):
    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        return framed(result, self._sparkSession)


@delegating(Catalog)
class _ConnectCatalog(Catalog):
    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        return framed(result, self._sparkSession)
