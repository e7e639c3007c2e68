"""The order of rows by key: how key-ordered extents are sorted, merged and cut into groups.

The order is that of Spark's ``SortOrder``: each key ascends or descends, with its nulls at either end; NaN is
greater than any number and equal to itself; -0.0 equals 0.0. Ties keep their input order. A descending struct
is reversed as a whole, including the nulls inside it; only the nulls of the column itself go to the requested
end.

A key column becomes *rank columns*: int64 NumPy arrays whose order is the key's order (integers, dates,
times, booleans, floats, decimals, validity), or `TextRanks`, bytes without nulls (strings, binary). A struct
has a validity column and the rank columns of its fields. Lists and maps have none, so the driver refuses them
(`RowOrder.check`).

Rank columns include the direction, so comparisons ignore it. ``~`` reverses numbers and cannot overflow. It
cannot reverse bytes, because a prefix would still be less than the whole, so `TextRanks` has a direction.
Nulls are ranked below or above all values before a column is reversed.

Sorting, step by step: make rank columns; split text into words, which are numbers; sort by one column of
numbers after another, until no two rows are equal.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sortshuffle.errors import ColumnError
from sortshuffle.payload.stable_order import INT64_MAX, INT64_MIN, stable_order
from sortshuffle.payload.stable_order import Int64s as Int64s

RankColumn: TypeAlias = Union[Int64s, "TextRanks"]
KeyRow: TypeAlias = tuple[Any, ...]

_NAN = np.float64("nan")
_LONGEST_INT64_DECIMAL = 18
WORD_BYTES = 8  # bytes of text that one int64 holds
# longer texts are rare as keys, and each further word costs 10 ms for a million rows
_LONGEST_IN_WORDS = 8 * WORD_BYTES
_COPIED_ROWS = 1 << 12  # rows whose longer texts are compared at a time
# Masks that keep the first k bytes of a word, k = 0..8; the first byte is the most significant one
LEADING_BYTES = np.array([(2**64 - 1) ^ (2 ** (64 - 8 * k) - 1) for k in range(WORD_BYTES + 1)], np.uint64)
SIGN = np.uint64(1 << 63)  # flips unsigned order into signed order


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of an order. ``column``: its position in the batch."""

    column: int
    descending: bool = False
    nulls_last: bool = False

    def describe(self, name: str) -> str:
        """Format this key as in SQL, for a column called ``name``. Leaves out SQL's defaults: ascending
        order, and nulls next to the least value."""
        words = [name, *(["desc"] if self.descending else [])]
        if self.nulls_last != self.descending:
            words.append("nulls last" if self.nulls_last else "nulls first")
        return " ".join(words)


@dataclass(frozen=True, slots=True, init=False)
class RowOrder:
    """Orders rows by ``keys``. A plain position stands for that column, ascending with nulls first."""

    keys: tuple[SortKey, ...]

    def __init__(self, keys: Iterable[SortKey | int]) -> None:
        plain = tuple(key if isinstance(key, SortKey) else SortKey(key) for key in keys)
        object.__setattr__(self, "keys", plain)

    @property
    def columns(self) -> tuple[int, ...]:
        """Positions of the keys in the batch."""
        return tuple(key.column for key in self.keys)

    def describe(self, names: Sequence[str]) -> tuple[str, ...]:
        """Format each key as in SQL, such as ``k desc``. ``names``: names of all columns of the batch."""
        return tuple(key.describe(names[key.column]) for key in self.keys)

    @staticmethod
    def check(name: str, kind: pa.DataType) -> None:
        """Raise `ColumnError` if rows cannot be ordered by a column of type ``kind``."""
        if pa.types.is_struct(kind):
            for child in kind:
                RowOrder.check(f"{name}.{child.name}", child.type)
        elif pa.types.is_nested(kind):
            raise ColumnError(
                f"rows cannot be grouped by column {name} of type {kind}: make a column of a plain type"
                " from it first, for example a string"
            )

    def ranks(self, batch: pa.RecordBatch) -> Ranks:
        """Return the rank columns of a batch, the most significant first."""
        columns: list[RankColumn] = []
        for key in self.keys:
            nulls_above = key.nulls_last != key.descending
            ranks = _rank_columns(batch.column(key.column), nulls_above)
            columns.extend(map(_reverse, ranks) if key.descending else ranks)
        return Ranks(columns, batch.num_rows)

    def ranks_of_no_rows(self, schema: pa.Schema) -> Sequence[RankColumn]:
        """Return the rank columns of an empty batch: they show the number and kinds of rank columns."""
        no_rows = pa.record_batch([pa.nulls(0, kind) for kind in schema.types], schema=schema)
        return self.ranks(no_rows).columns


