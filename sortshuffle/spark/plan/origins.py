"""The origins of chains: a DataFrame, Parquet files, an exchange, or several chains combined.

    DataFrameOrigin   any DataFrame, whose plan Spark runs in the same stage
    ParquetOrigin     files, scanned by the workers
    ExchangeOrigin    the reading side of an exchange
    TogetherOrigin    several exchanges, partition by partition: joins and cogroups
    UnionOrigin       several chains, with the partitions of one after those of another
    SparkUnionOrigin  the same, united by Spark
    CoalescedOrigin   a chain, with several of its partitions in each task

An origin provides two things that must agree: the rows that Spark feeds to the stage's function, and the
opening that makes batches of these rows in the worker.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError
from sortshuffle.options import parse_size
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.parquet.files import ParquetFiles
from sortshuffle.spark.parquet.packing import Packing, Piece
from sortshuffle.spark.parquet.pruning import may_prune
from sortshuffle.spark.plan.chain import Chain, Origin, ShuffleDependency
from sortshuffle.spark.plan.estimated_sizes import (
    combined_size,
    estimated_size,
    exchanged_size,
    local_size,
    may_add_rows,
    scanned_size,
    sparks_size,
    united_size,
)
from sortshuffle.spark.plan.exchange import Exchange
from sortshuffle.spark.plan.once import once
from sortshuffle.spark.plan.skew import runs_on_any_part
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.schema import quote
from sortshuffle.spark.session.classic_planner import join_neighbours
from sortshuffle.spark.session.planner_choice import planner_of
from sortshuffle.spark.session.requirements import is_classic, plain_session
from sortshuffle.spark.steps.scan import Scan
from sortshuffle.spark.worker.multi_input import (
    ChainInput,
    CombineLegs,
    ReadCoalesced,
    ReadTogether,
    ReadUnion,
)
from sortshuffle.spark.worker.numbered import NUMBER
from sortshuffle.spark.worker.stages import Opening, PerBatchStep, ReadExchange, SparkRows, ToSpark


@dataclass(frozen=True)
class DataFrameOrigin(Origin):
    """Any DataFrame, whose plan Spark runs in the same stage. ``selected``: the names of the columns that are
    read of it; None: all.

    A user may have the DataFrame, too, and change the schema that PySpark keeps in it. So names and types are
    not read there.
    """

    dataframe: DataFrame
    wire: pa.Schema
    selected: tuple[str, ...] | None = None

    @functools.cached_property
    def source(self) -> DataFrame:
        """The DataFrame of the rows, which users may get."""
        if self.selected is None:
            return self.dataframe
        return self.dataframe.select(*map(quote, self.selected))

    @functools.cached_property
    def _own_source(self) -> DataFrame:
        """The same as an object that no user gets. Over Spark Connect it is `source`, of whose schema PySpark
        hands out copies."""
        source: Any = self.source
        if is_classic(source.sparkSession):
            return DataFrame(source._jdf, plain_session(source.sparkSession))
        return self.source

    def rows(self) -> DataFrame:
        names = self.wire.names
        if not names:
            # Spark feeds no rows of a frame without columns
            return self.source.select(sf.lit(True).alias("row"))
        if _are_plain(names):
            return self._selected_anew(self._own_source)
        # `DataFrame.mapInArrow` looks columns up by name, and fails on dots, backticks and duplicates
        return self._selected_anew(self.source).toDF(*(f"_{at}" for at in range(len(names))))

    def _selected_anew(self, source: DataFrame) -> DataFrame:
        """Select the columns by name over Spark Connect, which looks a view up for each action: one that was
        replaced since may have them in another order. Columns of one name cannot be told apart."""
        names = self.wire.names
        if is_classic(source.sparkSession) or len({name.lower() for name in names}) < len(names):
            return source
        return source.select(*map(quote, names))

    def opening(self) -> Opening:
        return SparkRows(self.wire)

    def pruned(self, positions: tuple[int, ...]) -> DataFrameOrigin | None:
        """Return an origin of only the columns at these positions; None if names do not identify them."""
        names = self.wire.names
        if not _are_plain(names):
            return None
        wire = pa.schema([self.wire.field(at) for at in positions])
        return replace(self, wire=wire, selected=tuple(wire.names))

    def partitions(self) -> int:
        count = planner_of(self.source.sparkSession).partitions(self.source)
        if count is None:
            raise UnsupportedError("over Spark Connect the partitions of a DataFrame cannot be counted")
        return count

    def is_reproducible(self) -> bool:
        return planner_of(self.source.sparkSession).is_reproducible(self.source)

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return ()

    def lines(self) -> list[str]:
        return [f"rows of DataFrame[{', '.join(self.wire.names)}]"]

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return self._size, self._own_source.schema

    @functools.cached_property
    def _size(self) -> int:
        plan = self._optimized_plan
        local = local_size(self.source.sparkSession.sparkContext, plan)
        return sparks_size(plan) if local is None else local

    @property
    def may_add_rows(self) -> bool:
        """Whether its plan may have many rows of a source's few. Classic sessions only."""
        return may_add_rows(self._optimized_plan)

    @functools.cached_property
    def _optimized_plan(self) -> Any:
        # of a copy: a plan that was once optimised does not see what is cached later
        source: Any = self.source
        return source._jdf.alias("size").queryExecution().optimizedPlan()


