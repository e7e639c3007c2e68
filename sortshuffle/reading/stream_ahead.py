"""`StreamsAhead`: the fetches of a merge item by item, while the next part of each is fetched in a thread.

Used for runs in a store, where fetching a part is waiting: 30 ms, say, in which nothing is used. The merge of
ninety runs takes a part of this run, then one of that. The next parts of the other 89 come meanwhile.

    consumer's thread       decodes part n, charges, counts
    threads of the merge    fetch, verify and decrypt part n+1

Rules
* One thread at a time is in a reader, but for `give_up`. A failed fetch surfaces where its part is taken.
* A stream that is closed while a part of it is under way is one of a merge that has been abandoned. So all
  streams of the merge are given up then: each waits only for a request that is under way.
* A merge is closed by who reads it, not left to the garbage collector: that may run in one of these threads,
  which would wait for itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Any

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.reading.channel import Fetch, Payload
from sortshuffle.reading.merge import SortedRun
from sortshuffle.reading.stored_channel import CONCURRENT_FETCHES
from sortshuffle.storage.files.extents import Extent, ExtentPart


class StreamsAhead:
    """Owns the streams and the threads. The streams are closed, and the threads have ended, when the context
    is left."""

    def __init__(self, payload: Payload, budget: MemoryBudget, metrics: TaskMetrics) -> None:
        self.payload = payload
        self.budget = budget
        self.metrics = metrics
        self.pool = ThreadPoolExecutor(CONCURRENT_FETCHES, "sortshuffle-ahead")
        self._streams: list[StreamAhead] = []

    def stream(self, fetch: Fetch, part_bytes: int) -> StreamAhead:
        """What `Fetch.stream` gives. The fetch of its first part begins at once. Raises RuntimeError where no
        thread can be started."""
        stream = StreamAhead(fetch, part_bytes, self)
        self._streams.append(stream)  # before a thread reads: whoever gives up must reach it
        stream.start()
        return stream

    def give_up(self) -> None:
        """Cancel what no thread fetches yet. Requests that are under way are not made again."""
        for stream in self._streams:  # all, before a thread that is free takes another
            stream.cancel()
        for stream in self._streams:
            stream.give_up()

    def __enter__(self) -> StreamsAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with ExitStack() as streams:  # which closes the others, too, where one fails
                for stream in self._streams:
                    streams.callback(stream.close)
        finally:
            self.pool.shutdown(wait=True, cancel_futures=True)


class StreamAhead(SortedRun):
    """Made, and owned, by `StreamsAhead.stream`. Owns its reader. `close` may be called again. Raises
    `DataLossError`."""

    def __init__(self, fetch: Fetch, part_bytes: int, streams: StreamsAhead) -> None:
        self._streams = streams
        self._reader = fetch.channel.open(fetch.extents)
        parts = fetch.parts(self._reader, part_bytes)
        more_parts = fetch.channel.held_parts - 1
        self._parts = _PartsAhead(parts, fetch.extents, part_bytes, more_parts, streams)
        self._items = fetch.items(
            self._reader, self._parts, streams.payload, streams.budget, streams.metrics, "wait"
        )

    def start(self) -> None:
        """Begin to fetch the first part."""
        self._parts.start()

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
        with closing(self._reader), closing(self._parts):
            try:
                self._items.close()
            finally:
                if self._parts.is_under_way:
                    self._streams.give_up()


class _PartsAhead(Iterator[ExtentPart]):
    """``parts``: all parts of ``extents``, closed by `close`. ``copies``: how many of a part there are in
    memory while it is fetched, and until it is used; so much is charged."""

    def __init__(
        self,
        parts: Generator[ExtentPart, None, None],
        extents: Iterable[Extent],
        part_bytes: int,
        copies: int,
        streams: StreamsAhead,
    ) -> None:
        self._parts = parts
        self._left = sum(extent.bytes for extent in extents)
        self._part_bytes = part_bytes
        self._copies = copies
        self._streams = streams
        self._next: Future[ExtentPart] | None = None
        self._charged = 0

    @property
    def is_under_way(self) -> bool:
        return self._next is not None

    def start(self) -> None:
        """Begin to fetch the next part, if there is one."""
        if not self._left:
            return
        size = self._copies * min(self._part_bytes, self._left)
        self._streams.budget.charge(size)
        self._charged = size
        self._next = Future()
        # A future of its own: where no other thread can be started this raises, and yet a thread that the
        # pool has may fetch the part. `close` looks at the future.
        self._streams.pool.submit(_fetch, [(self._parts, self._next)])

    def __next__(self) -> ExtentPart:
        if self._next is None:  # the last one, or an error, has been given
            raise StopIteration
        try:
            part = self._next.result()
        finally:
            if self._next.done():  # else the wait was interrupted, and the thread is still in the reader
                self._forget()
        self._left -= part.bytes
        self.start()
        return part

    def cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def close(self) -> None:
        if self._next is not None and not self._next.cancel():
            wait([self._next])
        self._forget()
        self._parts.close()

    def _forget(self) -> None:
        self._next = None
        size, self._charged = self._charged, 0
        self._streams.budget.release(size)


def _fetch(wanted: list[tuple[Iterator[ExtentPart], Future[ExtentPart]]]) -> None:
    """Take what is wanted out of the list, and fetch it. An error's traceback has this frame and those of its
    callers. With the future in one of them, it would be held by its own error, and so would the part that was
    read, until the garbage collector comes."""
    parts, future = wanted.pop()
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(next(parts))
    except BaseException as error:
        future.set_exception(error)
        del parts, future
