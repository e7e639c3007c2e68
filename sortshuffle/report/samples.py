"""Samples of an exchange's rows: what its columns take when they are compressed, and which values make a
subpartition larger than others.

Only Arrow rows are decoded. Objects are not unpickled, because that runs code that the file names; rows of
the JVM do not say what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sortshuffle.errors import UsageError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.options import MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.compression import Compression
from sortshuffle.report.arrow_rows import RecordSource, arrow_batches, schema_of, text_of
from sortshuffle.report.exchanges import ExchangeFiles
from sortshuffle.storage.files.partitioned_file import DATA_SUFFIX
from sortshuffle.storage.inspection.contents import inspect
from sortshuffle.storage.inspection.data_check import cipher_of

SAMPLE_BYTES = 8 * MIB  # of rows, of one subpartition: decoded and counted in a tenth of a second
SAMPLE_MAP_OUTPUTS = 16  # map outputs to take them from
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
            return "they are encrypted, and their key was not given"
        return ""

    def rows(self, subpartition: int) -> pa.Table | None:
        """Return some rows of a subpartition; None if there are none. Rows in bad buffers are left out."""
        bases = self._files.bases
        count = min(len(bases), SAMPLE_MAP_OUTPUTS)
        chosen = [bases[number * len(bases) // count] for number in range(count)]
        batches: list[pa.RecordBatch] = []
        for base in chosen:
            batches += self._some_of(base, subpartition, SAMPLE_BYTES // len(chosen))
        return pa.Table.from_batches(batches) if batches else None

    def _some_of(self, base: str, subpartition: int, most: int) -> Iterator[pa.RecordBatch]:
        """Yield batches of one map output until they have ``most`` bytes; none if it has been removed."""
        try:
            inspection = inspect(base + DATA_SUFFIX)
        except UsageError:
            return
        header, table, data = inspection.header, inspection.table, inspection.data
        schema = schema_of(inspection)
        if header is None or table is None or data is None or schema is None:
            return
        source = RecordSource(data.path, cipher_of(header, self._key))
        for batch in arrow_batches(source, table.extents(subpartition), ArrowPayload(schema, header.codec)):
            yield batch
            most -= batch.nbytes
            if most <= 0:
                return


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
    for chunk in column.chunks:
        message = pa.record_batch([chunk], [field.name]).serialize()
        block = compression.block(message)
        raw += message.size
        stored += message.size if block is None else block.size
    return ColumnSize(field.name, str(field.type), raw, stored)


def heavy_values(rows: pa.Table, others: pa.Table | None) -> tuple[HeavyValue, ...]:
    """Return the values that many of ``rows`` have and few of ``others``, which are of another subpartition:
    at most one of each column, the one with the largest share first."""
    found = []
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
    return (pc.sum(pc.equal(column, value)).as_py() or 0) / len(column)


def _as_text(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py())
    except (ValueError, OverflowError, ImportError, LookupError):
        text = text_of(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."
