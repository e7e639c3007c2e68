"""The memory that each row of a batch takes. The hash join uses it to limit the size of its output batches.

The size of a row is that of its values and offsets; validity bits are not counted. Values under a null count
where Arrow's layout keeps them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from sortshuffle.partitioner.arrow_views import byte_extents, is_variable_width, list_extents
from sortshuffle.payload.ordering import Int64s

OFFSET_BYTES = 4


def row_sizes(batch: pa.RecordBatch) -> Int64s:
    """Return the bytes of each row. int64, shape (num_rows,)."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += _value_sizes(column)
    return sizes


def _value_sizes(array: pa.Array) -> Int64s | int:
    """Return the bytes of each value, or one number if all values have the same size."""
    kind = array.type
    if len(array) == 0 or pat.is_null(kind):
        return 0
    if is_variable_width(kind):
        return byte_extents(array)[2] + OFFSET_BYTES
    if pat.is_struct(kind):
        sizes: Int64s | int = 0
        for position in range(kind.num_fields):
            sizes = sizes + _value_sizes(array.field(position))
        return sizes
    if pat.is_nested(kind):
        return _list_sizes(array) + OFFSET_BYTES
    return max(1, int(kind.bit_width) // 8)


def _list_sizes(array: pa.Array) -> Int64s:
    elements, starts, lengths = list_extents(array)
    first = int(starts.min())
    elements = elements.slice(first, int((starts + lengths).max()) - first)
    sizes = _value_sizes(elements)
    if isinstance(sizes, int):
        return lengths * sizes
    up_to = np.zeros(len(elements) + 1, np.int64)
    np.cumsum(sizes, out=up_to[1:])
    within: Int64s = up_to[starts + lengths - first] - up_to[starts - first]
    return within
