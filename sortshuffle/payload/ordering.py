"""The order of rows by key: how key-ordered extents are sorted, merged and cut into groups.

The order is that of Spark's ``SortOrder``: each key ascends or descends, with its nulls at either end; NaN is
greater than any number and equal to itself, -0.0 equals 0.0. Ties keep the order in which the rows came. A
descending struct is reversed as a whole, with the nulls inside it; only the nulls of the column itself go to
the end that is asked for.

A key column becomes *rank columns*: int64 NumPy arrays whose order is the key's order (integers, dates,
times, booleans, floats, decimals, validity), or `TextRanks`, bytes without nulls (strings, binary). A struct
has those of its fields. Lists and maps have none and are refused on the driver (`RowOrder.check`).

Rank columns include the direction, so comparing needs none. ``~`` reverses numbers, and cannot overflow. It
cannot reverse bytes: a prefix would still be less than the whole. So `TextRanks` has a direction. Nulls are
ranked below or above all values before a column is reversed.

Sorting, step by step: rank columns; text as words, which are numbers; a sort by one number column after the
other, until no two rows are equal.
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

Int64s = npt.NDArray[np.int64]
RankColumn: TypeAlias = Union[Int64s, "TextRanks"]
KeyRow: TypeAlias = tuple[Any, ...]

_INT64_MAX = np.iinfo(np.int64).max
_INT64_MIN = np.iinfo(np.int64).min
_NAN = np.float64("nan")
_LONGEST_INT64_DECIMAL = 18
WORD_BYTES = 8  # of a text that one int64 holds
# longer texts are rare as keys, and each further word costs 10 ms for a million rows
_LONGEST_IN_WORDS = 8 * WORD_BYTES
# Masks for a word of which only the first k bytes belong to the text, k = 0..8; the first is the highest byte
LEADING_BYTES = np.array([(2**64 - 1) ^ (2 ** (64 - 8 * k) - 1) for k in range(WORD_BYTES + 1)], np.uint64)
SIGN = np.uint64(1 << 63)  # flips unsigned order into signed order


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column of an order. ``column``: its position in the batch."""

    column: int
    descending: bool = False
    nulls_last: bool = False

    def describe(self, name: str) -> str:
        """This key of the column ``name`` as in SQL, without SQL's defaults: ascending, and nulls beside the
        least value."""
        words = [name, *(["desc"] if self.descending else [])]
        if self.nulls_last != self.descending:
            words.append("nulls last" if self.nulls_last else "nulls first")
        return " ".join(words)


@dataclass(frozen=True, slots=True, init=False)
class RowOrder:
    """Orders rows by these keys. A plain position is the key of that column, ascending with nulls first."""

    keys: tuple[SortKey, ...]

    def __init__(self, keys: Iterable[SortKey | int]) -> None:
        plain = tuple(key if isinstance(key, SortKey) else SortKey(key) for key in keys)
        object.__setattr__(self, "keys", plain)

    @property
    def columns(self) -> tuple[int, ...]:
        """The keys' positions in the batch."""
        return tuple(key.column for key in self.keys)

    def describe(self, names: Sequence[str]) -> tuple[str, ...]:
        """Each key as in SQL, such as ``k desc``. ``names``: of all columns of the batch."""
        return tuple(key.describe(names[key.column]) for key in self.keys)

    @staticmethod
    def check(name: str, kind: pa.DataType) -> None:
        """Raises `ColumnError` if rows cannot be ordered by a column of this type."""
        if pa.types.is_struct(kind):
            for child in kind:
                RowOrder.check(f"{name}.{child.name}", child.type)
        elif pa.types.is_nested(kind):
            raise ColumnError(
                f"rows cannot be grouped by column {name} of type {kind}: make a column of a plain type"
                " from it first, for example a string"
            )

    def ranks(self, batch: pa.RecordBatch) -> Ranks:
        """The rank columns of a batch, most significant first."""
        columns: list[RankColumn] = []
        for key in self.keys:
            nulls_above = key.nulls_last != key.descending
            ranks = _rank_columns(batch.column(key.column), nulls_above)
            columns.extend(map(_reverse, ranks) if key.descending else ranks)
        return Ranks(columns, batch.num_rows)

    def ranks_of_no_rows(self, schema: pa.Schema) -> Sequence[RankColumn]:
        """The rank columns of an empty batch of this schema: how many there are, and of which kind."""
        no_rows = pa.record_batch([pa.nulls(0, kind) for kind in schema.types], schema=schema)
        return self.ranks(no_rows).columns


