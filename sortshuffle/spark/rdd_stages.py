"""What runs in a Python worker for `ShuffleRDD`: the stages of `spark.stages`, for single records.

    opening     where the records come from: Spark's own RDD, or an exchange
    steps       the user's chained functions (`spark.rdd_steps`)
    closing     where they go: to Spark, or into an exchange (then only control rows go to Spark)

A stage is one picklable object that Spark calls for each partition through `mapPartitionsWithIndex`.
Everything it opens is closed when its generator ends, fails or is closed.

Time is taken for whole batches, never for a record, which takes less than looking at the clock. So what the
users' functions took is known in a stage that writes, as what is left of pulling records out of the chain;
for a chain on Spark's own records it includes reading those. Step ``encode`` is placing, collecting and
pickling.

A control row is what `spark.control` says of a map output, without Arrow: the subpartition and the map index
(4 bytes each, little endian), and the same packed description. There is one for each subpartition that got
records; the others have nothing to read but the events at the end, and a task without any records writes
no files.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, islice
from operator import itemgetter
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB, PREFIX, Options
from sortshuffle.payload.pickled import PickledPayload
from sortshuffle.payload.spanning import SPILL_BYTES
from sortshuffle.read.channel import LocalInputChannel
from sortshuffle.read.records import RecordGate
from sortshuffle.spark.by_value import pack_any
from sortshuffle.spark.control import SCHEMA, MapOutput, channels, control_batches
from sortshuffle.spark.functions import user_errors
from sortshuffle.spark.key_selectors import KeySelectors
from sortshuffle.spark.placements import turn
from sortshuffle.spark.rdd_planner import ControlRow
from sortshuffle.spark.rdd_steps import RecordStep
from sortshuffle.spark.reports import Reporter
from sortshuffle.spark.task import Task, running, settle_worker
from sortshuffle.storage.reader import read_index
from sortshuffle.write.frame_encoder import FrameLayout, segment_bytes
from sortshuffle.write.record_writer import ChannelSelectorRecordWriter, ObjectCollector
from sortshuffle.write.result_partition import SortMergeResultPartition

Records: TypeAlias = Iterator[Any]

# Records taken out of a chain, placed and collected together: 4096 are as good as 16,384. Large ones come in
# batches of about BATCH_BYTES, pickled.
MOST_RECORDS = 4096
BATCH_BYTES = MIB

_WITHIN_ENCODE = ("compress", "checksum", "write")  # steps that have their own time while records are added
_HEAD = struct.Struct("<II")


class RecordOpening(Protocol):
    """Where a stage's records come from. ``opened``: closes what it opens when the task ends."""

    def open(self, received: Records, task: Task, opened: ExitStack) -> Records: ...


class RecordClosing(Protocol):
    """Where a stage's records go; what it yields goes to Spark. ``opened``: as above."""

    def close(self, records: Records, task: Task, opened: ExitStack) -> Iterator[Any]: ...


@dataclass(frozen=True)
class RecordStage:
    """The function of one stage. ``number``: of the stage, in the order of the data. ``logs``: write a line
    to the worker's log for each task."""

    number: int
    options: Options
    application: str
    opening: RecordOpening
    steps: tuple[RecordStep, ...]
    closing: RecordClosing
    reporter: Reporter
    logs: bool = False

    def __call__(self, split: int, received: Iterable[Any]) -> Iterator[Any]:
        """What goes back to Spark, for partition ``split``."""
        settle_worker()
        return user_errors(self._run(split, iter(received)))

    def _run(self, split: int, received: Records) -> Iterator[Any]:
        # not TaskContext's partition: a union or coalesce behind this RDD numbers its tasks otherwise
        task = Task.starting(self.options, self.application, self.number, split)
        with running(task, self.reporter, self.logs, _user_seconds) as opened:
            yield from self._chained(received, task, opened)

    def _chained(self, received: Records, task: Task, opened: ExitStack) -> Iterator[Any]:
        records: Iterable[Any] = self.opening.open(received, task, opened)
        for step in self.steps:
            records = step(task.partition, records)
        return self.closing.close(iter(records), task, opened)


def _user_seconds(metrics: TaskMetrics) -> None:
    """Of a stage that writes, what pulling records out of the chain took beyond reading them."""
    seconds = metrics.seconds
    chain = seconds.pop("chain", None)
    if chain is not None:
        reading = seconds.get("wait", 0.0) + seconds.get("decode", 0.0)
        seconds["user"] = max(0.0, chain - reading)


@dataclass(frozen=True)
class SparkRecords:
    """Records as Spark hands them over."""

    def open(self, received: Records, task: Task, opened: ExitStack) -> Records:
        return _counted(received, "rows_in", task, opened)


@dataclass(frozen=True)
class ReadRecords:
    """One subpartition of every map output of an exchange."""

    def open(self, received: Records, task: Task, opened: ExitStack) -> Records:
        found = _channels(received)
        options = task.options
        gate = RecordGate(
            found,
            PickledPayload.of(options),
            task.reading,
            options.read_threads,
            task.metrics,
            task.home() if _may_spill(found) else None,
        )
        records = gate.records()
        opened.callback(lambda: task.metrics.add(rows_in=task.metrics.counts["rows_read"]))
        opened.callback(records.close)
        return records


@dataclass(frozen=True)
class RecordsToSpark:
    """Records of an ordinary RDD."""

    def close(self, records: Records, task: Task, opened: ExitStack) -> Iterator[Any]:
        return _counted(records, "rows_out", task, opened)


