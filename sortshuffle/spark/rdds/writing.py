"""The closings of stages that write a map output, or pass chunks to the next stage.

WriteRecords                      batches -> keys and values ---> RecordWriter -> result partition
WriteRecords, with aggregation    batches -> table of combiners -> RecordWriter -> result partition
PassRecords                       batches -> chunks -> rows
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from types import TracebackType
from typing import Any

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.pickled import Pairs, PickledPayload
from sortshuffle.spark.control_rows import SparkMapOutput
from sortshuffle.spark.rdds.aggregations import PairAggregation, ValueKind, pairs_of_kind
from sortshuffle.spark.rdds.by_value import pack_any, pack_any_pairs
from sortshuffle.spark.rdds.combining import MapSideCombiner
from sortshuffle.spark.rdds.control_rows import ControlRow, control_rows, passed_row
from sortshuffle.spark.rdds.heap import mean_bytes
from sortshuffle.spark.rdds.key_selectors import KeySelectors, RoundRobinKeySelector
from sortshuffle.spark.rdds.streams import BatchSize, Records, RecordStream, tuples_of
from sortshuffle.spark.worker.adoption import AdoptingClosing, finished_outputs
from sortshuffle.spark.worker.placements import first_subpartition
from sortshuffle.spark.worker.task import Task
from sortshuffle.writing.frame_encoder import frame_layout
from sortshuffle.writing.frame_partition import FrameResultPartition
from sortshuffle.writing.pickled_sizes import HEAP_BYTES_PER_PICKLED
from sortshuffle.writing.record_writer import RecordWriter, Serializer

_WITHIN_ENCODE = ("combine", "compress", "checksum", "write")  # steps timed separately during step encode
_KEY, _VALUE = itemgetter(0), itemgetter(1)


def _pack_pairs(kind: ValueKind, keys: list[Any], results: list[Any]) -> bytearray:
    return pack_any_pairs(pairs_of_kind(kind, keys, results))


PAIR_SERIALIZERS: Mapping[ValueKind, Serializer] = {kind: partial(_pack_pairs, kind) for kind in ValueKind}
"""One serializer for each kind of values, because their frames differ."""


def _emit_pairs(writer: RecordWriter, keys: Sequence[Any], results: Sequence[Any], kind: ValueKind) -> None:
    writer.emit_columns((keys, results), keys, PAIR_SERIALIZERS[kind])


@dataclass(frozen=True)
class WriteRecords(AdoptingClosing):
    """Writes pairs to the task's map output, and yields its control rows for Spark.

    ``exchange``: the number of the exchange. ``aggregation``: combines pairs before they are written; None
    writes them uncombined. ``lenient``: the first two elements of any longer record are a pair. ``whole``:
    each record is its own key, and need not be a pair.
    """

    exchange: int
    selector: KeySelectors
    aggregation: PairAggregation | None = None
    lenient: bool = False
    whole: bool = False

    @property
    def holders(self) -> int:
        return int(self.aggregation is not None)

    def close(self, stream: RecordStream, task: Task, opened: ExitStack) -> Iterator[ControlRow]:
        metrics = task.outputs.setdefault(self.exchange, TaskMetrics())
        records = stream.records()
        size = BatchSize()
        batch = _next_records(records, size, task.metrics)
        if not batch:
            return
        with _RecordOutput(self, task, metrics) as output:
            while batch:
                size.adapt(output.write(batch))
                batch = _next_records(records, size, task.metrics)
            written = output.finish()
        yield from control_rows(written, task.reach)

    def adopt(self, task: Task) -> Iterator[ControlRow] | None:
        outputs = finished_outputs(task, [self.exchange])
        return None if outputs is None else control_rows(outputs[0], task.reach)


@dataclass(frozen=True)
class PassRecords:
    """Passes pairs that are in place, as rows for a stage that reads several inputs. ``number``: the number
    of this input."""

    number: int
    holders = 0

    def close(self, stream: RecordStream, task: Task, opened: ExitStack) -> Iterator[bytes]:
        records = stream.records()
        size = BatchSize()
        while batch := _next_records(records, size, task.metrics):
            packed = pack_any_pairs(Pairs(list(map(_KEY, batch)), list(map(_VALUE, batch))))
            size.adapt(len(packed) / len(batch))
            yield passed_row(self.number, packed)


def _next_records(records: Records, size: BatchSize, metrics: TaskMetrics) -> list[Any]:
    """Pull the next records out of a chain; none at its end."""
    with metrics.step("chain"):
        batch = list(islice(records, size.records))
    metrics.add(rows_out=len(batch))
    return batch


class _PickledMean:
    """The mean size of the objects that ``writer`` has pickled last. It counts all of them, where a sample
    would miss a few large ones, and costs nothing."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._records = 0  # at the last reading
        self._bytes = 0
        self._mean = 0.0

    def heap_bytes(self) -> float:
        """Return the mean of what was pickled since the last call; the last mean if nothing was pickled."""
        writer = self._writer
        records, size = writer.records - self._records, writer.bytes - self._bytes
        if records:
            self._mean = HEAP_BYTES_PER_PICKLED * size / records
            self._records, self._bytes = writer.records, writer.bytes
        return self._mean


