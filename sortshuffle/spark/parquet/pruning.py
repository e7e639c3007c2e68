"""Conditions on a scan, and what they exclude before anything is read.

A condition is an Arrow expression over the columns of the wire schema. What it excludes is found by Arrow's
own simplification: by the values of partition columns without opening a file, by the statistics of row groups
from the footer.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

_UNFIT = (pa.ArrowException, TypeError, ValueError, KeyError)


def binds(condition: Any, schema: pa.Schema) -> bool:
    """Whether an expression is a boolean one over columns of this schema."""
    try:
        pa.RecordBatch.from_pylist([], schema=schema).filter(condition)
    except _UNFIT:
        return False
    return True


def uses(condition: Any, schema: pa.Schema, column: int) -> bool:
    """Whether an expression over this schema cannot do without the column at this position."""
    return not binds(condition, schema.remove(column))


def may_prune(condition: Any, schema: pa.Schema) -> bool:
    """Whether row groups may be left out by their statistics for this condition.

    Not where it is about floating point columns: statistics know nothing of NaN, so that ``~(x <= 5)``
    would lose the NaNs of a row group whose x are otherwise from 1 to 5.
    """
    return not any(
        _holds_floats(field.type) and uses(condition, schema, at) for at, field in enumerate(schema)
    )


def known(partition: Sequence[tuple[str, pa.Scalar]]) -> Any:
    """The values of columns as an expression; None if there are none."""
    terms = [
        pc.field(name) == value if value.is_valid else pc.field(name).is_null() for name, value in partition
    ]
    return functools.reduce(operator.and_, terms) if terms else None


def may_hold(condition: Any, guarantee: Any, schema: pa.Schema) -> bool:
    """Whether there can be rows for which the condition is true where the guarantee, if there is one, is."""
    if guarantee is None:
        return True
    nowhere = pa.fs.LocalFileSystem()
    try:
        fragment = ds.ParquetFileFormat().make_fragment("", nowhere, partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], schema, ds.ParquetFileFormat(), nowhere)
        return any(True for _ in dataset.get_fragments(condition))
    except _UNFIT:
        return True


def unpruned(fragment: Any, condition: Any, partition: Sequence[pa.Field]) -> Sequence[int]:
    """The row groups of a file that the condition cannot exclude by their statistics. ``partition``: the
    columns that the fragment's guarantee is about."""
    own = {column.name for column in partition}
    try:
        stored = [column for column in fragment.physical_schema if column.name not in own]
        kept = fragment.subset(condition, schema=pa.schema([*stored, *partition]))
        return [group.id for group in kept.row_groups]
    except _UNFIT:  # it is about something that the file has otherwise, or not: its rows will be filtered
        return range(fragment.metadata.num_row_groups)


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_holds_floats(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))
