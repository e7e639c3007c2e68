"""Spark's hash of Arrow columns, bit for bit: the result of ``F.hash(*columns)``.

This hash lets a ``ShuffleFrame`` tell Spark's planner that it is partitioned by its keys. Every value is thus
hashed as Spark would hash it; a type is refused if Spark's hash of it is not known.

How: each row has a running hash, into which the columns are folded one after another by the function for
their type (``_FOLDS``). ``rounds`` has the arithmetic. Spark (``HashExpression``, ``Murmur3Hash``) hashes:

=============================================  =====================================================
Arrow type                                     hashed as
=============================================  =====================================================
bool, int8, int16, int32, date32               one 32-bit word
int64                                          one 64-bit value
float32, float64                               their bits, after -0.0 became 0.0 and every NaN one NaN
timestamp, duration                            int64 microseconds (nanoseconds are rounded down)
time64                                         int64 nanoseconds
decimal128, precision <= 18                    the unscaled int64
decimal128, precision > 18                     the unscaled value's shortest big-endian bytes
strings, binaries                              their bytes
struct                                         field after field
list                                           element after element
null                                           not at all
dictionary                                     its values
=============================================  =====================================================

Invariants:

* The running hash is the seed for the next value, which is that of the next column, field or element. A null,
  an empty list and an empty struct leave the hash unchanged.
* Columns are hashed in chunks of ``CHUNK_ROWS`` rows, so that a round stays in cache and memory does not grow
  with the number of rows. Chunks don't change the result.
* A list of n elements takes n rounds of some 40 us per chunk, whatever the other rows hold: keys of a
  thousand elements are fine, keys of a million are slow. ``rounds`` has the same limit for long strings.

An Arrow type does not say a string's collation. Spark hashes collated strings by their collation key, so the
caller, which knows the Spark schema, must refuse collated strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.partitioner import rounds
from sortshuffle.partitioner.arrow_views import (
    Bools,
    Bytes,
    Positions,
    bools,
    byte_extents,
    fixed_width,
    list_extents,
    validity,
)
from sortshuffle.partitioner.rounds import Words
from sortshuffle.payload.stable_order import stable_order

SPARK_SEED = 42
"""The seed of Spark's ``hash`` function and of its HashPartitioning."""

CHUNK_ROWS = 1 << 15
"""Rows hashed at a time. Measured in ns per row, ids included, on one core with 1 MiB of L2 cache, for 4, 8,
16 and 32 Ki rows: int64 9.5, 6.4, 4.8, 4.1; strings of 40 bytes 36, 24, 19, 16; strings of 30 to 50 bytes
78, 57, 48, 42. More rows gain a tenth at most, and are slower where caches are smaller."""

LONG_DECIMAL_DIGITS = 18
"""Spark keeps decimals of up to this many digits in a long."""

NANOS_PER_MICRO = 1_000
MICROS_PER = {"s": 1_000_000, "ms": 1_000, "us": 1}
NANOS_PER = {"us": 1_000, "ns": 1}

Fold = Callable[[pa.Array, Words], None]
Unsigned = TypeVar("Unsigned", np.uint32, np.uint64)


def hash_columns(columns: Sequence[pa.Array], rows: int, seed: int = SPARK_SEED) -> npt.NDArray[np.int32]:
    """Return Spark's hash of each row of ``columns``: shape ``(rows,)``, dtype int32.

    ``columns``: arrays, or slices, of ``rows`` rows each. Without columns, every row's hash is the seed, as
    in Spark. The algorithm is Spark's variant of MurmurHash3 by Austin Appleby, see ``rounds``.

    Raises ColumnError if a column's type can't be hashed, UsageError if a column has another number of rows.
    """
    for position, column in enumerate(columns):
        check_hashable(f"#{position}", column.type)
        if len(column) != rows:
            raise UsageError(f"column #{position} has {len(column)} rows where {rows} are to be hashed")
    hashes = np.full(rows, seed & 0xFFFF_FFFF, np.uint32)
    for first in range(0, rows, CHUNK_ROWS):
        chunk = hashes[first : first + CHUNK_ROWS]
        for column in columns:
            _fold(column.slice(first, CHUNK_ROWS), chunk)
    return hashes.view(np.int32)


