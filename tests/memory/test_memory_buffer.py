"""A segment in use: counted references, and slices that share the count."""

from __future__ import annotations

import threading

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recyclers import Collecting, new_buffer

from sortshuffle.errors import StateError, UsageError
from sortshuffle.memory.buffer import Buffer


def test_a_new_buffer_is_the_whole_segment_read_only_with_one_reference() -> None:
    buffer = new_buffer(b"abcdef")
    assert (buffer.size, buffer.references, bytes(buffer.view)) == (6, 1, b"abcdef")
    assert buffer.view.readonly
    assert repr(buffer) == "Buffer(6 of 6 bytes, 1 references)"
    buffer.recycle()


@pytest.mark.parametrize("use", ["view", "slice"])
def test_a_recycled_buffer_cannot_be_used(use: str) -> None:
    buffer = new_buffer(b"abc")
    buffer.recycle()
    with pytest.raises(StateError, match="after its last reference was recycled"):
        {"view": lambda: buffer.view, "slice": lambda: buffer.slice(0, 1)}[use]()


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 7), (7, 7)])
def test_a_slice_beyond_the_buffer_is_refused_and_holds_nothing(start: int, stop: int) -> None:
    buffer = new_buffer(b"abcdef")
    with pytest.raises(UsageError, match=f"bytes {start} to {stop}"):
        buffer.slice(start, stop)
    assert buffer.references == 1
    buffer.recycle()


def test_many_threads_share_one_buffer_and_recycle_it_once() -> None:
    home = Collecting()
    threads, rounds = 8, 200
    for _ in range(20):
        buffer = new_buffer(b"abc", home)
        holds = [buffer.slice(0, 2) for _ in range(threads)]
        start = threading.Barrier(threads)

        def work(held: Buffer, start: threading.Barrier = start) -> None:
            start.wait()
            for _ in range(rounds):
                held.slice(0, 1).recycle()
            held.recycle()

        workers = [threading.Thread(target=work, args=(held,)) for held in holds]
        for worker in workers:
            worker.start()
        buffer.recycle()
        for worker in workers:
            worker.join()
        assert buffer.references == 0
    assert len(home.segments) == len(set(home.segments)) == 20


class BufferReferences(RuleBasedStateMachine):
    """Whatever is done in whatever order, the segment goes home once: with the last of all references."""

    CONTENT = bytes(range(1, 65))

    def __init__(self) -> None:
        super().__init__()
        self.home = Collecting()
        self.buffer = new_buffer(self.CONTENT, self.home)
        self.held: list[tuple[Buffer, bytes]] = [(self.buffer, self.CONTENT)]

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), data=st.data())
    def slice(self, number: int, data: st.DataObject) -> None:
        buffer, content = self.held[number % len(self.held)]
        start = data.draw(st.integers(0, len(content)))
        stop = data.draw(st.integers(start, len(content)))
        self.held.append((buffer.slice(start, stop), content[start:stop]))

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0))
    def recycle(self, number: int) -> None:
        buffer, _ = self.held.pop(number % len(self.held))
        buffer.recycle()

    @precondition(lambda self: not self.held)
    @rule()
    def use_it_after_all(self) -> None:
        for use in (self.buffer.recycle, lambda: self.buffer.slice(0, 1)):
            with pytest.raises(StateError):
                use()

    @invariant()
    def is_home_exactly_when_nobody_holds_it(self) -> None:
        assert self.buffer.references == len(self.held)
        assert self.home.segments == ([] if self.held else [self.buffer.segment])

    @invariant()
    def shows_what_was_written(self) -> None:
        assert all(bytes(buffer.view) == content for buffer, content in self.held)


TestBufferReferences = BufferReferences.TestCase
