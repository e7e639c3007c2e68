"""The stable order of int64 values: used to sort, group and place rows, and for tables of hashes.

NumPy's stable sort of int64 is slow, its unstable sort is quick, and its sort of 16-bit integers is stable
and quick. So:

* Values within 2**16 of each other are sorted as 16-bit integers. NumPy sorts these by their digits.
* For other values, the distance from the least value and the row's position are packed into one word, the
  words are sorted unstably, and the positions are read from them. If a distance has too many bits, only its
  leading bits are packed, and if these do not decide, rows that have them in common are sorted once more, by
  their values. That takes longest if most values are near each other and some are far away. Nulls, at an end
  of int64, are set apart.

A million random values, ns a row (NumPy 2.4.6, AMD EPYC of the Zen 4 kind; in brackets with
NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL", because its sort with AVX-512 is slow on these processors):

    values below                                   50,000     2**20      2**62
    this module                                   9 (10)   55 (15)   54 (15)
    ``argsort(kind="stable")``                   82 (86)   87 (88)   88 (89)
    ``argsort``, then (rank, row) in one word   147 (66)  146 (62)  154 (70)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_DIGITS = 16  # bits of the integers that NumPy sorts by their digits
_WORD = 64  # bits
INT64_MIN, INT64_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def stable_order(values: Int64s) -> tuple[Int64s, Bools]:
    """Return the positions of the values in ascending order, those of equal values ascending; and for each
    place in that order whether its value differs from the one before (True for the first). Shapes (n,)."""
    rows = len(values)
    if rows == 0:
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    least, most = values.min(), values.max()
    bits = (int(most) - int(least)).bit_length()
    if bits <= _DIGITS:
        narrow = (values - least).astype(np.uint16)
        order = np.argsort(narrow, kind="stable")
        return order, changes_in(narrow[order])
    row_bits = (rows - 1).bit_length()
    if bits + row_bits > _WORD and (least == INT64_MIN or most == INT64_MAX):
        return _with_end_apart(values, at_start=bool(least == INT64_MIN))
    return _by_words(values, least, max(0, bits + row_bits - _WORD), row_bits)


def _with_end_apart(values: Int64s, at_start: bool) -> tuple[Int64s, Bools]:
    """Sort the values without those at an end of int64: nulls are ranked there, far away from the others."""
    end = values == (INT64_MIN if at_start else INT64_MAX)
    apart, others = np.flatnonzero(end), np.flatnonzero(~end)
    order, changes = stable_order(values[others])
    order = others[order]
    begins = np.zeros(len(apart), np.bool_)
    begins[0] = True
    if at_start:
        return np.concatenate([apart, order]), np.concatenate([begins, changes])
    return np.concatenate([order, apart]), np.concatenate([changes, begins])


def _by_words(values: Int64s, least: np.int64, left_out: int, row_bits: int) -> tuple[Int64s, Bools]:
    """Sort (distance, row), packed into one word. ``left_out``: bits of a distance without room in it."""
    # unsigned, and modulo 2**64: a distance may need all bits
    words = values.view(np.uint64) - least.view(np.uint64)
    words >>= np.uint64(left_out)
    words <<= np.uint64(row_bits)
    words |= np.arange(len(values), dtype=np.uint64)
    words.sort()
    order = (words & np.uint64((1 << row_bits) - 1)).view(np.int64)
    words >>= np.uint64(row_bits)
    changes = changes_in(words)
    del words
    if not left_out or changes.all():
        return order, changes
    ordered = values[order]
    if (ordered[1:] >= ordered[:-1]).all():  # those with their leading bits in common are in order
        return order, changes_in(ordered)
    del ordered
    tied = ~changes
    tied[:-1] |= tied[1:]
    if 2 * np.count_nonzero(tied) > len(values):
        del order, changes
        order = np.argsort(values, kind="stable")
    else:
        # all rows with their leading bits in common, at once: those of other leading bits keep their places
        places = np.flatnonzero(tied)
        rows = order[places]
        order[places] = rows[np.argsort(values[rows], kind="stable")]
    return order, changes_in(values[order])


def changes_in(ordered: npt.NDArray[Any]) -> Bools:
    """Return for each value whether it differs from the one before; True for the first."""
    changes = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=changes[1:])
    return changes
