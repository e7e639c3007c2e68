"""Samples of an exchange's rows: what its columns take when they are compressed, and which values make a
subpartition larger than others.

Only Arrow rows are decoded. Objects are not unpickled, because that runs code that the file names; rows of
the JVM do not say what they are.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sortshuffle.errors import UsageError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.compression import Compression
from sortshuffle.report.arrow_rows import RecordSource, arrow_batches, schema_of, text_of
from sortshuffle.report.exchanges import ExchangeFiles
from sortshuffle.storage.files.partitioned_file import DATA_SUFFIX
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.urls import is_url
from sortshuffle.storage.inspection.contents import Inspection, inspect
from sortshuffle.storage.inspection.data_check import cipher_of
from sortshuffle.storage.inspection.open_files import is_file

SAMPLE_BYTES = 8 * MIB  # of rows, of one subpartition: counted in a tenth of a second
SAMPLE_MAP_OUTPUTS = 16  # map outputs to take them from
SAMPLE_READ = 256 * MIB  # stored bytes of one subpartition to read and decode, which takes about a second
SEED = 1  # of the choice of rows: the same files give the same report
COLUMN_BLOCK = 64 * KIB  # of a column to compress at once: Arrow's own bytes around it are then below 1 %
LEAST_SHARE = 0.1  # of a subpartition's rows that have one value, to name the value
LEAST_FACTOR = 2.0  # how many times the share that the value has in another subpartition
MOST_VALUES = 3  # to name
MOST_LETTERS = 60  # of a value to show


@dataclass(frozen=True, slots=True)
class ColumnSize:
    """What a column takes in a sample. ``stored_bytes``: compressed alone, with the file's codec; with LZ4 if
    the file has none."""

    name: str
    type: str
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class HeavyValue:
    """A value that a part of a subpartition's rows have. ``share``: that part, 0 to 1. ``elsewhere``: the
    part of the rows of a middling subpartition that have it."""

    column: str
    value: str
    share: float
    elsewhere: float


class Sampler:
    """Takes samples from one exchange. ``key``: decrypts its rows."""

    def __init__(self, files: ExchangeFiles, key: EncryptionKey | None = None) -> None:
        self._files = files
        self._key = key

    @property
    def refusal(self) -> str:
        """Why rows cannot be decoded; empty if they can."""
        header = self._files.header
        if header.payload_kind is not PayloadKind.ARROW:
            return _REFUSALS.get(header.payload_kind, "they do not say what they are")
        if header.is_encrypted and cipher_of(header, self._key) is None:
            return f"they are encrypted, and {'their key is another one' if self._key else 'there is no key'}"
        return ""

    def rows(self, *subpartitions: int) -> list[pa.Table | None]:
        """Return some rows of each subpartition; None if none can be read. They are of the map outputs that
        have most of it, and chosen at random in these. Rows in bad buffers are left out, and those of map
        outputs with other columns than the first."""
        most = self._map_outputs_with_most(subpartitions)
        return [self._rows_of(number, shares) for number, shares in zip(subpartitions, most, strict=True)]

    def _map_outputs_with_most(self, subpartitions: Sequence[int]) -> list[list[tuple[int, str]]]:
        """Return, for each subpartition, its bytes in the map outputs that have most of it, and their paths.
        Their indexes are read once more, because all entries of an exchange together may be large."""
        found: list[list[tuple[int, str]]] = [[] for _ in subpartitions]
        for base in self._files.bases:
            table = _inspection_of(base)
            if table is None or table.table is None:
                continue
            sizes = table.table.per_subpartition("bytes")
            for heap, number in zip(found, subpartitions, strict=True):
                if sizes[number]:
                    keep = heapq.heappush if len(heap) < SAMPLE_MAP_OUTPUTS else heapq.heappushpop
                    keep(heap, (int(sizes[number]), base))
        return [sorted(heap, key=lambda each: -each[0]) for heap in found]

    def _rows_of(self, subpartition: int, shares: Sequence[tuple[int, str]]) -> pa.Table | None:
        whole = sum(size for size, _ in shares)
        batches: list[pa.RecordBatch] = []
        for size, base in shares:
            for batch in map(_plain, self._some_of(base, subpartition, size / whole)):
                if not batches or batch.schema == batches[0].schema:
                    batches.append(batch)
        return pa.Table.from_batches(batches) if batches else None

    def _some_of(self, base: str, subpartition: int, share: float) -> Iterator[pa.RecordBatch]:
        """Yield batches of one map output, ``share`` of a sample; none if it has been removed."""
        inspection = _inspection_of(base)
        if inspection is None:
            return
        header, table, data = inspection.header, inspection.table, inspection.data
        schema = schema_of(inspection)
        if header is None or table is None or data is None or schema is None:
            return
        extents = [extent for extent in table.extents(subpartition) if extent.bytes]
        # of very large ones, some regions only
        extents = extents[:: math.ceil(sum(each.bytes for each in extents) / (SAMPLE_READ * share))]
        part = SAMPLE_BYTES * share / max(1, sum(each.raw_bytes for each in extents))
        random = np.random.default_rng(SEED)
        source = RecordSource(data.path, cipher_of(header, self._key))
        try:
            for batch in arrow_batches(source, extents, ArrowPayload(schema, header.codec)):
                yield batch if part >= 1 else batch.filter(pa.array(random.random(len(batch)) < part))
        except OSError:
            if _is_there(data.path):
                raise


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with columns that may have nulls, and without metadata: writers differ in both."""
    fields = [pa.field(field.name, field.type) for field in batch.schema]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def _inspection_of(base: str) -> Inspection | None:
    """Inspect a map output; None if it has been removed."""
    try:
        return inspect(base + DATA_SUFFIX)
    except UsageError:
        return None


