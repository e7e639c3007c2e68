"""MurmurHash3's rounds, 32 bits wide, over NumPy arrays: many hashes at a time.

MurmurHash3_x86_32 is by Austin Appleby. This is the variant that Spark calls ``Murmur3_x86_32`` (``hashInt``,
``hashLong``, ``hashUnsafeBytes``). It differs from the original in one point: each of the up to three bytes
after the last whole word is sign-extended and mixed in a separate round, where the original packs them into
one half round.

A hash consists of a round for each word (``_absorb``), a round for each byte after the last word, then a
final mix with the length (``_finish``).

Invariants:

* ``hashes`` is a contiguous uint32 array. It holds the seeds and is overwritten with the results. All
  arithmetic is modulo 2**32. Rows never influence each other.
* A round depends on the previous round, so a value of n words takes n rounds. Rows are therefore mixed side
  by side: round k is for all rows that have a k-th word.
* Memory is a few arrays of one entry per row, never rows times the longest value.

Limit: when few rows are left, the overhead of a NumPy call exceeds its work. A loop over Python ints then
mixes the rest of each row: 10 M words/s, measured 2.6 s for a value of 100 MB. Such keys are hashed
correctly, but not fast.

Words are little endian, and the machine must be too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sortshuffle.partitioner.arrow_views import Bytes, Positions
from sortshuffle.payload.stable_order import stable_order

Words = npt.NDArray[np.uint32]

WORD = np.dtype("<u4")

FEW_ROWS = 64
"""With fewer rows left, a Python loop per row (0.1 us a word) beats a round of NumPy calls
(measured: 64 rows 7.7 us, a round 6.5 us, or 9.3 us where lengths differ). Must be more than one."""

BLOCK_WORDS = 1 << 16
"""Words of a long value that are converted to Python ints at a time: these take 2.5 MB."""

C1 = 0xCC9E2D51
C2 = 0x1B873593
STEP = 0xE6546B64
FINAL1 = 0x85EBCA6B
FINAL2 = 0xC2B2AE35
"""These five constants are MurmurHash3_x86_32's."""


def mix_ints(words: Words, hashes: Words) -> None:
    """Hash one 32-bit word per row: Spark's ``hashInt``."""
    _absorb(words, hashes)
    _finish(hashes, np.uint32(4))


def mix_longs(longs: npt.NDArray[np.int64], hashes: Words) -> None:
    """Hash one 64-bit value per row, low word first: Spark's ``hashLong``."""
    halves = longs.view(WORD).reshape(-1, 2)
    _absorb(halves[:, 0], hashes)
    _absorb(halves[:, 1], hashes)
    _finish(hashes, np.uint32(8))


def mix_bytes(data: Bytes, starts: Positions, lengths: Positions, hashes: Words) -> None:
    """Hash one extent of ``data`` per row: Spark's ``hashUnsafeBytes``.

    Row i is ``data[starts[i] : starts[i] + lengths[i]]``. Extents may lie in any order.
    """
    words = lengths >> 2  # whole words of four bytes
    _mix_whole_words(data, starts, words, hashes)
    _mix_tail_bytes(data, starts + 4 * words, lengths & 3, hashes)
    _finish(hashes, lengths.astype(np.uint32))


def _mix_whole_words(data: Bytes, starts: Positions, words: Positions, hashes: Words) -> None:
    if len(hashes) < FEW_ROWS:
        _mix_row_by_row(data, starts, words, hashes)
    elif (stride := _even_stride(starts, words)) is not None:
        _mix_evenly_spaced(data, int(starts[0]), stride, int(words[0]), hashes)
    else:
        _mix_uneven(data, starts, words, hashes)


def _even_stride(starts: Positions, words: Positions) -> int | None:
    """Return the distance between neighbouring starts if all lengths and distances are equal, else None."""
    if words.min() != words.max():
        return None
    strides = np.diff(starts)
    return int(strides[0]) if strides.min() == strides.max() else None


def _mix_evenly_spaced(data: Bytes, start: int, stride: int, words: int, hashes: Words) -> None:
    """Mix rows of equal length: the k-th words of all rows are a strided view of the data."""
    for k in range(words):
        column = np.ndarray(len(hashes), WORD, data, start + 4 * k, (stride,))
        _absorb(column, hashes)


