"""The protocol's bytes: exactly those of `docs/protocol.md`, and nothing else is believed."""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import Place, ProtocolError
from sortshuffle.service.protocol import (
    HEADER_BYTES,
    HELLO_BYTES,
    MAGIC,
    MOST_REQUEST_BYTES,
    MOST_TEXT,
    NO_CHANNEL,
    DamageReport,
    ErrorResponse,
    Fault,
    FoundOutput,
    FrameParser,
    Header,
    Hello,
    Kind,
    MapOutputAddress,
    PartitionRequest,
    Stream,
    Verdict,
    is_plain_name,
    pack_add_credit,
    pack_buffer_header,
    pack_cancel,
    pack_close,
    pack_damage_verdict,
    pack_end_of_partition,
    pack_find_request,
    pack_find_response,
    proof,
    unpack_find_response,
)
from sortshuffle.storage.ranges import RegionRange, SubpartitionRange

ID = bytes(range(16))
OUTPUT = MapOutputAddress("app-1", exchange=3, map_index=17, attempt=204, file_id=ID)
ADDRESS = ID + struct.pack("<QIIH", 204, 3, 17, 5) + b"app-1"
NONCE = bytes(range(32))


def header_by_hand(
    length: int,
    kind: int,
    data_type: int = 0,
    flags: int = 0,
    channel: int = 0,
    credit: int = 0,
    sequence: int = 0,
) -> bytes:
    return struct.pack("<IBBBBIIQ", length, kind, data_type, flags, 0, channel, credit, sequence)


def parsed(frame: bytes, most: int = 1 << 20) -> tuple[Header, bytes]:
    [found] = FrameParser(most).feed(frame)
    return found


# Byte for byte


def test_the_sizes_of_the_documentation() -> None:
    assert (HELLO_BYTES, HEADER_BYTES, len(MAGIC)) == (48, 24, 8)
    assert len(OUTPUT.pack()) == 34 + len("app-1")


def test_hello() -> None:
    packed = Hello(NONCE, 1, 262144, proof_required=True).pack()
    assert packed == b"\x89SSW\r\n\x1a\n" + struct.pack("<HHI", 1, 1, 262144) + NONCE
    assert Hello.unpack(packed) == Hello(NONCE, 1, 262144, True)
    assert Hello.unpack(Hello(NONCE).pack()) == Hello(NONCE, 1, 0, False)


@pytest.mark.parametrize(
    "data", [b"\x89SSX\r\n\x1a\n" + bytes(40), MAGIC + bytes(40)], ids=["magic", "version 0"]
)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Hello.unpack(data)


def test_proof_is_hmac_sha256_of_role_and_both_hellos() -> None:
    assert proof(b"Jefe", "client", b"a", b"b") != proof(b"Jefe", "server", b"a", b"b")
    assert proof(b"Jefe", "client", b"a", b"b") != proof(b"Jefe", "client", b"b", b"a")
    by_hand = hmac.new(b"Jefe", b"sortshuffle client" + b"a" + b"b", hashlib.sha256).digest()
    assert proof(b"Jefe", "client", b"a", b"b") == by_hand


def test_partition_request() -> None:
    request = PartitionRequest(
        7, 4, OUTPUT, SubpartitionRange(2, 9), RegionRange(1, 5), skip=1 << 40, stream=Stream.INDEX
    )
    body = ADDRESS + struct.pack("<IIII", 2, 9, 1, 5)
    assert request.pack() == header_by_hand(len(body), 1, 1, 0, 7, 4, 1 << 40) + body
    assert PartitionRequest.unpack(*parsed(request.pack())) == request


def test_damage_report() -> None:
    report = DamageReport(7, OUTPUT, subpartition=2, region=6)
    body = ADDRESS + struct.pack("<IIII", 2, 2, 6, 1)
    assert report.pack() == header_by_hand(len(body), 9, channel=7) + body
    assert DamageReport.unpack(*parsed(report.pack())) == report


@pytest.mark.parametrize(
    ("packed", "by_hand"),
    [
        (pack_add_credit(7, 3), header_by_hand(0, 2, channel=7, credit=3)),
        (pack_cancel(7), header_by_hand(0, 5, channel=7)),
        (pack_close(), header_by_hand(0, 6, channel=NO_CHANNEL)),
        (pack_find_request(7, OUTPUT), header_by_hand(len(ADDRESS), 7, channel=7) + ADDRESS),
        (pack_find_response(7, None), header_by_hand(2, 8, channel=7) + b"{}"),
        (pack_damage_verdict(7, Verdict.MISSING), header_by_hand(0, 10, 2, channel=7)),
        (pack_buffer_header(7, 1 << 33, 9, 300, True), header_by_hand(300, 3, 0, 1, 7, 9, 1 << 33)),
        (pack_buffer_header(7, 0, 1 << 40, 300, False), header_by_hand(300, 3, 0, 0, 7, 0xFFFFFFFF)),
        (pack_end_of_partition(7, 5), header_by_hand(0, 3, 2, channel=7, sequence=5)),
    ],
    ids=["credit", "cancel", "close", "find", "none", "verdict", "buffer", "backlog", "end"],
)
def test_frames(packed: bytes, by_hand: bytes) -> None:
    assert packed == by_hand


def test_find_response() -> None:
    found = FoundOutput(ID, 204, "/data/x-1", "host")
    header, body = parsed(pack_find_response(7, found))
    assert (header.kind, header.data_type) == (Kind.FIND_RESPONSE, 1)
    assert unpack_find_response(body) == found
    assert unpack_find_response(b"{}") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"id": 1}',
        b'{"id": "00", "attempt": 1, "base": "", "host": ""}',
        b'{"id": "%s", "attempt": Infinity, "base": "", "host": ""}' % (b"00" * 16),
        b"[" * 100_000,
    ],
    ids=["empty", "list", "cut", "not text", "number", "short id", "infinite", "deep"],
)
def test_what_is_no_find_response_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_find_response(body)


