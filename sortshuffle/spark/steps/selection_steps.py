"""Steps that pass on a part of each batch: some of its columns or some of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sortshuffle.spark.worker.stages import Batches, PerBatchStep


@dataclass(frozen=True)
class Select(PerBatchStep):
    """Selects columns by position, in this order, and names them ``names``."""

    columns: tuple[int, ...]
    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        names = list(self.names)
        for batch in batches:
            yield batch.select(list(self.columns)).rename_columns(names)

    def source_of(self, position: int) -> int | None:
        return self.columns[position]

    def describe(self) -> str:
        return f"select({', '.join(self.names)})"


@dataclass(frozen=True)
class Filter(PerBatchStep):
    """Keeps the rows for which an Arrow expression is true; false and null are dropped, as in SQL."""

    expression: Any

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            kept = batch.filter(self.expression)
            if kept.num_rows:
                yield kept

    def source_of(self, position: int) -> int | None:
        return position

    def describe(self) -> str:
        return f"filter({self.expression})"
