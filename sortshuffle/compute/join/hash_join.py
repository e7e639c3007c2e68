"""Joins two streams of batches by equal keys: one side as a table in memory, the other batch by batch.

    build side --> BuildTable (its rows and a `KeyTable` of them)
    probe side --batch--> groups found --> pairs of row numbers, a slice at a time --> take --> batches

Only keys are looked up; the other columns, of any type, are taken by row number.

Output of each kind. A row is *matched* if the other side has a row with its key.

=========  =========================  ==============================
kind       pairs                      single rows, beside nulls
=========  =========================  ==============================
inner      all                        -
left       all                        unmatched left rows
right      all                        unmatched right rows
full       all                        unmatched rows of both sides
semi       matched left rows, each once, without right columns
anti       unmatched left rows, each once, without right columns
=========  =========================  ==============================

Either side can be the build side for every kind: the join remembers which build keys were matched, and emits
the unmatched build rows last. Rows come in the order of the probe side, and the matches of one probe row in
the order of the build side, so the result depends only on the two streams.

Pairs are emitted in batches of at most `OUTPUT_ROWS` rows and about `OUTPUT_BYTES`, however many rows of both
sides have one key; a single row may be larger.
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

OUTPUT_ROWS = 32_768  # about a batch of an exchange, and small enough to stay in cache
OUTPUT_BYTES = 16 << 20  # reasoned, not measured: some such batches are alive at a time, in a task of 256 MiB


class JoinKind(Enum):
    """Which rows a join emits. The value is the kind's name in texts for users."""

    INNER = "inner"
    LEFT = "left outer"
    RIGHT = "right outer"
    FULL = "full outer"
    SEMI = "left semi"
    ANTI = "left anti"

    @property
    def keeps_left(self) -> bool:
        """Whether left rows without a match are emitted beside nulls."""
        return self in (JoinKind.LEFT, JoinKind.FULL)

    @property
    def keeps_right(self) -> bool:
        return self in (JoinKind.RIGHT, JoinKind.FULL)

    @property
    def repeats_left(self) -> bool:
        """Whether the right rows may be joined in several parts, each with all left rows. That is wrong for
        kinds that emit a left row because it has no match, or only once."""
        return self in (JoinKind.INNER, JoinKind.RIGHT)

    @property
    def repeats_right(self) -> bool:
        return not self.keeps_right

    @property
    def is_existence(self) -> bool:
        """Whether only left rows are emitted, each at most once."""
        return self in (JoinKind.SEMI, JoinKind.ANTI)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """The source of a column of the result: a column of one side, or column ``left`` and, for rows without a
    left row, column ``right``."""

    left: int | None = None
    right: int | None = None


@dataclass(frozen=True)
class JoinSpec:
    """Specifies a join. ``schema``: the schema of the result, one field for each of ``output``."""

    kind: JoinKind
    keys: JoinKeyColumns
    output: tuple[OutputColumn, ...]
    schema: pa.Schema

    def keys_of(self, batch: pa.RecordBatch, *, left: bool) -> Keys:
        """Return the keys of a batch of one side."""
        return Keys.of(batch, self.keys.of(left=left), self.keys.null_safe)

    def keeps(self, *, left: bool) -> bool:
        """Return whether rows of that side are emitted beside nulls if they have no match."""
        return self.kind.keeps_left if left else self.kind.keeps_right

    @cached_property
    def coalesces(self) -> bool:
        """Whether any column of the result takes values from both sides."""
        return any(each.left is not None and each.right is not None for each in self.output)


class BuildTable:
    """The side of a join that is in memory. ``is_left``: whether it is the left side."""

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
        """Return the rows without a match, ascending. ``matched``: for each group whether it has a match."""
        return np.flatnonzero(~self._in_groups(matched))

    def with_match(self, matched: Bools) -> Int64s:
        """Return the rows with a match, ascending."""
        return np.flatnonzero(self._in_groups(matched))

    def _in_groups(self, wanted: Bools) -> Bools:
        chosen = np.zeros(self.rows.num_rows, np.bool_)
        chosen[self.table.rows] = np.repeat(wanted, np.diff(self.table.group_starts))
        return chosen


