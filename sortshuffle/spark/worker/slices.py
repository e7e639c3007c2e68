"""Slices: parts of large subpartitions, each read by a separate task.

`spark.plan.skew` makes the slices on the driver.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sortshuffle.spark.worker.stages import Batches, Opening
from sortshuffle.spark.worker.task import Task

ALL_MAPS = 2**31 - 1  # above every map index
TASK = "task"  # the column with the number of the task that a control row is for


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a subpartition that a task reads: only the map outputs ``first`` to ``end`` - 1 of
    ``exchange`` (a number, None for none), and all map outputs of other exchanges."""

    subpartition: int
    exchange: int | None = None
    first: int = 0
    end: int = ALL_MAPS

    def of(self, control: pa.RecordBatch) -> pa.RecordBatch:
        """Select the control rows of the slice from those of the whole subpartition."""
        if self.exchange is None:
            return control
        maps = control.column("map_index")
        own = pc.and_(pc.greater_equal(maps, self.first), pc.less(maps, self.end))
        return control.filter(pc.or_(pc.not_equal(control.column("exchange"), self.exchange), own))


@dataclass(frozen=True, slots=True)
class ReadSlices:
    """Opens the slice of each task. ``tasks``: the slices, by partition of the stage."""

    opening: Opening
    tasks: tuple[Slice, ...]

    @property
    def holders(self) -> int:
        return self.opening.holders

    @property
    def needs_number(self) -> bool:
        return self.opening.needs_number

    def open(self, received: Batches, task: Task) -> Batches:
        return self.opening.open((self._own(batch) for batch in received), task)

    def _own(self, received: pa.RecordBatch) -> pa.RecordBatch:
        """Select the control rows of the task's slice from those that it receives."""
        if not received.num_rows:
            return received.drop_columns(TASK)
        task = self.tasks[received.column(TASK)[0].as_py()]
        return task.of(received.drop_columns(TASK))