@dataclass(frozen=True, slots=True)
class Ranks:
    """The keys of ``rows`` rows, ready to be compared."""

    columns: Sequence[RankColumn]
    rows: int

    @property
    def nbytes(self) -> int:
        """Bytes of the rank columns that are not the batch's own, as strings and some numbers are."""
        return sum(
            column.nbytes * column.flags.owndata if isinstance(column, np.ndarray) else 8 * self.rows
            for column in self.columns
        )

    def sort_indices(self) -> Int64s:
        """Positions of the rows in key order, ties in their own order. int64, shape (rows,)."""
        return _sort_numbers((part for column in self.columns for part in _as_numbers(column)), self.rows)

    def key(self, row: int) -> KeyRow:
        """The key of one row as a tuple that compares as the order does."""
        return tuple(_comparable(column, row) for column in self.columns)

    def count_up_to(self, bound: KeyRow, *, inclusive: bool = True) -> int:
        """How many of these sorted rows are at or below ``bound`` (below, if not ``inclusive``).

        Column by column the range of equal rows shrinks: rows before it are below, those behind it above.
        """
        start, stop = 0, self.rows
        for column, value in zip(self.columns, bound, strict=True):
            start, stop = _equal_range(column, value, start, stop)
        return stop if inclusive else start

    def group_starts(self) -> Int64s:
        """Positions at which the key differs from the row before. The first is 0, if there are rows."""
        if self.rows == 0:
            return np.empty(0, np.int64)
        changed = np.zeros(self.rows, np.bool_)
        changed[0] = True
        for column in self.columns:
            changed[1:] |= _differs_from_previous(column)
        return np.flatnonzero(changed)

    def take(self, indices: Int64s) -> Ranks:
        """The keys of the rows at these positions, in their order."""
        return Ranks([_at(column, indices) for column in self.columns], len(indices))

    def slice(self, start: int, stop: int) -> Ranks:
        """The keys of rows ``start..stop-1``."""
        return Ranks([column[start:stop] for column in self.columns], stop - start)


@dataclass(frozen=True, slots=True)
class TextRanks:
    """A rank column of bytes. ``values``: large binary, without nulls. ``descending``: the greatest first."""

    values: pa.Array
    descending: bool = False

    def __getitem__(self, rows: slice) -> TextRanks:
        return TextRanks(self.values[rows], self.descending)

    def take(self, indices: Int64s) -> TextRanks:
        return TextRanks(self.values.take(pa.array(indices)), self.descending)

    def reversed(self) -> TextRanks:
        return TextRanks(self.values, not self.descending)

    def comparable(self, row: int) -> Any:
        """The value of one row, which compares with others of the same direction."""
        value = self.values[row].as_py()
        return _DescendingBytes(value) if self.descending else value

    def numbers(self) -> Iterator[Int64s]:
        """int64 columns that order these rows as this one does. How many depends on the values."""
        for column in _text_numbers(self.values):
            yield ~column if self.descending else column


@dataclass(frozen=True, slots=True)
class _DescendingBytes:
    """Bytes in descending order: the greater value is the lesser one here."""

    value: bytes

    def __lt__(self, other: _DescendingBytes) -> bool:
        return other.value < self.value


def _at(column: RankColumn, indices: Int64s) -> RankColumn:
    return column[indices] if isinstance(column, np.ndarray) else column.take(indices)


