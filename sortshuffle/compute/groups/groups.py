"""Cuts a stream of batches sorted by key into groups: one table per key, one iterator of batches per key, or
runs of whole groups.

A group may begin in any batch, end in any later batch and fill many between. A group as a table must fit into
memory; only the group being collected is held. A group as an iterator holds only the current batch; rows not
taken before the next group is requested are skipped. A run consists of the whole groups of a batch, for
callers that process many groups at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from sortshuffle.payload.ordering import KeyRow, Ranks, RowOrder


def group_tables(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[pa.Table]:
    """Yield one table per key, in key order, with rows in the order of the stream. ``batches`` must be sorted
    by ``order``. With no keys all rows are one group; without rows there are no groups."""
    held: list[pa.RecordBatch] = []
    group = 0
    for part in _parts(batches, order):
        if part.group != group:
            yield _table_of(held)
            group = part.group
        held.append(part.rows)
        del part  # it holds the rows too
    if held:
        yield _table_of(held)


def group_batches(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield one iterator of batches per key, in key order, with rows in the order of the stream. An iterator
    ends when the next one is requested, however much was taken from it."""
    groups = Groups(batches, order)
    while groups.next():
        yield groups.rows()


@dataclass(frozen=True, slots=True)
class GroupRun:
    """Consecutive whole groups. ``starts``: where each group begins in ``rows``; the first start is 0."""

    rows: pa.RecordBatch | pa.Table
    starts: list[int]


def group_runs(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[GroupRun]:
    """Yield the groups of a stream in key order: those within one batch together, others alone. The last
    group of each batch is among the others, because it may continue. Like `group_tables`, requires sorted
    batches, and holds the group being collected beside a batch."""
    held: list[pa.RecordBatch] = []  # the parts of the group that may continue
    last: KeyRow | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        ranks = order.ranks(batch)
        starts = ranks.group_starts().tolist()
        goes_on = bool(held) and ranks.key(0) == last
        last = ranks.key(batch.num_rows - 1)
        if goes_on and len(starts) == 1:
            held.append(batch)
            continue
        if goes_on:
            held.append(batch.slice(0, starts.pop(1)))
            starts[0] = held[-1].num_rows
        if held:
            yield GroupRun(_table_of(held), [0])
        first, end = starts[0], starts.pop()
        if starts:
            yield GroupRun(batch.slice(first, end - first), [start - first for start in starts])
        held.append(batch.slice(end))
    if held:
        yield GroupRun(_table_of(held), [0])


class Groups:
    """Steps through the groups of a sorted stream. Holds one batch of the stream, with its keys."""

    __slots__ = ("_number", "_part", "_parts")

    def __init__(self, batches: Iterator[pa.RecordBatch], order: RowOrder) -> None:
        self._parts = _parts(batches, order)
        self._part: _Part | None = None  # read but not taken: a part of this group or of the next one
        self._number = -1

    def next(self) -> bool:
        """Go to the next group, skipping the rest of this group. Return False at the end of the stream."""
        part = self._ahead()
        while part is not None and part.group == self._number:
            self._part = None
            part = self._ahead()
        self._number += 1  # at the end of the stream too, so that no iterator continues
        return part is not None

    def key(self) -> KeyRow:
        """Return the key of the current group, of which no rows may have been taken yet."""
        assert self._part is not None
        return self._part.ranks.key(self._part.row)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rest of the current group's rows. The iterator ends when `next` is called."""
        number = self._number
        while number == self._number:
            part = self._ahead()
            if part is None or part.group != number:
                return
            rows, self._part = part.rows, None
            del part
            yield rows
            del rows  # or they would stay alive while the next batch is read

    def _ahead(self) -> _Part | None:
        if self._part is None:
            self._part = next(self._parts, None)
        return self._part


@dataclass(slots=True)
class _Part:
    """The rows of a group in one batch. ``row``: the position of the first of these rows in ``ranks``."""

    rows: pa.RecordBatch
    group: int
    ranks: Ranks
    row: int


def _parts(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[_Part]:
    """Cut the stream where the batch or key changes. Groups are numbered from 0."""
    group = -1
    last: KeyRow | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        ranks = order.ranks(batch)
        starts = ranks.group_starts().tolist()
        if last is None or ranks.key(0) != last:
            group += 1
        for start, stop in pairwise([*starts, batch.num_rows]):
            group += start > 0
            yield _Part(batch.slice(start, stop - start), group, ranks, start)
        last = ranks.key(batch.num_rows - 1)


def _table_of(held: list[pa.RecordBatch]) -> pa.Table:
    """Make a table of the batches and clear the list, so that only the table keeps them alive."""
    table = pa.Table.from_batches(held)
    held.clear()
    return table
