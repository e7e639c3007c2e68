"""Placement by ids that the caller computes, in a column or by a function on batches.

``IdSelector``         for ``ShuffleFrame.repartitionById``: Spark's rule for ids that are null or too large
``FunctionSelector``   for functions on batches, through `engine`. Their results are checked
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from sortshuffle.errors import ColumnError, UsageError
from sortshuffle.partitioner.arrow_views import fixed_width, validity
from sortshuffle.partitioner.hash import positive_modulo
from sortshuffle.partitioner.selector import Ids, check_subpartitions, id_dtype


@dataclass(frozen=True)
class IdSelector:
    """Places each row by the int32 in its column ``column``, as Spark's ``repartitionById`` does.

    The subpartition is the id modulo the number of subpartitions, never negative; for a null it is 0. A
    column of Arrow's null type is all nulls. Raises UsageError for an impossible position.
    """

    is_broadcast: ClassVar[bool] = False

    column: int
    subpartitions: int

    def __post_init__(self) -> None:
        check_subpartitions(self.subpartitions)
        if type(self.column) is not int or self.column < 0:
            raise UsageError(f"the id column is a position from 0 on, not {self.column!r}")

    def assign(self, batch: pa.RecordBatch) -> Ids:
        """Return each row's subpartition. Raises ColumnError if the column is not of type int32."""
        column = batch.column(self.column)
        if pat.is_null(column.type):
            return np.zeros(len(column), id_dtype(self.subpartitions))
        if not pat.is_int32(column.type):
            raise ColumnError(
                f"the ids in column #{self.column} are of type {column.type}: cast them to int32"
            )
        ids = positive_modulo(fixed_width(column, np.int32), self.subpartitions)
        valid = validity(column)
        if valid is not None:
            ids *= valid
        return ids


@dataclass(frozen=True)
class FunctionSelector:
    """Places each row by the ids that ``function(batch)`` returns: an integer array of NumPy or Arrow."""

    is_broadcast: ClassVar[bool] = False

    function: Callable[[pa.RecordBatch], Any]
    subpartitions: int

    def __post_init__(self) -> None:
        check_subpartitions(self.subpartitions)

    def assign(self, batch: pa.RecordBatch) -> Ids:
        """Return the function's ids.

        Raises UsageError, naming the function, unless it returns one integer from 0 to ``subpartitions - 1``
        for each row.
        """
        ids = self._array(self.function(batch))
        if ids.dtype.kind not in "iu":
            raise self._wrong(f"ids must be integers, found {ids.dtype}")
        if ids.shape != (batch.num_rows,):
            raise self._wrong(
                f"{batch.num_rows} rows need ids of shape ({batch.num_rows},), found {ids.shape}"
            )
        outside = np.flatnonzero((ids < 0) | (ids >= self.subpartitions))
        if len(outside):
            row = int(outside[0])
            raise self._wrong(
                f"ids must be from 0 to {self.subpartitions - 1}, found {ids[row]} for row {row} of the batch"
            )
        return ids.astype(id_dtype(self.subpartitions))

    def _array(self, ids: Any) -> np.ndarray[Any, Any]:
        if isinstance(ids, pa.Array | pa.ChunkedArray) and ids.null_count:
            raise self._wrong(f"found {ids.null_count} nulls among the ids")
        array: np.ndarray[Any, Any] = np.asarray(ids)
        return array

    def _wrong(self, what: str) -> UsageError:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return UsageError(f"the partition function {name}: {what}")