def test_error_response() -> None:
    error = ErrorResponse(7, Fault.DAMAGED, "bad", Place("file", 1, 2, 3, "writer"), "this", "that")
    assert ErrorResponse.unpack(*parsed(error.pack())) == error
    plain = ErrorResponse(NO_CHANNEL, Fault.TOO_MUCH, "too many")
    assert ErrorResponse.unpack(*parsed(plain.pack())) == plain


def test_texts_of_errors_are_cut() -> None:
    error = ErrorResponse(7, Fault.INTERNAL, "x" * 10_000, None, "y" * 10_000, "z" * 10_000)
    unpacked = ErrorResponse.unpack(*parsed(error.pack()))
    texts = (unpacked.what, unpacked.expected or "", unpacked.found or "")
    assert [len(text) for text in texts] == [MOST_TEXT] * 3


# What is not believed


@pytest.mark.parametrize(
    "application", ["", ".", "..", "a/b", "../x", "a\0b", "a\nb", "x" * 256], ids=range(8)
)
def test_an_application_is_one_step_of_a_path(application: str) -> None:
    assert not is_plain_name(application)
    with pytest.raises(ProtocolError):
        MapOutputAddress.unpack(replace(OUTPUT, application=application).pack())


def test_names_of_files_come_from_numbers() -> None:
    assert OUTPUT.file_in("/home").base == "/home/exchange-3-map-17-attempt-204"


@pytest.mark.parametrize(
    "frame",
    [
        header_by_hand(0, 1),
        header_by_hand(len(ADDRESS), 1) + ADDRESS,
        header_by_hand(len(ADDRESS) + 16, 1) + ADDRESS + struct.pack("<IIII", 5, 4, 0, 0),
        header_by_hand(len(ADDRESS) + 17, 1) + ADDRESS + bytes(17),
        header_by_hand(len(ADDRESS) + 16, 1, data_type=9) + ADDRESS + bytes(16),
        header_by_hand(34, 1) + ID + struct.pack("<QIIH", 204, 3, 17, 5),
        header_by_hand(36, 1) + ID + struct.pack("<QIIH", 204, 3, 17, 2) + b"\xff\xff",
    ],
    ids=["empty", "no range", "not a range", "too much", "stream", "cut", "not text"],
)
def test_requests_that_cannot_be_meant_are_refused(frame: bytes) -> None:
    header, body = parsed(frame)
    with pytest.raises(ProtocolError):
        PartitionRequest.unpack(header, body)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (header_by_hand(0, 0), "of kind 0"),
        (header_by_hand(0, 13), "of kind 13"),
        (header_by_hand(MOST_REQUEST_BYTES + 1, 1), "4097 bytes, where 4096 are allowed"),
    ],
    ids=["kind 0", "kind 13", "too long"],
)
def test_frames_that_cannot_be_are_refused_by_their_header(frame: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        list(FrameParser().feed(frame))


@given(st.binary(max_size=400))
def test_anything_is_parsed_or_refused(data: bytes) -> None:
    try:
        for header, body in FrameParser().feed(data):
            assert header.length == len(body)
            for unpack in (PartitionRequest.unpack, DamageReport.unpack, ErrorResponse.unpack):
                try:
                    unpack(header, body)
                except ProtocolError:
                    continue
    except ProtocolError:
        pass


@given(st.binary(max_size=200))
def test_any_body_is_an_address_or_refused(data: bytes) -> None:
    try:
        output, rest = MapOutputAddress.unpack(data)
    except ProtocolError:
        return
    assert output.pack() + rest == data


requests = st.builds(
    PartitionRequest,
    st.integers(0, NO_CHANNEL),
    st.integers(0, (1 << 32) - 1),
    st.builds(
        MapOutputAddress,
        st.text(min_size=1, max_size=40).filter(is_plain_name),
        st.integers(0, (1 << 32) - 1),
        st.integers(0, (1 << 32) - 1),
        st.integers(0, (1 << 64) - 1),
        st.binary(min_size=16, max_size=16),
    ),
    st.tuples(st.integers(0, 1 << 31), st.integers(0, 1 << 31)).map(
        lambda pair: SubpartitionRange(*sorted(pair))
    ),
    st.builds(RegionRange, st.integers(0, 1 << 31), st.integers(0, 1 << 31)),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from(Stream),
)


@given(st.lists(requests, max_size=5), st.lists(st.integers(0, 2000), max_size=10))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[PartitionRequest], cuts: list[int]
) -> None:
    data = b"".join(request.pack() for request in sent)
    parser = FrameParser()
    found: list[PartitionRequest] = []
    ends = [*sorted(min(cut, len(data)) for cut in cuts), len(data)]
    start = 0
    for end in ends:
        found += [PartitionRequest.unpack(header, body) for header, body in parser.feed(data[start:end])]
        start = end
    assert found == sent


@pytest.mark.parametrize(
    ("regions", "of", "numbers"),
    [
        (RegionRange(), 3, [0, 1, 2]),
        (RegionRange(1, 1), 3, [1]),
        (RegionRange(2, 5), 3, [2]),
        (RegionRange(7), 3, []),
        (RegionRange(0, 2), 0, []),
    ],
    ids=["all", "one", "to the end", "behind", "none"],
)
def test_region_ranges(regions: RegionRange, of: int, numbers: list[int]) -> None:
    assert list(regions.of(of)) == numbers
