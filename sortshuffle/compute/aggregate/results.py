"""Aggregation after a shuffle: turns states sorted by key into one row per group, as each group completes.

Only the state of the group that may continue is held, however many rows the group has. `first_rows` likewise
keeps the first row of each group, and remembers only the last key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from sortshuffle.compute.aggregate.aggregation import Aggregation, Batches, combined_states
from sortshuffle.compute.aggregate.columns import Bools, batch_of, to_batch
from sortshuffle.compute.aggregate.functions import Function
from sortshuffle.compute.aggregate.segments import Segments, in_order
from sortshuffle.errors import ResultOverflowError
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.ordering import KeyRow, RowOrder

OUTPUT_ROWS = 65_536  # states processed at a time: so many that the fixed costs of a batch do not matter
# Bytes processed at a time. Half of them, however few rows that is, are worth a call (`payload.arrow`)
OUTPUT_BYTES = 8 * MIB
# Buffers of up to so many bytes count whole, even if the batch uses only a part of them. To count that part,
# `nbytes` takes 10 us
SMALL_BYTES = 128 * KIB
PART_BYTES = KIB  # about what a batch of one row takes beside its values


def results(
    states: Batches, aggregation: Aggregation, schema: pa.Schema, rows_at_a_time: int = OUTPUT_ROWS
) -> Batches:
    """Yield one row per group, in key order: its keys and the calls' results, in the columns of ``schema``.
    The keys are left out if ``schema`` has only the results. ``states``: sorted by the aggregation's order,
    with all states of each group. Raises `ResultOverflowError` if no column can hold the state of a group."""
    groups = _Groups(aggregation, schema)
    for batch in join_small(states, rows_at_a_time):
        yield from groups.completed_by(batch)
        del batch  # or it would stay alive while the next one is joined
    yield from groups.last()


class _Groups:
    """Combines sorted states into groups. Holds the state of the last group, which may continue."""

    def __init__(self, aggregation: Aggregation, schema: pa.Schema) -> None:
        self._aggregation = aggregation
        self._schema = schema
        self._keys = len(aggregation.keys)
        self._functions = [call.function for call in aggregation.calls]
        self._by_key = RowOrder(range(self._keys))
        self._open = _OpenGroup(self._functions, self._keys)
        self._last: tuple[KeyRow, KeyRow] = ((), ())  # the last row's key, and all its values in the order

    def completed_by(self, batch: pa.RecordBatch) -> Batches:
        """Yield the results of the groups that are complete because of this batch."""
        by_key = self._by_key.ranks(batch)
        segments = in_order(by_key)
        goes_on = bool(self._open) and by_key.key(0) == self._last[0]
        groups = self._states(batch, segments)
        self._last = by_key.key(batch.num_rows - 1), self._last[1]
        if goes_on:
            self._open.add(groups.slice(0, 1))
            groups = groups.slice(1)
            if not groups.num_rows:
                return
        complete = [self._open.take()] if self._open else []
        last = groups.num_rows - 1
        self._open.add(groups.slice(last))
        complete.append(groups.slice(0, last))
        for each in join_small(complete, OUTPUT_ROWS):
            yield self._finished(each)

    def last(self) -> Batches:
        """Yield the result of the last group. Without keys there is always one group."""
        if self._open:
            yield self._finished(self._open.take())
        elif not self._keys:
            kinds = [kind for function in self._functions for kind in function.states]
            yield self._finished(batch_of([pa.nulls(1, kind) for kind in kinds], 1))

    def _states(self, batch: pa.RecordBatch, segments: Segments) -> pa.RecordBatch:
        aggregation = self._aggregation
        keys = [batch.column(at).take(pa.array(segments.starts)) for at in range(self._keys)]
        if not aggregation.sets:
            states = combined_states(self._functions, batch.columns[self._keys :], segments)
            return batch_of([*keys, *states], segments.count)
        seen_first = self._seen_first(batch)
        tags = np.asarray(batch.column(self._keys))
        at = len(aggregation.order.keys)
        place = self._keys + 1
        values: dict[tuple[int, ...], list[pa.Array]] = {}
        for tag, members in enumerate(aggregation.sets, 1):
            chosen = pa.array(seen_first & (tags == tag))
            values[members] = [
                _masked(batch.column(place + number), chosen) for number in range(len(members))
            ]
            place += len(members)
        all_states: list[pa.Array] = []
        for call in aggregation.calls:
            if call.distinct:
                all_states += call.function.of_rows(values[call.columns], segments)
            else:
                width = len(call.function.states)
                all_states += call.function.combined(batch.columns[at : at + width], segments)
                at += width
        return batch_of([*keys, *all_states], segments.count)

    def _seen_first(self, batch: pa.RecordBatch) -> Bools:
        """Return in which rows the key, tag or values differ from those of the previous row."""
        ranks = self._aggregation.order.ranks(batch)
        first = np.zeros(batch.num_rows, np.bool_)
        first[ranks.group_starts()] = True
        first[0] = ranks.key(0) != self._last[1]
        self._last = self._last[0], ranks.key(batch.num_rows - 1)
        return first

    def _finished(self, groups: pa.RecordBatch) -> pa.RecordBatch:
        columns = groups.columns[: self._keys]
        at = self._keys
        for function in self._functions:
            width = len(function.states)
            columns.append(function.finished(groups.columns[at : at + width]))
            at += width
        wanted = columns[len(columns) - len(self._schema) :]
        return to_batch(wanted, groups.num_rows, self._schema)


class _OpenGroup:
    """The state of the group that may continue, in parts of one row each: its keys and states.

    Parts are combined when their bytes have doubled. So a long list is not copied for every batch that adds
    to it, and a state of fixed size is one part.
    """

    def __init__(self, functions: Sequence[Function], keys: int) -> None:
        self._functions = functions
        self._keys = keys
        self._parts: list[pa.RecordBatch] = []
        self._size = 0  # bytes of the parts
        self._combine_at = 0  # bytes

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, part: pa.RecordBatch) -> None:
        """Add a row. It is always copied: even if it is its whole batch, it may point into a larger message
        of a map output, and would keep that alive. A `take` would need memory for the position of each
        element of a list."""
        self._parts.append(pa.concat_batches([part]))
        self._size += part.nbytes + PART_BYTES
        if self._size >= self._combine_at:
            self._combine()

    def take(self) -> pa.RecordBatch:
        """Return the state as one row, and hold none."""
        self._combine()
        (state,) = self._parts
        self._parts, self._size, self._combine_at = [], 0, 0
        return state

    def _combine(self) -> None:
        if len(self._parts) > 1:
            keys = self._parts[0].columns[: self._keys]
            together = self._together()
            segments = Segments(np.zeros(1, np.int64), together.num_rows)  # one group
            states = combined_states(self._functions, together.columns[self._keys :], segments)
            self._parts = [batch_of([*keys, *states], 1)]
        self._size = self._parts[0].nbytes + PART_BYTES
        self._combine_at = 2 * self._size

    def _together(self) -> pa.RecordBatch:
        try:
            return pa.concat_batches(self._parts)
        except pa.ArrowInvalid as error:  # an offset of 32 bits has overflowed
            raise ResultOverflowError(
                "what agg() holds of one group does not fit into a column, which holds 2**31 - 1 values or"
                " bytes of text: collect fewer values, or read the group in parts, in a function for"
                " applyInArrow() that takes an iterator of batches"
            ) from error


def _masked(column: pa.Array, chosen: pa.Array) -> pa.Array:
    """Return the column with nulls in the rows that are not chosen."""
    rows = np.arange(len(column))
    return column.take(pa.array(rows, mask=~np.asarray(chosen)))


def first_rows(rows: Batches, keys: Sequence[int], rows_at_a_time: int = OUTPUT_ROWS) -> Batches:
    """Yield the first row for each combination of values in the columns ``keys``, in that order."""
    order = RowOrder(keys)
    last: KeyRow | None = None
    for batch in join_small(rows, rows_at_a_time):
        ranks = order.ranks(batch)
        starts = ranks.group_starts()
        if ranks.key(0) == last:
            starts = starts[1:]
        last = ranks.key(batch.num_rows - 1)
        if len(starts) == batch.num_rows:
            yield batch
        elif len(starts):
            yield batch.take(pa.array(starts))
        del batch  # or it would stay alive while the next one is joined


def join_small(batches: Iterable[pa.RecordBatch], rows: int) -> Batches:
    """Yield the same rows in batches of at least half of ``rows`` rows or of `OUTPUT_BYTES`, as `_size_of`
    counts bytes, except the last and those that precede a large one. Only single batches have more than
    `OUTPUT_BYTES`; none is empty."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        added = _size_of(batch)
        if held and size + added > OUTPUT_BYTES:
            yield _joined(held)
            count = size = 0
        held.append(batch)
        count += batch.num_rows
        size += added
        del batch  # or it would stay alive while its rows are delivered
        if 2 * count >= rows or 2 * size >= OUTPUT_BYTES:
            yield _joined(held)
            count = size = 0
    if held:
        yield _joined(held)


def _size_of(batch: pa.RecordBatch) -> int:
    """Return the bytes that the batch takes in a concatenation; for a slice of a small batch perhaps more.
    A buffer that two columns share counts twice: it will be copied twice."""
    size = sum(column.get_total_buffer_size() for column in batch.columns)
    return size if size <= SMALL_BYTES else int(batch.nbytes)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the batches as one, and clear the list, so that only the result keeps the rows alive."""
    batch = held[0] if len(held) == 1 else pa.concat_batches(held)
    held.clear()
    return batch