def _mix_uneven(data: Bytes, starts: Positions, words: Positions, hashes: Words) -> None:
    """Mix rows of different lengths in order of length, so that the rows of a round are a slice."""
    order, _ = stable_order(words)
    words, starts, ordered = words[order], starts[order], hashes[order]
    reader = _WordReader(data, starts, int((starts + 4 * words).max()))
    first = 0
    for k in range(int(words[-1])):
        # rows before `ended` have no k-th word
        ended = int(np.searchsorted(words, k, side="right"))
        if len(words) - ended < FEW_ROWS:
            rest = slice(ended, None)
            _mix_row_by_row(data, starts[rest] + 4 * k, words[rest] - k, ordered[rest])
            break
        reader.drop(ended - first)
        first = ended
        _absorb(reader.next_words(), ordered[first:])
    hashes[order] = ordered


class _WordReader:
    """Reads the next word of each row, which may start at any byte, from aligned words. An unaligned word
    consists of parts of two aligned words. The upper one is the lower one of the next round, so a round
    gathers once. For 16 Ki rows this takes 14 us, against 44 us if NumPy gathers unaligned words."""

    def __init__(self, data: Bytes, starts: Positions, end: int) -> None:
        base, self._aligned = _aligned_words(data, int(starts.min()), end)
        self._at = (starts - base) >> 2
        self._down: Words = ((starts - base) << 3 & 31).astype(np.uint32)
        # for a row that starts at an aligned word this is 32, a shift that gives zero in NumPy, unlike in C
        self._up: Words = np.uint32(32) - self._down
        self._low = self._gather()

    def drop(self, rows: int) -> None:
        """Forget the first ``rows`` rows."""
        self._at, self._low = self._at[rows:], self._low[rows:]
        self._down, self._up = self._down[rows:], self._up[rows:]

    def next_words(self) -> Words:
        self._at += 1
        high = self._gather()
        words: Words = (self._low >> self._down) | (high << self._up)
        self._low = high
        return words

    def _gather(self) -> Words:
        # only the unused upper neighbour of an aligned word can lie after the end: any value will do for it
        return self._aligned.take(self._at, mode="clip")


def _aligned_words(data: Bytes, first: int, end: int) -> tuple[int, Words]:
    """Return the position of the first byte of aligned words that cover ``data[first:end]``, and the words:
    a view, or a copy where there are none (at the end of an unpadded buffer, or in an unaligned one)."""
    base = first & ~3
    stop = (end + 3) & ~3
    if stop <= len(data) and data.ctypes.data % WORD.itemsize == 0:
        return base, data[base:stop].view(WORD)
    padded = np.zeros(stop - base, np.uint8)
    padded[: end - base] = data[base:end]
    return base, padded.view(WORD)


def _mix_row_by_row(data: Bytes, starts: Positions, words: Positions, hashes: Words) -> None:
    for row, (start, count) in enumerate(zip(starts.tolist(), words.tolist(), strict=True)):
        hashes[row] = _mix_one_value(data[start : start + 4 * count].view(WORD), int(hashes[row]))


def _mix_one_value(words: Words, state: int) -> int:
    for first in range(0, len(words), BLOCK_WORDS):
        for word in _scramble(words[first : first + BLOCK_WORDS]).tolist():
            # multiplying by 2**45 + 2**13 and shifting right by 32 rotates left by 13, modulo 2**32
            state = (((state ^ word) * 0x2000_0000_2000 >> 32) * 5 + STEP) & 0xFFFF_FFFF
    return state


def _mix_tail_bytes(data: Bytes, starts: Positions, counts: Positions, hashes: Words) -> None:
    signed = data.view(np.int8)
    for k in range(3):
        rows = np.flatnonzero(counts > k)
        if len(rows) == len(hashes):
            _absorb(_extend_sign(signed[starts + k]), hashes)
        elif len(rows):
            some = hashes[rows]
            _absorb(_extend_sign(signed[starts[rows] + k]), some)
            hashes[rows] = some


def _extend_sign(values: npt.NDArray[np.signedinteger[Any]]) -> Words:
    return values.astype(np.int32).view(np.uint32)


def _absorb(words: Words, hashes: Words) -> None:
    """Mix one word into each hash: one round."""
    hashes ^= _scramble(words)
    _rotate_left(hashes, 13)
    hashes *= np.uint32(5)
    hashes += np.uint32(STEP)


def _scramble(words: Words) -> Words:
    scrambled: Words = words * np.uint32(C1)
    _rotate_left(scrambled, 15)
    scrambled *= np.uint32(C2)
    return scrambled


def _rotate_left(values: Words, bits: int) -> None:
    wrapped = values >> np.uint32(32 - bits)
    values <<= np.uint32(bits)
    values |= wrapped


def _finish(hashes: Words, lengths: Words | np.uint32) -> None:
    """Mix in the lengths in bytes and spread every bit over the whole hash (MurmurHash3's ``fmix32``)."""
    hashes ^= lengths
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(FINAL1)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(FINAL2)
    hashes ^= hashes >> np.uint32(16)
