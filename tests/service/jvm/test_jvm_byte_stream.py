"""The bytes of one connection: whatever is sent comes, however it is cut; small messages that were sent at
once are taken by one call; the end of the connection is told."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from itertools import cycle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.options import MIB
from sortshuffle.service.jvm.byte_stream import BUFFER_BYTES, ByteStream, StreamEndedError

Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Sockets]:
    peer, own = socket.socketpair(socket.AF_UNIX)
    with peer, own:
        yield peer, own


def rest(own: socket.socket) -> int:
    """Bytes that still lie in the socket."""
    try:
        return len(own.recv(MIB, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return 0


@given(st.integers(0, MIB), st.lists(st.integers(1, 3 * BUFFER_BYTES), min_size=1, max_size=9))
def test_bytes_come_in_their_order_however_they_are_asked_for(total: int, sizes: list[int]) -> None:
    sent = random.Random(1).randbytes(total)
    peer, own = socket.socketpair(socket.AF_UNIX)
    with peer, own:
        sender = threading.Thread(target=peer.sendall, args=(sent,))
        sender.start()
        stream, found = ByteStream(own), bytearray()
        for size in cycle([*sizes, BUFFER_BYTES]):  # so that it ends soon
            if len(found) == len(sent):
                break
            found += stream.received(min(size, len(sent) - len(found)))
        sender.join()
        assert found == sent
        assert rest(own) == 0


def test_what_is_sent_later_goes_ahead_of_what_is_sent_next(pair: Sockets) -> None:
    peer, own = pair
    stream = ByteStream(own)
    stream.send_later(b"first ")
    stream.send_later(b"second ")
    assert rest(peer) == 0
    stream.send([b"third ", b"fourth "])
    assert peer.recv(100) == b"first second third fourth "
    stream.send([b"fifth"])
    assert peer.recv(100) == b"fifth"


def test_what_has_come_is_known_without_taking_it(pair: Sockets) -> None:
    peer, own = pair
    stream = ByteStream(own)
    assert not stream.has_received(b"finish")
    peer.sendall(b"frame" + b"finish" + b"fin")
    assert not stream.has_received(b"frame"), "it is still in the socket"
    assert stream.received(5) == b"frame"
    assert stream.has_received(b"finish")
    assert not stream.has_received(b"frame")
    assert stream.received(6) == b"finish"
    assert not stream.has_received(b"finish"), "it has not wholly come"
    assert stream.received(3) == b"fin"


def test_small_messages_that_came_together_are_taken_at_once(pair: Sockets) -> None:
    peer, own = pair
    peer.sendall(b"header" + b"frame" + b"finish")
    stream = ByteStream(own)
    assert stream.received(6) == b"header"
    assert rest(own) == 0
    assert (stream.received(5), stream.received(6)) == (b"frame", b"finish")


def test_a_large_message_is_taken_to_its_end_and_no_further(pair: Sockets) -> None:
    peer, own = pair
    large = random.Random(2).randbytes(BUFFER_BYTES)
    peer.sendall(large + b"next")
    stream = ByteStream(own)
    assert stream.received(BUFFER_BYTES) == large
    assert rest(own) == 4
    assert stream.received(4) == b"next"


@pytest.mark.parametrize("size", [4, BUFFER_BYTES + 4])
def test_an_end_within_a_message_is_told(pair: Sockets, size: int) -> None:
    peer, own = pair
    peer.sendall(b"abc")
    peer.close()
    stream = ByteStream(own)
    with pytest.raises(StreamEndedError):
        stream.received(size)


def test_pieces_are_sent_whole_where_the_socket_takes_a_part_of_them(pair: Sockets) -> None:
    peer, own = pair
    chosen = random.Random(3)
    pieces = [b"", b"abc", memoryview(chosen.randbytes(3 * MIB)), pa.py_buffer(chosen.randbytes(MIB)), b"end"]
    wanted = b"".join(pieces)
    sender = threading.Thread(target=ByteStream(own).send, args=(pieces,))
    sender.start()
    assert ByteStream(peer).received(len(wanted)) == wanted
    sender.join()


def test_sending_to_one_that_has_gone_is_told(pair: Sockets) -> None:
    peer, own = pair
    peer.close()
    with pytest.raises(StreamEndedError):
        ByteStream(own).send([b"abc"])
