"""Cuts batches into slices of a limited size.

Separate from `writing.clustering` because readers use it too, when they spill rows, and need no selector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

ROW_BYTES = 16  # least size of a row: its subpartition id and its position take 9 to 12 bytes


def size_of(batch: pa.RecordBatch) -> int:
    """Return the bytes to count for waiting rows: for narrow rows, the memory for clustering them."""
    return max(int(batch.nbytes), ROW_BYTES * int(batch.num_rows))


def slice_rows(
    batch: pa.RecordBatch, most: int, size: Callable[[pa.RecordBatch], int] = size_of
) -> Iterator[pa.RecordBatch]:
    """Yield the batch in slices of at most ``most`` bytes, in order. A larger row is a slice by itself."""
    total = size(batch)
    if total <= most or batch.num_rows <= 1:
        if batch.num_rows:
            yield batch
        return
    pieces = -(-total // most)
    step = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, step):
        yield from slice_rows(batch.slice(start, step), most, size)  # again, because rows differ in size
