"""One running task in a Python worker: its identity, its memory, its files and its report.

The stages of frames (`spark.worker.stages`) and of RDDs (`spark.rdds.stages`) do the work of a task. This
module prepares the worker for them, reacts to errors, and however the task ends, sends a report to the driver
and writes it to the log.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pyspark import TaskContext

from sortshuffle.errors import DataLossError, ServiceUnavailableError, SortShuffleError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import FileHeader
from sortshuffle.format.index import WriterInfo
from sortshuffle.homes.directories import application_directories, spark_directories
from sortshuffle.homes.home_failures import note_failure
from sortshuffle.homes.host import host_name
from sortshuffle.homes.loss import make_producer_run_again
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.memory.limit import task_memory
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import Options
from sortshuffle.spark.control_rows import LocalReach, Reach, SparkMapOutput
from sortshuffle.spark.session.service import HostService
from sortshuffle.spark.worker.reach import ClusterReach, credit_within
from sortshuffle.spark.worker.reports import Reporter, TaskReport, log_task
from sortshuffle.spark.worker.task_files import TaskFiles
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter

READING_SHARE = 4  # divisor: the task reads ahead within a quarter of its memory
HOLDING_SHARE = 2  # divisor: the steps that hold rows, if there are any, share half of it


@dataclass(slots=True)
class Task:
    """One running task. ``reading`` and ``writing`` are shares of ``memory``; the rest is for the steps that
    hold rows, of which there are ``holders``. ``outputs``: figures of each exchange that the task writes, by
    number. ``reach``: its access to map outputs. ``service``: of its host. ``rows_from``: the number of the
    partition that the received rows are of, as they carry it; None if they do not (`worker.numbered`)."""

    options: Options
    application: str
    stage: int
    partition: int
    attempt: int
    memory: MemoryBudget
    reading: MemoryBudget
    writing: MemoryBudget
    holders: int = 0
    reach: Reach = field(default_factory=LocalReach)
    service: HostService | None = None
    metrics: TaskMetrics = field(default_factory=TaskMetrics)
    outputs: dict[int, TaskMetrics] = field(default_factory=dict)
    directory: str = ""
    rows_from: int | None = None

    @staticmethod
    def starting(service: HostService, stage: int, partition: int, holders: int = 0) -> Task:
        """Make the task that this worker runs now. ``partition``: its number in the stage. ``holders``: the
        number of steps that hold rows."""
        context: Any = TaskContext.get()
        options = service.options
        memory = task_memory(options)
        budget = MemoryBudget(memory)
        reading = min(options.read_memory, memory // READING_SHARE)
        held = memory // HOLDING_SHARE if holders else 0
        credit = credit_within(service, reading)
        service.revive()
        return Task(
            options,
            service.application,
            stage,
            partition,
            context.taskAttemptId(),
            budget,
            budget.share(reading - credit, "read"),
            budget.share(memory - reading - held, "write"),
            holders,
            ClusterReach(service, credit),
            service,
        )

    def holding(self, label: str) -> MemoryBudget:
        """Return the memory of one of the task's `holders`. All have equal parts, so that none can starve
        another."""
        return self.memory.share(self.memory.limit // HOLDING_SHARE // max(1, self.holders), label)

    def of_partition(self, number: int) -> Task:
        """Return this task for the work of another one: the rows of this partition."""
        return replace(self, partition=number, rows_from=None)

    @property
    def row_partition(self) -> int:
        """The number of the partition whose rows the steps treat."""
        return self.partition if self.rows_from is None else self.rows_from

    @property
    def served_by_spark(self) -> bool:
        """Whether Spark's shuffle files outlive their executor, in Spark's external shuffle service."""
        return self.service is not None and self.service.settings.served_by_spark

    @property
    def files(self) -> TaskFiles:
        """The files that the task may write."""
        return TaskFiles(
            self.options,
            self.application,
            self.stage,
            self.partition,
            self.attempt,
            self.served_by_spark,
            self.key,
        )

    @property
    def key(self) -> EncryptionKey | None:
        """The key of the task's files; None if they are not encrypted."""
        return None if self.service is None else self.service.settings.key

    def home(self) -> str:
        """Return a directory that this task may write to, made on first use."""
        return self.files.home()

    def new_map_output(self, exchange: int, header: FileHeader) -> PartitionedFileWriter:
        """Return the writer of this attempt's map output of an exchange, in a home that has room. The host's
        service is started if it does not run, so that it comes up while the task writes."""
        if self.service is not None:
            self.service.address()
        writer = self.files.new_map_output(exchange, header)
        if self.service is not None:
            self.service.report_forgotten(os.path.dirname(writer.file.base))
        return writer

    def map_output(self, exchange: int, file: PartitionedFile, file_id: bytes) -> SparkMapOutput:
        """Describe a finished map output of this task for its consumers."""
        service = "" if self.service is None else self.service.address()
        return SparkMapOutput(file, file_id, self.partition, self.attempt, host_name(), service, exchange)

    def new_merge_file(self, header: FileHeader) -> PartitionedFileWriter:
        """Return the writer of a file for rows that a merge of too many runs puts aside."""
        return self.files.new_merge_file(header)

    def writer(self, exchange: int, ordering: tuple[str, ...] = ()) -> WriterInfo:
        """Return the entry for a map output that says which task attempt wrote it."""
        return WriterInfo(
            application=self.application,
            exchange=exchange,
            stage=self.stage,
            map_index=self.partition,
            attempt=self.attempt,
            host=host_name(),
            ordering=ordering,
            driver="" if self.service is None else self.service.settings.driver.hex(),
        ).signed()


