"""The rows of all cases: a long key, two doubles, a string of 40 characters. 68 bytes each in Arrow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BATCH_ROWS = 65_536
STRING_BYTES = 40
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("w", pa.float64()), ("s", pa.string())])


def batch(rows: int, seed: int) -> pa.RecordBatch:
    """Random rows, the same for the same seed. The strings do not compress."""
    random = np.random.default_rng(seed)
    letters = random.integers(97, 123, STRING_BYTES * rows, dtype=np.uint8)
    offsets = np.arange(0, STRING_BYTES * rows + 1, STRING_BYTES, dtype=np.int32)
    strings = pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
    return pa.record_batch(
        [
            pa.array(random.integers(0, 1 << 40, rows)),
            pa.array(random.random(rows)),
            pa.array(random.random(rows)),
            strings,
        ],
        schema=SCHEMA,
    )


def parquet_files(directory: Path, rows: int, files: int) -> list[str]:
    """Files of about ``rows / files`` rows each, made once."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"part-{number:03d}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        if not path.exists():
            partial = path.with_suffix(".partial")
            table = pa.Table.from_batches([batch(rows // files, number)])
            pq.write_table(table, partial, row_group_size=1 << 20)
            partial.rename(path)
    return [str(path) for path in paths]
