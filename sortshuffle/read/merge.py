"""Merging sorted runs into one sorted stream, holding a batch or so of each run.

Step: the bound is the smallest of the runs' last keys in memory. What is at or below it in any run can be
followed only by rows that are not below it, so it is taken from every run, sorted together and emitted;
then every run that is down to less than half a batch reads on. (Idea: the batch-wise form of the k-way
merge, as in the design's section 4.)

The order among equal keys is fixed by the data alone: how much of a run is in memory never depends on when
a read finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.ordering import Int64s, KeyRow, Ranks, RowOrder, concat_ranks

OUTPUT_ROWS = 65_536  # rows taken into order at a time: the copy stays in cache


class _Run:
    """What is in memory of one run: a batch and its keys, from ``position`` on."""

    __slots__ = ("_order", "_source", "batch", "exhausted", "position", "ranks")

    def __init__(self, source: Iterator[pa.RecordBatch], order: RowOrder) -> None:
        self._source = source
        self._order = order
        self.batch: pa.RecordBatch | None = None
        self.ranks = Ranks((), 0)
        self.position = 0
        self.exhausted = False
        self.refill()

    @property
    def left(self) -> int:
        return self.ranks.rows - self.position

    def refill(self) -> None:
        """Read on when less than half of what was read last is left."""
        if self.exhausted or 2 * self.left > self.ranks.rows > 0:
            return
        read = next((batch for batch in self._source if batch.num_rows), None)
        if read is None:
            self.exhausted = True
            return
        ranks = self._order.ranks(read)
        if self.left:
            assert self.batch is not None
            read = pa.concat_batches([self.batch.slice(self.position), read])
            ranks = concat_ranks([self.ranks.slice(self.position, self.ranks.rows), ranks])
        self.batch, self.ranks, self.position = read, ranks, 0

    def last_key(self) -> KeyRow:
        return self.ranks.key(self.ranks.rows - 1)

    def take_up_to(self, bound: KeyRow | None) -> tuple[pa.RecordBatch, Ranks] | None:
        """The rows at or below the bound (all, if there is none), which are then no longer the run's."""
        stop = self.ranks.rows if bound is None else self.ranks.count_up_to(bound)
        start = self.position
        if stop <= start or self.batch is None:
            return None
        self.position = stop
        return self.batch.slice(start, stop - start), self.ranks.slice(start, stop)


def merge_at_once(
    batches: Sequence[pa.RecordBatch], order: RowOrder, metrics: TaskMetrics
) -> Iterator[pa.RecordBatch]:
    """One sorted stream of the rows of all batches, which are in memory together."""
    if not batches:
        return
    with metrics.step("merge"):
        joined = _concatenated(batches)
        indices = order.ranks(joined).sort_indices()
    yield from _in_order(joined, indices, metrics)


def merge_runs(
    sources: Sequence[Iterator[pa.RecordBatch]], order: RowOrder, metrics: TaskMetrics
) -> Iterator[pa.RecordBatch]:
    """One sorted stream of all rows of these sorted runs, holding a part of each.

    ``sources``: one iterator of batches per run. They are closed when this iterator ends or is closed.
    """
    try:
        with metrics.step("merge"):
            runs = [run for source in sources if (run := _Run(source, order)).left]
        while runs:
            with metrics.step("merge"):
                batch, ranks = _taken(runs)
                indices = ranks.sort_indices()
            yield from _in_order(batch, indices, metrics)
            with metrics.step("merge"):
                for run in runs:
                    run.refill()
                runs = [run for run in runs if run.left]
    finally:
        for source in sources:
            close = getattr(source, "close", None)
            if close is not None:
                close()


def _taken(runs: Sequence[_Run]) -> tuple[pa.RecordBatch, Ranks]:
    """All rows that no unread row can precede, run after run."""
    open_ends = [run.last_key() for run in runs if not run.exhausted]
    bound = min(open_ends) if open_ends else None
    parts = [part for run in runs if (part := run.take_up_to(bound)) is not None]
    return _concatenated([batch for batch, _ in parts]), concat_ranks([ranks for _, ranks in parts])


def _in_order(batch: pa.RecordBatch, indices: Int64s, metrics: TaskMetrics) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(indices), OUTPUT_ROWS):
        with metrics.step("merge"):
            ordered = batch.take(pa.array(indices[start : start + OUTPUT_ROWS]))
        yield ordered


def _concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
