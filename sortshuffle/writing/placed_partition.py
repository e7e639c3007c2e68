"""`PlacedResultPartition`: the records of one of Spark's own map tasks, with subpartitions chosen by the JVM.

Each record has one subpartition, so there is no broadcast. There are no events and no schema either.
"""

from __future__ import annotations

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.placed_records import (
    ClusteredFrame,
    PlacedRecordEncoder,
    PlacedRecords,
    RecordBytesLayout,
)
from sortshuffle.writing.result_partition import Intake, SortMergeResultPartition


class PlacedResultPartition(SortMergeResultPartition):
    """A `SortMergeResultPartition` of placed records."""

    def __init__(
        self,
        writer: PartitionedFileWriter,
        layout: RecordBytesLayout,
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self._layout = layout
        super().__init__(writer, layout.payload, budget, metrics)

    @property
    def only_frame(self) -> ClusteredFrame | None:
        """All records so far, if they came in one frame and no region has been written; else None."""
        return None if self._writer.regions else self._unicast.only_frame

    def write(self, records: PlacedRecords) -> None:
        """Send each record to the subpartition in its ``ids``. The memory of ``records`` may be used again
        when the call returns."""
        self._expect_open()
        records.check(self.subpartitions)
        self._put(self._unicast, (records,))

    def _new_intakes(self) -> tuple[Intake, ...]:
        first = self._writer.header.first_subpartition
        self._unicast = PlacedRecordEncoder(self._layout, first, self._budget, self.metrics)
        return (self._unicast,)