class _RecordOutput:
    """The map output of a task that has records. Leaving the context without `finish()` deletes the files."""

    def __init__(self, exchange: WriteRecords, task: Task, metrics: TaskMetrics) -> None:
        self._exchange = exchange
        self._task = task
        self._metrics = metrics
        self._combiner: MapSideCombiner | None = None
        with ExitStack() as opened:
            partition = opened.enter_context(_partition(exchange, task, metrics, opened))
            selector = exchange.selector
            if isinstance(selector, RoundRobinKeySelector):
                selector = RoundRobinKeySelector(
                    selector.subpartitions, first_subpartition(task.partition, selector.subpartitions)
                )
            serializer = pack_any if exchange.whole else PAIR_SERIALIZERS[ValueKind.PLAIN]
            writer = opened.enter_context(RecordWriter(selector, serializer, partition, metrics))
            if exchange.aggregation is not None:
                memory = task.holding("combine")
                opened.callback(memory.release_all)
                send = partial(_emit_pairs, writer)
                self._combiner = MapSideCombiner(exchange.aggregation, memory, send, metrics)
            self._opened = opened.pop_all()
        self._partition = partition
        self._writer = writer
        self._pickled = _PickledMean(writer)

    def write(self, records: list[Any]) -> float:
        """Write a batch. Return the estimated bytes of a record: of this batch, or of those that were pickled
        last. Raises what unpacking raises for a record that is no pair."""
        if self._combiner is None:
            self._emit(records)
            return self._pickled.heap_bytes()
        # nothing is pickled until the table is full, and then combiners; measured before functions change it
        mean = mean_bytes(records)
        pairs = tuples_of(records)
        with self._metrics.step("encode"):
            self._combiner.add(pairs)
        return mean

    def _emit(self, records: list[Any]) -> None:
        if self._exchange.whole:
            with self._metrics.step("encode"):
                self._writer.emit_batch(records, records)
            return
        pairs = self._pairs(records)
        keys = [key for key, _ in pairs]
        values = list(map(_VALUE, pairs))
        with self._metrics.step("encode"):
            self._writer.emit_columns((keys, values), keys)

    def _pairs(self, records: list[Any]) -> list[Any]:
        if not self._exchange.lenient:
            return tuples_of(records)
        if set(map(type, records)) == {tuple} and set(map(len, records)) == {2}:
            return records
        return [(record[0], record[1]) for record in records]

    def finish(self) -> SparkMapOutput:
        """Complete and describe the files."""
        with self._metrics.step("encode"):
            if self._combiner is not None:
                self._combiner.finish()
            self._writer.finish()
        seconds = self._metrics.seconds
        seconds["encode"] -= sum(seconds.get(step, 0.0) for step in _WITHIN_ENCODE)
        exchange = self._exchange.exchange
        file = self._partition.finish(self._task.writer(exchange))
        return self._task.map_output(exchange, file, self._partition.file_id)

    def __enter__(self) -> _RecordOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()


def _partition(
    exchange: WriteRecords, task: Task, metrics: TaskMetrics, opened: ExitStack
) -> FrameResultPartition:
    """Open the result partition of this task. This allocates all its memory for writing, as segments."""
    options, memory = task.options, task.writing.limit
    subpartitions = exchange.selector.subpartitions
    header = FileHeader(
        file_id=secrets.token_bytes(16),
        subpartitions=subpartitions,
        first_subpartition=first_subpartition(task.partition, subpartitions),
        codec=Codec[options.codec.upper()],
        payload_kind=PayloadKind.PICKLE,
    )
    layout = frame_layout(PickledPayload.of(options), subpartitions, memory, opened)
    writer = task.new_map_output(exchange.exchange, header)
    task.directory = os.path.dirname(writer.file.base)
    budget = task.writing.share(memory, f"exchange {exchange.exchange}")
    return FrameResultPartition(writer, layout, budget, metrics)
