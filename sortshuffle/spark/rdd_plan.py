"""What a `ShuffleRDD` is made of: a chain of steps on an origin, and exchanges between chains.

    RecordChain = origin + steps           one stage, up to where its records are needed elsewhere
    origin                                 an RDD of Spark's, or an exchange
    RecordExchange = upstream chain + n    the stage that writes, and the control rows it hands to its readers

Chains are immutable values. An exchange is built once, when it is first needed, and then shared by everything
derived from it: its map stage runs once however many RDDs and actions read it. Nothing here runs a job but
the look at what the workers have (`session.check_workers`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyspark import RDD, SparkContext
from pyspark.core.rdd import Partitioner
from pyspark.sql import SparkSession

from sortshuffle.options import Options
from sortshuffle.spark import rdd_planner
from sortshuffle.spark.key_selectors import selector_of
from sortshuffle.spark.plan import next_number
from sortshuffle.spark.rdd_stages import (
    ReadRecords,
    RecordClosing,
    RecordOpening,
    RecordStage,
    RecordsToSpark,
    SparkRecords,
    WriteRecords,
)
from sortshuffle.spark.rdd_steps import RecordStep
from sortshuffle.spark.reports import SourceReports, wants_log
from sortshuffle.spark.session import check_workers, options_of


@dataclass(frozen=True)
class RddContext:
    """What all RDDs derived from one source share: the settings of that time, and their tasks' reports."""

    spark: SparkContext
    options: Options
    reports: SourceReports

    @staticmethod
    def of(context: SparkContext) -> RddContext:
        """Read the ``spark.sortshuffle.*`` settings: of the active session, or else of the context. Raises
        `OptionError`."""
        session = SparkSession.getActiveSession()
        if session is not None and session.sparkContext is context:
            options = options_of(session)
        else:
            options = Options.of(dict(context.getConf().getAll()))
        return RddContext(context, options, SourceReports(context))


class RecordOrigin(Protocol):
    """Where a chain begins."""

    def rdd(self) -> RDD[Any]:
        """What Spark feeds to the stage's function."""

    def opening(self) -> RecordOpening:
        """How the stage's function makes records of that."""

    @property
    def partitions(self) -> int: ...

    def describe(self) -> str: ...


@dataclass(frozen=True)
class RddOrigin:
    """Any RDD; its own functions run in the same worker, ahead of the chain."""

    source: RDD[Any]

    def rdd(self) -> RDD[Any]:
        return self.source

    def opening(self) -> RecordOpening:
        return SparkRecords()

    @property
    def partitions(self) -> int:
        return int(self.source.getNumPartitions())

    def describe(self) -> str:
        return f"records of {type(self.source).__name__}"


@dataclass(frozen=True)
class ExchangeOrigin:
    """The reading side of an exchange."""

    exchange: RecordExchange

    def rdd(self) -> RDD[Any]:
        return self.exchange.control()

    def opening(self) -> RecordOpening:
        return ReadRecords()

    @property
    def partitions(self) -> int:
        return int(self.exchange.partitioner.numPartitions)

    def describe(self) -> str:
        return f"exchange {self.exchange.number}"


@dataclass(frozen=True)
class RecordChain:
    """An origin and the steps done on its records in one pass. ``partitioner``: by which its pairs are known
    to be placed, None if by nothing known."""

    context: RddContext
    origin: RecordOrigin
    partitioner: Partitioner | None
    steps: tuple[RecordStep, ...] = ()

    def then(self, step: RecordStep, preserves_partitioning: bool) -> RecordChain:
        """The chain with one more step."""
        partitioner = self.partitioner if preserves_partitioning else None
        return replace(self, partitioner=partitioner, steps=(*self.steps, step))

    def exchanged(self, partitioner: Partitioner) -> RecordChain:
        """The pairs of this chain, placed by ``partitioner``; the chain itself if they are so already."""
        if self.partitioner == partitioner:
            return self
        origin = ExchangeOrigin(RecordExchange(self, partitioner))
        return RecordChain(self.context, origin, partitioner)

    def stage(self, number: int, closing: RecordClosing) -> RecordStage:
        """This chain as the function of a stage."""
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
        )

    def rdd(self, number: int) -> RDD[Any]:
        """The records as an ordinary RDD, by stage ``number``. Raises `WorkerSetupError` if the workers
        cannot run it."""
        if isinstance(self.origin, RddOrigin) and not self.steps:
            return self.origin.source
        check_workers(self.context.spark)
        stage = self.stage(number, RecordsToSpark())
        known = self.partitioner is not None
        made: RDD[Any] = self.origin.rdd().mapPartitionsWithIndex(stage, preservesPartitioning=known)
        return made

    def exchanges(self) -> Iterator[RecordExchange]:
        """Those that the chain reads from, directly or not, sources first."""
        if isinstance(self.origin, ExchangeOrigin):
            yield from self.origin.exchange.upstream.exchanges()
            yield self.origin.exchange


@dataclass(eq=False)
class RecordExchange:
    """One shuffle of pairs. Its lock is held while it is built, which takes those of the exchanges that it
    reads from: always from a consumer to its producer."""

    upstream: RecordChain
    partitioner: Partitioner
    number: int = field(default_factory=next_number)
    _control: RDD[bytes] | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def control(self) -> RDD[bytes]:
        """The control rows: partition s holds those of subpartition s."""
        with self._lock:
            if self._control is None:
                self._control = self._built()
            return self._control

    def describe(self) -> str:
        function = self.partitioner.partitionFunc
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return f"exchange {self.number}: {name} into {self.partitioner.numPartitions} subpartitions"

    def _built(self) -> RDD[bytes]:
        chain, partitioner = self.upstream, self.partitioner
        check_workers(chain.context.spark)
        selector = selector_of(partitioner.partitionFunc, partitioner.numPartitions)
        stage = chain.stage(self.number, WriteRecords(self.number, selector))
        return rdd_planner.shuffled(chain.origin.rdd(), stage, partitioner, f"sortshuffle {self.describe()}")
