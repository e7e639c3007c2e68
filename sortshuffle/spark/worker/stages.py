"""A stage as it runs in a Python worker: an opening, steps and a closing, in one pass over the rows.

    opening     the source of the batches: Spark's rows, a Parquet scan, an exchange, or several of these
                (`spark.worker.multi_input`)
    steps       the user's chained functions, selections and filters, groups, sorts and aggregates
    closing     the target: Spark, an exchange (then only control rows go to Spark), or files

A stage is a picklable object that Spark calls as a `mapInArrow` function. Everything it opens (threads,
files, temporary names) is closed when its generator ends, fails or is closed. The files of a killed worker
are removed by the janitor.

Ownership: a step hands each batch on and never looks at it again. A step that holds rows is a `TaskStep`: it
has a part of the task's memory, and charges the rows that it holds to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import Options
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.reading.channel import InputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.spark.conforming import conform
from sortshuffle.spark.control_rows import channels
from sortshuffle.spark.functions.running import CloseAtEnd, user_errors
from sortshuffle.spark.session.service import NO_SERVICE, HostService, ServiceSettings
from sortshuffle.spark.worker.adoption import adopt
from sortshuffle.spark.worker.reports import Reporter
from sortshuffle.spark.worker.task import Task, running, settle_worker

if TYPE_CHECKING:
    from sortshuffle.payload.ordering import RowOrder

Batches: TypeAlias = Iterator[pa.RecordBatch]


class Opening(Protocol):
    """The source of a stage's batches. ``holders``: how many parts of the task's memory for held rows it
    needs (`Task.holding`). ``needs_number``: whether one of its steps needs the number of the partition that
    the received rows are of (`Task.row_partition`)."""

    @property
    def holders(self) -> int: ...

    @property
    def needs_number(self) -> bool: ...

    def open(self, received: Batches, task: Task) -> Batches: ...


class PlainStep(Protocol):
    """A function of the chain that holds no more than a batch or two. ``describe`` returns its line in
    `explain()`."""

    def __call__(self, batches: Batches) -> Batches: ...

    def describe(self) -> str: ...


class PerBatchStep(ABC):
    """A `PlainStep` that treats every batch independently and keeps the order of rows. So each exchange of a
    pass may apply its own such steps, batch by batch."""

    @abstractmethod
    def __call__(self, batches: Batches) -> Batches: ...

    @abstractmethod
    def source_of(self, position: int) -> int | None:
        """Return the position of the input column that an output column repeats; None for a new column."""

    @abstractmethod
    def describe(self) -> str: ...


class TaskStep(ABC):
    """A function of the chain that holds rows, or needs to know its task.

    It charges the rows that it holds to ``memory``, its part of the task's memory. It may put rows aside in
    files of the task (`Task.new_merge_file`). ``holds``: False for a step that needs its task, but no memory.
    ``needs_number``: True for a step whose result depends on the partition (`Task.row_partition`).
    """

    holds: ClassVar[bool] = True
    needs_number: ClassVar[bool] = False

    @abstractmethod
    def run(self, batches: Batches, task: Task, memory: MemoryBudget) -> Batches: ...

    @abstractmethod
    def describe(self) -> str: ...


Step: TypeAlias = PlainStep | TaskStep


def holders_of(steps: Sequence[Step]) -> int:
    """Return how many of these steps hold rows."""
    return sum(isinstance(step, TaskStep) and step.holds for step in steps)


def need_number(steps: Sequence[Step]) -> bool:
    """Return whether one of these steps needs the number of the partition."""
    return any(isinstance(step, TaskStep) and step.needs_number for step in steps)


def apply_step(step: Step, batches: Batches, task: Task) -> Batches:
    """Apply a step to batches."""
    if isinstance(step, TaskStep):
        return step.run(batches, task, task.holding(step.describe()))
    return step(batches)


class Closing(Protocol):
    """The target of a stage's batches. The batches that it yields go to Spark."""

    def close(self, batches: Batches, task: Task) -> Batches: ...


