"""`DataBuffer`: encoded buffers that wait for their region, grouped by subpartition.

Appending keeps the order within a subpartition. Draining yields the subpartitions in the write order and
leaves the data buffer empty. The buffers are charged to the task's budget and stay charged when they are
drained: the code that writes them releases the charge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.extent_run import ExtentRun
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import MIB

# Bytes handed to one gathered write: enough to make the cost of the call negligible, few enough that the
# messages are still in cache
WRITE_BATCH = 8 * MIB
WRITE_BATCH_SHARE = 8  # a gathered write is at most 1/WRITE_BATCH_SHARE of the budget
BROADCAST_SHARE = 4  # broadcast records may hold 1/BROADCAST_SHARE of the budget before they become a region

Extent = tuple[int, list[SealedBuffer]]
Drained: TypeAlias = Extent | ExtentRun
"""An item of a drain: one extent or a part of it, or a run of many small extents."""


def write_batch(memory: int) -> int:
    """Return the bytes to hand to one gathered write, given ``memory`` bytes."""
    return max(1, min(WRITE_BATCH, memory // WRITE_BATCH_SHARE))


def bytes_of(extent: list[SealedBuffer]) -> int:
    """Return the bytes that an extent takes in the file, which is also its charge."""
    return extent[0].bytes if len(extent) == 1 else sum(buffer.bytes for buffer in extent)


class DataBuffer:
    """The waiting buffers of ``write_order``'s subpartitions. ``bytes``: their size in the file."""

    def __init__(self, write_order: Sequence[int], budget: MemoryBudget) -> None:
        self._write_order = write_order
        self._budget = budget
        self._buffers: list[list[SealedBuffer]] = [[] for _ in write_order]
        self.bytes = 0

    def append(self, subpartition: int, buffer: SealedBuffer) -> None:
        self._buffers[subpartition].append(buffer)
        self._budget.charge(buffer.bytes)
        self.bytes += buffer.bytes

    def drain(self) -> Iterator[Extent]:
        """Yield every non-empty extent in the write order. The caller takes over its charge."""
        buffers, self._buffers = self._buffers, [[] for _ in self._write_order]
        self.bytes = 0
        for subpartition in self._write_order:
            extent, buffers[subpartition] = buffers[subpartition], []
            if extent:
                yield subpartition, extent
                del extent  # so that only the caller holds it
