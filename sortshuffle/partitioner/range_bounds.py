"""From a sample of keys to the bounds of a range exchange, by the rule of Spark's ``RangePartitioner``.

Used by ``ShuffleFrame.repartitionByRange``, on the driver. From the same sample and weights come the same
bounds as Spark's, number and values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.errors import UsageError
from sortshuffle.payload.ordering import RowOrder, SortKey

Weights = npt.NDArray[np.float64]


def determine_bounds(
    samples: pa.RecordBatch, weights: Weights, keys: Sequence[SortKey], subpartitions: int
) -> pa.RecordBatch:
    """Return keys that cut the samples into ``subpartitions`` ranges of about equal weight, ascending.

    ``samples``: rows of which ``keys`` decide the order. ``weights``: how many rows each stands for; float64,
    shape (rows,). Fewer than ``subpartitions - 1`` bounds come out where there are fewer different keys.
    Raises UsageError if there is not one weight for each row.
    """
    if len(weights) != samples.num_rows:
        raise UsageError(f"there are {samples.num_rows} samples and {len(weights)} weights")
    ranks = RowOrder(keys).ranks(samples)
    order = ranks.sort_indices()
    next_key = np.append(ranks.take(order).group_starts(), samples.num_rows)
    rows = _bound_rows(np.cumsum(weights[order]), next_key, min(subpartitions, samples.num_rows))
    return samples.take(pa.array(order[rows], pa.int64()))


def _bound_rows(weight_up_to: Weights, next_key: npt.NDArray[np.int64], ranges: int) -> list[int]:
    """Positions of the bounds among sorted samples. ``next_key``: where each key begins, and the end.

    A bound is the first sample that completes a range's weight and whose key is not a bound yet. A key that
    fills several ranges is a bound once, and the next key follows at once.
    """
    rows: list[int] = []
    step = float(weight_up_to[-1]) / ranges if ranges else 0.0
    target, free_from = step, 0
    while len(rows) < ranges - 1:
        row = max(int(np.searchsorted(weight_up_to, target)), free_from)
        if row >= len(weight_up_to):
            break
        rows.append(row)
        free_from = int(next_key[np.searchsorted(next_key, row, side="right")])
        target += step
    return rows
