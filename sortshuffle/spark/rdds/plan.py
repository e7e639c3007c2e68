"""The plan of a `ShuffleRDD`: chains of steps, each on an origin, and exchanges between chains.

    RecordChain = origin + steps                     one stage
    origin                                           a Spark RDD, an exchange, or several inputs together
    RecordExchange = upstream chain + partitioner    the stage that writes, and the control rows for readers

Chains are immutable values. An exchange is built when it is first needed, and all chains derived from it
share it: its map stage runs once, however many RDDs and actions read it. Only two operations here run jobs:
the check of the workers (`session.check_workers`), and the sampling of keys for ranges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyspark import RDD, SparkContext
from pyspark.core.rdd import Partitioner, portable_hash
from pyspark.sql import SparkSession

from sortshuffle.options import Options
from sortshuffle.spark.plan.chain import next_number
from sortshuffle.spark.rdds import planner
from sortshuffle.spark.rdds.aggregations import PairAggregation
from sortshuffle.spark.rdds.holding_steps import CoGroup
from sortshuffle.spark.rdds.key_selectors import EvenSpread, selector_of
from sortshuffle.spark.rdds.multi_input import ReadPassed, ReadRecordsTogether, RecordInput
from sortshuffle.spark.rdds.ranges import Draws, KeyFunction, Ranges
from sortshuffle.spark.rdds.stages import (
    ReadRecords,
    RecordClosing,
    RecordOpening,
    RecordStage,
    RecordsToSpark,
    SparkRecords,
)
from sortshuffle.spark.rdds.steps import Step
from sortshuffle.spark.rdds.writing import PassRecords, WriteRecords
from sortshuffle.spark.session import progress, shared_storage
from sortshuffle.spark.session.control_shuffles import shuffle_before
from sortshuffle.spark.session.requirements import (
    check_workers,
    context_settings,
    require_running,
    settings_of,
)
from sortshuffle.spark.session.service import NO_SERVICE, ServiceSettings
from sortshuffle.spark.session.sparks_shuffle import check_sparks_shuffle
from sortshuffle.spark.worker.reports import SourceReports, report_at_end, wants_log


@dataclass(frozen=True)
class RddContext:
    """State that all RDDs of one source share: the settings as of its creation, and the reports of tasks."""

    spark: SparkContext
    options: Options
    reports: SourceReports
    services: ServiceSettings = NO_SERVICE

    @staticmethod
    def of(context: SparkContext) -> RddContext:
        """Read the ``spark.sortshuffle.*`` settings of the active session, or of the context if no session of
        it is active. Raises `OptionError`, and `StateError` if the context was stopped."""
        require_running(context)
        of_context = context_settings(context)
        session = SparkSession.getActiveSession()
        if session is not None and session.sparkContext is context:
            settings = settings_of(session)
        else:
            settings = of_context
        options = Options.of(settings)
        check_sparks_shuffle(of_context, options)
        application = context.applicationId
        services = ServiceSettings.of(options, application, of_context)
        report_at_end(context, options, application, services.key)
        progress.watch(context, options.progress, application)
        options = shared_storage.note_use(context, options, application)
        return RddContext(context, options, SourceReports(context), services)


class RecordOrigin(Protocol):
    """The source of a chain's records."""

    def rdd(self) -> RDD[Any]:
        """Return the RDD that Spark feeds to the stage's function."""

    def opening(self) -> RecordOpening:
        """Return the opening that makes records of the RDD's data in a task."""

    @property
    def partitions(self) -> int: ...

    def stages(self) -> Iterator[RecordExchange | PassedInput]:
        """Yield the stages that must run before, sources first."""

    def is_reproducible(self) -> bool:
        """Return whether a task that runs again gets the same records in the same order."""

    def describe(self) -> str: ...