def _reverse(column: RankColumn) -> RankColumn:
    return ~column if isinstance(column, np.ndarray) else column.reversed()


def concat_ranks(parts: Sequence[Ranks]) -> Ranks:
    """The keys of all parts, one after the other. There is at least one part."""
    columns: list[RankColumn] = []
    for position, column in enumerate(parts[0].columns):
        every: list[Any] = [part.columns[position] for part in parts]
        if isinstance(column, np.ndarray):
            columns.append(np.concatenate(every))
        else:
            values = pa.concat_arrays([each.values for each in every])
            columns.append(TextRanks(values, column.descending))
    return Ranks(columns, sum(part.rows for part in parts))


# --- from key columns to rank columns --------------------------------------------------------------------
# Ascending. The type alone says how many there are, never the values: so any two batches compare.


def _rank_columns(column: pa.Array, nulls_above: bool = False) -> Iterator[RankColumn]:
    """``nulls_above``: the column's own nulls rank above all values, else below."""
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
        yield low ^ _INT64_MIN  # unsigned, where the high word is signed
    elif (numbers := _as_int64(column)) is not None:
        if _may_use_every_int64(kind):
            yield _validity(column, nulls_above)
        elif column.null_count:
            null = _INT64_MAX if nulls_above else _INT64_MIN
            numbers = np.where(np.asarray(column.is_valid()), numbers, null)
        yield numbers
    else:
        yield _validity(column, nulls_above)
        # bytes, because Spark's strings need not be UTF-8; 64-bit offsets, which joining cannot overflow
        values = column.cast(pa.large_binary())
        yield TextRanks(values.fill_null(b"") if values.null_count else values)


def _as_int64(column: pa.Array) -> Int64s | None:
    """Numbers in the order of the values; None if the type has none. The numbers of nulls mean nothing."""
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
    """1 for values; for nulls 0, or 2 if ``nulls_above``."""
    if column.null_count == 0:
        return np.ones(len(column), np.int64)
    valid = np.asarray(column.is_valid()).astype(np.int64)
    return 2 - valid if nulls_above else valid


def _float_ranks(values: npt.NDArray[np.float64]) -> Int64s:
    """IEEE 754 doubles as int64 in the same order, NaN last: the usual flip of the negative half."""
    values = np.where(np.isnan(values), _NAN, values) + 0.0  # one NaN; -0.0 + 0.0 is 0.0
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ _INT64_MAX, bits)


def _decimal_words(column: pa.Array) -> tuple[Int64s, Int64s]:
    """The low and the high halves of 128-bit decimals."""
    if len(column) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    end = column.offset + len(column)
    words = np.frombuffer(column.buffers()[1], np.int64, count=2 * end).reshape(-1, 2)[column.offset :]
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])


# --- sorting -----------------------------------------------------------------------------------------------


def _as_numbers(column: RankColumn) -> Iterator[Int64s]:
    """int64 columns that order these rows as the rank column does."""
    if isinstance(column, np.ndarray):
        yield column
    else:
        yield from column.numbers()


def _text_numbers(column: pa.Array) -> Iterator[Int64s]:
    """The same for text, ascending: how many columns there are depends on the values."""
    skipped = column.offset * np.dtype(np.int64).itemsize
    offsets = np.frombuffer(column.buffers()[1], np.int64, count=len(column) + 1, offset=skipped)
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    if longest > _LONGEST_IN_WORDS:
        yield _ranks_by_arrow(column)
        return
    yield from _words(column, offsets, lengths, longest)