def probe(spec: JoinSpec, build: BuildTable, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the build side with the other side, whose rows are ``batches``."""
    return _Probe(spec, build).run(batches)


def emit_unmatched(
    spec: JoinSpec, batches: Iterable[pa.RecordBatch], *, left: bool
) -> Iterator[pa.RecordBatch]:
    """Emit all rows of one side, or none, for a join whose other side has no matches."""
    emitted = spec.keeps(left=left) or (left and spec.kind is JoinKind.ANTI)
    for batch in batches:
        if emitted and batch.num_rows:
            yield _joined(spec, *_sides(left, _Rows(batch), None))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one side. ``numbers``: of rows in ``batch``, or null for a row of nulls; None for all rows."""

    batch: pa.RecordBatch
    numbers: pa.Array | None = None

    def column(self, position: int) -> pa.Array:
        column = self.batch.column(position)
        return column if self.numbers is None else column.take(self.numbers)

    @property
    def count(self) -> int:
        return self.batch.num_rows if self.numbers is None else len(self.numbers)


class _Probe:
    """A join in progress. Remembers which groups of the build side were matched so far."""

    def __init__(self, spec: JoinSpec, build: BuildTable) -> None:
        self._spec = spec
        self._build = build
        self._build_is_left = build.is_left
        kind = spec.kind
        self._keeps_probe = spec.keeps(left=not build.is_left)
        # A column that takes values from both sides takes them from the left in each batch that has left
        # rows. So unmatched probe rows are emitted in batches of their own
        self._unmatched_apart = self._keeps_probe and spec.coalesces
        self._unmatched_in_place = self._keeps_probe and not spec.coalesces
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
                yield from self._probe_rows(batch, np.flatnonzero(wanted))
        if self._remembers:
            yield from self._build_rows()

    def _build_rows(self) -> Iterator[pa.RecordBatch]:
        """Emit the build rows that come last: the matched ones for a semi join, else the unmatched ones."""
        build = self._build
        if self._spec.kind is JoinKind.SEMI:
            rows = build.with_match(self._matched)
        else:
            rows = build.without_match(self._matched)
        for start, stop in _cut(build.sizes[rows]):
            part = _Rows(build.rows, pa.array(rows[start:stop]))
            yield _joined(self._spec, *_sides(build.is_left, part, None))

    def _probe_rows(self, batch: pa.RecordBatch, rows: Int64s) -> Iterator[pa.RecordBatch]:
        """Emit rows of the probe side without build rows."""
        if len(rows):
            numbers = None if len(rows) == batch.num_rows else pa.array(rows)
            yield _joined(self._spec, *_sides(not self._build_is_left, _Rows(batch, numbers), None))

    def _pairs(self, batch: pa.RecordBatch, groups: Groups) -> Iterator[pa.RecordBatch]:
        """Emit each row of the batch with each of its matches."""
        if not self._build.table.groups:
            if self._keeps_probe:
                yield from self._probe_rows(batch, np.arange(batch.num_rows))
            return
        for probe_at, build_at in self._row_numbers(batch, groups):
            probed = _Rows(batch, None if _is_whole(probe_at, batch) else pa.array(probe_at))
            built = _Rows(self._build.rows, build_at)
            yield _joined(self._spec, *_sides(self._build_is_left, built, probed))
        if self._unmatched_apart:
            yield from self._probe_rows(batch, np.flatnonzero(groups < 0))

    def _row_numbers(self, batch: pa.RecordBatch, groups: Groups) -> Iterator[tuple[Int64s, pa.Array]]:
        """Yield probe and build row numbers of pairs (null for no match), in slices of one output batch."""
        sizes = _PairSizes(batch, self._build)
        for probe_at, build_at, matched in self._slices_of_pairs(groups):
            for start, stop in sizes.slices(probe_at, build_at, matched):
                mask = None if matched is None else ~matched[start:stop]
                yield probe_at[start:stop], pa.array(build_at[start:stop], mask=mask)

    def _slices_of_pairs(self, groups: Groups) -> Iterator[tuple[Int64s, Int64s, Bools | None]]:
        """Yield at most `OUTPUT_ROWS` pairs at a time: the row numbers of the probe side and of the build
        side, and which pairs have a build row (None: all)."""
        table = self._build.table
        found = groups >= 0
        all_found = bool(found.all())
        if table.is_unique:
            rows = np.arange(len(groups)) if all_found or self._unmatched_in_place else np.flatnonzero(found)
            for start in range(0, len(rows), OUTPUT_ROWS):
                probe_at = rows[start : start + OUTPUT_ROWS]
                matched = found[probe_at] if self._unmatched_in_place and not all_found else None
                yield probe_at, table.rows[groups[probe_at]], matched
            return
        # a row without a match counts as one pair, with an arbitrary build row that is masked later
        counts = np.where(found, np.diff(table.group_starts)[groups], int(self._unmatched_in_place))
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
            probe_at = np.repeat(np.arange(first, last + 1), repeated)
            within = np.arange(start, stop) - begins[probe_at]
            matched = found[probe_at] if self._unmatched_in_place and not all_found else None
            yield probe_at, table.rows[firsts[probe_at] + within], matched


class _PairSizes:
    """Computes the memory of pairs of a probe batch's rows with build rows."""

    def __init__(self, batch: pa.RecordBatch, build: BuildTable) -> None:
        self._batch = batch
        self._build = build

    def slices(self, probe_at: Int64s, build_at: Int64s, matched: Bools | None) -> Iterator[tuple[int, int]]:
        """Return where to cut pairs so that no part takes more than `OUTPUT_BYTES`, unless it is one pair."""
        most_of_probe = self._batch.nbytes
        if not self._build.table.is_unique:
            most_of_probe = len(probe_at) * self._largest_row
        if most_of_probe + len(probe_at) * self._build.largest_row <= OUTPUT_BYTES:
            return iter(((0, len(probe_at)),))
        build_sizes = self._build.sizes[build_at]
        return _cut(self._sizes[probe_at] + (build_sizes if matched is None else build_sizes * matched))

    @cached_property
    def _sizes(self) -> Int64s:
        return row_sizes(self._batch)

    @cached_property
    def _largest_row(self) -> int:
        return int(self._sizes.max(initial=0))


def _cut(sizes: Int64s) -> Iterator[tuple[int, int]]:
    """Yield ranges of at most `OUTPUT_ROWS` rows and `OUTPUT_BYTES`, or of one larger row."""
    up_to = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(up_to[start - 1]) if start else 0
        stop = int(np.searchsorted(up_to, before + OUTPUT_BYTES, "right"))
        stop = min(max(stop, start + 1), start + OUTPUT_ROWS)
        yield start, stop
        start = stop


def _is_whole(rows: Int64s, batch: pa.RecordBatch) -> bool:
    """Return whether ascending row numbers are all the rows of a batch, each once."""
    count = batch.num_rows
    return len(rows) == count and (count == 0 or bool((rows == np.arange(count)).all()))


def _sides(left_first: bool, one: _Rows, other: _Rows | None) -> tuple[_Rows | None, _Rows | None]:
    """Return two sides as (left, right). ``left_first``: whether ``one`` is the left side."""
    return (one, other) if left_first else (other, one)


def _joined(spec: JoinSpec, left: _Rows | None, right: _Rows | None) -> pa.RecordBatch:
    """Make rows of the result: rows of one side beside rows of the other, or beside nulls."""
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
        # the sources of one column may differ in the nullability of struct fields
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=spec.schema)
