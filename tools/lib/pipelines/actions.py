"""The actions that end pipelines, besides `collect`. Each returns in words what plain PySpark decides."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import DataFrame, Row


@dataclass(frozen=True, slots=True)
class Result:
    """What an action works on. ``order``: the columns by which the frame is sorted, if it is. ``rows``: those
    that `collect` gave, as they print. ``directory``: where files may be written."""

    frame: DataFrame
    order: Sequence[str]
    rows: Counter[str]
    directory: str


Action: TypeAlias = Callable[[Result], list[str]]


def keys(rows: Iterable[Row], order: Sequence[str]) -> list[str]:
    """Return the values of the sort columns, row by row. Equal rows may come in any order, so these alone are
    compared."""
    return [repr([row[name] for name in order]) for row in rows] if order else []


def _count(result: Result) -> list[str]:
    return [str(result.frame.count())]


def _is_empty(result: Result) -> list[str]:
    return [str(result.frame.isEmpty())]


def _first(result: Result) -> list[str]:
    row = result.frame.first()
    return _some([] if row is None else [row], result)


def _take(result: Result) -> list[str]:
    return _some(result.frame.take(3), result)


def _some(rows: list[Row], result: Result) -> list[str]:
    """Return how many rows there are, those that the frame has not got, and the keys."""
    unknown = Counter(map(repr, rows)) - result.rows
    return [f"{len(rows)} rows", *unknown, *keys(rows, result.order)]


def _local_iterator(result: Result) -> list[str]:
    rows = list(result.frame.toLocalIterator())
    return [*sorted(map(repr, rows)), *keys(rows, result.order)]


def _to_pandas(result: Result) -> list[str]:
    pandas = result.frame.toPandas()
    rows = map(repr, pandas.itertuples(index=False, name=None))
    return [*map(str, pandas.dtypes), *sorted(rows)]


def _written(result: Result) -> list[str]:
    """Write the rows as Parquet files, and read those."""
    with tempfile.TemporaryDirectory(dir=result.directory) as directory:
        result.frame.write.mode("overwrite").parquet(directory)
        read = result.frame.sparkSession.read.parquet(directory)
        return [read.schema.json(), *sorted(map(repr, read.collect()))]


ACTIONS: dict[str, Action] = {
    "count": _count,
    "isEmpty": _is_empty,
    "first": _first,
    "take": _take,
    "toLocalIterator": _local_iterator,
    "toPandas": _to_pandas,
    "write.parquet": _written,
}