@dataclass(frozen=True)
class RddOrigin:
    """Any RDD of PySpark's. Its own functions run in the same worker, before the chain."""

    source: RDD[Any]

    def rdd(self) -> RDD[Any]:
        return self.source

    def opening(self) -> RecordOpening:
        return SparkRecords()

    @property
    def partitions(self) -> int:
        return int(self.source.getNumPartitions())

    def stages(self) -> Iterator[RecordExchange | PassedInput]:
        yield from ()

    def is_reproducible(self) -> bool:
        return planner.is_reproducible(self.source)

    def describe(self) -> str:
        return f"records of {type(self.source).__name__}"


@dataclass(frozen=True)
class RecordExchangeOrigin:
    """The reading side of an exchange."""

    exchange: RecordExchange

    def rdd(self) -> RDD[Any]:
        return self.exchange.control()

    def opening(self) -> RecordOpening:
        return ReadRecords(self.exchange.number, self.exchange.upstream.context.options.codec)

    @property
    def partitions(self) -> int:
        return int(self.exchange.partitioner.numPartitions)

    def stages(self) -> Iterator[RecordExchange | PassedInput]:
        yield from self.exchange.upstream.origin.stages()
        yield self.exchange

    def is_reproducible(self) -> bool:
        # extents are read in the order of map tasks and regions, in whatever order map tasks finish
        return self.exchange.upstream.origin.is_reproducible()

    def describe(self) -> str:
        return f"exchange {self.exchange.number}"


@dataclass(frozen=True, eq=False)
class PassedInput:
    """One of several inputs, whose pairs are in place without an exchange. Its chain runs in a separate stage
    that passes the records to the next stage through Spark, partition by partition. ``number``: the number
    of that stage."""

    upstream: RecordChain
    number: int

    def rows(self, position: int) -> RDD[bytes]:
        chain = self.upstream
        check_workers(chain.context.spark, chain.context.services.key is not None)
        return planner.pass_rows(chain.origin.rdd(), chain.stage(self.number, PassRecords(position)))

    def describe(self) -> str:
        return "passed on where they are"


@dataclass(frozen=True)
class RecordsTogetherOrigin:
    """Several inputs with one partitioner, combined in each partition.

    An input is a `PassedInput`, or a chain whose steps run in this stage. The chain's origin is an exchange,
    or again several inputs.
    """

    inputs: tuple[RecordChain | PassedInput, ...]
    combine: CoGroup
    partitions: int

    @staticmethod
    def of(chains: Iterable[RecordChain], combine: CoGroup, partitions: int) -> RecordsTogetherOrigin:
        inputs = tuple(
            PassedInput(chain, next_number()) if isinstance(chain.origin, RddOrigin) else chain
            for chain in chains
        )
        return RecordsTogetherOrigin(inputs, combine, partitions)

    def rdd(self) -> RDD[Any]:
        exchanges = dict.fromkeys(self._exchanges())
        rows = [exchange.control() for exchange in exchanges]
        rows += [each.rows(position) for position, each in enumerate(self._passed_inputs())]
        return planner.unite(rows, self.partitions)

    def opening(self) -> RecordOpening:
        return self._opening(iter(range(len(list(self._passed_inputs())))))

    def _opening(self, positions: Iterator[int]) -> ReadRecordsTogether:
        """Make the opening. ``positions``: numbers for the passed inputs, in the order of reading."""
        inputs = []
        for each in self.inputs:
            if isinstance(each, PassedInput):
                inputs.append(RecordInput(ReadPassed(next(positions)), ()))
            elif isinstance(each.origin, RecordsTogetherOrigin):
                inputs.append(RecordInput(each.origin._opening(positions), each.steps))
            else:
                inputs.append(RecordInput(each.origin.opening(), each.steps))
        return ReadRecordsTogether(tuple(inputs), self.combine)

    def _passed_inputs(self) -> Iterator[PassedInput]:
        for each in self.inputs:
            if isinstance(each, PassedInput):
                yield each
            elif isinstance(each.origin, RecordsTogetherOrigin):
                yield from each.origin._passed_inputs()

    def _exchanges(self) -> Iterator[RecordExchange]:
        for each in self.inputs:
            if isinstance(each, PassedInput):
                continue
            if isinstance(each.origin, RecordsTogetherOrigin):
                yield from each.origin._exchanges()
            elif isinstance(each.origin, RecordExchangeOrigin):
                yield each.origin.exchange

    def stages(self) -> Iterator[RecordExchange | PassedInput]:
        found: dict[RecordExchange | PassedInput, None] = {}
        for each in self.inputs:
            if isinstance(each, PassedInput):
                found.update(dict.fromkeys(each.upstream.origin.stages()))
                found[each] = None
            else:
                found.update(dict.fromkeys(each.origin.stages()))
        yield from found

    def is_reproducible(self) -> bool:
        chains = (each.upstream if isinstance(each, PassedInput) else each for each in self.inputs)
        return all(chain.origin.is_reproducible() for chain in chains)

    def describe(self) -> str:
        return f"{self.combine.describe()} of {', '.join(map(_line, self.inputs))}"