@dataclass(frozen=True)
class ParquetOrigin(Origin):
    """Parquet files, scanned by the workers. ``file_columns``: in the order of ``wire``. ``filters``: Arrow
    expressions over ``wire``; rows must satisfy all of them."""

    spark: SparkSession
    files: ParquetFiles
    file_columns: tuple[str, ...]
    wire: pa.Schema
    filters: tuple[Any, ...] = ()

    def rows(self) -> DataFrame:
        return self.spark.range(0, len(self.splits), 1, self.partitions())

    def opening(self) -> Opening:
        return Scan(self.files.scan(self.splits, self.file_columns, self.wire, _all_of(self.filters)))

    def partitions(self) -> int:
        return len(self.splits)

    def is_reproducible(self) -> bool:
        return True

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return ()

    def lines(self) -> list[str]:
        where = f" where {_all_of(self.filters)}" if self.filters else ""
        return [f"scan of {self.files.label}: {', '.join(self.wire.names)}{where}"]

    def coalesced(self, chain: Chain, count: int, ends: tuple[int, ...] = ()) -> Origin:
        return CoalescedOrigin(chain, count, ends)

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        """Return about the bytes of the columns in the files that the scan reads. No footer is read: `plan`
        must not be made before an action needs it, because files may change until then."""
        schema = from_arrow_schema(self.wire)
        return scanned_size(self.spark, self._file_bytes, self.files.schema, schema), schema

    @once
    def _file_bytes(self) -> int:
        """The bytes of the files that conditions on partition columns leave. Computed once, because each join
        asks again, and 3000 directories take 0.1 s."""
        return sum(file.size for file in self.files.kept_by(self._prune_by, self.wire))

    @property
    def splits(self) -> list[tuple[Piece, ...]]:
        """What each task scans. If there is nothing to scan, there is one task, without pieces."""
        return self.plan or [()]

    @once
    def plan(self) -> list[tuple[Piece, ...]]:
        """The pieces that each task scans. Computed once, because `rows` and `opening` must agree. If a file
        changes later, the tasks that come to it fail (`FileState`)."""
        conf = self.spark.conf
        tasks = conf.get("spark.sql.files.minPartitionNum", None)
        packing = Packing(
            largest_split=parse_size(str(conf.get("spark.sql.files.maxPartitionBytes"))),
            open_cost=parse_size(str(conf.get("spark.sql.files.openCostInBytes"))),
            parallelism=int(tasks or planner_of(self.spark).parallelism()),
        )
        return self.files.plan(self._prune_by, packing, self.wire)

    @property
    def _prune_by(self) -> Any:
        """The condition by which files and row groups may be left out; None if there is none."""
        return _all_of([each for each in self.filters if may_prune(each, self.wire)])


@dataclass(frozen=True)
class ExchangeOrigin(Origin):
    """The reading side of an exchange. ``order``: deliver rows in this order; None for the gate's order."""

    exchange: Exchange
    order: RowOrder | None = None

    def rows(self) -> DataFrame:
        return self.exchange.control()

    def opening(self) -> ReadExchange:
        upstream = self.exchange.upstream
        return ReadExchange(upstream.wire, self.order, upstream.context.options.codec)

    def partitions(self) -> int:
        return self.exchange.placed_partitions()

    def is_reproducible(self) -> bool:
        # the gate's order is fixed by the map outputs, which are as reproducible as their own inputs
        return self.exchange.upstream.is_reproducible()

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return (self.exchange,)

    def lines(self) -> list[str]:
        ordered = "" if self.order is None else ", in key order"
        return [f"exchange {self.exchange.number}{ordered}"]

    def coalesced(self, chain: Chain, count: int, ends: tuple[int, ...] = ()) -> Origin:
        return CoalescedOrigin(chain, count, ends)

    def sliceable(self) -> list[ShuffleDependency]:
        return [self.exchange] if self.order is None and self.exchange.subpartitions > 1 else []

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return exchanged_size(self.exchange), self.exchange.upstream.schema


