"""`sortshuffle verify` on real files: sound ones, and every kind of fault."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from built_outputs import BROADCAST_ROWS, FILE_ID, ROWS, SCHEMA, build, fill, rows, start
from run_cli import deep, put_into, run, run_json, unlistable

from sortshuffle import calls
from sortshuffle.cli.pair_report import pairs_below
from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter

verify_module = import_module("sortshuffle.cli.verify")


@pytest.fixture
def file(tmp_path: Path) -> PartitionedFile:
    return build(tmp_path)


def faults(*arguments: object) -> list[str]:
    """The lines of files with a fault; checks that the exit code goes with them."""
    result = run("verify", *arguments)
    found = [line for line in result.stdout.splitlines() if line.startswith("FAULT")]
    assert result.exit_code == (1 if found else 0)
    return found


def written_with(tmp_path: Path, buffer: SealedBuffer) -> PartitionedFile:
    """A map output whose one buffer is as the caller says, true or not."""
    header = FileHeader(FILE_ID, 1, 0, Codec.LZ4, PayloadKind.ARROW)
    with PartitionedFileWriter(PartitionedFile.named(str(tmp_path), 1, 0, 1), header) as writer:
        writer.start_region()
        writer.write_extents([(0, [buffer])])
        writer.finish_region()
        return writer.finish(WriterInfo(), SCHEMA.serialize().to_pybytes())


def encoded() -> SealedBuffer:
    return ArrowPayload(SCHEMA, Codec.LZ4).encode(rows(0, 1000), TaskMetrics().seconds)


def test_a_sound_pair_has_one_line_per_file(file: PartitionedFile) -> None:
    result = run("verify", file.data_path)
    assert result.exit_code == 0
    index, data = result.stdout.splitlines()
    assert index == f"OK     {file.index_path}: 3 regions, 8 subpartitions"
    size = os.path.getsize(file.data_path)
    assert data.startswith(f"OK     {file.data_path}: {size:,} bytes, 15 extents, ")
    assert data.endswith(f" {2 * ROWS + BROADCAST_ROWS:,} rows")


def test_each_pair_is_verified_once_however_often_it_is_named(file: PartitionedFile, tmp_path: Path) -> None:
    build(tmp_path, map_index=1, attempt=101)
    result = run("verify", file.data_path, file.index_path, tmp_path, tmp_path)
    assert len(result.stdout.splitlines()) == 4


def test_every_flipped_byte_is_a_fault_of_its_file(file: PartitionedFile) -> None:
    for path in (file.data_path, file.index_path):
        content = Path(path).read_bytes()
        for offset in range(0, len(content), len(content) // 150):
            changed = bytearray(content)
            changed[offset] ^= 1 << offset % 8
            Path(path).write_bytes(changed)
            (line,) = faults(file.data_path)
            assert line.startswith(f"FAULT  {path}: "), (path, offset)
        Path(path).write_bytes(content)
    assert faults(file.data_path) == []


def test_a_fault_has_its_place(file: PartitionedFile) -> None:
    content = bytearray(Path(file.data_path).read_bytes())
    content[70] ^= 1  # the first extent is that of the header's first subpartition
    content[-70] ^= 1  # the last one is broadcast
    Path(file.data_path).write_bytes(content)
    (line,) = faults(file.data_path)
    assert "region 0, subpartition 3, offset 56: a buffer fails its checksum: expected 0x" in line
    assert "(and 1 more fault: see sortshuffle dump)" in line


def test_rows_are_counted_by_decoding_them(tmp_path: Path) -> None:
    (line,) = faults(written_with(tmp_path, replace(encoded(), records=999)).data_path)
    assert "the extent has other records: expected 999, found 1000" in line


def test_raw_bytes_are_counted_by_decompressing_them(tmp_path: Path) -> None:
    buffer = encoded()
    (line,) = faults(written_with(tmp_path, replace(buffer, raw_bytes=buffer.raw_bytes + 1)).data_path)
    assert f"expected {buffer.raw_bytes + 1}, found {buffer.raw_bytes}" in line


def test_a_missing_half_is_a_fault(file: PartitionedFile) -> None:
    os.unlink(file.index_path)
    (line,) = faults(file.data_path)
    assert line == f"FAULT  {file.index_path}: the index file is missing"


def test_what_a_live_task_writes_is_no_fault_and_what_a_dead_one_left_is(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    dead.mkdir()
    (dead / "owner.json").touch()  # a home, in which writers lock their files
    with start(tmp_path) as output:
        fill(output)
        for path in tmp_path.glob("*.partial"):
            shutil.copy(path, dead)
        lines = run("verify", *tmp_path.glob("*.data.partial")).stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["OPEN", "OPEN"]
        assert "being written, sound so far; 2 regions" in lines[0]
        found = faults(tmp_path)
        assert len(found) == 2
        assert all("unfinished" in line and f"{dead}/" in line for line in found)


def test_what_nobody_locks_outside_a_home_may_be_being_written(tmp_path: Path) -> None:
    """As in a directory that all hosts have mounted, named by its path."""
    copied = tmp_path / "copied"
    copied.mkdir()
    with start(tmp_path) as output:
        fill(output)
        for path in tmp_path.glob("*.partial"):
            shutil.copy(path, copied)
    result = run("verify", copied)
    lines = result.stdout.splitlines()
    assert (result.exit_code, [line.split()[0] for line in lines]) == (0, ["OPEN", "OPEN"])
    assert "unfinished, or being written: no locks are kept there that would tell" in lines[1]


def test_where_locks_cannot_be_asked_for_an_unfinished_file_counts_as_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with start(tmp_path) as output, monkeypatch.context() as lockless:
        fill(output)
        lockless.setattr(calls, "flock", refuse)
        result = run("verify", tmp_path)
        assert result.exit_code == 0
        assert [line.split()[0] for line in result.stdout.splitlines()] == ["OPEN", "OPEN"]


def test_a_pipe_that_is_named_like_a_map_output_is_not_waited_for(
    file: PartitionedFile, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "exchange-3-map-8-attempt-108.data.partial")
    result = run("verify", tmp_path)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)


def test_damage_in_an_unfinished_file_is_told_from_its_being_unfinished(tmp_path: Path) -> None:
    with start(tmp_path) as output:
        fill(output)
        (partial,) = tmp_path.glob("*.data.partial")
        content = bytearray(partial.read_bytes())
        content[100] ^= 1
        partial.write_bytes(content)
        (line,) = faults(partial)
        assert "region 0, subpartition 3, offset 56: a buffer fails its checksum" in line


def test_what_is_not_ours_is_a_fault_but_stops_nothing(file: PartitionedFile, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("something else")
    result = run("verify", other, file.data_path)
    assert result.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["FAULT", "OK", "OK"]
    assert f"{other}: is not a file of sortshuffle" in result.stdout


def test_a_path_that_is_not_there_is_a_wrong_call(file: PartitionedFile) -> None:
    result = run("verify", file.data_path, file.data_path + "x")
    assert result.exit_code == 2
    assert result.stdout == ""


def test_an_empty_directory_is_said(tmp_path: Path) -> None:
    result = run("verify", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no map outputs below" in result.stderr
    code, document = run_json("verify", tmp_path)
    assert (code, document) == (2, {"sound": False, "files": [], "passed_over": [], "error": None})


def test_an_empty_directory_beside_a_sound_file_is_no_fault(file: PartitionedFile, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    result = run("verify", empty, file.data_path)
    assert result.exit_code == 0
    assert "no map outputs below" in result.stderr


def test_a_directory_that_cannot_be_listed_is_not_sound(file: PartitionedFile, tmp_path: Path) -> None:
    path = unlistable(tmp_path)
    code, document = run_json("verify", tmp_path)
    assert (code, document["sound"]) == (1, False)
    assert document["passed_over"] == [{"path": path, "why": "File name too long"}]
    assert [each["verdict"] for each in document["files"]] == ["OK", "OK"]
    result = run("verify", tmp_path)
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 2)
    assert result.stderr == f"{path} is passed over: File name too long\n"


def test_a_file_of_which_the_system_does_not_say_what_it_is_is_not_sound(
    file: PartitionedFile, tmp_path: Path
) -> None:
    name = "exchange-3-map-1-attempt-101.data"
    path = deep(tmp_path)
    put_into(path, name)
    code, document = run_json("verify", tmp_path)
    assert (code, document["sound"]) == (1, False)
    assert document["passed_over"] == [{"path": f"{path}/{name}", "why": "File name too long"}]
    assert [each["verdict"] for each in document["files"]] == ["OK", "OK"]


def test_outputs_that_have_all_gone_since_they_were_listed_are_said(
    file: PartitionedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, map_index=1, attempt=101)

    def listed_and_removed(directory: str, on_error: Callable[[OSError], None]) -> list[str]:
        found = pairs_below(directory, on_error)
        for path in tmp_path.iterdir():
            path.unlink()
        return found

    monkeypatch.setattr(verify_module, "pairs_below", listed_and_removed)
    result = run("verify", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    first = f"{file.base}.data is not there (nor 1 other map output)."
    assert result.stderr == f"There is nothing to check: {first}\n"


def test_json_says_the_same_as_the_lines(file: PartitionedFile) -> None:
    code, sound = run_json("verify", file.data_path)
    assert (code, sound["sound"]) == (0, True)
    os.truncate(file.data_path, 1000)
    code, damaged = run_json("verify", file.data_path)
    assert (code, damaged["sound"]) == (1, False)
    for found in (sound, damaged):
        assert [each["path"] for each in found["files"]] == [file.index_path, file.data_path]
    assert [each["verdict"] for each in sound["files"]] == ["OK", "OK"]
    assert "FAULT" in [each["verdict"] for each in damaged["files"]]
    lines = run("verify", file.data_path).stdout.splitlines()
    assert lines == [f"{each['verdict']:<5}  {each['path']}: {each['why']}" for each in damaged["files"]]
