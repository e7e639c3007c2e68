"""`sortshuffle dump` on real files: whole, unfinished, damaged, alone, many, and not ours."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from built_outputs import (
    BROADCAST_ROWS,
    CROWDED,
    EMPTY,
    FILE_ID,
    FIRST,
    ROWS,
    SUBPARTITIONS,
    build,
    expected_rows,
    fill,
    start,
)
from run_cli import run, run_json, unlistable

from sortshuffle.cli.dump_text import LIMIT
from sortshuffle.format.buffer import seal
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.row_partition import RowResultPartition


@pytest.fixture
def file(tmp_path: Path) -> PartitionedFile:
    return build(tmp_path)


def flip(path: str, offset: int) -> None:
    content = bytearray(Path(path).read_bytes())
    content[offset] ^= 0x10
    Path(path).write_bytes(content)


def extents(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for region in document["regions"]:
        yield from region["extents"]


def table_lines(text: str) -> list[list[str]]:
    """The rows of the table of extents, in words."""
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("region"))
    return [line.split() for line in lines[first + 1 : lines.index("", first)]]


# ---- a whole pair ---------------------------------------------------------------------------------------


def test_json_says_everything_of_a_whole_pair(file: PartitionedFile) -> None:
    code, document = run_json("dump", file.index_path)
    assert code == 0
    assert document["path"] == file.base
    assert (document["state"], document["faults"], document["data_read"]) == ("complete", [], True)
    assert document["data"] == {"path": file.data_path, "bytes": os.path.getsize(file.data_path)}
    assert document["header"] == {
        "version": 1,
        "id": FILE_ID.hex(),
        "subpartitions": SUBPARTITIONS,
        "first_subpartition": FIRST,
        "codec": "lz4",
        "payload": "arrow",
        "encrypted": False,
    }
    assert document["writer"] == {
        "application": "app-1",
        "exchange": 3,
        "stage": 4,
        "map_index": 0,
        "attempt": 100,
        "host": "host-a",
        "time": "2025-11-20T07:00:00.000+00:00",
        "software": "sortshuffle 0.1.0",
        "ordering": [],
        "driver": "",
    }
    assert document["schema"][0] == {"name": "k", "type": "int64", "nullable": False}
    assert [region["kind"] for region in document["regions"]] == ["unicast", "unicast", "broadcast"]
    assert document["loose_buffers"] == []


def test_json_counts_what_each_subpartition_gets(file: PartitionedFile) -> None:
    _, document = run_json("dump", file.data_path)
    rows = [0] * SUBPARTITIONS
    for extent in extents(document):
        for subpartition in (
            range(SUBPARTITIONS) if extent["subpartition"] is None else [extent["subpartition"]]
        ):
            rows[subpartition] += extent["rows"]
    assert rows == [len(expected_rows(s)) for s in range(SUBPARTITIONS)]
    assert document["totals"]["rows"] == 2 * ROWS + BROADCAST_ROWS
    assert document["totals"]["bytes"] == document["data"]["bytes"] - 56
    assert document["skew"]["rows"] == {
        "min": len(expected_rows(EMPTY)),
        "median": float(np.median(rows)),
        "max": len(expected_rows(CROWDED)),
        "largest_subpartition": CROWDED,
        "empty_subpartitions": 0,
    }


def test_json_ratios_and_offsets(file: PartitionedFile) -> None:
    _, document = run_json("dump", file.data_path)
    position = 56
    for extent in sorted(extents(document), key=lambda each: (each["offset"], each["bytes"])):
        assert extent["offset"] == position
        position += extent["bytes"]
        if extent["bytes"]:
            assert extent["ratio"] == round(extent["raw_bytes"] / extent["bytes"], 4) > 1
        else:
            assert (extent["ratio"], extent["buffers"], extent["rows"]) == (None, 0, 0)
        assert not extent["damaged"]
    assert position == document["data"]["bytes"]


def test_empty_subpartitions_are_counted(tmp_path: Path) -> None:
    file = build(tmp_path, broadcast=False)
    _, document = run_json("dump", file.data_path)
    assert document["skew"]["bytes"]["empty_subpartitions"] == 1
    assert document["skew"]["bytes"]["min"] == 0


def test_the_page_of_a_whole_pair(file: PartitionedFile) -> None:
    result = run("dump", file.data_path)
    assert result.exit_code == 0
    text = result.stdout
    assert text.startswith("exchange-3-map-0-attempt-100: complete\n")
    assert "application app-1, exchange 3, stage 4, map 0, attempt 100, on host-a" in text
    assert "version 1, arrow, codec lz4" in text
    assert "k int64 not null, name string, price decimal128(10, 2), seen timestamp[us, tz=UTC]" in text
    assert f"{2 * ROWS + BROADCAST_ROWS:,} rows" in text
    rows = table_lines(text)
    assert len(rows) == 2 * SUBPARTITIONS + 1
    assert rows[-1][:2] == ["2", "all"]
    _, document = run_json("dump", file.data_path)
    crowded = document["regions"][0]["extents"][CROWDED]
    assert rows[CROWDED] == [
        "0",
        str(CROWDED),
        str(crowded["offset"]),
        f"{crowded['bytes']:,}",
        str(crowded["buffers"]),
        str(crowded["rows"]),
        f"{crowded['ratio']:.2f}",
    ]
    assert rows[EMPTY] == ["0", str(EMPTY), "0", "0", "0"]


def test_plain_output_has_no_trailing_blanks_and_nothing_drawn(file: PartitionedFile) -> None:
    for arguments in ([], ["--records", "3"]):
        text = run("dump", file.data_path, *arguments).stdout
        assert text.isascii()
        assert all(line == line.rstrip() for line in text.splitlines())


def test_one_subpartition(file: PartitionedFile) -> None:
    rows = table_lines(run("dump", file.data_path, "--subpartition", CROWDED).stdout)
    assert [row[:2] for row in rows] == [["0", str(CROWDED)], ["1", str(CROWDED)], ["2", "all"]]
    _, document = run_json("dump", file.data_path, "--subpartition", CROWDED)
    assert [extent["subpartition"] for extent in extents(document)] == [CROWDED, CROWDED, None]
    result = run("dump", file.data_path, "--subpartition", SUBPARTITIONS)
    assert result.exit_code == 2
    assert "from 0 to 7" in result.stderr


def test_a_long_table_is_cut_unless_all_is_asked_for(tmp_path: Path) -> None:
    file = build(tmp_path, subpartitions=200, broadcast=False, count=4000)
    text = run("dump", file.data_path).stdout
    assert "more rows: --all shows them, --subpartition S those of one." in text
    assert len(table_lines(text)) == LIMIT + 1
    whole = run("dump", file.data_path, "--all").stdout
    assert "--all" not in whole
    numbers = {row[1] for row in table_lines(whole)}
    assert {"0", "199"} <= numbers
    _, document = run_json("dump", file.data_path)
    assert len(document["regions"][0]["extents"]) == 200


def test_runs_of_empty_subpartitions_take_one_row(tmp_path: Path) -> None:
    file = build(tmp_path, subpartitions=100, broadcast=False, unicast_regions=1, count=3)
    rows = table_lines(run("dump", file.data_path).stdout)
    assert [row[1] for row in rows] == ["0", "1", "2", "3-99"]


def test_quick_reads_no_data(file: PartitionedFile) -> None:
    flip(file.data_path, 3000)
    result = run("dump", file.data_path, "--quick")
    assert result.exit_code == 0
    assert "The data was not read" in result.stdout
    assert run("dump", file.data_path).exit_code == 1
    code, document = run_json("dump", file.data_path, "--quick")
    assert (code, document["data_read"]) == (0, False)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec(tmp_path: Path, codec: Codec) -> None:
    file = build(tmp_path, codec=codec)
    code, document = run_json("dump", file.data_path, "--records", "2")
    assert code == 0
    assert document["header"]["codec"] == codec.name.lower()
    assert len(document["records"]["rows"]) == 2


# ---- records --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subpartition", range(SUBPARTITIONS))
def test_records_are_those_of_the_subpartition_in_order(file: PartitionedFile, subpartition: int) -> None:
    _, document = run_json("dump", file.data_path, "--records", 100_000, "--subpartition", subpartition)
    records = document["records"]
    assert [row["k"] for row in records["rows"]] == expected_rows(subpartition)
    assert (records["subpartition"], records["of"]) == (subpartition, len(records["rows"]))


def test_records_are_printable(file: PartitionedFile) -> None:
    _, document = run_json("dump", file.data_path, "--records", 2, "--subpartition", CROWDED)
    first, second = expected_rows(CROWDED)[:2]
    assert second % 7 == 0
    assert document["records"]["rows"] == [
        {
            "k": first,
            "name": f"name {first}",
            "price": f"{first / 4:.2f}",
            "seen": "2013-01-01T00:00:18+00:00",
            "raw": "0x00000012",
        },
        {
            "k": second,
            "name": None,
            "price": f"{second / 4:.2f}",
            "seen": "2013-01-01T00:00:42+00:00",
            "raw": "0x0000002a",
        },
    ]


def test_records_as_a_table(file: PartitionedFile) -> None:
    text = run("dump", file.data_path, "--records", 2, "--subpartition", CROWDED).stdout
    assert text.splitlines()[-3:] == [
        " k  name     price  seen                       raw",
        "18  name 18  4.50   2013-01-01T00:00:18+00:00  0x00000012",
        "42  null     10.50  2013-01-01T00:00:42+00:00  0x0000002a",
    ]


def test_records_without_a_subpartition_are_of_the_first_that_has_any(tmp_path: Path) -> None:
    file = build(tmp_path, subpartitions=8, broadcast=False, unicast_regions=1, count=1)
    _, document = run_json("dump", file.data_path, "--records", 5)
    assert document["records"]["subpartition"] == 0
    assert [row["k"] for row in document["records"]["rows"]] == [0]


def one_batch(tmp_path: Path, batch: pa.RecordBatch) -> PartitionedFile:
    """A map output with one subpartition that holds a batch of any schema."""

    class Zero:
        subpartitions = 1

        def assign(self, batch: pa.RecordBatch) -> np.ndarray:
            return np.zeros(batch.num_rows, np.uint8)

    header = FileHeader(FILE_ID, 1, 0, Codec.NONE, PayloadKind.ARROW)
    layout = PartitionLayout(ArrowPayload(batch.schema, Codec.NONE), Zero(), 64 * KIB)
    writer = PartitionedFileWriter(PartitionedFile.named(str(tmp_path), 1, 0, 1), header)
    with RowResultPartition(writer, layout, MemoryBudget(MIB), TaskMetrics()) as output:
        output.write(batch)
        return output.finish(WriterInfo(application="app\x1b[31m"))


def test_values_that_python_or_json_have_no_room_for(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "far": pa.array([2**62], pa.timestamp("us")),
            "nan": pa.array([float("nan")]),
            "long": pa.array([-(2**63)], pa.int64()),
            "nested": pa.array([{"a": [b"\x00", None], "b": 1.5}]),
            "map": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())),
            "nothing": pa.nulls(1),
        }
    )
    file = one_batch(tmp_path, batch)
    code, document = run_json("dump", file.data_path, "--records", 1)
    assert code == 0
    (row,) = document["records"]["rows"]
    assert isinstance(row.pop("far"), str)
    assert row == {
        "nan": "nan",
        "long": -(2**63),
        "nested": {"a": ["0x00", None], "b": 1.5},
        "map": [["x", 1]],
        "nothing": None,
    }


def test_columns_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([2])], names=["k", "k"])
    _, document = run_json("dump", one_batch(tmp_path, batch).data_path, "--records", 1)
    assert document["records"]["rows"] == [{"k": 1, "k#2": 2}]


def test_text_from_files_cannot_drive_the_terminal(tmp_path: Path) -> None:
    batch = pa.record_batch({"evil\x1b[2J": ["line\nfeed \x1b[31mred", "[bold]not markup[/bold]"]})
    text = run("dump", one_batch(tmp_path, batch).data_path, "--records", 2).stdout
    assert "\x1b" not in text
    assert "line\\nfeed \\x1b[31mred" in text
    assert "[bold]not markup[/bold]" in text
    assert "app\\x1b[31m" in text


# ---- damage ---------------------------------------------------------------------------------------------


def test_a_damaged_extent_is_marked_and_named(file: PartitionedFile) -> None:
    _, before = run_json("dump", file.data_path)
    bad = before["regions"][1]["extents"][CROWDED]
    flip(file.data_path, bad["offset"] + 700)
    code, document = run_json("dump", file.data_path)
    assert (code, document["state"]) == (1, "damaged")
    assert [(e["subpartition"], e["offset"]) for e in extents(document) if e["damaged"]] == [
        (CROWDED, bad["offset"])
    ]
    (fault,) = document["faults"]
    assert fault["file"] == file.data_path
    assert (fault["region"], fault["subpartition"], fault["offset"]) == (1, CROWDED, bad["offset"])
    assert fault["what"] == "a buffer fails its checksum"

    result = run("dump", file.data_path)
    assert result.exit_code == 1
    assert table_lines(result.stdout)[SUBPARTITIONS + CROWDED][-1] == "damaged"
    assert f"region 1, subpartition {CROWDED}, offset {bad['offset']}: a buffer fails" in result.stdout


def test_records_leave_out_what_is_damaged(file: PartitionedFile) -> None:
    _, before = run_json("dump", file.data_path)
    flip(file.data_path, before["regions"][0]["extents"][CROWDED]["offset"] + 700)
    _, document = run_json("dump", file.data_path, "--records", 100_000, "--subpartition", CROWDED)
    keys = [row["k"] for row in document["records"]["rows"]]
    assert keys == [k for k in expected_rows(CROWDED) if k >= ROWS * SUBPARTITIONS] + expected_rows(0)[-4:]


def test_a_damaged_index_leaves_the_buffers(file: PartitionedFile) -> None:
    flip(file.index_path, 200)
    code, document = run_json("dump", file.index_path)
    assert code == 1
    assert document["regions"] is None and document["totals"] is None and document["writer"] is None
    assert [fault["what"] for fault in document["faults"]] == ["the index fails its checksum"]
    assert sum(each["rows"] for each in document["loose_buffers"]) == 2 * ROWS + BROADCAST_ROWS
    text = run("dump", file.index_path).stdout
    assert "which region and subpartition they are of cannot be told" in text
    assert "the index fails its checksum" in text


def test_half_a_pair(file: PartitionedFile, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    data = shutil.copy(file.data_path, alone)
    code, document = run_json("dump", data, "--records", 3)
    assert code == 1
    assert document["index"] is None and len(document["loose_buffers"]) > 0
    assert "schema" in document["records"]["problem"]
    assert "the index file is missing" in run("dump", data).stdout
    os.unlink(data)
    index = shutil.copy(file.index_path, alone)
    code, document = run_json("dump", index, "--records", 3)
    assert code == 1
    assert document["totals"]["rows"] == 2 * ROWS + BROADCAST_ROWS
    assert document["records"]["rows"] is None
    assert "the data file is missing" in run("dump", index).stdout


def test_two_files_that_do_not_belong_together(file: PartitionedFile, tmp_path: Path) -> None:
    content = bytearray(Path(file.data_path).read_bytes())
    header = FileHeader.unpack(bytes(content[:56]), bytes(content[:8]))
    content[:56] = replace(header, file_id=b"x" * 16).pack(bytes(content[:8]))
    Path(file.data_path).write_bytes(content)
    code, document = run_json("dump", file.data_path, "--records", 1)
    assert code == 1
    assert "not the one that the index describes" in document["faults"][0]["what"]
    assert document["records"]["rows"] is None


def test_no_flipped_byte_goes_unseen_or_crashes(file: PartitionedFile) -> None:
    for path in (file.data_path, file.index_path):
        size = os.path.getsize(path)
        for offset in [*range(0, 56, 5), *range(56, size, size // 60), *range(size - 56, size, 5)]:
            flip(path, offset)
            code, document = run_json("dump", path, "--records", 3)
            assert code == 1 and document["faults"], (path, offset)
            text = run("dump", path, "--records", 3)
            assert text.exit_code == 1
            assert text.stdout.splitlines()[0].endswith(": damaged"), (path, offset)
            flip(path, offset)
    assert run("dump", file.data_path).exit_code == 0


def test_no_cut_goes_unseen_or_crashes(file: PartitionedFile) -> None:
    for path in (file.data_path, file.index_path):
        content = Path(path).read_bytes()
        for size in [0, 1, 8, 10, 55, 56, 57, *range(64, len(content), len(content) // 25), len(content) - 1]:
            Path(path).write_bytes(content[:size])
            code, document = run_json("dump", path, "--records", 3)
            assert code == 1 and document["faults"], (path, size)
            assert run("dump", path).exit_code == 1
        Path(path).write_bytes(content)


def test_rows_that_do_not_decode_are_a_fault(tmp_path: Path) -> None:
    header = FileHeader(FILE_ID, 1, 0, Codec.NONE, PayloadKind.ARROW)
    writer = PartitionedFileWriter(PartitionedFile.named(str(tmp_path), 1, 0, 1), header)
    with writer:
        writer.start_region()
        writer.write_extents([(0, [seal(b"not Arrow", 9, records=1)])])
        writer.finish_region()
        file = writer.finish(WriterInfo(), pa.schema([("k", pa.int64())]).serialize().to_pybytes())
    code, document = run_json("dump", file.data_path, "--records", 1)
    assert code == 1
    assert "cannot be decoded" in document["faults"][0]["what"]
    assert document["records"]["rows"] == []


# ---- unfinished -----------------------------------------------------------------------------------------


def test_what_a_task_is_writing_shows_its_completed_regions(tmp_path: Path) -> None:
    with start(tmp_path) as output:
        fill(output)
        partial = PartitionedFile.named(str(tmp_path), 3, 0, 100).partial_data_path
        code, document = run_json("dump", partial)
        assert (code, document["state"]) == (1, "being written")
        assert document["totals"]["rows"] == 2 * ROWS
        assert "A task is writing this map output" in run("dump", partial).stdout


def test_what_a_killed_task_left(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    dead.mkdir()
    (dead / "owner.json").touch()  # a home, in which writers lock their files
    with start(tmp_path) as output:
        fill(output)
        for path in tmp_path.glob("*.partial"):
            shutil.copy(path, dead)
    partial = PartitionedFile.named(str(dead), 3, 0, 100)
    whole = os.path.getsize(partial.partial_data_path)
    with open(partial.partial_data_path, "ab") as opened:  # the beginning of a third region
        opened.write(Path(partial.partial_data_path).read_bytes()[56 : 56 + 3000])
    for path in (partial.partial_data_path, partial.partial_index_path):
        code, document = run_json("dump", path, "--records", 1)
        assert (code, document["state"]) == (1, "unfinished")
        assert document["totals"]["rows"] == 2 * ROWS
        assert document["loose_buffers"][0]["offset"] == whole
        assert document["stopped_at"] > whole
        assert "not written yet" in document["records"]["problem"]
        text = run("dump", path).stdout
        assert "Buffers of the region that was being written" in text
        assert f"From offset {document['stopped_at']} on nothing can be told" in text
        assert "`sortshuffle clean` removes it" in text


# ---- directories ----------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two homes with three map outputs of one exchange, one of another; and Spark's own files."""
    homes = [tmp_path / f"blockmgr-{n}" / "sortshuffle" / "app-1" / f"host-{n}" for n in (1, 2)]
    for home in homes:
        home.mkdir(parents=True)
    build(homes[0], map_index=0, attempt=100)
    build(homes[0], map_index=1, attempt=101)
    build(homes[1], map_index=2, attempt=102, count=100)
    build(homes[1], exchange=4, map_index=0, attempt=103, unicast_regions=1, broadcast=False, subpartitions=2)
    (tmp_path / "blockmgr-1" / "shuffle_0_1_0.data").write_bytes(b"Spark's own")
    return tmp_path


