"""What a frame is made of: a chain of steps on an origin.

    Chain = origin + steps            one stage, up to where its rows are needed elsewhere
    Origin                            a DataFrame, Parquet files, exchanges (`spark.plan.origins`)
    ShuffleDependency                 what a chain knows of an exchange that it reads: the stage that writes,
                                      and the control rows it hands to its readers (`spark.plan.exchange`)
    Rows = chain + layout             what operators take and give, and a frame wraps; also whether a join may
                                      broadcast them

Chains and rows are immutable values. Making them runs no job; asking an exchange may. `spark.plan.staging`
puts a chain into Spark's plan.
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
from sortshuffle.spark.session import shared_storage
from sortshuffle.spark.session.planner import ControlRows, Planner
from sortshuffle.spark.session.planner_choice import planner_of
from sortshuffle.spark.session.requirements import (
    application_of,
    context_of,
    context_settings,
    require_session,
    settings_of,
)
from sortshuffle.spark.session.service import NO_SERVICE, HostService, ServiceSettings
from sortshuffle.spark.session.sparks_shuffle import check_sparks_shuffle
from sortshuffle.spark.worker.reports import SourceReports
from sortshuffle.spark.worker.stages import Opening, Step

_numbers = itertools.count(1)  # of exchanges and stages: unique in the driver, ascending along the data


def next_number() -> int:
    """A number for a stage, greater than that of any stage it can depend on."""
    return next(_numbers)


@dataclass(frozen=True)
class FrameContext:
    """What all frames derived from one source share: the session's settings when it was made, their tasks'
    reports, and which exchanges are of the same rows. ``fan_outs``: `spark.plan.fanout.FanOut`s by their
    `RowSource`, held weakly; only `fanout.fan_out_of` touches it."""

    spark: SparkSession
    options: Options
    conf: FunctionConf
    case_sensitive: bool
    reports: SourceReports
    planner: Planner
    services: ServiceSettings = NO_SERVICE
    fan_outs: WeakValueDictionary[Any, Any] = field(default_factory=WeakValueDictionary, compare=False)

    @staticmethod
    def of(spark: Any) -> FrameContext:
        """Read the session's settings. Raises `OptionError`, `UnsupportedError`."""
        session = require_session(spark)
        of_context, options = context_settings(session), Options.of(settings_of(session))
        check_sparks_shuffle(of_context, options)
        application = application_of(session)
        options = shared_storage.use(context_of(session), options, application)
        return FrameContext(
            session,
            options,
            FunctionConf.of(session),
            str(session.conf.get("spark.sql.caseSensitive")).lower() == "true",
            SourceReports.of(session),
            planner_of(session),
            ServiceSettings.of(options, application, of_context),
        )

    def shuffle_partitions(self) -> int:
        """How many subpartitions an exchange has where the user names no number."""
        return int(str(self.spark.conf.get("spark.sql.shuffle.partitions")))

    def spark_context(self) -> Any:
        """The SparkContext; None over Spark Connect."""
        return context_of(self.spark)

    def host_service(self) -> HostService:
        """What a task asks of its host's shuffle service."""
        return HostService(self.options, application_of(self.spark), self.services)

    def wire(self, schema: StructType) -> pa.Schema:
        """The Arrow schema in which rows of this schema travel. Raises `UnsupportedError` for types that
        Arrow cannot carry, and for several columns of one name, which Spark's Arrow exchange refuses."""
        twins = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twins:
            raise UnsupportedError(
                f"several columns are named {', '.join(twins)}: rename all but one first, or leave them out"
            )
        return to_arrow(schema, self.conf.timezone)


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known of where a frame's rows are.

    ``placed_by``: positions of the columns by whose Spark hash the rows are placed, into ``partitions``
    partitions, None if by nothing known. ``ordered_by``: how every partition is sorted, empty if not known.
    """

    placed_by: tuple[int, ...] | None = None
    partitions: int | None = None
    ordered_by: tuple[SortKey, ...] = ()

    def selected(self, positions: Sequence[int]) -> Layout:
        """What is still known when only the columns at these positions are left, in this order."""
        ordered = tuple(
            replace(key, column=positions.index(key.column))
            for key in itertools.takewhile(lambda key: key.column in positions, self.ordered_by)
        )
        if self.placed_by is None or not set(self.placed_by) <= set(positions):
            return Layout(ordered_by=ordered)
        return Layout(tuple(positions.index(key) for key in self.placed_by), self.partitions, ordered)


UNKNOWN_LAYOUT = Layout()


@dataclass(frozen=True, slots=True)
class Branch:
    """What a map stage does for one exchange: ``steps`` on its batches alone, and then as in ``text``."""

    exchange: int
    steps: tuple[Step, ...]
    text: str


@dataclass(frozen=True, slots=True)
class MapStage:
    """One pass over rows that are needed in several places, or in one. ``steps``: what all have in common."""

    number: int
    steps: tuple[Step, ...]
    branches: tuple[Branch, ...]


class ShuffleDependency(Protocol):
    """An exchange (`spark.plan.exchange`), as far as chains that read it know it."""

    @property
    def number(self) -> int: ...

    @property
    def upstream(self) -> Chain: ...

    @property
    def subpartitions(self) -> int: ...

    @property
    def is_counted(self) -> bool:
        """Whether it can be told at once how many subpartitions there are."""

    @property
    def is_measured(self) -> bool:
        """Whether `sizes` are known."""

    def control_rows(self) -> ControlRows:
        """The control rows, for the planner."""

    def placed_partitions(self) -> int:
        """How many subpartitions there are in the end. May run a job."""

    def sizes(self) -> Sizes:
        """How large its subpartitions are. Runs the map stage, once."""

    def stage(self) -> MapStage:
        """The stage that writes this exchange, or would if it were built now."""


class Origin(ABC):
    """Where a chain begins."""

    @abstractmethod
    def rows(self) -> DataFrame:
        """What Spark feeds to the stage's function."""

    @abstractmethod
    def opening(self) -> Opening:
        """How the stage's function makes batches of that."""

    @abstractmethod
    def partitions(self) -> int:
        """How many there are. Plans, if need be; an exchange's are known when it is placed, which may run a
        job."""

    @abstractmethod
    def is_reproducible(self) -> bool:
        """Whether a task that runs again sees the same rows in the same order."""

    @abstractmethod
    def exchanges(self) -> tuple[ShuffleDependency, ...]:
        """Those that it reads, each once."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What `explain()` says of it."""

    def sliceable(self) -> list[ShuffleDependency]:
        """The exchanges whose subpartitions several tasks may read, as far as it is for the origin to say
        (`spark.plan.skew`)."""
        return []

    def size_and_schema(self) -> tuple[int | None, StructType | None]:
        """About how many bytes its rows have (`spark.plan.estimated_sizes`), and their schema; None where
        that is not known."""
        return None, None


@dataclass(frozen=True, eq=False)
class WrappedOrigin(Origin):
    """``origin`` with some of its answers replaced by a subclass."""

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

    def exchanges(self) -> Iterator[ShuffleDependency]:
        """Those that the chain reads from, directly or not, each once, sources first."""
        seen: set[ShuffleDependency] = set()
        for exchange in self.origin.exchanges():
            for each in (*exchange.upstream.exchanges(), exchange):
                if each not in seen:
                    seen.add(each)
                    yield each

    def reports(self) -> list[SourceReports]:
        """Where the tasks of all its stages report."""
        contexts = [self.context, *(exchange.upstream.context for exchange in self.exchanges())]
        return list(dict.fromkeys(context.reports for context in contexts))


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a frame, as its operators take and give them. ``broadcast``: a join may give all of them to
    each of its tasks, as `sortshuffle.broadcast` asks."""

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
