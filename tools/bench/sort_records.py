"""The sort benchmark's records: how they are made, and how a sorted output is validated.

Records of 100 bytes: a key of 10, a payload of 90, both random bytes (sortbenchmark.org). Validated are the
order of the keys within each file and from file to file, the number of records, and a checksum that does not
depend on their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

KEY_BYTES, PAYLOAD_BYTES = 10, 90
ROW_BYTES = KEY_BYTES + PAYLOAD_BYTES
ROWS_PER_FILE = 1_250_000
ROW_GROUP = 1 << 18
WORD = 8  # bytes
SCHEMA = pa.schema([("key", pa.binary()), ("payload", pa.binary())])
WORDS = -(-ROW_BYTES // WORD)
MULTIPLIERS = np.random.default_rng(100).integers(1 << 62, (1 << 64) - 1, WORDS, np.uint64) | np.uint64(1)

Bytes = npt.NDArray[np.uint8]


# --- records ------------------------------------------------------------------------------------------------


def records(rows: int, seed: int) -> pa.RecordBatch:
    """Random records, the same for the same seed."""
    random = np.random.default_rng(seed)
    return pa.record_batch(
        [_binary(random.integers(0, 256, (rows, width), np.uint8)) for width in (KEY_BYTES, PAYLOAD_BYTES)],
        schema=SCHEMA,
    )


def input_files(directory: Path, rows: int) -> Path:
    """Parquet files of so many records, made once."""
    directory.mkdir(parents=True, exist_ok=True)
    files = max(2, rows // ROWS_PER_FILE)
    for number in range(files):
        path = directory / f"part-{number:05d}.parquet"
        if not path.exists():
            partial = directory / f"_{number}.partial"
            table = pa.Table.from_batches([records(rows // files, number)])
            pq.write_table(table, partial, row_group_size=ROW_GROUP, use_dictionary=False)
            partial.rename(path)
    return directory


def _binary(values: Bytes) -> pa.Array:
    rows, width = values.shape
    offsets = np.arange(0, rows * width + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def _bytes_of(column: pa.Array, width: int) -> Bytes:
    """The values of a column as rows of a matrix. Raises `ValueError` if one is null or of another width."""
    fixed = column.cast(pa.binary(width))  # raises for another width
    if fixed.null_count:
        raise ValueError("the sort made nulls")
    start = fixed.offset * width
    return np.frombuffer(fixed.buffers()[1], np.uint8)[start : start + len(fixed) * width].reshape(-1, width)


# --- validation ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Summary:
    """What sorting must not change. ``checksum``: of the records, whatever their order; modulo 2**64."""

    rows: int
    checksum: int

    @staticmethod
    def of(keys: Bytes, payloads: Bytes) -> Summary:
        """Each record is hashed (multiplied word by word, mixed), and the hashes are added up: a record that
        is lost, doubled or changed, or a payload under another key, changes the sum."""
        padded = np.zeros((len(keys), WORD * WORDS), np.uint8)
        padded[:, :KEY_BYTES] = keys
        padded[:, KEY_BYTES:ROW_BYTES] = payloads
        hashes = (padded.view(np.uint64) * MULTIPLIERS).sum(axis=1, dtype=np.uint64)
        hashes ^= hashes >> np.uint64(32)
        hashes *= MULTIPLIERS[0]
        hashes ^= hashes >> np.uint64(29)
        return Summary(len(keys), int(hashes.sum(dtype=np.uint64)))

    def __add__(self, other: Summary) -> Summary:
        return Summary(self.rows + other.rows, (self.checksum + other.checksum) % 2**64)


def summary(directory: Path, in_order: bool) -> Summary:
    """Of the files in a directory, by their names. ``in_order``: as for `summary_of`."""
    return summary_of(sorted(directory.glob("part-*.parquet")), in_order)


def summary_of(files: Sequence[Path], in_order: bool) -> Summary:
    """``in_order``: raises `ValueError` where a key is below the one before it, in its file or in the file
    before."""
    found = Summary(0, 0)
    last = bytes(KEY_BYTES)
    for keys, payloads in _batches(files):
        found += Summary.of(keys, payloads)
        if in_order:
            if bytes(keys[0]) < last or not _ascends(keys):
                raise ValueError(f"{files[0].parent} is not in order, near record {found.rows}")
            last = bytes(keys[-1])
    return found


def _batches(files: Sequence[Path]) -> Iterator[tuple[Bytes, Bytes]]:
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROW_GROUP):
                if batch.num_rows:
                    yield _bytes_of(batch["key"], KEY_BYTES), _bytes_of(batch["payload"], PAYLOAD_BYTES)


def _ascends(keys: Bytes) -> bool:
    """Compared as the first eight bytes and then the last two, both big-endian."""
    first = np.ascontiguousarray(keys[:, :WORD]).view(">u8").ravel()
    rest = np.ascontiguousarray(keys[:, WORD:]).view(">u2").ravel()
    above = first[1:] > first[:-1]
    equal = first[1:] == first[:-1]
    return bool((above | (equal & (rest[1:] >= rest[:-1]))).all())
