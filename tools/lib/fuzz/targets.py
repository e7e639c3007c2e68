"""What is fuzzed. A target is a function of some bytes that returns, unless there is a fault.

A fault is: an error that is not the package's own, bytes that are understood as something else than they say,
memory beyond what the bytes and the sizes that were checked justify (the process has a limit), or no end.

Checksums stand before a fuzzer. So the files' targets put the right ones in place of those that are there,
and what lies behind them is reached. What is found there needs a writer that has a fault, or is hostile.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from sortshuffle.errors import Place, SortShuffleError
from sortshuffle.format.buffer import BUFFER_HEADER_BYTES, DataType, sealed_size
from sortshuffle.format.checksum import CHECKSUM_BYTES, checksum, checksum_of_checksums
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, INDEX_MAGIC, Codec, FileHeader
from sortshuffle.format.index import ENTRY, FOOTER_BYTES, RegionKind, WriterInfo, pack_tail
from sortshuffle.format.malformed import Malformed
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.events import Barrier, UserEvent, pack_event, seal_event, unpack_event
from sortshuffle.payload.frames import FrameDecoding, FramesPayload
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.reading.channel import Fetch, LocalInputChannel
from sortshuffle.reading.records import RecordSpill
from sortshuffle.service.jvm import protocol as jvm
from sortshuffle.service.wire import protocol
from sortshuffle.service.wire.protocol import Header, Kind, MapOutputAddress, Sender
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import ExtentCursor, SubpartitionRange, extents_of_range
from sortshuffle.storage.files.reader import verified_index

ID = bytes(range(16))
RAW_BYTES = 1 << 20  # that an extent may say it has; what a fuzzer's case may be decompressed to


@dataclass(frozen=True)
class Target:
    """``seeds``: bytes that are understood, to begin with."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]


# --- the shuffle service's protocol ------------------------------------------------------------------------


def check_frames(data: bytes) -> None:
    """The first byte says who sends. What is understood is packed to the same bytes."""
    sender, data = Sender(data[0] & 1 if data else 0), data[1:]
    try:
        for header, body in protocol.FrameParser(sender).feed(data):
            again, frame = _repacked(header, body), data[: protocol.HEADER_BYTES + len(body)]
            if header.kind in (
                Kind.ERROR_RESPONSE,
                Kind.FIND_RESPONSE,
            ):  # one text is written in several ways
                [frame] = [_repacked(*each) for each in protocol.FrameParser(sender).feed(again)]
            assert again == frame, f"{header} was understood as {again!r}"
            data = data[protocol.HEADER_BYTES + len(body) :]
    except SortShuffleError:
        return


def _repacked(header: Header, body: bytes) -> bytes:
    number = header.channel
    match header.kind:
        case Kind.PARTITION_REQUEST:
            return protocol.PartitionRequest.unpack(header, body).pack()
        case Kind.DAMAGE_REPORT:
            return protocol.DamageReport.unpack(header, body).pack()
        case Kind.FIND_REQUEST:
            return protocol.pack_find_request(number, protocol.unpack_find_request(body))
        case Kind.REMOVE_REQUEST:
            output = protocol.unpack_remove_request(body)
            return protocol.pack_remove_request(number, output.application, output.exchange, output.file_id)
        case Kind.ERROR_RESPONSE:
            return protocol.ErrorResponse.unpack(header, body).pack()
        case Kind.FIND_RESPONSE:
            return protocol.pack_find_response(number, protocol.unpack_find_response(header, body))
    return header.pack() + body


def frame_seeds() -> list[bytes]:
    output = MapOutputAddress("app-1", 3, 17, 0, ID)
    found = protocol.FoundOutput(ID, 204, "/data/x", "host")
    error = protocol.ErrorResponse(7, protocol.Fault.DAMAGED, "bad", Place("f", 1, 2, 3, "w"), "this", "that")
    clients = (
        protocol.PartitionRequest(1, 4, output, SubpartitionRange(2, 9), skip=5).pack(),
        protocol.PartitionRequest(1, 4, output, stream=protocol.Stream.INDEX).pack(),
        protocol.pack_add_credit(1, 3) + protocol.pack_cancel(1) + protocol.pack_close(),
        protocol.pack_find_request(2, output),
        protocol.DamageReport(3, output, 2, 6).pack(),
        protocol.pack_remove_request(4, "app-1", 3, ID),
    )
    servers = (
        protocol.pack_buffer_header(1, 0, 9, 4, True) + b"data" + protocol.pack_end_of_partition(1, 1),
        error.pack(),
        protocol.pack_find_response(2, found),
        protocol.pack_find_response(2, None),
        protocol.pack_damage_verdict(3, protocol.Verdict.MISSING) + protocol.pack_remove_response(4, True),
    )
    return [b"\0" + frame for frame in clients] + [b"\1" + frame for frame in servers]


