"""The bounds of a range exchange, made from a sample of keys by the rule of Spark's ``RangePartitioner``.

Used by ``ShuffleFrame.repartitionByRange`` and ``sort``: producers shorten the keys that they sample, and the
driver makes the bounds from these. The same sample and weights give the same bounds as in Spark, except for
keys with long texts.

Any strictly ascending keys can be bounds, whether or not a row has them. A bound therefore need not be a
whole key: it holds the first `LONGEST_TEXT` bytes of a long text. Keys that differ only after these bytes are
in one range.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from sortshuffle.errors import UsageError
from sortshuffle.partitioner.arrow_views import is_variable_width
from sortshuffle.payload.ordering import RowOrder, SortKey

Weights = npt.NDArray[np.float64]

LONGEST_TEXT = 4096
"""Most bytes of a text in a bound. Every task has all bounds, and compares 8 bytes of all its rows at a time
(some 40 us for few rows): bounds of megabytes would take minutes and gigabytes. The common prefixes of a data
set's keys, such as the head of a document, are far shorter."""


def shorten_texts(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Cut every text and binary value of ``keys``, in structs too, to its first `LONGEST_TEXT` bytes. This
    may cut a text within a character."""
    return pa.RecordBatch.from_arrays(list(map(_shorten, keys.columns)), schema=keys.schema)


def _shorten(column: pa.Array) -> pa.Array:
    kind = column.type
    if pat.is_struct(kind) and kind.num_fields:  # from_arrays would make no rows without fields
        children = [_shorten(column.field(at)) for at in range(kind.num_fields)]
        missing = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if not is_variable_width(kind):
        return column
    if (pc.max(pc.binary_length(column)).as_py() or 0) <= LONGEST_TEXT:
        return column
    is_large = pat.is_large_string(kind) or pat.is_large_binary(kind)
    as_bytes = column.view(pa.large_binary() if is_large else pa.binary())
    return pc.binary_slice(as_bytes, 0, LONGEST_TEXT).view(kind)


def determine_bounds(
    samples: pa.RecordBatch, weights: Weights, keys: Sequence[SortKey], subpartitions: int
) -> pa.RecordBatch:
    """Return ascending keys that cut the samples into ``subpartitions`` ranges of about equal weight.

    ``keys``: the order of the samples. ``weights``: how many rows each sample stands for; float64, shape
    (rows,). If there are too few distinct keys, there are fewer than ``subpartitions - 1`` bounds. Raises
    UsageError if there is not one weight for each row.
    """
    if len(weights) != samples.num_rows:
        raise UsageError(f"there are {samples.num_rows} samples and {len(weights)} weights")
    # sort the samples, find where keys change, then cut by weight
    ranks = RowOrder(keys).ranks(samples)
    order = ranks.sort_indices()
    next_key = np.append(ranks.take(order).group_starts(), samples.num_rows)
    rows = _bound_rows(np.cumsum(weights[order]), next_key, min(subpartitions, samples.num_rows))
    return samples.take(pa.array(order[rows], pa.int64()))


def _bound_rows(weight_up_to: Weights, next_key: npt.NDArray[np.int64], ranges: int) -> list[int]:
    """Return the bounds' positions among sorted samples. ``next_key``: where each key begins, and the end. A
    bound is the first sample that completes a range's weight and whose key is not yet a bound. A key that
    fills several ranges is a bound once; the next bound is the next key."""
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
