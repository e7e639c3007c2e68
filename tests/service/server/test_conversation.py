"""What follows from what a client says, frame by frame: without a socket, a loop, a thread or a disk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine import ID
from hypothesis import given
from hypothesis import strategies as st
from views import Part, Source

from sortshuffle.errors import CorruptDataError, MissingDataError, Place, ProtocolError, UsageError
from sortshuffle.service.server.channels import TURN_BYTES
from sortshuffle.service.server.conversation import Conversation
from sortshuffle.service.server.counts import Counts
from sortshuffle.service.server.disk_jobs import FindOutput, OpenView, RemoveShuffle, ReportLoss
from sortshuffle.service.server.gathered_send import GatheredSend
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.server_channel import ChannelState, ServerChannel
from sortshuffle.service.wire.handshake import ServerGreeting
from sortshuffle.service.wire.protocol import (
    HEADER_BYTES,
    NO_CHANNEL,
    DamageReport,
    Data,
    ErrorResponse,
    Fault,
    Header,
    Hello,
    Kind,
    MapOutputAddress,
    PartitionRequest,
    Sender,
    Verdict,
    pack_add_credit,
    pack_cancel,
    pack_close,
    pack_damage_verdict,
    pack_find_request,
    pack_find_response,
    pack_remove_request,
)

OUTPUT = MapOutputAddress("app-1", exchange=3, map_index=17, attempt=204, file_id=ID)
WANTED = replace(OUTPUT, attempt=0)
SEGMENT = 100
LIMITS = Limits()
HELLO = Hello(bytes(32)).pack()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Side:
    """The server's side of one conversation, which is greeted, and a client that sends to it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.clock = Clock()
        self.counts = Counts()
        self.core = Conversation(ServerGreeting(None, SEGMENT), limits, self.counts, self.clock)
        self.core.receive(HELLO)
        assert self.core.pending.take_answers()

    def request(self, *numbers: int, credit: int = 5) -> None:
        for number in numbers:
            self.core.receive(PartitionRequest(number, credit, OUTPUT).pack())

    def channel(self) -> ServerChannel:
        """The next disk job's: a view is to be opened."""
        disk_job = self.core.pending.disk_jobs.popleft()
        assert isinstance(disk_job, OpenView)
        return disk_job.channel

    def opened(self, *views: Source) -> list[ServerChannel]:
        """These views came for the channels that wait for one, in their order."""
        channels = []
        for view in views:
            channels.append(self.channel())
            self.core.pending.disk_job_done()
            self.core.channels.opened(channels[-1], view)
        return channels

    def turn(self) -> list[tuple[Header, bytes]]:
        """The frames of the next turn."""
        sending = GatheredSend()
        self.core.fill(sending)
        data = b"".join(sending._pieces)
        assert len(data) == sending.size
        sending.abandon()
        return frames(data)

    def error(self) -> ErrorResponse:
        """The one answer there is."""
        [(header, body)] = frames(self.core.pending.take_answers())
        return ErrorResponse.unpack(header, body)


def frames(data: bytes) -> list[tuple[Header, bytes]]:
    found = []
    while data:
        header = Header.unpack(data[:HEADER_BYTES], Sender.SERVER)
        end = HEADER_BYTES + header.length
        found.append((header, data[HEADER_BYTES:end]))
        data = data[end:]
    return found


def part(data: bytes, credits: int = 1, end: bool = False) -> Part:
    return Part([[data]] if data else [], credits, end_of_partition=end)


# The greeting


def test_who_has_greeted_is_no_stranger_and_what_follows_is_heard() -> None:
    core = Conversation(ServerGreeting(None, SEGMENT), Limits(), Counts())
    whole = HELLO + pack_find_request(3, WANTED)
    core.receive(whole[:10])
    assert (core.is_stranger, core.has_turn, core.pending.open_disk_jobs) == (True, False, 0)
    core.receive(whole[10:])
    assert (core.is_stranger, core.has_turn) == (False, True)
    assert list(core.pending.disk_jobs) == [FindOutput(3, WANTED)]
    sent = core.pending.take_answers()
    assert Hello.unpack(sent, Sender.SERVER).segment_bytes == SEGMENT


# Requests, credit, cancels


