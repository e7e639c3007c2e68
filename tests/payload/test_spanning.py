"""Records cut over buffers of any size come back; whole ones as views, large ones through a file; a stream
that ends within a record is an error, and whoever gives up leaves no file."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import UsageError
from sortshuffle.format.malformed import CutShort
from sortshuffle.payload.spanning import SPILL_BYTES, SpanningDeserializer, pack_length, serialize


class Piece:
    """A buffer of so many bytes, which begins at an offset in its memory."""

    def __init__(self, size: int, offset: int = 0) -> None:
        self.memory = bytearray(offset + size)
        self.offset = self.position = offset

    def append(self, data: memoryview) -> int:
        taken = data[: len(self.memory) - self.position]
        self.memory[self.position : self.position + len(taken)] = taken
        self.position += len(taken)
        return len(taken)

    @property
    def data(self) -> memoryview:
        return memoryview(self.memory)[self.offset : self.position].toreadonly()


def cut(records: list[bytes], size: int, offset: int = 0) -> list[memoryview]:
    """The records written into buffers of ``size`` bytes."""
    pieces = [Piece(size, offset)]

    def next_piece() -> Piece:
        pieces.append(Piece(size, offset))
        return pieces[-1]

    for record in records:
        last = serialize(memoryview(record), pieces[-1], next_piece)
        assert last is pieces[-1]
    return [piece.data for piece in pieces]


class FakeSpill:
    """A file in memory that says what was done with it."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.closed = False

    def write(self, data: memoryview) -> None:
        self.content += data

    def view(self) -> memoryview:
        assert not self.closed
        return memoryview(self.content).toreadonly()

    def close(self) -> None:
        self.closed = True


class Spills:
    """Makes spills, and remembers them."""

    def __init__(self) -> None:
        self.made: list[FakeSpill] = []

    def __call__(self) -> FakeSpill:
        self.made.append(FakeSpill())
        return self.made[-1]

    @property
    def open(self) -> int:
        return sum(not spill.closed for spill in self.made)


def found(pieces: list[memoryview], deserializer: SpanningDeserializer | None = None) -> list[bytes]:
    deserializer = deserializer or SpanningDeserializer(FakeSpill)
    records = [bytes(record) for piece in pieces for record in deserializer.records(piece)]
    deserializer.finish()
    return records


@given(
    st.lists(st.binary(max_size=200), max_size=30),
    st.sampled_from([1, 2, 3, 4, 5, 31, 64, 127, 1000]),
    st.integers(0, 9),
)
def test_any_records_come_back(records: list[bytes], size: int, offset: int) -> None:
    assert found(cut(records, size, offset)) == records


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.data())
def test_records_come_back_however_the_stream_is_cut(records: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pack_length(len(record)) + record for record in records)
    bounds = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    view = memoryview(stream)
    pieces = [view[a:b] for a, b in zip([0, *bounds], [*bounds, len(stream)], strict=True)]
    assert found(pieces) == records


def test_a_record_that_lies_whole_in_its_buffer_is_a_view_of_it() -> None:
    memory = np.frombuffer(
        pack_length(3) + b"abc" + pack_length(2) + b"de" + pack_length(9) + b"cut", np.uint8
    )
    first, second = SpanningDeserializer(FakeSpill).records(memory.data)
    assert (bytes(first), bytes(second)) == (b"abc", b"de")
    for record, start in ((first, 4), (second, 11)):
        assert np.frombuffer(record, np.uint8).__array_interface__["data"][0] == memory.ctypes.data + start


def test_what_is_handed_out_is_read_only() -> None:
    records = [b"whole", b"cut over several"]
    deserializer = SpanningDeserializer(FakeSpill)
    assert all(record.readonly for piece in cut(records, 10) for record in deserializer.records(piece))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_record_is_there_with_its_last_byte(size: int) -> None:
    deserializer = SpanningDeserializer(FakeSpill)
    stream = memoryview(pack_length(size) + bytes(size))
    for position in range(len(stream) - 1):
        assert deserializer.records(stream[position : position + 1]) == []
        assert deserializer.is_cut
    (record,) = deserializer.records(stream[-1:])
    assert (len(record), deserializer.is_cut) == (size, False)


def test_a_cut_record_does_not_depend_on_the_memory_that_it_came_in() -> None:
    memory = bytearray(pack_length(6) + b"abc")
    deserializer = SpanningDeserializer(FakeSpill)
    assert deserializer.records(memoryview(memory).toreadonly()) == []
    memory[:] = bytes(len(memory))
    (record,) = deserializer.records(memoryview(b"def"))
    assert bytes(record) == b"abcdef"


# Large records


@pytest.mark.parametrize("over", [0, 1])
def test_records_above_the_bound_are_put_together_in_a_file(over: int) -> None:
    spills = Spills()
    records = [b"small", bytes(SPILL_BYTES + over), b"last"]
    pieces = cut(records, 1 << 20)
    assert found(pieces, SpanningDeserializer(spills)) == records
    assert (len(spills.made), spills.open) == (over, 0)


def test_a_large_record_that_is_not_cut_needs_no_file() -> None:
    spills = Spills()
    records = [bytes(SPILL_BYTES + 1)]
    assert found(cut(records, SPILL_BYTES + 100), SpanningDeserializer(spills)) == records
    assert spills.made == []


