"""A relation of files in a plan of Spark, and its files: what the JVM knows of them.

The JVM tells everything in two texts (``FileRelations`` in the manager's jar). Asked one by one through Py4J,
the paths and partition values of 10,000 files take seconds; in one text they take 0.1 s.

Of Spark's file sources, only this module and ``FileRelations.java`` use internals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import types as st

from sortshuffle.spark.manager.jar_methods import jar_method
from sortshuffle.spark.parquet.finding import FoundParquetFile
from sortshuffle.spark.parquet.paths import parent_of
from sortshuffle.spark.schema import schema_of_json

_CLASS = "FileRelations"
LOCAL = "file:"
"""What Hadoop's paths of local files begin with."""

_VALUES: dict[type[st.DataType], Callable[[str], Any]] = {
    st.ByteType: int,
    st.ShortType: int,
    st.IntegerType: int,
    st.LongType: int,
    st.FloatType: float,
    st.DoubleType: float,
    st.DecimalType: Decimal,
    st.StringType: str,
    st.BooleanType: "true".__eq__,
    st.DateType: int,  # days since 1970
    st.TimestampType: int,  # microseconds since 1970
    st.TimestampNTZType: int,
}


@dataclass(frozen=True, slots=True)
class FileRelation:
    """A relation. ``format``, ``index``: classes of the JVM. ``schema``: all columns, with those of
    ``partitions``. ``options``: those that the user gave, by lower-case name. ``roots``: paths given."""

    handle: Any
    format: str
    index: str
    schema: st.StructType
    partitions: st.StructType
    is_bucketed: bool
    options: Mapping[str, str]
    roots: Sequence[str]

    @staticmethod
    def of(handle: Any) -> FileRelation:
        """Ask the JVM about its ``HadoopFsRelation``. Raises `UnsupportedError` if it cannot be asked, or if
        Python does not know a type of the schema."""
        told = json.loads(jar_method(_CLASS, "describe")(handle))
        return FileRelation(
            handle,
            told["format"],
            told["index"],
            schema_of_json(json.loads(told["schema"])),
            schema_of_json(json.loads(told["partitionSchema"])),
            told["bucketed"],
            {name.lower(): value for name, value in told["options"].items()},
            told["roots"],
        )

    def unreadable_partitions(self) -> list[str]:
        """Return the partition columns whose values this module cannot read."""
        return [column.name for column in self.partitions if type(column.dataType) not in _VALUES]

    def list(self) -> FileListing:
        """List the files as Spark's own scan does, by the listing that Spark made when it analysed the plan.
        `unreadable_partitions` must be empty, and all ``roots`` local."""
        readers = [_VALUES[type(column.dataType)] for column in self.partitions]
        files: list[FoundParquetFile] = []
        values_of: dict[str, tuple[Any, ...]] = {}
        for texts, listed in json.loads(jar_method(_CLASS, "list")(self.handle)):
            paths = [path.removeprefix(LOCAL) for path in listed[::2]]
            files += map(FoundParquetFile, paths, listed[1::2])
            if readers:
                values_of |= dict.fromkeys(map(parent_of, paths), _read(readers, texts))
        return FileListing(tuple(sorted(files, key=lambda file: file.path)), values_of)


@dataclass(frozen=True, slots=True)
class FileListing:
    """The files of a relation, sorted by path, and the values of its partition columns, by directory."""

    files: tuple[FoundParquetFile, ...]
    values: Mapping[str, tuple[Any, ...]]


def _read(readers: Sequence[Callable[[str], Any]], texts: Sequence[str | None]) -> tuple[Any, ...]:
    pairs = zip(readers, texts, strict=True)
    return tuple(None if text is None else read(text) for read, text in pairs)
