"""`scan_of`: the rows of a DataFrame that is nothing but a scan of Parquet files, scanned by the workers.

The files, the schema and the partition values are those of Spark's plan: this module finds nothing itself.
So the rows are Spark's, including the files that Spark listed when it made the DataFrame. Where they might
not be, Spark has to scan, and `NoScan` says why (`operators.scan_reasons`).

Only `scan_reasons.MOST_FOOTERS` footers are read on the driver. A worker may still come to a file that it
cannot read as Spark would (another type, dates of the old calendar). Then it raises an error, as in any scan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import types as st

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.operators.dataframe_facts import DataFrameFacts
from sortshuffle.spark.operators.file_relation import LOCAL, FileRelation
from sortshuffle.spark.operators.plan_json import (
    Expression,
    PlannedColumns,
    attributes_in,
    planned_columns,
)
from sortshuffle.spark.operators.scan_reasons import (
    REBASE_MODES,
    why_not_cached,
    why_not_files,
    why_not_relation,
    why_not_session,
    why_not_types,
)
from sortshuffle.spark.parquet.file_systems import FileSystem
from sortshuffle.spark.parquet.files import ParquetFiles
from sortshuffle.spark.parquet.merging import check_names
from sortshuffle.spark.parquet.pruning import binds
from sortshuffle.spark.parquet.scanning import ScanSource
from sortshuffle.spark.parquet.settings import FileRules, ReadSettings
from sortshuffle.spark.plan.chain import Chain, FrameContext, Rows
from sortshuffle.spark.plan.origins import ParquetOrigin
from sortshuffle.spark.session.requirements import setting_of
from sortshuffle.spark.steps.selection_steps import Select

ArrowTranslation: TypeAlias = Callable[[Expression, Mapping[int, str]], Any]
"""Translates a condition of a plan into an Arrow expression that is true for the same rows; returns None if
it cannot. The mapping gives the names of columns by the exprIds of attributes."""


@dataclass(frozen=True, slots=True)
class NoScan:
    """Why Spark has to scan the files of a DataFrame: a sentence without an end, for `explain()`."""

    reason: str


def scan_of(
    df: DataFrame, facts: DataFrameFacts, context: FrameContext, translate: ArrowTranslation | None = None
) -> Rows | NoScan:
    """Return the rows of ``df`` as a scan by the workers, or why there is none. Runs no job.

    The result has the rows, names, types and nullability of ``df``. Its files are those that Spark has
    listed. Some of their footers are read. ``facts``: of ``df``. ``translate``: for the conditions of
    filters; without it a DataFrame with a filter has no scan.
    """
    try:
        return _scan(df, facts, context, translate)
    except (UnsupportedError, UsageError) as error:
        return NoScan(str(error))


def _scan(
    df: DataFrame, facts: DataFrameFacts, context: FrameContext, translate: ArrowTranslation | None
) -> Rows:
    """Raises `UnsupportedError` or `UsageError` if there is no scan."""
    plan, leaf = _plan_and_leaf(df, facts)
    _check(why_not_session(context.spark))
    columns = planned_columns(json.loads(plan.toJSON()))
    relation = FileRelation.of(leaf.relation())
    _check(why_not_relation(relation, columns))
    _check(why_not_cached(df))
    rules = _rules(relation, context)
    check_names(relation.schema, rules.case_sensitive, "its relation")
    return _rows(facts.schema, context, PlannedScan(relation, columns, rules), translate)


def _check(reason: str) -> None:
    if reason:
        raise UnsupportedError(reason)


def _plan_and_leaf(df: Any, facts: DataFrameFacts) -> tuple[Any, Any]:
    """Return the analysed plan, and its leaf if it has only one, which is a relation of files."""
    _check(facts.why_no_source)
    if not facts.source:
        raise UnsupportedError("its plan has several sources")
    if not facts.reads_files:
        raise UnsupportedError(f"its source is no relation of files, but {facts.source.rsplit('.', 1)[-1]}")
    plan = df._jdf.queryExecution().analyzed()
    return plan, plan.collectLeaves().head()


def _rules(relation: FileRelation, context: FrameContext) -> FileRules:
    modes = {name: mode for name, mode in relation.options.items() if name in REBASE_MODES}
    return ReadSettings.of(
        partial(setting_of, context.spark),
        modes,
        case_sensitive=context.case_sensitive,
        timezone=context.conf.timezone,
    ).rules


@dataclass(frozen=True, slots=True)
class PlannedScan:
    """A relation of files, what a plan takes of it, and how its files are read."""

    relation: FileRelation
    columns: PlannedColumns
    rules: FileRules

    def files(self) -> ParquetFiles:
        relation = self.relation
        listing = relation.list()
        partition_columns = tuple(relation.partitions.names)
        source = ScanSource(FileSystem.of(["/"], {}), relation.schema, partition_columns, self.rules)
        label = ", ".join(root.removeprefix(LOCAL) for root in relation.roots)
        return ParquetFiles(source, listing.files, listing.values, label)

    def conditions(self, translate: ArrowTranslation | None) -> tuple[Any, ...]:
        """Return the conditions as Arrow expressions over the relation's columns."""
        names = {number: self.relation.schema.names[at] for number, at in self.columns.attributes.items()}
        expressions = tuple(translate(each, names) if translate else None for each in self.columns.conditions)
        if any(expression is None for expression in expressions):
            raise UnsupportedError("Arrow cannot tell which rows its filter keeps")
        return expressions

    def read(self) -> tuple[int, ...]:
        """Return the positions of the columns to read: those of the plan, and then those of conditions."""
        attributes = self.columns.attributes
        used = {attributes[number] for each in self.columns.conditions for number in attributes_in(each)}
        return tuple(dict.fromkeys([*self.columns.positions, *sorted(used)]))


def _rows(
    schema: st.StructType, context: FrameContext, source: PlannedScan, translate: ArrowTranslation | None
) -> Rows:
    """Return the rows, which have ``schema``."""
    fields, asked, positions = source.relation.schema.fields, source.columns.positions, source.read()
    if [(fields[at].dataType, True) for at in asked] != [(each.dataType, each.nullable) for each in schema]:
        raise UnsupportedError("its columns are not those of its relation")
    filters = source.conditions(translate)
    read = st.StructType([fields[at] for at in positions])
    _check(why_not_types(read, source.rules))
    wire = context.wire(read)
    if not all(binds(each, wire) for each in filters):
        raise UnsupportedError("Arrow cannot tell which rows its filter keeps")
    files = source.files()
    _check(why_not_files(files, read, wire))
    chain = Chain(context, ParquetOrigin(context.spark, files, tuple(read.names), wire, filters), read, wire)
    if positions == asked and schema.names == read.names:
        return Rows(replace(chain, schema=schema))
    step = Select(tuple(map(positions.index, asked)), tuple(schema.names))
    return Rows(chain.then(step, schema))
