"""From a stream of batches sorted by key to its groups: one table per key, one iterator of batches, or runs
of whole groups.

A group may begin in any batch, end in any later one and fill many between. As a table it must fit into
memory, and only the one that is being collected is held. As an iterator nothing of it is held but the batch
in hand: what is not taken before the next group is asked for is skipped. A run is what there is of whole
groups in a batch, for whoever does something to all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from sortshuffle.payload.ordering import KeyRow, Ranks, RowOrder


def group_tables(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[pa.Table]:
    """One table per key, in key order, rows in the order of the stream.

    ``batches`` must be sorted by ``order``. With no keys all rows are one group; no rows, no groups.
    """
    held: list[pa.RecordBatch] = []
    group = 0
    for part in _parts(batches, order):
        if part.group != group:
            yield _table_of(held)
            group = part.group
        held.append(part.rows)
        del part  # which has the rows, too
    if held:
        yield _table_of(held)


def group_batches(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[Iterator[pa.RecordBatch]]:
    """One iterator of batches per key, in key order, rows in the order of the stream.

    An iterator is at its end when the next one is asked for, whatever was taken from it.
    """
    groups = Groups(batches, order)
    while groups.next():
        yield groups.rows()


@dataclass(frozen=True, slots=True)
class GroupRun:
    """Whole groups, one behind the other. ``starts``: where each begins in ``rows``; the first is 0."""

    rows: pa.RecordBatch | pa.Table
    starts: list[int]


def group_runs(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[GroupRun]:
    """The groups of a stream in key order: those that lie in one batch together, others alone.

    As `group_tables`, and like it holds the group that is being collected beside a batch.
    """
    held: list[pa.RecordBatch] = []  # of the group that may go on
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
    """The groups of a sorted stream, one after the other. Holds one batch of it, with its keys."""

    __slots__ = ("_number", "_part", "_parts")

    def __init__(self, batches: Iterator[pa.RecordBatch], order: RowOrder) -> None:
        self._parts = _parts(batches, order)
        self._part: _Part | None = None  # read, but not taken: of this group, or of the next one
        self._number = -1

    def next(self) -> bool:
        """Go to the next group, past what was not taken of this one. False at the end of the stream."""
        part = self._ahead()
        while part is not None and part.group == self._number:
            self._part = None
            part = self._ahead()
        self._number += 1  # also at the end: no iterator goes on
        return part is not None

    def key(self) -> KeyRow:
        """The key of a group of which nothing was taken yet."""
        assert self._part is not None
        return self._part.ranks.key(self._part.row)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The group's rows that were not taken yet. At its end when `next` is called."""
        number = self._number
        while number == self._number:
            part = self._ahead()
            if part is None or part.group != number:
                return
            rows, self._part = part.rows, None
            del part
            yield rows
            del rows  # not to be held while the next batch is read

    def _ahead(self) -> _Part | None:
        if self._part is None:
            self._part = next(self._parts, None)
        return self._part


@dataclass(slots=True)
class _Part:
    """The rows of a group that are in one batch. ``row``: the first of them, in ``ranks``."""

    rows: pa.RecordBatch
    group: int
    ranks: Ranks
    row: int


def _parts(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[_Part]:
    """The stream cut where the key changes; groups are counted from 0."""
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
    """A table of these batches, which are then held by nothing else."""
    table = pa.Table.from_batches(held)
    held.clear()
    return table
