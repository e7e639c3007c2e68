"""`sortshuffle.read(spark)`: frames that are scanned in Python."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sortshuffle.spark.frame import ShuffleFrame
from sortshuffle.spark.plan import Chain, FrameContext, ParquetOrigin
from sortshuffle.spark.scan import ParquetFiles
from sortshuffle.spark.schema import from_arrow


def read(spark: SparkSession) -> FrameReader:
    """A reader whose frames are scanned by the Python workers, without JVM rows."""
    return FrameReader(spark)


class FrameReader:
    """What `sortshuffle.read` gives."""

    def __init__(self, spark: Any) -> None:
        self._context = FrameContext.of(spark)

    def parquet(self, *paths: str) -> ShuffleFrame:
        """Parquet files, directories or globs, on any file system that fsspec knows.

        Only the columns selected directly behind it are read, and only row groups that a filter directly
        behind it cannot exclude. Raises `UsageError` if there is nothing to read, `UnsupportedError` for
        column types that Spark has not and for partition directories.
        """
        files = ParquetFiles.find(paths)
        schema = from_arrow(files.dataset.schema, files.int96)
        wire = self._context.wire(schema)
        names = tuple(files.dataset.schema.names)
        origin = ParquetOrigin(self._context.spark, files, names, wire)
        return ShuffleFrame(Chain(self._context, origin, schema, wire))
