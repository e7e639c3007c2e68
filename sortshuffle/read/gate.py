"""`InputGate`: all the channels of one consumer task, delivered in a fixed order.

The order is (map index, region, position), or (key, map index, region, position); the order in which reads
finish is never seen, nor how much memory there is. Fetches of a few MiB are read ahead in threads within
the budget; an extent too large for that is streamed in parts.

Batches are handed over: the gate does not look at them again, and what user code keeps blocks nobody. Only
what is read ahead or waits to be merged is charged to the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TypeAlias

import pyarrow as pa

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.read.channel import Fetch, Fetched, LocalInputChannel
from sortshuffle.read.merge import SORT_BYTES_PER_ROW, WINDOW_ROWS, SortedRun, merge_runs
from sortshuffle.read.read_ahead import ReadAhead
from sortshuffle.storage.reader import Extent

FETCH_BYTES = 8 * MIB  # in memory; worth a thread switch
FETCHES_IN_BUDGET = 8  # at least so many fit the read budget, so that a few threads never run dry
LEAST_PART = 16 * KIB  # of a streamed extent, so that the search for the end of its first buffer is short
# Messages are as small as a unit's share of a subpartition; a user's function gets them joined to batches
# of about this many rows, twice of what Spark's own Arrow batches have, or this many bytes
BATCH_ROWS = 20_000
BATCH_BYTES = 4 * MIB

Batches: TypeAlias = Generator[pa.RecordBatch, None, None]


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
        return _worth_a_call(self._messages())

    def sorted_batches(self, order: RowOrder) -> Iterator[pa.RecordBatch]:
        """Every row in key order. Every extent must be a run sorted by ``order``.

        Runs that fit the read budget together are read ahead in threads and then merged; others are
        streamed by the merge. The rows come in the same order either way.
        """
        return _worth_a_call(self._merged(order))

    def _merged(self, order: RowOrder) -> Batches:
        runs = [Fetch(channel, (extent,)) for channel in self._channels for extent in channel.extents]
        limit = self._budget.limit
        with ExitStack() as stack:
            stack.callback(lambda: self._metrics.peak(self._budget.peak))
            sources: list[SortedRun] = []
            if sum(map(_merge_memory, runs)) <= limit:
                for batches in stack.enter_context(closing(self._fetched(runs))):
                    sources.append(stack.enter_context(closing(_HeldRun(batches, self._budget))))
            else:
                part = max(LEAST_PART, limit // (4 * len(runs)))
                sources += (run.stream(self._payload, part, self._budget, self._metrics) for run in runs)
            yield from merge_runs(sources, order, self._budget, self._metrics)

    def _messages(self) -> Batches:
        limit = self._budget.limit
        small: list[Fetch] = []
        for fetch in planned(self._channels, min(FETCH_BYTES, limit // FETCHES_IN_BUDGET)):
            if fetch.memory <= limit // 2:
                small.append(fetch)
                continue
            yield from self._read(small)
            small = []
            part = max(LEAST_PART, min(FETCH_BYTES // 2, limit // 2))
            yield from fetch.stream(self._payload, part, self._budget, self._metrics)
        yield from self._read(small)

    def _read(self, fetches: Sequence[Fetch]) -> Batches:
        with closing(self._fetched(fetches)) as fetched:
            for batches in fetched:
                yield from batches

    def _fetched(self, fetches: Sequence[Fetch]) -> Generator[list[pa.RecordBatch], None, None]:
        if len(fetches) <= 1:  # nothing to read ahead of: no thread for it
            yield from map(self._fetched_here, fetches)
            return
        with ReadAhead(fetches, self._run, lambda fetch: fetch.memory, self._budget, self._threads) as ahead:
            for fetched in self._metrics.timed(iter(ahead), "wait"):
                assert isinstance(fetched, Fetched)
                yield self._counted(fetched)

    def _fetched_here(self, fetch: Fetch) -> list[pa.RecordBatch]:
        self._budget.charge(fetch.memory)
        try:
            with self._metrics.step("wait"):
                return self._counted(self._run(fetch))
        finally:
            self._budget.release(fetch.memory)

    def _counted(self, fetched: Fetched) -> list[pa.RecordBatch]:
        self._metrics.merge(fetched.metrics)
        self._metrics.peak(self._budget.peak)
        return fetched.batches

    def _run(self, fetch: Fetch) -> Fetched:
        return fetch.run(self._payload)


class _HeldRun:
    """The batches of a run that is in memory, charged until they are taken."""

    def __init__(self, batches: Iterable[pa.RecordBatch], budget: MemoryBudget) -> None:
        self._batches = deque((batch, batch.nbytes) for batch in batches)
        self._budget = budget
        budget.charge(sum(size for _, size in self._batches))

    def __iter__(self) -> _HeldRun:
        return self

    def __next__(self) -> pa.RecordBatch:
        if not self._batches:
            raise StopIteration
        batch, size = self._batches.popleft()
        self._budget.release(size)
        return batch

    def close(self) -> None:
        for _ in self:
            pass


def _merge_memory(run: Fetch) -> int:
    """Bytes that a run takes when all of it is fetched and then merged: itself, and its part of a step."""
    return run.memory + sum(
        min(extent.records, 2 * WINDOW_ROWS) * (extent.raw_bytes // extent.records + SORT_BYTES_PER_ROW)
        for extent in run.extents
    )


def planned(channels: Iterable[LocalInputChannel], fetch_bytes: int) -> Iterator[Fetch]:
    """The channels' extents in order, neighbours of one file together up to ``fetch_bytes`` in memory."""
    for channel in channels:
        group: list[Extent] = []
        size = 0
        for extent in channel.extents:
            held = extent.bytes + extent.raw_bytes
            if group and size + held > fetch_bytes:
                yield Fetch(channel, tuple(group))
                group, size = [], 0
            group.append(extent)
            size += held
        if group:
            yield Fetch(channel, tuple(group))


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Consecutive batches joined until they are worth a call; those that are already pass as they are."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        # of a decoded message exactly its columns, at a hundredth of the cost of `nbytes`: 0.1 us
        batch_size = batch.get_total_buffer_size()
        if _is_worth_a_call(batch.num_rows, batch_size):
            if pending:
                yield _concatenated(pending)
                pending, rows, size = [], 0, 0
            yield batch
            continue
        pending.append(batch)
        rows += batch.num_rows
        size += batch_size
        if _is_worth_a_call(rows, size):
            yield _concatenated(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield _concatenated(pending)


def _is_worth_a_call(rows: int, size: int) -> bool:
    return rows >= BATCH_ROWS or size >= BATCH_BYTES


def _worth_a_call(batches: Batches) -> Iterator[pa.RecordBatch]:
    with closing(batches):
        yield from joined(batches)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
