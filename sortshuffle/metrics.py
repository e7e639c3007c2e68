"""The figures of one task: counts, bytes and seconds per step, in one record that can be merged with others.

The caller passes a `TaskMetrics` down, and each layer adds to it. The record is not thread-safe: worker
threads return their figures, and the task's own thread adds them up. The driver receives one record per task
(`spark.worker.reports`).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

Item = TypeVar("Item")
Seconds: TypeAlias = "defaultdict[str, float]"
"""Seconds by step. Producers: open, scan, user, sample, ids, sort, take, gather, combine, encode, compress,
checksum, write. Consumers: wait, read, verify, decompress, decode, merge, spill, user. Read-ahead threads do
all consumer steps but wait, merge, spill and user; the task's own thread sees theirs as wait."""

FIGURES = {
    "rows_in": "rows that the stage's functions were given: by Spark, by a scan, or by an exchange",
    "batches_in": "the Arrow batches in which they came",
    "rows_out": "rows that the last function gave",
    "batches_out": "the Arrow batches in which they left",
    "rows_read": "rows read from map outputs",
    "bytes_read": "bytes of them in the data files",
    "raw_bytes_read": "the same before compression",
    "buffers_read": "buffers that held them",
    "extents_read": "extents that held them: one for each region and map output that has any",
    "merge_passes": "passes over sorted runs, the one that delivers included: more than one for a task means"
    " that rows were put aside",
    "bytes_spilled": "bytes of runs that merges put aside in files of their own",
    "rows_combined": "records that were combined with others of their key before an exchange",
    "records_out": "records that record writers sent on",
    "frames_out": "frames that these records filled",
    "bytes_out": "bytes of these frames",
    "rows_written": "rows in the map outputs",
    "bytes_written": "sizes of the data files, bytes",
    "raw_bytes_written": "payloads in them before compression, bytes",
    "buffers_written": "buffers in them",
    "regions": "regions in them",
    "spills": "regions that were written before the rows ended: memory was full, or they were large enough",
    "files": "files written, two for each map output",
    "memory_peak": "bytes of rows and buffers that one task held at most; of many tasks, the highest",
}
"""Counters by name, with their meaning. The table in ``docs/operations.md`` repeats them."""


def _no_seconds() -> Seconds:
    return defaultdict(float)


@dataclass(slots=True)
class TaskMetrics:
    """The figures of one task.

    ``seconds``: per step. ``counts``: by the names in `FIGURES`. Merging takes the maximum of ``memory_peak``
    and the sum of all other counts.
    """

    seconds: Seconds = field(default_factory=_no_seconds)
    counts: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time that a block takes to a step. Costs about 1 us: use it per batch, not per row."""
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
        """Add the figures of another record to this one."""
        peak = max(self.counts["memory_peak"], other.counts["memory_peak"])
        for step, seconds in other.seconds.items():
            self.seconds[step] += seconds
        self.counts.update(other.counts)
        self.counts["memory_peak"] = peak

    def slowest(self) -> list[tuple[str, float]]:
        """Return the steps and their seconds, the longest first."""
        return sorted(self.seconds.items(), key=lambda item: -item[1])

    def timed(self, source: Iterator[Item], step: str) -> Iterator[Item]:
        """Yield the items of ``source``, and add the time that it takes to produce each to a step."""
        while True:
            with self.step(step):
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item
