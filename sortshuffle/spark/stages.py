"""What runs in a Python worker: one stage is an opening, steps, and a closing, in one pass.

    opening     where the stage's batches come from: Spark's rows, a Parquet scan, or an exchange
    steps       the user's chained functions, selections and filters
    closing     where they go: to Spark, into an exchange (then only control rows go to Spark), to files

A stage is a plain picklable object that Spark calls as a `mapInArrow` function. Everything it opens (threads,
files, temporary names) is closed when its generator ends, fails or is closed; a killed worker's files are
the janitor's.

Ownership: batches are handed from step to step and never looked at again.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from sortshuffle.compute.groups import group_tables
from sortshuffle.errors import DataLossError
from sortshuffle.format.header import FileHeader
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.limit import task_memory
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import Options
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.read.gate import InputGate
from sortshuffle.spark.control import channels
from sortshuffle.spark.functions import user_errors
from sortshuffle.spark.reports import Reporter, TaskReport, log_task
from sortshuffle.spark.scan import ParquetScan
from sortshuffle.spark.schema import conform
from sortshuffle.storage.directories import Homes
from sortshuffle.storage.home_failures import note_failure
from sortshuffle.storage.lifetime import Owner, control_files
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter

Batches: TypeAlias = Iterator[pa.RecordBatch]
READING_SHARE = 4  # a stage that both reads and writes reads ahead within this part of its memory


@dataclass(slots=True)
class Task:
    """One running task: who it is, what it may hold, what it did. ``reading`` and ``writing`` are shares of
    ``memory``. ``outputs``: what it did for each exchange that it writes, by number."""

    options: Options
    application: str
    stage: int
    partition: int
    attempt: int
    memory: MemoryBudget
    reading: MemoryBudget
    writing: MemoryBudget
    metrics: TaskMetrics = field(default_factory=TaskMetrics)
    outputs: dict[int, TaskMetrics] = field(default_factory=dict)
    directory: str = ""
    _merge_files: int = 0

    def home(self) -> str:
        """A directory that this task may write to; made on first use."""
        return Homes.of(self.options, self.application).pick(self.attempt)

    def new_map_output(self, exchange: int, header: FileHeader) -> PartitionedFileWriter:
        """The writer of this attempt's map output of an exchange, in a home that takes it."""
        return self._created(lambda home: self._named(home, exchange), header)

    def new_merge_file(self, header: FileHeader) -> PartitionedFileWriter:
        """A file for what a merge of too many runs puts aside. It is gone when it has been read; that of a
        killed task is left to the janitor, to which its name means a map output of this attempt."""
        self._merge_files += 1
        name = f"merge-{self._merge_files}-{self._named('', self.stage).base}"
        return self._created(lambda home: PartitionedFile(os.path.join(home, name)), header)

    def _named(self, home: str, exchange: int) -> PartitionedFile:
        return PartitionedFile.named(home, exchange, self.partition, self.attempt)

    def _created(self, file: Callable[[str], PartitionedFile], header: FileHeader) -> PartitionedFileWriter:
        homes = Homes.of(self.options, self.application)
        return homes.create(self.attempt, lambda home: PartitionedFileWriter(file(home), header))


class Opening(Protocol):
    """Where a stage's batches come from."""

    def open(self, received: Batches, task: Task) -> Batches: ...


class Step(Protocol):
    """A function of the chain. ``describe`` is its line in `explain()`."""

    def __call__(self, batches: Batches) -> Batches: ...

    def describe(self) -> str: ...


class Closing(Protocol):
    """Where a stage's batches go; what it yields goes to Spark."""

    def close(self, batches: Batches, task: Task) -> Batches: ...


