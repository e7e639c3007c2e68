"""One writer and one reader of one segment: the reader sees what was committed, once, in order."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recyclers import Collecting

from sortshuffle.errors import StateError
from sortshuffle.memory.buffer import Buffer
from sortshuffle.memory.buffer_builder import BufferBuilder, BufferConsumer
from sortshuffle.memory.segment import MemorySegment


def new_builder(room: int = 10, home: Collecting | None = None, **kind: int) -> BufferBuilder:
    return BufferBuilder(Buffer(MemorySegment(room), home or Collecting(), **kind))


def built(consumer: BufferConsumer) -> bytes | None:
    """The bytes of what the consumer builds now."""
    buffer = consumer.build()
    if buffer is None:
        return None
    content = bytes(buffer.view)
    buffer.recycle()
    return content


def test_what_was_appended_is_seen_when_it_is_committed() -> None:
    builder = new_builder()
    consumer = builder.consumer()
    assert builder.append(b"abc") == 3
    assert (builder.writable, builder.committed, consumer.build()) == (7, 0, None)
    builder.commit()
    assert builder.committed == 3
    assert built(consumer) == b"abc"
    assert consumer.build() is None


def test_several_appends_are_one_commit_and_several_commits_one_slice() -> None:
    builder = new_builder()
    consumer = builder.consumer()
    builder.append(b"a")
    builder.append(b"bc")
    builder.commit()
    builder.append(b"d")
    builder.commit()
    builder.append(b"e")
    assert built(consumer) == b"abcd"
    builder.commit()
    assert built(consumer) == b"e"


def test_more_than_fits_is_taken_as_far_as_it_fits() -> None:
    builder = new_builder(5)
    consumer = builder.consumer()
    assert builder.append(b"abc") == 3
    assert not builder.is_full
    assert builder.append(b"defg") == 2
    assert builder.is_full
    assert builder.append(b"h") == 0
    builder.commit()
    assert built(consumer) == b"abcde"


@pytest.mark.parametrize(
    "data",
    [b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), pa.py_buffer(b"abcd"), np.frombuffer(b"abcd", "<u2")],
    ids=lambda data: type(data).__name__,
)
def test_anything_with_bytes_can_be_appended(data: object) -> None:
    builder = new_builder()
    assert builder.append(data) == 4
    builder.commit()
    assert built(builder.consumer()) == b"abcd"


@pytest.mark.parametrize("data", [b"", pa.py_buffer(b""), np.empty(0, np.int64)], ids=type)
def test_appending_nothing_is_allowed(data: object) -> None:
    builder = new_builder()
    assert builder.append(data) == 0
    builder.commit()
    assert builder.consumer().build() is None


@pytest.mark.parametrize("content", [b"", b"abc", b"0123456789"], ids=["empty", "partial", "full"])
def test_the_consumer_is_finished_when_the_builder_is_and_all_was_built(content: bytes) -> None:
    builder = new_builder(10)
    consumer = builder.consumer()
    builder.append(content)
    builder.commit()
    assert (built(consumer) or b"") == content
    assert not consumer.is_finished
    assert builder.finish() == len(content)
    assert consumer.is_finished
    assert consumer.build() is None


def test_finishing_commits_the_rest() -> None:
    builder = new_builder()
    consumer = builder.consumer()
    builder.append(b"abc")
    assert builder.finish() == 3
    assert not consumer.is_finished
    assert built(consumer) == b"abc"
    assert consumer.is_finished
    assert builder.finish() == 3


def test_nothing_is_appended_or_committed_after_the_finish() -> None:
    builder = new_builder()
    builder.finish()
    with pytest.raises(StateError, match="finished"):
        builder.append(b"a")
    with pytest.raises(StateError, match="finished"):
        builder.commit()


def test_there_is_one_consumer() -> None:
    builder = new_builder()
    builder.consumer()
    with pytest.raises(StateError, match="one consumer: it was made already"):
        builder.consumer()


def test_the_consumer_may_come_after_the_finish_but_not_after_the_close() -> None:
    builder = new_builder()
    builder.append(b"abc")
    builder.finish()
    assert built(builder.consumer()) == b"abc"
    closed = new_builder()
    closed.close()
    with pytest.raises(StateError, match="the builder is closed"):
        closed.consumer()


def test_slices_have_the_type_of_the_buffer() -> None:
    builder = new_builder(10, data_type=5)
    builder.append(b"abc")
    builder.commit()
    buffer = builder.consumer().build()
    assert buffer is not None
    assert (buffer.data_type, buffer.is_data) == (5, False)


def test_the_segment_goes_home_when_both_sides_and_all_slices_are_gone() -> None:
    home = Collecting()
    builder = new_builder(home=home)
    consumer = builder.consumer()
    builder.append(b"abc")
    builder.close()
    builder.close()
    buffer = consumer.build()
    consumer.close()
    consumer.close()
    assert home.segments == []
    assert buffer is not None
    assert bytes(buffer.view) == b"abc"
    buffer.recycle()
    assert len(home.segments) == 1


def test_a_builder_without_consumer_gives_its_segment_back_alone() -> None:
    home = Collecting()
    new_builder(home=home).close()
    assert len(home.segments) == 1


def test_a_closed_consumer_builds_nothing() -> None:
    builder = new_builder()
    consumer = builder.consumer()
    consumer.close()
    with pytest.raises(StateError, match="closed"):
        consumer.build()


@given(st.lists(st.tuples(st.binary(max_size=20), st.booleans(), st.booleans())), st.integers(1, 100))
def test_whatever_the_steps_the_consumer_gets_the_bytes_that_were_taken(
    steps: list[tuple[bytes, bool, bool]], room: int
) -> None:
    home = Collecting()
    builder = new_builder(room, home)
    consumer = builder.consumer()
    taken, seen = b"", b""
    for data, commits, builds in steps:
        taken += data[: builder.append(data)]
        if commits:
            builder.commit()
        if builds:
            seen += built(consumer) or b""
            assert taken.startswith(seen)
            assert len(seen) == builder.committed
    builder.close()
    seen += built(consumer) or b""
    assert consumer.is_finished
    assert seen == taken == b"".join(data for data, _, _ in steps)[:room]
    consumer.close()
    assert len(home.segments) == 1


def test_a_reader_in_another_thread_sees_a_prefix_at_any_time_and_all_in_the_end() -> None:
    home = Collecting()
    builder = new_builder(20_000, home)
    consumer = builder.consumer()
    content = bytes(n % 251 for n in range(20_000))
    seen: list[bytes] = []

    def read() -> None:
        while not consumer.is_finished:
            part = built(consumer)
            if part is not None:
                seen.append(part)
        consumer.close()

    reader = threading.Thread(target=read)
    reader.start()
    for start in range(0, len(content), 7):
        builder.append(content[start : start + 7])
        builder.commit()
    builder.close()
    reader.join()
    assert b"".join(seen) == content
    assert len(home.segments) == 1
