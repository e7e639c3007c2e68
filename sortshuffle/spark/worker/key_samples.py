"""`SampleKeys`: the closing of a task that samples keys for the bounds of a range exchange.

`spark.plan.sampling` makes the closing on the driver, and reads the samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from sortshuffle.partitioner import Reservoir, shorten_texts
from sortshuffle.spark.worker.task import Task

COLUMNS = "producer int, rows long, keys binary"
SEED = 0x72616E67


@dataclass(frozen=True, slots=True)
class SampleKeys:
    """Gives Spark one row of `COLUMNS` per task, with the sampled keys as an Arrow stream.

    ``columns``: positions of the keys. ``size``: number of keys per producer; or a mapping from the producers
    to sample to their number of keys. Other producers read nothing and return nothing.
    """

    columns: tuple[int, ...]
    size: int | Mapping[int, int]

    def close(self, batches: Iterator[pa.RecordBatch], task: Task) -> Iterator[pa.RecordBatch]:
        size = self.size if isinstance(self.size, int) else self.size.get(task.partition, 0)
        reservoir: Reservoir | None = None
        held = 0
        for batch in batches if size else ():
            with task.metrics.step("sample"):
                keys = shorten_texts(batch.select(list(self.columns)))
                if reservoir is None:
                    reservoir = Reservoir(keys.schema, size, (SEED, task.partition))
                reservoir.add(keys)
                task.writing.release(held)
                held = reservoir.nbytes
                task.writing.charge(held)
        if reservoir is not None:
            yield _packed(task.partition, reservoir)
        task.writing.release(held)


def _packed(producer: int, reservoir: Reservoir) -> pa.RecordBatch:
    keys = reservoir.sample()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as stream:
        stream.write_batch(keys)
    return pa.record_batch(
        [
            pa.array([producer], pa.int32()),
            pa.array([reservoir.rows], pa.int64()),
            pa.array([sink.getvalue().to_pybytes()], pa.binary()),
        ],
        names=["producer", "rows", "keys"],
    )
