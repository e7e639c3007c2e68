"""Records as a stream of bytes that is cut over buffers: length (u32, little-endian), then the record.

Used by `ShuffleRDD` and `engine` on both sides: their records are pickled chunks. Buffers cut records
anywhere, even inside a length; a stream starts and ends at a record boundary (`docs/format.md`, "Records").

Rules
* Writing copies a record once, into the buffers. Reading copies only cut records: a record that lies whole in
  one buffer is a view of that buffer and keeps its memory alive.
* A cut record is assembled in new memory, or, above `SPILL_BYTES`, in a `Spill`: a temporary file that the
  caller makes, as this module does no I/O. A caller that abandons a deserializer before the end of the stream
  closes it, which closes the file.
* A length allocates at most `SPILL_BYTES`; a longer record takes room only as its bytes arrive. A damaged
  length thus cannot allocate gigabytes.
* Single-threaded; one deserializer for each stream.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

import numpy as np

from sortshuffle.errors import UsageError
from sortshuffle.format.malformed import CutShort
from sortshuffle.options import MIB

LENGTH_BYTES = 4
MAX_RECORD_BYTES = 2**32 - 1
# A cut record above this size is assembled in a file. The figure is Flink's. A task with some active
# channels thus holds only a few MiB beside its budget; a file for less would cost more than the copy it saves
SPILL_BYTES = 5 * MIB

_LENGTH = struct.Struct("<I")


class Target(Protocol):
    """The destination of a record: an open buffer of `FrameEncoder`."""

    def append(self, data: memoryview) -> int:
        """Append as much of ``data`` as fits. Return the number of bytes appended."""


class Spill(Protocol):
    """A temporary file for a large record, on a disk or in memory that no budget counts."""

    def write(self, data: memoryview) -> object:
        """Append all of ``data``."""

    def view(self) -> memoryview:
        """Return everything written, read-only. The view stays valid after the spill is closed."""

    def close(self) -> None:
        """Delete the file. May be called repeatedly."""


def pack_length(size: int) -> bytes:
    """Pack the length of a record of ``size`` bytes. Raises `UsageError` above `MAX_RECORD_BYTES`."""
    if size > MAX_RECORD_BYTES:
        raise UsageError(f"a record has at most {MAX_RECORD_BYTES} bytes, not {size}: cut it")
    return _LENGTH.pack(size)


def serialize(record: memoryview, target: Target, next_target: Callable[[], Target]) -> Target:
    """Append a record's length and the record (of format ``B``) to ``target``. Call ``next_target`` for
    another target each time one is full. Return the target that holds the last byte."""
    for piece in (memoryview(pack_length(len(record))), record):
        written = target.append(piece)
        while written < len(piece):
            target = next_target()
            written += target.append(piece[written:])
    return target


class SpanningDeserializer:
    """Finds the records in the buffers of one stream, which the caller passes in order. ``new_spill``:
    creates the file for a cut record of more than ``spill_bytes``."""

    def __init__(self, new_spill: Callable[[], Spill], spill_bytes: int = SPILL_BYTES) -> None:
        self._new_spill = new_spill
        self._spill_bytes = spill_bytes
        self._length = b""  # the bytes received so far of a cut record's length
        self._record: _RecordInMemory | _RecordInSpill | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the data so far ends within a record."""
        return self._record is not None or bool(self._length)

    def records(self, data: memoryview) -> list[memoryview]:
        """Return the records that end in ``data``, which must be read-only and of format ``B``."""
        records: list[memoryview] = []
        position, size = 0, len(data)
        # the rest of a cut record, then whole records, then the beginning of another cut record
        if self.is_cut:
            position = self._continue(data, records)
        last_length = size - LENGTH_BYTES
        unpack_from = _LENGTH.unpack_from
        while position <= last_length:
            start = position + LENGTH_BYTES
            end = start + unpack_from(data, position)[0]
            if end > size:
                break
            records.append(data[start:end])
            position = end
        if position < size:
            self._begin(data[position:])
        return records

    def finish(self) -> None:
        """Check that the stream ends between records. Raises `Malformed` if it ends within a record."""
        if self._record is not None:
            problem = CutShort("the last record is cut short", 0, self._record.size, self._record.filled)
        elif self._length:
            problem = CutShort(
                "the length of the last record is cut short", 0, LENGTH_BYTES, len(self._length)
            )
        else:
            return
        self.close()
        raise problem

    def close(self) -> None:
        """Drop a cut record. May be called repeatedly."""
        record, self._record = self._record, None
        self._length = b""
        if record is not None:
            record.close()

    def _begin(self, rest: memoryview) -> None:
        """Keep the first bytes of a cut record."""
        self._length = bytes(rest[:LENGTH_BYTES])
        if len(self._length) == LENGTH_BYTES:
            self._record = self._new_record()
            self._record.append(rest[LENGTH_BYTES:])

    def _continue(self, data: memoryview, records: list[memoryview]) -> int:
        """Add to the cut record. Return where in ``data`` the next record begins."""
        position = 0
        if self._record is None:
            position = LENGTH_BYTES - len(self._length)
            self._length += data[:position]
            if len(self._length) < LENGTH_BYTES:
                return len(data)
            self._record = self._new_record()
        record = self._record
        end = min(len(data), position + record.size - record.filled)
        record.append(data[position:end])
        if record.filled == record.size:
            self._record, self._length = None, b""
            try:
                records.append(record.view())
            finally:
                record.close()
        return end

    def _new_record(self) -> _RecordInMemory | _RecordInSpill:
        size = int(_LENGTH.unpack(self._length)[0])
        if size <= self._spill_bytes:
            return _RecordInMemory(size)
        return _RecordInSpill(size, self._new_spill())


class _RecordInMemory:
    def __init__(self, size: int) -> None:
        self.size = size
        self.filled = 0
        # unlike bytearray, np.empty does not clear the memory first
        self._memory = np.empty(size, np.uint8).data

    def append(self, data: memoryview) -> None:
        end = self.filled + len(data)
        self._memory[self.filled : end] = data
        self.filled = end

    def view(self) -> memoryview:
        return self._memory.toreadonly()

    def close(self) -> None:
        pass


class _RecordInSpill:
    def __init__(self, size: int, spill: Spill) -> None:
        self.size = size
        self.filled = 0
        self._spill = spill

    def append(self, data: memoryview) -> None:
        self._spill.write(data)
        self.filled += len(data)

    def view(self) -> memoryview:
        return self._spill.view()

    def close(self) -> None:
        self._spill.close()