def _line(each: RecordChain | PassedInput) -> str:
    if isinstance(each, PassedInput):
        return f"stage {each.number}"
    return " -> ".join([each.origin.describe(), *(step.describe() for step in each.steps)])


@dataclass(frozen=True)
class RecordChain:
    """An origin, and the steps that run on its records in one pass. ``partitioner``: the placement of the
    chain's pairs, None if unknown."""

    context: RddContext
    origin: RecordOrigin
    partitioner: Partitioner | None
    steps: tuple[Step, ...] = ()

    def then(self, step: Step, preserves_partitioning: bool) -> RecordChain:
        """Return this chain with one more step."""
        partitioner = self.partitioner if preserves_partitioning else None
        return replace(self, partitioner=partitioner, steps=(*self.steps, step))

    def place_by(self, partitioner: Partitioner, aggregation: PairAggregation | None = None) -> RecordChain:
        """Return a chain of this chain's pairs, placed by ``partitioner``; this chain if they already are.
        ``aggregation``: combines values before the shuffle."""
        if self.partitioner == partitioner:
            return self
        origin = RecordExchangeOrigin(RecordExchange(self, partitioner, aggregation))
        return RecordChain(self.context, origin, partitioner)

    def spread(self, count: int) -> RecordChain:
        """Return a chain of this chain's records, of any kind, spread evenly over ``count`` partitions."""
        if not self.origin.is_reproducible():
            # a map task that ran again would send other records to partitions that were already read; for its
            # own repartition, Spark runs their readers again, too
            return RecordChain(self.context, RddOrigin(self.rdd(next_number()).repartition(count)), None)
        return self._spread(count)

    def into_one(self) -> RecordChain:
        """Return a chain of this chain's records, of any kind, in one partition."""
        return self._spread(1)

    def _spread(self, count: int) -> RecordChain:
        exchange = RecordExchange(self, Partitioner(count, EvenSpread()), whole=True)
        return RecordChain(self.context, RecordExchangeOrigin(exchange), None)

    def place_by_ranges(self, count: int, keyfunc: KeyFunction, ascending: bool) -> RecordChain:
        """Return a chain of this chain's pairs, placed by ``count`` ranges of their keys."""
        ranges = Ranges(self._collect_draws, self.origin.partitions, count, keyfunc, ascending)
        return self.place_by(Partitioner(count, ranges))

    def together(self, others: Iterable[RecordChain], count: int, combine: CoGroup) -> RecordChain:
        """Return a chain over the pairs of this and other chains, placed by key into ``count`` partitions. It
        combines the groups of each key."""
        partitioner = Partitioner(count, portable_hash)
        inputs = [chain._placed_by(partitioner) for chain in (self, *others)]
        return RecordChain(self.context, RecordsTogetherOrigin.of(inputs, combine, count), partitioner)

    def stage(self, number: int, closing: RecordClosing) -> RecordStage:
        """Return the function that runs this chain as a stage."""
        context = self.context
        return RecordStage(
            number,
            context.options,
            context.spark.applicationId,
            self.origin.opening(),
            self.steps,
            closing,
            context.reports.reporter,
            wants_log(),
            context.services.for_stage(context.spark, lambda: planner.is_indeterminate(self.origin.rdd())),
        )

    def rdd(self, number: int) -> RDD[Any]:
        """Return the records as an ordinary RDD, made by stage ``number``. Raises `WorkerSetupError` if the
        workers cannot run it."""
        if isinstance(self.origin, RddOrigin) and not self.steps:
            return self.origin.source
        check_workers(self.context.spark, self.context.services.key is not None)
        stage = self.stage(number, RecordsToSpark())
        known = self.partitioner is not None
        made: RDD[Any] = self.origin.rdd().mapPartitionsWithIndex(stage, preservesPartitioning=known)
        return made

    def stages(self) -> Iterator[RecordExchange | PassedInput]:
        """Return the stages that run before this chain's own, sources first."""
        return self.origin.stages()

    def exchanges(self) -> Iterator[RecordExchange]:
        """Return the exchanges that the chain reads from, directly or not, sources first."""
        return (stage for stage in self.stages() if isinstance(stage, RecordExchange))

    def reports(self) -> Iterator[SourceReports]:
        """Yield the reports of each source of the chain: joins have several sources."""
        contexts = [self.context, *(stage.upstream.context for stage in self.stages())]
        yield from {id(context.reports): context.reports for context in contexts}.values()

    def is_in_place(self, partitioner: Partitioner) -> bool:
        """Return whether ``partitioner`` placed the chain's pairs, and Spark knows it."""
        if self.partitioner != partitioner:
            return False
        return not isinstance(self.origin, RddOrigin) or planner.is_placed_by(self.origin.source, partitioner)

    def _placed_by(self, partitioner: Partitioner) -> RecordChain:
        if self.is_in_place(partitioner):
            return self
        origin = RecordExchangeOrigin(RecordExchange(self, partitioner, lenient=True))
        return RecordChain(self.context, origin, partitioner)

    def _collect_draws(self, draw: Callable[[int, Iterable[Any]], Iterator[Draws]]) -> list[Draws]:
        draws: list[Draws] = self.rdd(next_number()).mapPartitionsWithIndex(draw).collect()
        return draws


