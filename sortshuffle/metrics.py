"""What one task did: counts, bytes and seconds per step, as one mergeable record.

Used by every layer that does work worth naming: the caller passes a `TaskMetrics` down, the layer adds to
it. Single-threaded by rule: worker threads of a task return their figures, and the task's own thread adds
them up. The driver receives one record per task (`spark.reports`).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

Seconds: TypeAlias = "defaultdict[str, float]"
"""Time per step, seconds. Producing: open, scan, user, ids, sort, take, encode, compress, checksum, write.
Consuming: wait, read, verify, decompress, decode, merge, user; of these all but wait, merge and user run in
the read-ahead threads, and the task's own thread sees them as wait."""


def _no_seconds() -> Seconds:
    return defaultdict(float)


@dataclass(slots=True)
class TaskMetrics:
    """Figures of one task.

    ``seconds``: per step. ``counts``: rows_written, bytes_written, raw_bytes_written, regions, files,
    rows_read, bytes_read, raw_bytes_read, extents_read, memory_peak (bytes, merged by maximum).
    """

    seconds: Seconds = field(default_factory=_no_seconds)
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
        for step, seconds in other.seconds.items():
            self.seconds[step] += seconds
        self.counts.update(other.counts)
        self.counts["memory_peak"] = peak

    def slowest(self) -> list[tuple[str, float]]:
        """Steps and their seconds, the longest first."""
        return sorted(self.seconds.items(), key=lambda item: -item[1])

    def timed(self, source: Iterator[object], step: str) -> Iterator[object]:
        """Pass ``source`` on, adding the time that each of its items takes to a step."""
        while True:
            with self.step(step):
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item
