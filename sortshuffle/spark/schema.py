"""Conversion of schemas and batches between Spark and Arrow.

* There are three kinds of schema: the *declared* schema (a Spark ``StructType``), the *wire* schema (the
  Arrow schema of the batches that are chained, shuffled and kept in files), and the *actual* schema of a
  user function's results or a Parquet file.
* A wire schema has Spark's names and exactly one Arrow type per Spark type. All its fields, at every depth,
  are nullable and have no metadata. So the schemas of all producers' batches are equal, and can be compared
  in one step. Only the declared schema knows that a column is ``NOT NULL``.
* A type that Arrow or Spark's Arrow reader cannot carry is refused on the driver, by the column's path.
* Values never change on the way to the wire schema. Other representations of the same values (text with
  64-bit offsets, dictionaries, time units, ...) are converted; everything else is an error.

Only `parse_schema` needs a running Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyspark.errors import PySparkException
from pyspark.sql import types as st

from sortshuffle.errors import SchemaMismatchError, UnsupportedError, UsageError

_WIRE_TYPES: dict[type, pa.DataType] = {
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.StringType: pa.string(),
    st.BinaryType: pa.binary(),
    st.DateType: pa.date32(),
    st.TimestampNTZType: pa.timestamp("us"),
    st.DayTimeIntervalType: pa.duration("us"),
    st.NullType: pa.null(),
    st.TimeType: pa.time64("ns"),
}

_INSTEAD = {
    "VariantType": "turn it into a string with to_json() before",
    "UserDefinedType": "turn it into a struct or an array before",
    "GeometryType": "turn it into binary with st_asbinary() before",
    "GeographyType": "turn it into binary with st_asbinary() before",
    "YearMonthIntervalType": "cast it to string, or to a number of months, before",
    "CalendarIntervalType": "cast it to string before",
    "CharType": "declare it as string",
    "VarcharType": "declare it as string",
}

_READ_TYPES: dict[pa.DataType, st.DataType] = {
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.uint8(): st.ShortType(),
    pa.uint16(): st.IntegerType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.large_string(): st.StringType(),
    pa.string_view(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.large_binary(): st.BinaryType(),
    pa.binary_view(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.date64(): st.DateType(),
    pa.duration("us"): st.DayTimeIntervalType(),
    pa.null(): st.NullType(),
    pa.time64("ns"): st.TimeType(),
}

_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}

_MOST_BYTES = 2**31 - 1  # 32-bit offsets address no more in one column of one batch


# --- declared schema -> wire schema ---------------------------------------------------------------------


def parse_schema(schema: st.StructType | str) -> st.StructType:
    """Return the declared schema of a function: a ``StructType``, or DDL such as ``"k long, v double"``.

    Spark's own parser reads DDL, so a session must be active. Raises `UsageError` for anything else, for DDL
    that Spark cannot parse, and for a single type.
    """
    if not isinstance(schema, (st.StructType, str)):
        raise UsageError(
            f"a schema must be a StructType or a DDL string such as 'k long, v double', not {schema!r}"
        )
    parsed = _from_ddl(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, st.StructType):
        raise UsageError(
            f"the schema {schema!r} is the single type {parsed.simpleString()}: a schema names its columns,"
            f" such as 'value {parsed.simpleString()}'"
        )
    return parsed


def _from_ddl(ddl: str) -> st.DataType:
    try:
        return st.DataType.fromDDL(ddl)
    except PySparkException as error:
        raise UsageError(f"the schema {ddl!r} cannot be parsed: {error}") from error


def to_arrow(schema: st.StructType, timezone: str) -> pa.Schema:
    """Return the wire schema of ``schema``. ``timezone``: the session's time zone, as label of timestamps.

    Raises `UnsupportedError` with the path of a column whose type cannot be carried.
    """
    return pa.schema([_wire_field(field, timezone, "") for field in schema.fields])


def _wire_field(field: st.StructField, timezone: str, parent: str) -> pa.Field:
    path = f"{parent}{field.name}"
    return pa.field(field.name, _wire_type(field.dataType, timezone, path))


def _wire_type(spark: st.DataType, timezone: str, path: str) -> pa.DataType:
    if isinstance(spark, st.TimestampType):
        return pa.timestamp("us", tz=timezone)
    if isinstance(spark, st.DecimalType):
        return pa.decimal128(spark.precision, spark.scale)
    if isinstance(spark, st.ArrayType):
        return pa.list_(pa.field("element", _wire_type(spark.elementType, timezone, f"{path}.element")))
    if isinstance(spark, st.MapType):
        key = pa.field("key", _wire_type(spark.keyType, timezone, f"{path}.key"), nullable=False)
        return pa.map_(key, pa.field("value", _wire_type(spark.valueType, timezone, f"{path}.value")))
    if isinstance(spark, st.StructType):
        _refuse_twins(spark, path)
        return pa.struct([_wire_field(field, timezone, f"{path}.") for field in spark.fields])
    if type(spark) not in _WIRE_TYPES:
        raise UnsupportedError(
            f"column '{path}' is of type {spark.simpleString()}, which cannot pass through Arrow:"
            f" {_instead_of(spark)}"
        )
    return _WIRE_TYPES[type(spark)]


def _instead_of(spark: st.DataType) -> str:
    names = (kind.__name__ for kind in type(spark).__mro__)
    return next((_INSTEAD[name] for name in names if name in _INSTEAD), "cast it to string before")


def _refuse_twins(struct: st.StructType, path: str) -> None:
    twins = sorted({name for name in struct.names if struct.names.count(name) > 1})
    if twins:
        raise UnsupportedError(
            f"the struct '{path}' has several fields named {', '.join(twins)}: rename them before"
        )


def with_large_types(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` with 64-bit offsets for text and bytes, as functions get it with Spark's
    useLargeVarTypes."""
    return pa.schema([field.with_type(_large(field.type)) for field in schema])


