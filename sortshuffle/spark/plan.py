"""What a frame is made of: a chain of steps on an origin, and exchanges between chains.

    Chain = origin + steps            one stage, up to where its rows are needed elsewhere
    origin                            a DataFrame, Parquet files, or an exchange
    Exchange = upstream chain + n     the stage that writes, and the control rows it hands to its readers

Chains are immutable values. An `Exchange` is built once, lazily, and then shared by everything derived from
it: its map stage runs once however many frames and actions read it. It is built together with the others of
the same rows (`spark.fanout`). Until it is built its extents may still be given an order
(`Exchange.ordered_by`), because rows in key order serve every reader.

Nothing here runs a job, but for what a placement must know of the rows (`spark.placements`). `Chain.frame`
puts a stage into Spark's plan.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol
from weakref import WeakValueDictionary, ref

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError
from sortshuffle.options import Options
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark import planner
from sortshuffle.spark.fanout import FanOuts, MapStage
from sortshuffle.spark.functions import FunctionConf
from sortshuffle.spark.map_output import WriteExchange
from sortshuffle.spark.placements import Placement, Scheme
from sortshuffle.spark.reports import SourceReports, wants_log
from sortshuffle.spark.scan import Packing, ParquetFiles, ParquetScan, Piece, may_prune
from sortshuffle.spark.schema import to_arrow
from sortshuffle.spark.session import check_workers, options_of, require_classic
from sortshuffle.spark.stages import (
    Closing,
    Opening,
    ReadExchange,
    Scan,
    SparkRows,
    Stage,
    Step,
)

_numbers = itertools.count(1)  # of exchanges and stages: unique in the driver, ascending along the data


@dataclass(frozen=True)
class FrameContext:
    """What all frames derived from one source share: the session's settings when it was made, their tasks'
    reports, and which exchanges are of the same rows."""

    spark: SparkSession
    options: Options
    conf: FunctionConf
    case_sensitive: bool
    reports: SourceReports
    fan_outs: FanOuts = field(default_factory=FanOuts)

    @staticmethod
    def of(spark: Any) -> FrameContext:
        """Read the session's settings. Raises `OptionError`, `UnsupportedError`."""
        session = require_classic(spark)
        return FrameContext(
            session,
            options_of(session),
            FunctionConf.of(session),
            str(session.conf.get("spark.sql.caseSensitive")).lower() == "true",
            SourceReports(session.sparkContext),
        )

    def wire(self, schema: StructType) -> pa.Schema:
        """The Arrow schema in which rows of this schema travel. Raises `UnsupportedError` for types that
        Arrow cannot carry, and for several columns of one name, which Spark's Arrow exchange refuses."""
        twins = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twins:
            raise UnsupportedError(
                f"several columns are named {', '.join(twins)}: rename all but one first, or leave them out"
            )
        return to_arrow(schema, self.conf.timezone)


class Origin(Protocol):
    """Where a chain begins."""

    def rows(self) -> DataFrame:
        """What Spark feeds to the stage's function."""

    def opening(self) -> Opening:
        """How the stage's function makes batches of that."""

    def is_reproducible(self) -> bool:
        """Whether a task that runs again sees the same rows in the same order."""

    def describe(self) -> str: ...


@dataclass(frozen=True)
class DataFrameOrigin:
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

    def is_reproducible(self) -> bool:
        return planner.is_reproducible(self.source)

    def describe(self) -> str:
        return f"rows of DataFrame[{', '.join(self.source.columns)}]"


@dataclass(frozen=True)
class ParquetOrigin:
    """Parquet files, scanned by the workers. ``file_columns``: in the order of ``wire``. ``filters``: Arrow
    expressions over ``wire`` that all must be true."""

    spark: SparkSession
    files: ParquetFiles
    file_columns: tuple[str, ...]
    wire: pa.Schema
    filters: tuple[Any, ...] = ()

    def rows(self) -> DataFrame:
        count = len(self.splits)
        return self.spark.range(0, count, 1, max(1, count))

    def opening(self) -> Opening:
        scan = ParquetScan(
            self.files.protocol, tuple(self.splits), self.file_columns, self.wire, _all_of(self.filters)
        )
        return Scan(scan)

    def is_reproducible(self) -> bool:
        return True

    def describe(self) -> str:
        where = f" where {_all_of(self.filters)}" if self.filters else ""
        return f"scan of {self.files.label}: {', '.join(self.wire.names)}{where}"

    @cached_property
    def splits(self) -> list[tuple[Piece, ...]]:
        """What each task scans. Decided once, because `rows` and `opening` must agree."""
        conf = self.spark.conf
        jvm_conf: Any = self.spark._jsparkSession.sessionState().conf()
        packing = Packing(
            largest_split=int(jvm_conf.filesMaxPartitionBytes()),
            open_cost=int(jvm_conf.filesOpenCostInBytes()),
            parallelism=int(
                conf.get("spark.sql.files.minPartitionNum", None)
                or self.spark.sparkContext.defaultParallelism
            ),
        )
        prune_by = _all_of([each for each in self.filters if may_prune(each, self.wire)])
        return self.files.splits(prune_by, packing)


@dataclass(frozen=True)
class ExchangeOrigin:
    """The reading side of an exchange. ``order``: deliver in key order, None for the order of arrival."""

    exchange: Exchange
    order: RowOrder | None = None

    def rows(self) -> DataFrame:
        return self.exchange.control()

    def opening(self) -> Opening:
        return ReadExchange(self.exchange.upstream.wire, self.order)

    def is_reproducible(self) -> bool:
        # the gate's order is fixed by the map outputs, which are as reproducible as their own inputs
        return self.exchange.upstream.is_reproducible()

    def describe(self) -> str:
        ordered = "" if self.order is None else ", in key order"
        return f"exchange {self.exchange.number}{ordered}"


