"""`ReadBufferPool`: the memory that scheduled reads fill, handed out in whole batches.

Used by the scheduled reads of the service, where many consumers read many partitions in one process. The
memory is separate from the network pools: otherwise a process that reads and writes could wait for itself.

A requester is one partition's scheduler. It registers, requests a batch and fills it. The last user of a
segment recycles it.

Rules
* A request gets a whole batch or nothing: two requesters that each held half a batch would wait for ever.
* Requesters get batches in the order in which they came. The thread whose recycling completes a batch
  delivers it. A requester that goes on waiting after a time-out keeps its place, so it is not overtaken for
  ever.
* Every batch taken and every recycling counts as progress. A requester gives up (`expect_progress`) only if
  the whole pool has made no progress for a long time: a slow pool is not stuck.
* `average_per_requester` is an equal share for each requester. The pool does not enforce it: a requester that
  holds more should request only for consumers that hold nothing.
* All memory is allocated at the first request.

Lock order: one lock, and nothing is called under it. `recycle` never blocks (`HandoverLock`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from sortshuffle.errors import BufferTimeoutError, OptionError, StateError, UsageError
from sortshuffle.memory import leaks
from sortshuffle.memory.handover import HandoverLock, Waiter
from sortshuffle.memory.segment import MemorySegment, allocate_segments

# One batch. A spinning disk reads 4 MiB in some 25 ms, two to three times the cost of the seek to it
# (arithmetic, not measured); Flink's figure too
BATCH_BYTES = 4 << 20
POLL_SECONDS = 2.0  # interval at which a request checks whether it is still wanted (Flink's figure)


class ReadBufferPool:
    """A pool of ``total_bytes // segment_bytes`` segments for reading. ``option``: the setting that sized it.
    ``batch_bytes``: the size of a batch, which has at least one segment and at most all of them.

    Raises `OptionError` if there is not room for one segment, `UsageError` for sizes below 1.
    """

    def __init__(
        self,
        total_bytes: int,
        segment_bytes: int,
        *,
        option: str,
        clock: Callable[[], float] = time.monotonic,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        if total_bytes < 1 or segment_bytes < 1:
            raise UsageError(f"a pool of {total_bytes} bytes in segments of {segment_bytes} is none")
        if total_bytes < segment_bytes:
            raise OptionError(f"{option}: {total_bytes} bytes hold no segment of {segment_bytes} bytes")
        self.segment_bytes = segment_bytes
        self.total_segments = total_bytes // segment_bytes
        self.segments_per_request = min(self.total_segments, max(1, batch_bytes // segment_bytes))
        self.max_concurrent_requests = self.total_segments // self.segments_per_request
        self.option = option
        self._clock = clock
        self._last_progress = clock()
        self._lock = HandoverLock()
        self._free: list[MemorySegment] = []
        self._allocated = False
        self._destroyed = False
        self._waiting: deque[Waiter[list[MemorySegment]]] = deque()
        self._requesters: set[object] = set()

    @property
    def available(self) -> int:
        """Number of free segments."""
        return len(self._free) if self._allocated or self._destroyed else self.total_segments

    @property
    def average_per_requester(self) -> int:
        """Number of segments in an equal share for each registered requester."""
        return max(1, self.total_segments // max(1, len(self._requesters)))

    def register(self, requester: object) -> None:
        """Include this requester (any hashable object, once) in `average_per_requester`."""
        with self._lock:
            self._expect_alive()
            self._requesters.add(requester)

    def unregister(self, requester: object) -> None:
        """Remove this requester from `average_per_requester`, if it is registered."""
        with self._lock:
            self._requesters.discard(requester)

    def request(
        self, timeout: float = POLL_SECONDS, still_wanted: Callable[[], bool] = lambda: False
    ) -> list[MemorySegment]:
        """Return `segments_per_request` segments, or none after ``timeout`` seconds. The caller recycles
        them.

        Every ``timeout`` seconds, ``still_wanted`` is called in the caller's thread, under no lock. The wait
        goes on while it returns True. An error that it raises ends the wait.

        Raises `StateError` if the pool is or gets destroyed; MemoryError, naming the option, if the first
        request finds no memory for the pool.
        """
        batch = self._take_or_wait(timeout, still_wanted)
        leaks.track(self, batch, f"a segment of {self}")
        return batch

    def recycle(self, segments: MemorySegment | Sequence[MemorySegment]) -> None:
        """Take any number of segments back. After `destroy` they are dropped.

        Never blocks. Raises `StateError` if there would be more free segments than the pool has.
        """
        returned = [segments] if isinstance(segments, MemorySegment) else list(segments)
        if self.available + len(returned) > self.total_segments:
            raise StateError(f"{len(returned)} segments recycled into {self} are more than it misses")
        leaks.untrack(returned)
        self._lock.submit(partial(self._put_back, returned))

    def expect_progress(self, since: float, limit: float) -> None:
        """Raise `BufferTimeoutError` if the pool made no progress in the last ``limit`` seconds of a wait
        that began at ``since`` (time of the pool's clock)."""
        idle = self._clock() - max(since, self._last_progress)
        if idle >= limit:
            raise BufferTimeoutError(
                f"no batch of {self.segments_per_request} read buffers in {idle:.0f} s, in which nobody"
                f" recycled one: {self.available} of {self.total_segments} segments of {self.segment_bytes}"
                f" bytes are free, {len(self._requesters)} partitions are being read. Raise {self.option}, or"
                " let fewer consumers read at a time"
            )

    def destroy(self) -> None:
        """Destroy the pool. Waiting and later requests fail, and late recycles are dropped."""
        with self._lock:
            if self._destroyed:
                return
            self._destroyed = True
            self._free = []
            self._requesters.clear()
            refusal = StateError(f"{self} was destroyed")
            while self._waiting:
                self._waiting.popleft().refuse(refusal)
        leaks.report(self)

    def _take_or_wait(self, timeout: float, still_wanted: Callable[[], bool]) -> list[MemorySegment]:
        with self._lock:
            self._expect_alive()
            self._allocate()
            if len(self._free) >= self.segments_per_request:
                return self._take_batch()
            waiter: Waiter[list[MemorySegment]] = Waiter()
            self._waiting.append(waiter)
        try:
            waiter.wait(timeout)
            while not waiter.is_over and still_wanted():
                waiter.wait(timeout)
        except BaseException:  # a batch that has been delivered must not be lost
            self._leave(waiter)
            self.recycle(waiter.delivered or [])
            raise
        self._leave(waiter)
        return waiter.result or []

    def _leave(self, waiter: Waiter[list[MemorySegment]]) -> None:
        """End the wait: no batch is delivered to this waiter from now on."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _put_back(self, segments: list[MemorySegment]) -> None:
        if self._destroyed or not segments:
            return  # an empty recycling is no progress
        self._free += segments
        self._last_progress = self._clock()
        while self._waiting and len(self._free) >= self.segments_per_request:
            self._waiting.popleft().deliver(self._take_batch())

    def _take_batch(self) -> list[MemorySegment]:
        batch = self._free[-self.segments_per_request :]
        del self._free[-self.segments_per_request :]
        self._last_progress = self._clock()
        return batch

    def _allocate(self) -> None:
        if not self._allocated:
            self._free = allocate_segments(self.total_segments, self.segment_bytes, option=self.option)
            self._allocated = True

    def _expect_alive(self) -> None:
        if self._destroyed:
            raise StateError(f"{self} is destroyed")

    def __repr__(self) -> str:
        return f"the read buffer pool of {self.total_segments} segments ({self.option})"
