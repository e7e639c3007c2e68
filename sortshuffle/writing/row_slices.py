"""Batches cut into slices that count as so many bytes.

Apart from `writing.clustering`, because readers use it, too, when they put rows aside, and need no selector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

ROW_BYTES = 16  # what a row is counted as at least: its subpartition id and its position take 9 to 12


def size_of(batch: pa.RecordBatch) -> int:
    """Bytes that rows are counted as while they wait: for narrow rows, what clustering them takes."""
    return max(int(batch.nbytes), ROW_BYTES * int(batch.num_rows))


def sliced(
    batch: pa.RecordBatch, most: int, size: Callable[[pa.RecordBatch], int] = size_of
) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most ``most`` bytes, in order; a larger row is a slice of its own."""
    total = size(batch)
    if total <= most or batch.num_rows <= 1:
        if batch.num_rows:
            yield batch
        return
    pieces = -(-total // most)
    step = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, step):
        yield from sliced(batch.slice(start, step), most, size)  # again, because rows differ in size
