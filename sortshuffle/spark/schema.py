"""Conversion of schemas between Spark and Arrow.

* There are three kinds of schema: the *declared* schema (a Spark ``StructType``), the *wire* schema (the
  Arrow schema of the batches that are chained, shuffled and kept in files), and the *actual* schema of a
  user function's results or a Parquet file.
* A wire schema has Spark's names and exactly one Arrow type per Spark type. All its fields, at every depth,
  are nullable and have no metadata. So the schemas of all producers' batches are equal, and can be compared
  in one step. Only the declared schema knows that a column is ``NOT NULL``.
* A type that Arrow or Spark's Arrow reader cannot carry is refused on the driver, by the column's path.

Only `parse_schema` needs a running Spark.
"""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pyarrow.types as at
from pyspark.errors import PySparkException
from pyspark.sql import types as st

from sortshuffle.errors import UnsupportedError, UsageError

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


# --- declared schema -> wire schema ---------------------------------------------------------------------


def parse_schema(schema: st.StructType | str) -> st.StructType:
    """Return the declared schema of a function: a ``StructType``, or DDL such as ``"k long, v double"``.

    A ``StructType`` is copied, because the user may change it later. Spark's own parser reads DDL, so a
    session must be active. Raises `UsageError` for anything else, for DDL that Spark cannot parse, and for a
    single type.
    """
    if not isinstance(schema, (st.StructType, str)):
        raise UsageError(
            f"a schema must be a StructType or a DDL string such as 'k long, v double', not {schema!r}"
        )
    parsed = _from_ddl(schema) if isinstance(schema, str) else copy_of(schema)
    if not isinstance(parsed, st.StructType):
        raise UsageError(
            f"the schema {schema!r} is the single type {parsed.simpleString()}: a schema names its columns,"
            f" such as 'value {parsed.simpleString()}'"
        )
    return parsed


def copy_of(schema: st.StructType) -> st.StructType:
    """Return a copy, whose types are those of ``schema`` where PySpark has one object of a type: users may
    compare types with ``is``."""
    singletons = {id(each): each for each in list(st.DataTypeSingleton._instances.values())}
    return copy.deepcopy(schema, singletons)


def _from_ddl(ddl: str) -> st.DataType:
    try:
        return st.DataType.fromDDL(ddl)
    except PySparkException as error:
        raise UsageError(f"the schema {ddl!r} cannot be parsed: {error}") from error


def schema_of_json(told: Any) -> st.StructType:
    """Return the schema that Spark's JSON, once it is parsed, describes. Raises `UnsupportedError` if Python
    does not know one of its types."""
    try:
        return st.StructType.fromJson(told)
    except Exception as error:  # a user-defined type's module is imported, and may raise anything
        raise UnsupportedError(f"a type of its columns is not known to Python: {error}") from error


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
    if is_list(arrow):
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


def is_list(arrow: pa.DataType) -> bool:
    """Return whether this is a list type of any layout."""
    return bool(at.is_list(arrow) or at.is_large_list(arrow) or at.is_fixed_size_list(arrow))


def quote(name: str) -> str:
    """Return a column's name in backticks, so that Spark does not parse it."""
    return "`" + name.replace("`", "``") + "`"