@dataclass(frozen=True, slots=True)
class Ranks:
    """The keys of ``rows`` rows, ready to be compared."""

    columns: Sequence[RankColumn]
    rows: int

    @property
    def nbytes(self) -> int:
        """Approximate bytes that the rank columns take beside the batch. Some numbers are views of the batch.
        Text has new offsets, but shares its bytes, unless there are some under nulls (`_without_nulls`)."""
        return sum(
            column.nbytes * column.flags.owndata if isinstance(column, np.ndarray) else 8 * self.rows
            for column in self.columns
        )

    def sort_indices(self) -> Int64s:
        """Return the positions of the rows in key order; ties keep their order. int64, shape (rows,)."""
        return _sort_numbers((part for column in self.columns for part in _as_numbers(column)), self.rows)

    def key(self, row: int) -> KeyRow:
        """Return the key of one row as a tuple that compares as the order does."""
        return tuple(_comparable(column, row) for column in self.columns)

    def count_up_to(self, bound: KeyRow, *, inclusive: bool = True) -> int:
        """Count the rows at or below ``bound`` (only those below, if not ``inclusive``). Rows must be sorted.
        Each column narrows the range of equal rows: rows before the range are below, rows after it above.
        """
        start, stop = 0, self.rows
        for column, value in zip(self.columns, bound, strict=True):
            start, stop = _equal_range(column, value, start, stop)
        return stop if inclusive else start

    def group_starts(self) -> Int64s:
        """Return where the key differs from the previous row's. If there are rows, 0 is the first."""
        if self.rows == 0:
            return np.empty(0, np.int64)
        changed = np.zeros(self.rows, np.bool_)
        changed[0] = True
        for column in self.columns:
            changed[1:] |= _differs_from_previous(column)
        return np.flatnonzero(changed)

    def take(self, indices: Int64s) -> Ranks:
        """Return the keys of the rows at positions ``indices``, in that order."""
        return Ranks([_take(column, indices) for column in self.columns], len(indices))

    def slice(self, start: int, stop: int) -> Ranks:
        """Return the keys of rows ``start..stop-1``."""
        return Ranks([column[start:stop] for column in self.columns], stop - start)


@dataclass(frozen=True, slots=True)
class TextRanks:
    """A rank column of bytes. ``values``: large binary, without nulls. ``descending``: greatest first."""

    values: pa.Array
    descending: bool = False

    def __getitem__(self, rows: slice) -> TextRanks:
        return TextRanks(self.values[rows], self.descending)

    def take(self, indices: Int64s) -> TextRanks:
        return TextRanks(self.values.take(pa.array(indices)), self.descending)

    def reversed(self) -> TextRanks:
        return TextRanks(self.values, not self.descending)

    def comparable(self, row: int) -> Any:
        """Return the value of one row, in a form that compares with values of the same direction."""
        value = self.values[row].as_py()
        return _DescendingBytes(value) if self.descending else value

    def numbers(self) -> Iterator[Int64s]:
        """Yield int64 columns that order rows as this column does. Their number depends on the values."""
        for column in _text_numbers(self.values):
            yield ~column if self.descending else column


@dataclass(frozen=True, slots=True)
class _DescendingBytes:
    """Bytes in descending order: the greater value compares as less."""

    value: bytes

    def __lt__(self, other: _DescendingBytes) -> bool:
        return other.value < self.value


def _take(column: RankColumn, indices: Int64s) -> RankColumn:
    return column[indices] if isinstance(column, np.ndarray) else column.take(indices)


def _reverse(column: RankColumn) -> RankColumn:
    return ~column if isinstance(column, np.ndarray) else column.reversed()


def concat_ranks(parts: Sequence[Ranks]) -> Ranks:
    """Concatenate the keys of ``parts``, of which there is at least one."""
    columns: list[RankColumn] = []
    for position, column in enumerate(parts[0].columns):
        same_columns: list[Any] = [part.columns[position] for part in parts]
        if isinstance(column, np.ndarray):
            columns.append(np.concatenate(same_columns))
        else:
            values = pa.concat_arrays([each.values for each in same_columns])
            columns.append(TextRanks(values, column.descending))
    return Ranks(columns, sum(part.rows for part in parts))


# --- from key columns to rank columns --------------------------------------------------------------------
# All ascending. Their number depends on the type alone, never on the values, so any two batches compare.


