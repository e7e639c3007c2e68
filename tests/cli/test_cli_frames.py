"""`dump` and `verify` on frames, pickled chunks and events: counted and checked as they lie, shown as far as
that is safe, and unpickled for nobody who did not ask."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine import ID, WRITER, changed, end_region, new_frame_output
from run_cli import run, run_json

from sortshuffle import calls
from sortshuffle.format.buffer import DataType, SealedBuffer, seal
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.options import MIB
from sortshuffle.payload.events import END_OF_DATA, END_OF_PARTITION, SUPERSTEP, seal_event
from sortshuffle.payload.pickled import pack_chunk
from sortshuffle.payload.spanning import pack_length
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter

FRAMES, PICKLE = PayloadKind.FRAMES, PayloadKind.PICKLE
KINDS = pytest.mark.parametrize("kind", [FRAMES, PICKLE], ids=["frames", "chunks"])
END = [seal_event(END_OF_DATA), seal_event(END_OF_PARTITION)]


def build(directory: Path, kind: PayloadKind, codec: Codec = Codec.NONE) -> PartitionedFile:
    """Subpartitions 1 and 3 have 5 records each, with an event and a large record among them."""
    output = new_frame_output(directory, kind=kind, codec=codec, segments=6, buffer_size=100)
    with output.partition as partition:
        for number, data in enumerate((b"first", b"", b"x" * 250, b"y" * 2000, b"last")):
            for subpartition in (1, 3):
                chunk = pack_chunk([(number, data)]) if kind is PICKLE else data
                partition.emit(chunk, subpartition)
            if number == 1:
                partition.broadcast_event(SUPERSTEP)
        return partition.finish(WRITER)


def write_buffers(
    directory: Path, extents: Sequence[Sequence[SealedBuffer]], kind: PayloadKind = FRAMES
) -> PartitionedFile:
    """One subpartition; exactly these buffers, in a region for each list."""
    file = PartitionedFile.named(str(directory), 1, 0, 1)
    with PartitionedFileWriter(file, FileHeader(ID, 1, 0, Codec.NONE, kind)) as writer:
        for buffers in extents:
            writer.start_region()
            writer.write_extents([(0, list(buffers))])
            writer.finish_region()
        return writer.finish(WRITER)


def record(data: bytes, records: int = 1) -> SealedBuffer:
    stream = pack_length(len(data)) + data
    return seal(stream, len(stream), records=records)


@KINDS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_what_was_written_is_well(tmp_path: Path, kind: PayloadKind, codec: Codec) -> None:
    file = build(tmp_path, kind, codec)
    done = run("verify", file.data_path)
    assert done.exit_code == 0
    assert done.stdout.count("OK") == 2
    code, document = run_json("dump", file.index_path)
    assert (code, document["state"], document["faults"]) == (0, "complete", [])
    assert document["header"]["payload"] == kind.name.lower()
    assert document["schema"] is None
    assert document["totals"]["rows"] == 10
    assert document["regions"][-1]["kind"] == "broadcast"
    (last,) = document["regions"][-1]["extents"]
    assert (last["rows"], last["raw_bytes"], last["buffers"]) == (0, 0, 2)


# Records


def test_frames_are_shown_by_size_and_beginning(tmp_path: Path) -> None:
    file = build(tmp_path, FRAMES)
    code, document = run_json("dump", file.data_path, "--records", 4)
    assert code == 0
    assert document["records"] == {
        "subpartition": 1,
        "of": 5,
        "unit": "frame",
        "rows": [
            {"bytes": 5, "begins with": "0x" + b"first".hex()},
            {"bytes": 0, "begins with": "0x"},
            {"bytes": 250, "begins with": "0x" + b"x".hex() * 24},
            {"bytes": 2000, "begins with": "0x" + b"y".hex() * 24},
        ],
        "problem": None,
    }
    text = run("dump", file.data_path, "--records", 2, "--subpartition", 3).stdout
    assert "The first 2 of 5 frames of subpartition 3" in text


def test_chunks_are_shown_by_number_and_size(tmp_path: Path) -> None:
    file = build(tmp_path, PICKLE)
    _, document = run_json("dump", file.data_path, "--records", 100)
    rows = document["records"]["rows"]
    assert [row["objects"] for row in rows] == [1] * 5
    assert rows[3]["bytes"] == len(pack_chunk([(3, b"y" * 2000)]))
    assert (document["records"]["unit"], document["records"]["of"]) == ("chunk", 5)
    text = run("dump", file.data_path, "--records", 1).stdout
    assert "The first 1 chunk of subpartition 1, which has 5 objects" in text


def test_objects_are_shown_to_who_says_so(tmp_path: Path) -> None:
    file = build(tmp_path, PICKLE)
    _, document = run_json("dump", file.data_path, "--records", 2, "--unpickle")
    assert document["records"]["rows"] == [{"object": [0, "0x" + b"first".hex()]}, {"object": [1, "0x"]}]
    assert (document["records"]["unit"], document["records"]["of"]) == ("object", 5)
    text = run("dump", file.data_path, "--records", 2, "--unpickle").stdout
    assert "The first 2 of 5 objects of subpartition 1" in text


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_nothing_is_unpickled_that_was_not_asked_for(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    output = new_frame_output(tmp_path, kind=PICKLE, subpartitions=1)
    with output.partition as partition:
        partition.emit(pack_chunk([Bomb(str(trace))]), 0)
        partition.finish(WRITER)
    for command in (["verify"], ["dump"], ["dump", "--records", 5], ["dump", "--json", "--records", 5]):
        assert run(command[0], output.file.data_path, *command[1:]).exit_code == 0
    assert not trace.exists()
    run("dump", output.file.data_path, "--records", 5, "--unpickle")
    assert trace.exists()


class Unknown:
    """Is gone where it is unpickled."""


def test_objects_that_cannot_be_unpickled_are_a_reason_not_a_crash(tmp_path: Path) -> None:
    output = new_frame_output(tmp_path, kind=PICKLE, subpartitions=1)
    chunk = pack_chunk([Unknown()]).replace(b"Unknown", b"Unknowm")
    with output.partition as partition:
        partition.emit(chunk, 0)
        partition.finish(WRITER)
    code, document = run_json("dump", output.file.data_path, "--records", 1, "--unpickle")
    assert code == 0
    assert "cannot be unpickled here" in document["records"]["problem"]


@pytest.mark.parametrize("arguments", [["--unpickle"], ["--unpickle", "--subpartition", 1]])
def test_unpickling_needs_a_number(tmp_path: Path, arguments: list[object]) -> None:
    done = run("dump", build(tmp_path, PICKLE).data_path, *arguments)
    assert done.exit_code == 2
    assert "--unpickle needs --records N" in done.stderr


# Faults that checksums do not find


@pytest.mark.parametrize(
    ("extents", "what"),
    [
        ([[record(b"a")]], "do not end with END_OF_DATA and END_OF_PARTITION"),
        ([[record(b"a")], END[:1]], "do not end with END_OF_DATA and END_OF_PARTITION"),
        ([[record(b"a")], END[::-1]], "do not end with END_OF_DATA and END_OF_PARTITION"),
        ([[record(b"a")], END, [record(b"b")]], "do not end with END_OF_DATA and END_OF_PARTITION"),
        ([[seal(b"\5\0\0\0cut", 7, records=1)], END], "the last record is cut short"),
        ([[seal(b"\5\0", 2, records=0)], END], "the length of the last record is cut short"),
        ([[record(b"a", 2)], END], "the extent has other records"),
        ([[seal(b"x", 1, records=0, data_type=DataType.SUPERSTEP)], END], "bytes too many"),
        ([[seal(b"x", 1, records=0, data_type=DataType.BARRIER)], END], "BARRIER event is cut short"),
        ([[seal(b"\5\0\0\0", 4, records=0), *END]], "the last record is cut short"),
    ],
)
def test_what_no_reader_would_take_is_a_fault(
    tmp_path: Path, extents: list[list[SealedBuffer]], what: str
) -> None:
    file = write_buffers(tmp_path, extents)
    done = run("verify", file.data_path)
    assert done.exit_code == 1
    assert what in done.stdout


def test_a_chunk_that_is_none_is_a_fault(tmp_path: Path) -> None:
    file = write_buffers(tmp_path, [[record(b"\1\0\0\0abc")], END], PICKLE)
    done = run("verify", file.data_path)
    assert (done.exit_code, "no pickle" in done.stdout) == (1, True)


def test_a_fault_is_placed_at_its_buffer(tmp_path: Path) -> None:
    bad = seal(b"x", 1, records=0, data_type=DataType.SUPERSTEP)
    file = write_buffers(tmp_path, [[record(b"a")], [record(b"b"), bad], END])
    _, document = run_json("dump", file.data_path)
    (fault,) = document["faults"]
    extent = extents_of(read_index(file), 0)[1]
    assert (fault["region"], fault["offset"]) == (1, extent.offset + 64)


def test_a_full_temporary_disk_is_no_fault_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large record is put together there. All that needs no such record is checked all the same."""

    def refuse(directory: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), directory)

    output = new_frame_output(tmp_path, kind=PICKLE, subpartitions=2, segments=16, segment_bytes=MIB)
    with output.partition as partition:
        partition.emit(pack_chunk([b"x" * (6 * MIB)]), 0)
        partition.emit(pack_chunk([1]), 1)
        file = partition.finish(WRITER)
    monkeypatch.setattr(calls, "nameless_file", refuse)
    result = run("verify", file.data_path)
    index, data = result.stdout.splitlines()
    assert (result.exit_code, index.split()[0], data.split()[0]) == (1, "OK", "PART")
    assert "no fault was found, but not all could be checked here: no space left for" in data
    code, verified = run_json("verify", file.data_path)
    assert (code, verified["sound"]) == (1, False)
    code, document = run_json("dump", file.data_path)
    assert (code, document["state"], document["faults"]) == (1, "not all could be checked", [])
    assert document["unchecked"].startswith("no space left for")
    assert "Not all could be checked here: no space left for" in run("dump", file.data_path).stdout
    assert "not all could be checked: no space left for" in run("dump", tmp_path).stdout
    extent = extents_of(read_index(file), 1)[0]
    with changed(file.data_path, extent.offset + 20, 1):
        assert "FAULT" in run("verify", file.data_path).stdout.splitlines()[1]


