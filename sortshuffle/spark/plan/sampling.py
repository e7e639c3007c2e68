"""The bounds of a range exchange: a job that samples the keys, as Spark's ``RangePartitioner`` does.

It runs when the exchange is built, so at ``toDF()`` or the first action, once for an exchange. Its tasks run
the stage that will write the exchange, and return a few keys instead of writing: what is chained before a
range exchange therefore runs twice, as it does in Spark. An exchange further up is not run again. Of a long
text only its beginning is sampled (`partitioner.range_bounds`).

How many keys (Spark's numbers): ``spark.sql.execution.rangeExchange.sampleSizePerPartition`` for each
subpartition, at most a million in all; three times as many, to be sure, the same number from each producer.
A producer with so many rows that this is too little for its share is sampled again, with a size of its own.

The random numbers depend on the producer alone: the same rows give the same bounds, run after run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from sortshuffle.partitioner import SortKey, determine_bounds
from sortshuffle.spark.plan.chain import Chain, WrappedOrigin
from sortshuffle.spark.plan.staging import staged
from sortshuffle.spark.worker.key_samples import COLUMNS, SampleKeys

SAMPLE_SIZE = "spark.sql.execution.rangeExchange.sampleSizePerPartition"
MOST_SAMPLES = 1_000_000  # keys wanted in all, and so held by the driver, three times; Spark's limit
OVERSAMPLING = 3  # keys taken for each one wanted, because producers are not equally large; Spark's factor


@dataclass(frozen=True, slots=True)
class KeySample:
    """The sampled keys of one producer, which has ``rows`` rows, at least one."""

    producer: int
    rows: int
    keys: pa.RecordBatch

    @staticmethod
    def unpacked(row: Any) -> KeySample:
        with pa.ipc.open_stream(bytes(row.keys)) as stream:
            return KeySample(row.producer, row.rows, stream.read_next_batch())

    def weights(self) -> Any:
        """How many rows each key stands for; Spark keeps that in a Java float."""
        return np.full(self.keys.num_rows, np.float32(self.rows / self.keys.num_rows), np.float64)


@dataclass
class Sampling:
    """Samples the rows of ``upstream`` in jobs whose stage has the number ``stage``."""

    upstream: Chain
    columns: tuple[int, ...]
    stage: int
    _rows: DataFrame = field(init=False)

    def __post_init__(self) -> None:
        rows = self.upstream.origin.rows()
        self._rows = self.upstream.context.planner.share(rows)  # planned once for both jobs

    def bounds(self, keys: Sequence[SortKey], subpartitions: int) -> pa.RecordBatch | None:
        """Keys that cut the rows into ranges of about equal size; None if there are no rows.

        ``keys``: the order of `columns`, by their positions among themselves.
        """
        wanted = min(self._per_subpartition() * subpartitions, MOST_SAMPLES)
        samples = self._samples(wanted, subpartitions)
        if not samples:
            return None
        weights = np.concatenate([sample.weights() for sample in samples])
        return determine_bounds(
            pa.concat_batches([sample.keys for sample in samples]), weights, keys, subpartitions
        )

    def _samples(self, wanted: int, subpartitions: int) -> list[KeySample]:
        """About ``wanted`` keys or more, in the order of the producers."""
        # where the planner does not know, as many as subpartitions: fewer are sampled again if need be
        producers = self.upstream.context.planner.partitions(self._rows) or subpartitions
        size = ceil(OVERSAMPLING * wanted / max(1, producers))
        samples = self._run(size)
        share = min(1.0, wanted / max(1, sum(sample.rows for sample in samples.values())))
        crowded = {each.producer: ceil(share * each.rows) for each in samples.values()}
        crowded = {producer: needed for producer, needed in crowded.items() if needed > size}
        if crowded:
            samples.update(self._run(crowded))
        return [samples[producer] for producer in sorted(samples)]

    def _run(self, size: int | Mapping[int, int]) -> dict[int, KeySample]:
        """One job; the samples by producer, without those of producers that have no rows."""
        origin = _Planned(self.upstream.origin, self._rows)
        chain = replace(self.upstream, origin=origin)
        closing = SampleKeys(self.columns, size)
        rows = staged(chain, self.stage, closing, COLUMNS, purpose="samples keys").collect()
        samples = map(KeySample.unpacked, rows)
        return {sample.producer: sample for sample in samples if sample.rows}

    def _per_subpartition(self) -> int:
        return int(str(self.upstream.context.spark.conf.get(SAMPLE_SIZE)))


@dataclass(frozen=True, eq=False)
class _Planned(WrappedOrigin):
    """An origin whose rows are planned already."""

    planned: DataFrame

    def rows(self) -> DataFrame:
        return self.planned
