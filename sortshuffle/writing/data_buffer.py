"""`DataBuffer`: the encoded buffers that wait for their region, per subpartition, with a byte count.

Appending keeps the order within a subpartition; draining gives the subpartitions in the write order and
leaves the data buffer empty. What it holds is charged to the task's budget, and stays charged when it is
drained: whoever writes it releases it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.extent_run import ExtentRun
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import MIB

# bytes handed to one gathered write: large enough that the call's cost vanishes, small enough that the
# messages are still in cache
WRITE_BATCH = 8 * MIB
WRITE_BATCH_SHARE = 8  # part of the budget that a gathered write is at most
BROADCAST_SHARE = 4  # part of the budget that broadcast records may hold before they become a region

Extent = tuple[int, list[SealedBuffer]]
Drained: TypeAlias = Extent | ExtentRun
"""What a drain gives: extents, or parts of them, one by one; or many small ones at once."""


def write_batch(memory: int) -> int:
    """Bytes of encoded rows that are handed to one gathered write."""
    return max(1, min(WRITE_BATCH, memory // WRITE_BATCH_SHARE))


def bytes_of(extent: list[SealedBuffer]) -> int:
    """Bytes that an extent takes in the file, which is what it is charged with."""
    return extent[0].bytes if len(extent) == 1 else sum(buffer.bytes for buffer in extent)


class DataBuffer:
    """Buffers of ``write_order``'s subpartitions. ``bytes``: as they will stand in the file."""

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
        """Every non-empty extent in the write order, with its charge."""
        buffers, self._buffers = self._buffers, [[] for _ in self._write_order]
        self.bytes = 0
        for subpartition in self._write_order:
            extent, buffers[subpartition] = buffers[subpartition], []
            if extent:
                yield subpartition, extent
                del extent  # the caller's from here on