def check_hashable(name: str, type: pa.DataType) -> None:
    """Raise ColumnError, naming the column, its type and a remedy, if Spark's hash of ``type`` isn't known.
    The driver calls it before it builds a job."""
    culprit = _unhashable_part(type)
    if culprit is None:
        return
    inside = "" if culprit.equals(type) else f", because of the {culprit} in it"
    raise ColumnError(
        f"column {name!r} of type {type} can't be a hash key{inside}: no hash equal to Spark's is known"
        f" for it. {_remedy(culprit)}"
    )


def _unhashable_part(kind: pa.DataType) -> pa.DataType | None:
    if pat.is_dictionary(kind):
        return _unhashable_part(kind.value_type)
    if kind.id not in _FOLDS or _is_tagged_struct(kind):
        return kind
    return next(filter(None, map(_unhashable_part, _parts(kind))), None)


def _parts(kind: pa.DataType) -> list[pa.DataType]:
    if pat.is_struct(kind):
        return [kind.field(position).type for position in range(kind.num_fields)]
    if _is_list(kind):
        return [kind.value_type]
    return []


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind))


def _is_tagged_struct(kind: pa.DataType) -> bool:
    """Return whether field metadata marks a struct as a Spark variant, geometry or geography."""
    if not pat.is_struct(kind):
        return False
    tags = [kind.field(position).metadata or {} for position in range(kind.num_fields)]
    return any(not {b"variant", b"geometry", b"geography"}.isdisjoint(tag) for tag in tags)


def _remedy(kind: pa.DataType) -> str:
    if pat.is_map(kind):
        return (
            "Equal maps may list their entries in different orders. Use a column made of the map instead,"
            " such as array_sort(map_entries(...)) or one of its values"
        )
    if pat.is_struct(kind):
        return "Use a column extracted from it, or its string form"
    if pat.is_unsigned_integer(kind):
        return "Cast it to a signed integer type that holds its values"
    if pat.is_floating(kind):
        return "Cast it to float32"
    if pat.is_decimal(kind):
        return "Cast it to decimal128"
    if pat.is_date(kind):
        return "Cast it to date32"
    if pat.is_time(kind):
        return "Cast it to time64"
    return "Cast it to a type that Spark has, or leave it out of the keys"


def _fold(array: pa.Array, hashes: Words) -> None:
    """Hash each row of ``array`` into its running hash, in place; a null leaves the hash unchanged."""
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()  # before `validity`: the dictionary may hold nulls too
    fold_values = _FOLDS[array.type.id]
    valid = None if pat.is_null(array.type) else validity(array)
    if valid is None:
        fold_values(array, hashes)
    else:
        mixed = hashes.copy()
        fold_values(array, mixed)
        _replace_where(valid, mixed, hashes)


def _replace_where(chosen: Bools, replacements: Words, hashes: Words) -> None:
    """Replace the chosen hashes without a branch per row: 32 Ki rows take 9 us, with ``np.copyto`` 61 us."""
    differences = replacements ^ hashes
    differences *= chosen
    hashes ^= differences


def _fold_bools(array: pa.Array, hashes: Words) -> None:
    rounds.mix_ints(bools(array).astype(np.uint32), hashes)


def _fold_small_int(array: pa.Array, hashes: Words) -> None:
    signed = fixed_width(array, f"i{array.type.bit_width // 8}")
    rounds.mix_ints(signed.astype(np.int32).view(np.uint32), hashes)


def _fold_int32(array: pa.Array, hashes: Words) -> None:
    rounds.mix_ints(fixed_width(array, np.uint32), hashes)


def _fold_int64(array: pa.Array, hashes: Words) -> None:
    rounds.mix_longs(fixed_width(array, np.int64), hashes)


def _fold_float32(array: pa.Array, hashes: Words) -> None:
    rounds.mix_ints(_java_bits(fixed_width(array, np.uint32), np.float32), hashes)


def _fold_float64(array: pa.Array, hashes: Words) -> None:
    rounds.mix_longs(_java_bits(fixed_width(array, np.uint64), np.float64).view(np.int64), hashes)


def _java_bits(bits: npt.NDArray[Unsigned], floating: type[np.floating]) -> npt.NDArray[Unsigned]:
    """Return the bits that Java's ``floatToIntBits`` or ``doubleToLongBits`` gives, after -0.0 became 0.0."""
    values = bits.view(floating)
    canonical: npt.NDArray[Unsigned] = bits.copy()
    canonical[values == 0] = 0
    nans = np.isnan(values)
    if nans.any():
        canonical[nans] = np.array(np.nan, floating).view(bits.dtype)
    return canonical