def _words(column: pa.Array, offsets: Int64s, lengths: Int64s, longest: int) -> Iterator[Int64s]:
    """Texts as big-endian words padded with zeros, and their lengths, which tell "a" from "a\\0".

    A million random strings of 10 to 20 characters took 70 ms to sort this way, 370 ms by Arrow's
    sort_indices (55 and 280 ms with only 1,000 different ones; 100 and 450 ms for UUIDs): vector instructions
    sort numbers, and mostly the first word or two decide.
    """
    # the bytes, padded so that a word can begin at each
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + WORD_BYTES, np.uint8)
    if last > first:
        data[:-WORD_BYTES] = np.frombuffer(column.buffers()[2], np.uint8, count=last - first, offset=first)
    word_at = np.ndarray((last - first + 1,), np.dtype(">u8"), data, strides=(1,))
    for done in range(0, longest, WORD_BYTES):
        left = np.clip(lengths - done, 0, WORD_BYTES)
        starts = np.minimum(offsets[:-1] - first + done, last - first)
        # without the bytes of the next text; in signed order
        word = word_at[starts].astype(np.uint64) & LEADING_BYTES[left]
        yield (word ^ SIGN).view(np.int64)
    yield lengths


def _ranks_by_arrow(column: pa.Array) -> Int64s:
    """For long texts: Arrow sorts them, and a row's rank is the number of changes before it."""
    order = np.asarray(pc.sort_indices(column))
    changed = _differs_from_previous(TextRanks(column.take(pa.array(order))))
    ranks = np.zeros(len(column), np.int64)
    ranks[order[1:]] = np.cumsum(changed)
    return ranks


def _sort_numbers(columns: Iterable[Int64s], rows: int) -> Int64s:
    """Stable order of rows by int64 columns, which are made only as far as they are needed.

    For each column: an unstable sort by value, then one of (rank, row) packed into one int64, which makes it
    stable. NumPy has vector instructions for unstable sorts only: 65,536 random keys took 0.9 ms this way,
    3.6 ms with ``kind="stable"``, 4.2 ms with Arrow's sort_indices.
    """
    if rows >= 2**31:
        return np.lexsort((np.arange(rows), *reversed(list(columns))))
    order = np.arange(rows, dtype=np.int64)
    ranks: Int64s | None = None  # of the rows in that order, dense; None while all are equal
    for column in columns:
        if ranks is None:
            if _is_constant(column):
                continue
            packed = _sort_packed(column, order)
        elif ranks[-1] == rows - 1:  # no two rows are equal any more
            break
        else:
            values = column[order]
            if not _splits_ties(values, ranks):
                continue
            # the rank so far decides, then this column's
            packed = _sort_packed(_dense_ranks_of_each(values) | ranks << 32, order)
        ranks, order = packed >> 32, packed & 0xFFFFFFFF
    return order


def _sort_packed(values: Int64s, rows: Int64s) -> Int64s:
    """(dense rank of the value, row) of every row, packed and sorted."""
    positions = np.argsort(values)
    return np.sort(_dense_ranks(values[positions]) << 32 | rows[positions])


def _splits_ties(values: Int64s, ranks: Int64s) -> bool:
    """Whether neighbours of equal rank have different values."""
    return bool(((values[1:] != values[:-1]) & (ranks[1:] == ranks[:-1])).any())


def _dense_ranks_of_each(values: Int64s) -> Int64s:
    """The dense rank of each value among all."""
    positions = np.argsort(values)
    ranks = np.empty(len(values), np.int64)
    ranks[positions] = _dense_ranks(values[positions])
    return ranks


def _dense_ranks(ordered: Int64s) -> Int64s:
    """0 for the first value of a sorted array, one more at each change."""
    ranks = np.zeros(len(ordered), np.int64)
    np.cumsum(ordered[1:] != ordered[:-1], out=ranks[1:])
    return ranks


def _is_constant(column: Int64s) -> bool:
    return len(column) == 0 or bool(column.min() == column.max())


# --- comparing -----------------------------------------------------------------------------------------


def _equal_range(column: RankColumn, value: Any, start: int, stop: int) -> tuple[int, int]:
    """The part of the sorted range ``start..stop-1`` whose rows equal ``value``."""
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
