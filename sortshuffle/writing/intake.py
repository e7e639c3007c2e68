"""What a result partition collects until it becomes a region: one `Intake` for unicast, one for broadcast.

An intake knows how to take what it is given, as batches of rows or as frames, and refuses the rest. Its
owner, `SortMergeResultPartition`, decides when a region is written:

    pieces --> room_for? --no--> regions are written --> add --is_due?--> drain, written

Rules
* Whether a piece fits is decided before any of it is taken. So no record spans regions.
* `add` takes every piece. One that found no room although nothing is held is a region of its own (`is_due`).
* Memory that an intake lent to the extents it gave is its own again with `written`, or with `discard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.format.index import RegionKind
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.events import Event
from sortshuffle.writing.data_buffer import DataBuffer, Drained, Extent
from sortshuffle.writing.encoders import PartitionLayout, RowEncoder
from sortshuffle.writing.row_slices import sliced

BROADCAST_SHARE = 4  # part of the budget that broadcast records may hold before they become a region


class Intake(Protocol):
    """``kind``: of the regions that are made of it. ``bytes``: what it holds. ``is_due``: it holds what must
    not wait for more."""

    @property
    def kind(self) -> RegionKind: ...

    @property
    def bytes(self) -> int: ...

    @property
    def is_due(self) -> bool: ...

    def pieces(self, item: object) -> Iterable[Any]:
        """What is given, in pieces that can be added. Raises `UsageError` for what is not its kind."""

    def room_for(self, piece: Any) -> bool:
        """Whether this piece still fits the memory and the region."""

    def add(self, piece: Any) -> None:
        """Take it over, or copy it: the caller may use its memory again once `is_due` was acted on."""

    def drain(self) -> Iterator[Drained]:
        """The extents of all that was added since the last drain, in the write order, each in one or more
        parts. The bytes of a part stay charged to the budget: the caller releases them."""

    def written(self) -> None:
        """What the last drain gave has been written."""

    def discard(self) -> None:
        """Let go of everything. The caller releases the budget."""


@dataclass(frozen=True, slots=True)
class Intakes:
    """Both intakes of a partition, and what else depends on its payload.

    ``schema``: for the index. ``last``: the events that end each subpartition; rows
    have none, because their index and their control rows say what is complete. ``close``: gives back what
    was taken at set-up.
    """

    unicast: Intake
    broadcast: Intake
    schema: bytes
    last: tuple[Event, ...]
    close: Callable[[], None]


def row_intakes(
    layout: PartitionLayout, write_order: list[int], budget: MemoryBudget, metrics: TaskMetrics
) -> Intakes:
    """For Arrow batches."""
    schema = layout.payload.schema.serialize().to_pybytes()
    unicast = RowIntake(layout, write_order, budget, metrics)
    broadcast = BroadcastRowIntake(layout, unicast, budget, metrics)
    return Intakes(unicast, broadcast, schema, (), lambda: None)


class RowIntake:
    """Rows that go where the selector says."""

    kind = RegionKind.UNICAST
    is_due = False

    def __init__(
        self, layout: PartitionLayout, write_order: list[int], budget: MemoryBudget, metrics: TaskMetrics
    ) -> None:
        self._new_encoder = partial(RowEncoder, layout, write_order, budget, metrics)
        self._encoder = self._new_encoder()
        self._budget = budget

    @property
    def bytes(self) -> int:
        # broadcast rows, which have at most their share, count here too: unicast regions are written first
        return self._budget.used

    def pieces(self, item: object) -> Iterator[pa.RecordBatch]:
        return sliced(_batch(item), self._encoder.unit_bytes)

    def room_for(self, piece: pa.RecordBatch) -> bool:
        return self._encoder.room_for(piece)

    def add(self, piece: pa.RecordBatch) -> None:
        self._encoder.add(piece)

    def drain(self) -> Iterator[Extent]:
        return self._encoder.drain()

    def written(self) -> None:
        pass

    def discard(self) -> None:
        self._encoder = self._new_encoder()


class BroadcastRowIntake:
    """Rows that go to every subpartition, encoded as they come and stored once."""

    kind = RegionKind.BROADCAST

    def __init__(
        self, layout: PartitionLayout, unicast: RowIntake, budget: MemoryBudget, metrics: TaskMetrics
    ) -> None:
        self._layout = layout
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

    def pieces(self, item: object) -> Iterator[pa.RecordBatch]:
        if self._layout.order is not None:
            raise UnsupportedError(
                "rows cannot be broadcast into extents that are ordered by key: write them to every"
                " subpartition"
            )
        return self._unicast.pieces(item)

    def room_for(self, piece: pa.RecordBatch) -> bool:
        return self._unicast.room_for(piece)

    def add(self, piece: pa.RecordBatch) -> None:
        self._buffer.append(0, self._layout.payload.encode(piece, self._metrics.seconds))

    def drain(self) -> Iterator[Extent]:
        return self._buffer.drain()

    def written(self) -> None:
        pass

    def discard(self) -> None:
        self._buffer = DataBuffer([0], self._budget)


def _batch(item: object) -> pa.RecordBatch:
    if isinstance(item, pa.RecordBatch):
        return item
    raise UsageError(
        f"this partition takes Arrow record batches (write, broadcast), not {type(item).__name__}: frames and"
        " events go into a partition with a FrameLayout"
    )
