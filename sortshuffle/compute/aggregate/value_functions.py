"""Aggregate functions that choose among the values of a group (the least, the greatest, the first or the last
value), and those that collect all values in a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from sortshuffle.compute.aggregate.columns import (
    Values,
    flags,
    nullable,
    numbers,
    segments_with_any,
)
from sortshuffle.compute.aggregate.functions import Function
from sortshuffle.compute.aggregate.segments import Segments
from sortshuffle.payload.ordering import Int64s, RowOrder, SortKey

_INT64_MOST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Extreme(Function):
    """The least or the ``greatest`` value, in Spark's order: NaN is the greatest. ``kind``: type of the
    values. Among equal values, the result is the first in the order of the rows, as in Spark: 0.0 and -0.0
    are equal, and so are structs of them."""

    kind: pa.DataType
    greatest: bool

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (self.kind,)

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        return [columns[0]]

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        (column,) = states
        if pat.is_floating(self.kind):
            # fmin ignores NaN if there is another value; maximum never ignores it
            function = np.maximum if self.greatest else np.fmin
            neutral = -np.inf if self.greatest else np.nan
            values = numbers(column, neutral)
            with np.errstate(invalid="ignore"):
                best = segments.reduced(function, values)
            _take_first_zeros(best, values, segments)
            return [nullable(best, segments_with_any(column, segments))]
        if _is_of_integers(self.kind):
            integers = column.view(_integer_type(self.kind)) if not pat.is_boolean(self.kind) else column
            best = self._best(_as_integers(integers), column, segments)
            result = nullable(best, segments_with_any(column, segments))
            return [result.cast(pa.bool_()) if pat.is_boolean(self.kind) else result.view(self.kind)]
        return [column.take(pa.array(self._best_rows(column, segments)))]

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]

    def _best(self, values: Values, column: pa.Array, segments: Segments) -> Values:
        """Return the best of each group's integers, ignoring nulls."""
        function = np.maximum if self.greatest else np.minimum
        if column.null_count:
            bounds = np.iinfo(values.dtype)
            worst = bounds.min if self.greatest else bounds.max
            values = np.where(np.asarray(column.is_valid()), values, values.dtype.type(worst))
        return segments.reduced(function, values)

    def _best_rows(self, column: pa.Array, segments: Segments) -> Int64s:
        """Return the row of each group's best value: the one that comes first when all rows are sorted with
        the best value first and nulls last. Equal values keep their order."""
        best_first = RowOrder((SortKey(0, descending=self.greatest, nulls_last=True),))
        by_value = best_first.ranks(pa.record_batch([column], ["value"])).sort_indices()
        places = np.empty(len(column), np.int64)
        places[by_value] = np.arange(len(column))
        rows: Int64s = by_value[segments.reduced(np.minimum, places)]
        return rows


def _take_first_zeros(best: Values, values: Values, segments: Segments) -> None:
    """Give groups whose best value is a zero the sign of their first zero, because NumPy ignores the sign."""
    groups = np.flatnonzero(best == 0)
    if len(groups):
        arranged = segments.arranged(values)
        zeros = np.flatnonzero(arranged == 0)
        best[groups] = arranged[zeros[np.searchsorted(zeros, segments.starts[groups])]]


@dataclass(frozen=True, slots=True)
class First(Function):
    """The value of the first row of each group, or of the ``last`` row. ``ignore_nulls``: skip rows whose
    value is null. ``kind``: type of the values. The state also says whether there was such a row."""

    kind: pa.DataType
    last: bool
    ignore_nulls: bool

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (self.kind, pa.bool_())

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        (column,) = columns
        return [column, column.is_valid() if self.ignore_nulls else pa.array(np.ones(rows, np.bool_))]

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        values, has_row = states[0], flags(states[1])
        if has_row.all():
            ends = np.append(segments.starts[1:], segments.rows) - 1
            rows = segments.rows_at(ends if self.last else segments.starts)
            return [values.take(pa.array(rows)), pa.array(np.ones(segments.count, np.bool_))]
        positions = np.arange(segments.rows, dtype=np.int64)
        nowhere = -1 if self.last else _INT64_MOST
        candidates = np.where(segments.arranged(has_row), positions, nowhere)
        function = np.maximum if self.last else np.minimum
        first = function.reduceat(candidates, segments.starts)
        any_row = first != nowhere
        rows = segments.rows_at(np.where(any_row, first, 0))
        return [values.take(nullable(rows, any_row)), pa.array(any_row)]

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


# --- lists -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collect(Function):
    """A list of all values that are not null, in the order of the rows. ``kind``: type of the list."""

    kind: pa.DataType

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (self.kind,)

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        (column,) = columns
        valid = np.ones(rows, np.int64) if column.null_count == 0 else column.is_valid()
        return [self._lists(np.cumsum(np.asarray(valid, np.int64)), column.drop_null())]

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        (lists,) = states
        if segments.order is not None:
            lists = lists.take(pa.array(segments.order))
        lengths = numbers(pc.list_value_length(lists).cast(pa.int64()))
        sizes = np.add.reduceat(lengths, segments.starts)
        return [self._lists(np.cumsum(sizes), lists.flatten())]

    def of_rows(self, columns: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        (column,) = columns
        if segments.order is not None:
            column = column.take(pa.array(segments.order))
        if column.null_count == 0:
            sizes = segments.sizes()
        else:
            sizes = np.add.reduceat(np.asarray(column.is_valid()).astype(np.int64), segments.starts)
        return [self._lists(np.cumsum(sizes), column.drop_null())]

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        (lists,) = states
        if lists.null_count == 0:
            return lists
        lengths = numbers(pc.list_value_length(lists).cast(pa.int64()))
        return self._lists(np.cumsum(lengths), lists.flatten())

    def _lists(self, ends: Int64s, values: pa.Array) -> pa.Array:
        """Make lists of consecutive values. ``ends``: the end of each list among the values."""
        offsets = np.concatenate([np.zeros(1, np.int64), ends])
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, self.kind)


def _is_of_integers(kind: pa.DataType) -> bool:
    """Return whether values of type ``kind`` are stored as integers that have the same order."""
    if pat.is_decimal128(kind):
        return False
    return bool(pat.is_boolean(kind) or pat.is_integer(kind) or pat.is_temporal(kind))


def _integer_type(kind: pa.DataType) -> pa.DataType:
    if pat.is_integer(kind):
        return kind
    return pa.int64() if kind.bit_width == 64 else pa.int32()


def _as_integers(column: pa.Array) -> Values:
    values = numbers(column)
    return values.astype(np.int8) if values.dtype == np.bool_ else values
