"""The index file: entries, and the tail that describes the pair (`docs/format.md`).

Entries are a NumPy structured array of shape ``(regions, subpartitions)``, which is the file's own layout. It
is a view of the bytes read: look-up is arithmetic, and an index of any size is in memory only once.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from sortshuffle.format.checksum import BytesLike, checksum
from sortshuffle.format.header import HEADER_BYTES, INDEX_MAGIC, FileHeader
from sortshuffle.format.malformed import Malformed
from sortshuffle.version import __version__

ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("raw_bytes", "<u8"),
        ("records", "<u8"),
        ("checksum", "<u8"),
        ("buffers", "<u4"),
        ("reserved", "<u4"),
    ]
)
ENTRY_BYTES = ENTRY.itemsize
FOOTER_BYTES = 56
MOST_DATA_BYTES = 1 << 53  # of a data file: 8 PiB, more than file systems allow, and exact as a float

Entries = npt.NDArray[np.void]

_FOOTER = struct.Struct("<IIIIQQQQ8s")
_UNCHECKED_BYTES = 16  # the checksum itself and the magic after it


class RegionKind(IntEnum):
    """Whether each subpartition has its own extent, or all share one."""

    UNICAST = 0
    BROADCAST = 1


_KINDS = {kind.value: kind for kind in RegionKind}  # a look-up takes a tenth of the time of RegionKind(value)


@dataclass(frozen=True, slots=True)
class WriterInfo:
    """The task that wrote a map output, and the order of its extents. Plain JSON in the file.

    ``attempt``: Spark's ``taskAttemptId``, unique in the application. ``driver``: the id of the exchange's
    driver, in hex digits, because an application may have several; the file omits it if it is empty.
    ``time``: UTC, ISO 8601. ``ordering``: the key columns by which each extent is sorted, as in SQL (``k``,
    ``k desc``); empty if it is not sorted.
    """

    application: str = ""
    exchange: int = 0
    stage: int = 0
    map_index: int = 0
    attempt: int = 0
    host: str = ""
    time: str = ""
    software: str = ""
    ordering: tuple[str, ...] = ()
    driver: str = ""

    def __str__(self) -> str:
        return f"attempt {self.attempt} of map {self.map_index} on {self.host}"

    def signed(self) -> WriterInfo:
        """Return a copy with the current time and this release."""
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        return replace(self, time=time, software=f"sortshuffle {__version__}")

    def pack(self) -> bytes:
        fields = {name: getattr(self, name) for name in _FIELDS}
        if not self.driver:
            del fields["driver"]
        return _JSON.encode(fields).encode()

    @staticmethod
    def unpack(data: bytes) -> WriterInfo:
        """Parse the JSON. Unknown keys are ignored; missing ones have their defaults.

        Raises ValueError if it is not a JSON object, TypeError for a value of the wrong type.
        """
        found: Any = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        known = {name: value for name, value in found.items() if name in _FIELDS}
        known["ordering"] = tuple(known.get("ordering", ()))
        for name, value in known.items():
            wanted = type(getattr(_NOBODY, name))
            if type(value) is not wanted:
                raise TypeError(f"{name} is not of type {wanted.__name__}")
        return WriterInfo(**known)


_NOBODY = WriterInfo()
_FIELDS = tuple(WriterInfo.__dataclass_fields__)
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Index:
    """A whole, verified index.

    ``entries``: array of `ENTRY`, shape (regions, subpartitions). ``kinds``: one per region.
    ``schema``: Arrow IPC schema message, empty if the payloads have none. ``data_bytes``: size of the data
    file.
    """

    header: FileHeader
    entries: Entries
    kinds: tuple[RegionKind, ...]
    schema: bytes
    writer: WriterInfo
    data_bytes: int

    @property
    def regions(self) -> int:
        return len(self.kinds)

    def once(self) -> Entries:
        """Return the entries that own their extents: one of each broadcast region, all of other regions."""
        broadcast = [region for region, kind in enumerate(self.kinds) if kind is RegionKind.BROADCAST]
        if not broadcast:
            return self.entries.reshape(-1)
        owns = np.ones(self.entries.shape, np.bool_)
        owns[broadcast, 1:] = False
        return self.entries[owns]


def pack_tail(
    *,
    head_and_entries: int,
    subpartitions: int,
    kinds: tuple[RegionKind, ...],
    schema: bytes,
    writer: bytes,
    data_bytes: int,
    records: int,
    buffers: int,
) -> tuple[bytes, bytes]:
    """Return the bytes after the entries, except the checksum and the last magic, as (body, footer).

    ``head_and_entries``: bytes of the header and the entries, which must agree with ``kinds``.
    """
    if head_and_entries != HEADER_BYTES + len(kinds) * subpartitions * ENTRY_BYTES:
        raise ValueError("the entries written do not match the number of regions")
    footer = _FOOTER.pack(
        len(kinds), len(schema), len(writer), 0, data_bytes, records, buffers, 0, INDEX_MAGIC
    )
    return bytes(kinds) + schema + writer, footer[:-_UNCHECKED_BYTES]


def unpack_index(data: BytesLike) -> Index:
    """Parse and verify a whole index file. Raises `Malformed`. The entries are a view of ``data``, which must
    not change afterwards."""
    # the header, then the checksum of the whole
    data = memoryview(data).toreadonly()
    header = FileHeader.unpack(data, INDEX_MAGIC)
    if len(data) < HEADER_BYTES + FOOTER_BYTES:
        raise Malformed("the index is cut short", len(data), HEADER_BYTES + FOOTER_BYTES, len(data))
    end = len(data) - FOOTER_BYTES
    footer = _FOOTER.unpack_from(data, end)
    regions, schema_bytes, writer_bytes, reserved, data_bytes, records, buffers, stored, magic = footer
    if magic != INDEX_MAGIC:
        raise Malformed("the index does not end with its magic: it is cut short", len(data) - 8)
    computed = checksum(data[: len(data) - _UNCHECKED_BYTES])
    if computed != stored:
        raise Malformed("the index fails its checksum", end + 40, f"{stored:#018x}", f"{computed:#018x}")
    # the sizes, by which the parts are found
    tail = regions + schema_bytes + writer_bytes
    expected = HEADER_BYTES + regions * header.subpartitions * ENTRY_BYTES + tail + FOOTER_BYTES
    if expected != len(data) or reserved:
        raise Malformed("the index has another size than its footer says", end, expected, len(data))
    position = HEADER_BYTES + regions * header.subpartitions * ENTRY_BYTES
    kinds = _unpack_kinds(data, position, regions)
    position += regions
    schema = bytes(data[position : position + schema_bytes])
    writer = _unpack_writer(data, position + schema_bytes, writer_bytes)
    entries = unpack_entries(data[HEADER_BYTES:], regions, header.subpartitions)
    if entries["reserved"].any():
        entry = int(np.flatnonzero(entries["reserved"])[0])
        raise Malformed(
            "reserved bytes of an index entry are set", HEADER_BYTES + entry * ENTRY_BYTES + 44, 0
        )
    # the entries against the data file and the totals
    index = Index(header, entries, kinds, schema, writer, data_bytes)
    owned = index.once()
    _check_extents(entries, owned, data_bytes, end)
    _check_broadcast(entries, kinds)
    if int(owned["records"].sum()) != records or int(owned["buffers"].sum()) != buffers:
        raise Malformed("the index's totals do not add up", end, (records, buffers))
    return index


def _check_extents(entries: Entries, owned: Entries, data_bytes: int, end: int) -> None:
    """Check that all extents lie in the data file, and together are no larger. So no sum of sizes overflows,
    and no reader allocates more than a file can hold."""
    starts, sizes = entries["offset"], entries["bytes"]
    inside = (starts <= data_bytes) & (sizes <= data_bytes - np.minimum(starts, np.uint64(data_bytes)))
    if not inside.all():
        at = int(np.flatnonzero(~inside)[0])
        region, subpartition = divmod(at, entries.shape[1])
        what = f"the extent of region {region}, subpartition {subpartition} lies outside the data file"
        raise Malformed(what, HEADER_BYTES + at * ENTRY_BYTES, data_bytes)
    # in floating point, which does not overflow, and is exact up to MOST_DATA_BYTES
    if data_bytes > MOST_DATA_BYTES or owned["bytes"].sum(dtype=np.float64) > data_bytes:
        raise Malformed("the extents take more than the data file has", end + 16, data_bytes)


def _check_broadcast(entries: Entries, kinds: tuple[RegionKind, ...]) -> None:
    """Check that all subpartitions of a broadcast region have the same extent."""
    for region, kind in enumerate(kinds):
        if kind is RegionKind.BROADCAST and (others := entries[region] != entries[region, 0]).any():
            place = HEADER_BYTES + (region * entries.shape[1] + int(np.flatnonzero(others)[0])) * ENTRY_BYTES
            raise Malformed(f"the entries of region {region}, a broadcast region, differ", place)


def _unpack_kinds(data: memoryview, start: int, regions: int) -> tuple[RegionKind, ...]:
    kinds = bytes(data[start : start + regions])
    try:
        return tuple(map(_KINDS.__getitem__, kinds))
    except KeyError as unknown:
        kind = unknown.args[0]
        place = start + kinds.index(kind)
        raise Malformed("the region kind is not known", place, "a known one", kind) from None


def _unpack_writer(data: memoryview, start: int, size: int) -> WriterInfo:
    try:
        return WriterInfo.unpack(bytes(data[start : start + size]))
    except (ValueError, TypeError) as error:
        raise Malformed(
            "the writer is not a JSON object of the known form", start, found=str(error)
        ) from None


def unpack_entries(data: BytesLike, regions: int, subpartitions: int) -> Entries:
    """Return a view of ``regions x subpartitions`` entries in the bytes that follow an index header."""
    flat = np.frombuffer(data, ENTRY, count=regions * subpartitions)
    return flat.reshape(regions, subpartitions)
