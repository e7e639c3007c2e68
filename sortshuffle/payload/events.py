"""Events: control records between the data of a stream, each in a separate buffer.

Used by partitions that are written from frames. Each stream of `ShuffleRDD` ends with the two end events;
users of `engine` send the others. A buffer's data type says which event it holds, and its payload holds the
event's fields (`docs/format.md`, "Events"). The version of the file or protocol is also that of the events.

Rules: an event is never compressed, does not count as a record, and keeps its place among the data. An event
with too few bytes, too many bytes or an unknown type raises `Malformed`.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, SupportsIndex, TypeAlias

from sortshuffle.errors import UsageError
from sortshuffle.format.buffer import DataType, SealedBuffer, seal
from sortshuffle.format.malformed import CutShort, Malformed

MAX_NUMBER = 2**64 - 1
MAX_NAME_BYTES = 2**16 - 1
# Limit for a barrier's options and a user event's data: a buffer's capacity, less room for the other fields
MAX_DATA_BYTES = 2**32 - 2**17

_BARRIER = struct.Struct("<QQI")  # id, time, bytes of options
_USER_EVENT = struct.Struct("<HI")  # bytes of name, bytes of data


@dataclass(frozen=True, slots=True)
class EndOfData:
    """Says that the producer has no more records."""

    data_type: ClassVar[DataType] = DataType.END_OF_DATA


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """Ends a subpartition: nothing follows."""

    data_type: ClassVar[DataType] = DataType.END_OF_PARTITION


@dataclass(frozen=True, slots=True)
class Superstep:
    """Ends a round of an iterative job."""

    data_type: ClassVar[DataType] = DataType.SUPERSTEP


@dataclass(frozen=True, slots=True)
class Barrier:
    """A cut through all streams of a job. ``time``: microseconds since 1970, UTC. ``options``: bytes whose
    meaning the sender and the receivers agree on."""

    data_type: ClassVar[DataType] = DataType.BARRIER

    id: int
    time: int
    options: bytes = b""

    def __post_init__(self) -> None:
        for name, value in (("id", self.id), ("time", self.time)):
            object.__setattr__(self, name, _number(name, value))
        object.__setattr__(self, "options", _data("options of a barrier", self.options))


@dataclass(frozen=True, slots=True)
class UserEvent:
    """A job's own message to its consumers. ``name`` says how to read ``data``."""

    data_type: ClassVar[DataType] = DataType.USER_EVENT

    name: str
    data: bytes = b""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UsageError(f"the name of an event is a str, not {self.name!r}")
        try:
            size = len(self.name.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"the name of an event has no UTF-8: {error}") from None
        if size > MAX_NAME_BYTES:
            raise UsageError(f"the name of an event has at most {MAX_NAME_BYTES} bytes of UTF-8, not {size}")
        object.__setattr__(self, "data", _data("data of a user event", self.data))


Event: TypeAlias = "EndOfData | EndOfPartition | Superstep | Barrier | UserEvent"

END_OF_DATA = EndOfData()
END_OF_PARTITION = EndOfPartition()
SUPERSTEP = Superstep()


def pack_event(event: Event) -> bytes:
    """Return the payload of an event's buffer."""
    if isinstance(event, Barrier):
        return _BARRIER.pack(event.id, event.time, len(event.options)) + event.options
    if isinstance(event, UserEvent):
        name = event.name.encode()
        return _USER_EVENT.pack(len(name), len(event.data)) + name + event.data
    return b""


def unpack_event(data_type: int, payload: bytes | memoryview) -> Event:
    """Parse an event of type ``data_type`` from its payload. Raises `Malformed`."""
    unpack = _UNPACK.get(data_type)
    if unpack is None:
        raise Malformed("an event is of a kind that is not known", 0, "a known one", data_type)
    return unpack(bytes(payload))


def seal_event(event: Event) -> SealedBuffer:
    """Return the buffer of an event: uncompressed, with a record count of 0."""
    payload = pack_event(event)
    return seal(payload, len(payload), records=0, data_type=event.data_type)


def _number(name: str, value: SupportsIndex) -> int:
    """Check a field of a barrier and convert it to int; it may be a NumPy integer."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"a barrier's {name} must be an int, not {value!r}") from None
    if not 0 <= number <= MAX_NUMBER:
        raise UsageError(f"a barrier's {name} must be from 0 to {MAX_NUMBER}, not {number}")
    return number


def _data(what: str, data: bytes | bytearray | memoryview) -> bytes:
    """Check ``data`` and copy it to bytes, because an event is immutable."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"the {what} must be bytes, not a {type(data).__name__}")
    size = memoryview(data).nbytes
    if size > MAX_DATA_BYTES:
        raise UsageError(f"the {what} have at most {MAX_DATA_BYTES} bytes, not {size}")
    return bytes(data)


def _without_fields(event: Event) -> Callable[[bytes], Event]:
    def unpack(payload: bytes) -> Event:
        _check_size(event.data_type, payload, 0)
        return event

    return unpack


def _barrier(payload: bytes) -> Event:
    number, time, options = _fields(_BARRIER, DataType.BARRIER, payload)
    _check_size(DataType.BARRIER, payload, _BARRIER.size + options)
    return Barrier(number, time, payload[_BARRIER.size :])


def _user_event(payload: bytes) -> Event:
    name_bytes, data_bytes = _fields(_USER_EVENT, DataType.USER_EVENT, payload)
    end = _USER_EVENT.size + name_bytes
    _check_size(DataType.USER_EVENT, payload, end + data_bytes)
    try:
        name = payload[_USER_EVENT.size : end].decode()
    except UnicodeDecodeError as error:
        raise Malformed("the name of a user event is not UTF-8", _USER_EVENT.size, found=str(error)) from None
    return UserEvent(name, payload[end:])


def _fields(layout: struct.Struct, data_type: DataType, payload: bytes) -> tuple[int, ...]:
    if len(payload) < layout.size:
        raise CutShort(f"a {data_type.name} event is cut short", 0, layout.size, len(payload))
    return layout.unpack_from(payload)


def _check_size(data_type: DataType, payload: bytes, expected: int) -> None:
    if len(payload) < expected:
        raise CutShort(f"a {data_type.name} event is cut short", 0, expected, len(payload))
    if len(payload) > expected:
        raise Malformed(f"a {data_type.name} event has bytes too many", 0, expected, len(payload))


_UNPACK: dict[int, Callable[[bytes], Event]] = {
    DataType.END_OF_DATA: _without_fields(END_OF_DATA),
    DataType.END_OF_PARTITION: _without_fields(END_OF_PARTITION),
    DataType.SUPERSTEP: _without_fields(SUPERSTEP),
    DataType.BARRIER: _barrier,
    DataType.USER_EVENT: _user_event,
}
