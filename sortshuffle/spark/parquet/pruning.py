"""Conditions on a scan, and what they exclude before rows are read.

A condition is an Arrow expression over the columns of the wire schema. Arrow's simplification of expressions
excludes directories by the values of partition columns, without opening a file, and row groups by the
statistics in the footer.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_CONDITION_ERRORS = (pa.ArrowException, TypeError, ValueError, KeyError)


def binds(condition: Any, schema: pa.Schema) -> bool:
    """Return whether ``condition`` is a boolean expression over columns of this schema."""
    try:
        pa.RecordBatch.from_pylist([], schema=schema).filter(condition)
    except _CONDITION_ERRORS:
        return False
    return True


def uses(condition: Any, schema: pa.Schema, column: int) -> bool:
    """Return whether an expression over this schema needs the column at this position."""
    return not binds(condition, schema.remove(column))


def may_prune(condition: Any, schema: pa.Schema) -> bool:
    """Return whether this condition may exclude row groups by their statistics.

    A condition on floating point columns may not: statistics ignore NaN, so ``~(x <= 5)`` would lose the NaNs
    of a row group whose other values of x are from 1 to 5.
    """
    return not any(
        _holds_floats(field.type) and uses(condition, schema, at) for at, field in enumerate(schema)
    )


def known_values(partition: Sequence[tuple[str, pa.Scalar]]) -> Any:
    """Return an expression that says which values these columns have; None if there are no columns."""
    terms = [
        pc.field(name) == value if value.is_valid else pc.field(name).is_null() for name, value in partition
    ]
    return functools.reduce(operator.and_, terms) if terms else None


def can_match(condition: Any, guarantee: Any, schema: pa.Schema) -> bool:
    """Return whether rows can satisfy the condition if ``guarantee``, None for none, is true of them."""
    if guarantee is None:
        return True
    # here, because it loads pandas: 0.4 s of a session that may need neither
    import pyarrow.dataset as ds

    nowhere = pa.fs.LocalFileSystem()
    try:
        fragment = ds.ParquetFileFormat().make_fragment("", nowhere, partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], schema, ds.ParquetFileFormat(), nowhere)
        return any(True for _ in dataset.get_fragments(condition))
    except _CONDITION_ERRORS:
        return True


def kept_row_groups(fragment: Any, condition: Any, partition: Sequence[pa.Field]) -> Sequence[int]:
    """Return the row groups of a file that the condition does not exclude by their statistics. ``partition``:
    the columns of the fragment's guarantee."""
    guaranteed = {column.name for column in partition}
    try:
        stored = [column for column in fragment.physical_schema if column.name not in guaranteed]
        kept = fragment.subset(condition, schema=pa.schema([*stored, *partition]))
        return [group.id for group in kept.row_groups]
    except _CONDITION_ERRORS:  # the file lacks a column, or stores another type: its rows are filtered later
        return range(fragment.metadata.num_row_groups)


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_holds_floats(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))