@dataclass(frozen=True, eq=False)
class _OriginOfChains(Origin):
    """The rows of several chains, in one origin. The size is that of a union."""

    inputs: tuple[Chain, ...]

    def is_reproducible(self) -> bool:
        return all(chain.is_reproducible() for chain in self.inputs)

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return exchanges_of(self.inputs)

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return united_size(self.inputs)


@dataclass(frozen=True, eq=False)
class TogetherOrigin(_OriginOfChains):
    """Several exchanges with equally many subpartitions: ``combine`` makes partition s from subpartition s of
    each. ``inputs``: chains that begin with these exchanges."""

    combine: CombineLegs

    def rows(self) -> DataFrame:
        exchanges = self.exchanges()
        planner = self.inputs[0].context.planner
        return planner.together([exchange.control_rows() for exchange in exchanges])

    def opening(self) -> Opening:
        return ReadTogether(tuple(input_of(chain) for chain in self.inputs), self.combine)

    def partitions(self) -> int:
        return self.exchanges()[0].placed_partitions()

    def lines(self) -> list[str]:
        return [self.combine.describe(), *lines_of(self.inputs)]

    def coalesced(self, chain: Chain, count: int, ends: tuple[int, ...] = ()) -> Origin:
        return CoalescedOrigin(chain, count, ends)

    def sliceable(self) -> list[ShuffleDependency]:
        sliceable: list[ShuffleDependency] = []
        for chain, may_be in zip(self.inputs, self.combine.sliceable, strict=False):
            others = [each for each in self.inputs if each is not chain]
            (exchange,) = chain.origin.exchanges()
            repeatable = all(isinstance(step, PerBatchStep) for each in others for step in each.steps)
            distinct = all(exchange not in each.origin.exchanges() for each in others)
            if may_be and repeatable and distinct and runs_on_any_part(chain.steps):
                sliceable.append(exchange)
        return sliceable

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return combined_size(self.inputs, only_first=self.combine.only_first)


@dataclass(frozen=True, eq=False)
class UnionOrigin(_OriginOfChains):
    """The partitions of the first chain, then those of the next, and so on. Their wire schema is the same."""

    def rows(self) -> DataFrame:
        planner = self.inputs[0].context.planner
        return planner.zip_partitions([self._numbers, functools.reduce(DataFrame.unionAll, self._planned)])

    def opening(self) -> Opening:
        inputs = tuple((chain.origin.opening(), chain.steps) for chain in self.inputs)
        return ReadUnion(inputs, self._counts)

    def partitions(self) -> int:
        return sum(self._counts)

    def lines(self) -> list[str]:
        return ["union of", *lines_of(self.inputs)]

    @once
    def _planned(self) -> list[DataFrame]:
        """The rows of each input, planned so that Spark cannot coalesce their partitions later."""
        planner, sources = self.inputs[0].context.planner, self._sources
        rows = [sources[at] if at in sources else each.origin.rows() for at, each in enumerate(self.inputs)]
        numbered = [each.select(sf.lit(None).cast("long").alias("id"), "*") for each in side_by_side(rows)]
        return [each if at in sources else planner.share(each) for at, each in enumerate(numbered)]

    @once
    def _counts(self) -> tuple[int, ...]:
        """The number of partitions of each input, known before the exchanges are built that these read: a
        broadcast exchange may have to be built together with them."""
        planner, sources = self.inputs[0].context.planner, self._sources
        counts: list[int] = []
        for at, chain in enumerate(self.inputs):
            count = planner.partitions(sources[at]) if at in sources else chain.origin.partitions()
            assert count is not None  # a planner that zips partitions can count them
            counts.append(count)
        return tuple(counts)

    @once
    def _sources(self) -> dict[int, DataFrame]:
        """By their positions, the rows of those inputs that read no exchange. They are planned once: under
        other settings, or when something is cached, the same DataFrame may have another number of
        partitions."""
        planner = self.inputs[0].context.planner
        origins = ((at, chain.origin) for at, chain in enumerate(self.inputs))
        return {at: planner.share(origin.rows()) for at, origin in origins if not origin.exchanges()}

    @property
    def _numbers(self) -> DataFrame:
        """One row for each partition, with its number. A task's partition number does not serve: Spark may
        read several partitions in one task of a plan built on these rows."""
        count = self.partitions()
        numbers = self.inputs[0].context.spark.range(0, count, 1, count)
        others = self._planned[0].schema.fields[1:]
        return numbers.select("id", *(sf.lit(None).cast(each.dataType).alias(each.name) for each in others))


