"""What a client asks on one connection and what may come for it: without a socket or a thread."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from sortshuffle.errors import Place, ProtocolError, ServiceUnavailableError
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.client_channel import ClientChannel, RequestSubject
from sortshuffle.service.client.extent_streams import WholeStream
from sortshuffle.service.client.questions import Question, find_question
from sortshuffle.service.client.request_table import SCRATCH_BYTES, BreachError, RequestTable
from sortshuffle.service.wire.protocol import (
    HEADER_BYTES,
    NO_CHANNEL,
    Data,
    ErrorResponse,
    Fault,
    Header,
    Kind,
    MapOutputAddress,
    PartitionRequest,
    Sender,
    Verdict,
    pack_buffer_header,
    pack_cancel,
    pack_damage_verdict,
    pack_end_of_partition,
    pack_find_response,
)
from sortshuffle.storage.files.extents import Extent

SEGMENT = 64
ASKED = RequestSubject("what a test asks for", Place("/far/file.data"), "far")
OUTPUT = MapOutputAddress("app", 1, 2, 3, bytes(16))
SIZE = 300


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Side:
    """A client's side of one connection. ``posted``: frames that it sent."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lock = threading.Lock()
        self.lock.acquire()  # under which everything here is called
        self.posted: list[bytes] = []
        self.table = RequestTable("the service", SEGMENT, self.posted.append, self.clock)

    def stream(self) -> WholeStream:
        """One extent, which is asked for."""
        stream = WholeStream(ASKED, OUTPUT, [Extent(0, 5, 0, SIZE, SIZE, 1, 0, 1)])
        self.open(stream)
        return stream

    def open(self, channel: ClientChannel) -> None:
        channel.attach(self.lock, Backoff(60.0, self.clock))
        assert self.table.request(channel)

    def hear(self, frame: bytes) -> bool:
        """The service sent that. Whether the client got on by it."""
        header = Header.unpack(frame[:HEADER_BYTES], Sender.SERVER)
        body = frame[HEADER_BYTES:]
        if header.kind is not Kind.BUFFER_RESPONSE:
            return self.table.answer(header, bytearray(body))
        if header.data_type == Data.END_OF_PARTITION:
            return self.table.end(header)
        channel, views = self.table.accept(header)
        assert sum(map(len, views)) == header.length
        return channel is not None and channel.count_filled(header.length)


def data(number: int, sequence: int, size: int) -> bytes:
    return pack_buffer_header(number, sequence, 0, size, False) + bytes(size)


def test_what_is_asked_for_comes_and_is_over() -> None:
    side = Side()
    first, second = side.stream(), side.stream()
    assert [Header.unpack(frame[:HEADER_BYTES], Sender.CLIENT).channel for frame in side.posted] == [0, 1]
    assert not side.table.request(first)  # once
    assert side.table.is_expecting
    assert not side.hear(data(1, 0, 200))
    assert side.hear(data(1, 1, 100))  # an extent ended
    assert side.hear(pack_end_of_partition(1, 2))
    assert (second.is_complete, second.is_requested, first.is_requested) == (True, False, True)
    side.table.leave(first)
    assert not side.table.is_expecting


def test_a_refused_channel_is_asked_for_again_when_its_time_has_come() -> None:
    side = Side()
    stream = side.stream()
    assert not side.hear(ErrorResponse(0, Fault.TOO_MUCH, "busy").pack())
    assert (stream.failure, stream.retry_in(side.clock.now)) == (None, 0.1)
    assert not side.table.request(stream)
    side.clock.now = 0.1
    assert side.table.request(stream)
    request = side.posted[-1]
    header = Header.unpack(request[:HEADER_BYTES], Sender.CLIENT)
    assert PartitionRequest.unpack(header, request[HEADER_BYTES:]).channel == 1  # another number


def test_what_is_under_way_for_a_channel_that_was_left_is_thrown_away() -> None:
    side = Side()
    stream = side.stream()
    credit = stream.credit
    side.table.leave(stream)
    side.table.leave(stream)
    assert side.posted[1:] == [pack_cancel(0)]
    assert not side.hear(data(0, 0, SEGMENT * credit))
    with pytest.raises(ProtocolError, match="more data than there was credit for"):
        side.hear(data(0, 1, 1))
    assert not side.hear(pack_end_of_partition(0, 1))
    with pytest.raises(ProtocolError, match="for channel 0, which is none"):
        side.hear(pack_end_of_partition(0, 2))


def test_large_data_that_nobody_wants_are_read_into_little_memory() -> None:
    side = Side()
    table = RequestTable("the service", 1 << 20, side.posted.append, side.clock)
    stream = WholeStream(ASKED, OUTPUT, [Extent(0, 5, 0, 1 << 20, 1 << 20, 1, 0, 1)])
    stream.attach(side.lock, Backoff(60.0, side.clock))
    table.request(stream)
    table.leave(stream)
    size = 3 * SCRATCH_BYTES + 5
    frame = pack_buffer_header(0, 0, 0, size, False)
    channel, views = table.accept(Header.unpack(frame, Sender.SERVER))
    assert (channel, list(map(len, views))) == (None, [SCRATCH_BYTES] * 3 + [5])
    assert len({id(view.obj) for view in views}) == 1


