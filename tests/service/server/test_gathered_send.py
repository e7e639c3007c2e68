"""What is being sent: in order and once, however little the system takes; and given back when it is sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from views import Part

from sortshuffle.service.server.gathered_send import GatheredSend


class Sink:
    """A transport that takes as much as it is told, call by call; then nothing."""

    needs_write = has_pending = False

    def __init__(self, *takes: int) -> None:
        self.takes = list(takes)
        self.taken = bytearray()

    def fileno(self) -> int:
        return -1

    def receive(self) -> bytes | None:
        return None

    def send(self, views: Sequence[memoryview]) -> int:
        most = self.takes.pop(0) if self.takes else 0
        taken = b"".join(views)[:most]
        self.taken += taken
        return len(taken)

    def close(self) -> None:
        pass


@given(
    st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=20),
    st.lists(st.integers(1, 60), max_size=30),
    st.integers(-1, 30),
)
def test_all_pieces_arrive_in_order(pieces: list[bytes], takes: list[int], copied_at: int) -> None:
    sending, part = GatheredSend(), Part([], 0)
    memory = [bytearray(piece) for piece in pieces]
    sending.add([memoryview(each) for each in memory], part)
    sink = Sink(*takes, 10_000)
    calls = 0
    while sending.size:
        if calls == copied_at:
            sending.keep_copy()
            assert part.recycled == 1
            for each in memory:  # its owner may write to it now
                each[:] = bytes(len(each))
        sending.send(sink)
        calls += 1
    assert bytes(sink.taken) == b"".join(pieces)
    assert part.recycled == 1


def test_nothing_is_recycled_before_everything_is_sent() -> None:
    sending, part = GatheredSend(), Part([], 0)
    sending.add([b"abc", b"def"], part)
    sink = Sink(4)
    assert sending.send(sink) == 4
    assert (sending.size, part.recycled) == (2, 0)
    assert sending.send(Sink()) == 0
    assert sending.send(Sink(9)) == 2
    assert (sending.size, part.recycled) == (0, 1)


def test_what_is_abandoned_is_recycled() -> None:
    sending, parts = GatheredSend(), [Part([], 0), Part([], 0)]
    for part in parts:
        sending.add([b"abc"], part)
    sending.abandon()
    assert (sending.size, [part.recycled for part in parts]) == (0, [1, 1])


@pytest.mark.parametrize("taken", [0, 5])
def test_a_connection_that_breaks_leaves_it_to_be_abandoned(taken: int) -> None:
    class Broken(Sink):
        def send(self, views: Sequence[memoryview]) -> int:
            raise ConnectionResetError

    sending, part = GatheredSend(), Part([], 0)
    sending.add([b"0123456789"], part)
    sending.send(Sink(taken))
    with pytest.raises(ConnectionResetError):
        sending.send(Broken())
    assert part.recycled == 0
    sending.abandon()
    assert part.recycled == 1
