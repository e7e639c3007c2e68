"""Catalyst's types and constants as Arrow's, and the casts that are the same in both.

For `translation` alone. Types that are not listed are refused: columns of them can only be passed on.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as at

_TYPES = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),  # of another collation: "string collate ..."
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def arrow_type(name: str, timezone: str) -> pa.DataType:
    """Return the wire type of a type that Spark prints as ``name``. ``timezone``: the label of timestamps.

    Raises `LookupError`, or `TypeError` for what is not a string, if there is none.
    """
    if name == "timestamp":
        return pa.timestamp("us", timezone)
    if decimal := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _TYPES[name]


def is_exact_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast gives the same in Spark and Arrow, for every value and in every mode."""
    if at.is_null(source):
        return True
    if at.is_boolean(source) or source in _DIGITS:
        if at.is_floating(target) or at.is_string(target):
            return True
        if at.is_decimal(target):
            return source in _DIGITS and target.precision - target.scale >= _DIGITS[source]
        return target in _DIGITS and source.bit_width <= target.bit_width
    if at.is_decimal(source) and at.is_decimal(target):
        wider = target.precision - target.scale >= source.precision - source.scale
        return bool(wider and target.scale >= source.scale)
    return (source, target) in {(pa.float32(), pa.float64()), (pa.string(), pa.binary())}


def literal_value(text: str, of_type: pa.DataType) -> Any:
    """Return the value of a literal from how Spark prints it; None where that does not say it exactly."""
    if at.is_boolean(of_type):
        return {"true": True, "false": False}[text]
    if at.is_floating(of_type):
        return _nearest(text, of_type)
    if of_type in _DIGITS:
        return int(text)
    if at.is_decimal(of_type):
        return Decimal(text)
    if at.is_string(of_type) and "\ufffd" not in text:  # which also stands for bytes that are not UTF-8
        return text
    if at.is_date(of_type) and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return dt.date.fromisoformat(text)
    return None


def _nearest(text: str, of_type: pa.DataType) -> Any:
    """Return the float nearest to a decimal. Python would round twice for 32 bits: to 64 bits, and again."""
    return pa.scalar(text).cast(of_type).as_py()


def scalar_of(value: Any, of_type: pa.DataType) -> pa.Scalar:
    """Return a value as Spark holds it inside, which came over Py4J."""
    if at.is_string(of_type):
        value = value.getBytes().decode()
    elif at.is_decimal(of_type):
        value = Decimal(value.toString())
    elif at.is_float32(of_type):
        value = _nearest(repr(value), of_type)  # Py4J sends the shortest decimal
    return pa.scalar(value, of_type)
