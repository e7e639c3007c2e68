"""`FrameResultPartition`: the result partition of a task's frames and events.

Every consumer reads an event after all that was written before it, and before all that was written later. So
an event ends the open regions and has a separate region. `finish()` broadcasts `END_OF_DATA` and
`END_OF_PARTITION` as the last region, by which a consumer knows that its stream is complete.

Owns the layout's buffer pool.
"""

from __future__ import annotations

from sortshuffle.errors import UsageError
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.events import END_OF_DATA, END_OF_PARTITION, Event, seal_event
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.frame_encoder import BytesLike, Frame, FrameEncoder, FrameLayout
from sortshuffle.writing.result_partition import Intake, SortMergeResultPartition

LAST_EVENTS = (END_OF_DATA, END_OF_PARTITION)


class FrameResultPartition(SortMergeResultPartition):
    """A `SortMergeResultPartition` of frames. Its construction waits for the pool's guaranteed segments."""

    def __init__(
        self, writer: PartitionedFileWriter, layout: FrameLayout, budget: MemoryBudget, metrics: TaskMetrics
    ) -> None:
        self._layout = layout
        super().__init__(writer, layout.payload, budget, metrics)

    def emit(self, frame: BytesLike, subpartition: int) -> None:
        """Send a frame to a subpartition. Its memory may be used again when the call returns. The payload
        tells how many records are in the frame."""
        self._expect_open()
        self._put(self._unicast, (self._unicast.checked(Frame.of(frame, subpartition)),))

    def broadcast_frame(self, frame: BytesLike) -> None:
        """Send a frame to every subpartition, storing it once."""
        self._expect_open()
        self._put(self._broadcast, (self._broadcast.checked(Frame.of(frame, 0)),))

    def broadcast_event(self, event: Event) -> None:
        """Send an event to every subpartition, after all that was written before and before all that is
        written later. This ends the open regions, so it is too costly to do for every record."""
        self._expect_open()
        if event in LAST_EVENTS:
            raise UsageError(f"{event} is what finish() broadcasts")
        sealed = seal_event(event)
        with self._whole_or_failed():
            self._write_region(self._unicast)
            self._broadcast.add_event(sealed)
            self._write_region(self._broadcast)

    def _new_intakes(self) -> tuple[Intake, ...]:
        self._layout.pool.reserve()
        order, budget = self._writer.write_order, self._budget
        self._unicast = FrameEncoder(self._layout, RegionKind.UNICAST, order, budget, self.metrics)
        self._broadcast = FrameEncoder(self._layout, RegionKind.BROADCAST, [0], budget, self.metrics)
        return (self._unicast, self._broadcast)

    def _write_rest(self) -> None:
        self._write_region(self._unicast)
        for event in LAST_EVENTS:
            self._broadcast.add_event(seal_event(event))
        self._write_region(self._broadcast)

    def _close(self) -> None:
        self._layout.pool.close()
