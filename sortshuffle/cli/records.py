"""Records in map outputs: counts those in a buffer, and decodes the first ones of a subpartition.

This module connects the inspection of files, which knows nothing of records, with the payload, which knows
nothing of files. Objects are counted and measured without unpickling. They are unpickled only on request,
because that runs the code that the file names.
"""

from __future__ import annotations

import datetime
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa

from sortshuffle.errors import UnsupportedError
from sortshuffle.format.buffer import DataType, StoredBuffer
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import FileHeader, PayloadKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.events import END_OF_DATA, END_OF_PARTITION, unpack_event
from sortshuffle.payload.frames import FrameDecoding, FramesPayload
from sortshuffle.payload.pickled import PickledPayload
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.payload.unsafe_row import UnsafeRows
from sortshuffle.reading.records import spills
from sortshuffle.report.arrow_rows import RecordSource, arrow_batches, decoded, schema_of, text_of
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.inspection.contents import Inspection
from sortshuffle.storage.inspection.data_check import (
    FoundBuffer,
    RecordCounter,
    cipher_of,
    open_data,
    plain_buffers,
)

PREVIEW_BYTES = 24  # to show of an opaque frame


@dataclass(frozen=True, slots=True)
class ShownRows:
    """The first records of a subpartition. ``values``: one list per row, ready for JSON. ``unit``: the name
    of what a row shows. ``total``: size of the whole subpartition, in ``total_unit``."""

    subpartition: int
    columns: tuple[str, ...]
    values: tuple[Sequence[Any], ...]
    total: int
    unit: str = "row"
    total_unit: str = "row"


def record_counter(inspection: Inspection) -> RecordCounter | None:
    """Return a counter that decodes the buffers of a pair; None without a header.

    An unfinished index has no schema yet, but a batch can be decoded for its number of rows without one.
    """
    header = inspection.header
    if header is None:
        return None
    if header.payload_kind is PayloadKind.ARROW:
        return _RowCounter(ArrowPayload(schema_of(inspection) or pa.schema([]), header.codec))
    if header.payload_kind is PayloadKind.RECORD_BYTES:
        return _NoCounter(RecordBytesPayload(header.codec))
    return _FrameCounter(_frames_payload(header), header.is_encrypted)


class _RowCounter:
    """Counts rows, in each buffer independently."""

    def __init__(self, payload: ArrowPayload) -> None:
        self._payload = payload

    def of_extent(self) -> _RowCounter:
        return self

    def count(self, memory: pa.Buffer, buffer: StoredBuffer) -> int:
        is_data = buffer.data_type is DataType.DATA
        return int(decoded(self._payload, memory, buffer).num_rows) if is_data else 0

    def count_loose(self, memory: pa.Buffer, buffer: StoredBuffer) -> int | None:
        return self.count(memory, buffer)

    def finish(self) -> None:
        pass


class _NoCounter:
    """Checks that record bytes decompress. It cannot count them: only their serializer could."""

    def __init__(self, payload: RecordBytesPayload) -> None:
        self._payload = payload

    def of_extent(self) -> _NoCounter:
        return self

    def count(self, memory: pa.Buffer, buffer: StoredBuffer) -> None:
        self._payload.decoder(defaultdict(float)).decode(memory, buffer)

    count_loose = count

    def finish(self) -> None:
        pass


class _FrameCounter:
    """Counts frames, or objects in chunks, and checks the events between them."""

    def __init__(self, payload: FramesPayload, off_disk: bool) -> None:
        self._payload = payload
        self._decoding = FrameDecoding(payload, spills(None, off_disk))
        self._last = _FramesOfExtent(self._decoding)

    def of_extent(self) -> _FramesOfExtent:
        self._last = _FramesOfExtent(self._decoding)
        return self._last

    def count_loose(self, memory: pa.Buffer, buffer: StoredBuffer) -> int | None:
        payload = self._payload.decompress(memory, buffer)
        if buffer.data_type is DataType.DATA:
            return None  # the buffer may begin within a frame
        unpack_event(buffer.data_type, payload)
        return 0

    def finish(self) -> None:
        if self._last.end != [END_OF_DATA, END_OF_PARTITION]:
            raise Malformed("the streams do not end with END_OF_DATA and END_OF_PARTITION", 0)