def _rank_columns(column: pa.Array, nulls_above: bool = False) -> Iterator[RankColumn]:
    """Yield ascending rank columns. ``nulls_above``: the column's own nulls rank above its values."""
    kind = column.type
    if pa.types.is_struct(kind):
        yield _validity(column, nulls_above)
        for child in column.flatten():
            yield from _rank_columns(child)
    elif pa.types.is_null(kind):
        yield np.zeros(len(column), np.int64)
    elif pa.types.is_decimal128(kind) and kind.precision > _LONGEST_INT64_DECIMAL:
        yield _validity(column, nulls_above)
        low, high = _decimal_words(column.fill_null(0))
        yield high
        yield low ^ INT64_MIN  # the low word is unsigned
    elif (numbers := _as_int64(column)) is not None:
        if _may_use_every_int64(kind):
            yield _validity(column, nulls_above)
        elif column.null_count:
            null = INT64_MAX if nulls_above else INT64_MIN
            numbers = np.where(np.asarray(column.is_valid()), numbers, null)
        yield numbers
    else:
        yield _validity(column, nulls_above)
        # binary, as Spark's strings need not be UTF-8; large, as concatenating cannot overflow 64-bit offsets
        values = column.cast(pa.large_binary())
        yield TextRanks(_without_nulls(values) if values.null_count else values)


def _without_nulls(text: pa.Array) -> pa.Array:
    """Return large binary in which nulls are empty. Its bytes are only copied if there are some under nulls,
    which is rare."""
    if np.diff(_offsets(text))[np.asarray(text.is_null())].any():
        return text.fill_null(b"")
    _, begins, data = text.buffers()
    buffers = [None, begins, data or pa.py_buffer(b"")]
    return pa.Array.from_buffers(text.type, len(text), buffers, null_count=0, offset=text.offset)


def _offsets(text: pa.Array) -> Int64s:
    """Return where the values of large binary begin in its bytes, and where the last one ends."""
    skipped = text.offset * np.dtype(np.int64).itemsize
    return np.frombuffer(text.buffers()[1], np.int64, count=len(text) + 1, offset=skipped)


def _as_int64(column: pa.Array) -> Int64s | None:
    """Map values to numbers in the same order; return None if the type has none. Nulls map to any number."""
    kind = column.type
    numbers: Int64s
    if pa.types.is_floating(kind):
        numbers = _float_ranks(np.asarray(column.cast(pa.float64()).fill_null(0.0)))
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        numbers = np.asarray(column.cast(pa.int64()).fill_null(0))
    elif pa.types.is_temporal(kind):
        width = pa.int64() if kind.bit_width == 64 else pa.int32()
        numbers = np.asarray(column.view(width).cast(pa.int64()).fill_null(0))
    elif pa.types.is_decimal128(kind):
        numbers, _ = _decimal_words(column)
    else:
        return None
    return numbers


def _may_use_every_int64(kind: pa.DataType) -> bool:
    return bool((pa.types.is_integer(kind) or pa.types.is_temporal(kind)) and kind.bit_width == 64)


def _validity(column: pa.Array, nulls_above: bool) -> Int64s:
    """Return 1 for each value; for each null 0, or 2 if ``nulls_above``."""
    if column.null_count == 0:
        return np.ones(len(column), np.int64)
    valid = np.asarray(column.is_valid()).astype(np.int64)
    return 2 - valid if nulls_above else valid


def _float_ranks(values: npt.NDArray[np.float64]) -> Int64s:
    """Map IEEE 754 doubles to int64 in the same order, NaN last, by the usual flip of the negative half."""
    values = np.where(np.isnan(values), _NAN, values) + 0.0  # one NaN; -0.0 + 0.0 is 0.0
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ INT64_MAX, bits)


def _decimal_words(column: pa.Array) -> tuple[Int64s, Int64s]:
    """Return the low and the high halves of 128-bit decimals."""
    if len(column) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    end = column.offset + len(column)
    words = np.frombuffer(column.buffers()[1], np.int64, count=2 * end).reshape(-1, 2)[column.offset :]
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])


# --- sorting -----------------------------------------------------------------------------------------------


def _as_numbers(column: RankColumn) -> Iterator[Int64s]:
    if isinstance(column, np.ndarray):
        yield column
    else:
        yield from column.numbers()


def _text_numbers(column: pa.Array) -> Iterator[Int64s]:
    """Yield int64 columns that order text, ascending. Their number depends on the values."""
    offsets = _offsets(column)
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    if longest > _LONGEST_IN_WORDS:
        yield _ranks_by_arrow(column)
        return
    yield from _words(column, offsets, lengths, longest)


