"""`StreamsAhead`: streams the items of a merge's runs, while threads fetch the next part of each run.

Used for runs in a store, where a fetch takes about 30 ms, mostly waiting. A merge of ninety runs uses a part
of one run, then of another, while the next parts of the other 89 arrive.

    consumer's thread       decodes part n, charges, counts
    threads of the merge    fetch, verify and decrypt part n+1

Rules
* One thread at a time uses a reader, except for `give_up`. A failed fetch raises where its part is taken.
* If a stream is closed while a part of it is being fetched, its merge was abandoned. Then all streams of the
  merge are given up, and each waits only for the request in progress.
* The consumer of a merge must close it. The garbage collector must not: it may run in one of these threads,
  which would then wait for itself.
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
    """Owns the streams and the threads. Leaving the context closes the streams and waits for the threads."""

    def __init__(self, payload: Payload, budget: MemoryBudget, metrics: TaskMetrics) -> None:
        self.payload = payload
        self.budget = budget
        self.metrics = metrics
        self.pool = ThreadPoolExecutor(CONCURRENT_FETCHES, "sortshuffle-ahead")
        self._streams: list[StreamAhead] = []

    def stream(self, fetch: Fetch, part_bytes: int) -> StreamAhead:
        """Open a stream of the same items as `Fetch.stream`, and begin to fetch its first part. Raises
        RuntimeError if no thread can be started."""
        stream = StreamAhead(fetch, part_bytes, self)
        self._streams.append(stream)  # before a thread reads: `give_up` must reach it
        stream.start()
        return stream

    def give_up(self) -> None:
        """Cancel fetches that have not begun. Requests in progress are not repeated."""
        for stream in self._streams:  # cancel all fetches first, before an idle thread begins another
            stream.cancel()
        for stream in self._streams:
            stream.give_up()

    def __enter__(self) -> StreamsAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with ExitStack() as streams:  # closes all, also if one fails
                for stream in self._streams:
                    streams.callback(stream.close)
        finally:
            self.pool.shutdown(wait=True, cancel_futures=True)


class StreamAhead(SortedRun):
    """One run's stream, made by `StreamsAhead.stream` and owned by the `StreamsAhead`. Owns its reader.
    `close` may be called again. Raises `DataLossError`."""

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
        """Cancel the fetch of the next part, if it has not begun."""
        self._parts.cancel()

    def give_up(self) -> None:
        """Do not repeat a request in progress."""
        self._reader.give_up()

    def close(self) -> None:
        """Close the stream. Waits for a request in progress."""
        with closing(self._reader), closing(self._parts):
            try:
                self._items.close()
            finally:
                if self._parts.is_under_way:
                    self._streams.give_up()


class _PartsAhead(Iterator[ExtentPart]):
    """Iterates over the ``parts`` of ``extents``, fetching each ahead of its use. Owns ``parts``. ``copies``:
    the number of copies of a part in memory between its fetch and its use, which are charged."""

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
        # Not the future of `submit`: if no other thread can be started, `submit` raises, and yet a thread of
        # the pool may fetch the part. `close` waits for this future
        self._streams.pool.submit(_fetch, [(self._parts, self._next)])

    def __next__(self) -> ExtentPart:
        if self._next is None:  # after the last part, or after an error
            raise StopIteration
        try:
            part = self._next.result()
        finally:
            if self._next.done():  # else the wait was interrupted, and a thread still uses the reader
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
    """Take the only element out of ``wanted``, and fetch the part. The traceback of an error refers to this
    frame and its callers' frames. If one of these referred to the future, the error would keep the future,
    and so the part, alive until the garbage collector runs."""
    parts, future = wanted.pop()
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(next(parts))
    except BaseException as error:
        future.set_exception(error)
        del parts, future
