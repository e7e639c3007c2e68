"""Task reports: the figures of tasks, for the driver and for the workers' logs.

Each task adds one report, under its source, stage and partition. The report of a later attempt replaces that
of an earlier one, so retries are not counted twice. A task may run a stage several times, for partitions that
Spark has coalesced; then the reports of one attempt are summed. Spark delivers the reports of successful
tasks before the job ends. A failed task leaves only its line in the log.

All sources of an application share one Spark accumulator, because PySpark never frees accumulators. Its value
on the driver is a ledger with weak references to the reports of each source. Updates for dead sources are
dropped.

The task writes its line to the log itself: Python logging, logger `LOGGER`, level INFO.
"""

from __future__ import annotations

import copy
import itertools
import logging
import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.metrics import FIGURES, TaskMetrics
from sortshuffle.options import Options
from sortshuffle.spark.session.application_report import note_use
from sortshuffle.spark.session.requirements import context_of

LOGGER = "sortshuffle.task"
MOST_STAGES = 1000  # of sources that are gone, 3 KB each; as many as Spark keeps (spark.ui.retainedStages)
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Key = tuple[int, int]
"""(stage number of the frame, partition)."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The figures of one task. ``wall``: seconds from its start to its end. ``directory``: of its map
    outputs, empty if it wrote none. ``outputs``: figures of each exchange that it wrote, by number;
    ``metrics`` includes them. ``attempt``: Spark's number of the attempt, unique in the application."""

    metrics: TaskMetrics
    wall: float
    directory: str = ""
    outputs: dict[int, TaskMetrics] = field(default_factory=dict)
    attempt: int = 0

    def __add__(self, other: TaskReport) -> TaskReport:
        """Add up two runs in one attempt. ``outputs`` are not summed: a stage that writes runs only once."""
        metrics = TaskMetrics()
        metrics.merge(self.metrics)
        metrics.merge(other.metrics)
        directory, outputs = self.directory or other.directory, {**self.outputs, **other.outputs}
        return TaskReport(metrics, self.wall + other.wall, directory, outputs, self.attempt)


# ---- from the tasks to the driver ---------------------------------------------------------------------

Updates = dict[tuple[int, Key], TaskReport]
"""Reports by (source, key), sent to the driver."""


class SourceReports:
    """The reports of all stages that read from one source. ``reporter``: sends the reports of their tasks.

    ``context``: None over Spark Connect: then no report arrives, and tasks only log.
    """

    def __init__(self, context: SparkContext | None) -> None:
        self._reports: dict[Key, TaskReport] = {}
        self.reporter: Reporter = NullReporter() if context is None else _ledger_of(context).enter(self)

    @staticmethod
    def of(spark: SparkSession) -> SourceReports:
        """Return the empty reports of a new source in this session."""
        return SourceReports(context_of(spark))

    @property
    def arrive(self) -> bool:
        """Whether reports arrive at all."""
        return not isinstance(self.reporter, NullReporter)

    @property
    def value(self) -> dict[Key, TaskReport]:
        """A copy of the reports so far: more may arrive at any time."""
        return dict(self._reports)

    def add(self, key: Key, report: TaskReport) -> None:
        earlier = self._reports.get(key)
        if earlier is not None and earlier.attempt == report.attempt:
            report = earlier + report
        self._reports[key] = report


class Reporter(Protocol):
    """Sends the reports of tasks."""

    def add(self, stage: int, partition: int, report: TaskReport) -> None: ...


@dataclass(frozen=True, slots=True)
class NullReporter:
    """Drops reports, because there is no way back to the driver."""

    def add(self, stage: int, partition: int, report: TaskReport) -> None:
        return


@dataclass(frozen=True, slots=True)
class AccumulatorReporter:
    """Reports through Spark's accumulator."""

    accumulator: Accumulator[Any]
    source: int

    def add(self, stage: int, partition: int, report: TaskReport) -> None:
        self.accumulator.add({(self.source, (stage, partition)): report})


class _Ledger:
    """The value of the accumulator on the driver: passes reports on to their sources.

    If it ``keeps`` totals, those of sources that are gone stay, summed up by stage: of very many stages, of
    those that took longest."""

    def __init__(self, context: SparkContext) -> None:
        self.keeps = False
        self._numbers = itertools.count(1)
        self._sources: WeakValueDictionary[int, SourceReports] = WeakValueDictionary()
        self._accumulator: Accumulator[Any] = context.accumulator(self, _Delivery())
        # Of sources that are gone. The garbage collector appends, at any time, so there is no lock.
        self._left: deque[dict[Key, TaskReport]] = deque()
        self._totals: dict[int, StageTotals] = {}
        self._lock = threading.Lock()  # of _totals

    def enter(self, reports: SourceReports) -> Reporter:
        number = next(self._numbers)
        self._sources[number] = reports
        # not when Python exits: then the reports are still counted as those of a living source
        finalize(reports, self._leave, reports._reports).atexit = False
        self._add_up()
        return AccumulatorReporter(self._accumulator, number)

    def deliver(self, updates: Updates) -> None:
        for (source, key), report in updates.items():
            reports = self._sources.get(source)
            if reports is not None:
                reports.add(key, report)
            elif self.keeps:  # of a plan that outlives its frame, such as a view
                self._left.append({key: report})

    def totals(self) -> list[StageTotals]:
        """Return the totals of all stages so far."""
        sources = list(self._sources.values())  # held, so that none of them is counted as gone, too
        with self._lock:
            self._add_left()
            gone = copy.deepcopy(self._totals)
        return stage_totals((item for each in sources for item in each.value.items()), gone)

    def _leave(self, reports: dict[Key, TaskReport]) -> None:
        if self.keeps:
            self._left.append(reports)

    def _add_up(self) -> None:
        with self._lock:
            self._add_left()

    def _add_left(self) -> None:
        while self._left:
            stage_totals(self._left.popleft().items(), self._totals)
        if len(self._totals) > 2 * MOST_STAGES:
            longest = sorted(self._totals.values(), key=lambda total: -total.wall)[:MOST_STAGES]
            self._totals = {total.stage: total for total in longest}


