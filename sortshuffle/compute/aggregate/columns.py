"""Columns of rows and of states: as NumPy arrays and back, normalised, and put together to batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from sortshuffle.compute.aggregate.segments import Segments

Bools: TypeAlias = npt.NDArray[np.bool_]
Values: TypeAlias = npt.NDArray[Any]


def numbers(column: pa.Array, null: Any = 0) -> Values:
    """The values of a column of numbers; in place of nulls ``null``."""
    if column.null_count:
        column = column.fill_null(False if pat.is_boolean(column.type) else pa.scalar(null, column.type))
    return np.asarray(column)


def flags(column: pa.Array) -> Bools:
    """The values of a column of booleans; nulls are false."""
    result: Bools = numbers(column)
    return result


def as_doubles(column: pa.Array) -> pa.Array:
    return column.cast(pa.float64(), safe=False)


def nullable(values: Values, valid: Bools | None) -> pa.Array:
    """A column of these values, null where not ``valid``; None: everywhere valid."""
    return pa.array(values, mask=None if valid is None else ~valid)


def all_valid(columns: Sequence[pa.Array]) -> Bools | None:
    """In which rows no column is null; None if that is all of them."""
    valid: Bools | None = None
    for column in columns:
        if column.null_count:
            here = np.asarray(column.is_valid())
            valid = here if valid is None else valid & here
    return valid


def segments_with_any(column: pa.Array, segments: Segments) -> Bools | None:
    """Which groups have a value that is not null; None if all have."""
    if column.null_count == 0:
        return None
    return segments.any(np.asarray(column.is_valid()))


def normalised(column: pa.Array) -> pa.Array:
    """The values of a key as Spark gives them out: 0.0 for -0.0 and one NaN, inside of structs too."""
    kind = column.type
    if pat.is_floating(kind):
        values = np.asarray(column.fill_null(0.0) if column.null_count else column)
        plain = np.where(np.isnan(values), values.dtype.type(np.nan), values) + values.dtype.type(0)
        return pa.array(plain, mask=np.asarray(column.is_null()) if column.null_count else None)
    if not has_floats(kind):
        return column
    children = [normalised(column.field(at)) for at in range(kind.num_fields)]
    missing = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)


def has_floats(kind: pa.DataType) -> bool:
    if pat.is_struct(kind):
        return any(has_floats(child.type) for child in kind)
    return bool(pat.is_floating(kind))


def batch_of(columns: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
    """A batch of columns that need no names. ``rows``: how many it has, also without columns."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    names = list(map(str, range(len(columns))))
    return pa.RecordBatch.from_arrays(list(columns), names)


def named(columns: Sequence[pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    if not columns:
        return batch_of(columns, rows)
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)