@given(st.lists(st.binary(max_size=100), max_size=20), st.sampled_from([1, 31, 64, 127]), st.integers(0, 60))
def test_any_records_come_back_through_files(records: list[bytes], size: int, bound: int) -> None:
    spills = Spills()
    assert found(cut(records, size), SpanningDeserializer(spills, bound)) == records
    assert spills.open == 0
    assert all(len(spill.content) > bound for spill in spills.made)


# Errors


@pytest.mark.parametrize(
    ("stream", "what", "expected", "got"),
    [
        (b"\x05", "the length of the last record is cut short", 4, 1),
        (pack_length(1) + b"x" + b"\x05\x00\x00", "the length of the last record is cut short", 4, 3),
        (pack_length(5), "the last record is cut short", 5, 0),
        (pack_length(1) + b"x" + pack_length(5) + b"four", "the last record is cut short", 5, 4),
    ],
)
def test_a_stream_that_ends_within_a_record_is_an_error(
    stream: bytes, what: str, expected: int, got: int
) -> None:
    for size in (1, 3, 100):
        deserializer = SpanningDeserializer(FakeSpill)
        for start in range(0, len(stream), size):
            deserializer.records(memoryview(stream)[start : start + size])
        with pytest.raises(CutShort) as caught:
            deserializer.finish()
        assert (caught.value.what, caught.value.expected, caught.value.found) == (what, expected, got)
        deserializer.finish()  # nothing is left of it


def test_a_file_is_closed_on_every_way_out() -> None:
    begin = memoryview(pack_length(100) + b"begin")
    for give_up in ("close", "finish"):
        spills = Spills()
        deserializer = SpanningDeserializer(spills, spill_bytes=10)
        deserializer.records(begin)
        assert spills.open == 1
        if give_up == "close":
            deserializer.close()
            deserializer.close()
        else:
            with pytest.raises(CutShort):
                deserializer.finish()
        assert (spills.open, deserializer.is_cut) == (0, False)


def test_a_file_that_cannot_be_read_back_is_closed() -> None:
    class Broken(FakeSpill):
        def view(self) -> memoryview:
            raise OSError("no memory for a mapping")

    spill = Broken()
    deserializer = SpanningDeserializer(lambda: spill, spill_bytes=10)
    deserializer.records(memoryview(pack_length(20) + b"begin"))
    with pytest.raises(OSError, match="mapping"):
        deserializer.records(memoryview(bytes(15)))
    assert spill.closed


def test_a_record_above_what_the_length_can_say_is_refused() -> None:
    assert pack_length(2**32 - 1) == b"\xff\xff\xff\xff"
    with pytest.raises(UsageError, match="at most 4294967295 bytes, not 4294967296"):
        pack_length(2**32)


@pytest.mark.parametrize("said", [SPILL_BYTES + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("cut", [1, 3, 4, 5])
def test_a_length_that_claims_gigabytes_takes_no_more_than_what_has_come(said: int, cut: int) -> None:
    """A damaged length; the stream then ends, or is found to."""
    spills = Spills()
    stream = memoryview(pack_length(said) + b"all that there is")
    tracemalloc.start()
    try:
        deserializer = SpanningDeserializer(spills)
        assert deserializer.records(stream[:cut]) == deserializer.records(stream[cut:]) == []
        with pytest.raises(CutShort) as caught:
            deserializer.finish()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert (caught.value.expected, caught.value.found) == (said, 17)
    assert [len(spill.content) for spill in spills.made] == [17]
    assert spills.open == 0


@pytest.mark.parametrize("cut", range(1, 12))
def test_what_is_left_of_a_spilled_record_is_known_at_any_cut(cut: int) -> None:
    """A large record that is not all there, and one that is, with the begin of the next behind it."""
    stream = memoryview(pack_length(8) + b"12345678" + pack_length(9) + b"left")
    deserializer = SpanningDeserializer(FakeSpill, spill_bytes=7)
    found = [bytes(each) for part in (stream[:cut], stream[cut:]) for each in deserializer.records(part)]
    assert found == [b"12345678"]
    with pytest.raises(CutShort) as caught:
        deserializer.finish()
    assert (caught.value.expected, caught.value.found) == (9, 4)


@pytest.mark.parametrize("fails", ["made", "written", "read"])
def test_a_file_that_fails_is_closed_by_whoever_gives_up(fails: str) -> None:
    class Failing(FakeSpill):
        def __init__(self) -> None:
            super().__init__()
            self.fail("made")

        def write(self, data: memoryview) -> None:
            super().write(data)
            self.fail("written")

        def view(self) -> memoryview:
            self.fail("read")
            return super().view()

        def fail(self, step: str) -> None:
            if step == fails:
                raise OSError("no room")

    spills: list[Failing] = []

    def new_spill() -> Failing:
        spills.append(Failing())
        return spills[-1]

    deserializer = SpanningDeserializer(new_spill, spill_bytes=10)
    with pytest.raises(OSError, match="no room"):
        deserializer.records(memoryview(pack_length(20) + b"begin"))
        deserializer.records(memoryview(bytes(15)))
    deserializer.close()
    assert all(spill.closed for spill in spills)
    assert not deserializer.is_cut
