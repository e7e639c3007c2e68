"""`partitioners`: what it costs to decide where rows go, on one core, per row.

Each selector against a primitive of NumPy or Arrow on the same rows: ranges against NumPy's own search of
each value among the bounds, all others against moving the columns that they look at (`take` in random order,
which every shuffle does afterwards). CPU seconds, because a busy machine counts less there; the median of the
rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import pyarrow as pa
from harness import ROUNDS, on_one_core, record
from rows import BATCH_ROWS, STRING_BYTES, batch

from sortshuffle.partitioner import (
    ChannelSelector,
    HashSelector,
    IdSelector,
    RangeSelector,
    RoundRobinSelector,
    RowHashSelector,
    SortKey,
    determine_bounds,
)

SUBPARTITIONS = 200
DISTINCT_BATCHES = 16
SAMPLES = 20_000  # as many as Spark would take for so many ranges
NANO = 1e9
Rows = list[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Case:
    """A selector and the primitive it is measured against. ``most``: CPU seconds promised for 10 M rows."""

    name: str
    selector: ChannelSelector
    primitive: str
    other: Callable[[pa.RecordBatch], object]
    most: float | None = None


def main(quick: bool) -> None:
    count = 2 if quick else 10_000_000 // BATCH_ROWS + 1
    distinct = [_rows(seed) for seed in range(min(count, DISTINCT_BATCHES))]
    batches = [distinct[number % len(distinct)] for number in range(count)]
    with on_one_core():
        for case in _cases(distinct):
            _compare(case, batches, rounds=1 if quick else ROUNDS)


def _rows(seed: int) -> pa.RecordBatch:
    """The rows of all cases and an int column of ids."""
    made = batch(BATCH_ROWS, seed)
    ids = pa.array(np.asarray(made["k"]).astype(np.int32))
    return pa.record_batch([*made.columns, ids], names=[*made.schema.names, "id"])


def _cases(distinct: Rows) -> list[Case]:
    longs, strings, ids = 0, 3, 4
    return [
        Case("hash of a long", HashSelector((longs,), SUBPARTITIONS), "take", _take(longs), 0.15),
        Case(
            "hash of a 40-byte string", HashSelector((strings,), SUBPARTITIONS), "take", _take(strings), 1.0
        ),
        Case("200 ranges of longs", *_ranges(distinct, longs)),
        Case("200 ranges of 40-byte strings", *_ranges(distinct, strings)),
        Case("id column", IdSelector(ids, SUBPARTITIONS), "take", _take(ids)),
        Case("round robin", RoundRobinSelector(SUBPARTITIONS), "take", _take(longs)),
        Case("hash of whole rows, 72 bytes", RowHashSelector(SUBPARTITIONS), "take", _take()),
    ]


def _take(*columns: int) -> Callable[[pa.RecordBatch], object]:
    order = pa.array(np.random.default_rng(0).permutation(BATCH_ROWS))
    if not columns:
        return lambda rows: rows.take(order)
    return lambda rows: rows.select(list(columns)).take(order)


def _ranges(distinct: Rows, column: int) -> tuple[RangeSelector, str, Callable[[pa.RecordBatch], object]]:
    keys = (SortKey(0),)
    sample = pa.concat_batches([rows.select([column]) for rows in distinct]).slice(0, SAMPLES)
    bounds = determine_bounds(sample, np.ones(sample.num_rows), keys, SUBPARTITIONS)
    limits = _as_numpy(bounds.column(0))
    selector = RangeSelector((SortKey(column),), bounds, SUBPARTITIONS)
    return selector, "searchsorted", lambda rows: np.searchsorted(limits, _as_numpy(rows.column(column)))


def _as_numpy(column: pa.Array) -> np.ndarray:
    """The values where they lie; strings, which are all of one length here, as NumPy's fixed-width bytes."""
    if not pa.types.is_string(column.type):
        return np.asarray(column)
    return np.frombuffer(column.buffers()[2], f"S{STRING_BYTES}", len(column), column.offset * STRING_BYTES)


def _compare(case: Case, batches: Rows, rounds: int) -> None:
    """A B A B, and the median of each. The first run of each is a warm-up."""
    ours, others = [], []
    for _ in range(rounds + 1):
        ours.append(_cpu_seconds(case.selector.assign, batches))
        others.append(_cpu_seconds(case.other, batches))
    rows = sum(each.num_rows for each in batches)
    per_row, other = (median(seconds[1:]) / rows * NANO for seconds in (ours, others))
    promised = f", promised {case.most} s" if case.most else ""
    print(
        f"  {case.name:<30} {per_row:6.1f} ns per row  {case.primitive:<12} {other:6.1f} ns"
        f"  ratio {other / per_row:5.2f}  ({per_row * 1e7 / NANO:.2f} s for 10 M rows{promised})"
    )
    record(
        "partitioners",
        about=case.name,
        nanoseconds_per_row=round(per_row, 2),
        primitive=case.primitive,
        primitive_nanoseconds_per_row=round(other, 2),
        ratio=round(other / per_row, 3),
        rows=rows,
        subpartitions=SUBPARTITIONS,
    )


def _cpu_seconds(work: Callable[[pa.RecordBatch], object], batches: Rows) -> float:
    started = time.process_time()
    for rows in batches:
        work(rows)
    return time.process_time() - started
