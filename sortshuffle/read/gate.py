"""`InputGate`: all the channels of one consumer task, delivered in a fixed order.

The order is (map index, region, position); the order in which reads finish is never seen. Fetches of a few
MiB are read ahead in threads within the budget; an extent too large for that is streamed in parts.

Batches are handed over: the gate does not look at them again, and what user code keeps blocks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.read.channel import Fetch, Fetched, LocalInputChannel
from sortshuffle.read.merge import merge_at_once, merge_runs
from sortshuffle.read.read_ahead import ReadAhead

FETCH_BYTES = 8 * MIB  # in memory; several fetches fit the read budget, and each is worth a thread switch
# Messages are as small as a unit's share of a subpartition; a user's function gets them joined to batches
# of about this many rows, twice of what Spark's own Arrow batches have, or this many bytes
BATCH_ROWS = 20_000
BATCH_BYTES = 4 * MIB


class InputGate:
    """Reads the channels of one subpartition. ``threads``: for reading ahead."""

    def __init__(
        self,
        channels: Sequence[LocalInputChannel],
        payload: ArrowPayload,
        budget: MemoryBudget,
        threads: int,
        metrics: TaskMetrics,
    ) -> None:
        self._channels = sorted(channels, key=lambda channel: channel.map_index)
        self._payload = payload
        self._budget = budget
        self._threads = threads
        self._metrics = metrics

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every row of the subpartition, in batches that are worth a call."""
        return joined(self._messages())

    def sorted_batches(self, order: RowOrder) -> Iterator[pa.RecordBatch]:
        """Every row in key order. Every extent must be a run sorted by ``order``.

        What fits the read budget is merged in one step; more than that, batch-wise.
        """
        fetches = [Fetch(channel, (extent,)) for channel in self._channels for extent in channel.extents]
        if sum(fetch.memory for fetch in fetches) <= self._budget.limit:
            return merge_at_once(list(self._read(fetches)), order, self._metrics)
        part = self._budget.limit // (2 * len(fetches))
        runs = [fetch.stream(self._payload, part, self._metrics) for fetch in fetches]
        return merge_runs(runs, order, self._metrics)

    def _messages(self) -> Iterator[pa.RecordBatch]:
        small: list[Fetch] = []
        for fetch in planned(self._channels):
            if fetch.memory <= self._budget.limit // 2:
                small.append(fetch)
                continue
            yield from self._read(small)
            small = []
            yield from fetch.stream(self._payload, FETCH_BYTES // 2, self._metrics)
        yield from self._read(small)

    def _read(self, fetches: Sequence[Fetch]) -> Iterator[pa.RecordBatch]:
        for batches in self._fetched(fetches):
            yield from batches

    def _fetched(self, fetches: Sequence[Fetch]) -> Iterator[list[pa.RecordBatch]]:
        if not fetches:
            return
        with ReadAhead(fetches, self._run, lambda fetch: fetch.memory, self._budget, self._threads) as ahead:
            results: Iterable[Fetched] = self._metrics.timed(iter(ahead), "wait")
            for fetched in results:
                self._metrics.merge(fetched.metrics)
                self._metrics.peak(self._budget.peak)
                yield fetched.batches

    def _run(self, fetch: Fetch) -> Fetched:
        return fetch.run(self._payload)


def planned(channels: Iterable[LocalInputChannel]) -> Iterator[Fetch]:
    """The channels' extents in order, neighbours of one file together up to `FETCH_BYTES`."""
    for channel in channels:
        group: list[int] = []
        size = 0
        for position, extent in enumerate(channel.extents):
            held = extent.bytes + extent.raw_bytes
            if group and size + held > FETCH_BYTES:
                yield Fetch(channel, tuple(channel.extents[at] for at in group))
                group, size = [], 0
            group.append(position)
            size += held
        if group:
            yield Fetch(channel, tuple(channel.extents[at] for at in group))


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Consecutive batches joined until they are worth a call; larger ones pass as they are."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _concatenated(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield _concatenated(pending)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
