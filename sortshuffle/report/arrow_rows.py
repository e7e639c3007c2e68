"""Decodes the Arrow batches of a pair of files, for people: for `sortshuffle dump` and for reports.

This module connects the inspection of files, which knows nothing of records, with the payload, which knows
nothing of files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from sortshuffle.format.buffer import DataType, StoredBuffer
from sortshuffle.format.encryption import FileCipher
from sortshuffle.format.malformed import Malformed
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.inspection.contents import Inspection
from sortshuffle.storage.inspection.data_check import open_data, plain_buffers

_UNDECODABLE = (pa.ArrowException, ValueError, OSError, EOFError, MemoryError, LookupError, OverflowError)


@dataclass(frozen=True, slots=True)
class RecordSource:
    """A data file to read records from. ``cipher``: decrypts it; None if it is not encrypted."""

    path: str
    cipher: FileCipher | None


def schema_of(inspection: Inspection) -> pa.Schema | None:
    """Return the Arrow schema in the index; None if there is none, or it cannot be read."""
    if not inspection.schema:
        return None
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(inspection.schema))
        described = [(field.name, str(field.type)) for field in schema]  # raises for names that are not text
    except _UNDECODABLE:
        return None
    return schema if described else pa.schema([])


def arrow_batches(
    source: RecordSource, extents: Iterable[Extent], payload: ArrowPayload
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of extents, each extent's up to its first bad buffer."""
    with open_data(source.path) as file:
        for extent in extents:
            try:
                for found in plain_buffers(file, extent, source.cipher):
                    if found.stored.data_type is DataType.DATA:
                        yield decoded(payload, found.memory, found.stored)
            except Malformed:
                continue  # the check of the data reports the fault


def decoded(payload: ArrowPayload, memory: pa.Buffer, buffer: StoredBuffer) -> pa.RecordBatch:
    """Return the batch in a buffer. Raises `Malformed` if it cannot be decoded, or is not valid."""
    try:
        batch = payload.decode(memory, buffer, defaultdict(float))
        batch.validate()
        return batch
    except _UNDECODABLE as error:
        raise Malformed(f"the rows of a buffer cannot be decoded ({error})", 0) from None


def text_of(scalar: pa.Scalar) -> str:
    """Format a value that Python has no object for, such as a timestamp that its datetime cannot hold."""
    try:
        return str(scalar.cast(pa.string()).as_py())
    except (pa.ArrowException, ValueError):
        return f"a {scalar.type} that cannot be shown"