@contextmanager
def running(
    task: Task, reporter: Reporter, logs: bool, user_seconds: Callable[[TaskMetrics], None]
) -> Iterator[ExitStack]:
    """Run the block as the work of a task: act on its error, and report. The stack that it gets is closed at
    the end, the last entry first. ``user_seconds``: computes the time of step user from those of the stage.
    """
    outcome = "stopped"  # stays so if the consumer stops reading
    started = time.perf_counter()
    try:
        with ExitStack() as opened:
            opened.callback(task.reach.close)
            yield opened
        outcome = "finished"
    except GeneratorExit:
        raise
    except BaseException as error:
        outcome = type(error).__name__
        if isinstance(error, OSError) and not isinstance(error, DataLossError):
            note_failure(error)
        report_loss_to_spark(error, task.reach, task.served_by_spark, task.options.directories)
        raise
    finally:
        report = _report(task, time.perf_counter() - started, user_seconds)
        reporter.add(task.stage, task.partition, report)
        if logs:
            log_task(
                report, stage=task.stage, partition=task.partition, attempt=task.attempt, outcome=outcome
            )


def _report(task: Task, wall: float, user_seconds: Callable[[TaskMetrics], None]) -> TaskReport:
    for metrics in task.outputs.values():
        task.metrics.merge(metrics)
    user_seconds(task.metrics)
    task.metrics.peak(task.memory.peak)
    return TaskReport(task.metrics, wall, task.directory, task.outputs, task.attempt)


def settle_worker() -> None:
    """Prepare this worker process for a task: freeze the objects of the modules that it has imported, so that
    the garbage collector skips them.

    PySpark's worker collects garbage after every task, and walks some 200,000 objects of pyarrow, pandas and
    PySpark each time: 64 empty tasks on two cores took 2.2 s, and take 0.4 s when those objects are frozen.
    Some of these modules, such as pandas, are imported only while a task runs; they are frozen before the
    next task.

    Also raise the limit of open files to what the system allows: a merge holds one for each of its runs.
    """
    _settle(len(sys.modules))


@lru_cache(maxsize=1)  # runs again only after modules were imported: a collection takes some 30 ms
def _settle(modules: int) -> None:
    gc.unfreeze()  # what earlier tasks left is garbage by now, if it was frozen with them
    gc.collect()
    gc.freeze()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def report_loss_to_spark(
    error: BaseException, reach: Reach, served_by_spark: bool, directories: tuple[str, ...] = ()
) -> None:
    """If a task's error means that a map output is lost, make Spark rerun its producer, or its adopter. The
    error may be a user's that wraps one of this package. ``directories``: of `Options`."""
    loss = _loss_in(error)
    if loss is None:
        return
    if isinstance(loss, DataLossError):
        make_spark_rerun(loss, served_by_spark, directories)
    reach.rerun_adopters(loss)


def _loss_in(error: BaseException) -> DataLossError | ServiceUnavailableError | None:
    """Return the nearest loss among ``error`` and its causes, None if there is none. The causes of other
    errors of this package do not count: an `AuthenticationError` does not say that a service is gone. Nor do
    those of an interrupt or a lack of memory, which may come while it is open whether something is lost."""
    found, seen = [error], {id(error)}
    for each in found:  # grows by the causes of each
        if isinstance(each, DataLossError | ServiceUnavailableError):
            return each
        if not isinstance(each, Exception) or isinstance(each, SortShuffleError | MemoryError):
            continue
        # the context, too: a user may raise the error from another one, or from None
        for cause in (each.__cause__, each.__context__):
            if cause is not None and id(cause) not in seen:
                seen.add(id(cause))
                found.append(cause)
    return None


def make_spark_rerun(
    error: DataLossError, served_by_spark: bool = False, directories: tuple[str, ...] = ()
) -> None:
    """Remove Spark's files with the control rows of the lost map output, if they are on this host. The next
    attempt of this task then fails to fetch them, and Spark runs the producer again. ``served_by_spark``:
    also search for files of ended executors. ``directories``: of `Options`."""
    file = PartitionedFile.of(error.place.file)
    if file is not None:
        above = application_directories() if served_by_spark else ()
        make_producer_run_again(file, (*spark_directories(), *above), roots=directories)