@dataclass(frozen=True)
class WriteRecords:
    """Pairs into one map output of this task; Spark gets its control rows. ``exchange``: its number."""

    exchange: int
    selector: KeySelectors

    def close(self, records: Records, task: Task, opened: ExitStack) -> Iterator[ControlRow]:
        metrics = task.outputs.setdefault(self.exchange, TaskMetrics())
        batch = _taken(records, 1, task.metrics)
        if not batch:
            return
        with _Output(self, task, metrics) as output:
            while batch:
                output.write(batch)
                batch = _taken(records, output.next_batch(), task.metrics)
            written = output.finish()
        yield from control_rows(written)


def _taken(records: Records, most: int, metrics: TaskMetrics) -> list[Any]:
    """The next records of a chain; none at its end."""
    with metrics.step("chain"):
        batch = list(islice(records, most))
    metrics.add(rows_out=len(batch))
    return batch


class _Output:
    """The map output of a task that has records. Leaving it as a context without `finish()` deletes it."""

    def __init__(self, exchange: WriteRecords, task: Task, metrics: TaskMetrics) -> None:
        self._exchange = exchange.exchange
        self._task = task
        self._batch = 1
        with ExitStack() as opened:
            partition = opened.enter_context(_partition(exchange, task, metrics, opened))
            collector = ObjectCollector(partition, pack=pack_any)
            records = ChannelSelectorRecordWriter(exchange.selector, partition, collector, metrics)
            opened.enter_context(records)
            self._opened = opened.pop_all()
        self._partition = partition
        self._collector = collector
        self._records = records
        self._metrics = metrics

    def write(self, records: list[Any]) -> None:
        """Raises what unpacking raises for a record that is no pair."""
        pairs = records
        if set(map(type, records)) != {tuple}:
            # as in PySpark whatever can be unpacked into two is a pair, and comes out as a tuple
            pairs = [(key, value) for key, value in records]
        keys = [key for key, _ in pairs]
        with self._metrics.step("encode"):
            self._records.emit_batch(pairs, keys)

    def next_batch(self) -> int:
        """How many records to take next: more each time, as far as their size allows."""
        mean = self._collector.bytes / max(1, self._collector.records)
        self._batch = min(MOST_RECORDS, 2 * self._batch, max(1, int(BATCH_BYTES / max(1.0, mean))))
        return self._batch

    def finish(self) -> MapOutput:
        """Complete the files."""
        with self._metrics.step("encode"):
            self._records.finish()
        seconds = self._metrics.seconds
        seconds["encode"] -= sum(seconds.get(step, 0.0) for step in _WITHIN_ENCODE)
        writer = self._task.writer(self._exchange)
        file = self._partition.finish(writer)
        return MapOutput(file, self._partition.file_id, writer.map_index, writer.attempt, writer.host)

    def __enter__(self) -> _Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()


def _partition(
    exchange: WriteRecords, task: Task, metrics: TaskMetrics, opened: ExitStack
) -> SortMergeResultPartition:
    """The result partition of this task. All of its memory for writing is taken as segments, now."""
    options, memory = task.options, task.writing.limit
    subpartitions = exchange.selector.subpartitions
    header = FileHeader(
        file_id=secrets.token_bytes(16),
        subpartitions=subpartitions,
        first_subpartition=turn(task.partition, subpartitions),
        codec=Codec[options.codec.upper()],
        payload_kind=PayloadKind.PICKLE,
    )
    size = segment_bytes(subpartitions, memory)
    segments = NetworkBufferPool(memory // size, size, option=f"{PREFIX}memory")
    opened.callback(segments.destroy)
    layout = FrameLayout(PickledPayload.of(options), segments.create_pool(segments.total), size)
    writer = task.new_map_output(exchange.exchange, header)
    task.directory = os.path.dirname(writer.file.base)
    budget = task.writing.share(memory, f"exchange {exchange.exchange}")
    return SortMergeResultPartition(writer, layout, budget, metrics)


# ---- control rows -------------------------------------------------------------------------------------


def control_rows(output: MapOutput) -> Iterator[ControlRow]:
    """What a map task tells the reduce tasks of its map output."""
    index = read_index(output.file, output.file_id)
    has_records = index.entries["records"].sum(axis=0).tolist()
    for batch in control_batches(output, index):
        _, subpartitions, map_indexes, packed = (column.to_pylist() for column in batch.columns)
        for subpartition, map_index, row in zip(subpartitions, map_indexes, packed, strict=True):
            if has_records[subpartition]:  # else only events
                yield subpartition, _HEAD.pack(subpartition, map_index) + row


def _channels(received: Records) -> list[LocalInputChannel]:
    """The channels of one consumer, from the control rows it received."""
    rows = list(received)
    heads = np.array([_HEAD.unpack_from(row) for row in rows], np.int32).reshape(-1, 2)
    subpartitions, map_indexes = pa.array(heads[:, 0]), pa.array(heads[:, 1])
    outputs = pa.array([row[_HEAD.size :] for row in rows], pa.binary())
    columns = [subpartitions, subpartitions, map_indexes, outputs]
    return channels(iter((pa.record_batch(columns, schema=SCHEMA),)))


def _may_spill(found: list[LocalInputChannel]) -> bool:
    """Whether there can be a record that is put together in a file."""
    return any(extent.raw_bytes > SPILL_BYTES for channel in found for extent in channel.extents)


def _counted(records: Records, figure: str, task: Task, opened: ExitStack) -> Records:
    """The records, whose number is counted as ``figure`` when the task ends. No code of Python's runs for a
    record."""
    numbers = count()
    opened.callback(lambda: task.metrics.add(**{figure: next(numbers)}))
    return map(itemgetter(0), zip(records, numbers, strict=False))
