"""The keys of an order as int64 columns, each made when it is first used.

They are for placing rows, where mostly the first one or two columns decide. They are made of the rank columns
of `payload.ordering`, and so have its order: numbers as they are, text word by word. Whole sorts, such as of
the samples of a range exchange, use the rank columns directly.

Used by the range selector: ``ShuffleFrame.repartitionByRange`` and ``sort``.
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

LENGTH = -1  # the "word" after the last: how many bytes there are
_BITS_OF_BYTES = np.uint64(3)  # bytes shifted left by this are bits


@dataclass(frozen=True, slots=True)
class Part:
    """One int64 column: of key ``key``, its rank column ``rank``; of text, word ``word`` of that."""

    key: int
    rank: int
    word: int | None = None


class KeyColumns:
    """The keys of a batch as int64 columns: rows compare as these do, from the first to the last of `parts`.

    Text compares word by word, eight bytes padded with zeros, and then by its length, which tells ``a`` from
    ``a\\0``. One side of a comparison may be text of any length if the other has no more words than there are
    parts: so the parts are those of the bounds.
    """

    def __init__(self, batch: pa.RecordBatch, keys: Sequence[SortKey]) -> None:
        self._batch = batch
        self._keys = keys
        self._ranks: dict[int, list[Int64s | _Text]] = {}

    def parts(self) -> Iterator[Part]:
        """The parts of these keys, the most significant first."""
        for key in range(len(self._keys)):
            for rank, column in enumerate(self._columns(key)):
                if isinstance(column, np.ndarray):
                    yield Part(key, rank)
                else:
                    yield from (Part(key, rank, word) for word in range(column.most_words))
                    yield Part(key, rank, LENGTH)

    def values(self, part: Part, rows: Positions | None = None) -> Int64s:
        """The values of a part, of these rows, or of all (None)."""
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
    """Text as extents in ``data``, which has at least `WORD_BYTES` bytes."""

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
        # without the bytes behind the text's end
        left = lengths - done
        if left.min(initial=WORD_BYTES) < WORD_BYTES:
            words &= LEADING_BYTES[np.clip(left, 0, WORD_BYTES, out=left)]
        words ^= SIGN
        signed: Int64s = words.view(np.int64)
        return signed

    def _words_at(self, starts: Positions) -> npt.NDArray[np.uint64]:
        """The eight bytes from each start on, the first one highest, with zeros behind the data's end."""
        last = len(self.data) - WORD_BYTES
        word_at = np.ndarray((last + 1,), np.dtype(">u8"), self.data, strides=(1,))
        words: npt.NDArray[np.uint64]
        if starts.max(initial=0) <= last:
            words = word_at[starts].astype(np.uint64)
            return words
        words = word_at[np.minimum(starts, last)].astype(np.uint64)
        # a word whose start is behind the last possible one was read so many bytes too early
        early = np.maximum(starts - last, 0).astype(np.uint64)
        words <<= early << _BITS_OF_BYTES  # by 64 bits and more NumPy gives zero
        return words
