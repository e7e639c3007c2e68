"""What a frame is made of: a chain of steps on an origin.

    Chain = origin + steps            one stage, up to where its rows are needed elsewhere
    origin                            a DataFrame, Parquet files, exchanges (`spark.origins`)
    Exchange = upstream chain + n     the stage that writes, and the control rows it hands to its readers
                                      (`spark.exchange`)

Chains are immutable values. Nothing here runs a job, but for what a placement must know of the rows
(`spark.placements`). `Chain.frame` puts a stage into Spark's plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sortshuffle.errors import UnsupportedError
from sortshuffle.options import Options
from sortshuffle.payload.ordering import SortKey
from sortshuffle.spark import shared_storage, skew
from sortshuffle.spark.fanout import FanOuts
from sortshuffle.spark.functions import FunctionConf
from sortshuffle.spark.planning import Planner, planner_of
from sortshuffle.spark.reports import SourceReports, wants_log
from sortshuffle.spark.schema import to_arrow
from sortshuffle.spark.service import NO_SERVICE, HostService, ServiceSettings
from sortshuffle.spark.session import (
    application_of,
    check_workers,
    context_of,
    context_settings,
    require_session,
    settings_of,
)
from sortshuffle.spark.sparks_shuffle import check_sparks_shuffle
from sortshuffle.spark.stages import Closing, Stage, Step

if TYPE_CHECKING:
    from sortshuffle.spark.exchange import Exchange
    from sortshuffle.spark.origins import Origin

_numbers = itertools.count(1)  # of exchanges and stages: unique in the driver, ascending along the data


def next_number() -> int:
    """A number for a stage, greater than that of any stage it can depend on."""
    return next(_numbers)


@dataclass(frozen=True)
class FrameContext:
    """What all frames derived from one source share: the session's settings when it was made, their tasks'
    reports, and which exchanges are of the same rows."""

    spark: SparkSession
    options: Options
    conf: FunctionConf
    case_sensitive: bool
    reports: SourceReports
    planner: Planner
    fan_outs: FanOuts
    services: ServiceSettings = NO_SERVICE

    @staticmethod
    def of(spark: Any) -> FrameContext:
        """Read the session's settings. Raises `OptionError`, `UnsupportedError`."""
        session = require_session(spark)
        planner = planner_of(session)
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
            planner,
            FanOuts(shared=planner.keeps),
            ServiceSettings.of(options, application, of_context),
        )

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

    def exchanges(self) -> Iterator[Exchange]:
        """Those that the chain reads from, directly or not, each once, sources first."""
        seen: set[Exchange] = set()
        for exchange in self.origin.exchanges():
            for each in (*exchange.upstream.exchanges(), exchange):
                if each not in seen:
                    seen.add(each)
                    yield each

    def reports(self) -> list[SourceReports]:
        """Where the tasks of all its stages report."""
        contexts = [self.context, *(exchange.upstream.context for exchange in self.exchanges())]
        return list(dict.fromkeys(context.reports for context in contexts))

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
        check_workers(context.spark, context.services.key is not None)
        origin = skew.laid_out(self)
        rows = origin.rows()
        stage = Stage(
            number,
            context.options,
            application_of(context.spark),
            origin.opening(),
            self.steps if steps is None else steps,
            closing,
            context.reports.reporter,
            wants_log(),
            context.services.planned(context.spark_context(), lambda: context.planner.is_indeterminate(rows)),
        )

        def run(batches: Any) -> Any:
            return stage(batches)

        run.__name__ = stage_name(number, origin, purpose)
        return rows.mapInArrow(run, schema)


def stage_name(number: int, origin: Origin, purpose: str = "") -> str:
    """What Spark's plans call a stage."""
    name = f"sortshuffle stage {number}"
    read = [str(exchange.number) for exchange in origin.exchanges()]
    if read:
        name += f", reads exchange {', '.join(read)}"
    return f"{name}, {purpose}" if purpose else name
