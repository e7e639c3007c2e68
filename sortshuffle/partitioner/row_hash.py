"""A hash of whole rows: equal rows have equal hashes, in every batch, position, attempt and process.

The hash spreads rows when the order of the input may change. Because it need not equal any other hash, it
takes every Arrow type, even maps, unlike ``murmur3``, and reads long values at memory speed.

Rules:

* A row's hash is a function of that row's values alone. Code may branch on the type or on a single value,
  never on the contents of a whole batch or chunk.
* Layout does not matter: slices, dictionaries, run ends, large and view types hash as the plain values that
  they stand for. Bits matter: 0.0 and -0.0 differ, as do maps with the same entries in another order.
* The hash must be independent of Spark's placement: rows that Spark's hash (same function, seed 42) has put
  together must spread evenly. Hence other seeds, and 64-bit mixing on top.

How, step by step:

1. Each value becomes a 64-bit fingerprint. A boolean, or a fixed-width value of 1, 2, 4 or 8 bytes, is its
   own fingerprint; fixed-width values of other widths are hashed as strings are. Short strings go through
   Murmur3 side by side, long strings through XXH3, one call each. A list of fixed-width values is hashed as
   its bytes, any other list as the sum of its elements' fingerprints, each mixed with its index.
2. The fingerprints of struct fields, and of columns, are mixed in order.
3. The finalizer of MurmurHash3's 128-bit variant (``fmix64``) spreads the bits.

MurmurHash3 is by Austin Appleby, XXH3 by Yann Collet.

Memory is a few times ``CHUNK_BYTES``, or some 40 bytes for each list element of a single row if that is more;
lists of fixed-width values without nulls are not copied.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
import xxhash

from sortshuffle.partitioner import rounds
from sortshuffle.partitioner.arrow_views import (
    Bytes,
    Positions,
    all_bytes,
    bools,
    byte_extents,
    fixed_width,
    is_variable_width,
    list_extents,
    validity,
)

Hashes = npt.NDArray[np.uint64]

CHUNK_BYTES = 1 << 21
"""Bytes of a batch hashed at a time. Measured for 256 KiB, 1, 2 and 4 MiB on one core with 1 MiB of L2 cache:
51, 25, 21 and 22 ns per row of 68 bytes, 144, 130, 150 and 215 ns per list of five strings."""

CHUNK_ROWS = 1 << 15
"""Most rows hashed at a time, however narrow they are: their 64-bit fingerprints then fill 256 KiB."""

LONG_VALUE_BYTES = 128
"""Bytes. Each longer value is hashed by a call of XXH3, shorter values side by side. Measured per value: XXH3
143 ns whatever the length; side by side 137 ns for 128 bytes, 184 for 160, 349 for 256."""

SEED = 0x736F_7274_7368_7566
STRING_SEED = 0x6C65_726F
"""Arbitrary, but not Spark's 42."""

NULL = 0x6E75_6C6C_6E75_6C6D
"""The fingerprint of a null. A value with the same fingerprint only makes the placement less even."""

STEP = 0x9E37_79B9_7F4A_7C15
"""2**64 divided by the golden ratio: an odd number whose multiples are far apart."""

MIX1 = 0xFF51_AFD7_ED55_8CCD
MIX2 = 0xC4CE_B9FE_1A85_EC53
"""These two constants are fmix64's."""


def hash_rows(batch: pa.RecordBatch) -> Hashes:
    """Return a hash of each row of ``batch``, all columns included: shape ``(num_rows,)``, dtype uint64."""
    hashes = np.full(batch.num_rows, SEED, np.uint64)
    step = _chunk_rows(batch)
    for first in range(0, batch.num_rows, step):
        chunk = hashes[first : first + step]
        for column in batch.columns:
            _mix_in(_fingerprints(column.slice(first, step)), chunk)
        _finish(chunk)
    return hashes


def _chunk_rows(batch: pa.RecordBatch) -> int:
    rows_in_chunk: int = CHUNK_BYTES * batch.num_rows // max(1, _size(batch))
    return max(1, min(CHUNK_ROWS, rows_in_chunk))


def _size(batch: pa.RecordBatch) -> int:
    try:
        return int(batch.nbytes)
    except pa.ArrowTypeError:  # older pyarrows can't tell which part of a view type's buffers a slice uses
        return int(batch.get_total_buffer_size())


def _fingerprints(array: pa.Array) -> Hashes:
    if len(array) == 0:
        return np.empty(0, np.uint64)
    array = _plain(array)
    if pat.is_null(array.type):
        return np.full(len(array), NULL, np.uint64)
    fingerprints = _fingerprints_of_values(array)
    valid = validity(array)
    if valid is not None:
        fingerprints[~valid] = NULL
    return fingerprints


