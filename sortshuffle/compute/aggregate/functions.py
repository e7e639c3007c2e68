"""Aggregate functions with Spark's results, computed by way of states of groups that can be combined.

A function defines three things: the state of a single row (`lift`), the state of a group of states
(`combined`), and the result of a state (`finished`). Before the shuffle, rows are aggregated by combining
their lifted states; after it, by combining the combined states. Both passes thus agree by construction.

Rules:

* A state is one value for each of the function's state columns. All nulls is the state of no rows, and
  combining it with another state changes nothing: rows that do not concern a function have this state.
* ``combined`` receives states in the order of the rows, and keeps that order where it matters (first, last,
  lists).
* The last digits of floating point sums depend on the order of the rows, as in Spark. All else is exact.
* Functions that choose among values or collect lists are in `aggregate.value_functions`.
* A result that does not fit is an error in Spark's ANSI mode (``ansi``). Errors name the aggregate ``label``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sortshuffle.compute.aggregate.columns import (
    all_valid,
    as_doubles,
    flags,
    nullable,
    numbers,
    segments_with_any,
)
from sortshuffle.compute.aggregate.decimals import (
    Words,
    averages,
    long_sums,
    rounded_decimals,
    sums,
)
from sortshuffle.compute.aggregate.segments import Segments
from sortshuffle.errors import ResultOverflowError


class Function(ABC):
    """An aggregate function. ``states``: the types of its state columns."""

    @property
    @abstractmethod
    def states(self) -> tuple[pa.DataType, ...]: ...

    @abstractmethod
    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        """Return the state of each of ``rows`` rows. ``columns``: the arguments."""

    @abstractmethod
    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        """Return the state of each group. ``states``: the states of its rows."""

    @abstractmethod
    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        """Return the result of each state."""

    def of_rows(self, columns: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        """Return the state of each group of plain rows. ``columns``: the arguments."""
        return self.combined(self.lift(columns, segments.rows), segments)


# --- counts and sums ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Count(Function):
    """The number of rows in which no argument is null; without arguments, of all rows."""

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (pa.int64(),)

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        valid = all_valid(columns)
        return [pa.array(np.ones(rows, np.int64) if valid is None else valid.astype(np.int64))]

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        return [pa.array(segments.sums(numbers(states[0])))]

    def of_rows(self, columns: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        if all_valid(columns) is None:
            return [pa.array(segments.sizes())]
        return self.combined(self.lift(columns, segments.rows), segments)

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0].fill_null(0)


@dataclass(frozen=True, slots=True)
class CountTrue(Count):
    """The number of rows in which the argument is true."""

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        return [pa.array(numbers(columns[0]).astype(np.int64))]

    def of_rows(self, columns: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        return self.combined(self.lift(columns, segments.rows), segments)


@dataclass(frozen=True, slots=True)
class SumLong(Function):
    """The sum of integers, as a long."""

    label: str
    ansi: bool

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (pa.int64(),)

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        return [columns[0].cast(pa.int64())]

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        totals, exact = long_sums(numbers(states[0]), segments)
        if self.ansi and exact is not None and not exact.all():
            refuse_overflow(self.label, "a long", "decimal(38,0) or double")
        return [nullable(totals, segments_with_any(states[0], segments))]

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


@dataclass(frozen=True, slots=True)
class SumDouble(Function):
    """The sum of floating point numbers, as a double. As in Spark it starts from 0.0, so it is never -0.0."""

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (pa.float64(),)

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        return [as_doubles(columns[0])]

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as in Spark
            totals = segments.sums(numbers(states[0])) + 0.0
        return [nullable(totals, segments_with_any(states[0], segments))]

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


@dataclass(frozen=True, slots=True)
class SumDecimal(Function):
    """The sum of decimals. ``kind``: type of the result. A state says whether there were values: if so, a
    null sum has overflowed, and stays null."""

    label: str
    kind: pa.DataType
    ansi: bool

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (self.kind, pa.bool_())

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        return [columns[0].cast(self.kind), columns[0].is_valid()]

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        totals, fit = sums(Words.of(states[0]), segments)
        had_values = flags(states[1])
        fit &= totals.fits(self.kind.precision)
        if not fit.all() and self.ansi:
            refuse_overflow(self.label, f"a {self.kind}", "a decimal of fewer digits, or double")
        if states[0].null_count:
            fit &= ~segments.any(had_values & np.asarray(states[0].is_null()))
        had_values = segments.any(had_values)
        return [totals.decimals(self.kind, fit & had_values), pa.array(had_values)]

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


# --- averages and variances --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AverageDouble(Function):
    """The average of numbers, added up as doubles."""

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (pa.float64(), pa.int64())

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        return SumDouble().lift(columns, rows) + Count().lift(columns, rows)

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        return SumDouble().combined(states[:1], segments) + Count().combined(states[1:], segments)

    def of_rows(self, columns: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        return SumDouble().of_rows(columns, segments) + Count().of_rows(columns, segments)

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        return pc.divide(states[0], states[1].cast(pa.float64(), safe=False))


@dataclass(frozen=True, slots=True)
class AverageDecimal(Function):
    """The average of decimals. ``kind``: type of the result; ``total``: type of the sum."""

    label: str
    kind: pa.DataType
    total: pa.DataType
    ansi: bool

    @property
    def _sum(self) -> SumDecimal:
        return SumDecimal(self.label, self.total, self.ansi)

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (*self._sum.states, pa.int64())

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        return self._sum.lift(columns, rows) + Count().lift(columns, rows)

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        return self._sum.combined(states[:2], segments) + Count().combined(states[2:], segments)

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        result, fit = averages(states[0], numbers(states[2]), self.kind)
        if self.ansi and not fit.all():
            refuse_overflow(self.label, f"a {self.kind}", "a decimal of fewer digits, or double")
        return result


@dataclass(frozen=True, slots=True)
class AverageShortDecimal(Function):
    """The average of decimals of few digits, which Spark computes in doubles (its optimizer's rule
    ``DecimalAggregates``): it averages the unscaled values, then applies the scale. ``scale``: scale of the
    values; ``kind``: type of the result."""

    scale: int
    kind: pa.DataType

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return AverageDouble().states

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        (column,) = columns
        unscaled = Words.of(column).low.astype(np.float64)
        return [nullable(unscaled, all_valid(columns)), *Count().lift(columns, rows)]

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        return AverageDouble().combined(states, segments)

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        totals, counts = map(numbers, states)
        means = totals / np.maximum(counts, 1) / 10.0**self.scale
        return rounded_decimals(means, counts > 0, self.kind)


@dataclass(frozen=True, slots=True)
class Variance(Function):
    """The variance of numbers, or its square ``root``. ``sample``: divide by the number of values less one;
    the result for a single value is null.

    A state is the number of values, their mean, and the sum of the squared distances from it. States are
    combined as in Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), for any number of states at once. The mean of a group is reckoned from its first value,
    so it is exact if all are equal, and their variance 0.
    """

    sample: bool
    root: bool

    @property
    def states(self) -> tuple[pa.DataType, ...]:
        return (pa.int64(), pa.float64(), pa.float64())

    def lift(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        values = as_doubles(columns[0])
        # 0, but NaN for an infinite value or NaN
        with np.errstate(invalid="ignore"):
            distances = numbers(values) - numbers(values)
        return [*Count().lift(columns, rows), values, pa.array(distances)]

    def combined(self, states: Sequence[pa.Array], segments: Segments) -> list[pa.Array]:
        counts, means, distances = map(numbers, states)
        with np.errstate(invalid="ignore", over="ignore"):
            totals = segments.sums(counts)
            counts, means, sizes = segments.arranged(counts), segments.arranged(means), segments.sizes()
            has_values = counts > 0
            first = _first_of(means, has_values, segments)
            weighted = np.where(has_values, means - np.repeat(first, sizes), 0.0) * counts
            of_groups = np.add.reduceat(weighted, segments.starts) if segments.count else weighted
            mean = first + of_groups / np.maximum(totals, 1)
            from_mean = means - np.repeat(mean, sizes)
            between = np.where(has_values, from_mean * from_mean, 0.0)
            within = segments.sums(distances)
            if segments.count:
                within += np.add.reduceat(counts * between, segments.starts)
        return [pa.array(totals), pa.array(mean), pa.array(within)]

    def finished(self, states: Sequence[pa.Array]) -> pa.Array:
        counts, _, distances = map(numbers, states)
        divisors = counts - 1 if self.sample else counts
        with np.errstate(invalid="ignore"):
            result = distances / np.maximum(divisors, 1)
            result = np.sqrt(result) if self.root else result
        return nullable(result, divisors > 0)


def _first_of(
    values: npt.NDArray[Any], are_valid: npt.NDArray[np.bool_], segments: Segments
) -> npt.NDArray[Any]:
    """Return the first valid value of each group, 0 for groups without one. ``values``, ``are_valid``: in the
    order of the groups."""
    if not segments.count:
        return np.zeros(0)
    places = np.where(are_valid, np.arange(segments.rows), segments.rows - 1)
    firsts = np.minimum.reduceat(places, segments.starts)
    return np.where(np.logical_or.reduceat(are_valid, segments.starts), values[firsts], 0.0)


def refuse_overflow(label: str, kind: str, instead: str) -> NoReturn:
    raise ResultOverflowError(
        f"{label} does not fit into {kind}, which is an error in Spark's ANSI mode. Cast the column to"
        f" {instead}, before it is aggregated, or set spark.sql.ansi.enabled to false for Spark's old rules"
    )
