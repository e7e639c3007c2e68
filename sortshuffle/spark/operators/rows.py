"""Operators on whole rows: `limit`, `sample`, `union`, `coalesce`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.types as at
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.operators.layouts import common_context, exchange_rows, order_rows
from sortshuffle.spark.operators.twin import empty_twin
from sortshuffle.spark.plan.chain import Chain, Origin, Rows, next_number
from sortshuffle.spark.plan.origins import (
    DataFrameOrigin,
    ExchangeOrigin,
    SparkUnionOrigin,
    UnionOrigin,
)
from sortshuffle.spark.plan.schemes import Hash, Range
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.steps.row_steps import Arrange, Limit, Sample
from sortshuffle.spark.worker.stages import ToSpark

MOST_ROWS = 2**31 - 1  # Spark's limit is an int
_ROUNDING = 1e-6  # what Spark lets the fraction of a sample be below 0 or above 1 (`RandomSampler`)


# ---- limit ------------------------------------------------------------------------------------------------


def limit(rows: Rows, number: int) -> Rows:
    """Return the first rows, by partition and position. No task passes on more than ``number`` rows."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_ROWS:
        raise UsageError(f"limit() takes a number of rows from 0 to {MOST_ROWS}, not {number!r}")
    order, unsorted = sort_ahead(rows)
    if order is None:
        return _first(rows, number)
    # the first rows of each partition are enough, and no ranges have to be found
    return _first(order_rows(unsorted, order), number, order)


def sort_ahead(rows: Rows) -> tuple[RowOrder | None, Rows]:
    """Return the order of rows that a sort has made, and the rows before it, if its exchange has not been
    written; otherwise None and the rows."""
    chain, origin = rows.chain, rows.chain.origin
    if not chain.steps and isinstance(origin, ExchangeOrigin) and origin.order is not None:
        scheme, keys = origin.exchange.scheme, tuple(origin.order.keys)
        if isinstance(scheme, Range) and scheme.keys == keys and not origin.exchange.is_built:
            return origin.order, Rows(origin.exchange.upstream)
    return None, rows


def _first(rows: Rows, number: int, order: RowOrder | None = None) -> Rows:
    """Return the first rows of all partitions together, which are sorted by ``order``."""
    first = Rows(rows.chain.then(Limit(number), rows.schema))
    together = exchange_rows(first, Hash(()), 1)  # one gate, which delivers in the order of map tasks
    if order is not None:
        together = order_rows(together, order)
    return Rows(together.chain.then(Limit(number), rows.schema))


# ---- sample -----------------------------------------------------------------------------------------------


def sample(
    rows: Rows,
    with_replacement: float | bool | None,
    fraction: float | None,
    seed: int | None,
    twin: DataFrame,
) -> Rows:
    """Sample rows. PySpark accepts ``(fraction, seed)``, ``(withReplacement, fraction, seed)``, and names.
    ``twin``: a DataFrame of the same columns, on which Spark analyses the call.

    Raises PySpark's errors for arguments that it does not accept. Raises `UsageError` for a fraction that
    Spark does not accept, if the twin is one of Spark Connect, which has not analysed the call yet.
    """
    twin.sample(with_replacement, fraction, seed)
    if isinstance(with_replacement, float):
        with_replacement, fraction, seed = None, with_replacement, seed if fraction is None else int(fraction)
    assert fraction is not None  # PySpark would have raised
    if not -_ROUNDING <= fraction <= (math.inf if with_replacement else 1 + _ROUNDING):
        raise UsageError(f"sample() takes a fraction from 0 to 1, or more with replacement, not {fraction}")
    drawn = random.getrandbits(63) if seed is None else int(seed)
    step = Sample(bool(with_replacement), max(0.0, float(fraction)), drawn)
    return Rows(rows.chain.then(step, rows.schema), rows.layout)


# ---- union ------------------------------------------------------------------------------------------------


def union(rows: Rows, other: Rows) -> Rows:
    """Return the partitions of ``rows``, then those of ``other``, named as in ``rows``, with Spark's types.

    Raises the errors of Spark's analysis, `UsageError` for frames of two sessions, and `UnsupportedError` if
    Spark would change more than the width of a number.
    """
    context = common_context(rows, other, "union")
    schema = empty_twin(context, rows.schema).union(empty_twin(context, other.schema)).schema
    positions = range(len(schema))
    return _united([(rows, positions), (other, positions)], schema)


def union_by_name(rows: Rows, other: Rows, allow_missing: bool) -> Rows:
    """Return the same as `union`, but match the columns by name. With ``allow_missing`` the columns that one
    side lacks are null there, and those that only ``other`` has come last."""
    context = common_context(rows, other, "unionByName")
    left, right = (empty_twin(context, each.schema) for each in (rows, other))
    schema = left.unionByName(right, allowMissingColumns=allow_missing).schema
    return _united([(each, _positions_by_name(each, schema)) for each in (rows, other)], schema)