def test_a_directory_is_listed_and_added_up(directory: Path) -> None:
    code, document = run_json("dump", directory)
    assert (code, document["incomplete"]) == (0, 0)
    assert [os.path.basename(pair["path"]) for pair in document["pairs"]] == [
        "exchange-3-map-0-attempt-100",
        "exchange-3-map-1-attempt-101",
        "exchange-3-map-2-attempt-102",
        "exchange-4-map-0-attempt-103",
    ]
    third, fourth = document["exchanges"]
    assert (third["application"], third["exchange"], third["map_outputs"], third["maps"]) == (
        "app-1",
        3,
        3,
        3,
    )
    expected = [2 * len(expected_rows(s)) + len(expected_rows(s, count=100)) for s in range(SUBPARTITIONS)]
    assert third["rows_per_subpartition"] == expected
    assert third["totals"]["rows"] == 2 * (2 * ROWS + BROADCAST_ROWS) + 200 + BROADCAST_ROWS
    assert third["skew"]["rows"]["largest_subpartition"] == CROWDED
    assert fourth["totals"]["rows"] == ROWS

    result = run("dump", directory)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert sum(line.startswith("exchange-") for line in lines) == 4
    assert "Exchange 3 of app-1" in lines
    assert any(line.startswith("3 map outputs, 8 subpartitions, ") for line in lines)


