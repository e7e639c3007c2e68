"""The keys of an order as int64 columns, each made when it is first used.

The columns serve to place rows, where the first one or two mostly decide. They are made from the rank columns
of `payload.ordering` and have the same order: numbers as they are, text word by word. Whole sorts, such as
that of the samples of a range exchange, use the rank columns directly.

Used by the range selector, for ``ShuffleFrame.repartitionByRange`` and ``sort``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.partitioner.arrow_views import Bytes, Positions, byte_extents
from sortshuffle.payload.ordering import (
    LEADING_BYTES,
    SIGN,
    WORD_BYTES,
    Int64s,
    RowOrder,
    SortKey,
    TextRanks,
)

__all__ = ["KeyColumns", "Part", "SortKey"]

LENGTH = -1  # number of the pseudo-word after the last word: the length of the text in bytes
_BITS_OF_BYTES = np.uint64(3)  # shifting a number of bytes left by this gives bits


@dataclass(frozen=True, slots=True)
class Part:
    """Names one int64 column: rank column ``rank`` of key ``key`` or, if that is text, its word ``word``."""

    key: int
    rank: int
    word: int | None = None


class KeyColumns:
    """The keys of a batch as int64 columns: rows compare by the columns of `parts`, from first to last.

    Text compares by words of eight bytes, padded with zeros, and then by its length, which distinguishes
    ``a`` from ``a\\0``. When two batches are compared, there must be parts for all words of one of them;
    texts of the other may be longer. The range selector uses the parts of the bounds.
    """

    def __init__(self, batch: pa.RecordBatch, keys: Sequence[SortKey]) -> None:
        self._batch = batch
        self._keys = keys
        self._ranks: dict[int, list[Int64s | _Text]] = {}

    def parts(self) -> Iterator[Part]:
        """Yield the parts of the keys, the most significant first."""
        for key in range(len(self._keys)):
            for rank, column in enumerate(self._columns(key)):
                if isinstance(column, np.ndarray):
                    yield Part(key, rank)
                else:
                    yield from (Part(key, rank, word) for word in range(column.most_words))
                    yield Part(key, rank, LENGTH)

    def values(self, part: Part, rows: Positions | None = None) -> Int64s:
        """Return the values of a part for ``rows``, or for all rows (None)."""
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
    """A text column as extents in ``data``, which has at least `WORD_BYTES` bytes."""

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
        """Return word ``number`` of each row, as int64 that compares as the word's bytes do."""
        starts, lengths = self.starts, self.lengths
        if rows is not None:
            starts, lengths = starts[rows], lengths[rows]
        done = number * WORD_BYTES
        words = self._words_at(starts + done)
        # clear the bytes after the end of the text
        left = lengths - done
        if left.min(initial=WORD_BYTES) < WORD_BYTES:
            words &= LEADING_BYTES[np.clip(left, 0, WORD_BYTES, out=left)]
        words ^= SIGN
        signed: Int64s = words.view(np.int64)
        return signed

    def _words_at(self, starts: Positions) -> npt.NDArray[np.uint64]:
        """Return the eight bytes from each start on, big-endian, with zeros after the end of the data."""
        last = len(self.data) - WORD_BYTES
        word_at = np.ndarray((last + 1,), np.dtype(">u8"), self.data, strides=(1,))
        words: npt.NDArray[np.uint64]
        if starts.max(initial=0) <= last:
            words = word_at[starts].astype(np.uint64)
            return words
        words = word_at[np.minimum(starts, last)].astype(np.uint64)
        # a word that starts after the last readable position was read `early` bytes too early: shift it
        early = np.maximum(starts - last, 0).astype(np.uint64)
        words <<= early << _BITS_OF_BYTES  # NumPy gives zero for shifts of 64 bits and more
        return words
