"""An order of rows by several columns, each with a direction of its own, as Spark's ``SortOrder`` has them.

The order within one column is that of `payload.ordering` (numbers, text as bytes, NaN above all numbers, a
struct by its fields). Here it may be turned round, and nulls moved to the other end. Spark turns a struct
round as a whole, the nulls inside it included, and moves only the nulls of the column itself; so does this.

Two forms of the same keys:

``ordered_ranks``   everything at once, for sorting: the samples of a range exchange
``KeyColumns``      int64 columns made one by one when they are asked for, for placing rows: mostly the first
                    one or two decide

Used by the range selector and by what finds its bounds: ``ShuffleFrame.repartitionByRange``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.partitioner.arrow_views import Bytes, Positions, byte_extents
from sortshuffle.payload.ordering import Int64s, RankColumn, Ranks, RowOrder

WORD_BYTES = 8
LENGTH = -1  # the "word" after the last: how many bytes there are

# for a word of which only k bytes belong to the text, k = 0..8: those, the first in the highest byte
_LEADING_BYTES = np.array([(2**64 - 1) ^ (2 ** (64 - 8 * k) - 1) for k in range(WORD_BYTES + 1)], np.uint64)
_SIGN = np.uint64(1 << 63)
_BITS_OF_BYTES = np.uint64(3)


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column of an order. ``column``: its position in the batch."""

    column: int
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One int64 column of the keys: rank column ``rank`` of key ``key``, of text only word ``word``."""

    key: int
    rank: int
    word: int | None = None


def ordered_ranks(batch: pa.RecordBatch, keys: Sequence[SortKey]) -> Ranks:
    """The keys of a batch, ready to be sorted and compared in this order."""
    columns = [
        _reversed(column) if key.descending else column
        for key in keys
        for column in _rank_columns(batch, key)
    ]
    return Ranks(columns, batch.num_rows)


class KeyColumns:
    """The keys of a batch as int64 columns: rows compare as these do, from the first to the last of `parts`.

    Text is compared word by word, eight bytes padded with zeros, and then by its length, which tells
    ``a`` from ``a\\0``. That is right for text of any length as long as the *other* side of the comparison
    has no more words than there are parts for, so the parts are those of the bounds.
    """

    def __init__(self, batch: pa.RecordBatch, keys: Sequence[SortKey]) -> None:
        self._batch = batch
        self._keys = keys
        self._ranks: dict[int, list[Int64s | _Text]] = {}

    def parts(self) -> Iterator[Part]:
        """What these keys consist of, the most significant part first."""
        for key in range(len(self._keys)):
            for rank, column in enumerate(self._columns(key)):
                if isinstance(column, np.ndarray):
                    yield Part(key, rank)
                else:
                    yield from (Part(key, rank, word) for word in range(column.most_words))
                    yield Part(key, rank, LENGTH)

    def values(self, part: Part, rows: Positions | None = None) -> Int64s:
        """The values of a part, of these rows or (None) of all."""
        column = self._columns(part.key)[part.rank]
        if isinstance(column, np.ndarray):
            values = column if rows is None else column[rows]
        elif part.word == LENGTH:
            values = column.lengths if rows is None else column.lengths[rows]
        else:
            assert part.word is not None
            values = column.words(part.word, rows)
        return ~values if self._keys[part.key].descending else values

    def _columns(self, key: int) -> list[Int64s | _Text]:
        if key not in self._ranks:
            self._ranks[key] = [
                column if isinstance(column, np.ndarray) else _Text.of(column)
                for column in _rank_columns(self._batch, self._keys[key])
            ]
        return self._ranks[key]


def _rank_columns(batch: pa.RecordBatch, key: SortKey) -> list[RankColumn]:
    """The rank columns of a key before they are reversed, if they are to be.

    Nulls rank first. Reversed they come last, so only where they shall not go with the rest is a column
    needed that puts them at the other end. How many columns there are depends on types alone.
    """
    ranks = list(RowOrder((key.column,)).ranks(batch).columns)
    if key.nulls_last == key.descending:
        return ranks
    return [np.asarray(batch.column(key.column).is_null()).astype(np.int64), *ranks]


def _reversed(column: RankColumn) -> Int64s:
    if isinstance(column, np.ndarray):
        return ~column
    return ~_dense_ranks(column)


def _dense_ranks(texts: pa.Array) -> Int64s:
    """A number for each text in the order of the texts: 0 for the least, equal for equal ones."""
    order = Ranks([texts], len(texts)).sort_indices()
    starts = Ranks([texts.take(pa.array(order))], len(texts)).group_starts()
    begins = np.zeros(len(texts), np.int64)
    begins[starts[1:]] = 1
    ranks = np.empty(len(texts), np.int64)
    ranks[order] = np.cumsum(begins)
    return ranks


@dataclass(frozen=True, slots=True)
class _Text:
    """Text as its extents in ``data``, of which there are at least as many bytes as a word has."""

    data: Bytes
    starts: Positions
    lengths: Positions

    @staticmethod
    def of(column: pa.Array) -> _Text:
        data, starts, lengths = byte_extents(column)
        if len(data) < WORD_BYTES:
            data = np.concatenate([data, np.zeros(WORD_BYTES, np.uint8)])
        return _Text(data, starts, lengths)

    @property
    def most_words(self) -> int:
        return -(-int(self.lengths.max(initial=0)) // WORD_BYTES)

    def words(self, number: int, rows: Positions | None) -> Int64s:
        """Word ``number`` of these rows as an int64 that compares as its bytes do."""
        starts, lengths = self.starts, self.lengths
        if rows is not None:
            starts, lengths = starts[rows], lengths[rows]
        done = number * WORD_BYTES
        words = self._words_at(starts + done)
        left = lengths - done
        if left.min(initial=WORD_BYTES) < WORD_BYTES:
            words &= _LEADING_BYTES[np.clip(left, 0, WORD_BYTES, out=left)]
        words ^= _SIGN
        signed: Int64s = words.view(np.int64)
        return signed

    def _words_at(self, starts: Positions) -> npt.NDArray[np.uint64]:
        """The eight bytes from each start on, the first in the highest byte, zeros behind the data's end."""
        last = len(self.data) - WORD_BYTES
        word_at = np.ndarray((last + 1,), np.dtype(">u8"), self.data, strides=(1,))
        words: npt.NDArray[np.uint64]
        if starts.max(initial=0) <= last:
            words = word_at[starts].astype(np.uint64)
            return words
        words = word_at[np.minimum(starts, last)].astype(np.uint64)
        # what was read for starts behind the last begins too early, by so many bytes
        early = np.maximum(starts - last, 0).astype(np.uint64)
        words <<= early << _BITS_OF_BYTES  # by 64 bits and more NumPy gives zero
        return words
