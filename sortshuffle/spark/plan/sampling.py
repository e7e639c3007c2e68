"""Finds the bounds of a range exchange by a job that samples its keys, as Spark's ``RangePartitioner`` does.

The job runs once for an exchange, when that is built: at ``toDF()`` or the first action. Its tasks run the
stage that will write the exchange, but return a few keys instead of writing. So the steps chained before a
range exchange run twice, as in Spark. An exchange further upstream does not run again. Long texts are
shortened before they are sampled (`partitioner.range_bounds`).

Sample sizes are Spark's: ``spark.sql.execution.rangeExchange.sampleSizePerPartition`` keys for each
subpartition, at most a million in all. Three times as many are taken, the same number from each producer, as
producers differ in size. A producer too large for its number of keys is sampled again, with a larger number.

The random numbers depend on the producer alone: the same rows give the same bounds in every run.
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
from sortshuffle.spark.plan.coalescing import coalesced, ends_of
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.worker.key_samples import COLUMNS, SampleKeys

SAMPLE_SIZE = "spark.sql.execution.rangeExchange.sampleSizePerPartition"
MOST_SAMPLES = 1_000_000  # keys wanted in all, Spark's limit; the driver holds three times as many
OVERSAMPLING = 3  # keys taken for each one wanted, because producers differ in size; Spark's factor


@dataclass(frozen=True, slots=True)
class KeySample:
    """Keys sampled from one producer. ``rows``: the number of its rows, at least one."""

    producer: int
    rows: int
    keys: pa.RecordBatch

    @staticmethod
    def unpacked(row: Any) -> KeySample:
        with pa.ipc.open_stream(bytes(row.keys)) as stream:
            return KeySample(row.producer, row.rows, stream.read_next_batch())

    def weights(self) -> Any:
        """Return the number of rows that each key represents, rounded to a Java float as in Spark."""
        return np.full(self.keys.num_rows, np.float32(self.rows / self.keys.num_rows), np.float64)


@dataclass
class Sampling:
    """Samples the rows of ``upstream`` in jobs whose stage has the number ``stage``."""

    upstream: Chain
    columns: tuple[int, ...]
    stage: int
    _chain: Chain = field(init=False)  # the upstream, in as many tasks as it is sampled in
    _rows: DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self._chain = coalesced(self.upstream, ends_of(self.upstream))
        rows = self._chain.origin.rows()
        self._rows = self.upstream.context.planner.share(rows)  # planned once for both jobs

    def bounds(self, keys: Sequence[SortKey], subpartitions: int) -> pa.RecordBatch | None:
        """Return keys that divide the rows into ranges of about equal size; None if there are no rows.

        ``keys``: the order, whose columns are positions in `columns`.
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
        """Sample about ``wanted`` keys or more, in the order of the producers."""
        # if the number is unknown, assume one producer per subpartition: crowded ones are sampled again
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
        """Run one job, and return the samples by producer, without producers that have no rows."""
        chain = replace(self._chain, origin=_Planned(self._chain.origin, self._rows))
        closing = SampleKeys(self.columns, size)
        rows = plan_stage(chain, self.stage, closing, COLUMNS, purpose="samples keys").collect()
        samples = map(KeySample.unpacked, rows)
        return {sample.producer: sample for sample in samples if sample.rows}

    def _per_subpartition(self) -> int:
        return int(str(self.upstream.context.spark.conf.get(SAMPLE_SIZE)))


@dataclass(frozen=True, eq=False)
class _Planned(WrappedOrigin):
    """An origin whose rows are already planned."""

    planned: DataFrame

    def rows(self) -> DataFrame:
        return self.planned
