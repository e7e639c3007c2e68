"""`Fetcher`: reads channels for one consumer task, in threads and within a budget.

Used by `InputGate` for unsorted rows, by `RecordGate`, by `MultiPassMerge` and external sorts for their runs,
and by the engine for blocks of other hosts (`service.jvm.nonlocal_blocks`).

Fetches of a few MiB are read ahead in threads within the budget. A larger fetch is streamed in parts. The
order is that of the channels and their extents, whatever the number of threads and the memory.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.reading.channel import (
    Fetch,
    FetchResult,
    InputChannel,
    LocalInputChannel,
    OpenReaders,
    Payload,
    memory_of,
)
from sortshuffle.reading.read_ahead import ReadAhead
from sortshuffle.reading.stored_channel import CONCURRENT_FETCHES, StoredInputChannel
from sortshuffle.storage.files.grouping import in_groups

Batches: TypeAlias = Generator[pa.RecordBatch, None, None]
Items: TypeAlias = Generator[tuple[InputChannel, Any], None, None]
"""Decoded items of channels, each with its channel."""

LEAST_PART = 16 * KIB  # least part of a streamed extent: a smaller read costs as much
FETCH_BYTES = 8 * MIB  # memory of a fetch: large enough to be worth a thread switch
GROUP_BYTES = 512 * KIB
"""Memory of small fetches of local files that one thread does in a row. A task that read 24 map outputs of a
few KiB took 8.4 ms of CPU when each was handed to a thread, and 5.2 ms so."""
FETCHES_IN_BUDGET = 8  # at least this many fit the read budget, so that a few threads always have work


class Fetcher:
    """``threads``: how many read ahead. Only the consumer's own thread uses metrics and budget."""

    def __init__(self, payload: Payload, budget: MemoryBudget, threads: int, metrics: TaskMetrics) -> None:
        self.payload = payload
        self.budget = budget
        self.metrics = metrics
        self._threads = threads

    def items(self, channels: Iterable[InputChannel]) -> Items:
        """Yield every item of these channels, in order. Raises `DataLossError` with the place. Closing the
        generator releases everything."""
        limit = self.budget.limit
        part = max(LEAST_PART, min(FETCH_BYTES // 2, limit // 2))
        small: list[Fetch] = []
        for fetch in plan_fetches(channels, self.payload, min(FETCH_BYTES, limit // FETCHES_IN_BUDGET)):
            if self._memory(fetch) <= limit // 2:
                small.append(fetch)
                continue
            # A large fetch: first deliver the fetches before it, then stream it
            yield from self._read_ahead(small)
            small = []
            with closing(self.streamed(fetch, part)) as streamed:
                for item in streamed:
                    yield fetch.channel, item
        yield from self._read_ahead(small)

    def fetched(self, fetches: Sequence[Fetch]) -> Generator[list[Any], None, None]:
        """Yield each fetch's items as a list, in order, read ahead within the budget. The caller owns the
        items, which are no longer charged."""
        groups = list(self._in_groups(fetches))
        if len(groups) <= 1:  # there is nothing to read ahead, so no thread is needed
            yield from map(self._fetch_here, fetches)
            return
        stored = any(isinstance(fetch.channel, StoredInputChannel) for fetch in fetches)
        threads = max(self._threads, CONCURRENT_FETCHES) if stored else self._threads
        readers = OpenReaders()
        run = partial(self._run_all, readers=readers)
        # On exit, `readers` first gives up the reads in progress; then `ahead` waits for its threads
        with ReadAhead(groups, run, self._memory_of_all, self.budget, threads) as ahead, readers:
            for group in self.metrics.timed(iter(ahead), "wait"):
                yield from map(self._count, group)

    def _in_groups(self, fetches: Sequence[Fetch]) -> Iterator[list[Fetch]]:
        """Divide fetches into those that a thread does one after another: small ones of local files."""
        most = min(GROUP_BYTES, self.budget.limit // FETCHES_IN_BUDGET)

        def size_of(fetch: Fetch) -> int:
            return self._memory(fetch) if isinstance(fetch.channel, LocalInputChannel) else most

        return in_groups(((fetch, size_of(fetch)) for fetch in fetches), most)

    def streamed(self, fetch: Fetch, part_bytes: int) -> Generator[Any, None, None]:
        """Yield the items of one fetch, holding only a part of it. See `Fetch.stream`."""
        return fetch.stream(self.payload, part_bytes, self.budget, self.metrics)

    def _read_ahead(self, fetches: Sequence[Fetch]) -> Items:
        with closing(self.fetched(fetches)) as fetched:
            for fetch, items in zip(fetches, fetched, strict=True):
                for item in items:
                    yield fetch.channel, item

    def _memory_of_all(self, fetches: Sequence[Fetch]) -> int:
        return sum(map(self._memory, fetches))

    def _memory(self, fetch: Fetch) -> int:
        return fetch.memory(self.payload)

    def _fetch_here(self, fetch: Fetch) -> list[Any]:
        memory = self._memory(fetch)
        self.budget.charge(memory)
        try:
            with self.metrics.step("wait"):
                return self._count(self._run(fetch))
        finally:
            self.budget.release(memory)

    def _count(self, fetched: FetchResult) -> list[Any]:
        self.metrics.merge(fetched.metrics)
        self.metrics.peak(self.budget.peak)
        return fetched.batches

    def _run_all(self, fetches: Sequence[Fetch], readers: OpenReaders) -> list[FetchResult]:
        return [self._run(fetch, readers) for fetch in fetches]

    def _run(self, fetch: Fetch, readers: OpenReaders | None = None) -> FetchResult:
        return fetch.run(self.payload, readers)


def plan_fetches(
    channels: Iterable[InputChannel], payload: Payload, fetch_bytes: int
) -> Generator[Fetch, None, None]:
    """Yield fetches in the order of extents: neighbouring extents of one channel, up to ``fetch_bytes`` of
    memory, or one larger extent."""
    for channel in channels:
        sized = ((extent, memory_of(extent, payload)) for extent in channel.extents)
        for group in in_groups(sized, fetch_bytes):
            yield Fetch(channel, tuple(group))
