"""Arrow arrays seen as NumPy arrays, without a copy where Arrow's layout allows it.

Partitioners know Arrow's memory layout only through this module. Rules:

* An array may be a slice of a longer one: every function honours its offset and returns one entry per row of
  the slice.
* The value of a null row is undefined: callers mask it with ``validity``.
* Extents (``starts``, ``lengths``) are int64. Starts are absolute positions in the returned child or bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


def validity(array: pa.Array) -> Bools | None:
    """Return which rows are not null, or None if no row is null."""
    if array.null_count == 0:
        return None
    return unpack_bits(array.buffers()[0], array.offset, len(array)).view(np.bool_)


def bools(array: pa.Array) -> Bytes:
    """Return the values of a boolean array as 0 and 1."""
    return unpack_bits(array.buffers()[1], array.offset, len(array))


def fixed_width(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the values buffer of ``array`` read as ``dtype``, which must have the width of its type."""
    return _values(array.buffers()[1], dtype, array.offset, len(array))


def byte_extents(array: pa.Array) -> tuple[Bytes, Positions, Positions]:
    """Return the bytes of a (large) string, (large) binary or fixed-width array, and each row's extent."""
    if not is_variable_width(array.type):
        return _fixed_byte_extents(array)
    _, offsets, data = array.buffers()
    bounds = _bounds(offsets, array, wide=pat.is_large_string(array.type) or pat.is_large_binary(array.type))
    return all_bytes(data), bounds[:-1], np.diff(bounds)


def list_extents(array: pa.Array) -> tuple[pa.Array, Positions, Positions]:
    """Return the whole child of a list-like array (a map counts as one), and each row's extent in it."""
    kind = array.type
    if pat.is_fixed_size_list(kind):
        starts = np.arange(array.offset, array.offset + len(array), dtype=np.int64) * kind.list_size
        return array.values, starts, np.full(len(array), kind.list_size, np.int64)
    offsets = array.buffers()[1]
    if pat.is_list_view(kind) or pat.is_large_list_view(kind):
        return _list_view_extents(array)
    bounds = _bounds(offsets, array, wide=pat.is_large_list(kind))
    return array.values, bounds[:-1], np.diff(bounds)


def is_variable_width(kind: pa.DataType) -> bool:
    """Tell whether ``kind`` is a string or binary type with an offsets buffer."""
    return bool(
        pat.is_string(kind) or pat.is_binary(kind) or pat.is_large_string(kind) or pat.is_large_binary(kind)
    )


def all_bytes(buffer: pa.Buffer | None) -> Bytes:
    """Return a buffer's bytes; Arrow leaves out buffers that would be empty."""
    if buffer is None or buffer.size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)


def unpack_bits(buffer: pa.Buffer, first: int, count: int) -> Bytes:
    """Return ``count`` bits from bit ``first`` on, each as a byte 0 or 1."""
    packed = all_bytes(buffer)[first // 8 : (first + count + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[first % 8 : first % 8 + count]


def _list_view_extents(array: pa.Array) -> tuple[pa.Array, Positions, Positions]:
    dtype = np.int64 if pat.is_large_list_view(array.type) else np.int32
    starts = _values(array.buffers()[1], dtype, array.offset, len(array)).astype(np.int64)
    lengths = _values(array.buffers()[2], dtype, array.offset, len(array)).astype(np.int64)
    valid = validity(array)
    if valid is not None:  # a null list view may point outside its child, unlike other lists
        starts, lengths = starts * valid, lengths * valid
    return array.values, starts, lengths


def _fixed_byte_extents(array: pa.Array) -> tuple[Bytes, Positions, Positions]:
    width = array.type.bit_width // 8
    starts = np.arange(array.offset, array.offset + len(array), dtype=np.int64) * width
    return all_bytes(array.buffers()[1]), starts, np.full(len(array), width, np.int64)


def _bounds(offsets: pa.Buffer | None, array: pa.Array, *, wide: bool) -> Positions:
    bounds = _values(offsets, np.int64 if wide else np.int32, array.offset, len(array) + 1)
    return bounds.astype(np.int64)


def _values(buffer: pa.Buffer | None, dtype: npt.DTypeLike, first: int, count: int) -> npt.NDArray[Any]:
    dtype = np.dtype(dtype)
    if buffer is None or buffer.size == 0:  # Arrow may leave out buffers of empty arrays
        return np.zeros(count, dtype)
    return np.frombuffer(buffer, dtype, count, first * dtype.itemsize)
