"""Aggregation after a shuffle: turns states sorted by key into one row per group, as each group completes.

Only the state of the group that may continue is held, however many rows the group has. `first_rows` likewise
keeps the first row of each group, and remembers only the last key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sortshuffle.compute.aggregate.aggregation import Aggregation, Batches, combined_states
from sortshuffle.compute.aggregate.columns import Bools, batch_of, to_batch
from sortshuffle.compute.aggregate.segments import Segments, in_order
from sortshuffle.payload.ordering import KeyRow, RowOrder

OUTPUT_ROWS = 65_536  # states processed at a time: so many that the fixed costs of a batch do not matter


def results(
    states: Batches, aggregation: Aggregation, schema: pa.Schema, rows_at_a_time: int = OUTPUT_ROWS
) -> Batches:
    """Yield one row per group, in key order: its keys and the calls' results, in the columns of ``schema``.
    The keys are left out if ``schema`` has only the results. ``states``: sorted by the aggregation's order,
    with all states of each group."""
    groups = _Groups(aggregation, schema)
    for batch in join_small(states, rows_at_a_time):
        yield from groups.completed_by(batch)
    yield from groups.last()


class _Groups:
    """Combines sorted states into groups. Holds the state of the last group, which may continue."""

    def __init__(self, aggregation: Aggregation, schema: pa.Schema) -> None:
        self._aggregation = aggregation
        self._schema = schema
        self._keys = len(aggregation.keys)
        self._functions = [call.function for call in aggregation.calls]
        self._by_key = RowOrder(range(self._keys))
        self._open: pa.RecordBatch | None = None
        self._last: tuple[KeyRow, KeyRow] = ((), ())  # the last row's key, and all its values in the order

    def completed_by(self, batch: pa.RecordBatch) -> Batches:
        """Yield the results of the groups that are complete because of this batch."""
        by_key = self._by_key.ranks(batch)
        segments = in_order(by_key)
        goes_on = self._open is not None and by_key.key(0) == self._last[0]
        group_states = self._states(batch, segments, goes_on)
        self._last = by_key.key(batch.num_rows - 1), self._last[1]
        if self._open is not None:
            group_states = self._with_open(group_states, goes_on)
        complete = group_states.num_rows - 1
        self._open = group_states.take(pa.array([complete]))
        if complete:
            yield self._finished(group_states.slice(0, complete))

    def last(self) -> Batches:
        """Yield the result of the last group. Without keys there is always one group."""
        if self._open is None and not self._keys:
            kinds = [kind for function in self._functions for kind in function.states]
            self._open = batch_of([pa.nulls(1, kind) for kind in kinds], 1)
        if self._open is not None:
            yield self._finished(self._open)

    def _with_open(self, groups: pa.RecordBatch, goes_on: bool) -> pa.RecordBatch:
        """Put the open group in front of ``groups``, or combine it with the first one if that ``goes_on``."""
        assert self._open is not None
        if not goes_on:
            return pa.concat_batches([self._open, groups])
        both = pa.concat_batches([self._open, groups.slice(0, 1)])
        states = combined_states(self._functions, both.columns[self._keys :], _ONE_GROUP_OF_TWO)
        keys = [column.slice(0, 1) for column in both.columns[: self._keys]]
        return pa.concat_batches([batch_of([*keys, *states], 1), groups.slice(1)])

    def _states(self, batch: pa.RecordBatch, segments: Segments, goes_on: bool) -> pa.RecordBatch:
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


_ONE_GROUP_OF_TWO = Segments(np.zeros(1, np.int64), 2)


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


def join_small(batches: Batches, rows: int) -> Batches:
    """Yield the same rows in batches of at least ``rows / 2`` rows, except the last. No batch is empty."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        count += batch.num_rows
        if 2 * count >= rows:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, count = [], 0
    if held:
        yield pa.concat_batches(held)
