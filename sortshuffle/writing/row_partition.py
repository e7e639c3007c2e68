"""`RowResultPartition`: the result partition of a producer task's Arrow batches.

Rows go where the layout's selector says (`writing.encoders`), or to every subpartition. There are no events:
the index and the control rows say what is complete.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sortshuffle.errors import UnsupportedError
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.data_buffer import BROADCAST_SHARE, DataBuffer, Extent
from sortshuffle.writing.encoders import PartitionLayout, RowEncoder
from sortshuffle.writing.result_partition import Intake, SortMergeResultPartition
from sortshuffle.writing.row_slices import slice_rows


class RowResultPartition(SortMergeResultPartition):
    """A `SortMergeResultPartition` of rows."""

    def __init__(
        self,
        writer: PartitionedFileWriter,
        layout: PartitionLayout,
        budget: MemoryBudget,
        metrics: TaskMetrics,
    ) -> None:
        self._layout = layout
        super().__init__(writer, layout.payload, budget, metrics)

    def write(self, batch: pa.RecordBatch) -> None:
        """Send each row to the subpartition that the selector chooses. The batch must have the payload's
        schema. It is not kept after its region has been written."""
        self._expect_open()
        self._put(self._unicast, slice_rows(batch, self._unicast.unit_bytes))

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Send every row to every subpartition. Raises `UnsupportedError` if extents are ordered by key."""
        self._expect_open()
        if self._layout.order is not None:
            raise UnsupportedError(
                "rows cannot be broadcast into extents that are ordered by key: write them to every"
                " subpartition"
            )
        self._put(self._broadcast, slice_rows(batch, self._unicast.unit_bytes))

    def _new_intakes(self) -> tuple[Intake, ...]:
        self._unicast = RowEncoder(self._layout, self._writer.write_order, self._budget, self.metrics)
        self._broadcast = _BroadcastRows(self._layout, self._unicast, self._budget, self.metrics)
        return (self._unicast, self._broadcast)

    def _schema(self) -> bytes:
        schema: bytes = self._layout.payload.schema.serialize().to_pybytes()
        return schema


class _BroadcastRows:
    """The `Intake` of rows for every subpartition. Rows are encoded when they are added, and stored once."""

    kind = RegionKind.BROADCAST

    def __init__(
        self, layout: PartitionLayout, unicast: RowEncoder, budget: MemoryBudget, metrics: TaskMetrics
    ) -> None:
        self._payload = layout.payload
        self._unicast = unicast
        self._budget = budget
        self._metrics = metrics
        self._buffer = DataBuffer([0], budget)

    @property
    def bytes(self) -> int:
        return self._buffer.bytes

    @property
    def is_due(self) -> bool:
        return self.bytes > self._budget.limit // BROADCAST_SHARE

    def room_for(self, piece: pa.RecordBatch) -> bool:
        return self._unicast.room_for(piece)

    def add(self, piece: pa.RecordBatch) -> None:
        self._buffer.append(0, self._payload.encode(piece, self._metrics.seconds))

    def drain(self) -> Iterator[Extent]:
        return self._buffer.drain()

    def written(self) -> None:
        pass

    def discard(self) -> None:
        self._buffer = DataBuffer([0], self._budget)
