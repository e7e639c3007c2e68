"""`WithColumns`: the step that computes columns by Arrow expressions, batch by batch.

A single-threaded Acero project node evaluates the expressions. Besides the time of the functions it takes 40
to 100 microseconds per batch; a dataset's scanner took 160 to 430 (up to 65,536 rows, noisy). Unchanged
columns are passed on without a copy. Acero cuts batches at 32,768 rows, and the results stay cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sortshuffle.spark.conforming import conform
from sortshuffle.spark.worker.stages import Batches, PerBatchStep


@dataclass(frozen=True)
class WithColumns(PerBatchStep):
    """Computes columns. ``columns``: for each column of ``wire``, the position of an input column, or an
    expression. ``label``: names the step in `explain()` and in errors."""

    columns: tuple[int | pc.Expression, ...]
    wire: pa.Schema
    label: str

    def __call__(self, batches: Batches) -> Batches:
        expressions = [pc.field(each) if isinstance(each, int) else each for each in self.columns]
        for batch in batches:
            for part in self._evaluate(batch, expressions).to_batches():
                if part.num_rows:
                    yield from conform(part, self.wire, self.label)

    def _evaluate(self, batch: pa.RecordBatch, expressions: Sequence[Any]) -> pa.Table:
        try:
            return evaluate(batch, expressions, self.wire.names)
        except pa.ArrowInvalid as error:  # "overflow", for example, says little by itself
            raise pa.ArrowInvalid(f"{self.label}: {error}") from error

    def source_of(self, position: int) -> int | None:
        source = self.columns[position]
        return source if isinstance(source, int) else None

    def describe(self) -> str:
        return self.label


def evaluate(batch: pa.RecordBatch, expressions: Sequence[Any], names: Sequence[str]) -> pa.Table:
    """Evaluate expressions over the columns of ``batch``. Raises whatever Arrow raises."""
    # here, because it loads pandas: 0.4 s of a session that may need neither
    import pyarrow.acero as acero

    rows = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
    columns = acero.Declaration("project", acero.ProjectNodeOptions(expressions, list(names)))
    return acero.Declaration.from_sequence([rows, columns]).to_table(use_threads=False)