def _positions_by_name(rows: Rows, schema: StructType) -> list[int | None]:
    """Return the position of each of the union's columns in ``rows``, None for those that it lacks. Spark
    has matched the names, by its setting of now: a spelling that the union has, too, is a column of its own.

    Raises `UnsupportedError` if a column is left over: the JVM calls more names equal than Python, such as
    two with different letters for the micro sign.
    """
    own = {name: at for at, name in enumerate(rows.columns)}
    folded = {name.lower(): at for name, at in own.items() if name not in schema.names}
    positions = [own.get(name, folded.get(name.lower())) for name in schema.names]
    if sorted(at for at in positions if at is not None) != list(range(len(rows.columns))):
        names = ", ".join(rows.columns)
        raise UnsupportedError(f"unionByName() cannot tell which of the columns {names} Spark calls equal")
    return positions


def _united(inputs: Sequence[tuple[Rows, Sequence[int | None]]], schema: StructType) -> Rows:
    """Unite rows, whose columns at these positions become those of ``schema``; None stands for nulls."""
    first = inputs[0][0]
    context = first.context
    wire = context.wire(schema)
    chains = []
    for rows, sources in inputs:
        chain = rows.chain
        if tuple(sources) != tuple(range(len(chain.wire))) or not chain.wire.equals(wire):
            for source, field in zip(sources, wire, strict=True):
                if source is not None:
                    _check_widening(chain.wire.field(source), field)
            chain = chain.then(Arrange(tuple(sources), wire), schema)
        chains.append(chain)
    return Rows(Chain(context, _union_of(tuple(chains)), schema, wire))


def _union_of(chains: tuple[Chain, ...]) -> Origin:
    if chains[0].context.planner.zips:
        return UnionOrigin(chains)
    return SparkUnionOrigin(chains, tuple(next_number() for _ in chains))


def _check_widening(found: pa.Field, wanted: pa.Field) -> None:
    if found.type.equals(wanted.type) or at.is_null(found.type) or _widens(found.type, wanted.type):
        return
    raise UnsupportedError(
        f"column {found.name} of type {found.type} is to be united with {wanted.name}, for which Spark would"
        f" cast it to {wanted.type}: here only numbers are cast, and decimals only where no digit is lost."
        " Cast it first, with withColumn() or in a mapInArrow function"
    )


def _widens(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether ``wanted`` can hold every number of type ``found``, up to rounding to floating point."""
    if at.is_floating(wanted):
        return bool(at.is_integer(found) or at.is_floating(found) or at.is_decimal(found))
    if at.is_decimal(wanted):
        # Spark's widest decimal may be too narrow, and then it rounds or returns null
        whole, scale = _digits(found)
        return whole is not None and whole <= wanted.precision - wanted.scale and scale <= wanted.scale
    return bool(at.is_integer(found) and at.is_integer(wanted))


def _digits(type: pa.DataType) -> tuple[int | None, int]:
    """Return the most digits before and after the decimal point; (None, 0) for inexact types."""
    if at.is_decimal(type):
        return type.precision - type.scale, type.scale
    return (len(str(2 ** (type.bit_width - 1))), 0) if at.is_integer(type) else (None, 0)


# ---- coalesce ---------------------------------------------------------------------------------------------


def coalesce(rows: Rows, count: int, to_df: Callable[[], DataFrame]) -> Rows:
    """Return the rows in at most ``count`` partitions, each of several neighbouring ones.

    If the chain begins with an exchange or a scan, its tasks read several of their partitions in sequence.
    Otherwise Spark coalesces the DataFrame of the rows, which ``to_df`` returns.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"coalesce() takes a number of partitions from 1 on, not {count!r}")
    chain = rows.chain
    origin = chain.origin.coalesced(chain, count) or _coalesced_by_spark(chain, count, to_df)
    return Rows(Chain(chain.context, origin, chain.schema, chain.wire))


def _coalesced_by_spark(chain: Chain, count: int, to_df: Callable[[], DataFrame]) -> DataFrameOrigin:
    if isinstance(chain.origin, DataFrameOrigin) and not chain.steps:
        return replace(chain.origin, dataframe=chain.origin.source.coalesce(count), selected=None)
    context = chain.context
    # a step that knows the number of its partition; a broadcast join may have one below it
    may_sample = chain.origin.exchanges() or any(isinstance(step, Sample) for step in chain.steps)
    if context.planner.zips and may_sample:
        # a partition without rows would have the number of Spark's task (`worker.numbered`), which reads
        # several; those of a union have their own
        numbered = Chain(context, UnionOrigin((chain,)), chain.schema, chain.wire)
        rows = plan_stage(numbered, next_number(), ToSpark(), chain.schema)
        numbered.leave_to_spark()
    else:
        rows = to_df()
    return DataFrameOrigin(rows.coalesce(count), chain.wire)