@pytest.mark.parametrize("answer", [pack_end_of_partition(0, 0), ErrorResponse(0, Fault.MISSING, "").pack()])
def test_the_last_word_on_a_channel_that_was_left(answer: bytes) -> None:
    side = Side()
    stream = side.stream()
    side.table.leave(stream)
    assert not side.hear(answer)
    assert (stream.failure, stream.is_complete) == (None, False)
    with pytest.raises(ProtocolError):
        side.hear(answer)


def test_a_question_is_answered_once() -> None:
    side = Side()
    question: Question = find_question(ASKED, OUTPUT)
    side.open(question)
    assert side.hear(pack_find_response(0, None))
    assert (question.is_complete, question.result, question.is_requested) == (True, None, False)
    side.table.leave(question)
    with pytest.raises(ProtocolError, match="FIND_RESPONSE for channel 0, which is none"):
        side.hear(pack_find_response(0, None))


def test_a_late_answer_ends_a_cancelled_question() -> None:
    side = Side()
    question: Question = find_question(ASKED, OUTPUT)
    side.open(question)
    side.table.leave(question)
    assert side.posted[1:] == [pack_cancel(0)]
    assert not side.hear(pack_find_response(0, None))
    assert not question.is_complete
    with pytest.raises(ProtocolError, match="FIND_RESPONSE for channel 0, which is none"):
        side.hear(pack_find_response(0, None))


def test_who_keeps_a_table_that_was_cut_keeps_no_channel() -> None:
    """An error keeps it: by its traceback, in whose frames the table is."""
    side = Side()
    requested, left = side.stream(), side.stream()
    side.table.leave(left)
    channels = [weakref.ref(requested), weakref.ref(left)]
    side.table.cut()
    gc.disable()
    try:
        del requested, left
        assert [channel() for channel in channels] == [None, None]
    finally:
        gc.enable()


def test_an_error_without_a_channel_ends_the_connection() -> None:
    with pytest.raises(ServiceUnavailableError, match="the service ended the connection: too many"):
        Side().hear(ErrorResponse(NO_CHANNEL, Fault.TOO_MUCH, "too many").pack())


# Breaches

OF_A_CHANNEL = {
    "another sequence number": data(0, 1, 64),
    "an end with another sequence number": pack_end_of_partition(0, 7),
    "more than there is credit for": data(0, 0, SEGMENT * 7),
    "beyond the end of the extent": data(0, 0, SIZE + 1),
    "an end too early": pack_end_of_partition(0, 0),
    "an answer": pack_damage_verdict(0, Verdict.SOUND),
}
OF_THE_CONNECTION = {
    "no bytes": data(0, 0, 0),
    "data of no channel": data(1, 0, 64),
    "an end of no channel": pack_end_of_partition(1, 0),
    "an error of no channel": ErrorResponse(1, Fault.MISSING, "gone").pack(),
    "an answer of no channel": pack_damage_verdict(1, Verdict.SOUND),
    "an unknown kind": bytes(4) + b"\x63" + bytes(19),
    "a client's frame": pack_cancel(0),
    "oversized data": (9 << 20).to_bytes(4, "little") + b"\x03" + bytes(19),
    "a long error": (1 << 20).to_bytes(4, "little") + b"\x04" + bytes(19),
    "garbage": bytes(range(200, 256)) * 3,
}


@pytest.mark.parametrize("frame", OF_A_CHANNEL.values(), ids=OF_A_CHANNEL.keys())
def test_what_is_wrong_with_a_channel_fails_it_at_the_third_time(frame: bytes) -> None:
    side = Side()
    stream, other = side.stream(), side.stream()
    for _ in range(3):
        assert stream.failure is None
        with pytest.raises(BreachError, match="broke the protocol while it was asked for what a test"):
            side.hear(frame)
        for each in (stream, other):
            each.forget_request()
        side.table = RequestTable("the service", SEGMENT, side.posted.append, side.clock)
        for each in (stream, other):
            side.table.request(each)
    assert isinstance(stream.failure, ProtocolError)
    assert (other.failure, other.is_requested) == (None, True)


@pytest.mark.parametrize("frame", OF_THE_CONNECTION.values(), ids=OF_THE_CONNECTION.keys())
def test_what_is_wrong_otherwise_is_no_channels_fault(frame: bytes) -> None:
    side = Side()
    stream = side.stream()
    with pytest.raises(ProtocolError) as caught:
        side.hear(frame)
    assert not isinstance(caught.value, BreachError)
    assert (stream.failure, stream.protocol_errors) == (None, 0)
