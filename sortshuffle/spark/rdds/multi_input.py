"""Reading several inputs in one task, for `cogroup` and joins.

    subpartition of an exchange -------> steps of its chain --\\
    subpartition of another exchange --> steps of its chain ----> groups of each key, combined
    chunks of a passed input ----------------------------------/

The inputs are read one after the other, because rows of passed inputs come from Spark in that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sortshuffle.payload.pickled import Chunk, Pairs
from sortshuffle.spark.rdds.control_rows import TaskInput
from sortshuffle.spark.rdds.failures import noting
from sortshuffle.spark.rdds.holding_steps import CoGroup
from sortshuffle.spark.rdds.stages import RecordOpening, apply_steps, holders_of
from sortshuffle.spark.rdds.steps import Step
from sortshuffle.spark.rdds.streams import RecordStream
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True)
class ReadPassed:
    """Reads an input whose records come through Spark. ``number``: the number of the input."""

    number: int
    holders = 0

    def open(self, received: TaskInput, task: Task, opened: ExitStack) -> RecordStream:
        return RecordStream(chunks=received.passed(self.number))


@dataclass(frozen=True)
class RecordInput:
    """One of several inputs: an opening, and the steps on its records."""

    opening: RecordOpening
    steps: tuple[Step, ...]

    @property
    def holders(self) -> int:
        return self.opening.holders + holders_of(self.steps)

    def chunks(self, received: TaskInput, task: Task, opened: ExitStack) -> Iterator[Chunk]:
        stream = self.opening.open(received, task, opened)
        for chunk in apply_steps(self.steps, stream, task, opened).chunks():
            yield chunk if isinstance(chunk, Pairs) else _first_two(chunk)


@dataclass(frozen=True)
class ReadRecordsTogether:
    """Reads several inputs and combines them."""

    inputs: tuple[RecordInput, ...]
    combine: CoGroup

    @property
    def holders(self) -> int:
        return 1 + sum(each.holders for each in self.inputs)

    def open(self, received: TaskInput, task: Task, opened: ExitStack) -> RecordStream:
        inputs = [each.chunks(received, task, opened) for each in self.inputs]
        made: Any = self.combine.run(inputs, task, task.holding(self.combine.describe()))
        opened.callback(made.close)
        return RecordStream(chunks=noting(made))


def _first_two(records: list[Any]) -> Pairs:
    # PySpark's joins also take the first two elements of any record
    return Pairs([record[0] for record in records], [record[1] for record in records])
