"""Joining two streams of batches by equal keys: one of them as a table in memory, the other batch by batch.

    build side --> BuildTable (its rows and a `KeyTable` of them)
    probe side --batch--> groups found --> pairs of row numbers, a slice at a time --> take --> batches

Only keys go through the look-up; the other columns, of any type, are taken by row numbers.

Which kinds emit what. A row is *matched* if the other side has a row of its key.

=========  =========================  ==============================
kind       pairs                      alone, with nulls beside them
=========  =========================  ==============================
inner      all                        -
left       all                        unmatched left rows
right      all                        unmatched right rows
full       all                        unmatched rows of both
semi       matched left rows once, and nothing of the right
anti       unmatched left rows once, and nothing of the right
=========  =========================  ==============================

Any side can be the build side of any kind: which of its keys were matched is remembered, and its unmatched
rows come last. Rows come in the order of the probe side, those of one of its rows in the order of the build
side, so a join is a function of its two streams.

Pairs come in batches of at most `OUTPUT_ROWS`, which take about `OUTPUT_BYTES` at most, however many rows of
both sides have one key; a single row may be larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import pyarrow as pa

from sortshuffle.compute.join.keys import Bools, Groups, JoinKeyColumns, Keys, KeyTable
from sortshuffle.compute.row_sizes import row_sizes
from sortshuffle.payload.ordering import Int64s

OUTPUT_ROWS = 32_768  # about a batch of an exchange, and it stays in cache
OUTPUT_BYTES = 16 << 20  # reasoned: some of these are alive at a time, in a task of 256 MiB


class JoinKind(Enum):
    """What a join emits. The value is its name for people."""

    INNER = "inner"
    LEFT = "left outer"
    RIGHT = "right outer"
    FULL = "full outer"
    SEMI = "left semi"
    ANTI = "left anti"

    @property
    def keeps_left(self) -> bool:
        """Whether left rows without a partner are emitted beside nulls."""
        return self in (JoinKind.LEFT, JoinKind.FULL)

    @property
    def keeps_right(self) -> bool:
        return self in (JoinKind.RIGHT, JoinKind.FULL)

    @property
    def repeats_left(self) -> bool:
        """Whether the right rows may be joined in several parts, each with all left rows: then no left row
        may come out for want of a partner, nor only once."""
        return self in (JoinKind.INNER, JoinKind.RIGHT)

    @property
    def repeats_right(self) -> bool:
        return not self.keeps_right

    @property
    def is_existence(self) -> bool:
        """Whether only left rows come out, each at most once."""
        return self in (JoinKind.SEMI, JoinKind.ANTI)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """Where a column of the result is from: a column of one side, or of ``left`` with ``right`` for the rows
    that have no left one."""

    left: int | None = None
    right: int | None = None


@dataclass(frozen=True)
class JoinSpec:
    """What is joined to what. ``schema``: of the result, one field for each of ``output``."""

    kind: JoinKind
    keys: JoinKeyColumns
    output: tuple[OutputColumn, ...]
    schema: pa.Schema

    def keys_of(self, batch: pa.RecordBatch, *, left: bool) -> Keys:
        """The keys of a batch of one side."""
        columns = self.keys.left if left else self.keys.right
        return Keys.of(batch, columns, self.keys.null_safe)

    def keeps(self, *, left: bool) -> bool:
        """Whether rows of that side come out beside nulls if they have no partner."""
        return self.kind.keeps_left if left else self.kind.keeps_right

    @cached_property
    def coalesces(self) -> bool:
        """Whether a column of the result is from either side."""
        return any(each.left is not None and each.right is not None for each in self.output)


class BuildTable:
    """One side of a join, in memory. ``is_left``: which."""

    def __init__(self, spec: JoinSpec, rows: pa.RecordBatch, *, is_left: bool) -> None:
        self.rows = rows
        self.is_left = is_left
        self.table = KeyTable(spec.keys_of(rows, left=is_left))

    @cached_property
    def sizes(self) -> Int64s:
        """Bytes of each row."""
        return row_sizes(self.rows)

    @cached_property
    def largest_row(self) -> int:
        return int(self.sizes.max(initial=0))

    def without_match(self, matched: Bools) -> Int64s:
        """The rows that have no partner, ascending. ``matched``: for each group whether it has one."""
        return np.flatnonzero(~self._in_groups(matched))

    def with_match(self, matched: Bools) -> Int64s:
        """The rows that have a partner, ascending."""
        return np.flatnonzero(self._in_groups(matched))

    def _in_groups(self, wanted: Bools) -> Bools:
        chosen = np.zeros(self.rows.num_rows, np.bool_)
        chosen[self.table.rows] = np.repeat(wanted, np.diff(self.table.group_starts))
        return chosen


def probe(spec: JoinSpec, build: BuildTable, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The whole join of the build side with the other one, whose rows are ``batches``."""
    return _Probe(spec, build).run(batches)


