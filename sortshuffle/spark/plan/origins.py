"""Where a chain begins: a DataFrame, Parquet files, an exchange, or several chains put together.

    DataFrameOrigin   any DataFrame; its own plan runs in Spark, in the same stage
    ParquetOrigin     files, scanned by the workers
    ExchangeOrigin    the reading side of an exchange
    TogetherOrigin    several exchanges, partition by partition: joins and cogroups
    UnionOrigin       several chains, the partitions of one after those of the other
    SparkUnionOrigin  the same, where Spark must put them together
    CoalescedOrigin   a chain, several of its partitions in each task

An origin gives two things that must agree: the rows that Spark feeds to the stage's function, and the opening
that makes batches of them in the worker.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError
from sortshuffle.options import parse_size
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.parquet.files import ParquetFiles, ScanPlan
from sortshuffle.spark.parquet.merging import folded
from sortshuffle.spark.parquet.packing import Packing, Piece
from sortshuffle.spark.parquet.pruning import may_prune
from sortshuffle.spark.plan.chain import Chain, Origin, ShuffleDependency
from sortshuffle.spark.plan.estimated_sizes import combined_size, estimated_size, exchanged_size, united_size
from sortshuffle.spark.plan.exchange import Exchange
from sortshuffle.spark.plan.once import once
from sortshuffle.spark.plan.skew import takes_rows_as_they_come
from sortshuffle.spark.plan.staging import staged
from sortshuffle.spark.session.planner_choice import planner_of
from sortshuffle.spark.steps.scan import Scan
from sortshuffle.spark.worker.several import ChainInput, CombineLegs, ReadCoalesced, ReadTogether, ReadUnion
from sortshuffle.spark.worker.stages import Opening, PerBatchStep, ReadExchange, SparkRows, ToSpark


@dataclass(frozen=True)
class DataFrameOrigin(Origin):
    """Any DataFrame; its own plan runs in Spark, in the same stage."""

    source: DataFrame
    wire: pa.Schema

    def rows(self) -> DataFrame:
        names = self.source.columns
        if not names:
            # of a frame without columns Spark hands over no rows at all
            return self.source.select(sf.lit(True).alias("row"))
        if _are_plain(names):
            return self.source
        # `DataFrame.mapInArrow` looks every column up by its name, and trips over dots, backticks and twins
        return self.source.toDF(*(f"_{at}" for at in range(len(names))))

    def opening(self) -> Opening:
        return SparkRows(self.wire)

    def pruned(self, positions: tuple[int, ...]) -> DataFrameOrigin | None:
        """Only the columns at these positions; None where names do not tell columns apart."""
        names = self.source.columns
        if not _are_plain(names):
            return None
        source = self.source.select(*(f"`{names[at]}`" for at in positions))
        return DataFrameOrigin(source, pa.schema([self.wire.field(at) for at in positions]))

    def partitions(self) -> int:
        found = planner_of(self.source.sparkSession).partitions(self.source)
        if found is None:
            raise UnsupportedError("over Spark Connect the partitions of a DataFrame cannot be counted")
        return found

    def is_reproducible(self) -> bool:
        return planner_of(self.source.sparkSession).is_reproducible(self.source)

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return ()

    def lines(self) -> list[str]:
        return [f"rows of DataFrame[{', '.join(self.source.columns)}]"]

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        source: Any = self.source
        # through its text: Py4J gives a Python int, but only up to a long
        size = str(source._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())
        return int(size), self.source.schema


@dataclass(frozen=True)
class ParquetOrigin(Origin):
    """Parquet files, scanned by the workers. ``file_columns``: in the order of ``wire``. ``filters``: Arrow
    expressions over ``wire`` that all must be true."""

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

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        """What the scan reads of its files: the bytes of the row groups and columns that it needs."""
        case_sensitive = self.files.source.rules.case_sensitive
        names = {folded(name, case_sensitive) for name in self.file_columns}
        size = sum(self.plan.column_bytes.get(name, 0) for name in names)
        spark: Any = self.spark
        factor = float(spark._jsparkSession.sessionState().conf().fileCompressionFactor())
        return math.ceil(size * factor), from_arrow_schema(self.wire)

    @property
    def splits(self) -> list[tuple[Piece, ...]]:
        """What each task scans; where there is nothing to scan, one task scans that."""
        return self.plan.splits or [()]

    @once
    def plan(self) -> ScanPlan:
        """What is scanned. Decided once, because `rows` and `opening` must agree."""
        conf = self.spark.conf
        tasks = conf.get("spark.sql.files.minPartitionNum", None)
        packing = Packing(
            largest_split=parse_size(str(conf.get("spark.sql.files.maxPartitionBytes"))),
            open_cost=parse_size(str(conf.get("spark.sql.files.openCostInBytes"))),
            parallelism=int(tasks or planner_of(self.spark).parallelism()),
        )
        prune_by = _all_of([each for each in self.filters if may_prune(each, self.wire)])
        return self.files.plan(prune_by, packing, self.wire)


@dataclass(frozen=True)
class ExchangeOrigin(Origin):
    """The reading side of an exchange. ``order``: deliver in key order, None for the order of arrival."""

    exchange: Exchange
    order: RowOrder | None = None

    def rows(self) -> DataFrame:
        return self.exchange.control()

    def opening(self) -> ReadExchange:
        return ReadExchange(self.exchange.upstream.wire, self.order)

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

    def sliceable(self) -> list[ShuffleDependency]:
        return [self.exchange] if self.order is None and self.exchange.subpartitions > 1 else []

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return exchanged_size(self.exchange), self.exchange.upstream.schema


@dataclass(frozen=True, eq=False)
class TogetherOrigin(Origin):
    """Several exchanges of one number of subpartitions: partition s is what ``combine`` makes of subpartition
    s of each. ``inputs``: chains that begin with these exchanges."""

    inputs: tuple[Chain, ...]
    combine: CombineLegs

    def rows(self) -> DataFrame:
        exchanges = self.exchanges()
        planner = self.inputs[0].context.planner
        return planner.together([exchange.control_rows() for exchange in exchanges])

    def opening(self) -> Opening:
        return ReadTogether(tuple(input_of(chain) for chain in self.inputs), self.combine)

    def partitions(self) -> int:
        return self.exchanges()[0].placed_partitions()

    def is_reproducible(self) -> bool:
        return all(chain.is_reproducible() for chain in self.inputs)

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return exchanges_of(self.inputs)

    def lines(self) -> list[str]:
        return [self.combine.describe(), *lines_of(self.inputs)]

    def sliceable(self) -> list[ShuffleDependency]:
        found: list[ShuffleDependency] = []
        for chain, may_be in zip(self.inputs, self.combine.sliceable, strict=False):
            others = [each for each in self.inputs if each is not chain]
            (exchange,) = chain.origin.exchanges()
            repeatable = all(isinstance(step, PerBatchStep) for each in others for step in each.steps)
            distinct = all(exchange not in each.origin.exchanges() for each in others)
            if may_be and repeatable and distinct and takes_rows_as_they_come(chain.steps):
                found.append(exchange)
        return found

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return combined_size(self.inputs, only_first=self.combine.only_first)


@dataclass(frozen=True, eq=False)
class UnionOrigin(Origin):
    """The partitions of the first of these chains, then those of the next, and so on. All are of one wire
    schema."""

    inputs: tuple[Chain, ...]

    def rows(self) -> DataFrame:
        planner = self.inputs[0].context.planner
        return planner.zip_partitions([self._numbers, functools.reduce(DataFrame.unionAll, self._planned)])

    def opening(self) -> Opening:
        counts = tuple(chain.origin.partitions() for chain in self.inputs)
        return ReadUnion(tuple((chain.origin.opening(), chain.steps) for chain in self.inputs), counts)

    def partitions(self) -> int:
        return sum(chain.origin.partitions() for chain in self.inputs)

    def is_reproducible(self) -> bool:
        return all(chain.is_reproducible() for chain in self.inputs)

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return exchanges_of(self.inputs)

    def lines(self) -> list[str]:
        return ["union of", *lines_of(self.inputs)]

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return united_size(self.inputs)

    @once
    def _planned(self) -> list[DataFrame]:
        """The rows of each input, planned, so that nothing can join their partitions any more."""
        planner = self.inputs[0].context.planner
        wrapped = side_by_side([chain.origin.rows() for chain in self.inputs])
        return [planner.share(each.select(sf.lit(None).cast("long").alias("id"), "*")) for each in wrapped]

    @property
    def _numbers(self) -> DataFrame:
        """One row for each partition, with its number. A task that joins several of them, which Spark may
        make of what is built on these rows, has another number itself."""
        count = self.partitions()
        numbers = self.inputs[0].context.spark.range(0, count, 1, count)
        others = self._planned[0].schema.fields[1:]
        return numbers.select("id", *(sf.lit(None).cast(each.dataType).alias(each.name) for each in others))


@dataclass(frozen=True, eq=False)
class SparkUnionOrigin(Origin):
    """The same where the planner cannot zip: the inputs are stages of their own, and Spark puts their rows
    together. ``numbers``: of those stages."""

    inputs: tuple[Chain, ...]
    numbers: tuple[int, ...]

    def rows(self) -> DataFrame:
        return self._union.rows()

    def opening(self) -> Opening:
        return self._union.opening()

    def partitions(self) -> int:
        return self._union.partitions()

    def is_reproducible(self) -> bool:
        return all(chain.is_reproducible() for chain in self.inputs)

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return exchanges_of(self.inputs)

    def lines(self) -> list[str]:
        return ["union, by Spark, of", *lines_of(self.inputs)]

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        return united_size(self.inputs)

    @once
    def _union(self) -> DataFrameOrigin:
        frames = [
            staged(chain, number, ToSpark(), chain.schema)
            for chain, number in zip(self.inputs, self.numbers, strict=True)
        ]
        return DataFrameOrigin(functools.reduce(DataFrame.unionAll, frames), self.inputs[0].wire)


@dataclass(frozen=True, eq=False)
class CoalescedOrigin(Origin):
    """The partitions of a chain, several in each task, one after the other; at most ``count`` tasks."""

    chain: Chain
    count: int

    @staticmethod
    def takes(chain: Chain) -> bool:
        """Whether what Spark feeds to this chain tells its partitions apart."""
        return isinstance(chain.origin, tuple(_NUMBERED_BY))

    def rows(self) -> DataFrame:
        origin = self.chain.origin
        planner = self.chain.context.planner
        exchanges = [exchange.control_rows() for exchange in origin.exchanges()]
        # those that get no control rows are partitions, too
        rows = planner.together(exchanges, numbered=True) if exchanges else planner.share(origin.rows())
        return rows.coalesce(self.count)

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


# In which column of an origin's rows the number of the partition is that they are for
_NUMBERED_BY: dict[type, int] = {ExchangeOrigin: 1, TogetherOrigin: 1, ParquetOrigin: 0}


def side_by_side(frames: Sequence[DataFrame]) -> list[DataFrame]:
    """These frames with one schema: a struct column for each, which holds its rows and is null in others."""
    names = [f"input{at}" for at in range(len(frames))]
    wrapped = []
    for frame, own in zip(frames, names, strict=True):
        columns = [
            sf.struct(*(sf.col(f"`{column}`") for column in frame.columns)).alias(name)
            if name == own
            else sf.lit(None).cast(other.schema).alias(name)
            for other, name in zip(frames, names, strict=True)
        ]
        wrapped.append(frame.select(*columns))
    return wrapped


def input_of(chain: Chain) -> ChainInput:
    """A chain that begins with an exchange, as an opening reads it."""
    origin = chain.origin
    assert isinstance(origin, ExchangeOrigin)  # what operators put together begins with exchanges
    return ChainInput(origin.exchange.number, origin.opening(), chain.steps)


def exchanges_of(chains: Sequence[Chain]) -> tuple[ShuffleDependency, ...]:
    """Those that these chains read, each once."""
    return tuple(dict.fromkeys(exchange for chain in chains for exchange in chain.origin.exchanges()))


def lines_of(chains: Sequence[Chain]) -> list[str]:
    """A chain each: its origin and below it its steps."""
    lines = []
    for chain in chains:
        first, *others = chain.origin.lines()
        lines += [f"  * {first}", *(f"    {line}" for line in others)]
        lines += [f"    {step.describe()}" for step in chain.steps]
    return lines


def _are_plain(names: Sequence[str]) -> bool:
    distinct = {name.lower() for name in names if re.fullmatch(r"\w+", name)}
    return len(distinct) == len(names)


def _all_of(filters: Sequence[Any]) -> Any:
    return functools.reduce(operator.and_, filters) if filters else None
