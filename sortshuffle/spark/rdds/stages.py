"""What runs in a Python worker for `ShuffleRDD`: the stages of `spark.worker.stages`, for single records.

    opening     where the records come from: Spark's own RDD, an exchange, or several (`together`)
    steps       the user's chained functions, and what merges and sorts (`steps`, `holding`)
    closing     where they go: to Spark, or into an exchange (then only control rows go to Spark)

A stage is one picklable object that Spark calls for each partition through `mapPartitionsWithIndex`.
Everything it opens is closed when its generator ends, fails or is closed.

Time is taken for whole batches, never for a record, which takes less than looking at the clock. So what the
users' functions took is known in a stage that writes, as what is left of pulling records out of the chain;
for a chain on Spark's own records it includes reading those. Step ``encode`` is placing, collecting and
pickling.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import Any, Protocol, cast

from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import Options
from sortshuffle.payload.pickled import PickledPayload
from sortshuffle.payload.spanning import SPILL_BYTES
from sortshuffle.reading.channel import InputChannel
from sortshuffle.reading.records import RecordGate, chunks_of
from sortshuffle.spark.functions.running import user_errors
from sortshuffle.spark.rdds.control_rows import Received
from sortshuffle.spark.rdds.steps import HoldingStep, Step
from sortshuffle.spark.rdds.streams import Records, RecordStream
from sortshuffle.spark.session.service import NO_SERVICE, HostService, ServiceSettings
from sortshuffle.spark.worker.adoption import adopt
from sortshuffle.spark.worker.reports import Reporter
from sortshuffle.spark.worker.task import Task, running, settle_worker

# Objects that Python makes before it looks for garbage among them, in place of 700, while a stage runs: it
# looks through a table of groups again and again, which takes more than making them. A million pairs in 64
# partitions, ns each behind the shuffle: groups of five values 460 with 700, 250 with 20,000 and 220 with
# 100,000; groups of one 1450, 610 and 740. What is garbage in cycles stays as much longer
COLLECTED_EVERY = (20_000, 20, 100)


class RecordOpening(Protocol):
    """Where a stage's records come from. ``opened``: closes what it opens when the task ends. ``holders``:
    how many parts of the memory it takes."""

    @property
    def holders(self) -> int: ...

    def open(self, received: Received, task: Task, opened: ExitStack) -> RecordStream: ...


class RecordClosing(Protocol):
    """Where a stage's records go; what it yields goes to Spark. ``opened``, ``holders``: as above."""

    @property
    def holders(self) -> int: ...

    def close(self, stream: RecordStream, task: Task, opened: ExitStack) -> Iterator[Any]: ...


@dataclass(frozen=True)
class RecordStage:
    """The function of one stage. ``number``: of the stage, in the order of the data. ``logs``: write a line
    to the worker's log for each task. ``services``: the shuffle services of the application."""

    number: int
    options: Options
    application: str
    opening: RecordOpening
    steps: tuple[Step, ...]
    closing: RecordClosing
    reporter: Reporter
    logs: bool = False
    services: ServiceSettings = NO_SERVICE

    def __call__(self, split: int, received: Iterable[Any]) -> Iterator[Any]:
        """What goes back to Spark, for partition ``split``."""
        settle_worker()
        return user_errors(self._run(split, iter(received)))

    def _run(self, split: int, received: Iterator[Any]) -> Iterator[Any]:
        holders = self.opening.holders + holders_of(self.steps) + self.closing.holders
        # not TaskContext's partition: a union or coalesce behind this RDD numbers its tasks otherwise
        service = HostService(self.options, self.application, self.services)
        task = Task.starting(service, self.number, split, holders)
        with running(task, self.reporter, self.logs, _user_seconds) as opened:
            adopted = adopt(self.closing, task)
            if adopted is not None:
                yield from adopted
                return
            opened.enter_context(rare_collections())
            stream = self.opening.open(Received(received, bool(self.steps)), task, opened)
            yield from self.closing.close(through(self.steps, stream, task, opened), task, opened)


def through(steps: Sequence[Step], stream: RecordStream, task: Task, opened: ExitStack) -> RecordStream:
    """What the steps make of it."""
    for step in steps:
        if isinstance(step, HoldingStep):
            made: Any = step.run(stream.chunks(), task, task.holding(step.describe()))
            opened.callback(made.close)
            stream = RecordStream(chunks=made)
        else:
            stream = RecordStream(records=step(task.partition, stream.records()))
    return stream


def holders_of(steps: Iterable[Step]) -> int:
    """How many of them hold records."""
    return sum(isinstance(step, HoldingStep) for step in steps)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for garbage less often than by default."""
    usual = gc.get_threshold()
    if usual[0]:  # nobody turned it off
        gc.set_threshold(*COLLECTED_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _user_seconds(metrics: TaskMetrics) -> None:
    """Of a stage that writes, what pulling records out of the chain took beyond reading and merging them."""
    seconds = metrics.seconds
    chain = seconds.pop("chain", None)
    if chain is not None:
        ours = sum(seconds.get(step, 0.0) for step in ("wait", "decode", "sort", "merge", "spill"))
        seconds["user"] = max(0.0, chain - ours)


@dataclass(frozen=True)
class SparkRecords:
    """Records as Spark hands them over."""

    holders = 0

    def open(self, received: Received, task: Task, opened: ExitStack) -> RecordStream:
        if not received.has_steps:
            # then as many come as leave
            opened.callback(lambda: task.metrics.add(rows_in=task.metrics.counts["rows_out"]))
            return RecordStream(records=received.records)
        return RecordStream(records=counted(received.records, "rows_in", task, opened))


@dataclass(frozen=True)
class ReadRecords:
    """One subpartition of every map output of an exchange. ``exchange``: its number."""

    exchange: int
    holders = 0

    def open(self, received: Received, task: Task, opened: ExitStack) -> RecordStream:
        found = received.channels(self.exchange, task.reach)
        options = task.options
        gate = RecordGate(
            found,
            cast(PickledPayload, PickledPayload.of(options)),
            task.reading,
            options.read_threads,
            task.metrics,
            task.home() if _may_spill(found) else None,
            off_disk=task.key is not None,
        )
        buffers = gate.buffers()
        opened.callback(_count_rows, task.metrics)
        opened.callback(buffers.close)
        return RecordStream(chunks=chunks_of(buffers))


@dataclass(frozen=True)
class RecordsToSpark:
    """Records of an ordinary RDD."""

    holders = 0

    def close(self, stream: RecordStream, task: Task, opened: ExitStack) -> Iterator[Any]:
        return counted(stream.records(), "rows_out", task, opened)


def counted(records: Records, figure: str, task: Task, opened: ExitStack) -> Records:
    """The records, whose number is counted as ``figure`` when the task ends. No code of Python's runs for a
    record."""
    numbers = count()
    opened.callback(lambda: task.metrics.add(**{figure: next(numbers)}))
    return map(itemgetter(0), zip(records, numbers, strict=False))


def _count_rows(metrics: TaskMetrics) -> None:
    metrics.counts["rows_in"] = metrics.counts["rows_read"]


def _may_spill(found: list[InputChannel]) -> bool:
    """Whether there can be a record that is put together in a file."""
    return any(extent.raw_bytes > SPILL_BYTES for channel in found for extent in channel.extents)
