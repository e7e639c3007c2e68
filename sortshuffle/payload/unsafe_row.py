"""Decodes UnsafeRows, the format of Spark's rows in the shuffle manager's files, to Python values.

Used by `sortshuffle dump --records --schema` to show some rows. Spark decodes the rows that it reads itself.

    4 bytes   size of the row, big endian (UnsafeRowSerializer)
    bitset    one bit per field, set if it is null, in words of 8 bytes, little endian
    fields    8 bytes each: the value, or (offset << 32 | size) if the value is among the bytes below
    bytes     the values without a fixed size, each padded to 8 bytes; offsets count from the bitset

Source: `org.apache.spark.sql.catalyst.expressions.UnsafeRow` and `UnsafeRowSerializer`, Spark 4.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

from sortshuffle.errors import UnsupportedError, UsageError

_WORD = 8
_SIZE = struct.Struct(">i")
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?$")
_MOST_DIGITS_OF_A_LONG = 18
_DIGITS = Context(prec=76)  # Spark's widest decimal has 38 digits
_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class RowField:
    """One field of a row. ``value``: converts the field's word and, if its type has no fixed size, its bytes.
    ``is_day``: whether the field is a date, which takes four bytes of the word."""

    name: str
    value: Callable[[bytes, bytes], Any]
    is_day: bool = False


def _fixed(layout: str) -> Callable[[bytes, bytes], Any]:
    packed = struct.Struct(layout)
    return lambda word, _: packed.unpack_from(word)[0]


def _microseconds(word: bytes) -> timedelta:
    return timedelta(microseconds=int.from_bytes(word, "little", signed=True))


_TYPES: dict[str, Callable[[bytes, bytes], Any]] = {
    "boolean": lambda word, _: bool(word[0]),
    "tinyint": _fixed("<b"),
    "smallint": _fixed("<h"),
    "int": _fixed("<i"),
    "bigint": _fixed("<q"),
    "float": _fixed("<f"),
    "double": _fixed("<d"),
    "date": lambda word, _: _DAY + timedelta(days=int.from_bytes(word[:4], "little", signed=True)),
    "timestamp": lambda word, _: _EPOCH.replace(tzinfo=timezone.utc) + _microseconds(word),
    "timestamp_ntz": lambda word, _: _EPOCH + _microseconds(word),
    "string": lambda _, data: data.decode(errors="replace"),
    "binary": lambda _, data: data,
}
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_WITHOUT_FIXED_SIZE = ("string", "binary")


@dataclass(frozen=True, slots=True)
class UnsafeRows:
    """Decodes rows of ``fields``. ``sized``: whether each field's value is in the bytes after the words."""

    fields: tuple[RowField, ...]
    sized: tuple[bool, ...]

    @staticmethod
    def of(schema: str) -> UnsafeRows:
        """Parse a schema in Spark's DDL, such as ``a long, b string, c decimal(12,2)``. Raises `UsageError`
        if it is wrong, `UnsupportedError` for types that are not decoded (arrays, maps, structs, ...)."""
        columns = [_column(text) for text in _split(schema)]
        if not columns:
            raise UsageError(f"{schema!r} names no column: give a schema such as 'a long, b string'")
        fields = tuple(RowField(name, _value_of(name, kind), kind == "date") for name, kind in columns)
        return UnsafeRows(fields, tuple(_is_sized(kind) for _, kind in columns))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def rows(self, pieces: Iterator[bytes | memoryview]) -> Iterator[list[Any]]:
        """Decode the rows in a stream of record bytes, which may be cut anywhere. Raises `UnsupportedError`
        for bytes that are not rows of these fields."""
        pending = bytearray()
        for piece in pieces:
            pending += piece
            while len(pending) >= _SIZE.size:
                (size,) = _SIZE.unpack_from(pending)
                if size < self._least or size % _WORD:
                    raise UnsupportedError(
                        f"a row of {size} bytes is no UnsafeRow of {len(self.fields)} fields: the records are"
                        " another serializer's, or the schema is another one"
                    )
                if len(pending) < _SIZE.size + size:
                    break
                yield self._row(bytes(pending[_SIZE.size : _SIZE.size + size]))
                del pending[: _SIZE.size + size]

    @property
    def _bitset_bytes(self) -> int:
        return -(-len(self.fields) // 64) * _WORD

    @property
    def _least(self) -> int:
        return self._bitset_bytes + _WORD * len(self.fields)

    def _row(self, row: bytes) -> list[Any]:
        values: list[Any] = []
        for number, (field, sized) in enumerate(zip(self.fields, self.sized, strict=True)):
            if row[number // 8] >> (number % 8) & 1:
                values.append(None)
                continue
            start = self._bitset_bytes + _WORD * number
            word = row[start : start + _WORD]
            data = b""
            if sized:
                size, offset = struct.unpack("<II", word)
                data = row[offset : offset + size]
                if len(data) != size:
                    raise UnsupportedError(f"column {field.name} lies outside of its row: another schema?")
            try:
                values.append(field.value(word, data))
            except OverflowError:  # a day or a time that Python's datetime cannot hold
                number_bytes = word[:4] if field.is_day else word
                values.append(int.from_bytes(number_bytes, "little", signed=True))
        return values


def _split(schema: str) -> list[str]:
    """Split at commas outside brackets and quoted names."""
    parts, depth, is_quoted = [""], 0, False
    for character in schema:
        is_quoted ^= character == "`"
        depth += 0 if is_quoted else (character in "(<") - (character in ")>")
        if character == "," and not depth and not is_quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _column(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"(`(?:[^`]|``)+`|[^\s:]+)\s*:?\s+(.+)|([^\s:]+):(.+)", text)
    if match is None:
        raise UsageError(f"{text!r} is no column with its type, such as 'a long'")
    name, kind = match[1] or match[3], match[2] or match[4]
    kind = re.sub(r"\s+not\s+null$", "", kind.strip().lower())
    kind = re.sub(r"^(var)?char\s*\(\s*\d+\s*\)$", "string", kind)
    if len(name) > 1 and name[0] == name[-1] == "`":
        name = name[1:-1].replace("``", "`")
    return name, _ALIASES.get(kind, kind)


def _value_of(name: str, kind: str) -> Callable[[bytes, bytes], Any]:
    match = _DECIMAL.match(kind)
    if match is not None:
        precision, scale = int(match[1] or 10), int(match[2] or 0)
        is_long = precision <= _MOST_DIGITS_OF_A_LONG

        def value(word: bytes, data: bytes) -> Decimal:
            order = "little" if is_long else "big"
            unscaled = int.from_bytes(word if is_long else data, order, signed=True)  # type: ignore[arg-type]
            return _DIGITS.scaleb(Decimal(unscaled), -scale)

        return value
    if kind not in _TYPES:
        raise UnsupportedError(
            f"column {name} is of type {kind}, which dump does not decode; it knows"
            f" {', '.join(sorted(_TYPES))} and decimal"
        )
    return _TYPES[kind]


def _is_sized(kind: str) -> bool:
    match = _DECIMAL.match(kind)
    if match is not None:
        return int(match[1] or 10) > _MOST_DIGITS_OF_A_LONG
    return kind in _WITHOUT_FIXED_SIZE
