"""Selects columns by position: `select_columns`, and `reading_only`, whose source reads no other columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from sortshuffle.spark.parquet.pruning import uses
from sortshuffle.spark.plan.chain import Chain, Rows
from sortshuffle.spark.plan.origins import DataFrameOrigin, ParquetOrigin
from sortshuffle.spark.steps.selection_steps import Select


def select_columns(rows: Rows, positions: tuple[int, ...], names: Sequence[str]) -> Rows:
    """Return the columns at these positions, under these names."""
    fields = [rows.schema.fields[at] for at in positions]
    schema = StructType(
        [
            StructField(name, field.dataType, field.nullable, field.metadata)
            for name, field in zip(names, fields, strict=True)
        ]
    )
    distinct = tuple(dict.fromkeys(positions))
    read = StructType([rows.schema.fields[at] for at in distinct])
    pruned = _pruned_scan(rows.chain, distinct, read)
    if pruned is None:
        step = Select(positions, tuple(names))
        return Rows(rows.chain.then(step, schema), rows.layout.selected(positions))
    if list(names) == read.names:
        return Rows(pruned)
    step = Select(tuple(distinct.index(at) for at in positions), tuple(names))
    return Rows(pruned.then(step, schema))


def reading_only(rows: Rows, positions: tuple[int, ...]) -> Rows | None:
    """Return only the columns at these positions, from a source that reads no others; None unless the rows
    come directly from a source.

    The result has a new source. Exchanges are written together only if they have the same source, so do not
    use this if the rows may be written together with another exchange.
    """
    read = StructType([rows.schema.fields[at] for at in positions])
    chain = _pruned_scan(rows.chain, positions, read) or _pruned_source(rows.chain, positions, read)
    return None if chain is None else Rows(chain, rows.layout.selected(positions))


def _pruned_scan(chain: Chain, positions: tuple[int, ...], schema: StructType) -> Chain | None:
    """Return a scan of only these columns; None if the chain is not a bare scan. A column that only the
    filters need is read and then dropped."""
    origin = chain.origin
    if not isinstance(origin, ParquetOrigin) or chain.steps:
        return None
    filtered_by = {
        at for at in range(len(chain.wire)) for each in origin.filters if uses(each, chain.wire, at)
    }
    needed = [*positions, *sorted(filtered_by.difference(positions))]
    pruned = replace(
        origin,
        file_columns=tuple(origin.file_columns[at] for at in needed),
        wire=pa.schema([chain.wire.field(at) for at in needed]),
    )
    if len(needed) == len(positions):
        return replace(chain, origin=pruned, schema=schema, wire=pruned.wire)
    read = StructType([chain.schema.fields[at] for at in needed])
    step = Select(tuple(range(len(positions))), tuple(schema.names))
    return replace(chain, origin=pruned, schema=read, wire=pruned.wire).then(step, schema)


def _pruned_source(chain: Chain, positions: tuple[int, ...], schema: StructType) -> Chain | None:
    """Return a chain on a DataFrame of only these columns, so that Spark reads no others; None if the chain
    is not a bare DataFrame, or if names do not identify its columns."""
    origin = chain.origin
    if not isinstance(origin, DataFrameOrigin) or chain.steps:
        return None
    pruned = origin.pruned(positions)
    return None if pruned is None else replace(chain, origin=pruned, schema=schema, wire=pruned.wire)