# --- the protocol of JVM and engine ------------------------------------------------------------------------


def check_jvm(data: bytes) -> None:
    """A request's head and body. What is understood has the numbers that stand there."""
    head, body = data[: jvm.REQUEST.size].ljust(jvm.REQUEST.size, b"\0"), data[jvm.REQUEST.size :]
    try:
        operation, size = jvm.unpack_request(head)
        assert jvm.pack_request(operation, size) == head
        match operation:
            case jvm.Operation.WRITE:
                write = jvm.WriteRequest.unpack(body)
                fields = (write.shuffle, write.map_index, write.map_id, write.subpartitions, write.stage)
                assert struct.pack("<iiqii", *fields) == body
            case jvm.Operation.FRAME:
                if len(body) >= jvm.FRAME.size:
                    records = jvm.unpack_frame(body[: jvm.FRAME.size], len(body) - jvm.FRAME.size)
                    assert 0 < jvm.ID_AND_END_BYTES * records <= len(body)
            case jvm.Operation.READ:
                read = jvm.ReadRequest.unpack(body)
                assert (
                    read.shuffle,
                    len(read.services),
                    len(read.blocks),
                    read.only_looks,
                ) == struct.unpack_from("<iiii", body)
                assert all(
                    each.first < each.end and each.service < len(read.services) for each in read.blocks
                )
            case jvm.Operation.REMOVE:
                remove = jvm.RemoveRequest.unpack(body)
                assert (remove.shuffle, len(remove.services)) == struct.unpack_from("<ii", body)
            case jvm.Operation.SHARE:
                assert struct.pack("<q", jvm.unpack_share(body)) == body
            case jvm.Operation.SHARED_FRAME:
                frame = jvm.SharedFrame.unpack(body)
                assert (
                    struct.pack("<iiiii", frame.records, frame.size, frame.ids, frame.ends, frame.data)
                    == body
                )
    except SortShuffleError:
        return


def jvm_seeds() -> list[bytes]:
    service = struct.pack("<I", 6) + b"host:7"
    block = struct.pack("<qiiii", 204, 17, 2, 5, 0) + ID
    bodies = {
        jvm.Operation.WRITE: struct.pack("<iiqii", 3, 17, 204, 100, 5),
        jvm.Operation.FRAME: struct.pack("<iiii", 1, 3, 0, 3) + b"abc",
        jvm.Operation.FINISH: b"",
        jvm.Operation.READ: struct.pack("<iiii", 3, 1, 2, 0) + service + 2 * block,
        jvm.Operation.REMOVE: struct.pack("<ii", 3, 1) + service,
        jvm.Operation.SHARE: struct.pack("<q", 5 << 20),
        jvm.Operation.SHARED_FRAME: struct.pack("<iiiii", 1, 3, 0, 4, 8),
    }
    looks = struct.pack("<iiii", 3, 1, 2, 1) + service + 2 * block  # a READ that only asks what is there
    requests = [*bodies.items(), (jvm.Operation.READ, looks)]
    return [jvm.pack_request(operation, len(body)) + body for operation, body in requests]


# --- index files -------------------------------------------------------------------------------------------


def check_index(data: bytes) -> None:
    """An index with the right checksums. What is understood can be looked up."""
    try:
        index = verified_index(_with_checksums(data), "index")
    except SortShuffleError:
        return
    assert index.entries.nbytes <= len(data)
    last = index.header.subpartitions - 1
    for asked in {SubpartitionRange(0, 0), SubpartitionRange(last, last), SubpartitionRange(0, last)}:
        try:
            left = ExtentCursor(index, asked).left
            extents = list(extents_of_range(index, asked))
        except (SortShuffleError, Malformed):
            continue
        assert sum(extent.bytes for extent in extents) == left


def _with_checksums(data: bytes) -> bytes:
    fixed = bytearray(data)
    if len(fixed) >= HEADER_BYTES + FOOTER_BYTES:
        at = HEADER_BYTES - CHECKSUM_BYTES
        fixed[at:HEADER_BYTES] = checksum(bytes(fixed[:at])).to_bytes(8, "little")
        end = len(fixed) - 2 * CHECKSUM_BYTES  # behind the checksum there is the magic
        fixed[end : end + CHECKSUM_BYTES] = checksum(bytes(fixed[:end])).to_bytes(8, "little")
    return bytes(fixed)


def index_seeds() -> list[bytes]:
    return [
        _index(regions) for regions in ((), (RegionKind.UNICAST,), (RegionKind.BROADCAST, RegionKind.UNICAST))
    ]