@dataclass(frozen=True)
class Stage:
    """The function of one stage. ``number``: of the stage, in the order of the data. ``logs``: write a line
    to the worker's log for each task. ``services``: the application's shuffle services."""

    number: int
    options: Options
    application: str
    opening: Opening
    steps: tuple[Step, ...]
    closing: Closing
    reporter: Reporter
    logs: bool = False
    services: ServiceSettings = NO_SERVICE

    def __call__(self, received: Batches) -> Batches:
        """Run the stage and yield the batches for Spark. Tracebacks from user code are cut to its frames."""
        settle_worker()
        return user_errors(self._run(received))

    def _run(self, received: Batches) -> Batches:
        partition = TaskContext.get().partitionId()
        holders = self.opening.holders + holders_of(self.steps)
        service = HostService(self.options, self.application, self.services)
        task = Task.starting(service, self.number, partition, holders)
        with running(task, self.reporter, self.logs, _user_seconds) as opened:
            adopted = adopt(self.closing, task)
            yield from self._chained(received, task, opened) if adopted is None else adopted

    def _chained(self, received: Batches, task: Task, opened: ExitStack) -> Batches:
        """Chain opening, steps and closing. ``opened`` closes every link, the last one first."""

        def link(batches: Batches) -> Batches:
            return opened.enter_context(CloseAtEnd(batches))

        rows = link(self.opening.open(received, task))
        rows = link(task.metrics.timed(rows, "input"))
        rows = _counted(rows, task.metrics, "in")
        rows = apply_steps(rows, self.steps, task, opened)
        rows = link(task.metrics.timed(rows, "chain"))
        rows = link(_counted(rows, task.metrics, "out"))
        return link(self.closing.close(rows, task))


def _user_seconds(metrics: TaskMetrics) -> None:
    """Compute the time of step user: that of the chain without its input."""
    seconds = metrics.seconds
    seconds["user"] = max(0.0, seconds.pop("chain", 0.0) - seconds.pop("input", 0.0))


@dataclass(frozen=True)
class SparkRows:
    """Reads the batches that Spark hands over."""

    schema: pa.Schema
    holders: ClassVar[int] = 0
    needs_number: ClassVar[bool] = False

    def open(self, received: Batches, task: Task) -> Batches:
        for batch in received:
            # columns may have other names, and a frame without columns comes with one: `DataFrameOrigin.rows`
            rows = batch if self.schema.names else batch.select([])
            yield from conform(rows, self.schema, "the DataFrame")


@dataclass(frozen=True)
class ReadExchange:
    """Reads one subpartition of every map output of an exchange. ``order``: the order of the rows within each
    extent, and of the merged result; None for no order. ``codec``: of the map outputs (`Options.codec`),
    which may have been written under other settings than those of this stage."""

    schema: pa.Schema
    order: RowOrder | None
    codec: str
    holders: ClassVar[int] = 0
    needs_number: ClassVar[bool] = False

    def open(self, received: Batches, task: Task) -> Batches:
        return self.read(channels(received, task.reach), task, task.reading)

    def read(self, inputs: Sequence[InputChannel], task: Task, budget: MemoryBudget) -> Batches:
        """Yield the rows of these channels, read ahead within ``budget``."""
        payload = ArrowPayload.of(self.schema, replace(task.options, codec=self.codec))
        threads = task.options.read_threads
        gate = InputGate(inputs, payload, budget, threads, task.metrics, task.new_merge_file)
        if self.order is None:
            return gate.batches()
        return gate.sorted_batches(self.order)


@dataclass(frozen=True)
class ToSpark:
    """Gives the rows to Spark, for an ordinary DataFrame."""

    def close(self, batches: Batches, task: Task) -> Batches:
        return batches


@dataclass(frozen=True)
class CountRows:
    """Gives Spark the number of rows instead of the rows: one row with one long per task."""

    def close(self, batches: Batches, task: Task) -> Batches:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.record_batch([pa.array([rows], pa.int64())], names=["rows"])


def _counted(batches: Batches, metrics: TaskMetrics, where: str) -> Batches:
    """Pass batches on, and count them and their rows. ``where``: ``in`` or ``out``."""
    rows, count = f"rows_{where}", f"batches_{where}"
    for batch in batches:
        metrics.add(**{rows: batch.num_rows, count: 1})
        yield batch


def apply_steps(rows: Batches, steps: Sequence[Step], task: Task, opened: ExitStack) -> Batches:
    """Apply steps to ``rows``. ``opened`` closes every link, the last one first."""
    rows = opened.enter_context(CloseAtEnd(rows))
    for step in steps:
        rows = opened.enter_context(CloseAtEnd(apply_step(step, rows, task)))
    return rows
