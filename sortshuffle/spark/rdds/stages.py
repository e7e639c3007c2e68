"""A stage of a `ShuffleRDD` in a Python worker: the counterpart of `spark.worker.stages` for records.

    opening     the source of the records: Spark's own RDD, an exchange, or several inputs (`multi_input`)
    steps       the user's chained functions, merges and sorts (`steps`, `holding_steps`)
    closing     the target: Spark, or an exchange (then only control rows go to Spark)

A stage is one picklable object that Spark calls for each partition through `mapPartitionsWithIndex`.
Everything it opens is closed when its generator ends, fails or is closed.

Time is measured for whole batches, because a record takes less time than a look at the clock. So the time of
users' functions is known only in a stage that writes: it is the time to pull records out of the chain, less
the time to read and merge them. For a chain on Spark's own records, it includes the time to read these. Step
``encode`` covers placing, collecting and pickling.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
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
from sortshuffle.spark.rdds.control_rows import TaskInput
from sortshuffle.spark.rdds.failures import at_end, begin_noting, noted, noting, noting_errors
from sortshuffle.spark.rdds.steps import HoldingStep, Step
from sortshuffle.spark.rdds.streams import Records, RecordStream
from sortshuffle.spark.session.service import NO_SERVICE, HostService, ServiceSettings
from sortshuffle.spark.worker.adoption import adopt
from sortshuffle.spark.worker.reports import Reporter
from sortshuffle.spark.worker.task import Task, running, settle_worker

# New objects between two garbage collections while a stage runs; Python's default is 700. The collector
# walks tables of groups again and again, which takes more time than making them. A million pairs in 64
# partitions took, per pair after the shuffle, with 700, 20,000 and 100,000 objects: 460, 250 and 220 ns in
# groups of five values; 1450, 610 and 740 ns in groups of one. Garbage in cycles stays longer by the same
# factor
GC_THRESHOLD = (20_000, 20, 100)


class RecordOpening(Protocol):
    """The source of a stage's records. ``opened``: closes, at the end of the task, what `open` has opened.
    ``holders``: as in `spark.worker.stages.Opening`."""

    @property
    def holders(self) -> int: ...

    def open(self, received: TaskInput, task: Task, opened: ExitStack) -> RecordStream: ...


class RecordClosing(Protocol):
    """The target of a stage's records. `close` yields the records or rows for Spark. ``opened``, ``holders``:
    as in `RecordOpening`."""

    @property
    def holders(self) -> int: ...

    def close(self, stream: RecordStream, task: Task, opened: ExitStack) -> Iterator[Any]: ...


@dataclass(frozen=True)
class RecordStage:
    """The function of one stage. ``number``: the stage's number, in the order of the data. ``logs``: whether
    each task writes a line to the worker's log. ``services``: the shuffle services of the application."""

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
        """Yield the results of partition ``split`` for Spark."""
        settle_worker()
        return user_errors(self._run(split, iter(received)))

    def _run(self, split: int, received: Iterator[Any]) -> Iterator[Any]:
        begin_noting(self.reporter)
        with noting_errors():
            task = self._task(split)
        with running(task, self.reporter, self.logs, _user_seconds) as opened:
            adopted = adopt(self.closing, task)
            if adopted is not None:
                yield from adopted
                return
            opened.enter_context(rare_collections())
            try:
                with noting_errors():
                    stream = self.opening.open(TaskInput(received, bool(self.steps)), task, opened)
                stream = apply_steps(self.steps, stream, task, opened)
                yield from self.closing.close(stream, task, opened)
                return
            except Exception as error:
                own = noted()  # a user's function may have put another in its place
                failure = error if own is None else own
            raise failure  # not in the handler, where its context would be replaced

    def _task(self, split: int) -> Task:
        holders = self.opening.holders + holders_of(self.steps) + self.closing.holders
        # not TaskContext's partition: a union or coalesce after this RDD numbers its tasks differently
        service = HostService(self.options, self.application, self.services)
        return Task.starting(service, self.number, split, holders)


def apply_steps(steps: Sequence[Step], stream: RecordStream, task: Task, opened: ExitStack) -> RecordStream:
    """Return the stream of the steps' results. It ends with the task's noted failure, if there is one."""
    for step in steps:
        if isinstance(step, HoldingStep):
            made: Any = step.run(stream.chunks(), task, task.holding(step.describe()))
            opened.callback(made.close)
            stream = RecordStream(chunks=noting(made))
        else:
            stream = RecordStream(records=step(task.partition, stream.records()))
    return stream.then(at_end())


def holders_of(steps: Iterable[Step]) -> int:
    """Count the steps that hold records."""
    return sum(isinstance(step, HoldingStep) for step in steps)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often than by default in a ``with`` block."""
    usual = gc.get_threshold()
    if usual[0]:  # 0 would mean that collection is off, and must stay off
        gc.set_threshold(*GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _user_seconds(metrics: TaskMetrics) -> None:
    """Set step user, in a stage that writes, to the chain's time less that of reading and merging records."""
    seconds = metrics.seconds
    chain = seconds.pop("chain", None)
    if chain is not None:
        ours = sum(seconds.get(step, 0.0) for step in ("wait", "decode", "sort", "merge", "spill"))
        seconds["user"] = max(0.0, chain - ours)


@dataclass(frozen=True)
class SparkRecords:
    """Takes records as Spark hands them over."""

    holders = 0

    def open(self, received: TaskInput, task: Task, opened: ExitStack) -> RecordStream:
        if not received.has_steps:
            # without steps, as many records come in as go out
            opened.callback(lambda: task.metrics.add(rows_in=task.metrics.counts["rows_out"]))
            return RecordStream(records=received.records)
        return RecordStream(records=count_records(received.records, "rows_in", task, opened))


@dataclass(frozen=True)
class ReadRecords:
    """Reads one subpartition of every map output of an exchange. ``exchange``: the exchange's number.
    ``codec``: of the map outputs (`Options.codec`), which may have been written under other settings than
    those of this stage."""

    exchange: int
    codec: str
    holders = 0

    def open(self, received: TaskInput, task: Task, opened: ExitStack) -> RecordStream:
        channels = received.channels(self.exchange, task.reach)
        options = task.options
        gate = RecordGate(
            channels,
            cast(PickledPayload, PickledPayload.of(replace(options, codec=self.codec))),
            task.reading,
            options.read_threads,
            task.metrics,
            task.home() if _may_spill(channels) else None,
            off_disk=task.key is not None,
        )
        buffers = gate.buffers()
        opened.callback(_count_rows, task.metrics)
        opened.callback(buffers.close)
        return RecordStream(chunks=noting(chunks_of(buffers)))


@dataclass(frozen=True)
class RecordsToSpark:
    """Gives records to an ordinary RDD."""

    holders = 0

    def close(self, stream: RecordStream, task: Task, opened: ExitStack) -> Iterator[Any]:
        return count_records(stream.records(), "rows_out", task, opened)


def count_records(records: Records, figure: str, task: Task, opened: ExitStack) -> Records:
    """Pass records on without Python code per record. Add their number to ``figure`` when the task ends."""
    numbers = count()
    opened.callback(lambda: task.metrics.add(**{figure: next(numbers)}))
    return map(itemgetter(0), zip(records, numbers, strict=False))


def _count_rows(metrics: TaskMetrics) -> None:
    metrics.counts["rows_in"] = metrics.counts["rows_read"]


def _may_spill(channels: list[InputChannel]) -> bool:
    """Return whether a record may be so large that it is assembled in a file."""
    return any(extent.raw_bytes > SPILL_BYTES for channel in channels for extent in channel.extents)
