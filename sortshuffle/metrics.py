"""What one task did: counts, bytes and seconds per step, as one mergeable record.

Used by every layer that does work worth naming: the caller passes a `TaskMetrics` down, the layer adds to
it. Single-threaded by rule: worker threads of a task return their figures, and the task's own thread adds
them up. The driver receives one record per task (`spark.reports`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

WRITE_STEPS = ("scan", "user", "ids", "sort", "take", "encode", "write")
"""Steps of a producing task, in the order of the data. Compression and checksums are part of "encode",
as `compress` and `checksum`."""
READ_STEPS = ("wait", "read", "verify", "decompress", "decode", "merge", "user")
"""Steps of a consuming task. All but "wait", "merge" and "user" run in the read-ahead threads."""


@dataclass(slots=True)
class TaskMetrics:
    """Figures of one task.

    ``seconds``: per step. ``counts``: rows_written, bytes_written, raw_bytes_written, regions, files,
    rows_read, bytes_read, raw_bytes_read, extents_read, memory_peak (bytes, merged by maximum).
    """

    seconds: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time of a block to a step. Costs about 1 us: for batches, not for rows."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] += count

    def peak(self, memory: int) -> None:
        self.counts["memory_peak"] = max(self.counts["memory_peak"], memory)

    def merge(self, other: TaskMetrics) -> None:
        """Add another record's figures to this one; a peak stays a peak."""
        peak = max(self.counts["memory_peak"], other.counts["memory_peak"])
        self.seconds.update(other.seconds)
        self.counts.update(other.counts)
        self.counts["memory_peak"] = peak

    def timed(self, source: Iterator[object], step: str) -> Iterator[object]:
        """Pass ``source`` on, adding the time that each of its items takes to a step."""
        while True:
            with self.step(step):
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item