@dataclass(eq=False)
class RecordExchange:
    """One shuffle of pairs. ``aggregation``, ``lenient``, ``whole``: as in `writing.WriteRecords`. Its lock
    is held while it is built, which takes the locks of the exchanges that it reads: the lock order is always
    from consumer to producer."""

    upstream: RecordChain
    partitioner: Partitioner
    aggregation: PairAggregation | None = None
    lenient: bool = False
    whole: bool = False
    number: int = field(default_factory=next_number)
    _control: RDD[bytes] | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def control(self) -> RDD[bytes]:
        """Return the control rows; partition s holds those of subpartition s."""
        with self._lock:
            if self._control is None:
                self._control = self._build()
            return self._control

    def describe(self) -> str:
        function = self.partitioner.partitionFunc
        if isinstance(function, Ranges):
            name = f"ranges of keys, {function.direction},"
        else:
            name = getattr(function, "__qualname__", type(function).__qualname__)
        combined = f", {self.aggregation.describe()} before" if self.aggregation else ""
        return f"exchange {self.number}: {name} into {self.partitioner.numPartitions} subpartitions{combined}"

    def _build(self) -> RDD[bytes]:
        chain, partitioner = self.upstream, self.partitioner
        check_workers(chain.context.spark, chain.context.services.key is not None)
        selector = selector_of(partitioner.partitionFunc, partitioner.numPartitions)
        closing = WriteRecords(self.number, selector, self.aggregation, self.lenient, self.whole)
        stage = chain.stage(self.number, closing)
        control = planner.shuffle_rows(
            chain.origin.rdd(), stage, partitioner, f"sortshuffle {self.describe()}"
        )
        context = chain.context
        jvm_rdd = planner.jvm_rdd(control)
        context.services.remember(context.spark, self.number, lambda: shuffle_before(jvm_rdd))
        return control
