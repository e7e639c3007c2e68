"""One channel on the server: what it may send, how that is numbered, and that parking loses nothing."""

from __future__ import annotations

from views import Part, Source

from sortshuffle.service.server.server_channel import ChannelState, ServerChannel
from sortshuffle.service.wire.protocol import (
    HEADER_BYTES,
    Data,
    Header,
    MapOutputAddress,
    PartitionRequest,
    Sender,
)

SEGMENT = 100
REQUEST = PartitionRequest(7, 5, MapOutputAddress("app-1", 3, 17, 204, bytes(16)), skip=1000)


def opened(*parts: Part, compressed: bool = False) -> tuple[ServerChannel, Source]:
    channel, source = ServerChannel(REQUEST), Source(list(parts), compressed)
    channel.opened(source)
    return channel, source


def frames(channel: ServerChannel) -> list[tuple[Header, bytes]]:
    taken = channel.take(1 << 20)
    assert taken is not None
    data, found = b"".join(taken[0]), []
    while data:
        header = Header.unpack(data[:HEADER_BYTES], Sender.SERVER)
        end = HEADER_BYTES + header.length
        found.append((header, data[HEADER_BYTES:end]))
        data = data[end:]
    return found


def test_each_run_is_a_response_numbered_without_gaps() -> None:
    first = Part([[b"ab", b"cd"], [b"e"]], credits=2, backlog=9)
    last = Part([[b"f"]], credits=1, end_of_partition=True)
    channel, _ = opened(first, last, compressed=True)
    found = frames(channel)
    assert [body for _, body in found] == [b"abcd", b"e"]
    assert [(h.sequence, h.credit, h.flags, h.channel) for h, _ in found] == [(0, 9, 1, 7), (1, 9, 1, 7)]
    found = frames(channel)
    assert [(h.sequence, h.data_type, body) for h, body in found] == [
        (2, Data.BYTES, b"f"),
        (3, Data.END_OF_PARTITION, b""),
    ]
    assert (channel.state, channel.sequence, channel.credit) == (ChannelState.ENDED, 4, 2)


def test_the_end_alone_is_sent_without_credit() -> None:
    channel, source = opened(Part([], credits=0, end_of_partition=True))
    [(header, body)] = frames(channel)
    assert (header.data_type, header.sequence, body) == (Data.END_OF_PARTITION, 0, b"")
    assert (channel.credit, source.released) == (5, 1)


def test_a_parked_channel_goes_on_where_it_was_with_the_next_numbers() -> None:
    channel, source = opened(Part([[b"x" * 30]], credits=1), Part([[b"lost"]], credits=1))
    frames(channel)
    assert channel.holds_memory
    channel.park()
    assert (channel.state, source.released, channel.holds_memory) == (ChannelState.PARKED, 1, False)
    assert channel.is_available  # it has credit: its turn opens it again
    channel.open_again()
    assert not channel.is_available
    again = channel.request_from_here
    assert (again.skip, again.credit, again.output) == (1030, 4, REQUEST.output)
    channel.opened(Source([Part([[b"y"]], credits=1)]))
    [(header, body)] = frames(channel)
    assert (header.sequence, body) == (1, b"y")


def test_a_parked_channel_without_credit_waits_for_some() -> None:
    channel, _ = opened(Part([[b"x"]], credits=5))
    frames(channel)
    channel.park()
    assert not channel.is_available
    channel.add_credit(1)
    assert channel.is_available


def test_credit_reaches_the_view_whenever_it_comes() -> None:
    channel, source = ServerChannel(REQUEST), Source()
    channel.add_credit(3)  # while it is being opened
    channel.opened(source)
    channel.add_credit(2)
    assert source.granted == [8, 10]


def test_a_view_that_comes_when_the_channel_is_over_is_released() -> None:
    channel, source = ServerChannel(REQUEST), Source()
    channel.end()
    channel.opened(source)
    assert (channel.state, source.released) == (ChannelState.ENDED, 1)
    channel.end()
    channel.park()
    assert channel.state is ChannelState.ENDED


def test_a_view_that_failed_has_something_to_tell() -> None:
    channel, source = opened()
    assert not channel.is_available
    assert channel.take(100) is None
    source.cause = ValueError("why")
    assert channel.is_available
    assert (channel.take(100), channel.cause) == (None, source.cause)
