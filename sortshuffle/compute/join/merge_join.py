"""Joins two streams that are sorted by their keys, for sides neither of which fits into memory.

Memory holds a window on each stream: a batch, or the rest of one. In each step the bound is the smaller of
the windows' last keys. Rows below the bound have all their matches in the windows, so these parts are joined
as in `compute.join.hash_join`. Rows whose key is the bound may continue in later batches, so they are joined
separately: the rows of the side with fewer of them are held, and the other side's rows stream past them.

So memory holds two windows, and the rows of one key on the side with fewer of them. If these rows do not fit,
the join raises `InsufficientBuffersError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from sortshuffle.compute.join.build import HeldRows
from sortshuffle.compute.join.hash_join import BuildTable, JoinSpec, emit_unmatched, probe
from sortshuffle.errors import InsufficientBuffersError
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import format_size
from sortshuffle.payload.ordering import KeyRow, Ranks, RowOrder

Batches = Iterator[pa.RecordBatch]


def merge_join(spec: JoinSpec, left: Batches, right: Batches, memory: MemoryBudget) -> Batches:
    """Join two streams, each sorted by its key columns, ascending with nulls first."""
    lefts = _Cursor(left, spec.keys.left, memory)
    rights = _Cursor(right, spec.keys.right, memory)
    of_one_key = memory.share(memory.limit, "rows of one key")
    try:
        while lefts.advance() and rights.advance():
            bound = min(lefts.last(), rights.last())
            yield from _joined(spec, lefts.below(bound), rights.below(bound))
            yield from _of_one_key(spec, lefts, rights, bound, of_one_key)
        yield from emit_unmatched(spec, lefts.rest(), left=True)
        yield from emit_unmatched(spec, rights.rest(), left=False)
    finally:
        lefts.release()
        rights.release()


def _joined(spec: JoinSpec, left: pa.RecordBatch, right: pa.RecordBatch) -> Batches:
    """Join two parts whose rows have no matches outside these parts."""
    if right.num_rows == 0:
        return emit_unmatched(spec, [left], left=True)
    if left.num_rows == 0:
        return emit_unmatched(spec, [right], left=False)
    build_left = left.num_rows < right.num_rows
    build = BuildTable(spec, left if build_left else right, is_left=build_left)
    return probe(spec, build, [right if build_left else left])


def _of_one_key(
    spec: JoinSpec, lefts: _Cursor, rights: _Cursor, key: KeyRow, memory: MemoryBudget
) -> Batches:
    """Join all rows of ``key``, which is the first key of one window or of both."""
    both = lefts.begins_with(key) and rights.begins_with(key)
    if not both or not spec.keys_of(lefts.first_row(), left=True).count:
        yield from emit_unmatched(spec, lefts.at(key), left=True)
        yield from emit_unmatched(spec, rights.at(key), left=False)
        return
    left, right = lefts.at(key), rights.at(key)
    held_left, held_right = HeldRows(memory, spec.keys.left), HeldRows(memory, spec.keys.right)
    try:
        left_is_fewer = _hold_fewer(left, held_left, right, held_right, memory)
        held, others = (held_left, held_right) if left_is_fewer else (held_right, held_left)
        schema = (lefts if left_is_fewer else rights).schema
        build = BuildTable(spec, held.concatenate(schema), is_left=left_is_fewer)
        streamed = chain(others.handed_on(), right if left_is_fewer else left)
        yield from probe(spec, build, streamed)
    finally:
        held_left.release()
        held_right.release()


def _hold_fewer(
    left: Batches, held_left: HeldRows, right: Batches, held_right: HeldRows, memory: MemoryBudget
) -> bool:
    """Hold batches of both sides alternately until one side ends. Return whether the left side ended."""
    while True:
        for batches, held in ((left, held_left), (right, held_right)):
            batch = next(batches, None)
            if batch is None:
                return held is held_left
            held.hold(batch)
        if held_left.is_too_much or held_right.is_too_much:
            raise InsufficientBuffersError(
                f"the rows of one key are more than {format_size(memory.limit)} hold on both sides of the"
                " join: leave such keys out or join them apart, or give more memory with"
                " spark.sortshuffle.memory"
            )


class _Cursor:
    """Reads a sorted stream through a window, which is charged to ``memory``."""

    def __init__(self, batches: Batches, columns: tuple[int, ...], memory: MemoryBudget) -> None:
        self._batches = iter(batches)
        self._order = RowOrder(columns)
        self._memory = memory
        self._charged = 0
        self._window: pa.RecordBatch | None = None
        self._ranks = Ranks([], 0)

    @property
    def schema(self) -> pa.Schema:
        assert self._window is not None
        return self._window.schema

    def advance(self) -> bool:
        """Read the next batch if the window is empty. Return False at the end of the stream."""
        while self._ranks.rows == 0:
            self.release()
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._window, self._ranks = batch, self._order.ranks(batch)
            self._charged = batch.nbytes + self._ranks.nbytes
            self._memory.charge(self._charged)
        return True

    def last(self) -> KeyRow:
        return self._ranks.key(self._ranks.rows - 1)

    def begins_with(self, key: KeyRow) -> bool:
        return self._ranks.rows > 0 and self._ranks.key(0) == key

    def first_row(self) -> pa.RecordBatch:
        return self._window.slice(0, 1)  # type: ignore[union-attr]

    def below(self, key: KeyRow) -> pa.RecordBatch:
        """Take the rows below ``key`` from the window."""
        return self._take(self._ranks.count_up_to(key, inclusive=False))

    def at(self, key: KeyRow) -> Batches:
        """Take the rows of ``key`` from the stream. No remaining key is less than ``key``."""
        while self.advance() and self.begins_with(key):
            yield self._take(self._ranks.count_up_to(key))

    def rest(self) -> Batches:
        """Take all remaining rows."""
        while self.advance():
            yield self._take(self._ranks.rows)

    def release(self) -> None:
        self._memory.release(self._charged)
        self._charged = 0

    def _take(self, rows: int) -> pa.RecordBatch:
        assert self._window is not None
        taken = self._window.slice(0, rows)
        self._window = self._window.slice(rows)
        self._ranks = self._ranks.slice(rows, self._ranks.rows)
        return taken
