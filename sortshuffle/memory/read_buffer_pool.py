"""`ReadBufferPool`: the memory that scheduled reads fill, handed out in whole batches.

Used by the scheduled reads of the service, where many consumers read many partitions in one process. Its
memory is not that of the network pools: a process that reads and writes would else wait for itself.

A requester is one partition's scheduler. It registers, asks for a batch, fills segments with it, and whoever
is last to use a segment recycles it.

Rules
* A batch is handed out whole or not at all: two requesters that each hold half of one would wait forever.
* Waiting requesters are served in the order in which they came, by the thread whose recycling completes the
  next batch. One that waits on when a time-out is over keeps its place: nobody is overtaken for ever.
* Every batch handed out and every recycling is progress, whoever's. A requester that waits gives up
  (`expect_progress`) only when nobody at all got on for long: slow is not stuck.
* `average_per_requester` is what each may hold for all to hold as much. The pool does not enforce it: a
  requester that holds more should ask only for consumers who would have nothing else.
* Memory is allocated at the first request, all of it.

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

# one batch: a spinning disk reads 4 MiB in some 25 ms, two to three times what the seek before it costs
# (arithmetic, not measured); Flink's figure too
BATCH_BYTES = 4 << 20
POLL_SECONDS = 2.0  # how long a request waits before it looks whether it is still wanted (Flink's)


class ReadBufferPool:
    """``total_bytes // segment_bytes`` segments for reading. ``option`` is the setting that sized it.
    ``batch_bytes``: what one request gets, at least a segment.

    Raises `OptionError` when there is not room for one segment, `UsageError` for sizes below 1.
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
        """Segments that nobody holds."""
        return len(self._free) if self._allocated or self._destroyed else self.total_segments

    @property
    def average_per_requester(self) -> int:
        """Segments that each registered requester may hold for all to hold as much."""
        return max(1, self.total_segments // max(1, len(self._requesters)))

    def register(self, requester: object) -> None:
        """Count this requester (any hashable object, once) in the average."""
        with self._lock:
            self._expect_alive()
            self._requesters.add(requester)

    def unregister(self, requester: object) -> None:
        """Count it no more. One that is not registered is ignored."""
        with self._lock:
            self._requesters.discard(requester)

    def request(
        self, timeout: float = POLL_SECONDS, still_wanted: Callable[[], bool] = lambda: False
    ) -> list[MemorySegment]:
        """One batch of `segments_per_request`, or nothing after ``timeout`` seconds. The caller recycles it.

        ``still_wanted`` is asked whenever ``timeout`` seconds are over, in the caller's thread and under no
        lock: the wait goes on while it says so, and ends with what it raises.

        Raises `StateError` when the pool is destroyed, before or meanwhile; MemoryError, naming the option,
        when the first request finds no memory for the pool.
        """
        batch = self._take_or_wait(timeout, still_wanted)
        leaks.took(self, batch, f"a segment of {self}")
        return batch

    def recycle(self, segments: MemorySegment | Sequence[MemorySegment]) -> None:
        """Take these back, in any number: of one batch or of several. After `destroy` they are dropped.

        Never blocks. Raises `StateError` when there would be more free segments than the pool has.
        """
        returned = [segments] if isinstance(segments, MemorySegment) else list(segments)
        if self.available + len(returned) > self.total_segments:
            raise StateError(f"{len(returned)} segments recycled into {self} are more than it misses")
        leaks.gave_back(returned)
        self._lock.submit(partial(self._put_back, returned))

    def expect_progress(self, since: float, limit: float) -> None:
        """To be called by a requester that has waited since ``since`` (the clock's time) and got nothing.

        Raises `BufferTimeoutError` when nobody at all got on for ``limit`` seconds of its waiting.
        """
        idle = self._clock() - max(since, self._last_progress)
        if idle >= limit:
            raise BufferTimeoutError(
                f"no batch of {self.segments_per_request} read buffers in {idle:.0f} s, in which nobody"
                f" recycled one: {self.available} of {self.total_segments} segments of {self.segment_bytes}"
                f" bytes are free, {len(self._requesters)} partitions are being read. Raise {self.option}, or"
                " let fewer consumers read at a time"
            )

    def destroy(self) -> None:
        """End the pool: waiting and later requests fail, late recycles are dropped."""
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
        except BaseException:  # what was handed over meanwhile must not be lost
            self._leave(waiter)
            self.recycle(waiter.delivered or [])
            raise
        self._leave(waiter)
        return waiter.result or []

    def _leave(self, waiter: Waiter[list[MemorySegment]]) -> None:
        """Wait no longer: from now on nothing is handed over."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _put_back(self, segments: list[MemorySegment]) -> None:
        if self._destroyed or not segments:
            return  # nothing is no progress
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
