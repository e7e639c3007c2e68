"""Aggregation of streams in two passes: before a shuffle rows become states, after it states become results.

    rows --partial--> states --shuffle, sorted by `Aggregation.order`--> states --results--> one row per group

`aggregate_partial` gathers rows and gives one state for each key among them, as often as that makes fewer
rows; `aggregate_results` reads states sorted by key and gives a row per group as soon as it is complete.
Neither holds more than its budget, or a batch, however many groups there are and however large they are;
only a group's own list (collect_list) must fit. Here is what they do it with: an `Aggregation`, and the
`Reducer`s that make states of rows.

The schema of states: the keys; where there are aggregates of distinct values a *tag* and for each *set* (the
columns of such an aggregate) its values; the functions' state columns. A row whose tag is 0 has the states of
the other functions; tag n means that the group has these values of set n, and its other columns are null,
which is the state of no rows. Sorted by key, tag and values, equal values come together, and each is counted
where it is first seen.

Keys and distinct values are normalised as Spark does it: 0.0 for -0.0, and one NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from sortshuffle.compute.aggregate.columns import all_valid, batch_of, has_floats, named, normalised
from sortshuffle.compute.aggregate.functions import Function
from sortshuffle.compute.aggregate.segments import Segments, by_hash
from sortshuffle.payload.ordering import RowOrder

Batches: TypeAlias = Iterator[pa.RecordBatch]

TAG = "tag"


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """A function of the columns at these positions of the rows. ``distinct``: of different values only."""

    function: Function
    columns: tuple[int, ...]
    distinct: bool = False


@dataclass(frozen=True)
class Aggregation:
    """What is to be computed of rows of the schema ``rows``: the calls' results for each group. ``keys``: the
    positions of the columns that make the groups; with none all rows are one, even if there are no rows."""

    rows: pa.Schema
    keys: tuple[int, ...]
    calls: tuple[AggregateCall, ...]

    @cached_property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """The columns of which different values are aggregated, each combination once."""
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
        """How states must be sorted before `results`: by key, and by what is needed to tell values apart."""
        count = sum(map(len, self.sets))
        return RowOrder(range(len(self.keys) + (1 + count if self.sets else 0)))

    def reducers(self) -> list[Reducer]:
        """What makes states of rows: of the plain functions, and of each set."""
        return [PlainStates(self), *(SetValues(self, tag) for tag in range(1, len(self.sets) + 1))]


def _unique(fields: Sequence[pa.Field]) -> list[str]:
    """Names of which no two are the same: those of the fields, with a number where they must."""
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
    """Makes fewer rows of rows, which mean the same to whoever reads all that it gives.

    Rows are first `selected`: what is needed of them. Those are `grouped`, or, if that is not worth it,
    `lifted` one by one; what was grouped can be grouped again (`regrouped`).
    """

    def selected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def lifted(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def grouped(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def regrouped(self, grouped: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def given(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """States as they leave, in the schema that is sent."""
        return states


class PlainStates(Reducer):
    """The states of the functions that are not of distinct values: tag 0."""

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._keys = len(aggregation.keys)
        columns = dict.fromkeys(column for call in aggregation.plain_calls for column in call.columns)
        self._columns = tuple(columns)
        place = {column: self._keys + at for at, column in enumerate(columns)}
        self._arguments = [tuple(place[each] for each in call.columns) for call in aggregation.plain_calls]
        self._order = RowOrder(range(self._keys))

    def selected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        keys = [normalised(rows.column(key)) for key in self._aggregation.keys]
        return batch_of([*keys, *(rows.column(column) for column in self._columns)], rows.num_rows)

    def lifted(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        rows = selected.num_rows
        states = [
            state
            for call, arguments in self._calls()
            for state in call.function.lifted([selected.column(at) for at in arguments], rows)
        ]
        return batch_of([*selected.columns[: self._keys], *states], rows)

    def grouped(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        segments = by_hash(self._order.ranks(selected))
        states = [
            state
            for call, arguments in self._calls()
            for state in call.function.of_rows([selected.column(at) for at in arguments], segments)
        ]
        return batch_of([*self._group_keys(selected, segments), *states], segments.count)

    def regrouped(self, grouped: pa.RecordBatch) -> pa.RecordBatch:
        segments = by_hash(self._order.ranks(grouped))
        functions = [call.function for call in self._aggregation.plain_calls]
        states = combined_states(functions, grouped.columns[self._keys :], segments)
        return batch_of([*self._group_keys(grouped, segments), *states], segments.count)

    def given(self, states: pa.RecordBatch) -> pa.RecordBatch:
        aggregation = self._aggregation
        if not aggregation.sets:
            return named(states.columns, states.num_rows, aggregation.states)
        at = self._keys
        return _tagged(aggregation, 0, states.num_rows, states.columns[:at], {}, states.columns[at:])

    def _calls(self) -> Iterable[tuple[AggregateCall, tuple[int, ...]]]:
        return zip(self._aggregation.plain_calls, self._arguments, strict=True)

    def _group_keys(self, rows: pa.RecordBatch, segments: Segments) -> list[pa.Array]:
        first = pa.array(segments.first_rows())
        return [rows.column(at).take(first) for at in range(self._keys)]


class FirstRows(Reducer):
    """The first row for each combination of values in the columns ``keys``, which are normalised."""

    def __init__(self, keys: Sequence[int]) -> None:
        self._order = RowOrder(keys)

    def selected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for at in self._order.columns:
            if has_floats(rows.schema.field(at).type):
                rows = rows.set_column(at, rows.schema.field(at), normalised(rows.column(at)))
        return rows

    def lifted(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        return selected

    def grouped(self, selected: pa.RecordBatch) -> pa.RecordBatch:
        first = by_hash(self._order.ranks(selected)).first_rows()
        return selected.take(pa.array(np.sort(first)))

    def regrouped(self, grouped: pa.RecordBatch) -> pa.RecordBatch:
        return self.grouped(grouped)


class SetValues(FirstRows):
    """The different values of a set in each group; none for rows in which one of them is null."""

    def __init__(self, aggregation: Aggregation, tag: int) -> None:
        self._aggregation = aggregation
        self._tag = tag
        self._keys = len(aggregation.keys)
        self._columns = aggregation.sets[tag - 1]
        super().__init__(range(self._keys + len(self._columns)))

    def selected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        values = [rows.column(column) for column in self._columns]
        valid = all_valid(values)
        wanted = [*(rows.column(key) for key in self._aggregation.keys), *values]
        selected = batch_of(list(map(normalised, wanted)), rows.num_rows)
        return selected if valid is None else selected.filter(pa.array(valid))

    def given(self, states: pa.RecordBatch) -> pa.RecordBatch:
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
    """Rows of one tag in the schema of states; what they do not have is null."""
    kinds = aggregation.states.types
    columns = [*keys, pa.array(np.full(rows, tag, np.int32))]
    for number, members in enumerate(aggregation.sets, 1):
        absent = (pa.nulls(rows, kind) for kind in kinds[len(columns) : len(columns) + len(members)])
        columns += values.get(number) or absent
    columns += (pa.nulls(rows, kind) for kind in kinds[len(columns) :]) if states is None else states
    return named(columns, rows, aggregation.states)


def combined_states(
    functions: Sequence[Function], columns: Sequence[pa.Array], segments: Segments
) -> list[pa.Array]:
    """The state columns of all functions, one row for each group."""
    result: list[pa.Array] = []
    at = 0
    for function in functions:
        width = len(function.states)
        result += function.combined(columns[at : at + width], segments)
        at += width
    return result