def _index(kinds: tuple[RegionKind, ...]) -> bytes:
    subpartitions = 3
    entries = np.zeros((len(kinds), subpartitions), ENTRY)
    end = HEADER_BYTES
    for region, kind in enumerate(kinds):
        entries[region]["bytes"], entries[region]["records"], entries[region]["buffers"] = 64, 5, 1
        step = 0 if kind is RegionKind.BROADCAST else 64
        entries[region]["offset"] = [end + step * each for each in range(subpartitions)]
        end += step * subpartitions or 64
    owned = sum(1 if kind is RegionKind.BROADCAST else subpartitions for kind in kinds)
    head = _HEADER.pack(INDEX_MAGIC) + entries.tobytes()
    body, footer = pack_tail(
        head_and_entries=len(head),
        subpartitions=subpartitions,
        kinds=kinds,
        schema=b"schema",
        writer=WriterInfo("app-1", 3).pack(),
        data_bytes=end,
        records=5 * owned,
        buffers=owned,
    )
    return _with_checksums(head + body + footer + bytes(CHECKSUM_BYTES) + INDEX_MAGIC)


_HEADER = FileHeader(ID, 3, 0, Codec.NONE, RecordBytesPayload.kind)


# --- data files --------------------------------------------------------------------------------------------

PAYLOADS = [kind(codec) for kind in (RecordBytesPayload, FramesPayload) for codec in Codec]


def check_data(data: bytes) -> None:
    """One extent, with the right checksums, behind a sound header. The first byte chooses the payload."""
    payload = PAYLOADS[(data[0] if data else 0) % len(PAYLOADS)]
    stored, checksums = _buffers_with_checksums(data[1:])
    header = replace(_HEADER, codec=payload.codec, payload_kind=payload.kind)
    file = PartitionedFile(os.path.join(_directory(), "fuzzed"))
    with open(file.data_path, "wb") as opened:
        opened.write(header.pack(DATA_MAGIC) + stored)
    whole = checksum_of_checksums(checksums)
    extent = Extent(0, 0, HEADER_BYTES, len(stored), RAW_BYTES, 1, whole, len(checksums))
    fetch = Fetch(LocalInputChannel(file, ID, 0, "the fuzzer", (extent,)), (extent,))
    try:
        fetch.run(_reading(payload))
    except SortShuffleError:
        return


def _reading(payload: RecordBytesPayload | FramesPayload) -> RecordBytesPayload | FrameDecoding:
    if isinstance(payload, RecordBytesPayload):
        return payload
    return FrameDecoding(payload, partial(RecordSpill, _directory()))


def _buffers_with_checksums(data: bytes) -> tuple[bytes, list[int]]:
    """These bytes cut into buffers as their sizes say, each with its checksum. The last may be cut short."""
    fixed = bytearray(data)
    position, checksums = 0, []
    while position + BUFFER_HEADER_BYTES <= len(fixed):
        (size,) = struct.unpack_from("<I", fixed, position + 4)
        end = position + sealed_size(size)
        if end > len(fixed):
            break
        at = end - CHECKSUM_BYTES
        checksums.append(checksum(bytes(fixed[position:at])))
        fixed[at:end] = checksums[-1].to_bytes(8, "little")
        position = end
    return bytes(fixed), checksums


def data_seeds() -> list[bytes]:
    seconds = TaskMetrics().seconds
    text = b"some records, one behind the other " * 40
    framed = struct.pack("<I", len(text)) + text
    events = [Barrier(1, 2, b"options"), UserEvent("name", b"data")]
    packed = b"".join(each.header + bytes(each.payload) + each.tail for each in map(seal_event, events))
    seeds = []
    for number, payload in enumerate(PAYLOADS):
        data = text if isinstance(payload, RecordBytesPayload) else framed
        sealed = RecordBytesPayload(payload.codec).seal(data, 1, seconds)
        stored = sealed.header + bytes(sealed.payload) + sealed.tail
        seeds += [bytes([number]) + stored, bytes([number]) + stored + packed]
    return seeds


@cache
def _directory() -> str:
    kept.append(tempfile.TemporaryDirectory(prefix="sortshuffle-fuzz-"))
    return kept[0].name


kept: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


# --- events ------------------------------------------------------------------------------------------------


def check_event(data: bytes) -> None:
    """The first byte is its kind. What is understood is packed to the same bytes."""
    try:
        event = unpack_event(data[0] if data else 0, data[1:])
    except Malformed:
        return
    assert pack_event(event) == data[1:]


def event_seeds() -> list[bytes]:
    events = [Barrier(1, 2, b"options"), UserEvent("name", b"data")]
    plain = [bytes([kind]) for kind in (DataType.END_OF_DATA, DataType.END_OF_PARTITION, DataType.SUPERSTEP)]
    return plain + [bytes([event.data_type]) + pack_event(event) for event in events]


TARGETS = {
    "data": Target(check_data, data_seeds),
    "event": Target(check_event, event_seeds),
    "frames": Target(check_frames, frame_seeds),
    "index": Target(check_index, index_seeds),
    "jvm": Target(check_jvm, jvm_seeds),
}
