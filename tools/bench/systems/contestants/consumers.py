"""What the Python functions of the cases do with rows, and how sums are told: the same for all
contestants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

DIGITS = 9  # of sums of doubles, which depend on the order of the rows
SUMS = "rows long, v double, w double, letters long"
"""Spark's schema of `total`."""
SPREAD = "k long, spread double"
"""Spark's schema of `spread`."""


def total(batches: Iterable[pa.RecordBatch]) -> dict[str, float]:
    """Return the sums of one partition of the exchange."""
    rows, v, w, letters = 0, 0.0, 0.0, 0
    for batch in batches:
        rows += batch.num_rows
        v += pc.sum(batch["v"]).as_py() or 0.0
        w += pc.sum(batch["w"]).as_py() or 0.0
        letters += pc.sum(pc.binary_length(batch["s"])).as_py() or 0
    return {"rows": rows, "v": v, "w": w, "letters": letters}


def totals(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for `mapInArrow`."""
    yield pa.RecordBatch.from_pylist([total(batches)])


def spread(group: pd.DataFrame) -> pd.DataFrame:
    """Return one row for a group."""
    return pd.DataFrame({"k": [group["k"].iloc[0]], "spread": [group["v"].max() - group["v"].min()]})


def spreads(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `spread` for all groups, from pandas."""
    return rows.groupby("k", group_keys=False)[["k", "v"]].apply(spread)


def sums_of(partitions: Iterable[Any]) -> dict[str, str]:
    """Return the answer of an exchange: the sums of what `total` gave for each partition."""
    found = list(partitions)
    counts = {name: str(sum(int(each[name]) for each in found)) for name in ("rows", "letters")}
    return counts | {name: number(sum(each[name] for each in found)) for name in ("v", "w")}


def number(value: Any) -> str:
    """Return a sum as it is compared."""
    return f"{float(value):.{DIGITS}g}"
