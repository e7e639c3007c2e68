"""`scan_of`: the rows of a DataFrame that is nothing but a scan of Parquet files, scanned by the workers.

The files, the schema and the partition values are those of Spark's plan: this module finds nothing itself.
So the rows are Spark's, including what Spark remembers from the time when it listed the files. Whatever might
make the rows differ is a reason to let Spark scan: a setting, an option, a type or a node that is not listed
here as harmless.

What the plan does not say: a worker that comes to a file which it cannot read as Spark would (whose types
contradict the schema, or which may hold dates of the old calendar) raises an error, as in any scan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.operators.file_relation import LOCAL, FileRelation, why_not_asked
from sortshuffle.spark.operators.plan_json import (
    RELATION,
    Expression,
    PlannedColumns,
    attributes_in,
    planned_columns,
)
from sortshuffle.spark.parquet.file_systems import FileSystem
from sortshuffle.spark.parquet.files import ParquetFiles
from sortshuffle.spark.parquet.merging import check_names
from sortshuffle.spark.parquet.scanning import ScanSource
from sortshuffle.spark.parquet.settings import FileRules, ReadSettings
from sortshuffle.spark.plan.chain import Chain, FrameContext, Rows
from sortshuffle.spark.plan.origins import ParquetOrigin
from sortshuffle.spark.steps.selection_steps import Select

ArrowTranslation: TypeAlias = Callable[[Expression, Mapping[int, str]], Any]
"""Translates a condition of a plan into an Arrow expression that is true for the same rows; returns None if
it cannot. The mapping gives the names of columns by the exprIds of attributes."""

_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
_INDEX = "org.apache.spark.sql.execution.datasources.InMemoryFileIndex"

# Settings, and the values with which Spark reads as the workers do. Not every version has all of them.
_SETTINGS = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.archive.reader.enabled": "false",
    "spark.sql.parquet.enableVectorizedReader": "true",
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
_REBASE_MODES = {"datetimerebasemode", "int96rebasemode"}
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


@dataclass(frozen=True, slots=True)
class NoScan:
    """Why the workers do not scan the files of a DataFrame: a sentence without an end, for `explain()`."""

    reason: str


def scan_of(df: DataFrame, context: FrameContext, translate: ArrowTranslation | None = None) -> Rows | NoScan:
    """Return the rows of ``df`` as a scan by the workers, or why there is none. Runs no job.

    The result has the rows, names, types and nullability of ``df``. ``translate``: for the conditions of
    filters; without it a DataFrame with a filter has no scan.
    """
    leaf = _leaf_of(df)
    if isinstance(leaf, NoScan):
        return leaf
    reason = _why_not_in(context.spark) or why_not_asked()
    if reason:
        return NoScan(reason)
    columns = planned_columns(json.loads(_plan_of(df).toJSON()))
    if isinstance(columns, str):
        return NoScan(columns)
    relation = FileRelation.of(leaf.relation())
    reason = _why_not_of(relation, columns) or _why_cached(df)
    if reason:
        return NoScan(reason)
    try:
        return _Scanned(df, context, relation, columns).rows(translate)
    except (UnsupportedError, UsageError) as error:
        return NoScan(str(error))


def _leaf_of(df: Any) -> Any:
    """Return the leaf of a plan that has one leaf, which is a relation of files."""
    if not hasattr(df, "_jdf"):
        return NoScan("over Spark Connect the plan of a DataFrame is not known")
    leaves = _plan_of(df).collectLeaves()
    if leaves.length() != 1:
        return NoScan("its plan has several sources")
    leaf = leaves.head()
    name = _class_of(leaf)
    if name != RELATION or _class_of(leaf.relation()) != _RELATION:
        return NoScan(f"its source is no table of files that Spark's first API reads ({name.split('.')[-1]})")
    return leaf


def _plan_of(df: Any) -> Any:
    return df._jdf.queryExecution().analyzed()


def _class_of(instance: Any) -> str:
    return str(instance.getClass().getName())


# --- reasons that Spark must scan -----------------------------------------------------------------------


def _why_not_in(spark: SparkSession) -> str:
    for name, needed in _SETTINGS.items():
        try:
            value = str(spark.conf.get(name)).lower()
        except PySparkException:  # this version of Spark has no such setting
            continue
        if value != needed:
            return f"{name} is {value}"
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for name in _ABSENT:
        if spark.conf.get(name, None) or hadoop.get(name):
            return f"{name} is set"
    return ""


def _why_not_of(relation: FileRelation, columns: PlannedColumns) -> str:
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
    return _why_not_with(relation.options)


def _why_not_with(options: Mapping[str, str]) -> str:
    for name, value in options.items():
        if name in _NOT_IGNORED and value.lower() != "false":
            return f"its option {name} is {value}"
        if name not in _APPLIED | _REBASE_MODES | _NOT_IGNORED:
            return f"its option {name} is not known here"
    return ""


def _why_cached(df: Any) -> str:
    if df.sparkSession._jsparkSession.sharedState().cacheManager().isEmpty():
        return ""
    # asked of another DataFrame, because this one would keep the answer, and may be cached later
    used = df._jdf.alias("scan").queryExecution().withCachedData().collectLeaves().head()
    return "" if _class_of(used) == RELATION else "Spark has its rows in its cache"


def _why_not_read(schema: st.StructType, rules: FileRules) -> str:
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


# --- the scan -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scanned:
    """A DataFrame with nothing against a scan but, perhaps, its conditions, types and partition values."""

    df: DataFrame
    context: FrameContext
    relation: FileRelation
    columns: PlannedColumns

    def rows(self, translate: ArrowTranslation | None) -> Rows | NoScan:
        filters = self._filters(translate)
        if isinstance(filters, NoScan):
            return filters
        asked = self.columns.positions
        used = {
            self.columns.attributes[each] for one in self.columns.conditions for each in attributes_in(one)
        }
        needed = list(dict.fromkeys([*asked, *sorted(used)]))
        fields = self.relation.schema.fields
        read = st.StructType([fields[at] for at in needed])
        rules = self._rules()
        reason = self._why_not(read, rules)
        if reason:
            return NoScan(reason)
        wire = self.context.wire(read)
        origin = ParquetOrigin(self.context.spark, self._files(rules), tuple(read.names), wire, filters)
        chain = Chain(self.context, origin, read, wire)
        schema = self.df.schema
        if schema.names == read.names:
            return Rows(replace(chain, schema=schema))
        step = Select(tuple(map(needed.index, asked)), tuple(schema.names))
        return Rows(chain.then(step, schema))

    def _filters(self, translate: ArrowTranslation | None) -> tuple[Any, ...] | NoScan:
        names = {number: self.relation.schema.names[at] for number, at in self.columns.attributes.items()}
        filters = []
        for condition in self.columns.conditions:
            expression = None if translate is None else translate(condition, names)
            if expression is None:
                return NoScan("Arrow cannot tell which rows its filter keeps")
            filters.append(expression)
        return tuple(filters)

    def _rules(self) -> FileRules:
        options = {name: self.relation.options.get(name) for name in _REBASE_MODES}
        return ReadSettings.of(
            self.context.spark.conf.get,
            {name: value for name, value in options.items() if value is not None},
            case_sensitive=self.context.case_sensitive,
            timezone=self.context.conf.timezone,
        ).rules

    def _why_not(self, read: st.StructType, rules: FileRules) -> str:
        unreadable = self.relation.unreadable_partitions()
        if unreadable:
            return f"the values of its partition column '{unreadable[0]}' cannot be read"
        asked = [self.relation.schema.fields[at].dataType for at in self.columns.positions]
        if [field.dataType for field in self.df.schema] != asked or not all(
            field.nullable for field in self.df.schema
        ):
            return "its columns are not those of its relation"
        check_names(self.relation.schema, rules.case_sensitive, "its relation")
        return _why_not_read(read, rules)

    def _files(self, rules: FileRules) -> ParquetFiles:
        listing = self.relation.list()
        partition_columns = tuple(self.relation.partitions.names)
        source = ScanSource(FileSystem.of(["/"], {}), self.relation.schema, partition_columns, rules)
        label = ", ".join(root.removeprefix(LOCAL) for root in self.relation.roots)
        return ParquetFiles(source, listing.files, listing.values, label)