def _plain(array: pa.Array) -> pa.Array:
    """Return the same values in the plain layout that fingerprints are computed from."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if pat.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if pat.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    if pat.is_string_view(kind):
        return array.cast(pa.large_string())
    if pat.is_binary_view(kind):
        return array.cast(pa.large_binary())
    return array


def _fingerprints_of_values(array: pa.Array) -> Hashes:
    kind = array.type
    if pat.is_struct(kind):
        return _of_struct(array)
    if _is_list(kind):
        return _of_lists(array)
    if is_variable_width(kind):
        return _of_bytes(*byte_extents(array))
    if pat.is_boolean(kind):
        return bools(array).astype(np.uint64)
    if _byte_width(kind) is not None:
        return _of_fixed_width(array)
    return _of_anything(array)


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pat.is_list(kind)
        or pat.is_large_list(kind)
        or pat.is_fixed_size_list(kind)
        or pat.is_map(kind)
        or pat.is_list_view(kind)
        or pat.is_large_list_view(kind)
    )


def _byte_width(kind: pa.DataType) -> int | None:
    """Return the width in bytes of ``kind`` in a plain values buffer, or None if it has no such buffer."""
    if pat.is_dictionary(kind) or pat.is_boolean(kind) or isinstance(kind, pa.BaseExtensionType):
        return None
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return None


def _of_fixed_width(array: pa.Array) -> Hashes:
    width = _byte_width(array.type)
    if width in (1, 2, 4, 8):
        return fixed_width(array, f"u{width}").astype(np.uint64)
    return _of_bytes(*byte_extents(array))


def _of_bytes(data: Bytes, starts: Positions, lengths: Positions) -> Hashes:
    """Hash short values by Murmur3, all at once, treating long values as empty; then long values by XXH3."""
    long = np.flatnonzero(lengths > LONG_VALUE_BYTES)
    hashes = np.full(len(lengths), STRING_SEED, np.uint32)
    if len(long) == 0:
        rounds.mix_bytes(data, starts, lengths, hashes)
        return hashes.astype(np.uint64)
    rounds.mix_bytes(data, starts, np.where(lengths > LONG_VALUE_BYTES, 0, lengths), hashes)
    fingerprints = hashes.astype(np.uint64)
    fingerprints[long] = _of_long_values(data, starts[long], lengths[long])
    return fingerprints


def _of_long_values(data: Bytes, starts: Positions, lengths: Positions) -> list[int]:
    values = data.data
    extents = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return [xxhash.xxh3_64_intdigest(values[start:end]) for start, end in extents]


def _of_struct(array: pa.Array) -> Hashes:
    fingerprints = np.full(len(array), SEED, np.uint64)
    for position in range(array.type.num_fields):
        _mix_in(_fingerprints(array.field(position)), fingerprints)
    return fingerprints


def _of_lists(array: pa.Array) -> Hashes:
    elements, starts, lengths = list_extents(array)
    first, end = int(starts.min()), int((starts + lengths).max())
    elements = elements.slice(first, end - first)
    width = _byte_width(elements.type)
    if width is None:
        return _of_general_lists(elements, starts - first, lengths)
    return _of_primitive_lists(elements, width, starts - first, lengths)


def _of_general_lists(elements: pa.Array, starts: Positions, lengths: Positions) -> Hashes:
    members, places = _members(starts, lengths)
    contributions = _fingerprints(elements)[members]
    contributions += places
    _finish(contributions)
    return _sum_by_list(contributions, lengths)


def _of_primitive_lists(elements: pa.Array, width: int, starts: Positions, lengths: Positions) -> Hashes:
    """Hash lists as the bytes of their elements, with nulls as zeros, then add the places of nulls. Nothing
    is added to a list without nulls, so its hash doesn't depend on the nulls of its neighbours."""
    data = _value_bytes(elements, width)
    valid = validity(elements)
    if valid is None:
        return _of_bytes(data, starts * width, lengths * width)
    data = data * np.repeat(valid, width)
    members, places = _members(starts, lengths)
    _finish(places)
    places[valid[members]] = 0
    fingerprints = _of_bytes(data, starts * width, lengths * width)
    fingerprints += _sum_by_list(places, lengths)
    return fingerprints


def _value_bytes(array: pa.Array, width: int) -> Bytes:
    return all_bytes(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]


def _members(starts: Positions, lengths: Positions) -> tuple[Positions, Hashes]:
    """Return each list member's position among the elements, and a number made from its place in the list."""
    before = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) - np.repeat(before, lengths)
    numbers: Hashes = (place + 1).astype(np.uint64) * np.uint64(STEP)
    return np.repeat(starts, lengths) + place, numbers


def _sum_by_list(contributions: Hashes, lengths: Positions) -> Hashes:
    totals = np.zeros(len(contributions) + 1, np.uint64)
    np.cumsum(contributions, out=totals[1:])
    ends = np.cumsum(lengths)
    sums: Hashes = totals[ends] - totals[ends - lengths]
    return sums


def _of_anything(array: pa.Array) -> Hashes:
    """Hash the values' Python representations: slow, but every type has one (unions, for example)."""
    texts = pa.array([repr(value) for value in array.to_pylist()], pa.large_string())
    return _of_bytes(*byte_extents(texts))


def _mix_in(fingerprints: Hashes, hashes: Hashes) -> None:
    """Mix one fingerprint into each hash. The order of calls matters."""
    hashes ^= fingerprints
    hashes *= np.uint64(STEP)
    hashes ^= hashes >> np.uint64(32)


def _finish(hashes: Hashes) -> None:
    """Spread every bit over the whole hash."""
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(MIX1)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(MIX2)
    hashes ^= hashes >> np.uint64(33)
