"""Placement by key group: keys keep their group when the number of subpartitions changes.

A key always belongs to the same one of ``max_parallelism`` groups. Each subpartition has a contiguous range
of groups, as Flink's operators have. Going from n to m subpartitions therefore splits or joins ranges of
groups, whereas a hash modulo n would move almost every key.

Used through `engine`, for an exchange whose number of consumers is decided after it was written: each
consumer reads a range of subpartitions. Frames use Spark's hash placement, which has no groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from sortshuffle.errors import UsageError
from sortshuffle.partitioner.hash import HashSelector
from sortshuffle.partitioner.selector import Ids, check_columns, check_subpartitions, id_dtype

MOST_KEY_GROUPS = 1 << 15
"""Group numbers fit in 16 bits. Flink has the same limit."""


@dataclass(frozen=True)
class KeyGroupSelector:
    """Places each row by the key group of its key columns: Spark's hash modulo ``max_parallelism``.

    ``keys``: the key columns' positions. Raises UsageError unless
    ``subpartitions <= max_parallelism <= MOST_KEY_GROUPS``.
    """

    is_broadcast: ClassVar[bool] = False

    keys: tuple[int, ...]
    subpartitions: int
    max_parallelism: int

    def __post_init__(self) -> None:
        check_subpartitions(self.subpartitions)
        check_columns(self.keys)
        if not self.subpartitions <= self.max_parallelism <= MOST_KEY_GROUPS:
            raise UsageError(
                f"max_parallelism must be from {self.subpartitions}, the number of subpartitions, to"
                f" {MOST_KEY_GROUPS}, not {self.max_parallelism}"
            )

    def key_groups(self, batch: pa.RecordBatch) -> Ids:
        """Return each row's key group: shape ``(num_rows,)``, dtype ``id_dtype(max_parallelism)``."""
        return HashSelector(self.keys, self.max_parallelism).assign(batch)

    def assign(self, batch: pa.RecordBatch) -> Ids:
        """Return each row's subpartition; see ``ChannelSelector.assign``."""
        return self._subpartition_of_group()[self.key_groups(batch)]

    def _subpartition_of_group(self) -> Ids:
        groups = np.arange(self.max_parallelism, dtype=np.int64)
        return (groups * self.subpartitions // self.max_parallelism).astype(id_dtype(self.subpartitions))