class _FramesOfExtent:
    """Counts the frames of an extent. ``end``: its last two items, each an event, or None for frames. A
    buffer that completes no frame is no item."""

    def __init__(self, decoding: FrameDecoding) -> None:
        self._decoder = decoding.decoder(defaultdict(float))
        self.end: list[Any] = []

    def count(self, memory: pa.Buffer, buffer: StoredBuffer) -> int:
        before = self._decoder.records
        item = self._decoder.decode(memory, buffer)
        if item != []:
            self.end = [*self.end[-1:], None if isinstance(item, list) else item]
        return self._decoder.records - before

    def finish(self) -> None:
        self._decoder.finish()


def first_rows(
    inspection: Inspection,
    subpartition: int,
    count: int,
    unpickle: bool = False,
    schema: str = "",
    key: EncryptionKey | None = None,
) -> ShownRows:
    """Return the first records of a subpartition in this pair, without those in bad buffers.

    Opaque frames are shown by size and first bytes, pickled chunks by size or, with ``unpickle``, which
    **runs the code that the file names**, as objects. Record bytes are shown as Spark's rows, if ``schema``
    gives their columns as DDL. ``key``: decrypts the payloads.

    Raises `UnsupportedError`, with the reason, if records cannot be decoded; `UsageError` for an invalid
    schema; OSError if the file cannot be read.
    """
    # 1. check that the index, the data file and the key are there
    table, header, data = inspection.table, inspection.header, inspection.data
    if table is None or header is None:
        raise UnsupportedError(
            "no rows can be shown: the index, which says where they are and of which schema, is missing,"
            " damaged or not written yet"
        )
    if data is None or not inspection.is_pair:
        raise UnsupportedError("no rows can be shown without the data file that the index describes")
    cipher = cipher_of(header, key)
    if header.is_encrypted and cipher is None:
        why = "--key-file FILE names their key" if key is None else "the key is another one"
        raise UnsupportedError(f"no rows can be shown: they are encrypted, and {why}")
    # 2. decode the rows by the kind of payload
    total = int(table.per_subpartition("records")[subpartition])
    extents = table.extents(subpartition)
    source = RecordSource(data.path, cipher)
    if header.payload_kind is PayloadKind.RECORD_BYTES:
        names, values = _unsafe_rows(source, extents, RecordBytesPayload(header.codec), schema, count)
        return ShownRows(subpartition, _distinct(names), values, total)
    if schema:
        raise UnsupportedError(
            "--schema is for files of the shuffle manager: this one says what its rows are"
        )
    if header.payload_kind is not PayloadKind.ARROW:
        payload = _frames_payload(header)
        columns, unit, total_unit, rows = _frame_rows(payload, _frames(source, extents, payload), unpickle)
        return ShownRows(subpartition, columns, tuple(islice(rows, count)), total, unit, total_unit)
    arrow_schema = schema_of(inspection)
    if arrow_schema is None:
        raise UnsupportedError(
            "no rows can be shown: their schema stands at the end of the index, which is missing, damaged or"
            " not written yet"
        )
    batches = arrow_batches(source, extents, ArrowPayload(arrow_schema, header.codec))
    return ShownRows(subpartition, _distinct(arrow_schema.names), tuple(_arrow_rows(batches, count)), total)


