"""`PartitionedFileWriter`: the exact bytes of both files, its rules of order, and that a pair is either
complete or gone: on errors, on full disks and on short writes, with no descriptor left open."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from engine import (
    WRITER,
    Pair,
    Region,
    fill,
    names,
    open_files,
    pair_by_hand,
    read_pair,
    small_disk,
    write_pair,
    write_region,
)
from faults import Fault, Faults
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle import calls
from sortshuffle.errors import FileAccessError, OutOfDiskError, StateError
from sortshuffle.format.buffer import BytesLike, SealedBuffer, seal
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.format.index import ENTRY_BYTES, RegionKind, WriterInfo
from sortshuffle.payload.events import END_OF_DATA, END_OF_PARTITION, seal_event
from sortshuffle.storage.files.local_pair import IOV_MAX, LocalPair, _write_all
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter

BROADCAST = RegionKind.BROADCAST
DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"


def buffers(*payloads: bytes) -> list[SealedBuffer]:
    return [seal(payload, len(payload), records=1) for payload in payloads]


def new_writer(directory: Path, subpartitions: int = 3, first: int = 0) -> PartitionedFileWriter:
    file = PartitionedFile.named(str(directory), 3, 17, 204)
    return PartitionedFileWriter(file, Pair(subpartitions, first).header)


def contents(file: PartitionedFile) -> tuple[bytes, bytes]:
    return Path(file.data_path).read_bytes(), Path(file.index_path).read_bytes()


payloads = st.lists(st.binary(max_size=150), max_size=3)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    subpartitions = draw(st.integers(1, 6))
    unicast = st.dictionaries(st.integers(0, subpartitions - 1), payloads).map(Region)
    broadcast = payloads.map(lambda drawn: Region({0: drawn}, BROADCAST))
    return Pair(
        subpartitions,
        draw(st.integers(0, subpartitions - 1)),
        draw(st.lists(st.one_of(unicast, broadcast), max_size=5)),
        draw(st.binary(max_size=40)),
    )


# The bytes


@given(pairs())
def test_any_pair_is_written_as_the_format_description_says(tmp_path: Path, pair: Pair) -> None:
    file = write_pair(tmp_path, pair)
    assert contents(file) == pair_by_hand(pair)
    file.delete()


@given(pairs(), st.integers(1, 300))
def test_any_pair_is_read_back_as_it_was(tmp_path: Path, pair: Pair, part_bytes: int) -> None:
    file = write_pair(tmp_path, pair)
    assert read_pair(file) == pair.everything()
    assert read_pair(file, part_bytes) == pair.everything()
    file.delete()


@given(pairs())
def test_any_range_of_subpartitions_is_one_or_two_contiguous_extents(tmp_path: Path, pair: Pair) -> None:
    file = write_pair(tmp_path, pair)
    index = read_index(file)
    for entries, kind in zip(index.entries, index.kinds, strict=True):
        if kind is BROADCAST:
            assert len({entry.item() for entry in entries}) == 1
            continue
        for start in range(pair.subpartitions):
            for stop in range(start, pair.subpartitions):
                if start < pair.first <= stop:
                    runs = [range(start, pair.first), range(pair.first, stop + 1)]
                else:
                    runs = [range(start, stop + 1)]
                for run in runs:
                    ends = [int(entries[s]["offset"] + entries[s]["bytes"]) for s in run]
                    assert [int(entries[s]["offset"]) for s in run[1:]] == ends[:-1]
    file.delete()


def test_the_worked_example_of_the_format_description_is_what_is_written(tmp_path: Path) -> None:
    example = DOCUMENT.read_text().split("\n## Worked example\n")[1].split("\n## ")[0]
    documented = {}
    for section in example.split("\n### ")[1:]:
        title, dump = section.split("\n", 1)
        name, size = re.fullmatch(r"(\w+) file, (\d+) bytes", title).groups()
        lines = re.findall(r"^    ([0-9A-F]{4})  ((?:[0-9A-F]{2} ?)+)", dump, re.MULTILINE)
        documented[name] = b""
        for offset, line in lines:
            assert int(offset, 16) == len(documented[name]), f"{name} file, line {offset}"
            documented[name] += bytes.fromhex(line)
        assert len(documented[name]) == int(size)
    example_writer = WriterInfo("app-1", 3, 5, 17, 204, "h", "2026-01-02T03:04:05Z", "sortshuffle 0.1.0")
    with new_writer(tmp_path, subpartitions=2, first=1) as writer:
        write_region(writer, Region({1: [b"\5\0\0\0hello"]}), [1, 0])
        writer.start_region(RegionKind.BROADCAST)
        writer.write_extents([(0, [seal_event(END_OF_DATA), seal_event(END_OF_PARTITION)])])
        writer.finish_region()
        file = writer.finish(example_writer)
    data, index = contents(file)
    assert documented["Data"].hex(" ") == data.hex(" ")
    assert documented["Index"].hex(" ") == index.hex(" ")


def test_empty_subpartitions_carry_the_offset_where_they_would_have_been(tmp_path: Path) -> None:
    # write order 2, 3, 4, 0, 1; only 3 and 0 have data
    pair = Pair(5, 2, [Region({3: [b"x"], 0: [b"y" * 100]})])
    entries = read_index(write_pair(tmp_path, pair)).entries[0]
    assert [(int(e["offset"]), int(e["bytes"])) for e in entries] == [
        (120, 128),
        (248, 0),
        (56, 0),
        (56, 64),
        (120, 0),
    ]
    assert {entry.item()[2:] for entry in entries[[1, 2, 4]]} == {(0, 0, 0, 0, 0)}


def test_a_region_without_bytes_leaves_no_trace(tmp_path: Path) -> None:
    with new_writer(tmp_path) as writer:
        for kind in RegionKind:
            writer.start_region(kind)
            writer.finish_region()
            writer.start_region(kind)
            writer.write_extents([])
            writer.write_extents([(0, [])])
            writer.finish_region()
        write_region(writer, Region({1: [b"x"]}), [0, 1, 2])
        assert (writer.regions, writer.records, writer.buffers) == (1, 1, 1)
        file = writer.finish(WRITER)
    assert contents(file) == pair_by_hand(Pair(3, 0, [Region({1: [b"x"]})]))


def test_an_extent_without_buffers_is_written_as_an_empty_one(tmp_path: Path) -> None:
    with new_writer(tmp_path) as writer:
        writer.start_region()
        writer.write_extents([(0, []), (1, buffers(b"x")), (2, [])])
        writer.finish_region()
        file = writer.finish(WRITER)
    assert contents(file) == pair_by_hand(Pair(3, 0, [Region({1: [b"x"]})]))


def test_empty_payloads_of_any_kind_of_memory_are_written(tmp_path: Path) -> None:
    with new_writer(tmp_path) as writer:
        writer.start_region()
        writer.write_extents(
            [
                (0, [seal(b"", 0, records=1)]),
                (1, [seal(pa.py_buffer(b""), 0, records=1)]),
                (2, [seal(memoryview(b""), 0, records=1)]),
            ]
        )
        writer.finish_region()
        file = writer.finish(WRITER)
    assert read_pair(file) == [[b""], [b""], [b""]]


def test_more_pieces_than_one_gathered_write_takes_are_written_in_order(tmp_path: Path) -> None:
    # 3 pieces a buffer: several writes within one extent, and writes that hold many small extents
    many = [number.to_bytes(4, "big") * (number % 40) for number in range(2 * IOV_MAX)]
    regions = [Region({1: many}), Region({s: [bytes([s % 256])] for s in range(700)})]
    pair = Pair(700, 350, regions)
    file = write_pair(tmp_path, pair)
    assert contents(file) == pair_by_hand(pair)


def test_no_append_gathers_more_pieces_than_one_write_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[int] = []
    append = LocalPair.append_data

    def counted(pair: LocalPair, pieces: Sequence[BytesLike]) -> None:
        gathered.append(len(pieces))
        append(pair, pieces)

    monkeypatch.setattr(LocalPair, "append_data", counted)
    pair = Pair(IOV_MAX, 0, [Region({s: [b"x"] for s in range(IOV_MAX)})])
    file = write_pair(tmp_path, pair)
    pieces = [each for each in gathered if each > 1]
    assert sum(pieces) == 3 * IOV_MAX
    assert max(pieces) <= IOV_MAX
    assert len(pieces) == 4  # 3 * 341 pieces each, and the rest
    assert read_pair(file) == pair.everything()


def test_extents_of_a_region_may_be_handed_over_in_several_calls(tmp_path: Path) -> None:
    with new_writer(tmp_path, first=1) as writer:
        writer.start_region()
        writer.write_extents([(1, buffers(b"x"))])
        writer.write_extents([(2, buffers(b"y")), (0, buffers(b"z"))])
        writer.finish_region()
        file = writer.finish(WRITER)
    assert contents(file) == pair_by_hand(Pair(3, 1, [Region({1: [b"x"], 2: [b"y"], 0: [b"z"]})]))


@pytest.mark.parametrize("cuts", [[1], [1, 1], [2], [0, 3]])
def test_an_extent_may_be_handed_over_in_parts(tmp_path: Path, cuts: list[int]) -> None:
    payloads = [b"a", b"bc" * 50, b"d"]
    pair = Pair(3, regions=[Region({1: payloads, 2: [b"e"]})])
    with new_writer(tmp_path) as writer:
        writer.start_region()
        rest = buffers(*payloads)
        for cut in cuts:
            writer.write_extents([(1, rest[:cut])])
            rest = rest[cut:]
        writer.write_extents([(1, rest), (2, buffers(b"e"))])
        writer.finish_region()
        assert (writer.records, writer.buffers) == (4, 4)
        file = writer.finish(WRITER)
    assert contents(file) == pair_by_hand(pair)


def test_the_last_region_may_wait_for_the_end_of_the_index(tmp_path: Path) -> None:
    pair = Pair(3, 0, [Region({0: [b"a"], 2: [b"bc"]}), Region({1: [b"d"]})])
    writer = new_writer(tmp_path)
    index = Path(writer.file.partial_index_path)
    for region, is_last in zip(pair.regions, [False, True], strict=True):
        writer.start_region(region.kind)
        writer.write_extents([(at, buffers(*each)) for at, each in region.extents.items()])
        writer.finish_region(is_last)
        assert index.stat().st_size == HEADER_BYTES + 3 * ENTRY_BYTES, "the first region's"
    writer.finish(WRITER)
    assert contents(writer.file) == pair_by_hand(pair)


def test_counts_are_those_of_the_file(tmp_path: Path) -> None:
    with new_writer(tmp_path) as writer:
        write_region(writer, Region({0: [b"x", b"y"], 2: [b"z" * 100]}), [0, 1, 2])
        write_region(writer, Region({0: [b"to all"]}, BROADCAST), [0])
        counts = (writer.regions, writer.records, writer.buffers, writer.data_bytes)
        file = writer.finish(WRITER)
    assert counts == (2, 4, 4, 56 + 2 * 64 + 128 + 64)
    assert os.path.getsize(file.data_path) == counts[3]


@pytest.mark.parametrize("first", range(4))
def test_the_write_order_starts_at_the_first_subpartition_and_wraps(tmp_path: Path, first: int) -> None:
    with new_writer(tmp_path, 4, first) as writer:
        assert writer.write_order == [0, 1, 2, 3, 0, 1, 2, 3][first : first + 4]


# Two files or none


def test_until_finish_both_names_end_in_partial_and_then_neither_does(tmp_path: Path) -> None:
    with new_writer(tmp_path) as writer:
        base = "exchange-3-map-17-attempt-204"
        assert names(tmp_path) == [f"{base}.data.partial", f"{base}.index.partial"]
        assert writer.finish(WRITER) == writer.file
        assert names(tmp_path) == [f"{base}.data", f"{base}.index"]
        assert open_files(tmp_path) == []
    assert names(tmp_path) == [f"{base}.data", f"{base}.index"]


@pytest.mark.parametrize("regions", [0, 1])
@pytest.mark.parametrize("in_region", [False, True])
def test_abandon_leaves_no_file_and_no_descriptor(tmp_path: Path, regions: int, in_region: bool) -> None:
    writer = new_writer(tmp_path)
    assert len(open_files(tmp_path)) == 2
    for _ in range(regions):
        write_region(writer, Region({1: [b"x"]}), [0, 1, 2])
    if in_region:
        writer.start_region()
        writer.write_extents([(0, buffers(b"x"))])
    writer.abandon()
    assert (names(tmp_path), open_files(tmp_path)) == ([], [])
    writer.abandon()
    assert (names(tmp_path), open_files(tmp_path)) == ([], [])


def test_an_exception_in_its_context_abandons(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_writer(tmp_path) as writer:
        writer.start_region()
        raise KeyboardInterrupt
    assert (names(tmp_path), open_files(tmp_path)) == ([], [])


def test_leaving_its_context_without_finish_abandons(tmp_path: Path) -> None:
    with new_writer(tmp_path) as writer:
        write_region(writer, Region({1: [b"x"]}), [0, 1, 2])
    assert (names(tmp_path), open_files(tmp_path)) == ([], [])


def test_abandon_closes_its_files_even_if_they_are_gone(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.file.delete()
    writer.abandon()
    assert open_files(tmp_path) == []


def test_a_finish_whose_files_are_gone_fails_and_leaves_nothing(tmp_path: Path) -> None:
    for lost in ("partial_data_path", "partial_index_path"):
        with pytest.raises(FileNotFoundError), new_writer(tmp_path) as writer:
            write_region(writer, Region({1: [b"x"]}), [0, 1, 2])
            os.unlink(getattr(writer.file, lost))
            writer.finish(WRITER)
        assert (names(tmp_path), open_files(tmp_path)) == ([], [])


@pytest.mark.parametrize("suffix", [".data", ".index", ".data.partial", ".index.partial"])
def test_files_of_the_same_attempt_are_neither_overwritten_nor_deleted(tmp_path: Path, suffix: str) -> None:
    there = tmp_path / f"exchange-3-map-17-attempt-204{suffix}"
    there.write_bytes(b"of another writer")
    with pytest.raises(FileExistsError):
        new_writer(tmp_path)
    assert names(tmp_path) == [there.name]
    assert there.read_bytes() == b"of another writer"
    assert open_files(tmp_path) == []


@pytest.mark.parametrize(("number", "suffix"), [(0, ".data"), (1, ".index")], ids=["data", "index"])
def test_a_file_of_which_the_system_does_not_tell_is_not_overwritten(
    tmp_path: Path, number: int, suffix: str
) -> None:
    (tmp_path / "other").mkdir()
    with Faults() as seen, new_writer(tmp_path / "other"):
        pass
    asked = [site for site in seen.sites if site.name == "lstat"]
    there = tmp_path / f"exchange-3-map-17-attempt-204{suffix}"
    there.write_bytes(b"of another writer")
    with Faults(Fault(asked[number], "EIO")) as made, pytest.raises(FileAccessError) as caught:
        new_writer(tmp_path).abandon()
    assert made.happened
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(there))
    assert there.read_bytes() == b"of another writer"
    assert names(tmp_path) == [there.name, "other"]


def test_a_directory_that_is_not_there_is_an_error_and_nothing_is_left_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        new_writer(tmp_path / "missing")
    assert open_files(tmp_path) == []


def test_after_a_region_that_could_not_be_ended_only_abandon_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    with new_writer(tmp_path) as writer:
        writer.start_region()
        writer.write_extents([(0, buffers(b"x"))])
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(PartitionedFileWriter, "_place_extents", no_memory)
            writer.finish_region()
        for call in (writer.start_region, writer.finish_region, lambda: writer.finish(WriterInfo())):
            with pytest.raises(StateError, match="is half written after a failed call"):
                call()
    assert os.listdir(tmp_path) == []


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    file = write_pair(tmp_path, Pair(1))
    assert {os.stat(path).st_mode & 0o777 for path in (file.data_path, file.index_path)} == {0o600}


# The order of calls


def finished(writer: PartitionedFileWriter) -> None:
    writer.finish(WRITER)


def abandoned(writer: PartitionedFileWriter) -> None:
    writer.abandon()


def in_region(writer: PartitionedFileWriter) -> None:
    writer.start_region()


def between_regions(writer: PartitionedFileWriter) -> None:
    pass


Call = Callable[[PartitionedFileWriter], object]
CALLS: dict[str, Call] = {
    "start_region": lambda writer: writer.start_region(),
    "write_extents": lambda writer: writer.write_extents([(0, buffers(b"x"))]),
    "finish_region": lambda writer: writer.finish_region(),
    "finish": lambda writer: writer.finish(WRITER),
}


@pytest.mark.parametrize(
    ("state", "call"),
    [
        (between_regions, "write_extents"),
        (between_regions, "finish_region"),
        (in_region, "start_region"),
        (in_region, "finish"),
        *((state, call) for state in (finished, abandoned) for call in CALLS),
    ],
)
def test_a_call_out_of_order_is_a_state_error(tmp_path: Path, state: Call, call: str) -> None:
    with new_writer(tmp_path) as writer:
        state(writer)
        before = names(tmp_path)
        with pytest.raises(StateError, match=state.__name__.replace("_", ".*")):
            CALLS[call](writer)
        assert names(tmp_path) == before


@pytest.mark.parametrize(
    ("first", "sequence"), [(0, [0, 1, 0]), (0, [1, 0]), (2, [0, 2]), (1, [1, 0, 2]), (0, [3]), (0, [-1])]
)
@pytest.mark.parametrize("one_call", [True, False])
def test_a_subpartition_out_of_the_write_order_is_a_state_error(
    tmp_path: Path, first: int, sequence: list[int], one_call: bool
) -> None:
    extents = [(subpartition, buffers(b"x")) for subpartition in sequence]
    with new_writer(tmp_path, first=first) as writer:
        writer.start_region()
        with pytest.raises(StateError, match=f"subpartition {sequence[-1]} comes out of order in region 0"):
            for each in [extents] if one_call else [[extent] for extent in extents]:
                writer.write_extents(each)
        # what was placed may not have been written: nothing but giving up is left
        for call in CALLS.values():
            with pytest.raises(StateError, match="failed"):
                call(writer)
    assert names(tmp_path) == []


@pytest.mark.parametrize("first", [0, 1])
def test_a_broadcast_region_has_one_extent(tmp_path: Path, first: int) -> None:
    with new_writer(tmp_path, first=first) as writer:
        writer.start_region(BROADCAST)
        with pytest.raises(StateError, match="broadcast"):
            writer.write_extents([(1, buffers(b"lost"))])


# Full disks and short writes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def test_a_full_disk_in_a_region_is_an_out_of_disk_error_and_leaves_nothing(disk: Path) -> None:
    extent = buffers(*(bytes(100_000) for _ in range(20)))
    with pytest.raises(OutOfDiskError) as caught, new_writer(disk) as writer:
        writer.start_region()
        writer.write_extents([(0, extent)])
    error = caught.value
    written = 1 << 20  # all blocks: nothing of the index is written before its first region ends
    assert (error.path, error.errno, error.free) == (str(disk), errno.ENOSPC, 0)
    assert error.wanted == sum(buffer.bytes for buffer in extent) + 56 - written
    assert f"no space left for {error.wanted} bytes below {disk} (0 bytes free)" in str(error)
    assert (names(disk), open_files(disk)) == ([], [])


def test_after_a_full_disk_only_abandon_is_left(disk: Path) -> None:
    with new_writer(disk) as writer:
        write_region(writer, Region({0: [b"x"]}), [0, 1, 2])
        writer.start_region()
        with pytest.raises(OutOfDiskError):
            writer.write_extents([(0, buffers(bytes(2 << 20)))])
        for call in CALLS.values():
            with pytest.raises(StateError, match="failed"):
                call(writer)
    assert (names(disk), open_files(disk)) == ([], [])


def test_a_disk_without_room_for_the_header_is_an_out_of_disk_error(disk: Path) -> None:
    fill(disk)
    with pytest.raises(OutOfDiskError) as caught:
        new_writer(disk)
    assert (caught.value.wanted, caught.value.free) == (56, 0)
    assert (names(disk), open_files(disk)) == (["filled"], [])


@pytest.mark.parametrize("inodes", [1, 2], ids=["no file", "one file"])
def test_a_disk_without_room_for_two_files_is_an_out_of_disk_error(tmp_path: Path, inodes: int) -> None:
    with small_disk(tmp_path / "disk", f"size=1m,nr_inodes={inodes}") as disk:
        with pytest.raises(OutOfDiskError):
            new_writer(disk)
        assert (names(disk), open_files(disk)) == ([], [])


def test_a_full_disk_at_finish_is_an_out_of_disk_error_and_leaves_nothing(disk: Path) -> None:
    with new_writer(disk) as writer:
        fill(disk)
        with pytest.raises(OutOfDiskError):
            writer.finish(WRITER, schema=bytes(1 << 20))
        with pytest.raises(StateError, match="failed"):
            writer.finish(WRITER)
    assert (names(disk), open_files(disk)) == (["filled"], [])


def test_any_other_error_of_a_write_names_the_file() -> None:
    source, out = os.pipe()
    os.close(source)
    try:
        with pytest.raises(FileAccessError) as caught:
            _write_all(out, [b"x"], "/some/file")
    finally:
        os.close(out)
    assert (caught.value.filename, caught.value.errno) == ("/some/file", errno.EPIPE)


def test_short_and_interrupted_writes_are_finished() -> None:
    """Into a pipe: a signal that arrives while the pipe is full cuts a gathered write short."""
    pieces = [bytes([number % 256]) * (1000 + number) for number in range(3000)]
    everything = b"".join(pieces)
    for signals in (1, 20):
        received, (short, _) = _through_a_pipe(lambda out: os.writev(out, pieces[:IOV_MAX]), signals)
        assert len(received) == short < sum(map(len, pieces[:IOV_MAX])), (
            "the control: the system cuts it short"
        )
        received, _ = _through_a_pipe(lambda out: _write_all(out, pieces, "a pipe"), signals)
        assert received == everything


def _through_a_pipe(write: Callable[[int], object], signals: int) -> tuple[bytes, tuple[object, int]]:
    """What arrives at the other end, while the writer is interrupted each time that the pipe is full."""
    source, out = os.pipe()
    received = bytearray()
    handled = 0
    main = threading.get_ident()

    def count(*_: object) -> None:
        nonlocal handled
        handled += 1

    def drain() -> None:
        left = signals
        while chunk := os.read(source, 30_000):
            received.extend(chunk)
            if left:
                left -= 1
                signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, count)
    reader = threading.Thread(target=drain)
    reader.start()
    try:
        result = write(out)
    finally:
        os.close(out)
        reader.join()
        os.close(source)
        signal.signal(signal.SIGUSR1, before)
    return bytes(received), (result, handled)


def test_an_error_that_is_told_as_it_is_has_no_other_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def there(path: str, flags: int, mode: int = 0) -> int:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    monkeypatch.setattr(calls, "open", there)
    with pytest.raises(FileExistsError) as caught:
        LocalPair(PartitionedFile.named(str(tmp_path), 3, 17, 204))
    assert caught.value.__cause__ is None
