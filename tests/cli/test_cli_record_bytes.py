"""What the command line shows of the shuffle manager's files, whose records only Spark can read."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from run_cli import run, run_json

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.placed_partition import PlacedResultPartition
from sortshuffle.writing.placed_records import PlacedRecords, RecordBytesLayout

ROWS = 1000
SUBPARTITIONS = 4
SCHEMA = "n long, half double"


@pytest.fixture
def file(tmp_path: Path) -> PartitionedFile:
    """Rows (n, n / 2) of subpartition n mod 4, as UnsafeRowSerializer writes them."""
    file = PartitionedFile.named(str(tmp_path), 3, 17, 204)
    header = FileHeader(bytes(range(16)), SUBPARTITIONS, 0, Codec.LZ4, PayloadKind.RECORD_BYTES)
    layout = RecordBytesLayout(RecordBytesPayload(Codec.LZ4), SUBPARTITIONS)
    writer = PartitionedFileWriter(file, header)
    rows = [struct.pack(">i", 24) + struct.pack("<qqd", 0, n, n / 2) for n in range(ROWS)]
    numbers = np.arange(ROWS, dtype=np.int32)
    ends = (28 * (numbers + 1)).astype(np.int32)
    with PlacedResultPartition(writer, layout, MemoryBudget(MIB), TaskMetrics()) as partition:
        partition.write(PlacedRecords(numbers % SUBPARTITIONS, ends, b"".join(rows)))
        return partition.finish(WriterInfo("app-1", 3, 0, 17, 204, "host"))


def test_dump_shows_the_file_as_it_shows_others(file: PartitionedFile) -> None:
    code, document = run_json("dump", file.data_path)
    assert (code, document["header"]["payload"], document["state"]) == (0, "record_bytes", "complete")
    assert document["data_read"] is True
    (region,) = document["regions"]
    assert [extent["rows"] for extent in region["extents"]] == [ROWS // SUBPARTITIONS] * SUBPARTITIONS


def test_dump_decodes_rows_of_a_schema(file: PartitionedFile) -> None:
    arguments = ("dump", file.data_path, "--records", 3, "--schema", SCHEMA, "--subpartition", 2)
    code, document = run_json(*arguments)
    assert code == 0
    assert document["records"]["rows"] == [
        {"n": 2, "half": 1.0},
        {"n": 6, "half": 3.0},
        {"n": 10, "half": 5.0},
    ]


def test_dump_says_what_it_needs_for_rows(file: PartitionedFile) -> None:
    assert "--schema 'a long, b string'" in run("dump", file.data_path, "--records", 3).stdout
    refused = run("dump", file.data_path, "--schema", SCHEMA)
    assert (refused.exit_code, "--schema needs --records" in refused.stderr) == (2, True)
    wrong = run("dump", file.data_path, "--records", 3, "--schema", "n map<int,int>").stdout
    assert "column n is of type map<int,int>, which dump does not decode" in wrong


def test_verify_finds_a_flipped_bit(file: PartitionedFile) -> None:
    assert run("verify", file.data_path).exit_code == 0
    with open(file.data_path, "r+b") as data:
        data.seek(os.path.getsize(file.data_path) // 2)
        byte = data.read(1)[0]
        data.seek(-1, os.SEEK_CUR)
        data.write(bytes([byte ^ 1]))
    damaged = run("verify", file.data_path)
    assert (damaged.exit_code, "a buffer fails its checksum" in damaged.stdout) == (1, True)
