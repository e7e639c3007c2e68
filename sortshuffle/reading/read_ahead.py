"""`ReadAhead`: fetches a list of items in threads within a budget, and delivers the results in order.

The consumer's own thread starts fetches and takes results; worker threads only fetch. So `ReadAhead` needs no
lock, and the error of a failed fetch is raised where its result is taken. The consumer cannot wait for ever:
the next item to deliver is always being fetched, even beyond the budget.

A delivered result belongs to the caller and is released from the budget. Leaving the context calls `close`,
which waits for fetches in flight, even if the consumer stops early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

from sortshuffle.memory.budget import MemoryBudget

Item = TypeVar("Item")
Result = TypeVar("Result")


class ReadAhead(Generic[Item, Result]):
    """``fetch``: called in up to ``threads`` threads. ``size_of``: returns the bytes of an item's result."""

    def __init__(
        self,
        items: Sequence[Item],
        fetch: Callable[[Item], Result],
        size_of: Callable[[Item], int],
        budget: MemoryBudget,
        threads: int,
    ) -> None:
        self._waiting = deque(items)
        self._fetch = fetch
        self._size_of = size_of
        self._budget = budget
        self._in_flight: deque[tuple[Future[Result], int]] = deque()
        workers = max(1, min(len(self._waiting), threads))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="sortshuffle-read")

    def __iter__(self) -> Iterator[Result]:
        """Yield the results in the order of the items. Raises the error that fetching an item raised."""
        self._start_fetches()
        while self._in_flight:
            future, size = self._in_flight.popleft()
            try:
                result = future.result()
            finally:
                self._budget.release(size)
            self._start_fetches()
            yield result

    def close(self) -> None:
        """Cancel fetches that have not begun, and wait for the others."""
        self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
        while self._in_flight:
            self._budget.release(self._in_flight.popleft()[1])

    def __enter__(self) -> ReadAhead[Item, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_fetches(self) -> None:
        while self._waiting:
            size = self._size_of(self._waiting[0])
            if self._in_flight and self._budget.would_exceed(size):
                return
            # `submit` raises if no thread can be started: a charge before it would never be released
            future = self._pool.submit(self._fetch, self._waiting.popleft())
            self._budget.charge(size)
            self._in_flight.append((future, size))
