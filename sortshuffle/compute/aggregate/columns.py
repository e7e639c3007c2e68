"""Helpers for columns of rows and states: to NumPy arrays and back, normalised, and assembled to batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from sortshuffle.compute.aggregate.decimals import doubles
from sortshuffle.compute.aggregate.segments import Segments

Bools: TypeAlias = npt.NDArray[np.bool_]
Values: TypeAlias = npt.NDArray[Any]


def numbers(column: pa.Array, null: Any = 0) -> Values:
    """Return the values of a numeric column, with ``null`` in place of nulls."""
    if column.null_count:
        column = column.fill_null(False if pat.is_boolean(column.type) else pa.scalar(null, column.type))
    return np.asarray(column)


def flags(column: pa.Array) -> Bools:
    """Return the values of a boolean column; nulls are false."""
    result: Bools = numbers(column)
    return result


def as_doubles(column: pa.Array) -> pa.Array:
    """Return the nearest double of each number. Nulls stay null."""
    if pat.is_decimal128(column.type):
        return doubles(column)
    return column.cast(pa.float64(), safe=False)


def nullable(values: Values, valid: Bools | None) -> pa.Array:
    """Make a column of ``values``, null where not ``valid``; None means that all are valid."""
    return pa.array(values, mask=None if valid is None else ~valid)


def all_valid(columns: Sequence[pa.Array]) -> Bools | None:
    """Return for each row whether no column is null, or None if there are no nulls."""
    valid: Bools | None = None
    for column in columns:
        if column.null_count:
            here = np.asarray(column.is_valid())
            valid = here if valid is None else valid & here
    return valid


def segments_with_any(column: pa.Array, segments: Segments) -> Bools | None:
    """Return for each group whether it has a value that is not null, or None if there are no nulls."""
    if column.null_count == 0:
        return None
    return segments.any(np.asarray(column.is_valid()))


def normalise(column: pa.Array) -> pa.Array:
    """Normalise the values of a key as Spark does: 0.0 for -0.0 and a single NaN, inside structs too."""
    kind = column.type
    if pat.is_floating(kind):
        values = np.asarray(column.fill_null(0.0) if column.null_count else column)
        plain = np.where(np.isnan(values), values.dtype.type(np.nan), values) + values.dtype.type(0)
        return pa.array(plain, mask=np.asarray(column.is_null()) if column.null_count else None)
    if not has_floats(kind):
        return column
    children = [normalise(column.field(at)) for at in range(kind.num_fields)]
    missing = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)


def has_floats(kind: pa.DataType) -> bool:
    if pat.is_struct(kind):
        return any(has_floats(child.type) for child in kind)
    return bool(pat.is_floating(kind))


def batch_of(columns: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
    """Make a batch of columns that need no names. ``rows``: its number of rows, even without columns."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    names = list(map(str, range(len(columns))))
    return pa.RecordBatch.from_arrays(list(columns), names)


def to_batch(columns: Sequence[pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    if not columns:
        return batch_of(columns, rows)
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)
