"""The batches of a scan, and its memory, which no budget counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from engine import ENVIRONMENT
from pyspark.sql import types as st

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.partitioner.hash import HashSelector
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.spark.parquet.file_systems import FileSystem
from sortshuffle.spark.parquet.packing import Piece
from sortshuffle.spark.parquet.scanning import BATCH_BYTES, BATCH_ROWS, READ_BUFFERS, ParquetScan, ScanSource
from sortshuffle.spark.worker.task import READING_SHARE
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.row_partition import RowResultPartition

WIDE = 100  # columns
PAGE = MIB  # of a page and of a dictionary, as pyarrow writes them


def scan_of(path: Path, columns: list[str]) -> ParquetScan:
    """A scan of all row groups of a file of longs and text, in one split."""
    schema = pq.read_schema(path)
    types = {pa.int64(): st.LongType(), pa.string(): st.StringType()}
    struct = st.StructType([st.StructField(name, types[schema.field(name).type]) for name in columns])
    groups = tuple(range(pq.read_metadata(path).num_row_groups))
    wire = pa.schema([schema.field(name) for name in columns])
    source = ScanSource(FileSystem.of([str(path)], {}), struct)
    return ParquetScan(source, ((Piece(str(path), groups),),), tuple(columns), wire, None)


def wide_file(path: Path, rows: int) -> pa.Table:
    random = np.random.default_rng(5)
    table = pa.table({f"c{number}": random.integers(0, 1 << 40, rows) for number in range(WIDE)})
    pq.write_table(table, path)
    return table


def test_a_batch_of_few_columns_has_the_most_rows_whatever_the_table_has_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    table = wide_file(path, BATCH_ROWS + 1000)
    batches = list(scan_of(path, ["c7", "c3"]).read(0))
    assert [batch.num_rows for batch in batches] == [BATCH_ROWS, 1000]
    assert pa.Table.from_batches(batches) == table.select(["c7", "c3"])


def test_a_batch_of_many_columns_is_about_a_unit_of_the_write_side(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    table = wide_file(path, 25_000)
    batches = list(scan_of(path, table.column_names).read(0))
    most = BATCH_BYTES // (8 * WIDE)
    assert [batch.num_rows for batch in batches] == [most, most, 25_000 - 2 * most]
    assert pa.Table.from_batches(batches) == table


def test_text_is_counted_as_the_file_stores_it(tmp_path: Path) -> None:
    path = tmp_path / "text.parquet"
    texts = [f"{number:04000}" for number in range(5000)]
    pq.write_table(pa.table({"s": texts}), path, use_dictionary=False)
    batches = list(scan_of(path, ["s"]).read(0))
    assert [text for batch in batches for text in batch.column(0).to_pylist()] == texts
    assert 0.95 * BATCH_BYTES < batches[0].nbytes <= 1.05 * BATCH_BYTES


def test_columns_of_one_path_are_all_counted(tmp_path: Path) -> None:
    """A name may have a dot."""
    path = tmp_path / "text.parquet"
    texts = [f"{number:04000}" for number in range(5000)]
    table = pa.table({"a.b": texts, "a": [{"b": "x"}] * len(texts)})
    pq.write_table(table, path, use_dictionary=False)
    batches = list(scan_of(path, ["a.b"]).read(0))
    assert [text for batch in batches for text in batch.column(0).to_pylist()] == texts
    assert batches[0].nbytes <= 1.05 * BATCH_BYTES


def test_rows_larger_than_a_batch_come_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "text.parquet"
    texts = [str(number) * (BATCH_BYTES + 1) for number in range(3)]
    pq.write_table(pa.table({"s": texts}), path, use_dictionary=False)
    batches = list(scan_of(path, ["s"]).read(0))
    assert [batch.num_rows for batch in batches] == [1, 1, 1]
    assert [len(batch.column(0)[0].as_py()) for batch in batches] == [BATCH_BYTES + 1] * 3


def test_a_first_row_group_of_a_large_row_does_not_cut_the_others_into_rows(tmp_path: Path) -> None:
    path = tmp_path / "text.parquet"
    texts = ["x" * (BATCH_BYTES + 1), *["y"] * 100_000]
    schema = pa.schema([("s", pa.string())])
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for group in (texts[:1], texts[1:]):
            writer.write_table(pa.table({"s": group}, schema))
    batches = list(scan_of(path, ["s"]).read(0))
    assert [batch.num_rows for batch in batches[:1]] == [BATCH_ROWS]
    assert [text for batch in batches for text in batch.column(0).to_pylist()] == texts


def test_a_wide_scan_holds_a_batch_and_for_each_column_a_page_a_dictionary_and_a_small_buffer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "wide.parquet"
    table = wide_file(path, 250_000)
    pool = pa.default_memory_pool()
    names = table.column_names
    del table
    before = pool.bytes_allocated()
    held = [pool.bytes_allocated() - before for _ in scan_of(path, names).read(0)]
    assert len(held) == 24
    # 1.05: pages are a little larger than their writer aims at
    assert max(held) <= BATCH_BYTES + READ_BUFFERS + 1.05 * 2 * WIDE * PAGE
    assert pool.bytes_allocated() == before


def test_a_map_task_with_a_full_share_for_writing_stays_within_its_whole_budget(tmp_path: Path) -> None:
    """The share for reading ahead has room for the scan, which nothing counts."""
    memory = 128 * MIB
    random = np.random.default_rng(6)
    rows = 2_200_000
    names = ["k", "v", "w", "x", "y", "z"]
    table = pa.table({name: random.integers(0, 1 << 40, rows) for name in names})
    pq.write_table(table, tmp_path / "part.parquet")
    share = memory - memory // READING_SHARE
    program = (
        f"import json, test_scanning as t; print(json.dumps(t.written({str(tmp_path)!r}, {names}, {share})))"
    )
    # in a process of its own, whose pool has allocated nothing yet
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    most, counts = json.loads(done.stdout)
    assert (counts["rows_written"], counts["regions"]) == (rows, 2)
    assert counts["memory_peak"] > 0.8 * share, "full, but for what a drain takes"
    assert counts["memory_peak"] < most <= memory


def written(directory: str, names: list[str], share: int) -> tuple[int, dict[str, int]]:
    """Scan and write a map output within a share for writing. Return the most that Arrow allocated, and the
    figures."""
    scan = scan_of(Path(directory, "part.parquet"), names)
    file = PartitionedFile.named(directory, 0, 0, 0)
    header = FileHeader(bytes(16), 16, 0, Codec.LZ4, PayloadKind.ARROW)
    layout = PartitionLayout(ArrowPayload(scan.schema, Codec.LZ4), HashSelector((0,), 16), 256 * KIB)
    metrics = TaskMetrics()
    writer = PartitionedFileWriter(file, header)
    with RowResultPartition(writer, layout, MemoryBudget(share), metrics) as partition:
        for batch in scan.read(0):
            partition.write(batch)
        partition.finish(WriterInfo())
    return pa.default_memory_pool().max_memory(), dict(metrics.counts)
