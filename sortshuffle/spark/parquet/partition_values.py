"""The types and values of partition columns, from the texts in directory names.

Spark infers the first of int, long, decimal without a scale, double, timestamp, date and string that can
represent a text, by the rules of Java's parsers, and widens the type where texts of a column differ.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

from pyspark.sql import types as st

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.parquet.settings import ReadSettings

NULL = "__HIVE_DEFAULT_PARTITION__"

_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_JAVA_DOUBLE = re.compile(
    r"[+-]?(NaN|Infinity|((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)"
    r"[pP][+-]?\d+)[fFdD]?)",
    re.ASCII,
)
_DATE = re.compile(r"-?\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP = re.compile(r"-?\d{4}-\d{2}-\d{2} ([01]\d|2[0-3]):\d{2}:\d{2}(\.\d)?", re.ASCII)
_TIME_OF_DAY = re.compile(r"T?\d{1,2}:\d{1,2}(:\d{1,2}(\.\d*)?)?( ?[AaPp][Mm])?", re.ASCII)
_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")
_ESCAPE = re.compile(r"%([0-9a-fA-F]{2})")
_INT_RANGES: dict[type[st.DataType], int] = {
    st.ByteType: 7,
    st.ShortType: 15,
    st.IntegerType: 31,
    st.LongType: 63,
}
_NUMERIC = (st.IntegerType, st.LongType, st.DecimalType, st.DoubleType)
_AS_STRING = (
    "read it as text: with spark.sql.sources.partitionColumnTypeInference.enabled=false, or by naming the"
    " column a string in schema()"
)


def unescape(text: str) -> str:
    """Replace Hive's escapes: a percent sign and the two hexadecimal digits of a character."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


# --- from texts to a type -------------------------------------------------------------------------------


def infer_type(texts: Sequence[str], column: str, settings: ReadSettings) -> st.DataType:
    """Infer a column's type from its texts. Raises `UnsupportedError` for texts that are refused."""
    kinds = (_kind(text, column, settings) for text in dict.fromkeys(texts))
    return functools.reduce(_wider, kinds)


def _kind(text: str, column: str, settings: ReadSettings) -> st.DataType:
    if text == NULL:
        return st.NullType()
    if not settings.infer_partition_types:
        return st.StringType()
    if _INTEGER.fullmatch(text):
        number = int(text)
        for kind in (st.IntegerType, st.LongType):
            if _fits(number, kind):
                return kind()
    precision = _whole_digits(text)
    if precision is not None and precision <= 38:
        return st.DecimalType(precision, 0)
    if _java_double(text) is not None:
        return st.DoubleType()
    plain = unescape(text)
    if _TIMESTAMP.fullmatch(plain) and _is_real(plain, column):
        return st.TimestampNTZType() if settings.timestamps_are_ntz else st.TimestampType()
    if _DATE.fullmatch(text) and _is_real(text, column):
        return st.DateType()
    if _TIME_OF_DAY.fullmatch(plain):
        raise UnsupportedError(
            f"the value {plain!r} of the partition column '{column}' may be a time of day: {_AS_STRING}"
        )
    return st.StringType()


def _fits(number: int, kind: type[st.DataType]) -> bool:
    limit = 1 << _INT_RANGES[kind]
    return -limit <= number < limit


def _whole_digits(text: str) -> int | None:
    """Count the digits of a decimal without a scale, such as 5. or 1e5; None for any other text."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        number = Decimal(text).as_tuple()
    except InvalidOperation:  # such as an exponent of twenty digits
        return None
    exponent = int(number.exponent)
    return len(number.digits) + exponent if exponent >= 0 else None


def _java_double(text: str) -> float | None:
    """Parse a text as Java does, which skips white space, and reads suffixes and hexadecimal numbers."""
    trimmed = text.strip("".join(map(chr, range(33))))
    if not _JAVA_DOUBLE.fullmatch(trimmed):
        return None
    plain = trimmed.rstrip("fFdD")
    return float.fromhex(plain) if "x" in plain.lower() else float(plain)


def _is_real(text: str, column: str) -> bool:
    """Return whether a well-formed date or timestamp exists in the calendar."""
    if text.startswith(("-", "0000")):
        raise UnsupportedError(
            f"the value {text!r} of the partition column '{column}' is before the year 1: {_AS_STRING}"
        )
    try:
        dt.datetime.fromisoformat(_padded(text))
    except ValueError:
        return False
    return True


def _wider(left: st.DataType, right: st.DataType) -> st.DataType:
    """Return the type of a column that has texts of both types."""
    if left == right or isinstance(right, st.NullType):
        return left
    if isinstance(left, st.NullType):
        return right
    kinds = (left, right)
    if all(isinstance(kind, _NUMERIC) for kind in kinds):
        return _wider_number(left, right)
    stamps = (st.DateType, st.TimestampType, st.TimestampNTZType)
    if all(isinstance(kind, stamps) for kind in kinds):
        return right if isinstance(left, st.DateType) else left
    return st.StringType()


def _wider_number(left: st.DataType, right: st.DataType) -> st.DataType:
    kinds = (left, right)
    if any(isinstance(kind, st.DoubleType) for kind in kinds):
        exact = all(isinstance(kind, (st.DoubleType, st.IntegerType)) for kind in kinds)
        return st.DoubleType() if exact else st.StringType()
    if any(isinstance(kind, st.DecimalType) for kind in kinds):
        return st.DecimalType(max(map(_digits_of, kinds)), 0)
    return st.LongType()


def _digits_of(kind: st.DataType) -> int:
    if isinstance(kind, st.DecimalType):
        return int(kind.precision)
    return 10 if isinstance(kind, st.IntegerType) else 20


# --- from texts to values -------------------------------------------------------------------------------


def with_cache(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap ``read`` in a cache, because texts repeat from directory to directory."""
    return functools.lru_cache(maxsize=1024)(read)