def _large(arrow: pa.DataType) -> pa.DataType:
    if at.is_string(arrow):
        return pa.large_string()
    if at.is_binary(arrow):
        return pa.large_binary()
    if at.is_list(arrow):
        return pa.list_(_large_field(arrow.value_field))
    if at.is_map(arrow):
        return pa.map_(_large_field(arrow.key_field), _large_field(arrow.item_field))
    if at.is_struct(arrow):
        return pa.struct([_large_field(field) for field in arrow])
    return arrow


def _large_field(field: pa.Field) -> pa.Field:
    return field.with_type(_large(field.type))


# --- Arrow schema -> declared schema --------------------------------------------------------------------


def from_arrow(schema: pa.Schema) -> st.StructType:
    """Return the declared schema of a wire schema, or of other representations that `conform` accepts. All
    fields are nullable. Raises `UnsupportedError` with the path of a column whose type Spark lacks."""
    return st.StructType([st.StructField(field.name, _read_type(field.type, field.name)) for field in schema])


def _read_type(arrow: pa.DataType, path: str) -> st.DataType:
    if at.is_dictionary(arrow):
        return _read_type(arrow.value_type, path)
    if isinstance(arrow, pa.BaseExtensionType):
        return _read_type(arrow.storage_type, path)
    if _is_list(arrow):
        return st.ArrayType(_read_type(arrow.value_type, f"{path}.element"))
    if at.is_map(arrow):
        key = _read_type(arrow.key_type, f"{path}.key")
        return st.MapType(key, _read_type(arrow.item_type, f"{path}.value"))
    if at.is_struct(arrow):
        return st.StructType(
            [st.StructField(field.name, _read_type(field.type, f"{path}.{field.name}")) for field in arrow]
        )
    read = _read_leaf(arrow)
    if read is None:
        raise UnsupportedError(
            f"column '{path}' is of Arrow's type {arrow}, which Spark has not: cast it to one that it has, or"
            " leave it out"
        )
    return read


def _read_leaf(arrow: pa.DataType) -> st.DataType | None:
    if at.is_timestamp(arrow):
        return st.TimestampNTZType() if arrow.tz is None else st.TimestampType()
    if at.is_decimal(arrow) and arrow.precision <= 38 and 0 <= arrow.scale <= arrow.precision:
        return st.DecimalType(arrow.precision, arrow.scale)
    if at.is_fixed_size_binary(arrow):
        return st.BinaryType()
    return _READ_TYPES.get(arrow)


# --- actual schema -> wire schema -----------------------------------------------------------------------


def conform(
    batch: pa.RecordBatch, target: pa.Schema, place: str, *, exact: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield ``batch`` in exactly the schema ``target``: unchanged if it has it, else converted by columns.

    Columns and struct fields are matched by position and take the target's names, as in ``mapInArrow``. Other
    representations of the same values are converted: 64-bit offsets and views, dictionaries, unsigned
    integers to the signed type that Spark reads them as, units of time, decimals that need no rounding,
    timestamps to UTC instants and back, and columns of Arrow's null type. ``exact``: convert only
    representations of the same Spark type, that is, not the last three. Yields several batches if one would
    overflow the 32-bit offsets of its text.

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
        for has, wanted in zip(found, target, strict=True)
        if not _carries(has.type, wanted.type, exact)
    ]
    if wrong:
        raise SchemaMismatchError(
            f"{place}: column types differ from the declared schema: {', '.join(wrong)}."
            " Cast the columns, or declare the types they have"
        )


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
        return _is_list(found) and _carries(found.value_type, wanted.value_type, exact)
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


def _is_list(arrow: pa.DataType) -> bool:
    return bool(at.is_list(arrow) or at.is_large_list(arrow) or at.is_fixed_size_list(arrow))


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
    if _is_list(array.type) or at.is_map(array.type):
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
        return int(pc.max(pc.binary_length(values.cast(pa.large_binary()))).as_py() or 0)
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
    _, offsets, data = array.buffers()
    long = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    size = long[-1] - long[0]
    if size > _MOST_BYTES:
        raise pa.ArrowInvalid(f"{size} bytes in one value exceed 2 GiB")
    short = pa.py_buffer((long - long[0]).astype(np.int32))
    own_data = data.slice(int(long[0]), int(size)) if data is not None else pa.py_buffer(b"")
    return pa.Array.from_buffers(wanted, len(array), [_validity(array), short, own_data])


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
    return pc.subtract(array.offsets, array.offsets[0]).cast(pa.int32())


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
