"""A segment in use: counted references, slices that share the count, Arrow memory that owns a reference."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recyclers import Collecting, Lending, new_buffer

from sortshuffle.errors import StateError, UsageError
from sortshuffle.memory.buffer import FREE, Buffer, Loans
from sortshuffle.memory.segment import MemorySegment


def test_a_new_buffer_has_one_reference_and_is_empty_data() -> None:
    buffer = Buffer(MemorySegment(64), FREE)
    assert (buffer.size, buffer.data_type, buffer.compressed, buffer.is_data) == (0, 0, False, True)
    assert buffer.references == 1
    assert bytes(buffer.view) == b""
    buffer.recycle()


def test_a_buffer_of_another_type_is_an_event() -> None:
    buffer = Buffer(MemorySegment(64), FREE, 3, data_type=2, compressed=True)
    assert (buffer.size, buffer.data_type, buffer.is_data, buffer.compressed) == (3, 2, False, True)
    buffer.recycle()


def test_the_segment_is_recycled_with_the_last_reference_only() -> None:
    home = Collecting()
    buffer = new_buffer(b"abc", recycler=home)
    assert buffer.retain() is buffer
    buffer.recycle()
    assert home.segments == []
    assert bytes(buffer.view) == b"abc"
    buffer.recycle()
    assert home.segments == [buffer.segment]


def test_recycling_once_too_often_is_a_state_error_and_recycles_nothing_twice() -> None:
    home = Collecting()
    buffer = new_buffer(b"abc", recycler=home)
    buffer.recycle()
    with pytest.raises(StateError, match="recycled once too often"):
        buffer.recycle()
    assert len(home.segments) == 1


@pytest.mark.parametrize("use", ["retain", "view", "slice", "to_arrow"])
def test_a_recycled_buffer_cannot_be_used(use: str) -> None:
    buffer = new_buffer(b"abc")
    buffer.recycle()
    with pytest.raises(StateError, match="after its last reference was recycled"):
        {
            "retain": buffer.retain,
            "view": lambda: buffer.view,
            "slice": lambda: buffer.slice(0, 1),
            "to_arrow": buffer.to_arrow,
        }[use]()


def test_the_view_is_read_only_and_as_long_as_the_size() -> None:
    buffer = new_buffer(b"abcdef")
    buffer.size = 4
    assert bytes(buffer.view) == b"abcd"
    assert buffer.view.readonly
    buffer.recycle()


@pytest.mark.parametrize("size", [-1, 65])
def test_a_size_that_the_segment_does_not_have_is_refused(size: int) -> None:
    buffer = new_buffer(b"abc", room=64)
    with pytest.raises(UsageError, match=f"64 bytes cannot hold {size}"):
        buffer.size = size
    with pytest.raises(UsageError):
        Buffer(buffer.segment, FREE, size)
    assert buffer.size == 3
    buffer.recycle()


def test_a_slice_shows_part_of_the_payload_and_keeps_the_segment() -> None:
    home = Collecting()
    buffer = Buffer(MemorySegment(64), home, 6, data_type=4, compressed=True)
    buffer.segment.view[:6] = b"abcdef"
    part = buffer.slice(2, 5)
    inner = part.slice(1, 3)
    assert (bytes(part.view), bytes(inner.view)) == (b"cde", b"de")
    assert (inner.data_type, inner.compressed, inner.size) == (4, True, 2)
    assert buffer.references == part.references == 3
    buffer.recycle()
    part.recycle()
    assert home.segments == []
    assert bytes(inner.view) == b"de"
    inner.recycle()
    assert home.segments == [buffer.segment]
    with pytest.raises(StateError):
        part.recycle()


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 7), (7, 7)])
def test_a_slice_beyond_the_payload_is_refused_and_retains_nothing(start: int, stop: int) -> None:
    buffer = new_buffer(b"abcdef")
    with pytest.raises(UsageError, match=f"bytes {start} to {stop}"):
        buffer.slice(start, stop)
    assert buffer.references == 1
    buffer.recycle()


def test_a_slice_stays_as_it_is_when_the_whole_grows() -> None:
    buffer = new_buffer(b"abc", room=64)
    part = buffer.slice(0, 3)
    buffer.segment.view[3:5] = b"de"
    buffer.size = 5
    assert bytes(part.view) == b"abc"
    with pytest.raises(StateError, match="a slice's size is fixed"):
        part.size = 2
    part.recycle()
    buffer.recycle()


def test_arrow_memory_is_the_payload_itself_and_owns_a_reference() -> None:
    home = Collecting()
    buffer = new_buffer(b"abcdef", recycler=home)
    memory = buffer.slice(2, 5)
    arrow = memory.to_arrow()
    assert (arrow.address, arrow.size) == (buffer.segment.address + 2, 3)
    assert arrow.to_pybytes() == b"cde"
    assert not arrow.is_mutable
    memory.recycle()
    buffer.recycle()
    assert home.segments == []
    del arrow
    assert home.segments == [buffer.segment]


def batch_over(buffer: Buffer) -> pa.RecordBatch:
    """Eight int64 numbers that lie in the buffer."""
    numbers = pa.Array.from_buffers(pa.int64(), 8, [None, buffer.to_arrow()])
    return pa.RecordBatch.from_arrays([numbers], names=["n"])


def test_the_last_user_in_numpy_gives_the_segment_back() -> None:
    home = Collecting()
    buffer = new_buffer(np.arange(8, dtype=np.int64).tobytes(), recycler=home)
    batch = batch_over(buffer)
    buffer.recycle()
    part = batch.slice(2, 4)
    numbers = part.column("n").to_numpy(zero_copy_only=True)
    assert np.shares_memory(numbers, np.frombuffer(buffer.segment.view, np.int64))
    every_other = numbers[::2]
    del batch, part, numbers
    assert home.segments == []
    assert every_other.tolist() == [2, 4]
    del every_other
    assert home.segments == [buffer.segment]


def test_the_last_user_in_pandas_gives_the_segment_back() -> None:
    home = Collecting()
    buffer = new_buffer(np.arange(8, dtype=np.int64).tobytes(), recycler=home)
    batch = batch_over(buffer)
    buffer.recycle()
    series = batch.column("n").to_pandas(zero_copy_only=True).iloc[3:5]
    del batch
    assert home.segments == []
    assert series.tolist() == [3, 4]
    del series
    gc.collect()  # pandas objects may be part of cycles
    assert home.segments == [buffer.segment]


def test_an_ipc_message_read_from_a_buffer_keeps_it() -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    batch = pa.RecordBatch.from_pydict({"n": [1, 2, 3], "s": ["a", "bc", "def"]}, schema=schema)
    home = Collecting()
    buffer = new_buffer(batch.serialize().to_pybytes(), recycler=home)
    found = pa.ipc.read_record_batch(buffer.to_arrow(), schema)
    buffer.recycle()
    assert home.segments == []
    assert found.equals(batch)
    del found
    assert home.segments == [buffer.segment]


def test_an_empty_payload_as_arrow_memory_still_owns_a_reference() -> None:
    home = Collecting()
    buffer = new_buffer(b"", recycler=home)
    arrow = buffer.to_arrow()
    buffer.recycle()
    assert (arrow.size, home.segments) == (0, [])
    del arrow
    assert len(home.segments) == 1


def test_arrow_memory_in_a_cycle_of_garbage_is_given_back_by_the_collector() -> None:
    home = Collecting()
    buffer = new_buffer(b"abc", recycler=home)
    cycle: list[object] = [buffer.to_arrow()]
    cycle.append(cycle)
    buffer.recycle()
    del cycle
    gc.collect()
    assert home.segments == [buffer.segment]


def test_past_the_quota_of_loans_arrow_gets_a_copy_that_holds_nothing() -> None:
    home = Lending(1)
    first, second = (new_buffer(content, recycler=home) for content in (b"first", b"second"))
    lent, copied = first.to_arrow(), second.to_arrow()
    assert home.loans.outstanding == 1
    first.recycle()
    second.recycle()
    assert home.segments == [second.segment]
    second.segment.fill(0)
    assert (lent.to_pybytes(), copied.to_pybytes()) == (b"first", b"second")
    del lent
    assert home.segments == [second.segment, first.segment]
    assert home.loans.outstanding == 0
    third = new_buffer(b"third", recycler=home)
    again = third.to_arrow()
    assert again.address == third.segment.address
    third.recycle()


def test_a_quota_of_none_copies_always_the_empty_payload_too() -> None:
    home = Lending(0)
    buffer, empty = new_buffer(b"abc", recycler=home), new_buffer(b"", recycler=home)
    assert (buffer.to_arrow().to_pybytes(), empty.to_arrow().size) == (b"abc", 0)
    assert (buffer.references, empty.references) == (1, 1)
    buffer.recycle()
    empty.recycle()


def test_loans_that_begin_no_more_are_still_counted_until_they_end() -> None:
    loans = Loans(3)
    assert [loans.begin(), loans.begin()] == [True, True]
    assert loans.begin_no_more() == 2
    loans.end()
    assert not loans.begin()
    assert loans.outstanding == 1


def test_memory_of_no_pool_is_poisoned_when_it_is_freed() -> None:
    buffer = Buffer(MemorySegment(3), FREE, 3)
    view = buffer.view
    buffer.recycle()
    assert bytes(view) == b"\xdb\xdb\xdb"


def test_many_threads_share_one_buffer_and_recycle_it_once() -> None:
    home = Collecting()
    threads, rounds = 8, 200
    for _ in range(20):
        buffer = new_buffer(b"abc", recycler=home)
        holds = [buffer.retain() if n % 2 else buffer.slice(0, 2) for n in range(threads)]
        start = threading.Barrier(threads)

        def work(held: Buffer, start: threading.Barrier = start) -> None:
            start.wait()
            for _ in range(rounds):
                held.retain()
                held.slice(0, 1).recycle()
                held.recycle()
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
        self.home = Lending(2)
        self.buffer = new_buffer(self.CONTENT, recycler=self.home)
        self.held: list[tuple[Buffer, bytes]] = [(self.buffer, self.CONTENT)]
        self.arrow: list[tuple[pa.Buffer, bytes, bool]] = []

    @property
    def references(self) -> int:
        return len(self.held) + sum(lent for _, _, lent in self.arrow)

    def pick(self, number: int) -> tuple[Buffer, bytes]:
        return self.held[number % len(self.held)]

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0))
    def retain(self, number: int) -> None:
        buffer, content = self.pick(number)
        self.held.append((buffer.retain(), content))

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), data=st.data())
    def slice(self, number: int, data: st.DataObject) -> None:
        buffer, content = self.pick(number)
        start = data.draw(st.integers(0, len(content)))
        stop = data.draw(st.integers(start, len(content)))
        self.held.append((buffer.slice(start, stop), content[start:stop]))

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0))
    def recycle(self, number: int) -> None:
        buffer, _ = self.held.pop(number % len(self.held))
        buffer.recycle()

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0))
    def hand_to_arrow(self, number: int) -> None:
        buffer, content = self.pick(number)
        lent = self.home.loans.outstanding < 2
        self.arrow.append((buffer.to_arrow(), content, lent))

    @precondition(lambda self: self.arrow)
    @rule(number=st.integers(0))
    def let_go_in_arrow(self, number: int) -> None:
        self.arrow.pop(number % len(self.arrow))

    @precondition(lambda self: not self.references)
    @rule()
    def use_it_after_all(self) -> None:
        for use in (self.buffer.recycle, self.buffer.retain, self.buffer.to_arrow):
            with pytest.raises(StateError):
                use()

    @invariant()
    def is_home_exactly_when_nobody_holds_it(self) -> None:
        assert self.buffer.references == self.references
        assert self.home.segments == ([] if self.references else [self.buffer.segment])
        assert self.home.loans.outstanding == sum(lent for _, _, lent in self.arrow)

    @invariant()
    def shows_what_was_written(self) -> None:
        assert all(bytes(buffer.view) == content for buffer, content in self.held)
        assert all(arrow.to_pybytes() == content for arrow, content, _ in self.arrow)


TestBufferReferences = BufferReferences.TestCase