def test_a_request_is_answered_with_data_for_its_credit_and_the_end() -> None:
    side = Side()
    side.request(7, credit=2)
    assert not side.core.has_turn
    view = Source([part(b"ab"), part(b"c", end=True)])
    [channel] = side.opened(view)
    assert (channel.number, view.granted, side.core.is_idle) == (7, [2], False)
    sent = side.turn()
    assert [(header.channel, header.sequence, body) for header, body in sent] == [
        (7, 0, b"ab"),
        (7, 1, b"c"),
        (7, 2, b""),
    ]
    assert [header.data_type for header, _ in sent] == [Data.BYTES, Data.BYTES, Data.END_OF_PARTITION]
    assert (channel.state, view.released, side.core.has_turn) == (ChannelState.ENDED, 1, False)
    assert (len(side.core.channels), side.core.is_idle) == (0, True)
    assert (side.counts.requests, side.counts.buffers_sent, side.counts.errors) == (1, 3, 0)


def test_nothing_is_sent_without_credit() -> None:
    side = Side()
    side.request(1, credit=1)
    side.opened(Source([part(b"a"), part(b"b")]))
    assert [body for _, body in side.turn()] == [b"a"]
    assert (side.core.has_turn, side.turn()) == (False, [])
    side.core.receive(pack_add_credit(1, 3))
    assert [body for _, body in side.turn()] == [b"b"]


@pytest.mark.parametrize("credit", [4096, 4097])
def test_credit_is_bounded(credit: int) -> None:
    side = Side()
    side.request(1, credit=credit)
    if credit == 4096:
        assert side.channel().credit == 4096
    else:
        assert (side.error().fault, len(side.core.channels), side.core.is_idle) == (Fault.TOO_MUCH, 0, True)


def test_more_credit_than_allowed_ends_the_channel_only() -> None:
    side, view = Side(), Source([part(b"a")])
    side.request(1, 2)
    side.opened(view, Source([part(b"b")]))
    side.core.receive(pack_add_credit(1, 5000))
    assert (view.released, len(side.core.channels)) == (1, 1)
    (error, _), (data, body) = side.turn()
    assert (error.kind, error.channel) == (Kind.ERROR_RESPONSE, 1)  # answers go first
    assert (data.channel, body) == (2, b"b")


def test_credit_and_cancels_for_a_channel_that_is_over_are_ignored() -> None:
    side = Side()
    side.request(1)
    side.core.receive(pack_cancel(1) + pack_add_credit(1, 5) + pack_cancel(1))
    assert (len(side.core.channels), side.core.has_turn, side.counts.errors) == (0, False, 0)
    side.request(1)  # the number may be used again
    assert len(side.core.channels) == 1


def test_a_view_that_comes_for_a_channel_that_is_over_is_released() -> None:
    side, view = Side(), Source([part(b"a")])
    side.request(1)
    side.core.receive(pack_cancel(1))
    side.opened(view)
    assert (view.released, side.core.has_turn) == (1, False)


def test_too_many_channels() -> None:
    side = Side(Limits(channels=3))
    side.request(0, 1, 2, 3)
    error = side.error()
    assert (error.channel, error.fault) == (3, Fault.TOO_MUCH)
    side.core.receive(pack_cancel(0))
    side.request(4)
    assert not side.core.pending.answers
    assert len(side.core.channels) == 3


def test_requests_that_are_cancelled_before_they_are_answered_are_bounded() -> None:
    """Their channels are gone, and the work for them is not done yet."""
    side = Side(Limits(channels=3))
    for number in range(6):
        side.request(number)
        side.core.receive(pack_cancel(number))
    side.request(6)
    assert side.error().fault is Fault.TOO_MUCH
    side.core.pending.disk_job_done()
    side.request(7)
    assert not side.core.pending.answers


# Turns


