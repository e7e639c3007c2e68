"""The plan behind a frame: a chain of steps on an origin.

    Chain = origin + steps            one stage, up to the point where its rows are needed elsewhere
    Origin                            a DataFrame, Parquet files or exchanges (`spark.plan.origins`)
    ShuffleDependency                 a chain's view of an exchange that it reads: the stage that writes it,
                                      and the control rows for its readers (`spark.plan.exchange`)
    Rows = chain + layout             what operators take and return, and a frame wraps; a join may broadcast
                                      them if they are marked

Chains and rows are immutable values. Making them runs no job, but calling an exchange's methods may.
`spark.plan.staging` puts a chain into Spark's plan.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError
from sortshuffle.options import Options
from sortshuffle.payload.ordering import SortKey
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.plan.measured_sizes import Sizes
from sortshuffle.spark.schema import to_arrow
from sortshuffle.spark.session import progress, shared_storage
from sortshuffle.spark.session.planner import ControlRows, Planner
from sortshuffle.spark.session.planner_choice import planner_of
from sortshuffle.spark.session.requirements import application_of, context_of, require_session
from sortshuffle.spark.session.service import NO_SERVICE, HostService, ServiceSettings
from sortshuffle.spark.session.session_settings import SessionSettings
from sortshuffle.spark.worker.reports import SourceReports, report_at_end
from sortshuffle.spark.worker.stages import Opening, Step

_numbers = itertools.count(1)  # of exchanges and stages: unique in the driver, ascending along the data


def next_number() -> int:
    """Return a number for a new stage, greater than that of any stage it can depend on."""
    return next(_numbers)


@dataclass(frozen=True)
class FrameContext:
    """What all frames derived from one source share: the session's settings at the time the source was made,
    the reports of their tasks, and the record of exchanges that have the same rows. ``fan_outs``:
    `spark.plan.fanout.FanOut`s by `RowSource`, held weakly; only `fanout.fan_out_of` uses it.
    ``cached_rows``: what Spark's cache has; only `plan.spark_cache` uses it."""

    spark: SparkSession
    options: Options
    conf: FunctionConf
    case_sensitive: bool
    reports: SourceReports
    planner: Planner
    services: ServiceSettings = NO_SERVICE
    fan_outs: WeakValueDictionary[Any, Any] = field(default_factory=WeakValueDictionary, compare=False)
    cached_rows: dict[tuple[int, ...], tuple[Chain, Origin, DataFrame]] = field(
        default_factory=dict, compare=False
    )

    @staticmethod
    def of(spark: Any) -> FrameContext:
        """Take the session's current settings. Raises `OptionError`, `UnsupportedError`."""
        session = require_session(spark)
        settings = SessionSettings.of(session)
        options, context, application = settings.options, context_of(session), settings.application
        report_at_end(context, options, application, settings.services.key)
        progress.watch(context, options.progress, application)
        return FrameContext(
            session,
            shared_storage.note_use(context, options, application),
            settings.conf,
            settings.case_sensitive,
            SourceReports.of(session),
            planner_of(session),
            settings.services,
        )

    def shuffle_partitions(self) -> int:
        """Return the number of subpartitions of an exchange for which the user gives none."""
        return int(str(self.spark.conf.get("spark.sql.shuffle.partitions")))

    def spark_context(self) -> Any:
        """Return the SparkContext; None over Spark Connect."""
        return context_of(self.spark)

    def host_service(self) -> HostService:
        """Return what a task needs to reach the shuffle service of its host."""
        return HostService(self.options, application_of(self.spark), self.services)

    def wire(self, schema: StructType) -> pa.Schema:
        """Return the Arrow schema in which rows of this schema travel. Raises `UnsupportedError` for types
        that Arrow cannot carry, and for several columns of one name, which Spark's Arrow exchange refuses."""
        if len(set(schema.names)) < len(schema.names):
            names = sorted({name for name in schema.names if schema.names.count(name) > 1})
            raise UnsupportedError(
                f"several columns are named {', '.join(names)}: rename all but one first, or leave them out"
            )
        return to_arrow(schema, self.conf.timezone)


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known about the placement and the order of a frame's rows.

    ``placed_by``: positions of the columns whose Spark hash places the rows, into ``partitions`` partitions;
    None if unknown. ``ordered_by``: the order of the rows within every partition; empty if unknown.
    ``is_default``: whether the user did not ask for this number of partitions.
    """

    placed_by: tuple[int, ...] | None = None
    partitions: int | None = None
    ordered_by: tuple[SortKey, ...] = ()
    is_default: bool = False

    def selected(self, positions: Sequence[int]) -> Layout:
        """Return what is known of the rows after a selection of the columns at these positions."""
        ordered = tuple(
            replace(key, column=positions.index(key.column))
            for key in itertools.takewhile(lambda key: key.column in positions, self.ordered_by)
        )
        if self.placed_by is None or not set(self.placed_by) <= set(positions):
            return Layout(ordered_by=ordered)
        placed_by = tuple(positions.index(key) for key in self.placed_by)
        return replace(self, placed_by=placed_by, ordered_by=ordered)


UNKNOWN_LAYOUT = Layout()


@dataclass(frozen=True, slots=True)
class Branch:
    """What a map stage does for one exchange: the ``steps`` for it alone; ``text`` describes the exchange."""

    exchange: int
    steps: tuple[Step, ...]
    text: str


@dataclass(frozen=True, slots=True)
class MapStage:
    """One pass over rows that one or several exchanges need. ``steps``: those common to all branches.
    ``ends``: if tasks read several partitions, for each the number after that of its last one (`coalescing`).
    """

    number: int
    steps: tuple[Step, ...]
    branches: tuple[Branch, ...]
    ends: tuple[int, ...] | None = None


class ShuffleDependency(Protocol):
    """An exchange (`spark.plan.exchange`), as seen by the chains that read it."""

    @property
    def number(self) -> int: ...

    @property
    def upstream(self) -> Chain: ...

    @property
    def subpartitions(self) -> int: ...

    @property
    def is_default(self) -> bool:
        """Whether the user did not ask for this number of subpartitions."""

    @property
    def is_built(self) -> bool:
        """Whether the stage that writes it is in a plan."""

    @property
    def is_counted(self) -> bool:
        """Whether the number of subpartitions can be determined at once, without waiting or a job."""

    @property
    def is_measured(self) -> bool:
        """Whether `sizes` are known."""

    def control_rows(self) -> ControlRows:
        """Return the control rows, for the planner."""

    def placed_partitions(self) -> int:
        """Return the final number of subpartitions. May run a job."""

    def sizes(self) -> Sizes:
        """Return the sizes of the subpartitions. The first call runs the map stage."""

    def measured(self, sizes: Sizes) -> None:
        """Record the sizes, which somebody else has measured."""

    def stage(self) -> MapStage:
        """Return the stage that writes this exchange, or that would if it were built now."""

    def leave_to_spark(self) -> None:
        """Note that Spark keeps a plan that reads this exchange. Otherwise its map outputs are deleted once
        Python has no reader of it."""


class Origin(ABC):
    """The beginning of a chain."""

    @abstractmethod
    def rows(self) -> DataFrame:
        """Return the DataFrame that Spark feeds to the stage's function."""

    @abstractmethod
    def opening(self) -> Opening:
        """Return the opening that makes batches of these rows in the worker."""

    @abstractmethod
    def partitions(self) -> int:
        """Return the number of partitions. May plan `rows`; if an exchange must be placed, may run a job."""

    @abstractmethod
    def is_reproducible(self) -> bool:
        """Return whether a task that runs again sees the same rows in the same order."""

    @abstractmethod
    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        """Return the exchanges that the origin reads, each once."""

    @abstractmethod
    def lines(self) -> list[str]:
        """Return the origin's lines in `explain()`."""

    def sliceable(self) -> list[ShuffleDependency]:
        """Return the exchanges whose subpartitions may be divided among several tasks, as far as the origin
        is concerned (`spark.plan.skew`)."""
        return []

    def coalesced(self, chain: Chain, count: int, ends: tuple[int, ...] = ()) -> Origin | None:
        """Return what reads the rows of ``chain``, which begins with this origin, in at most ``count`` tasks;
        None if the rows that Spark feeds to it do not carry the numbers of their partitions. ``ends``: for
        each task the number after that of its last partition; empty: Spark chooses."""
        return None

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        """Return the approximate size of the rows in bytes (`spark.plan.estimated_sizes`), and their schema;
        None for either if unknown."""
        return None, None


