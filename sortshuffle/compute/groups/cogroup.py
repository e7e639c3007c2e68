"""Cogroups of two streams of batches sorted by key: for each key, the rows of both streams.

Keys are compared by their ranks (`payload.ordering`), so all nulls are one key, as are all NaNs and the two
zeros. Memory holds the rows of one key and one batch of each stream: the stream with the greater key waits
with its group unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sortshuffle.compute.groups.groups import Groups
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.payload.ordering import RowOrder

_LONGEST_WORD = 18  # most decimal digits that always fit 64 bits


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two streams. ``batches``: batches of ``schema``, sorted by ``order``."""

    batches: Iterator[pa.RecordBatch]
    schema: pa.Schema
    order: RowOrder


def cogroup(left: Side, right: Side, memory: MemoryBudget) -> Iterator[tuple[pa.Table, pa.Table]]:
    """For each key in either stream, in key order, yield the tables of its rows in both streams.

    A side without the key gives an empty table. With no key columns all rows are one group; if both sides
    have no rows, there are no groups. The keys must be `comparable`, column by column. Rows collected for a
    key, beside the two current batches, are charged to ``memory`` until the tables are yielded.
    """
    sides = (left, right)
    empty = [pa.Table.from_batches([pa.RecordBatch.from_pylist([], side.schema)]) for side in sides]
    groups = [Groups(side.batches, side.order) for side in sides]
    keys = [group.key() if group.next() else None for group in groups]
    while True:
        present = [key for key in keys if key is not None]
        if not present:
            return
        lowest = min(present)
        taken = [key == lowest for key in keys]
        yield _tables(groups, taken, empty, memory)
        keys = [
            (group.key() if group.next() else None) if is_taken else key
            for group, is_taken, key in zip(groups, taken, keys, strict=True)
        ]


def comparable(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether equal values of two key types have equal ranks and equal Spark hashes. That is so if the
    types are the same except for field names in structs and the precision of decimals, provided that both
    decimals need one 64-bit word or both need two."""
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
    """Collect the tables of the groups that are ``taken``; use the empty tables for the other sides."""
    collected: list[pa.Table] = []
    held = 0
    try:
        for group, is_taken, empty_table in zip(groups, taken, empty, strict=True):
            parts: list[pa.RecordBatch] = []
            for rows in group.rows() if is_taken else ():
                # Charge the part before, whose batch is no longer the current one. Most groups have one part:
                # computing the size of every group takes too long
                if parts:
                    size = parts[-1].nbytes
                    memory.charge(size)
                    held += size
                parts.append(rows)
            collected.append(pa.Table.from_batches(parts) if parts else empty_table)
    finally:
        memory.release(held)
    left, right = collected
    return left, right