def value_reader(kind: st.DataType, column: str, settings: ReadSettings) -> Callable[[str], Any]:
    """Return a function that parses a text as a value of ``kind``, or raises `UsageError`. Raises
    `UnsupportedError` for types that partition columns cannot have."""
    parse = _parser(kind, settings)
    if parse is None:
        raise UnsupportedError(
            f"the partition column '{column}' cannot be read as {kind.simpleString()} here: name it a string"
            " in schema(), and cast it afterwards"
        )

    def read(text: str) -> Any:
        value = parse(text)
        if value is None:
            raise UsageError(
                f"the value {text!r} of the partition column '{column}' cannot be read as"
                f" {kind.simpleString()}: give the column a type that can hold it in schema()"
            )
        return value

    return read


def _parser(kind: st.DataType, settings: ReadSettings) -> Callable[[str], Any] | None:
    """Return a function that returns None for invalid texts; or None for types not read here."""
    if type(kind) in _INT_RANGES:
        return lambda text: _integer(text, type(kind))
    if isinstance(kind, st.DecimalType) and kind.scale == 0:
        return lambda text: _whole(text, kind.precision)
    if isinstance(kind, (st.FloatType, st.DoubleType)):
        return _java_double
    if isinstance(kind, st.TimestampType):
        return functools.partial(_instant, zone=_zone(settings.timezone))
    others: dict[type[st.DataType], Callable[[str], Any]] = {
        st.StringType: unescape,
        st.BinaryType: str.encode,
        st.BooleanType: lambda text: {"true": True, "false": False}.get(text.lower()),
        st.DateType: _day,
        st.TimestampNTZType: _moment,
        st.NullType: lambda text: None,
    }
    return others.get(type(kind))


def _integer(text: str, kind: type[st.DataType]) -> int | None:
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and _fits(number, kind) else None


def _whole(text: str, precision: int) -> Decimal | None:
    digits = _whole_digits(text)
    return Decimal(text) if digits is not None and digits <= precision else None


def _day(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def _moment(text: str) -> dt.datetime | None:
    plain = unescape(text)
    if not (_TIMESTAMP.fullmatch(plain) or _DATE.fullmatch(plain)):
        return None
    try:
        return dt.datetime.fromisoformat(_padded(plain))
    except ValueError:
        return None


def _instant(text: str, zone: dt.tzinfo) -> dt.datetime | None:
    # for a local time that a clock change skips or repeats, Java and fold=0 choose the same instant
    moment = _moment(text)
    return None if moment is None else moment.replace(tzinfo=zone).astimezone(dt.timezone.utc)


def _padded(text: str) -> str:
    """Pad a fraction of a second to six digits, as Python 3.10 needs it."""
    whole, point, fraction = text.partition(".")
    return f"{whole}{point}{fraction.ljust(6, '0')}" if point else text


def _zone(name: str) -> dt.tzinfo:
    offset = _OFFSET.fullmatch(name)
    if offset:
        distance = dt.timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return dt.timezone(-distance if offset[1] == "-" else distance)
    try:
        return dt.timezone.utc if name == "Z" else ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise UnsupportedError(
            f"timestamps in names of directories cannot be read in the session time zone {name!r}: name a"
            " region, such as Europe/Oslo, in spark.sql.session.timeZone"
        ) from error
