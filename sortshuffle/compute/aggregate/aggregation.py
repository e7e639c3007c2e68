"""Aggregation of streams in two passes: before a shuffle rows become states, after it states become results.

    rows --partial--> states --shuffle, sorted by `Aggregation.order`--> states --results--> one row per group

`aggregate.partial` collects rows and yields one state for each key among them, as long as that reduces the
number of rows. `aggregate.results` reads states sorted by key and yields a row for each group as soon as the
group is complete. Neither holds more than its budget, or a batch, however many or large the groups are; only
the list that a group collects (collect_list) must fit. This module has what both passes use: `Aggregation`,
and the `Reducer`s, which make states from rows.

The schema of states: the keys; if there are aggregates of distinct values, a *tag*, and the values of each
*set* (the columns of such an aggregate); the functions' state columns. A row with tag 0 has the states of the
other functions. A row with tag n says that the group has these values of set n; its other columns are null,
which is the state of no rows. Sorting by key, tag and values puts equal values together, and each value is
counted where it first occurs.

Keys and distinct values are normalised as in Spark: 0.0 for -0.0, and a single NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from sortshuffle.compute.aggregate.columns import all_valid, batch_of, has_floats, normalise, to_batch
from sortshuffle.compute.aggregate.functions import Function
from sortshuffle.compute.aggregate.segments import Segments, by_hash
from sortshuffle.payload.ordering import RowOrder

Batches: TypeAlias = Iterator[pa.RecordBatch]

TAG = "tag"


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """A function applied to the columns at positions ``columns``. ``distinct``: to distinct values only."""

    function: Function
    columns: tuple[int, ...]
    distinct: bool = False


@dataclass(frozen=True)
class Aggregation:
    """Computes the results of ``calls`` for each group of rows. ``rows``: the schema of the rows. ``keys``:
    positions of the grouping columns; without keys there is one group, even if there are no rows."""

    rows: pa.Schema
    keys: tuple[int, ...]
    calls: tuple[AggregateCall, ...]

    @cached_property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """The column positions of each aggregate of distinct values, each combination once."""
        return tuple(dict.fromkeys(call.columns for call in self.calls if call.distinct))

    @cached_property
    def plain_calls(self) -> tuple[AggregateCall, ...]:
        return tuple(call for call in self.calls if not call.distinct)

    @cached_property
    def states(self) -> pa.Schema:
        """The schema of states."""
        fields = [self.rows.field(key) for key in self.keys]
        if self.sets:
            fields.append(pa.field(TAG, pa.int32()))
            fields += [self.rows.field(column) for columns in self.sets for column in columns]
        kinds = [kind for call in self.plain_calls for kind in call.function.states]
        fields += [pa.field("state", kind) for kind in kinds]
        return pa.schema(
            [pa.field(name, field.type) for name, field in zip(_unique(fields), fields, strict=True)]
        )

    @cached_property
    def order(self) -> RowOrder:
        """The order of states that `aggregate.results` needs: by key, then by the tag and values of sets."""
        count = sum(map(len, self.sets))
        return RowOrder(range(len(self.keys) + (1 + count if self.sets else 0)))

    def reducers(self) -> list[Reducer]:
        """Return the reducers that make states from rows: one for the plain functions, and one per set."""
        return [PlainStates(self), *(SetValues(self, tag) for tag in range(1, len(self.sets) + 1))]


def _unique(fields: Sequence[pa.Field]) -> list[str]:
    """Return distinct names for the fields, by appending a number to repeated names."""
    names: list[str] = []
    for field in fields:
        name, number = field.name, 1
        while name in names:
            number += 1
            name = f"{field.name} {number}"
        names.append(name)
    return names


# --- rows to states ----------------------------------------------------------------------------------------


class Reducer:
    """Replaces rows by fewer rows that mean the same to a consumer that reads all of them. `select` picks the
    columns and rows that are needed. `group` groups the selected rows; if that does not pay, `lift` converts
    them one by one. `regroup` groups grouped rows again."""

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def lift(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def group(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def regroup(self, grouped: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def to_wire(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """Convert states to the schema in which they are sent."""
        return states


class PlainStates(Reducer):
    """Makes the states of functions that do not aggregate distinct values: rows with tag 0."""

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._keys = len(aggregation.keys)
        columns = dict.fromkeys(column for call in aggregation.plain_calls for column in call.columns)
        self._columns = tuple(columns)
        place = {column: self._keys + at for at, column in enumerate(columns)}
        self._arguments = [tuple(place[each] for each in call.columns) for call in aggregation.plain_calls]
        self._order = RowOrder(range(self._keys))

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        keys = [normalise(rows.column(key)) for key in self._aggregation.keys]
        return batch_of([*keys, *(rows.column(column) for column in self._columns)], rows.num_rows)

    def lift(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        rows = selected.num_rows
        states = [
            state
            for call, arguments in self._calls()
            for state in call.function.lift([selected.column(at) for at in arguments], rows)
        ]
        return batch_of([*selected.columns[: self._keys], *states], rows)

    def group(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        segments = by_hash(self._order.ranks(selected))
        states = [
            state
            for call, arguments in self._calls()
            for state in call.function.of_rows([selected.column(at) for at in arguments], segments)
        ]
        return batch_of([*self._group_keys(selected, segments), *states], segments.count)

    def regroup(self, grouped: pa.RecordBatch) -> pa.RecordBatch:
        segments = by_hash(self._order.ranks(grouped))
        functions = [call.function for call in self._aggregation.plain_calls]
        states = combined_states(functions, grouped.columns[self._keys :], segments)
        return batch_of([*self._group_keys(grouped, segments), *states], segments.count)

    def to_wire(self, states: pa.RecordBatch) -> pa.RecordBatch:
        aggregation = self._aggregation
        if not aggregation.sets:
            return to_batch(states.columns, states.num_rows, aggregation.states)
        at = self._keys
        return _tagged(aggregation, 0, states.num_rows, states.columns[:at], {}, states.columns[at:])

    def _calls(self) -> Iterable[tuple[AggregateCall, tuple[int, ...]]]:
        return zip(self._aggregation.plain_calls, self._arguments, strict=True)

    def _group_keys(self, rows: pa.RecordBatch, segments: Segments) -> list[pa.Array]:
        first = pa.array(segments.first_rows())
        return [rows.column(at).take(first) for at in range(self._keys)]


class FirstRows(Reducer):
    """Keeps the first row for each combination of values in the columns ``keys``, and normalises these."""

    def __init__(self, keys: Sequence[int]) -> None:
        self._order = RowOrder(keys)

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for at in self._order.columns:
            if has_floats(rows.schema.field(at).type):
                rows = rows.set_column(at, rows.schema.field(at), normalise(rows.column(at)))
        return rows

    def lift(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        return selected

    def group(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        first = by_hash(self._order.ranks(selected)).first_rows()
        return selected.take(pa.array(np.sort(first)))

    def regroup(self, grouped: pa.RecordBatch) -> pa.RecordBatch:
        return self.group(grouped)


class SetValues(FirstRows):
    """Keeps the distinct values of a set in each group. Ignores rows in which any of these values is null."""

    def __init__(self, aggregation: Aggregation, tag: int) -> None:
        self._aggregation = aggregation
        self._tag = tag
        self._keys = len(aggregation.keys)
        self._columns = aggregation.sets[tag - 1]
        super().__init__(range(self._keys + len(self._columns)))

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        values = [rows.column(column) for column in self._columns]
        valid = all_valid(values)
        wanted = [*(rows.column(key) for key in self._aggregation.keys), *values]
        selected = batch_of(list(map(normalise, wanted)), rows.num_rows)
        return selected if valid is None else selected.filter(pa.array(valid))

    def to_wire(self, states: pa.RecordBatch) -> pa.RecordBatch:
        values = {self._tag: states.columns[self._keys :]}
        keys = states.columns[: self._keys]
        return _tagged(self._aggregation, self._tag, states.num_rows, keys, values, None)


def _tagged(
    aggregation: Aggregation,
    tag: int,
    rows: int,
    keys: Sequence[pa.Array],
    values: dict[int, Sequence[pa.Array]],
    states: Sequence[pa.Array] | None,
) -> pa.RecordBatch:
    """Make rows of one tag in the schema of states; the columns of other tags are null."""
    kinds = aggregation.states.types
    columns = [*keys, pa.array(np.full(rows, tag, np.int32))]
    for number, members in enumerate(aggregation.sets, 1):
        absent = (pa.nulls(rows, kind) for kind in kinds[len(columns) : len(columns) + len(members)])
        columns += values.get(number) or absent
    columns += (pa.nulls(rows, kind) for kind in kinds[len(columns) :]) if states is None else states
    return to_batch(columns, rows, aggregation.states)


def combined_states(
    functions: Sequence[Function], columns: Sequence[pa.Array], segments: Segments
) -> list[pa.Array]:
    """Combine states by group. Return the state columns of all functions, with one row for each group."""
    result: list[pa.Array] = []
    at = 0
    for function in functions:
        width = len(function.states)
        result += function.combined(columns[at : at + width], segments)
        at += width
    return result