def _fold_time_span(array: pa.Array, hashes: Words) -> None:
    """Hash a timestamp or duration as microseconds, Spark's finest unit: it rounds nanoseconds down."""
    ticks = fixed_width(array, np.int64)
    unit = array.type.unit
    micros = ticks // NANOS_PER_MICRO if unit == "ns" else ticks * MICROS_PER[unit]
    rounds.mix_longs(micros, hashes)


def _fold_time_of_day(array: pa.Array, hashes: Words) -> None:
    rounds.mix_longs(fixed_width(array, np.int64) * NANOS_PER[array.type.unit], hashes)


def _fold_decimal128(array: pa.Array, hashes: Words) -> None:
    if array.type.precision <= LONG_DECIMAL_DIGITS:
        halves = fixed_width(array, np.dtype((np.int64, 2)))
        rounds.mix_longs(np.ascontiguousarray(halves[:, 0]), hashes)
    else:
        little_endian = fixed_width(array, np.dtype((np.uint8, 16)))
        rounds.mix_bytes(*_shortest_big_endian(little_endian), hashes)


def _shortest_big_endian(unscaled: Bytes) -> tuple[Bytes, Positions, Positions]:
    """Return the bytes of Java's ``BigInteger.toByteArray`` and each row's extent in them. ``unscaled`` has
    16 bytes a row, little endian, two's complement. A leading byte is dropped if it only repeats the sign and
    the byte after it has the same sign."""
    big_endian = np.ascontiguousarray(unscaled[:, ::-1])
    sign = np.where(big_endian[:, :1] >= 0x80, 0xFF, 0x00).astype(np.uint8)
    repeats_sign = big_endian[:, :-1] == sign
    next_shows_sign = (big_endian[:, 1:] ^ sign) < 0x80
    dropped = np.logical_and.accumulate(repeats_sign & next_shows_sign, axis=1).sum(axis=1)
    width = big_endian.shape[1]
    starts = np.arange(len(big_endian)) * width + dropped
    return big_endian.ravel(), starts, width - dropped


def _fold_binary(array: pa.Array, hashes: Words) -> None:
    rounds.mix_bytes(*byte_extents(array), hashes)


def _fold_string_view(array: pa.Array, hashes: Words) -> None:
    _fold_binary(array.cast(pa.large_string()), hashes)


def _fold_binary_view(array: pa.Array, hashes: Words) -> None:
    _fold_binary(array.cast(pa.large_binary()), hashes)


def _fold_struct(array: pa.Array, hashes: Words) -> None:
    for position in range(array.type.num_fields):
        _fold(array.field(position), hashes)


def _fold_list(array: pa.Array, hashes: Words) -> None:
    """For every k, fold the k-th elements of all lists that have one."""
    elements, starts, lengths = list_extents(array)
    # order the lists by length, so that those with a k-th element are a slice
    order, _ = stable_order(lengths)
    starts, lengths, ordered = starts[order], lengths[order], hashes[order]
    for k in range(int(lengths[-1])):
        first = int(np.searchsorted(lengths, k, side="right"))
        _fold(elements.take(pa.array(starts[first:] + k)), ordered[first:])
    hashes[order] = ordered


def _fold_null(array: pa.Array, hashes: Words) -> None:
    """Leave every hash unchanged: all values are null."""


# Keyed by the ids of type instances, because pyarrow's names for the ids are private
_FOLDS: dict[int, Fold] = {
    pa.null().id: _fold_null,
    pa.bool_().id: _fold_bools,
    pa.int8().id: _fold_small_int,
    pa.int16().id: _fold_small_int,
    pa.int32().id: _fold_int32,
    pa.date32().id: _fold_int32,
    pa.int64().id: _fold_int64,
    pa.timestamp("us").id: _fold_time_span,
    pa.duration("us").id: _fold_time_span,
    pa.time64("ns").id: _fold_time_of_day,
    pa.float32().id: _fold_float32,
    pa.float64().id: _fold_float64,
    pa.decimal128(1).id: _fold_decimal128,
    pa.binary().id: _fold_binary,
    pa.large_binary().id: _fold_binary,
    pa.binary(1).id: _fold_binary,
    pa.string().id: _fold_binary,
    pa.large_string().id: _fold_binary,
    pa.string_view().id: _fold_string_view,
    pa.binary_view().id: _fold_binary_view,
    pa.struct([]).id: _fold_struct,
    pa.list_(pa.null()).id: _fold_list,
    pa.large_list(pa.null()).id: _fold_list,
    pa.list_(pa.null(), 1).id: _fold_list,
}
