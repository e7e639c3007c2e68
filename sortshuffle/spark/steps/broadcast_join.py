"""`BroadcastJoin`: the opening of a stage whose tasks join their own rows with the whole of a small side.

A task receives the control rows of the broadcast exchange, then its own rows. Both come in struct columns,
one of which is null in each row (`operators.broadcast` makes them). The task reads the small side into a
table, then joins its own rows batch by batch, in their order.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from sortshuffle.compute.join.build import HeldRows
from sortshuffle.compute.join.hash_join import BuildTable, JoinSpec, probe
from sortshuffle.errors import InsufficientBuffersError
from sortshuffle.options import format_size
from sortshuffle.spark.control_rows import channels
from sortshuffle.spark.worker.multi_input import ChainInput
from sortshuffle.spark.worker.stages import Batches, Opening, Step, apply_steps, holders_of, need_number
from sortshuffle.spark.worker.task import Task


@dataclass(frozen=True)
class BroadcastJoin:
    """Opens a stage by joining each task's own rows with a broadcast side. ``small``: how the broadcast side
    is read; ``small_schema``: its rows' schema; ``opening``, ``steps``: these make the task's own rows."""

    spec: JoinSpec
    small: ChainInput
    small_schema: pa.Schema
    small_is_left: bool
    opening: Opening
    steps: tuple[Step, ...]
    label: str

    @property
    def holders(self) -> int:
        return 1 + self.opening.holders + holders_of(self.steps) + holders_of(self.small.steps)

    @property
    def needs_number(self) -> bool:
        return self.opening.needs_number or need_number((*self.steps, *self.small.steps))

    def open(self, received: Batches, task: Task) -> Batches:
        control, own = _control_and_own_rows(received)
        memory = task.holding(self.label)
        held = HeldRows(memory, self.spec.keys.of(left=self.small_is_left))
        with ExitStack() as opened:
            opened.callback(held.release)
            with ExitStack() as reading:
                if not held.fill(self._small_rows(control, task, reading)):
                    raise InsufficientBuffersError(
                        f"the broadcast side of the {self.label.removesuffix(', of')} takes more than the"
                        f" {format_size(memory.limit)} that a task may hold of it: leave out broadcast(), or"
                        " give more memory with spark.sortshuffle.memory"
                    )
            del control  # its batches may be parts of large messages
            build = BuildTable(self.spec, held.concatenate(self.small_schema), is_left=self.small_is_left)
            rows = apply_steps(self.opening.open(own, task), self.steps, task, opened)
            yield from probe(self.spec, build, rows)

    def _small_rows(self, control: list[pa.RecordBatch], task: Task, opened: ExitStack) -> Batches:
        inputs = channels(iter(control), task.reach)
        rows = self.small.opening.read(inputs, task, task.reading)
        return apply_steps(rows, self.small.steps, task, opened)


def _control_and_own_rows(received: Batches) -> tuple[list[pa.RecordBatch], Batches]:
    """Read the control rows, which come first. Return them, and an iterator over the task's own rows."""
    control = []
    for batch in received:
        control.append(_unwrap(batch, "control"))
        own = _unwrap(batch, "rows")
        if own.num_rows:
            others = (_unwrap(batch, "rows") for batch in received)
            # an iterator, because `chain` would hold a tuple until its end, and so the first rows
            return control, chain(iter((own,)), others)
    return control, iter(())


def _unwrap(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return the rows in a struct column, without its nulls."""
    column = batch.column(name)
    if column.null_count:
        column = column.filter(column.is_valid())
    return pa.RecordBatch.from_struct_array(column)