def _words(column: pa.Array, offsets: Int64s, lengths: Int64s, longest: int) -> Iterator[Int64s]:
    """Yield text as big-endian words padded with zeros, then its lengths, which distinguish "a" from "a\\0".

    A million random strings of 10 to 20 characters took 70 ms to sort this way, 370 ms by Arrow's
    sort_indices (55 and 280 ms with only 1,000 different ones; 100 and 450 ms for UUIDs): vector instructions
    sort numbers, and mostly the first word or two decide.
    """
    first, last = int(offsets[0]), int(offsets[-1])
    # without bytes there may be no buffer
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8, count=last - first, offset=first)
    if len(data) < WORD_BYTES:
        data = np.pad(data, (0, WORD_BYTES - len(data)))
    latest = len(data) - WORD_BYTES  # a word can begin at each byte up to this one
    word_at = np.ndarray((latest + 1,), np.dtype(">u8"), data, strides=(1,))
    for done in range(0, longest, WORD_BYTES):
        starts = offsets[:-1] - first + done
        late = np.flatnonzero(starts > latest)
        word = word_at[np.minimum(starts, latest)].astype(np.uint64)
        # of words that begin later, drop the bytes before them (all, if the text has ended)
        word[late] <<= (8 * (starts[late] - latest)).astype(np.uint64)
        del starts, late  # not held while the word is sorted
        # clear the bytes of the next text, then flip into signed order
        word &= LEADING_BYTES[np.clip(lengths - done, 0, WORD_BYTES)]
        word ^= SIGN
        yield word.view(np.int64)
    yield lengths


def _ranks_by_arrow(column: pa.Array) -> Int64s:
    """Rank long texts: sort them by Arrow, then count the changes up to each row."""
    order = np.asarray(pc.sort_indices(column)).view(np.int64)
    changed = np.zeros(len(column), np.int64)
    for start in range(0, len(column) - 1, _COPIED_ROWS):  # a copy of all texts could be as large as all rows
        rows = order[start : start + _COPIED_ROWS + 1]
        changed[start + 1 : start + len(rows)] = _differs_from_previous(TextRanks(column).take(rows))
    ranks = np.empty(len(column), np.int64)
    ranks[order] = np.cumsum(changed, out=changed)
    return ranks


def _sort_numbers(columns: Iterable[Int64s], rows: int) -> Int64s:
    """Sort rows stably by int64 columns, which are made only as far as needed; return the rows' positions."""
    if rows >= 2**31:
        return np.lexsort((np.arange(rows), *reversed(list(columns))))
    order: Int64s | None = None  # None while all rows are equal
    ranks = np.zeros(rows, np.int64)  # dense ranks of the rows in `order`
    for column in columns:
        if order is None:
            if _is_constant(column):
                continue
            order, changes = stable_order(column)
        else:
            values = column[order]
            if not _splits_ties(values, ranks):
                del values
                continue
            # order by the rank so far, then by this column; what a sort does not need is not held meanwhile
            both = _dense_ranks_of_each(values)
            del values, column
            both |= ranks << int(both.max()).bit_length()
            del ranks
            again, changes = stable_order(both)
            del both
            order = order[again]
            del again
        ranks = np.cumsum(changes)
        ranks -= 1
        del changes
        if ranks[-1] == rows - 1:  # no two rows are equal
            break
    return np.arange(rows) if order is None else order


def _splits_ties(values: Int64s, ranks: Int64s) -> bool:
    """Return whether any neighbours of equal rank have different values."""
    return bool(((values[1:] != values[:-1]) & (ranks[1:] == ranks[:-1])).any())


def _dense_ranks_of_each(values: Int64s) -> Int64s:
    """Return for each value how many lesser ones there are, equal ones counted once."""
    positions, changes = stable_order(values)
    ranks = np.empty(len(values), np.int64)
    ranks[positions] = np.cumsum(changes) - 1
    return ranks


def _is_constant(column: Int64s) -> bool:
    return len(column) == 0 or bool(column.min() == column.max())


# --- comparing -----------------------------------------------------------------------------------------


def _equal_range(column: RankColumn, value: Any, start: int, stop: int) -> tuple[int, int]:
    """Return the part of the sorted range ``start..stop-1`` whose rows equal ``value``."""
    if isinstance(column, np.ndarray):
        part = column[start:stop]
        return start + int(np.searchsorted(part, value)), start + int(np.searchsorted(part, value, "right"))
    rows = range(start, stop)
    left = bisect_left(rows, value, key=lambda row: _comparable(column, row))
    right = bisect_right(rows, value, key=lambda row: _comparable(column, row))
    return start + left, start + right


def _comparable(column: RankColumn, row: int) -> Any:
    return int(column[row]) if isinstance(column, np.ndarray) else column.comparable(row)


def _differs_from_previous(column: RankColumn) -> npt.NDArray[np.bool_]:
    differs: npt.NDArray[np.bool_]
    if isinstance(column, np.ndarray):
        differs = column[1:] != column[:-1]
    else:
        differs = np.asarray(pc.not_equal(column.values[1:], column.values[:-1]))
    return differs
