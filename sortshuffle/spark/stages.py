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
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

import sortshuffle
from sortshuffle.compute.groups import group_tables
from sortshuffle.errors import DataLossError
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import Writer
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.limit import task_memory
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import Options
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.read.gate import InputGate
from sortshuffle.spark.control import MapOutput, channels, control_batches
from sortshuffle.spark.functions import user_errors
from sortshuffle.spark.placements import Placement, turn
from sortshuffle.spark.reports import Reports, TaskReport
from sortshuffle.spark.scan import ParquetScan
from sortshuffle.spark.schema import conform
from sortshuffle.storage.directories import Homes
from sortshuffle.storage.lifetime import Owner, control_files
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.write.encoders import PartitionLayout
from sortshuffle.write.result_partition import SortMergeResultPartition

Batches = Iterator[pa.RecordBatch]
READING_SHARE = 4  # a stage that both reads and writes reads ahead within this part of its memory


@dataclass(slots=True)
class Task:
    """One running task: who it is, what it may hold, what it did."""

    options: Options
    application: str
    stage: int
    partition: int
    attempt: int
    reading: MemoryBudget
    writing: MemoryBudget
    metrics: TaskMetrics = field(default_factory=TaskMetrics)
    directory: str = ""


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
    """The function of one stage. ``number``: of the stage, in the order of the data."""

    number: int
    options: Options
    application: str
    opening: Opening
    steps: tuple[Step, ...]
    closing: Closing
    reports: Accumulator[Reports]

    def __call__(self, received: Batches) -> Batches:
        """What goes back to Spark. Errors of users' functions come with the users' frames, not ours."""
        settle_worker()
        return user_errors(self._run(received))

    def _run(self, received: Batches) -> Batches:
        task = self._task()
        started = time.perf_counter()
        try:
            with ExitStack() as opened:
                yield from self._chained(received, task, opened)
        except DataLossError as error:
            make_spark_rerun(error)
            raise
        finally:
            self._report(task, time.perf_counter() - started)

    def _chained(self, received: Batches, task: Task, opened: ExitStack) -> Batches:
        """What the closing yields. ``opened`` closes every link, the last one first."""

        def link(batches: Any) -> Any:
            opened.callback(_close, batches)
            return batches

        rows = link(self.opening.open(received, task))
        rows = link(task.metrics.timed(rows, "input"))
        for step in self.steps:
            rows = link(step(rows))
        rows = link(task.metrics.timed(rows, "chain"))
        return link(self.closing.close(rows, task))  # type: ignore[no-any-return]

    def _report(self, task: Task, wall: float) -> None:
        """Tell the driver what this task did; the users' part is what the chain took beyond its input."""
        seconds = task.metrics.seconds
        seconds["user"] = max(0.0, seconds.pop("chain", 0.0) - seconds.pop("input", 0.0))
        task.metrics.peak(task.reading.peak)
        report = TaskReport(task.metrics, wall, task.directory)
        self.reports.add({(self.number, task.partition): report})

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
        gate = InputGate(channels(received), payload, task.reading, task.options.read_threads, task.metrics)
        if self.order is None:
            return gate.batches()
        return gate.sorted_batches(self.order)


@dataclass(frozen=True)
class WriteExchange:
    """Into the map output of this task; Spark gets its control rows. ``order``: sort extents by key,
    ``order_names``: those columns."""

    exchange: int
    subpartitions: int
    placement: Placement
    schema: pa.Schema
    order: RowOrder | None
    order_names: tuple[str, ...]

    def close(self, batches: Batches, task: Task) -> Batches:
        output = self._write(batches, task)
        if output is not None:
            yield from control_batches(output, read_index(output.file, output.file_id))

    def _write(self, batches: Batches, task: Task) -> MapOutput | None:
        """The finished map output; None, and no files, if there are no rows."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return None
        with self._open(task) as partition:
            partition.write(first)
            del first
            for batch in batches:
                partition.write(batch)
            file = partition.finish(self._writer(task))
        return MapOutput(file, partition.file_id, task.partition, task.attempt, socket.gethostname())

    def _open(self, task: Task) -> SortMergeResultPartition:
        options = task.options
        homes = Homes.of(options, task.application)
        task.directory = homes.pick(task.attempt)
        file = PartitionedFile.named(task.directory, self.exchange, task.partition, task.attempt)
        header = FileHeader(
            file_id=secrets.token_bytes(16),
            subpartitions=self.subpartitions,
            first_subpartition=turn(task.partition, self.subpartitions),
            codec=Codec[options.codec.upper()],
            payload_kind=PayloadKind.ARROW,
        )
        layout = PartitionLayout(
            ArrowPayload.of(self.schema, options),
            self.placement.selector(self.subpartitions, task.partition),
            options.buffer_size,
            self.order,
        )
        writer = PartitionedFileWriter(file, header)
        return SortMergeResultPartition(writer, layout, task.writing, task.metrics)

    def _writer(self, task: Task) -> Writer:
        return Writer(
            application=task.application,
            exchange=self.exchange,
            stage=task.stage,
            map_index=task.partition,
            attempt=task.attempt,
            host=socket.gethostname(),
            time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            software=f"sortshuffle {sortshuffle.__version__}",
            ordering=self.order_names,
        )


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


def settle_worker() -> None:
    """Prepare this worker process, once: take what it has imported out of the garbage collector's sight.

    PySpark's worker collects garbage after every task, and walks some 200,000 objects of pyarrow, pandas and
    PySpark each time: 64 empty tasks on two cores took 2.2 s, and 0.4 s when those are frozen.

    And let it open as many files as the system allows: a merge of many runs holds one each.
    """
    if gc.get_freeze_count() == 0:
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


def _close(iterator: Any) -> None:
    close: Callable[[], None] | None = getattr(iterator, "close", None)
    if close is not None:
        close()
