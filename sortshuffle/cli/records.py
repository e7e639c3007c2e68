"""The rows in map outputs: how many a buffer holds, and what the first of a subpartition are.

The one module between the inspection of files, which knows no records, and the payload, which knows no files.
Only Arrow payloads are decoded: unpickling a file would run what is in it.
"""

from __future__ import annotations

import datetime
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sortshuffle.errors import UnsupportedError
from sortshuffle.format.buffer import DataType, StoredBuffer
from sortshuffle.format.header import PayloadKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.storage.inspection import Inspection, RecordCounter, open_data, walk
from sortshuffle.storage.reader import Extent

_UNDECODABLE = (pa.ArrowException, ValueError, OSError, EOFError, MemoryError, LookupError, OverflowError)


@dataclass(frozen=True, slots=True)
class Rows:
    """The first rows of a subpartition: ``values`` has one list per row, ready for JSON."""

    subpartition: int
    columns: tuple[str, ...]
    values: tuple[Sequence[Any], ...]
    total: int


def schema_of(inspection: Inspection) -> pa.Schema | None:
    """The Arrow schema in the index; None if it has none, or none that can be read."""
    if not inspection.schema:
        return None
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(inspection.schema))
        described = [(field.name, str(field.type)) for field in schema]  # raises if names are not text
    except _UNDECODABLE:
        return None
    return schema if described else pa.schema([])


def row_counter(inspection: Inspection) -> RecordCounter | None:
    """Counts the rows of this pair's buffers by decoding them; None if it cannot.

    Without a schema, which an unfinished index does not have yet, a batch still says how many rows it has.
    """
    header = inspection.header
    if header is None or header.payload_kind is not PayloadKind.ARROW:
        return None
    payload = ArrowPayload(schema_of(inspection) or pa.schema([]), header.codec)

    def count(memory: pa.Buffer, buffer: StoredBuffer) -> int:
        is_data = buffer.data_type is DataType.DATA
        return int(_decoded(payload, memory, buffer).num_rows) if is_data else 0

    return count


def first_rows(inspection: Inspection, subpartition: int, count: int) -> Rows:
    """The first rows that the consumer of a subpartition gets from this pair, those in bad buffers left out.

    Raises `UnsupportedError` where rows cannot be decoded, and says why; OSError if the file cannot be read.
    """
    table, schema, header = inspection.table, schema_of(inspection), inspection.header
    if header is not None and header.payload_kind is not PayloadKind.ARROW:
        raise UnsupportedError(
            f"only Arrow payloads can be shown as rows, and these are {header.payload_kind.name.lower()}"
        )
    if table is None or schema is None or header is None:
        raise UnsupportedError(
            "no rows can be shown: their schema stands at the end of the index, which is missing, damaged or"
            " not written yet"
        )
    if inspection.data is None or not inspection.is_pair:
        raise UnsupportedError("no rows can be shown without the data file that the index describes")
    payload = ArrowPayload(schema, header.codec)
    values: list[Sequence[Any]] = []
    for batch in _batches(inspection.data.path, table.extents(subpartition), payload):
        wanted = batch.slice(0, count - len(values))
        columns = [[_value(scalar) for scalar in column] for column in wanted.columns]
        values.extend([column[row] for column in columns] for row in range(wanted.num_rows))
        if len(values) == count:
            break
    total = int(table.per_subpartition("records")[subpartition])
    return Rows(subpartition, _distinct(schema.names), tuple(values), total)


def _batches(path: str, extents: Iterable[Extent], payload: ArrowPayload) -> Iterator[pa.RecordBatch]:
    with open_data(path) as descriptor:
        for extent in extents:
            try:
                for found in walk(descriptor, extent.offset, extent.offset + extent.bytes):
                    if found.stored.data_type is DataType.DATA:
                        yield _decoded(payload, found.memory, found.stored)
            except Malformed:
                continue  # the fault is reported by whoever checks the data


def _decoded(payload: ArrowPayload, memory: pa.Buffer, buffer: StoredBuffer) -> pa.RecordBatch:
    try:
        batch = payload.decode(memory, buffer, defaultdict(float))
        batch.validate()
        return batch
    except _UNDECODABLE as error:
        raise Malformed(f"the rows of a buffer cannot be decoded ({error})", 0) from None


def _value(scalar: pa.Scalar) -> Any:
    try:
        return printable(scalar.as_py())
    except (ValueError, OverflowError, ImportError, LookupError):
        return _as_text(scalar)  # such as a timestamp that Python's datetime cannot hold


def _as_text(scalar: pa.Scalar) -> str:
    try:
        return str(scalar.cast(pa.string()).as_py())
    except (pa.ArrowException, ValueError):
        return f"a {scalar.type} that cannot be shown"


def printable(value: Any) -> Any:
    """A Python value as JSON can hold it: bytes as 0x..., times in ISO 8601, decimals as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): printable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(each) for each in value]
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def cell(value: Any) -> str:
    """A printable value as a table shows it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names that can be keys: the second column called k is k#2."""
    seen: Counter[str] = Counter()
    distinct: list[str] = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(distinct)
