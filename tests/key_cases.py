"""Key columns for tests of the order: for every type that rows can be ordered by, values that are worth
trying, and a key function in plain Python that says how Spark orders them. The key functions know nothing of
how `sortshuffle.payload.ordering` does it; nulls are the empty tuple, which is less than any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from sortshuffle.payload.ordering import SortKey

Key = tuple[Any, ...]


@dataclass(frozen=True)
class KeyCase:
    """``storage``: the type that ``values`` are of in Python; its bits are then seen as ``type``."""

    name: str
    type: pa.DataType
    values: st.SearchStrategy[Any]
    key: Callable[[Any], Key]
    storage: pa.DataType | None = None

    def array(self, values: Sequence[Any]) -> pa.Array:
        array = pa.array(values, self.storage or self.type)
        return array.view(self.type) if self.storage else array

    def sliced_array(self, values: Sequence[Any]) -> pa.Array:
        """The same values in the middle of a longer array."""
        around = list(values[:3])
        return self.array([*around, *values, *around]).slice(len(around), len(values))

    def lists(self, **size: int) -> st.SearchStrategy[list[Any]]:
        """Values with many ties and some nulls."""
        pool = st.lists(st.none() | self.values, min_size=1, max_size=6)
        return pool.flatmap(lambda some: st.lists(st.sampled_from(some), **size))

    def __str__(self) -> str:
        return self.name


def plain(value: Any) -> Key:
    return () if value is None else (value,)


def utf8(value: str | None) -> Key:
    return () if value is None else (value.encode(),)


def floating(value: float | None) -> Key:
    """NaN is one value, above infinity; Python's own == makes zeros equal."""
    return () if value is None else (math.isnan(value), 0.0 if math.isnan(value) else value)


def null(value: None) -> Key:
    return ()


def struct_of(*fields: tuple[str, Callable[[Any], Key]]) -> Callable[[Any], Key]:
    def key(value: dict[str, Any] | None) -> Key:
        return () if value is None else (tuple(field(value[name]) for name, field in fields),)

    return key


def _integers(bits: int) -> st.SearchStrategy[int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.integers(least, most) | st.sampled_from([least, least + 1, -1, 0, 1, most - 1, most])


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    unscaled = st.integers(-most, most) | st.sampled_from([-most, -(2**29), -1, 0, 1, 2**29, most])
    return unscaled.map(lambda value: Decimal(f"{value}E-{scale}"))  # exact, unlike arithmetic


def directed(keys: Sequence[SortKey], cases: Sequence[KeyCase]) -> Callable[[Sequence[Any]], Any]:
    """A sort key for rows, which have one value for each case: Spark's rules in plain Python."""

    def compare(one: Sequence[Any], other: Sequence[Any]) -> int:
        for key, case, left, right in zip(keys, cases, one, other, strict=True):
            a, b = case.key(left), case.key(right)
            if a == b:
                continue
            if not a or not b:  # a null
                return 1 if (not a) == key.nulls_last else -1
            return 1 if (a < b) == key.descending else -1
        return 0

    return cmp_to_key(compare)


def sort_keys(count: int) -> st.SearchStrategy[tuple[SortKey, ...]]:
    """One key for each of the first columns, in any directions."""
    ways = [st.builds(SortKey, st.just(at), st.booleans(), st.booleans()) for at in range(count)]
    return st.tuples(*ways)


_CHARACTERS = st.sampled_from(["", "\0", "a", "b", "ab", "\x7f", "é", "\uffff", "\U0001f600"])
# around the 8 bytes of a word and the 64 from which on strings are compared as a whole
_STRINGS = st.lists(_CHARACTERS, max_size=4).map("".join) | st.builds(
    lambda base, length, end: base * length + end,
    st.sampled_from("ab"),
    st.sampled_from([6, 7, 8, 9, 15, 16, 17, 63, 64, 65, 200]),
    _CHARACTERS,
)
_FLOATS = st.sampled_from([math.inf, -math.inf, math.nan, -math.nan, 0.0, -0.0, 1.5, -1.5])

INT64 = KeyCase("int64", pa.int64(), _integers(64), plain)
DOUBLE = KeyCase("double", pa.float64(), _FLOATS | st.floats(), floating)
STRING = KeyCase("string", pa.string(), _STRINGS, utf8)
_NESTED = pa.struct([("inner", pa.struct([("text", pa.string())])), ("flag", pa.bool_())])

KEY_CASES = [
    KeyCase("boolean", pa.bool_(), st.booleans(), plain),
    KeyCase("int8", pa.int8(), _integers(8), plain),
    KeyCase("int16", pa.int16(), _integers(16), plain),
    KeyCase("int32", pa.int32(), _integers(32), plain),
    INT64,
    KeyCase("float", pa.float32(), _FLOATS | st.floats(width=32), floating),
    DOUBLE,
    KeyCase("date", pa.date32(), _integers(32), plain, storage=pa.int32()),
    KeyCase("time", pa.time64("ns"), st.integers(0, 86_399_999_999_999), plain, storage=pa.int64()),
    KeyCase("timestamp", pa.timestamp("us", "America/New_York"), _integers(64), plain, storage=pa.int64()),
    KeyCase("timestamp_ntz", pa.timestamp("us"), _integers(64), plain, storage=pa.int64()),
    KeyCase("day-time interval", pa.duration("us"), _integers(64), plain, storage=pa.int64()),
    KeyCase("decimal(9, 2)", pa.decimal128(9, 2), _decimals(9, 2), plain),
    KeyCase("decimal(18, 0)", pa.decimal128(18, 0), _decimals(18, 0), plain),
    KeyCase("decimal(19, 4)", pa.decimal128(19, 4), _decimals(19, 4), plain),
    KeyCase("decimal(38, 10)", pa.decimal128(38, 10), _decimals(38, 10), plain),
    STRING,
    KeyCase("binary", pa.binary(), st.binary(max_size=20) | _STRINGS.map(str.encode), plain),
    KeyCase("string that is not UTF-8", pa.string(), st.binary(max_size=20), plain, storage=pa.binary()),
    KeyCase("null", pa.null(), st.none(), null),
    KeyCase(
        "struct",
        pa.struct([("number", pa.int64()), ("text", pa.string())]),
        st.fixed_dictionaries(
            {"number": st.none() | _integers(64), "text": st.none() | st.sampled_from(["", "a", "b"])}
        ),
        struct_of(("number", plain), ("text", utf8)),
    ),
    KeyCase(
        "nested struct",
        _NESTED,
        st.fixed_dictionaries(
            {
                "inner": st.none() | st.fixed_dictionaries({"text": st.none() | _CHARACTERS}),
                "flag": st.none() | st.booleans(),
            }
        ),
        struct_of(("inner", struct_of(("text", utf8))), ("flag", plain)),
    ),
]
