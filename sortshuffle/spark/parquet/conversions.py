"""The type that a leaf's arrays are cast to when a Spark type is requested, where Spark's reader allows it.

Every function returns the type to cast to; the arrays' own type if `conform` does the conversion; or None if
Spark's reader refuses the request or would reinterpret the stored values.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as at
from pyspark.sql import types as st

from sortshuffle.spark.parquet.file_schema import Leaf

_INTEGERS: dict[type[st.DataType], pa.DataType] = {
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.DoubleType: pa.float64(),
}
_TEXT_OF = {
    pa.binary(): pa.string(),
    pa.large_binary(): pa.large_string(),
    pa.binary_view(): pa.string_view(),
}
_BYTES_OF = {text: data for data, text in _TEXT_OF.items()}
_TIMES = (st.TimestampType, st.TimestampNTZType)


def target_of(leaf: Leaf, arrow: pa.DataType, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    """Return the type to cast arrays of type ``arrow`` to. ``wire``: the Arrow type of ``wanted``."""
    if leaf.logical == "DECIMAL":
        return _decimal_target(leaf, wanted, wire)
    return _TARGETS[leaf.physical](leaf, arrow, wanted, wire)


def _decimal_target(leaf: Leaf, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    if not isinstance(wanted, st.DecimalType):
        return None
    precision, scale = leaf.details["precision"], leaf.details["scale"]
    is_wider = wanted.scale >= scale and wanted.precision - wanted.scale >= precision - scale
    return wire if is_wider else None


def _of_int32(leaf: Leaf, arrow: pa.DataType, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    if leaf.logical == "DATE":
        if isinstance(wanted, st.TimestampNTZType):
            return wire
        return arrow if isinstance(wanted, st.DateType) else None
    if leaf.logical == "NULL":
        return arrow if isinstance(wanted, (*_INTEGERS, st.DateType, st.NullType)) else None
    if leaf.logical not in ("NONE", "INT"):
        return None
    if isinstance(wanted, st.DecimalType):
        # ten digits hold any 32-bit integer
        return wire if leaf.is_signed and wanted.precision - wanted.scale >= 10 else None
    if isinstance(wanted, st.DoubleType) and leaf.details.get("bitWidth") == 32 and not leaf.is_signed:
        return None  # Spark reads the upper half of these numbers as negative
    return _INTEGERS.get(type(wanted))


def _of_int64(leaf: Leaf, arrow: pa.DataType, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    if leaf.logical == "TIMESTAMP":
        if leaf.is_nanos:
            return pa.int64() if isinstance(wanted, st.LongType) else None
        return arrow if isinstance(wanted, _TIMES) else None
    if leaf.logical not in ("NONE", "INT"):
        return None
    if isinstance(wanted, st.DecimalType):
        digits = wanted.precision - wanted.scale
        if not leaf.is_signed:
            return arrow if (wanted.precision, wanted.scale) == (20, 0) else None
        return wire if digits >= 20 else None
    if isinstance(wanted, st.DayTimeIntervalType) and leaf.is_signed:
        return wire
    return pa.int64() if isinstance(wanted, st.LongType) else None


def _of_int96(leaf: Leaf, arrow: pa.DataType, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    return arrow if isinstance(wanted, _TIMES) else None


def _of_float(leaf: Leaf, arrow: pa.DataType, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    return wire if isinstance(wanted, (st.FloatType, st.DoubleType)) else None


def _of_double(leaf: Leaf, arrow: pa.DataType, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    return wire if isinstance(wanted, st.DoubleType) else None


def _of_boolean(leaf: Leaf, arrow: pa.DataType, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    return wire if isinstance(wanted, st.BooleanType) else None


def _of_bytes(leaf: Leaf, arrow: pa.DataType, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    counterparts = {st.StringType: _TEXT_OF, st.BinaryType: _BYTES_OF}.get(type(wanted))
    if counterparts is None:
        return None
    plain = arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow
    if at.is_dictionary(plain):
        counterpart = counterparts.get(plain.value_type)
        return arrow if counterpart is None else counterpart
    return counterparts.get(plain, arrow)


def _of_fixed(leaf: Leaf, arrow: pa.DataType, wanted: st.DataType, wire: pa.DataType) -> pa.DataType | None:
    return arrow if isinstance(wanted, st.BinaryType) and leaf.logical in ("NONE", "UUID") else None


_TARGETS: dict[str, Callable[[Leaf, pa.DataType, st.DataType, pa.DataType], pa.DataType | None]] = {
    "BOOLEAN": _of_boolean,
    "INT32": _of_int32,
    "INT64": _of_int64,
    "INT96": _of_int96,
    "FLOAT": _of_float,
    "DOUBLE": _of_double,
    "BYTE_ARRAY": _of_bytes,
    "FIXED_LEN_BYTE_ARRAY": _of_fixed,
}