@dataclass(frozen=True)
class Stage:
    """The function of one stage. ``number``: of the stage, in the order of the data. ``logs``: write a line
    to the worker's log for each task."""

    number: int
    options: Options
    application: str
    opening: Opening
    steps: tuple[Step, ...]
    closing: Closing
    reporter: Reporter
    logs: bool = False

    def __call__(self, received: Batches) -> Batches:
        """What goes back to Spark. Errors of users' functions come with the users' frames, not ours."""
        settle_worker()
        return user_errors(self._run(received))

    def _run(self, received: Batches) -> Batches:
        task = self._task()
        outcome = "stopped"  # by a consumer that wants no more
        started = time.perf_counter()
        try:
            with ExitStack() as opened:
                yield from self._chained(received, task, opened)
            outcome = "finished"
        except GeneratorExit:
            raise
        except BaseException as error:
            outcome = type(error).__name__
            if isinstance(error, DataLossError):
                make_spark_rerun(error)
            elif isinstance(error, OSError):
                note_failure(error)
            raise
        finally:
            self._report(task, time.perf_counter() - started, outcome)

    def _chained(self, received: Batches, task: Task, opened: ExitStack) -> Batches:
        """What the closing yields. ``opened`` closes every link, the last one first."""

        def link(batches: Any) -> Any:
            opened.callback(_close, batches)
            return batches

        rows = link(self.opening.open(received, task))
        rows = link(task.metrics.timed(rows, "input"))
        rows = link(_counted(rows, task.metrics, "in"))
        for step in self.steps:
            rows = link(step(rows))
        rows = link(task.metrics.timed(rows, "chain"))
        rows = link(_counted(rows, task.metrics, "out"))
        return link(self.closing.close(rows, task))  # type: ignore[no-any-return]

    def _report(self, task: Task, wall: float, outcome: str) -> None:
        """Tell the driver, and the log, what this task did; the users' part is what the chain took beyond its
        input."""
        for metrics in task.outputs.values():
            task.metrics.merge(metrics)
        seconds = task.metrics.seconds
        seconds["user"] = max(0.0, seconds.pop("chain", 0.0) - seconds.pop("input", 0.0))
        task.metrics.peak(task.memory.peak)
        report = TaskReport(task.metrics, wall, task.directory, task.outputs)
        self.reporter.add(self.number, task.partition, report)
        if self.logs:
            log_task(
                report, stage=self.number, partition=task.partition, attempt=task.attempt, outcome=outcome
            )

    def _task(self) -> Task:
        context: Any = TaskContext.get()
        memory = task_memory(self.options)
        budget = MemoryBudget(memory)
        reading = min(self.options.read_memory, memory // READING_SHARE)
        return Task(
            self.options,
            self.application,
            self.number,
            context.partitionId(),
            context.taskAttemptId(),
            budget,
            budget.share(reading, "read"),
            budget.share(memory - reading, "write"),
        )


@dataclass(frozen=True)
class SparkRows:
    """Batches as Spark hands them over."""

    schema: pa.Schema

    def open(self, received: Batches, task: Task) -> Batches:
        for batch in received:
            # columns may come under other names, and instead of none there is one: see `DataFrameOrigin.rows`
            rows = batch if self.schema.names else batch.select([])
            yield from conform(rows, self.schema, "the DataFrame")


@dataclass(frozen=True)
class Scan:
    """Row groups scanned by this worker; the one row received says which split."""

    scan: ParquetScan

    def open(self, received: Batches, task: Task) -> Batches:
        for batch in received:
            for split in batch.column(0).to_pylist():
                with task.metrics.step("open"):
                    rows = self.scan.read(split)
                yield from task.metrics.timed(rows, "scan")


@dataclass(frozen=True)
class ReadExchange:
    """One subpartition of every map output of an exchange. ``order``: deliver in key order; the extents
    are sorted so."""

    schema: pa.Schema
    order: RowOrder | None

    def open(self, received: Batches, task: Task) -> Batches:
        payload = ArrowPayload.of(self.schema, task.options)
        threads = task.options.read_threads
        gate = InputGate(
            channels(received), payload, task.reading, threads, task.metrics, task.new_merge_file
        )
        if self.order is None:
            return gate.batches()
        return gate.sorted_batches(self.order)


@dataclass(frozen=True)
class ToSpark:
    """Rows of an ordinary DataFrame."""

    def close(self, batches: Batches, task: Task) -> Batches:
        return batches


@dataclass(frozen=True)
class Count:
    """The number of rows instead of the rows: one row of one long per task."""

    def close(self, batches: Batches, task: Task) -> Batches:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.record_batch([pa.array([rows], pa.int64())], names=["rows"])


@dataclass(frozen=True)
class Select:
    """Columns by position, in a new order. ``names``: for people."""

    columns: tuple[int, ...]
    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            yield batch.select(list(self.columns))

    def describe(self) -> str:
        return f"select({', '.join(self.names)})"


@dataclass(frozen=True)
class Filter:
    """Rows for which an Arrow expression is true; false and null are dropped, as in SQL."""

    expression: Any

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            kept = batch.filter(self.expression)
            if kept.num_rows:
                yield kept

    def describe(self) -> str:
        return f"filter({self.expression})"


@dataclass(frozen=True)
class GroupApply:
    """A grouped function on a stream sorted by the group's keys."""

    order: RowOrder
    function: Any
    label: str

    def __call__(self, batches: Batches) -> Batches:
        return self.function(group_tables(batches, self.order))  # type: ignore[no-any-return]

    def describe(self) -> str:
        return self.label


PER_BATCH = (Select, Filter)
"""Steps that treat every batch by itself, so that the batches of one pass may go through different ones."""


@cache  # whether it has been done the collector could tell, but in 4 ms: it counts what it has frozen
def settle_worker() -> None:
    """Prepare this worker process, once: take what it has imported out of the garbage collector's sight.

    PySpark's worker collects garbage after every task, and walks some 200,000 objects of pyarrow, pandas and
    PySpark each time: 64 empty tasks on two cores took 2.2 s, and 0.4 s when those are frozen.

    And let it open as many files as the system allows: a merge of many runs holds one each.
    """
    gc.collect()
    gc.freeze()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def make_spark_rerun(error: DataLossError) -> None:
    """Remove Spark's own control files of the lost map output, where this host can reach them: the next
    attempt of this task then fails to fetch them, and Spark runs the producer again."""
    file = PartitionedFile.of(error.place.file)
    if file is None or file.attempt is None:
        return
    owner = Owner.read(os.path.dirname(file.base))
    if owner is None:
        return
    for path in control_files(owner.local_directories, file.attempt):
        try:
            os.unlink(path)
        except OSError:
            continue  # whoever removed it meant the same


def _counted(batches: Batches, metrics: TaskMetrics, where: str) -> Batches:
    """Pass batches on, counting them and their rows as those that come ``in`` or go ``out``."""
    rows, count = f"rows_{where}", f"batches_{where}"
    for batch in batches:
        metrics.add(**{rows: batch.num_rows, count: 1})
        yield batch


def _close(iterator: Any) -> None:
    close: Callable[[], None] | None = getattr(iterator, "close", None)
    if close is not None:
        close()
