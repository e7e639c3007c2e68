"""The closing that writes exchanges: one pass over a stage's rows, one map output for each exchange.

Most stages write one exchange. Each batch goes to one exchange after another, through that exchange's own
steps (selections and filters). Each exchange has its own pair of files, its own figures, and an equal share
of the task's memory for writing. Spark gets the control rows of all exchanges together.

All or nothing: a task that fails before all files are finished leaves none of them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.spark.control_rows import SparkMapOutput, control_batches
from sortshuffle.spark.worker.adoption import AdoptingClosing, finished_outputs
from sortshuffle.spark.worker.placements import Placement, first_subpartition
from sortshuffle.spark.worker.stages import Batches, Step, apply_step
from sortshuffle.spark.worker.task import Task
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.row_partition import RowResultPartition


@dataclass(frozen=True)
class WriteExchange:
    """One exchange that a stage writes. ``first``: the partition of subpartition 0 in the shuffle of the
    control rows. ``steps``: `PerBatchStep`s of this exchange alone; ``schema``: of their results. ``order``:
    the order of rows within extents; ``order_names``: its columns."""

    exchange: int
    first: int
    subpartitions: int
    placement: Placement
    schema: pa.Schema
    order: RowOrder | None
    order_names: tuple[str, ...]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class WriteExchanges(AdoptingClosing):
    """Writes one map output of the task for each exchange, and gives Spark their control rows."""

    exchanges: tuple[WriteExchange, ...]

    def close(self, batches: Batches, task: Task) -> Batches:
        yield from _control_rows(self._write(batches, task), task)

    def adopt(self, task: Task) -> Batches | None:
        found = finished_outputs(task, [exchange.exchange for exchange in self.exchanges])
        return None if found is None else _control_rows(zip(self.exchanges, found, strict=True), task)

    def _write(self, batches: Batches, task: Task) -> list[tuple[WriteExchange, SparkMapOutput]]:
        """Write and return the finished map outputs. An exchange without rows has none, and no files."""
        share = task.writing.limit // len(self.exchanges)
        with ExitStack() as opened:
            outputs = [opened.enter_context(_ExchangeOutput(each, task, share)) for each in self.exchanges]
            for batch in batches:
                for output in outputs:
                    output.write(batch)
            finished = [(output.exchange, output.finish()) for output in outputs]
            opened.pop_all()
        return [(exchange, output) for exchange, output in finished if output is not None]


def _control_rows(written: Iterable[tuple[WriteExchange, SparkMapOutput]], task: Task) -> Batches:
    for exchange, output in written:
        index = task.reach.index(output)
        yield from control_batches(output, index, exchange.first, exchange.exchange)


class _ExchangeOutput:
    """The map output of one exchange, opened with the first row. Leaving it as a context deletes its files,
    even if they are finished."""

    def __init__(self, exchange: WriteExchange, task: Task, memory: int) -> None:
        self.exchange = exchange
        self._task = task
        self._memory = memory
        self._metrics = task.outputs.setdefault(exchange.exchange, TaskMetrics())
        self._partition: RowResultPartition | None = None
        self._broadcasts = False
        self._finished: PartitionedFile | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        for rows in self._through_steps(batch):
            if rows.num_rows:
                if self._partition is None:
                    self._partition = self._open()
                if self._broadcasts:
                    self._partition.broadcast(rows)
                else:
                    self._partition.write(rows)

    def finish(self) -> SparkMapOutput | None:
        """Complete the files. Return None if there were no rows."""
        if self._partition is None:
            return None
        task, file_id = self._task, self._partition.file_id
        self._finished = self._partition.finish(
            task.writer(self.exchange.exchange, self.exchange.order_names)
        )
        return task.map_output(self.exchange.exchange, self._finished, file_id)

    def __enter__(self) -> _ExchangeOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finished is not None:
            self._finished.delete()
        elif self._partition is not None:
            self._partition.abandon()

    def _through_steps(self, batch: pa.RecordBatch) -> Batches:
        if not self.exchange.steps:
            return iter((batch,))
        rows: Batches = iter((batch,))
        for step in self.exchange.steps:
            rows = apply_step(step, rows, self._task)
        return self._task.metrics.timed(rows, "chain")

    def _open(self) -> RowResultPartition:
        exchange, task, options = self.exchange, self._task, self._task.options
        header = FileHeader(
            file_id=secrets.token_bytes(16),
            subpartitions=exchange.subpartitions,
            first_subpartition=first_subpartition(task.partition, exchange.subpartitions),
            codec=Codec[options.codec.upper()],
            payload_kind=PayloadKind.ARROW,
        )
        selector = exchange.placement.selector(exchange.subpartitions, task.partition)
        self._broadcasts = selector.is_broadcast
        layout = PartitionLayout(
            ArrowPayload.of(exchange.schema, options),
            selector,
            options.buffer_size,
            exchange.order,
        )
        budget = task.writing.share(self._memory, f"exchange {exchange.exchange}")
        writer = task.new_map_output(exchange.exchange, header)
        task.directory = os.path.dirname(writer.file.base)
        return RowResultPartition(writer, layout, budget, self._metrics)