def test_a_directory_with_something_wrong_in_it(directory: Path) -> None:
    home = directory / "blockmgr-2" / "sortshuffle" / "app-1" / "host-2"
    flip(str(home / "exchange-3-map-2-attempt-102.data"), 2000)
    code, document = run_json("dump", directory)
    assert (code, document["incomplete"]) == (1, 1)
    assert document["exchanges"][0]["map_outputs"] == 2
    result = run("dump", directory)
    assert result.exit_code == 1
    assert "1 map output of 4 not added up:" in result.stdout
    assert "a buffer fails its checksum" in result.stdout.splitlines()[-1]
    assert run("dump", directory, "--quick").exit_code == 0


def test_a_directory_that_cannot_be_listed_is_in_the_document(directory: Path) -> None:
    path = unlistable(directory)
    code, document = run_json("dump", directory)
    assert (code, document["incomplete"], len(document["pairs"])) == (1, 0, 4)
    assert document["passed_over"] == [{"path": path, "why": "File name too long"}]


def test_second_attempts_are_said(tmp_path: Path) -> None:
    build(tmp_path, attempt=100)
    build(tmp_path, attempt=101)
    assert "2 map outputs of 1 map task, 8 subpartitions" in run("dump", tmp_path).stdout


def test_many_pairs_are_cut_unless_all_is_asked_for(tmp_path: Path) -> None:
    file = build(tmp_path, unicast_regions=1, count=10)
    for attempt in range(101, 101 + LIMIT + 5):
        other = PartitionedFile.named(str(tmp_path), 3, attempt, attempt)
        os.link(file.data_path, other.data_path)
        os.link(file.index_path, other.index_path)
    assert "... and 6 more map outputs: --all shows them." in run("dump", tmp_path).stdout
    assert "--all" not in run("dump", tmp_path, "--all").stdout


def test_an_empty_directory(tmp_path: Path) -> None:
    result = run("dump", tmp_path)
    assert result.exit_code == 0
    assert result.stdout == f"There are no map outputs below {tmp_path}.\n"


# ---- wrong calls ----------------------------------------------------------------------------------------


def test_what_is_not_ours_is_a_wrong_call(tmp_path: Path) -> None:
    other = tmp_path / "shuffle_0_0_0.data"
    other.write_bytes(b"something else")
    result = run("dump", other)
    assert result.exit_code == 2
    assert "is not a file of sortshuffle" in result.stderr
    assert run("dump", tmp_path / "missing.data").exit_code == 2
    assert run("dump").exit_code == 2
    assert run("dump", tmp_path, "--records", "3").exit_code == 2


def test_json_is_json_whatever_is_in_it(file: PartitionedFile) -> None:
    result = run("dump", file.data_path, "--json", "--records", "3")
    assert result.stdout == json.dumps(json.loads(result.stdout), indent=2) + "\n"