# Unfinished


@KINDS
def test_what_a_task_is_writing_is_sound_so_far(tmp_path: Path, kind: PayloadKind) -> None:
    output = new_frame_output(tmp_path, kind=kind, subpartitions=2)
    with output.partition as partition:
        for number in range(10):
            partition.emit(pack_chunk([number]) if kind is PICKLE else b"%d" % number, 1)
            end_region(partition)
        done = run("verify", output.file.partial_data_path)
        assert (done.exit_code, done.stdout.count("OPEN")) == (0, 2)
        _, document = run_json("dump", output.file.partial_data_path, "--records", 3)
        assert document["totals"]["rows"] == 10
        assert len(document["records"]["rows"]) == 3


@KINDS
def test_without_an_index_buffers_are_listed_but_records_not_counted(
    tmp_path: Path, kind: PayloadKind
) -> None:
    file = build(tmp_path, kind)
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    moved = shutil.move(file.data_path, lonely)
    code, document = run_json("dump", moved)
    assert code == 1
    loose = document["loose_buffers"]
    assert {(each["type"], each["rows"]) for each in loose} == {
        ("data", None),
        ("superstep", 0),
        ("end_of_data", 0),
        ("end_of_partition", 0),
    }
    assert "superstep" in run("dump", moved).stdout
