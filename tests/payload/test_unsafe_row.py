"""UnsafeRows as Spark lays them out, decoded; what is no UnsafeRow, or no schema, is refused in words."""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal
from typing import Any

import pytest

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.payload.unsafe_row import UnsafeRows

UTC = datetime.timezone.utc


def row(fields: list[bytes | None], sized: dict[int, bytes] | None = None) -> bytes:
    """By hand, as `UnsafeRowWriter` does: bitset, words, and behind them what has no fixed size."""
    bitset = bytearray(-(-len(fields) // 64) * 8)
    words, tail = [], b""
    base = len(bitset) + 8 * len(fields)
    for number, field in enumerate(fields):
        if field is None:
            bitset[number // 8] |= 1 << number % 8
            words.append(bytes(8))
        elif sized and number in sized:
            data = sized[number]
            words.append(struct.pack("<II", len(data), base + len(tail)))
            tail += data + bytes(-len(data) % 8)
        else:
            words.append(field.ljust(8, b"\0"))
    whole = bytes(bitset) + b"".join(words) + tail
    return struct.pack(">i", len(whole)) + whole


def decoded(schema: str, *rows: bytes, cut: int = 1 << 20) -> list[list[Any]]:
    data = b"".join(rows)
    return list(UnsafeRows.of(schema).rows(data[at : at + cut] for at in range(0, len(data), cut)))


def test_every_type_that_is_known() -> None:
    schema = (
        "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h date, i timestamp,"
        " j timestamp_ntz, k decimal(10,2), l string, m binary, n decimal(38,3)"
    )
    unscaled = 12345678901234567890123456789012345678
    fields: list[bytes | None] = [
        b"\1",
        struct.pack("<b", -5),
        struct.pack("<h", -500),
        struct.pack("<i", -70000),
        struct.pack("<q", -(2**40)),
        struct.pack("<f", 0.5),
        struct.pack("<d", -0.25),
        struct.pack("<i", 19000),
        struct.pack("<q", 1_600_000_000_000_001),
        struct.pack("<q", -1),
        struct.pack("<q", -12345),
        b"",
        b"",
        b"",
    ]
    sized = {11: "grün".encode(), 12: b"\0\xff", 13: unscaled.to_bytes(16, "big", signed=True)}
    assert decoded(schema, row(fields, sized)) == [
        [
            True,
            -5,
            -500,
            -70000,
            -(2**40),
            0.5,
            -0.25,
            datetime.date(2022, 1, 8),
            datetime.datetime(2020, 9, 13, 12, 26, 40, 1, UTC),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
            Decimal("-123.45"),
            "grün",
            b"\0\xff",
            Decimal("12345678901234567890123456789012345.678"),
        ]
    ]


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 16, 1000])
def test_rows_that_are_cut_anywhere(cut: int) -> None:
    rows = [row([struct.pack("<q", n), b""], {1: b"x" * n}) for n in range(20)]
    assert decoded("n long, s string", *rows, cut=cut) == [[n, "x" * n] for n in range(20)]


def test_nulls_in_a_row_of_more_than_64_fields() -> None:
    fields = [None if n % 3 else struct.pack("<q", n) for n in range(130)]
    schema = ", ".join(f"c{n} long" for n in range(130))
    assert decoded(schema, row(fields)) == [[None if n % 3 else n for n in range(130)]]


def test_a_time_that_python_cannot_hold_is_its_number() -> None:
    assert decoded("t timestamp", row([struct.pack("<q", 2**62)])) == [[2**62]]


def test_names_and_aliases_of_ddl() -> None:
    rows = UnsafeRows.of("`a, b` INT NOT NULL, c: Long,d:decimal(5), e short")
    assert rows.names == ("a, b", "c", "d", "e")
    assert UnsafeRows.of("`a``` long, ```b` long, `c``d` long").names == ("a`", "`b", "c`d")
    assert UnsafeRows.of("`a long").names == ("`a",)


@pytest.mark.parametrize(
    ("schema", "error", "message"),
    [
        ("", UsageError, "names no column"),
        ("a", UsageError, "'a' is no column with its type"),
        ("a array<int>", UnsupportedError, "column a is of type array<int>, which dump does not decode"),
        ("a long, b struct<x:int,y:int>", UnsupportedError, "column b is of type struct<x:int,y:int>"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        UnsafeRows.of(schema)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack(">i", 12) + bytes(12), "a row of 12 bytes is no UnsafeRow of 2 fields"),
        (struct.pack(">i", -8) + bytes(12), "a row of -8 bytes is no UnsafeRow"),
        (struct.pack(">i", 24) + bytes(16) + struct.pack("<II", 9, 24), "column s lies outside of its row"),
    ],
)
def test_bytes_that_are_no_rows_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        decoded("n long, s string", data)