def _unsafe_rows(
    source: RecordSource, extents: Iterable[Extent], payload: RecordBytesPayload, schema: str, count: int
) -> tuple[tuple[str, ...], tuple[Sequence[Any], ...]]:
    """Return the names of the columns, and the rows."""
    if not schema:
        raise UnsupportedError(
            "the file holds rows of Spark's, which do not say what they are: add their columns, such as"
            " --schema 'a long, b string'"
        )
    rows = UnsafeRows.of(schema)
    with open_data(source.path) as file:
        # decode extent by extent: a record never continues in the next extent
        found = (_record_bytes(plain_buffers(file, each, source.cipher), payload) for each in extents)
        every = (row for each in found for row in rows.rows(each))
        return rows.names, tuple([printable(value) for value in row] for row in islice(every, count))


def _record_bytes(buffers: Iterator[FoundBuffer], payload: RecordBytesPayload) -> Iterator[memoryview]:
    """Yield the bytes of an extent, up to the first bad buffer."""
    decoder = payload.decoder(defaultdict(float))
    try:
        for found in buffers:
            yield memoryview(decoder.decode(found.memory, found.stored))
    except Malformed:
        return  # the check of the data reports the fault


def _arrow_rows(batches: Iterable[pa.RecordBatch], count: int) -> list[Sequence[Any]]:
    values: list[Sequence[Any]] = []
    for batch in batches:
        wanted = batch.slice(0, count - len(values))
        columns = [[_value(scalar) for scalar in column] for column in wanted.columns]
        values.extend([column[row] for column in columns] for row in range(wanted.num_rows))
        if len(values) == count:
            break
    return values


def _frame_rows(
    payload: FramesPayload, frames: Iterable[memoryview], unpickle: bool
) -> tuple[tuple[str, ...], str, str, Iterator[Sequence[Any]]]:
    """Return the columns, the unit of a row, the unit of the total, and the rows."""
    if payload.kind is PayloadKind.FRAMES:
        rows = ([len(frame), printable(bytes(frame[:PREVIEW_BYTES]))] for frame in frames)
        return ("bytes", "begins with"), "frame", "frame", rows
    if unpickle:
        objects = ([printable(each)] for frame in frames for each in _unpickled(payload, frame))
        return ("object",), "object", "object", objects
    chunks = ([payload.count(frame), len(frame)] for frame in frames)
    return ("objects", "bytes"), "chunk", "object", chunks


def _unpickled(payload: FramesPayload, frame: memoryview) -> Sequence[Any]:
    try:
        return list(payload.records(frame))
    except Exception as error:  # the code that the pickle names may raise anything
        raise UnsupportedError(f"the objects cannot be unpickled here: {error}") from error


def _frames_payload(header: FileHeader) -> FramesPayload:
    kinds: dict[PayloadKind, type[FramesPayload]] = {
        PayloadKind.FRAMES: FramesPayload,
        PayloadKind.PICKLE: PickledPayload,
    }
    return kinds[header.payload_kind](header.codec)


def _frames(source: RecordSource, extents: Iterable[Extent], payload: FramesPayload) -> Iterator[memoryview]:
    decoding = FrameDecoding(payload, spills(None, off_disk=source.cipher is not None))
    with open_data(source.path) as file:
        for extent in extents:
            with closing(decoding.decoder(defaultdict(float))) as decoder:
                try:
                    for found in plain_buffers(file, extent, source.cipher):
                        item = decoder.decode(found.memory, found.stored)
                        if isinstance(item, list):
                            yield from item
                except Malformed:
                    continue  # the check of the data reports the fault


def _value(scalar: pa.Scalar) -> Any:
    try:
        return printable(scalar.as_py())
    except (ValueError, OverflowError, ImportError, LookupError):
        return text_of(scalar)


def printable(value: Any) -> Any:
    """Convert a Python value for JSON: bytes to 0x..., times to ISO 8601, decimals to text."""
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
    """Format a result of `printable` for a cell of a table."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Make column names distinct, to use them as keys: the second column called k becomes k#2."""
    seen: Counter[str] = Counter()
    distinct: list[str] = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(distinct)
