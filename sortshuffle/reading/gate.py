"""`InputGate`: delivers the rows of all the channels of one consumer task, in a fixed order.

The order is (map index, region, position), or (key, map index, region, position). It depends neither on the
order in which reads finish nor on the memory (`reading.fetcher`).

Batches are handed over: the gate does not use them again, and user code may keep them. Only batches that are
read ahead or wait to be merged are charged to the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import BATCH_BYTES, BATCH_ROWS, ArrowPayload
from sortshuffle.reading.channel import Fetch, InputChannel
from sortshuffle.reading.fetcher import Batches, Fetcher

if TYPE_CHECKING:
    from sortshuffle.payload.ordering import RowOrder
    from sortshuffle.reading.spill import NewFile


class InputGate:
    """Reads the channels of one subpartition.

    ``threads``: the number of threads that read ahead. ``new_file``: makes files for intermediate runs of a
    merge, in a directory that has room.
    """

    def __init__(
        self,
        channels: Sequence[InputChannel],
        payload: ArrowPayload,
        budget: MemoryBudget,
        threads: int,
        metrics: TaskMetrics,
        new_file: NewFile | None = None,
    ) -> None:
        self._channels = sorted(channels, key=lambda channel: channel.map_index)
        self._payload = payload
        self._fetcher = Fetcher(payload, budget, threads, metrics)
        self._new_file = new_file

    def batches(self) -> Batches:
        """Yield every row of the subpartition, in batches large enough for a call of a user's function.
        Closing the generator releases everything."""
        return _joining(self._messages())

    def sorted_batches(self, order: RowOrder) -> Iterator[pa.RecordBatch]:
        """Yield every row in key order. Every extent must be a run sorted by ``order``.

        The merge keeps within the read budget and a number of open files. If necessary, it writes
        intermediate runs to disk (`reading.multi_pass`), which does not change the order of rows. Raises
        `OutOfDiskError` if there is no room for intermediate runs, `InsufficientBuffersError` if they are
        needed and there is no ``new_file``.
        """
        # the merge imports pyarrow.compute, which takes 28 ms: only for tasks that merge
        from sortshuffle.reading.multi_pass import MultiPassMerge

        runs = [Fetch(channel, (extent,)) for channel in self._channels for extent in channel.extents]
        return _joining(MultiPassMerge(order, self._payload, self._fetcher, self._new_file).merged(runs))

    def _messages(self) -> Batches:
        with closing(self._fetcher.items(self._channels)) as items:
            for _, batch in items:
                yield batch


def join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join consecutive small batches until they are worth a call. Larger batches pass unchanged.

    Small batches come from small regions, or from many producers with few rows each.
    """
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        # The exact size of a decoded message; it takes 0.1 us, a hundredth of the time of `nbytes`
        batch_size = batch.get_total_buffer_size()
        if _is_worth_a_call(batch.num_rows, batch_size):
            if pending:
                yield _concatenate(pending)
                pending, rows, size = [], 0, 0
            yield batch
            continue
        pending.append(batch)
        rows += batch.num_rows
        size += batch_size
        if _is_worth_a_call(rows, size):
            yield _concatenate(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield _concatenate(pending)


def _is_worth_a_call(rows: int, size: int) -> bool:
    return rows >= BATCH_ROWS or size >= BATCH_BYTES


def _joining(batches: Batches) -> Batches:
    with closing(batches):
        yield from join_small(batches)


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