@dataclass(frozen=True, eq=False)
class SparkUnionOrigin(_OriginOfChains):
    """The union of these chains if the planner cannot zip: Spark unites the rows of one stage for each.
    ``numbers``: those of the stages."""

    numbers: tuple[int, ...]

    def rows(self) -> DataFrame:
        return self._union.rows()

    def opening(self) -> Opening:
        return self._union.opening()

    def partitions(self) -> int:
        return self._union.partitions()

    def lines(self) -> list[str]:
        return ["union, by Spark, of", *lines_of(self.inputs)]

    @once
    def _union(self) -> DataFrameOrigin:
        frames = [
            plan_stage(chain, number, ToSpark(), chain.schema)
            for chain, number in zip(self.inputs, self.numbers, strict=True)
        ]
        return DataFrameOrigin(functools.reduce(DataFrame.unionAll, frames), self.inputs[0].wire)


@dataclass(frozen=True, eq=False)
class CoalescedOrigin(Origin):
    """The partitions of a chain in at most ``count`` tasks, each of which reads them in sequence. ``ends``:
    for each task the number after that of its last partition; empty: Spark chooses what a task reads."""

    chain: Chain
    count: int
    ends: tuple[int, ...] = ()

    def rows(self) -> DataFrame:
        origin = self.chain.origin
        planner = self.chain.context.planner
        exchanges = [exchange.control_rows() for exchange in origin.exchanges()]
        # numbered, because a partition without control rows counts, too
        rows = planner.together(exchanges, numbered=True) if exchanges else planner.share(origin.rows())
        return join_neighbours(rows, self.ends) if self.ends else rows.coalesce(self.count)

    def opening(self) -> Opening:
        origin = self.chain.origin
        return ReadCoalesced(origin.opening(), self.chain.steps, _NUMBERED_BY[type(origin)])

    def partitions(self) -> int:
        return min(self.count, self.chain.origin.partitions())

    def is_reproducible(self) -> bool:
        return self.chain.is_reproducible()

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return self.chain.origin.exchanges()

    def lines(self) -> list[str]:
        return [f"coalesced into {self.count} partitions", *lines_of([self.chain])]

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return estimated_size(self.chain), self.chain.schema


# By type of origin, the position of the column that holds the number of a row's partition
_NUMBERED_BY: dict[type, int] = {ExchangeOrigin: 1, TogetherOrigin: 1, ParquetOrigin: 0}


def side_by_side(frames: Sequence[DataFrame]) -> list[DataFrame]:
    """Give these frames one schema: a struct column for each, with its rows, and null in the others."""
    names = [f"input{at}" for at in range(len(frames))]
    wrapped = []
    for frame, own in zip(frames, names, strict=True):
        columns = [
            sf.struct(*map(quote, frame.columns)).alias(name)
            if name == own
            else sf.lit(None).cast(other.schema).alias(name)
            for other, name in zip(frames, names, strict=True)
        ]
        wrapped.append(frame.select(*columns))
    return wrapped


def input_of(chain: Chain) -> ChainInput:
    """Return the input that an opening reads for a chain that begins with an exchange."""
    origin = chain.origin
    assert isinstance(origin, ExchangeOrigin)  # operators only combine chains that begin with exchanges
    return ChainInput(origin.exchange.number, origin.opening(), chain.steps)


def exchanges_of(chains: Sequence[Chain]) -> tuple[ShuffleDependency, ...]:
    """Return the exchanges that these chains read, each once."""
    return tuple(dict.fromkeys(exchange for chain in chains for exchange in chain.origin.exchanges()))


def lines_of(chains: Sequence[Chain]) -> list[str]:
    """Return the lines of `explain()` for these chains: for each its origin, and below that its steps."""
    lines = []
    for chain in chains:
        first, *others = chain.origin.lines()
        lines += [f"  * {first}", *(f"    {line}" for line in others)]
        lines += [f"    {step.describe()}" for step in chain.steps]
    return lines


def _are_plain(names: Sequence[str]) -> bool:
    distinct = {name.lower() for name in names if re.fullmatch(r"\w+", name)} - {NUMBER}
    return len(distinct) == len(names)


def _all_of(filters: Sequence[Any]) -> Any:
    return functools.reduce(operator.and_, filters) if filters else None