class _Delivery(AccumulatorParam[Any]):  # type: ignore[misc]  # mypy does not look into pyspark
    """Collects the accumulator's updates in a task, and delivers them to the ledger on the driver."""

    def zero(self, value: Any) -> Updates:
        return {}

    def addInPlace(self, value1: Any, value2: Updates) -> Any:
        if isinstance(value1, _Ledger):
            value1.deliver(value2)
        else:
            value1.update(value2)
        return value1


_ledgers: WeakKeyDictionary[SparkContext, _Ledger] = WeakKeyDictionary()
_ledgers_lock = threading.Lock()


def _ledger_of(context: SparkContext) -> _Ledger:
    with _ledgers_lock:
        if context not in _ledgers:
            _ledgers[context] = _Ledger(context)
        return _ledgers[context]


def report_at_end(
    context: SparkContext | None, options: Options, application: str, key: EncryptionKey | None
) -> None:
    """Have a report written when the application ends, if these settings want one
    (`session.application_report`). From then on the totals of all stages are kept, also of frames and RDDs
    that are gone. ``key``: of encrypted files. Raises `UnsupportedError` without the library that draws."""
    if context is not None:
        ledger = _ledger_of(context)
        ledger.keeps |= note_use(context, options, application, ledger.totals, key)


# ---- totals -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StageTotals:
    """The summed figures of a stage's tasks. ``wall``: seconds. ``outputs``: figures of what they wrote for
    each exchange, by number."""

    stage: int
    tasks: int = 0
    wall: float = 0.0
    metrics: TaskMetrics = field(default_factory=TaskMetrics)
    directories: set[str] = field(default_factory=set)
    outputs: dict[int, TaskMetrics] = field(default_factory=dict)

    def add(self, report: TaskReport) -> None:
        self.tasks += 1
        self.wall += report.wall
        self.metrics.merge(report.metrics)
        for exchange, metrics in report.outputs.items():
            self.outputs.setdefault(exchange, TaskMetrics()).merge(metrics)
        if report.directory:
            self.directories.add(report.directory)


def stage_totals(
    reports: Iterable[tuple[Key, TaskReport]], totals: dict[int, StageTotals] | None = None
) -> list[StageTotals]:
    """Return one total per stage, in stage order. ``totals``: those to add to, by stage."""
    totals = {} if totals is None else totals
    for (stage, _), report in reports:
        totals.setdefault(stage, StageTotals(stage)).add(report)
    return [totals[stage] for stage in sorted(totals)]


# ---- one line per task --------------------------------------------------------------------------------


def wants_log() -> bool:
    """Return whether tasks should log, by the level of `LOGGER` in this process, the driver."""
    return logging.getLogger(LOGGER).isEnabledFor(logging.INFO)


def log_task(report: TaskReport, **task: object) -> None:
    """Write the line of a task to the worker's log. ``task``: the line's first fields, such as the stage."""
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    if not logger.handlers:  # handlers of the root, such as Spark's own capture, get the line as well
        handler = logging.StreamHandler(sys.__stderr__)
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logger.addHandler(handler)
    logger.info(log_line(report, **task))


def log_line(report: TaskReport, **task: object) -> str:
    """Return ``key=value`` pairs: the task's fields, every figure in the order of `FIGURES` (0 if not
    counted), the seconds of each step, and if there are several exchanges, the counted figures of each."""
    words = [f"{name}={value}" for name, value in task.items()]
    words += [f"wall_seconds={report.wall:.6f}", *_pairs(report.metrics, "", FIGURES)]
    if len(report.outputs) > 1:
        for exchange, metrics in sorted(report.outputs.items()):
            counted = [name for name in FIGURES if name in metrics.counts]
            words += _pairs(metrics, f"exchange_{exchange}.", counted)
    return " ".join(words)


def _pairs(metrics: TaskMetrics, prefix: str, names: Iterable[str]) -> list[str]:
    counts = [f"{prefix}{name}={metrics.counts[name]}" for name in names]
    return counts + [f"{prefix}{step}_seconds={taken:.6f}" for step, taken in sorted(metrics.seconds.items())]
