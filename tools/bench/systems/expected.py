"""`expected_answer`: what a case must give, computed from its input by pyarrow and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sort_records

from systems.contestants.consumers import number, sums_of, total
from systems.work import Work


def expected_answer(work: Work, fewer: int) -> Any:
    """Return the answer of a case. ``fewer``: what the number of rows is divided by."""
    return _BY_CASE[work.case](**work.arguments(fewer))


def _exchange(files: list[str], partitions: int) -> dict[str, str]:
    return sums_of(total(pq.ParquetFile(file).iter_batches(columns=["v", "w", "s"])) for file in files)


def _sort(files: list[str]) -> list[Any]:
    found = sort_records.summary_of(list(map(Path, files)), in_order=False)
    return [found.rows, found.checksum]


def _groups(files: list[str]) -> list[Any]:
    groups = _table(files, "k", "v").group_by("k").aggregate([("v", "max"), ("v", "min")])
    return [len(groups), number(pc.sum(pc.subtract(groups["v_max"], groups["v_min"])).as_py())]


def _aggregate(files: list[str], key: str) -> list[Any]:
    rows = _table(files, key, "v")
    return [pc.count_distinct(rows[key]).as_py(), len(rows), number(pc.sum(rows["v"]).as_py())]


def _join(files: list[str], others: list[str]) -> list[Any]:
    rows, right = _table(files, "id", "v"), _table(others, "id", "w")
    ids = rows["id"].to_numpy()
    # each id is in ``others`` once
    values = np.empty(len(right))
    values[right["id"].to_numpy()] = right["w"].to_numpy()
    return [len(ids), number(pc.sum(rows["v"]).as_py()), number(values[ids].sum())]


def _table(files: list[str], *columns: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(file, columns=list(columns)) for file in files)


_BY_CASE: dict[str, Callable[..., Any]] = {
    "exchange": _exchange,
    "sort": _sort,
    "groups": _groups,
    "aggregate": _aggregate,
    "join": _join,
}