def alone(spec: JoinSpec, batches: Iterable[pa.RecordBatch], *, left: bool) -> Iterator[pa.RecordBatch]:
    """What becomes of the rows of one side where the other has none: all emitted, or none."""
    emitted = spec.keeps(left=left) or (left and spec.kind is JoinKind.ANTI)
    for batch in batches:
        if emitted and batch.num_rows:
            yield _joined(spec, *_sides(left, _Rows(batch), None))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one side: of a batch those with these numbers, in this order; None for all. A null number
    stands for no row."""

    batch: pa.RecordBatch
    numbers: pa.Array | None = None

    def column(self, position: int) -> pa.Array:
        column = self.batch.column(position)
        return column if self.numbers is None else column.take(self.numbers)

    @property
    def count(self) -> int:
        return self.batch.num_rows if self.numbers is None else len(self.numbers)


class _Probe:
    """A join in progress: what of the build side was matched so far."""

    def __init__(self, spec: JoinSpec, build: BuildTable) -> None:
        self._spec = spec
        self._build = build
        self._build_is_left = build.is_left
        kind = spec.kind
        self._keeps_probe = spec.keeps(left=not build.is_left)
        # a column from either side is its left one where there is a left row, so those come apart
        self._alone_apart = self._keeps_probe and spec.coalesces
        self._alone_between = self._keeps_probe and not spec.coalesces
        self._remembers = spec.keeps(left=build.is_left) or (kind.is_existence and build.is_left)
        self._matched = np.zeros(build.table.groups, np.bool_)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            keys = self._spec.keys_of(batch, left=not self._build_is_left)
            groups = self._build.table.find(keys)
            if self._remembers:
                self._matched[groups[groups >= 0]] = True
            if not self._spec.kind.is_existence:
                yield from self._pairs(batch, groups)
            elif not self._build_is_left:
                wanted = (groups >= 0) == (self._spec.kind is JoinKind.SEMI)
                yield from self._probed(batch, np.flatnonzero(wanted))
        if self._remembers:
            yield from self._left_over()

    def _left_over(self) -> Iterator[pa.RecordBatch]:
        """Rows of the build side, when all of the other has been seen."""
        build = self._build
        if self._spec.kind is JoinKind.SEMI:
            rows = build.with_match(self._matched)
        else:
            rows = build.without_match(self._matched)
        for start, stop in _cut(build.sizes[rows]):
            part = _Rows(build.rows, pa.array(rows[start:stop]))
            yield _joined(self._spec, *_sides(build.is_left, part, None))

    def _probed(self, batch: pa.RecordBatch, rows: Int64s) -> Iterator[pa.RecordBatch]:
        """These rows of the probe side without partners."""
        if len(rows):
            numbers = None if len(rows) == batch.num_rows else pa.array(rows)
            yield _joined(self._spec, *_sides(not self._build_is_left, _Rows(batch, numbers), None))

    def _pairs(self, batch: pa.RecordBatch, groups: Groups) -> Iterator[pa.RecordBatch]:
        """Every row of the batch with each of its partners."""
        if not self._build.table.groups:
            if self._keeps_probe:
                yield from self._probed(batch, np.arange(batch.num_rows))
            return
        for mine, its in self._row_numbers(batch, groups):
            probed = _Rows(batch, None if _is_whole(mine, batch) else pa.array(mine))
            built = _Rows(self._build.rows, its)
            yield _joined(self._spec, *_sides(self._build_is_left, built, probed))
        if self._alone_apart:
            yield from self._probed(batch, np.flatnonzero(groups < 0))

    def _row_numbers(self, batch: pa.RecordBatch, groups: Groups) -> Iterator[tuple[Int64s, pa.Array]]:
        """Numbers of rows that belong together, of the probe side and of the build side (null for none), in
        slices of which a batch may be made."""
        sizes = _PairSizes(batch, self._build)
        for mine, its, has in self._slices_of_pairs(groups):
            for start, stop in sizes.slices(mine, its, has):
                mask = None if has is None else ~has[start:stop]
                yield mine[start:stop], pa.array(its[start:stop], mask=mask)

    def _slices_of_pairs(self, groups: Groups) -> Iterator[tuple[Int64s, Int64s, Bools | None]]:
        """At most `OUTPUT_ROWS` pairs at a time: row numbers of the probe side, of the build side, and which
        of these are (None: all)."""
        table = self._build.table
        found = groups >= 0
        all_found = bool(found.all())
        if table.is_unique:
            rows = np.arange(len(groups)) if all_found or self._alone_between else np.flatnonzero(found)
            for start in range(0, len(rows), OUTPUT_ROWS):
                mine = rows[start : start + OUTPUT_ROWS]
                has = found[mine] if self._alone_between and not all_found else None
                yield mine, table.rows[groups[mine]], has
            return
        # a row that is alone counts as a pair, too, with any row that is then not looked at
        counts = np.where(found, np.diff(table.group_starts)[groups], int(self._alone_between))
        firsts = np.where(found, table.group_starts[groups], 0)
        ends = np.cumsum(counts)
        begins = ends - counts
        total = int(ends[-1])
        for start in range(0, total, OUTPUT_ROWS):
            stop = min(start + OUTPUT_ROWS, total)
            first = int(np.searchsorted(ends, start, "right"))
            last = int(np.searchsorted(ends, stop, "left"))
            here = np.s_[first : last + 1]
            repeated = np.minimum(ends[here], stop) - np.maximum(begins[here], start)
            mine = np.repeat(np.arange(first, last + 1), repeated)
            within = np.arange(start, stop) - begins[mine]
            has = found[mine] if self._alone_between and not all_found else None
            yield mine, table.rows[firsts[mine] + within], has


class _PairSizes:
    """How much memory pairs take, of a batch of the probe side with rows of the build side."""

    def __init__(self, batch: pa.RecordBatch, build: BuildTable) -> None:
        self._batch = batch
        self._build = build

    def slices(self, mine: Int64s, its: Int64s, has: Bools | None) -> Iterator[tuple[int, int]]:
        """Where to cut pairs so that none of the parts takes more than `OUTPUT_BYTES`, one pair aside."""
        mine_at_most = self._batch.nbytes
        if not self._build.table.is_unique:
            mine_at_most = len(mine) * self._largest_row
        if mine_at_most + len(mine) * self._build.largest_row <= OUTPUT_BYTES:
            return iter(((0, len(mine)),))
        its_sizes = self._build.sizes[its]
        return _cut(self._sizes[mine] + (its_sizes if has is None else its_sizes * has))

    @cached_property
    def _sizes(self) -> Int64s:
        return row_sizes(self._batch)

    @cached_property
    def _largest_row(self) -> int:
        return int(self._sizes.max(initial=0))


def _cut(sizes: Int64s) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about `OUTPUT_BYTES` at most, and of `OUTPUT_ROWS`."""
    up_to = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(up_to[start - 1]) if start else 0
        stop = int(np.searchsorted(up_to, before + OUTPUT_BYTES, "right"))
        stop = min(max(stop, start + 1), start + OUTPUT_ROWS)
        yield start, stop
        start = stop


def _is_whole(rows: Int64s, batch: pa.RecordBatch) -> bool:
    """Whether ascending row numbers are all the rows of a batch, each once."""
    count = batch.num_rows
    return len(rows) == count and (count == 0 or bool((rows == np.arange(count)).all()))


def _sides(left_first: bool, one: _Rows, other: _Rows | None) -> tuple[_Rows | None, _Rows | None]:
    """Left and right, of two sides of which the first is the left one or not."""
    return (one, other) if left_first else (other, one)


def _joined(spec: JoinSpec, left: _Rows | None, right: _Rows | None) -> pa.RecordBatch:
    """Rows of the result: those of one side beside those of the other, or beside nulls."""
    some = left or right
    assert some is not None
    columns = []
    for source, field in zip(spec.output, spec.schema, strict=True):
        if left is not None and source.left is not None:
            column = left.column(source.left)
        elif right is not None and source.right is not None:
            column = right.column(source.right)
        else:
            column = pa.nulls(some.count, field.type)
        # what is from either side may differ in whether fields of structs can be null
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=spec.schema)
