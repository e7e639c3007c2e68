"""From a stream of batches sorted by key to one table per key.

A group may begin in any batch, end in any later one and fill many between: only the rows of the one group
that is being collected are held, so only it must fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa

from sortshuffle.payload.ordering import KeyRow, RowOrder


def group_tables(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[pa.Table]:
    """One table per key, in key order, rows in the order of the stream.

    ``batches`` must be sorted by ``order``. With no keys all rows are one group; no rows, no groups.
    """
    open_group: list[pa.RecordBatch] = []
    open_key: KeyRow = ()
    for batch in batches:
        if batch.num_rows == 0:
            continue
        ranks = order.ranks(batch)
        starts = ranks.group_starts().tolist()
        if open_group and ranks.key(0) != open_key:
            yield pa.Table.from_batches(open_group)
            open_group = []
        for start, stop in pairwise(starts):
            open_group.append(batch.slice(start, stop - start))
            yield pa.Table.from_batches(open_group)
            open_group = []
        open_group.append(batch.slice(starts[-1]))
        open_key = ranks.key(batch.num_rows - 1)
    if open_group:
        yield pa.Table.from_batches(open_group)