def test_channels_take_turns() -> None:
    side = Side()
    side.request(*range(5), credit=100)
    big = bytes(TURN_BYTES // 4)
    side.opened(*[Source([part(big) for _ in range(8)]) for _ in range(5)])
    order = [header.channel for _ in range(10) for header, _ in side.turn()]
    assert order == [0, 1, 2, 3, 4] * 8


def test_a_turn_is_bounded_and_who_has_more_goes_to_the_tail() -> None:
    side = Side()
    side.request(0, 1)
    side.opened(*[Source([part(bytes(TURN_BYTES)) for _ in range(2)]) for _ in range(2)])
    assert [header.channel for _ in range(4) for header, _ in side.turn()] == [0, 1, 0, 1]


def test_a_channel_stands_in_the_queue_once() -> None:
    side = Side()
    side.request(0, 1)
    channels = side.opened(*[Source([part(b"x")]) for _ in range(2)])
    for _ in range(60):
        side.core.receive(pack_add_credit(0, 1))
        side.core.channels.available(channels[0])
    assert list(side.core.channels.due) == channels


def test_cancelled_channels_leave_the_queue() -> None:
    side = Side()
    side.request(*range(20))
    channels = side.opened(*[Source([part(b"x")]) for _ in range(20)])
    for number in range(1, 20):
        side.core.receive(pack_cancel(number))
    assert list(side.core.channels.due) == channels[:1]


@given(st.lists(st.sampled_from(["park", "turn", "open", "wait"]), max_size=40), st.binary(max_size=2000))
def test_parking_at_any_moment_loses_nothing(moments: list[str], data: bytes) -> None:
    side, sent = Side(), bytearray()
    side.request(1, credit=1000)

    def act(what: str) -> None:
        if what == "park":
            side.core.channels.park_holders()
        elif what == "turn":
            sent.extend(b"".join(body for _, body in side.turn()))
        elif what == "open" and side.core.pending.disk_jobs:
            channel = side.channel()
            rest = data[channel.request_from_here.skip :]
            pieces = [rest[at : at + SEGMENT] for at in range(0, len(rest), SEGMENT)]
            parts = [part(piece) for piece in pieces[:-1]] + [part((pieces or [b""])[-1], end=True)]
            side.core.channels.opened(channel, Source(parts))

    for moment in moments:
        act(moment)
    while len(side.core.channels):
        act("open")
        act("turn")
    assert bytes(sent) == data


def test_who_has_no_credit_for_long_is_parked_and_goes_on_with_it() -> None:
    side = Side(Limits(stall=2.0))
    view = Source([part(b"a"), part(b"b")])
    side.request(1, credit=1)
    [channel] = side.opened(view)
    side.turn()
    side.clock.now = 2.0
    side.core.channels.park_without_credit(2.0)
    assert channel.state is ChannelState.OPEN
    side.core.channels.park_without_credit(2.1)
    assert (channel.state, view.released) == (ChannelState.PARKED, 1)
    side.core.receive(pack_add_credit(1, 1))
    assert side.turn() == []  # the turn has a view opened
    assert side.channel().request_from_here.skip == 1
    side.core.channels.opened(channel, Source([part(b"b", end=True)]))
    assert [body for _, body in side.turn()] == [b"b", b""]


def test_credit_in_time_keeps_a_channel_from_being_parked() -> None:
    side = Side(Limits(stall=2.0))
    side.request(1, credit=1)
    [channel] = side.opened(Source([part(b"a"), part(b"b"), part(b"c")]))
    side.turn()
    side.clock.now = 1.5
    side.core.receive(pack_add_credit(1, 1))
    side.turn()
    side.core.channels.park_without_credit(3.0)
    assert channel.state is ChannelState.OPEN


# Errors


@pytest.mark.parametrize(
    ("error", "fault", "what"),
    [
        (MissingDataError(Place("f"), "gone"), Fault.MISSING, "gone"),
        (CorruptDataError(Place("f"), "bad"), Fault.DAMAGED, "bad"),
        (UsageError("there is none"), Fault.BAD_REQUEST, "there is none"),
        (OSError(12, "no memory"), Fault.INTERNAL, "OSError: [Errno 12] no memory"),
    ],
    ids=["missing", "damaged", "bad request", "internal"],
)
def test_a_view_that_cannot_be_had_is_an_error_of_its_channel(
    error: Exception, fault: Fault, what: str
) -> None:
    side = Side()
    side.request(1)
    side.core.channels.not_opened(side.channel(), error)
    response = side.error()
    assert (response.channel, response.fault, response.what) == (1, fault, what)
    assert (len(side.core.channels), side.counts.errors) == (0, 1)


def test_a_view_that_fails_in_mid_stream_is_told_of_before_its_client_hears_it() -> None:
    side, cause = Side(), CorruptDataError(Place("f"), "bad")
    side.request(1, 2)
    broken, other = side.opened(Source(cause=cause), Source(cause=UsageError("odd")))
    [(header, body)] = [*side.turn(), *side.turn()]
    assert (header.channel, ErrorResponse.unpack(header, body).fault) == (2, Fault.BAD_REQUEST)
    assert list(side.core.pending.disk_jobs) == [ReportLoss(broken, cause)]
    assert (other.state, len(side.core.channels)) == (ChannelState.ENDED, 0)


# Questions


def test_questions_are_disk_jobs_and_their_answers_are_sent() -> None:
    side = Side()
    report = DamageReport(5, OUTPUT, subpartition=1, region=2)
    removal = pack_remove_request(6, "app-1", 3, bytes(16))
    side.core.receive(pack_find_request(4, WANTED) + report.pack() + removal)
    find, damage, remove = side.core.pending.disk_jobs
    assert (find, damage) == (FindOutput(4, WANTED), report)
    assert isinstance(remove, RemoveShuffle)
    assert (remove.channel, remove.shuffle.application, remove.shuffle.exchange) == (6, "app-1", 3)
    side.core.answered(pack_damage_verdict(5, Verdict.SOUND))
    side.core.not_answered(FindOutput(4, WANTED), UsageError("no"))
    (verdict, _), (error, _) = side.turn()
    assert (verdict.kind, verdict.channel) == (Kind.DAMAGE_VERDICT, 5)
    assert (error.kind, error.channel) == (Kind.ERROR_RESPONSE, 4)


def test_questions_are_bounded() -> None:
    side = Side(Limits(questions=1))
    side.core.receive(pack_find_request(3, WANTED) + pack_find_request(4, WANTED))
    error = side.error()
    assert (error.channel, error.fault) == (4, Fault.TOO_MUCH)
    side.core.answered(b"")
    side.core.receive(pack_find_request(5, WANTED))
    assert [each.channel for each in side.core.pending.disk_jobs if isinstance(each, FindOutput)] == [3, 5]


def test_a_client_that_reads_no_answers_breaks_the_protocol() -> None:
    side = Side(Limits(channels=0, answers=1000))
    with pytest.raises(ProtocolError, match="of answers unread"):
        side.request(*range(100))


# The end


def test_behind_a_close_nothing_is_heard() -> None:
    side = Side()
    side.core.receive(pack_close() + PartitionRequest(1, 1, OUTPUT).pack())
    assert (side.core.is_over, len(side.core.channels)) == (True, 0)


def test_the_end_gives_everything_back_also_what_comes_later() -> None:
    side, here, later = Side(), Source([part(b"a")]), Source([part(b"b")])
    side.request(1, 2)
    side.opened(here)
    side.core.receive(pack_find_request(3, WANTED))
    side.core.end()
    side.core.channels.opened(side.channel(), later)
    side.core.answered(pack_find_response(3, None))
    assert (here.released, later.released, side.core.has_turn) == (1, 1, False)


# Peers that say what cannot be meant

REQUEST = PartitionRequest(1, 1, OUTPUT)


@pytest.mark.parametrize(
    "frame",
    [
        Header(5000, Kind.PARTITION_REQUEST, 1).pack(),
        Header(0, Kind.PARTITION_REQUEST, 1).pack(),
        Header(0, Kind.BUFFER_RESPONSE, 1).pack(),
        Header(0, Kind.DAMAGE_VERDICT, 1).pack(),
        replace(REQUEST, channel=NO_CHANNEL).pack(),
        REQUEST.pack() + REQUEST.pack(),
        pack_add_credit(1, 0),
        Header(1, Kind.ADD_CREDIT, 1, credit=1).pack() + b"x",
        pack_find_request(3, OUTPUT).replace(bytes([39, 0, 0, 0]), bytes([40, 0, 0, 0])) + b"x",
        pack_find_request(NO_CHANNEL, OUTPUT),
        REQUEST.pack() + pack_find_request(1, OUTPUT),
        REQUEST.pack().replace(b"app-1", b"../.."),
        bytes(24),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    ],
    ids=[
        "too long",
        "no address",
        "a server's",
        "a verdict",
        "no channel",
        "twice",
        "no credit",
        "credit with a body",
        "more than an address",
        "a question without a number",
        "a question with a channel's number",
        "a path",
        "kind 0",
        "http",
    ],
)
def test_what_is_not_in_the_protocol_is_an_error(frame: bytes) -> None:
    side = Side()
    with pytest.raises(ProtocolError):
        side.core.receive(frame)
