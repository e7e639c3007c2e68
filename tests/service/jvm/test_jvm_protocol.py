"""The protocol between a JVM and the engine of its host, against bytes written out by hand from
docs/manager.md; and what does not fit it, which is refused in words and never otherwise."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import ProtocolError
from sortshuffle.service.jvm import protocol
from sortshuffle.service.jvm.greeting import check_greeting, pack_greeting
from sortshuffle.service.jvm.protocol import (
    Block,
    Operation,
    ReadRequest,
    ReadTotals,
    RemoveRequest,
    Status,
    WriteRequest,
    pack_chunk,
    pack_finished,
    pack_lost,
    pack_reply,
    pack_stream_error,
)

GREETING = bytes.fromhex("89 53 53 4a 0d 0a 1a 0a  04 00 00 00  00 00 00 00")
WRITE = bytes.fromhex(
    "03 00 00 00"  # shuffle
    "11 00 00 00"  # map index
    "cc 01 00 00 00 00 00 40"  # map id
    "b8 0b 00 00"  # subpartitions
    "05 00 00 00"  # stage
)
FILE_ID = bytes.fromhex("00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 00 00")  # its zeros count
READ = (
    bytes.fromhex(
        "03 00 00 00"  # shuffle
        "02 00 00 00"  # services
        "02 00 00 00"  # blocks
        "00 00 00 00"
        "08 00 00 00 68 6f 73 74 3a 37 34 38"  # host:748
        "06 00 00 00 68 c3 b6 73 74 3a"  # höst:
    )
    + bytes.fromhex("cc 00 00 00 01 00 00 00  11 00 00 00  02 00 00 00  05 00 00 00  01 00 00 00")
    + FILE_ID
    + bytes.fromhex("cd 00 00 00 00 00 00 00  12 00 00 00  00 00 00 00  01 00 00 00  00 00 00 00")
    + bytes(range(16))
)
REMOVE = bytes.fromhex("03 00 00 00  01 00 00 00  03 00 00 00 61 3a 31")


def test_the_greeting_is_that_of_the_document() -> None:
    assert pack_greeting() == GREETING
    check_greeting(bytearray(GREETING))


@pytest.mark.parametrize(
    ("at", "message"), [(0, "is no shuffle manager: it begins with"), (8, "speaks version 5 .* engine 4")]
)
def test_another_peer_and_another_version_are_refused_in_words(at: int, message: str) -> None:
    data = bytearray(GREETING)
    data[at] ^= 1
    with pytest.raises(ProtocolError, match=message):
        check_greeting(data)


def test_requests_and_replies_begin_with_what_they_are_and_their_size() -> None:
    head = bytes.fromhex("04 00 00 00  10 20 00 00")
    assert protocol.unpack_request(head) == (Operation.READ, 0x2010)
    assert protocol.pack_request(Operation.READ, 0x2010) == head
    assert protocol.FRAME.unpack(bytes.fromhex("02 00 00 00  ff 00 00 00")) == (2, 255)
    assert pack_reply(Status.NO_SPACE, b"full") == bytes.fromhex("02 00 00 00  04 00 00 00") + b"full"
    assert pack_reply(Status.DONE) == bytes(8)


def test_numbers_of_operations_and_states_are_those_of_the_document() -> None:
    assert {each.name: int(each) for each in Operation} == {
        "WRITE": 1,
        "FRAME": 2,
        "FINISH": 3,
        "READ": 4,
        "REMOVE": 5,
        "SHARE": 6,
        "SHARED_FRAME": 7,
    }
    assert {each.name: int(each) for each in Status} == {
        "DONE": 0,
        "BAD_REQUEST": 1,
        "NO_SPACE": 2,
        "FAILED": 3,
        "LOST": 4,
    }


def test_a_map_output_begins_as_documented() -> None:
    request = WriteRequest.unpack(WRITE)
    assert request == WriteRequest(3, 17, 0x40000000000001CC, 3000, 5)


def test_a_finished_map_output_is_told_as_documented() -> None:
    reply = pack_finished(FILE_ID, 7, np.array([64, 0, 2**40], np.int64))
    assert reply == (
        bytes.fromhex("00 00 00 00  30 00 00 00")
        + FILE_ID
        + bytes.fromhex("07 00 00 00  00 00 00 00")
        + bytes.fromhex("40 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  00 00 00 00 00 01 00 00")
    )


def test_a_request_to_read_is_understood_as_documented() -> None:
    assert ReadRequest.unpack(bytearray(READ)) == ReadRequest(
        3,
        ("host:748", "höst:"),
        (
            Block(map_id=0x1000000CC, map_index=17, first=2, end=5, service=1, file_id=FILE_ID),
            Block(map_id=205, map_index=18, first=0, end=1, service=0, file_id=bytes(range(16))),
        ),
    )


def test_a_request_for_no_block_is_one() -> None:
    assert ReadRequest.unpack(bytes.fromhex("09") + bytes(15)) == ReadRequest(9, (), ())


def test_a_request_that_only_looks_says_so() -> None:
    head = bytes.fromhex("09 00 00 00") + bytes(8)
    assert ReadRequest.unpack(head + bytes.fromhex("01 00 00 00")) == ReadRequest(9, (), (), only_looks=True)
    for wrong in ("02 00 00 00", "ff ff ff ff"):
        with pytest.raises(ProtocolError, match="where 0 or 1 is expected"):
            ReadRequest.unpack(head + bytes.fromhex(wrong))


def test_chunks_and_the_end_of_an_answer_are_those_of_the_document() -> None:
    totals = struct.pack("<qqqq", 1, 2, 3, 2**33)
    assert pack_chunk(0x01020304, ReadTotals(1, 2, 3, 2**33)) == bytes.fromhex("04 03 02 01") + totals
    assert pack_chunk(0, ReadTotals()) == bytes(36)


def test_lost_blocks_and_silent_services_are_named_as_documented() -> None:
    assert pack_lost("gone: ö", [3, 0x10000], [2]) == bytes.fromhex(
        "ff ff ff ff  04 00 00 00  1c 00 00 00  02 00 00 00  03 00 00 00  00 00 01 00"
        "01 00 00 00  02 00 00 00  67 6f 6e 65 3a 20 c3 b6"
    )


def test_other_errors_of_an_answer_are_a_text_alone() -> None:
    told = pack_stream_error(Status.FAILED, "broken")
    assert told == bytes.fromhex("ff ff ff ff  03 00 00 00  06 00 00 00") + b"broken"


def test_a_request_to_remove_is_understood_as_documented() -> None:
    assert RemoveRequest.unpack(REMOVE) == RemoveRequest(3, ("a:1",))
    assert RemoveRequest.unpack(bytes.fromhex("04 00 00 00  00 00 00 00")) == RemoveRequest(4, ())


# What does not fit

BODY_BYTES = {
    "WRITE": (24, 24),
    "FRAME": (8, 2**31 + 2**10),
    "FINISH": (0, 0),
    "READ": (16, 2**28),
    "REMOVE": (8, 2**24),
    "SHARE": (8, 8),
    "SHARED_FRAME": (20, 20),
}


def accepts(head: bytes) -> bool:
    try:
        return protocol.pack_request(*protocol.unpack_request(head)) == head
    except ProtocolError:
        return False


@pytest.mark.parametrize("operation", list(Operation), ids=lambda operation: operation.name)
def test_a_request_has_the_size_that_the_document_says_and_zeros(operation: Operation) -> None:
    least, most = BODY_BYTES[operation.name]
    assert all(accepts(struct.pack("<BxxxI", operation, size)) for size in (least, most))
    refused = {most + 1, 2**32 - 1, *([least - 1] if least else [])}
    assert not any(accepts(struct.pack("<BxxxI", operation, size)) for size in refused)
    for at in (1, 2, 3):
        head = bytearray(struct.pack("<BxxxI", operation, least))
        head[at] = 1
        assert not accepts(bytes(head))


def test_other_operations_are_not_known() -> None:
    known = {int(each) for each in Operation}
    assert not any(accepts(struct.pack("<BxxxI", each, 8)) for each in range(256) if each not in known)


def test_a_jvm_greets_with_the_length_of_its_key_and_an_engine_with_a_port() -> None:
    assert check_greeting(pack_greeting(65535), is_of_engine=True) == 65535
    assert check_greeting(pack_greeting(32)) == 32
    with pytest.raises(ProtocolError, match="with 33 in the place of the length of a key"):
        check_greeting(pack_greeting(33))
    with pytest.raises(ProtocolError, match="with 65536 in the place of a port"):
        check_greeting(pack_greeting(65536), is_of_engine=True)


UNPACK = {"write": WriteRequest.unpack, "read": ReadRequest.unpack, "remove": RemoveRequest.unpack}
SOUND = {"write": WRITE, "read": READ, "remove": REMOVE}
EACH = pytest.mark.parametrize("what", SOUND)


@EACH
def test_a_request_that_is_cut_short_or_goes_on_is_refused(what: str) -> None:
    for size in range(len(SOUND[what])):
        with pytest.raises(ProtocolError):
            UNPACK[what](SOUND[what][:size])
    with pytest.raises(ProtocolError):
        UNPACK[what](SOUND[what] + b"\0")


def changed(data: bytes, at: int, field: str, value: int) -> bytes:
    found = bytearray(data)
    struct.pack_into(field, found, at, value)
    return bytes(found)


FIRST_BLOCK = len(READ) - 80
WRONG = {
    "write: a negative shuffle": ("write", 0, -1),
    "write: a negative map index": ("write", 4, -1),
    "write: a negative map id": ("write", 12, -1),
    "write: no subpartition": ("write", 16, 0),
    "write: a negative number of subpartitions": ("write", 16, -5),
    "write: more subpartitions than Spark has": ("write", 16, 2**31 - 1),
    "write: a negative stage": ("write", 20, -1),
    "read: a negative shuffle": ("read", 0, -1),
    "read: a negative number of services": ("read", 4, -2),
    "read: neither zero nor one": ("read", 12, 2),
    "read: fewer services": ("read", 4, 1),
    "read: more services": ("read", 4, 3),
    "read: a negative number of blocks": ("read", 8, -2),
    "read: fewer blocks": ("read", 8, 1),
    "read: more blocks": ("read", 8, 3),
    "read: as many blocks as can be": ("read", 8, 2**31 - 1),
    "read: a longer text": ("read", 16, 2**31 - 1),
    "read: a shorter text": ("read", 16, 7),
    "read: a text that is no text": ("read", 20, -1),
    "read: a negative map index": ("read", FIRST_BLOCK + 8, -1),
    "read: a negative map id": ("read", FIRST_BLOCK + 4, -1),
    "read: a negative subpartition": ("read", FIRST_BLOCK + 12, -1),
    "read: an empty range": ("read", FIRST_BLOCK + 16, 2),
    "read: a range that goes back": ("read", FIRST_BLOCK + 16, 1),
    "read: a negative service": ("read", FIRST_BLOCK + 20, -1),
    "read: a service that is not named": ("read", FIRST_BLOCK + 20, 2),
    "remove: a negative shuffle": ("remove", 0, -2),  # -1 is everything
    "remove: a negative number of services": ("remove", 4, -1),
    "remove: fewer services": ("remove", 4, 0),
    "remove: more services": ("remove", 4, 2),
    "remove: a longer text": ("remove", 8, 4),
}


@pytest.mark.parametrize("case", WRONG)
def test_values_that_cannot_be_meant_are_refused(case: str) -> None:
    what, at, value = WRONG[case]
    with pytest.raises(ProtocolError):
        UNPACK[what](changed(SOUND[what], at, "<i", value))


@pytest.mark.parametrize(
    ("what", "numbers"), [("read", (3, -1, 0, 0)), ("read", (3, 0, -1, 0)), ("remove", (3, -1))]
)
def test_fewer_than_none_cannot_be_meant_where_nothing_follows_either(
    what: str, numbers: tuple[int, ...]
) -> None:
    with pytest.raises(ProtocolError):
        UNPACK[what](struct.pack(f"<{len(numbers)}i", *numbers))


@EACH
@given(data=st.data())
def test_whatever_comes_is_understood_or_refused(what: str, data: st.DataObject) -> None:
    """Sound requests with some of their numbers changed: nothing but `ProtocolError`, and what is accepted is
    what its bytes say."""
    body = SOUND[what]
    interesting = st.one_of(
        st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 2**31 - 1]), st.integers(-(2**31), 2**31 - 1)
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) // 4 - 1)) * 4
        body = changed(body, at, "<i", data.draw(interesting))
    try:
        found = UNPACK[what](body)
    except ProtocolError:
        return
    assert found.shuffle == struct.unpack_from("<i", body)[0]
    if isinstance(found, WriteRequest):
        fields = (found.shuffle, found.map_index, found.map_id, found.subpartitions, found.stage)
        assert struct.pack("<iiqii", *fields) == body
        assert found.subpartitions > 0
        return
    texts = b"".join(struct.pack("<I", len(each.encode())) + each.encode() for each in found.services)
    if isinstance(found, ReadRequest):
        blocks = b"".join(
            struct.pack("<qiiii", each.map_id, each.map_index, each.first, each.end, each.service)
            + each.file_id
            for each in found.blocks
        )
        head = struct.pack("<iii", found.shuffle, len(found.services), len(found.blocks)) + body[12:16]
        assert head + texts + blocks == body
    else:
        assert struct.pack("<ii", found.shuffle, len(found.services)) + texts == body