@dataclass(frozen=True)
class Chain:
    """An origin and the steps done on its rows in one pass. ``schema``: of the last step's rows."""

    context: FrameContext
    origin: Origin
    schema: StructType
    wire: pa.Schema
    steps: tuple[Step, ...] = ()

    def then(self, step: Step, schema: StructType) -> Chain:
        """The chain with one more step, which gives rows of ``schema``."""
        return replace(self, schema=schema, wire=self.context.wire(schema), steps=(*self.steps, step))

    def is_reproducible(self) -> bool:
        return self.origin.is_reproducible()

    def frame(
        self,
        number: int,
        closing: Closing,
        schema: StructType | str,
        *,
        steps: tuple[Step, ...] | None = None,
        purpose: str = "",
    ) -> DataFrame:
        """This chain as a stage in Spark's plan, ending in ``closing``, whose rows have ``schema``.

        ``steps``: its first ones, None for all. ``purpose``: for Spark's UI, such as "writes exchange 3".
        Raises `WorkerSetupError` if the workers cannot run it.
        """
        context = self.context
        check_workers(context.spark.sparkContext)
        stage = Stage(
            number,
            context.options,
            context.spark.sparkContext.applicationId,
            self.origin.opening(),
            self.steps if steps is None else steps,
            closing,
            context.reports.reporter,
            wants_log(),
        )

        def run(batches: Any) -> Any:
            return stage(batches)

        run.__name__ = _stage_name(number, self.origin, purpose)
        return self.origin.rows().mapInArrow(run, schema)


def _stage_name(number: int, origin: Origin, purpose: str) -> str:
    """What Spark's plans call a stage."""
    name = f"sortshuffle stage {number}"
    if isinstance(origin, ExchangeOrigin):
        name += f", reads exchange {origin.exchange.number}"
    return f"{name}, {purpose}" if purpose else name


def _are_plain(names: Sequence[str]) -> bool:
    distinct = {name.lower() for name in names if re.fullmatch(r"\w+", name)}
    return len(distinct) == len(names)


def _all_of(filters: Sequence[Any]) -> Any:
    return functools.reduce(operator.and_, filters) if filters else None


def next_number() -> int:
    """A number for a stage, greater than that of any stage it can depend on."""
    return next(_numbers)


@dataclass(eq=False)
class Exchange:
    """One shuffle. ``scheme``: how rows are placed. ``order``: positions of the upstream columns by which
    extents are sorted, empty for none.

    Everything that changes is guarded by the fan-out's lock.
    """

    upstream: Chain
    subpartitions: int
    scheme: Scheme
    order: tuple[int, ...] = ()
    number: int = field(default_factory=next_number)
    _stage: MapStage | None = field(default=None, init=False)
    _control: DataFrame | None = field(default=None, init=False)
    _placement: Placement | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # By their orders. Weak, because one that nobody wants any more must not be written; those that are
        # written are kept, for whoever asks for that order again.
        self._twins: WeakValueDictionary[tuple[int, ...], Exchange] = WeakValueDictionary()
        self._built_twins: list[Exchange] = []
        self._twin_of: ref[Exchange] | None = None
        self._fan_out = self.upstream.context.fan_outs.of(self.upstream)
        self._fan_out.add(self)

    def ordered_by(self, keys: tuple[int, ...]) -> Exchange:
        """This exchange with extents sorted by these columns; another one, of the same rows, where this one
        is built already, or sorted by something else."""
        with self._fan_out.lock:
            if self.order[: len(keys)] == keys:
                return self
            if self._control is None and keys[: len(self.order)] == self.order:
                self.order = keys
                return self
            twin = self._twins.get(keys)
            if twin is None:
                twin = self._twins[keys] = Exchange(self.upstream, self.subpartitions, self.scheme, keys)
                twin._twin_of = ref(self)
            return twin

    def control(self) -> DataFrame:
        """The control rows: partition s holds those of subpartition s. Planned once, with those of all
        exchanges of the same rows that wait."""
        with self._fan_out.lock:
            if self._control is None:
                self._fan_out.build()
            assert self._control is not None
            return self._control

    def stage(self) -> MapStage:
        """The stage that writes this exchange, or would if it were built now."""
        with self._fan_out.lock:
            return self._stage or self._fan_out.stage()

    def place(self) -> None:
        """Decide where rows go, and with that how many subpartitions there are: ranges may be fewer than were
        asked for. Called by the fan-out before `closing`; the scheme may run a job."""
        if self._placement is None:
            self._placement = self.scheme.placement(self.upstream)
            self.subpartitions = self._placement.count(self.subpartitions)

    def closing(self, first: int, steps: tuple[Step, ...]) -> WriteExchange:
        """What a map stage does for this exchange. ``first``: the partition of the control rows' shuffle
        that subpartition 0 is; ``steps``: of the upstream ones, those for this exchange alone."""
        assert self._placement is not None
        return WriteExchange(
            self.number,
            first,
            self.subpartitions,
            self._placement,
            self.upstream.wire,
            RowOrder(self.order) if self.order else None,
            self._names(self.order),
            steps,
        )

    def built(self, stage: MapStage, control: DataFrame) -> None:
        """Called by the fan-out, once."""
        self._stage, self._control = stage, control
        original = self._twin_of() if self._twin_of is not None else None
        if original is not None:
            original._built_twins.append(self)

    def describe(self) -> str:
        where = self.scheme.describe(self.upstream.schema.names)
        names = self._names(self.order)
        ordered = f", sorted by {', '.join(names)}" if names else ""
        return f"exchange {self.number}: {where} into {self.subpartitions} subpartitions{ordered}"

    def _names(self, positions: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.upstream.schema.names[position] for position in positions)
