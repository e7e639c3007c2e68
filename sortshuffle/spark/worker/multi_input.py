"""Openings that read several inputs, or several partitions of one input.

Together (join, cogroup): the control rows of all inputs' exchanges reach the task as one stream; each row
names its exchange. Every input has its own gate, its own steps, and an equal share of the task's memory for
reading. A `CombineLegs` combines their rows into one stream.

Union: a task belongs to one of the inputs, and receives only what that input reads.

Coalesced: a task receives the rows for several tasks of one input, and does their work one after another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.spark.control_rows import SCHEMA, channels
from sortshuffle.spark.functions.running import CloseAtEnd
from sortshuffle.spark.worker.stages import (
    Batches,
    Opening,
    ReadExchange,
    Step,
    apply_steps,
    holders_of,
    need_number,
)
from sortshuffle.spark.worker.task import Task


@dataclass(slots=True)
class Leg:
    """One input of a `CombineLegs` in one partition. ``raw_bytes``: size of its subpartition as Arrow data,
    before its own steps; None if unknown."""

    rows: Batches
    raw_bytes: int | None


class CombineLegs(Protocol):
    """Combines several inputs into the rows of a partition. It charges the rows that it holds to ``memory``;
    its caller closes the legs. ``describe`` returns its line in `explain()`.

    ``sliceable``: for each input, whether tasks may combine parts of it with the other inputs
    (`spark.plan.skew`); empty if no input is. ``only_first``: all results are rows of the first input.
    """

    @property
    def sliceable(self) -> Sequence[bool]: ...

    @property
    def only_first(self) -> bool: ...

    def run(self, legs: Sequence[Leg], task: Task, memory: MemoryBudget) -> Batches: ...

    def describe(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ChainInput:
    """One input: the number of its exchange, the opening that reads it, and its own steps."""

    exchange: int
    opening: ReadExchange
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class ReadTogether:
    """Reads one subpartition of several exchanges, and combines them."""

    inputs: tuple[ChainInput, ...]
    combine: CombineLegs

    @property
    def holders(self) -> int:
        return 1 + sum(holders_of(each.steps) for each in self.inputs)

    @property
    def needs_number(self) -> bool:
        return any(need_number(each.steps) for each in self.inputs)

    def open(self, received: Batches, task: Task) -> Batches:
        control = pa.Table.from_batches(received, SCHEMA)
        share = task.reading.limit // len(self.inputs)
        with ExitStack() as opened:
            legs = [self._leg(each, control, task, share, opened) for each in self.inputs]
            combined = self.combine.run(legs, task, task.holding(self.combine.describe()))
            opened.enter_context(CloseAtEnd(combined))
            yield from combined

    def _leg(self, each: ChainInput, control: pa.Table, task: Task, share: int, opened: ExitStack) -> Leg:
        own = control.filter(pc.equal(control["exchange"], each.exchange))
        own_channels = channels(iter(own.to_batches()), task.reach)
        raw_bytes = sum(extent.raw_bytes for channel in own_channels for extent in channel.extents)
        budget = task.reading.share(share, f"read exchange {each.exchange}")
        rows = each.opening.read(own_channels, task, budget)
        return Leg(apply_steps(rows, each.steps, task, opened), raw_bytes)


@dataclass(frozen=True, slots=True)
class ReadUnion:
    """Reads one partition of one of the inputs.

    ``partitions``: the number of partitions of each input. The first row that a task receives has the number
    of its partition in the first column.
    """

    inputs: tuple[tuple[Opening, tuple[Step, ...]], ...]
    partitions: tuple[int, ...]
    needs_number: ClassVar[bool] = False  # its steps take the number in the first column

    @property
    def holders(self) -> int:
        return max(opening.holders + holders_of(steps) for opening, steps in self.inputs)

    def open(self, received: Batches, task: Task) -> Batches:
        received = iter(received)
        first = next(received)
        partition = first.column(0)[0].as_py()
        number = bisect_right(list(accumulate(self.partitions)), partition)
        # the number within this input, as its steps and exchanges count partitions
        task = task.of_partition(partition - sum(self.partitions[:number]))
        opening, steps = self.inputs[number]
        # an iterator, because `chain` would hold a tuple until its end, and so the first rows
        others = (batch for batch in chain(iter((first.slice(1),)), received) if batch.num_rows)
        del first
        own = (_unwrapped(batch, 1 + number) for batch in others)
        with ExitStack() as opened:
            yield from apply_steps(opening.open(own, task), steps, task, opened)


@dataclass(frozen=True, slots=True)
class ReadCoalesced:
    """Reads several partitions of one input, in ascending order. ``numbered_by``: the column of the received
    rows with the number of the partition. A row without a map output only shows that the partition exists."""

    opening: Opening
    steps: tuple[Step, ...]
    numbered_by: int
    needs_number: ClassVar[bool] = False  # its steps take the number in that column

    @property
    def holders(self) -> int:
        return self.opening.holders + holders_of(self.steps)

    def open(self, received: Batches, task: Task) -> Batches:
        batches = list(received)
        if not batches:
            return
        for number, rows in _by_number(pa.Table.from_batches(batches), self.numbered_by):
            own = iter(_with_output(rows).to_batches())
            part = task.of_partition(number)  # the task whose work this is
            with ExitStack() as opened:
                yield from apply_steps(self.opening.open(own, part), self.steps, part, opened)


def _by_number(rows: pa.Table, column: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield each number in a column, in ascending order, and the rows that have it, in their order."""
    numbers = rows.column(column).to_numpy()
    order = np.argsort(numbers, kind="stable")  # not a filter for each number: there may be thousands
    found, starts = np.unique(numbers[order], return_index=True)
    rows = rows.take(pa.array(order))
    for number, (start, end) in zip(found.tolist(), pairwise([*starts.tolist(), len(order)]), strict=True):
        yield number, rows.slice(start, end - start)


def _with_output(rows: pa.Table) -> pa.Table:
    if rows.num_columns != len(SCHEMA):
        return rows  # rows of a scan are no control rows
    return rows.filter(pc.is_valid(rows.column(SCHEMA.get_field_index("output"))))


def _unwrapped(batch: pa.RecordBatch, column: int) -> pa.RecordBatch:
    """Return the rows in the struct column of one input. The batch has no rows of other inputs."""
    return pa.RecordBatch.from_struct_array(batch.column(column))
