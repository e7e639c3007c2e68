"""Two streams of batches sorted by key, side by side: for every key the rows of both.

Keys are compared by their ranks (`payload.ordering`), so nulls are one key, and so are the NaNs and the two
zeros. Held are the rows of one key and, of each stream, one batch: the side with the greater key waits with
its group unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sortshuffle.compute.groups.groups import Groups
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.ordering import RowOrder

_LONGEST_WORD = 18  # decimal digits that 64 bits hold, whatever they are


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two streams. ``batches``: of ``schema``, sorted by ``order``."""

    batches: Iterator[pa.RecordBatch]
    schema: pa.Schema
    order: RowOrder


def cogroup(left: Side, right: Side, memory: MemoryBudget) -> Iterator[tuple[pa.Table, pa.Table]]:
    """For every key in either stream, in key order, the table of its rows in each.

    A side without the key gives an empty table. With no keys all rows are one group; no rows on either side,
    no groups. The keys must be `comparable`, column by column. What is collected of a key beside the two
    batches in hand is charged to ``memory``, and released when it is handed on.
    """
    sides = (left, right)
    empty = [pa.Table.from_batches([pa.RecordBatch.from_pylist([], side.schema)]) for side in sides]
    groups = [Groups(side.batches, side.order) for side in sides]
    keys = [each.key() if each.next() else None for each in groups]
    while True:
        there = [key for key in keys if key is not None]
        if not there:
            return
        lowest = min(there)
        taken = [key == lowest for key in keys]
        yield _tables(groups, taken, empty, memory)
        keys = [
            (each.key() if each.next() else None) if was_taken else key
            for each, was_taken, key in zip(groups, taken, keys, strict=True)
        ]


def comparable(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether equal values of two key types have equal ranks, and equal hashes of Spark's: whether they are
    one type, but for the names in structs and the digits of decimals, as long as both need one word or both
    two."""
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        return bool(left.num_fields == right.num_fields) and all(
            comparable(a.type, b.type) for a, b in zip(left, right, strict=True)
        )
    if pa.types.is_decimal128(left) and pa.types.is_decimal128(right):
        in_a_word = [each.precision <= _LONGEST_WORD for each in (left, right)]
        return bool(left.scale == right.scale) and in_a_word[0] == in_a_word[1]
    return bool(left == right)


def _tables(
    groups: list[Groups], taken: list[bool], empty: list[pa.Table], memory: MemoryBudget
) -> tuple[pa.Table, pa.Table]:
    """The tables of the groups that are taken now, empty ones for the others."""
    collected: list[pa.Table] = []
    held = 0
    try:
        for each, is_taken, without in zip(groups, taken, empty, strict=True):
            parts: list[pa.RecordBatch] = []
            for rows in each.rows() if is_taken else ():
                if parts:  # of a batch that is done with; to ask for the size of every group takes too long
                    size = parts[-1].nbytes
                    memory.charge(size)
                    held += size
                parts.append(rows)
            collected.append(pa.Table.from_batches(parts) if parts else without)
    finally:
        memory.release(held)
    left, right = collected
    return left, right
