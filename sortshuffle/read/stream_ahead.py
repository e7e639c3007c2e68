"""`StreamsAhead`: the fetches of a merge item by item, while the next part of each is fetched in a thread.

Used for runs in a store, where fetching a part is waiting: 30 ms, say, in which nothing is used. The merge of
ninety runs takes a part of this run, then one of that. The next parts of the other 89 come meanwhile.

    consumer's thread       decodes part n, charges, counts
    threads of the merge    fetch, verify and decrypt part n+1

One thread at a time is in a reader, but for `give_up`. A failed fetch surfaces where its part is taken.

A stream that is closed while a part of it is under way is one of a merge that has been abandoned. So all
streams of the merge are given up then: each waits only for a request that is under way.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.read.channel import Fetch, Payload
from sortshuffle.read.merge import SortedRun
from sortshuffle.read.stored_channel import CONCURRENT_FETCHES
from sortshuffle.storage.extents import Extent, ExtentPart


class StreamsAhead:
    """Owns the threads, which have ended when the context is left. The streams must have been closed then."""

    def __init__(self, payload: Payload, budget: MemoryBudget, metrics: TaskMetrics) -> None:
        self.payload = payload
        self.budget = budget
        self.metrics = metrics
        self.pool = ThreadPoolExecutor(CONCURRENT_FETCHES, "sortshuffle-ahead")
        self._streams: list[StreamAhead] = []

    def stream(self, fetch: Fetch, part_bytes: int) -> StreamAhead:
        """What `Fetch.stream` gives. The caller closes it."""
        stream = StreamAhead(fetch, part_bytes, self)
        self._streams.append(stream)
        return stream

    def give_up(self) -> None:
        """Nobody wants any stream's next part."""
        for stream in self._streams:  # all, before a thread that is free takes another
            stream.cancel()
        for stream in self._streams:
            stream.give_up()

    def __enter__(self) -> StreamsAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(wait=True)


class StreamAhead(SortedRun):
    """Made by `StreamsAhead.stream`. The fetch of the first part begins at once. Owns the reader, which
    `close` closes; that may be done again. Raises `DataLossError`."""

    def __init__(self, fetch: Fetch, part_bytes: int, streams: StreamsAhead) -> None:
        self._streams = streams
        self._reader = fetch.channel.open(fetch.extents)
        self._parts = _PartsAhead(
            fetch.parts(self._reader, part_bytes),
            fetch.extents,
            part_bytes * (fetch.channel.held_parts - 1),
            streams,
        )
        self._items = fetch.items(
            self._reader, self._parts, streams.payload, streams.budget, streams.metrics, "wait"
        )
        try:
            self._parts.start()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Any]:
        return self._items

    def cancel(self) -> None:
        """A part that no thread fetches yet is not fetched."""
        self._parts.cancel()

    def give_up(self) -> None:
        """A request that is under way is not made again."""
        self._reader.give_up()

    def close(self) -> None:
        """Waits for a request that is under way."""
        try:
            self._items.close()
        finally:
            if self._parts.is_under_way:
                self._streams.give_up()
            self._parts.close()
            self._reader.close()


class _PartsAhead(Iterator[ExtentPart]):
    """``parts``: of these extents, all of them; closed with this. ``held``: bytes that are charged from the
    start of a part's fetch until it is given; no more than are left."""

    def __init__(
        self,
        parts: Generator[ExtentPart, None, None],
        extents: Iterable[Extent],
        held: int,
        streams: StreamsAhead,
    ) -> None:
        self._parts = parts
        self._left = sum(extent.bytes for extent in extents)
        self._held = held
        self._streams = streams
        self._next: Future[ExtentPart] | None = None
        self._charged = 0

    @property
    def is_under_way(self) -> bool:
        return self._next is not None

    def start(self) -> None:
        """Fetch the next part, if there is one."""
        if not self._left:
            return
        self._next = Future()
        self._charged = min(self._held, self._left)
        self._streams.budget.charge(self._charged)
        # where no thread can be started this raises, and one that there is may have begun all the same
        self._streams.pool.submit(_fetch, self._parts, self._next)

    def __next__(self) -> ExtentPart:
        if self._next is None:  # the last one, or an error, has been given
            raise StopIteration
        try:
            part = self._next.result()
        finally:
            self._forget()
        self._left -= part.bytes
        self.start()
        return part

    def cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def close(self) -> None:
        if self._next is not None:
            if not self._next.cancel():
                wait([self._next])
            self._forget()
        self._parts.close()

    def _forget(self) -> None:
        self._next = None
        self._streams.budget.release(self._charged)


def _fetch(parts: Iterator[ExtentPart], future: Future[ExtentPart]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(next(parts))
    except BaseException as error:
        future.set_exception(error)
