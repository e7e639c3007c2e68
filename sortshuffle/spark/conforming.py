"""Conversion of batches to a wire schema (`spark.schema`).

* Values never change on the way to the wire schema. Other representations of the same values (text with
  64-bit offsets, dictionaries, time units, ...) are converted; everything else is an error.

Used for Spark's rows, results of user functions, and Parquet files. `pyarrow.compute` is not imported: that
takes 28 ms, and a task whose batches have the wire schema already does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as at

from sortshuffle.errors import SchemaMismatchError
from sortshuffle.spark.schema import is_list

_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}

_MOST_BYTES = 2**31 - 1  # 32-bit offsets address no more in one column of one batch


def conform(
    batch: pa.RecordBatch, target: pa.Schema, place: str, *, exact: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield ``batch`` in exactly the schema ``target``: unchanged if it has it, else converted by columns.

    Columns and struct fields are matched by position and take the target's names, as in ``mapInArrow``.
    Other representations of the same values are converted: 64-bit offsets and views, dictionaries, unsigned
    integers to the signed type that Spark reads them as, units of time, decimals that need no rounding,
    timestamps to UTC instants and back, and columns of Arrow's null type. ``exact``: convert only
    representations of the same Spark type: not decimals, timestamps and null columns. Yields several batches
    if one would overflow the 32-bit offsets of its text.

    ``place`` says where the batch is from. Raises `SchemaMismatchError` with the place and the columns.
    """
    if batch.schema.equals(target, check_metadata=True):
        yield batch
        return
    check_types(batch.schema, target, place, exact=exact)
    if batch.num_rows == 0:
        yield pa.RecordBatch.from_pylist([], schema=target)
        return
    if not target.names:
        yield batch.replace_schema_metadata(None)
        return
    for part in _addressable(batch):
        columns = [
            _converted_column(column, field, place)
            for column, field in zip(part.columns, target, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def check_types(found: pa.Schema, target: pa.Schema, place: str, *, exact: bool = False) -> None:
    """Raise `SchemaMismatchError` unless `conform` can bring batches of ``found`` to ``target``."""
    if len(found) != len(target):
        raise SchemaMismatchError(
            f"{place}: expected {_counted(target.names)}, found {_counted(found.names)}"
        )
    wrong = [
        f"column '{wanted.name}' (expected {wanted.type}, found {has.type})"
        for has, wanted in other_types(found, target, exact=exact)
    ]
    if wrong:
        raise SchemaMismatchError(
            f"{place}: column types differ from the declared schema: {', '.join(wrong)}."
            " Cast the columns, or declare the types they have"
        )


def other_types(
    found: pa.Schema, target: pa.Schema, *, exact: bool = False
) -> list[tuple[pa.Field, pa.Field]]:
    """Return the fields of ``found`` that `conform` cannot convert, each with its field of ``target``. Both
    schemas have equally many fields."""
    return [
        (has, wanted)
        for has, wanted in zip(found, target, strict=True)
        if not _carries(has.type, wanted.type, exact)
    ]


def _counted(names: list[str]) -> str:
    return f"{len(names)} column{'' if len(names) == 1 else 's'} ({', '.join(names)})"


def _carries(found: pa.DataType, wanted: pa.DataType, exact: bool) -> bool:
    if found == wanted:
        return True
    if at.is_dictionary(found):
        return _carries(found.value_type, wanted, exact)
    if isinstance(found, pa.BaseExtensionType):
        return _carries(found.storage_type, wanted, exact)
    if at.is_null(found):
        return not exact
    if at.is_list(wanted):
        return is_list(found) and _carries(found.value_type, wanted.value_type, exact)
    if at.is_map(wanted):
        return (
            at.is_map(found)
            and _carries(found.key_type, wanted.key_type, exact)
            and _carries(found.item_type, wanted.item_type, exact)
        )
    if at.is_struct(wanted):
        return (
            at.is_struct(found)
            and found.num_fields == wanted.num_fields
            and all(
                _carries(has.type, want.type, exact) and (has.name == want.name or not exact)
                for has, want in zip(found, wanted, strict=True)
            )
        )
    if exact and not _same_spark_type(found, wanted):
        return False
    return _UNSIGNED.get(found) == wanted or any(kind(found) and kind(wanted) for kind in _KINDS)


def _same_spark_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    if at.is_timestamp(found) and at.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    if at.is_decimal(found) and at.is_decimal(wanted):
        return (found.precision, found.scale) == (wanted.precision, wanted.scale)
    return True


def _is_text(arrow: pa.DataType) -> bool:
    return bool(at.is_string(arrow) or at.is_large_string(arrow) or at.is_string_view(arrow))


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(
        at.is_binary(arrow)
        or at.is_large_binary(arrow)
        or at.is_binary_view(arrow)
        or at.is_fixed_size_binary(arrow)
    )


_KINDS: tuple[Callable[[pa.DataType], bool], ...] = (
    _is_text,
    _is_bytes,
    at.is_date,
    at.is_time,
    at.is_timestamp,
    at.is_duration,
    at.is_decimal,
)


def _addressable(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield ``batch`` in slices whose columns each fit 32-bit offsets."""
    parts = -(-max(map(_plain_bytes, batch.columns)) // _MOST_BYTES)
    if parts <= 1 or batch.num_rows <= 1:
        yield batch
        return
    rows = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, rows):
        yield from _addressable(batch.slice(start, rows))


def _plain_bytes(array: pa.Array) -> int:
    """Return an upper bound of the bytes of ``array`` with its dictionaries and views expanded."""
    if len(array) == 0:
        return 0
    if at.is_struct(array.type):
        return sum(_plain_bytes(array.field(position)) for position in range(array.type.num_fields))
    if is_list(array.type) or at.is_map(array.type):
        return sum(map(_plain_bytes, _own_values(array)))
    if at.is_string_view(array.type) or at.is_binary_view(array.type):
        views = np.frombuffer(array.buffers()[1] or b"", np.int32).reshape(-1, 4)
        lengths = views[array.offset : array.offset + len(array), 0]
        return int(lengths.sum(dtype=np.int64))
    if at.is_dictionary(array.type):
        return len(array) * _longest(array.dictionary)
    return int(array.nbytes)


def _longest(values: pa.Array) -> int:
    """Return an upper bound of the bytes of the largest value."""
    if _is_text(values.type) or _is_bytes(values.type):
        plain = values.cast(pa.large_binary())
        return int(np.diff(_long_offsets(plain)).max(initial=0))
    return int(values.nbytes)


def _converted_column(column: pa.Array, field: pa.Field, place: str) -> pa.Array:
    try:
        return _converted(column, field.type)
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(
            f"{place}: column '{field.name}' has values that {field.type} cannot hold"
            f" (found {column.type}): {error}. Round or cast them, or declare another type"
        ) from error


def _converted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type == wanted:
        return array
    if len(array) == 0:  # its offsets may have no memory
        return pa.array([], wanted)
    if at.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if at.is_dictionary(array.type):
        return _converted(array.dictionary_decode(), wanted)
    if isinstance(array.type, pa.BaseExtensionType):
        return _converted(array.storage, wanted)
    if at.is_list(wanted):
        if at.is_fixed_size_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        values = [_converted(values, wanted.value_type) for values in _own_values(array)]
        return pa.ListArray.from_arrays(_own_offsets(array), *values, type=wanted, mask=_mask(array))
    if at.is_map(wanted):
        keys, items = _own_values(array)
        keys, items = _converted(keys, wanted.key_type), _converted(items, wanted.item_type)
        return pa.MapArray.from_arrays(_own_offsets(array), keys, items, type=wanted, mask=_mask(array))
    if at.is_struct(wanted):
        fields = [_converted(array.field(i), field.type) for i, field in enumerate(wanted)]
        return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=_mask(array))
    if at.is_large_string(array.type) or at.is_large_binary(array.type):
        return _with_short_offsets(array, wanted)
    return array.cast(wanted)


def _with_short_offsets(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert text or bytes to 32-bit offsets into the same data. Arrow's cast fails on a slice that begins
    beyond 2 GiB."""
    data = array.buffers()[2]
    long = _long_offsets(array)
    size = long[-1] - long[0]
    if size > _MOST_BYTES:
        raise pa.ArrowInvalid(f"{size} bytes in one value exceed 2 GiB")
    short = pa.py_buffer((long - long[0]).astype(np.int32))
    own_data = data.slice(int(long[0]), int(size)) if data is not None else pa.py_buffer(b"")
    return pa.Array.from_buffers(wanted, len(array), [_validity(array), short, own_data])


def _long_offsets(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return the offsets of large text or bytes: int64, shape ``(len(array) + 1,)``."""
    offsets = array.buffers()[1]
    if offsets is None:  # as it may be in an empty array
        return np.zeros(1, np.int64)
    return np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]


def _validity(array: pa.Array) -> pa.Buffer | None:
    """Return the validity bitmap of ``array``, starting at its own first value; None without nulls."""
    if not array.null_count:
        return None
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _own_values(array: pa.Array) -> list[pa.Array]:
    """Return the values, or keys and items, that ``array`` refers to. For a slice these are only its own."""
    if at.is_fixed_size_list(array.type):
        return [array.flatten()]
    start = array.offsets[0].as_py()
    length = array.offsets[-1].as_py() - start
    children = (array.keys, array.items) if at.is_map(array.type) else (array.values,)
    return [child.slice(start, length) for child in children]


def _own_offsets(array: pa.Array) -> pa.Array:
    offsets = array.offsets.to_numpy()
    if offsets[-1] - offsets[0] > _MOST_BYTES:
        raise pa.ArrowInvalid(f"{offsets[-1] - offsets[0]} elements exceed 32-bit offsets")
    return pa.array((offsets - offsets[0]).astype(np.int32))


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
