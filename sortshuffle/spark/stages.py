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

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from sortshuffle.compute.groups import group_tables
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import Options
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.read.gate import InputGate
from sortshuffle.spark.control import channels
from sortshuffle.spark.functions import user_errors
from sortshuffle.spark.reports import Reporter
from sortshuffle.spark.scan import ParquetScan
from sortshuffle.spark.schema import conform
from sortshuffle.spark.task import Task, running, settle_worker

Batches: TypeAlias = Iterator[pa.RecordBatch]


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
        partition = TaskContext.get().partitionId()
        task = Task.starting(self.options, self.application, self.number, partition)
        with running(task, self.reporter, self.logs, _user_seconds) as opened:
            yield from self._chained(received, task, opened)

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


def _user_seconds(metrics: TaskMetrics) -> None:
    """The users' part is what the chain took beyond its input."""
    seconds = metrics.seconds
    seconds["user"] = max(0.0, seconds.pop("chain", 0.0) - seconds.pop("input", 0.0))


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
