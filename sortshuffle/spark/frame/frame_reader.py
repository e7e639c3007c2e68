"""`sortshuffle.read(spark)`: a reader with `DataFrameReader`'s method names, whose scans run in Python."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.frame.frames import frame_of
from sortshuffle.spark.frame.shuffle_frame import ShuffleFrame
from sortshuffle.spark.parquet.files import ParquetFiles
from sortshuffle.spark.parquet.settings import ReadSettings, check_listing
from sortshuffle.spark.plan.chain import Chain, FrameContext, Rows
from sortshuffle.spark.plan.origins import ParquetOrigin
from sortshuffle.spark.schema import parse_schema
from sortshuffle.spark.session.requirements import setting_of


def read(spark: SparkSession) -> ShuffleFrameReader:
    """Return a reader whose frames are scanned by the Python workers, without JVM rows."""
    return ShuffleFrameReader(spark)


class ShuffleFrameReader:
    """Reads files as frames. `sortshuffle.read` makes it. All methods but `parquet` change and return it."""

    def __init__(self, spark: Any) -> None:
        self._session = spark
        self._context = FrameContext.of(spark)
        self._options: dict[str, Any] = {}
        self._declared: StructType | None = None

    def option(self, key: str, value: Any) -> ShuffleFrameReader:
        """Set an option, like `DataFrameReader.option`: ``mergeSchema``, ``basePath``,
        ``recursiveFileLookup``, ``pathGlobFilter``, ``datetimeRebaseMode``, ``int96RebaseMode``.
        ``fsspec.<name>`` sets the option ``<name>`` of the file system, such as ``fsspec.key``; its value
        reaches the workers and is shown nowhere. None unsets an option. `parquet` refuses unknown names.
        """
        if not isinstance(key, str):
            raise UsageError(f"option() takes the name of an option, not {key!r}")
        self._options = {name: old for name, old in self._options.items() if name.lower() != key.lower()}
        if value is not None:
            self._options[key] = value
        return self

    def options(self, **options: Any) -> ShuffleFrameReader:
        """Set several options, like `DataFrameReader.options`."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def schema(self, schema: StructType | str) -> ShuffleFrameReader:
        """Read the columns and types of ``schema`` instead of the files' own, like `DataFrameReader.schema`.

        A column that a file lacks is null. Raises `UsageError` if ``schema`` is no schema.
        """
        self._declared = parse_schema(schema)
        return self

    def parquet(self, *paths: str, **options: Any) -> ShuffleFrame:
        """Read Parquet files, like `DataFrameReader.parquet`: files, directories or patterns, on any file
        system that fsspec knows, with the columns of partition directories (``year=2024``).

        If the next call selects columns, only these are read. If the next call is a filter, it skips
        directories by their values, without opening a file, and row groups by their statistics.

        Raises `UsageError` if there is nothing to read, or if files, directories and schema contradict each
        other, and `UnsupportedError` for options and types that cannot be read as Spark reads them. The scan
        raises `SchemaMismatchError` if a column of a later file cannot be read as the declared type.
        """
        self.options(**options)
        _check_paths(paths)
        context = self._context
        conf = partial(setting_of, context.spark)
        settings = ReadSettings.of(
            conf,
            self._options,
            case_sensitive=context.case_sensitive,
            timezone=context.conf.timezone,
        )
        check_listing(conf, settings.merge_schema and self._declared is None)
        files = ParquetFiles.find(paths, settings, self._declared)
        if files.source.filesystem.protocol == "memory":
            raise UnsupportedError(
                "memory:// is the memory of this process, where Spark's workers cannot read: write the files"
                " to a directory that they share"
            )
        wire = context.wire(files.schema)
        origin = ParquetOrigin(context.spark, files, tuple(files.schema.names), wire)
        return frame_of(Rows(Chain(context, origin, files.schema, wire)), self._session)


def _check_paths(paths: tuple[Any, ...]) -> None:
    for path in paths:
        if not isinstance(path, str):
            raise UsageError(f"parquet() takes paths, each a string, not {path!r}")