@dataclass(frozen=True, eq=False)
class WrappedOrigin(Origin):
    """Delegates to ``origin`` what `Origin` leaves abstract. It is not sliced, and its size is unknown."""

    origin: Origin

    def rows(self) -> DataFrame:
        return self.origin.rows()

    def opening(self) -> Opening:
        return self.origin.opening()

    def partitions(self) -> int:
        return self.origin.partitions()

    def is_reproducible(self) -> bool:
        return self.origin.is_reproducible()

    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        return self.origin.exchanges()

    def lines(self) -> list[str]:
        return self.origin.lines()


@dataclass(frozen=True)
class Chain:
    """An origin, and the steps applied to its rows in one pass. ``schema``: that of the last step's rows."""

    context: FrameContext
    origin: Origin
    schema: StructType
    wire: pa.Schema
    steps: tuple[Step, ...] = ()

    def then(self, step: Step, schema: StructType) -> Chain:
        """Return the chain with one more step, whose rows have ``schema``."""
        return replace(self, schema=schema, wire=self.context.wire(schema), steps=(*self.steps, step))

    def is_reproducible(self) -> bool:
        return self.origin.is_reproducible()

    def exchanges(self) -> Iterator[ShuffleDependency]:
        """Yield the exchanges that the chain reads, directly or indirectly, each once, sources first."""
        seen: set[ShuffleDependency] = set()
        for exchange in self.origin.exchanges():
            for each in (*exchange.upstream.exchanges(), exchange):
                if each not in seen:
                    seen.add(each)
                    yield each

    def leave_to_spark(self) -> None:
        """Note that Spark keeps a plan of these rows (`ShuffleDependency.leave_to_spark`)."""
        for exchange in self.exchanges():
            exchange.leave_to_spark()

    def reports(self) -> list[SourceReports]:
        """Return the reports that the tasks of all its stages write to."""
        contexts = [self.context, *(exchange.upstream.context for exchange in self.exchanges())]
        return list(dict.fromkeys(context.reports for context in contexts))


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a frame, as operators take and return them. ``broadcast``: whether a join may send all rows
    to each of its tasks, as `sortshuffle.broadcast` requests."""

    chain: Chain
    layout: Layout = UNKNOWN_LAYOUT
    broadcast: bool = False

    @property
    def context(self) -> FrameContext:
        return self.chain.context

    @property
    def schema(self) -> StructType:
        return self.chain.schema

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)
