"""The keys of an order as int64 columns, made one by one when they are asked for: for placing rows, where
mostly the first one or two decide.

The order is that of `payload.ordering`, whose rank columns these are made of: numbers as they are, text word
by word. What is sorted as a whole, such as the samples of a range exchange, uses those directly.

Used by the range selector: ``ShuffleFrame.repartitionByRange`` and ``sort``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.partitioner.arrow_views import Bytes, Positions, byte_extents
from sortshuffle.payload.ordering import Int64s, RowOrder, SortKey, TextRanks

__all__ = ["KeyColumns", "Part", "SortKey"]

WORD_BYTES = 8
LENGTH = -1  # the "word" after the last: how many bytes there are

# for a word of which only k bytes belong to the text, k = 0..8: those, the first in the highest byte
_LEADING_BYTES = np.array([(2**64 - 1) ^ (2 ** (64 - 8 * k) - 1) for k in range(WORD_BYTES + 1)], np.uint64)
_SIGN = np.uint64(1 << 63)
_BITS_OF_BYTES = np.uint64(3)


@dataclass(frozen=True, slots=True)
class Part:
    """One int64 column of the keys: rank column ``rank`` of key ``key``, of text only word ``word``."""

    key: int
    rank: int
    word: int | None = None


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
            return column if rows is None else column[rows]
        if part.word == LENGTH:
            values = column.lengths if rows is None else column.lengths[rows]
        else:
            assert part.word is not None
            values = column.words(part.word, rows)
        return ~values if column.descending else values

    def _columns(self, key: int) -> list[Int64s | _Text]:
        if key not in self._ranks:
            ranks = RowOrder((self._keys[key],)).ranks(self._batch)
            self._ranks[key] = [
                column if isinstance(column, np.ndarray) else _Text.of(column) for column in ranks.columns
            ]
        return self._ranks[key]


@dataclass(frozen=True, slots=True)
class _Text:
    """Text as its extents in ``data``, of which there are at least as many bytes as a word has."""

    data: Bytes
    starts: Positions
    lengths: Positions
    descending: bool

    @staticmethod
    def of(column: TextRanks) -> _Text:
        data, starts, lengths = byte_extents(column.values)
        if len(data) < WORD_BYTES:
            data = np.concatenate([data, np.zeros(WORD_BYTES, np.uint8)])
        return _Text(data, starts, lengths, column.descending)

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
