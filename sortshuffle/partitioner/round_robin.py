"""Even placement without keys, for ``repartition(n)``.

There are two selectors, because round robin is sound only if a re-run of the task sees its rows in the same
order. If the order changes, a consumer that reads the first attempts of some producers and the re-run of
another loses some rows and gets others twice.

=======================  ==============================================================================
``RoundRobinSelector``   by position; perfectly even; for inputs with a reproducible order: this package's
                         scan and gate
``RowHashSelector``      by a hash of the whole row; as even as rows differ (equal rows stay together);
                         for every other input
=======================  ==============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from sortshuffle.errors import UsageError
from sortshuffle.partitioner.row_hash import Hashes, hash_rows
from sortshuffle.partitioner.selector import Ids, check_subpartitions, id_dtype


@dataclass
class RoundRobinSelector:
    """Sends row i of the task to subpartition ``(start + i) mod subpartitions``.

    The selector keeps its position from batch to batch, so the division into batches doesn't matter: use one
    selector per task attempt. Tasks need different ``start``s, or the first subpartitions get one more row
    from each task. Raises UsageError unless ``0 <= start < subpartitions``.
    """

    is_broadcast: ClassVar[bool] = False

    subpartitions: int
    start: int = 0

    def __post_init__(self) -> None:
        check_subpartitions(self.subpartitions)
        if not 0 <= self.start < self.subpartitions:
            raise UsageError(f"start must be from 0 to {self.subpartitions - 1}, not {self.start}")
        self._next = self.start

    def assign(self, batch: pa.RecordBatch) -> Ids:
        """Return each row's subpartition, continuing from the end of the previous batch."""
        ids = np.arange(self._next, self._next + batch.num_rows, dtype=np.int64)
        ids %= self.subpartitions
        self._next = (self._next + batch.num_rows) % self.subpartitions
        return ids.astype(id_dtype(self.subpartitions))


@dataclass(frozen=True)
class RowHashSelector:
    """Places each row by a hash of all its columns, whatever its position.

    The hash takes every Arrow type and is independent of Spark's placement: it evenly spreads rows that
    Spark's hash has put together.
    """

    is_broadcast: ClassVar[bool] = False

    subpartitions: int

    def __post_init__(self) -> None:
        check_subpartitions(self.subpartitions)

    def assign(self, batch: pa.RecordBatch) -> Ids:
        """Return each row's subpartition; see ``ChannelSelector.assign``."""
        return _scale_down(hash_rows(batch), self.subpartitions)


def _scale_down(hashes: Hashes, size: int) -> Ids:
    """Map hashes evenly to ``0 .. size - 1`` by their upper 32 bits: hash times size, divided by 2**32."""
    scaled = hashes >> np.uint64(32)
    scaled *= np.uint64(size)
    scaled >>= np.uint64(32)
    ids: Ids = scaled.astype(id_dtype(size))
    return ids
