"""The reasons why only Spark can scan the files of a plan. `operators.parquet_scan` asks for them.

Whatever might make rows differ is a reason: a setting, an option, a type or a note on a column that is not
listed here as harmless. Every function returns a reason as a sentence without an end; empty if there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as st

from sortshuffle.errors import UsageError
from sortshuffle.spark.operators.file_relation import LOCAL, FileRelation
from sortshuffle.spark.operators.plan_json import RELATION, PlannedColumns
from sortshuffle.spark.parquet.file_schema import file_fields
from sortshuffle.spark.parquet.files import ParquetFiles
from sortshuffle.spark.parquet.fitting import Calendars
from sortshuffle.spark.parquet.scanning import ScanSource, open_parquet
from sortshuffle.spark.parquet.settings import FileRules
from sortshuffle.spark.session.requirements import setting_of

MOST_FOOTERS = 32
_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
_INDEX = "org.apache.spark.sql.execution.datasources.InMemoryFileIndex"

# Settings, and the values with which Spark reads as the workers do. Not every version has all of them.
_SETTINGS = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.archive.reader.enabled": "false",
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.parquet.enableNestedColumnVectorizedReader": "true",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.int96TimestampConversion": "false",
}
# Settings, of Spark or of Hadoop, that must not be there: they may change plans, files or file systems
_ABSENT = ("spark.sql.extensions", "parquet.crypto.factory.class", "fs.file.impl")
# Options that Spark has applied when it listed the files and found their schema, or only applies to writing
_APPLIED = {
    "path",
    "paths",
    "basepath",
    "recursivefilelookup",
    "pathglobfilter",
    "modifiedbefore",
    "modifiedafter",
    "timezone",
    "mergeschema",
    "compression",
}
REBASE_MODES = {"datetimerebasemode", "int96rebasemode"}
_NOT_IGNORED = {"ignorecorruptfiles", "ignoremissingfiles"}

_TYPES = {
    st.BooleanType,
    st.ByteType,
    st.ShortType,
    st.IntegerType,
    st.LongType,
    st.FloatType,
    st.DoubleType,
    st.DecimalType,
    st.StringType,
    st.BinaryType,
    st.DateType,
    st.TimestampType,
    st.TimestampNTZType,
    st.DayTimeIntervalType,
}
_WITH_CALENDAR = {st.DateType, st.TimestampType, st.TimestampNTZType}
_UTF8_BINARY = st.StringType()
# Metadata that Spark gives columns whose values are not simply those of the files; more begin with two
# underscores, such as that of a column of type char
_SPECIAL = {"CURRENT_DEFAULT", "EXISTS_DEFAULT", "GENERATION_EXPRESSION"}


def why_not_session(spark: SparkSession) -> str:
    """Settings with which Spark reads files in another way than the workers, or that may change plans."""
    for name, needed in _SETTINGS.items():
        value = setting_of(spark, name)
        if value not in (None, needed):
            return f"{name} is {value}"
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for name in _ABSENT:
        if spark.conf.get(name, None) or hadoop.get(name):
            return f"{name} is set"
    return ""


def why_not_relation(relation: FileRelation, columns: PlannedColumns) -> str:
    """Return why the relation is not just local Parquet files that Spark listed when it analysed the plan."""
    if relation.format != _FORMAT:
        return f"its files are not read as Parquet, but by {relation.format}"
    if relation.index != _INDEX:
        return f"its files are listed when they are read, by {relation.index}"
    if relation.is_bucketed:
        return "its table is bucketed"
    if columns.relation["isStreaming"]:
        return "it is a stream"
    names = [attribute["name"] for (attribute,) in columns.relation["output"]]
    if names != relation.schema.names:
        return "it has metadata columns"
    if not set(relation.partitions.names) <= set(names):
        return "its partition columns are not found among its columns"
    elsewhere = [root for root in relation.roots if not root.startswith(LOCAL)]
    if elsewhere:
        return f"its files are on {elsewhere[0].split(':')[0]}, which Spark reaches by Hadoop's settings"
    unreadable = relation.unreadable_partitions()
    if unreadable:
        return f"the values of its partition column '{unreadable[0]}' cannot be read"
    return _why_not_options(relation.options)


def _why_not_options(options: Mapping[str, str]) -> str:
    for name, value in options.items():
        if name in _NOT_IGNORED and value.lower() != "false":
            return f"its option {name} is {value}"
        if name not in _APPLIED | REBASE_MODES | _NOT_IGNORED:
            return f"its option {name} is not known here"
    return ""


def why_not_cached(df: Any) -> str:
    """Rows that Spark has in its cache, which it would take from there."""
    if df.sparkSession._jsparkSession.sharedState().cacheManager().isEmpty():
        return ""
    # asked of another DataFrame, because this one would keep the answer, and may be cached later
    used = df._jdf.alias("scan").queryExecution().withCachedData().collectLeaves().head()
    return "" if used.getClass().getName() == RELATION else "Spark has its rows in its cache"


def why_not_types(schema: st.StructType, rules: FileRules) -> str:
    """Columns whose values in files the workers cannot read, or not as Spark does."""
    for column in schema:
        for part in (column, *_parts(column.dataType)):
            reason = _why_not_field(part) if isinstance(part, st.StructField) else _why_not_type(part, rules)
            if reason:
                return f"column '{column.name}' {reason}"
    return ""


def _why_not_field(field: st.StructField) -> str:
    special = [name for name in field.metadata if name in _SPECIAL or name.startswith("__")]
    return f"is not simply that of the files ({special[0]})" if special else ""


def _why_not_type(kind: st.DataType, rules: FileRules) -> str:
    if type(kind) not in _TYPES or (isinstance(kind, st.StringType) and kind != _UTF8_BINARY):
        return f"is of type {kind.simpleString()}"
    if type(kind) in _WITH_CALENDAR and "LEGACY" in (rules.datetime_rebase, rules.int96_rebase):
        return "may be in the old calendar (LEGACY), which Spark converts"
    return ""


def why_not_files(files: ParquetFiles, schema: st.StructType, wire: pa.Schema) -> str:
    """What the footers of the files say against reading these columns.

    At most `MOST_FOOTERS` are read, because those of many files take too long at this point: of the first and
    the last file, because old files of a table tend to be at one end of it, and of some between them.
    """
    in_files = [column for column in schema if column.name not in files.source.partition_columns]
    last = len(files.files) - 1
    chosen = {round(last * at / (MOST_FOOTERS - 1)) for at in range(MOST_FOOTERS)} if files.files else set()
    for file in (files.files[at] for at in sorted(chosen)):
        try:
            reason = _why_not_file(file.path, files.source, in_files, wire)
        except UsageError as error:
            return str(error)
        if reason:
            return reason
    return ""


def _why_not_file(path: str, source: ScanSource, columns: list[st.StructField], wire: pa.Schema) -> str:
    # files that do not name their calendar are read alike, or refused, by Spark and by the workers
    current = replace(source.rules, datetime_rebase="CORRECTED", int96_rebase="CORRECTED")
    with open_parquet(path, source.filesystem.arrow()) as opened:
        calendars = Calendars.of(opened.metadata.metadata, current)
        fitting, fields = source.fitting(opened.metadata, path), file_fields(opened.schema)
        leaves = () if fitting.reads_int96 else (leaf for field in fields for leaf in field.leaves())
        misread = {leaf.path for leaf in leaves if leaf.physical == "INT96"}
        for column in columns:
            fit = fitting.column(column.name, fields, column.dataType, wire.field(column.name).type)
            if fit is not None and misread.intersection(fit[1].paths):
                return f"column '{column.name}' of {path} has times that an early pyarrow wrote as INT96"
            has_dates = any(type(part) in _WITH_CALENDAR for part in _parts(column.dataType))
            if has_dates and (calendars.datetime or calendars.int96):
                return f"column '{column.name}' of {path} is in the old calendar, which Spark converts"
    return ""


def _parts(kind: st.DataType) -> Iterator[st.StructField | st.DataType]:
    """Yield the fields of structs and the types that are not nested, at all depths."""
    if isinstance(kind, st.StructType):
        for field in kind.fields:
            yield field
            yield from _parts(field.dataType)
    elif isinstance(kind, st.ArrayType):
        yield from _parts(kind.elementType)
    elif isinstance(kind, st.MapType):
        yield from _parts(kind.keyType)
        yield from _parts(kind.valueType)
    else:
        yield kind