def _is_there(path: str) -> bool:
    return is_file(path) if is_url(path) else not is_gone(path)


_REFUSALS = {
    PayloadKind.PICKLE: "they are objects, and to unpickle them runs code",
    PayloadKind.RECORD_BYTES: "they are rows of the JVM, which do not say what they are",
}


def column_sizes(rows: pa.Table, codec: Codec) -> tuple[ColumnSize, ...]:
    """Return what each column takes, in the order of the schema."""
    compression = Compression(Codec.LZ4 if codec is Codec.NONE else codec)
    return tuple(
        _size_of(field, column, compression) for field, column in zip(rows.schema, rows.columns, strict=True)
    )


def _size_of(field: pa.Field, column: pa.ChunkedArray, compression: Compression) -> ColumnSize:
    raw = stored = 0
    rows = max(1, len(column) * COLUMN_BLOCK // max(column.nbytes, 1))
    for start in range(0, len(column), rows):
        block = column.slice(start, rows).combine_chunks()
        message = pa.record_batch([block], [field.name]).serialize()
        compressed = compression.block(message)
        raw += message.size
        stored += message.size if compressed is None else compressed.size
    return ColumnSize(field.name, str(field.type), raw, stored)


def heavy_values(rows: pa.Table, others: pa.Table | None) -> tuple[HeavyValue, ...]:
    """Return the values that many of ``rows`` have and few of ``others``, which are of another subpartition:
    at most one of each column, the one with the largest share first."""
    found = []
    if others is not None and others.schema != rows.schema:
        others = None
    for at, field in enumerate(rows.schema if rows.num_rows else ()):
        try:
            value, share = _most_frequent(rows.column(at))
            elsewhere = 0.0 if others is None else _share_of(value, others.column(at))
        except pa.ArrowNotImplementedError:
            continue  # a type that Arrow does not compare, such as a list: no key is of it
        if share >= LEAST_SHARE and share >= LEAST_FACTOR * elsewhere:
            found.append(HeavyValue(field.name, _as_text(value), share, elsewhere))
    return tuple(sorted(found, key=lambda each: each.elsewhere - each.share)[:MOST_VALUES])


def _most_frequent(column: pa.ChunkedArray) -> tuple[pa.Scalar, float]:
    """Return the most frequent value, null among them, and its share of the rows."""
    counts = pc.value_counts(column)
    at = pc.index(counts.field("counts"), pc.max(counts.field("counts"))).as_py()
    return counts.field("values")[at], counts.field("counts")[at].as_py() / len(column)


def _share_of(value: pa.Scalar, column: pa.ChunkedArray) -> float:
    if not len(column):
        return 0.0
    if not value.is_valid:
        return float(column.null_count / len(column))
    is_nan = pa.types.is_floating(value.type) and math.isnan(value.as_py())
    equal = pc.is_nan(column) if is_nan else pc.equal(column, value)
    return (pc.sum(equal).as_py() or 0) / len(column)


def _as_text(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py())
    except (ValueError, OverflowError, ImportError, LookupError):
        text = text_of(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."
