"""Runs that a merge puts aside: they come back as they were, through one descriptor; their file has no name
once it is written, and takes no space once its last run is closed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from engine import changed, names, open_files, small_disk
from hypothesis import given
from hypothesis import strategies as st
from map_outputs import ALL_CODECS, MIB, files_in
from random_tables import batches

from sortshuffle.errors import CorruptDataError, OutOfDiskError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.homes.lifetime import dead_partials
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.reading.spill import HELD_REGIONS, SpilledRun, SpillSize, SpillWriter
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_locked

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
SIZE = SpillSize(buffer=4096, region=16_384)


def batch(start: int, rows: int) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    return pa.record_batch([list(numbers), [f"row {n}" for n in numbers]], schema=SCHEMA)


class Spill:
    """A pass that writes into a directory, with all that it is made of."""

    def __init__(
        self,
        directory: Path,
        schema: pa.Schema = SCHEMA,
        codec: Codec = Codec.LZ4,
        size: SpillSize = SIZE,
        key: EncryptionKey | None = None,
    ) -> None:
        self.payload = ArrowPayload(schema, codec)
        self.budget = MemoryBudget(MIB)
        self.metrics = TaskMetrics()
        header = FileHeader(os.urandom(16), 1, 0, codec, PayloadKind.ARROW)
        self.file = files_in(directory, key)(header)
        self.writer = SpillWriter(self.file, self.payload, size, self.budget, self.metrics)

    def write(self, runs: Sequence[Sequence[pa.RecordBatch]]) -> list[SpilledRun]:
        with self.writer as writer:
            for run in runs:
                writer.write_run(run)
            return writer.finish()

    def read(self, run: SpilledRun) -> list[pa.RecordBatch]:
        return list(run.stream(self.payload, 4096, self.budget, self.metrics))


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_runs_come_back_as_they_were_written(tmp_path: Path, codec: Codec) -> None:
    spill = Spill(tmp_path, codec=codec)
    written = [[batch(0, 3), batch(3, 5000)], [batch(9, 1)], [batch(1, 700), batch(701, 700)]]
    for run, rows in zip(spill.write(written), written, strict=True):
        assert pa.Table.from_batches(spill.read(run)) == pa.Table.from_batches(rows).combine_chunks()
    assert spill.budget.used == 0
    assert open_files(tmp_path) == []
    assert spill.metrics.counts["bytes_spilled"] == spill.file.data_bytes
    assert set(spill.metrics.seconds) == {"merge"}
    assert spill.metrics.counts["rows_read"] == 0  # they were counted when the map outputs were read


def test_with_a_key_the_file_shows_nothing_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionedFile, "delete", lambda self: None)
    contents = []
    for key in (None, EncryptionKey(bytes(32))):
        directory = tmp_path / str(key)
        directory.mkdir()
        spill = Spill(directory, codec=Codec.NONE, key=key)
        runs = [[batch(0, 3), batch(3, 5000)], [batch(9, 1)]]
        for run, rows in zip(spill.write(runs), runs, strict=True):
            assert pa.Table.from_batches(spill.read(run)) == pa.Table.from_batches(rows).combine_chunks()
        contents.append(b"".join(path.read_bytes() for path in directory.iterdir()))
    assert [b"row 9" in content for content in contents] == [True, False]


@given(data=st.data())
def test_rows_of_any_types_come_back(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    written = data.draw(batches(max_rows=60, max_columns=4))
    borders = sorted(data.draw(st.lists(st.integers(0, written.num_rows), max_size=4)))
    pieces = [
        written.slice(a, b - a) for a, b in zip([0, *borders], [*borders, written.num_rows], strict=True)
    ]
    size = data.draw(st.sampled_from([SpillSize(1, 1), SpillSize(100, 300), SIZE]))
    spill = Spill(tmp_path_factory.mktemp("spill"), written.schema, size=size)
    (run,) = spill.write([[piece for piece in pieces if piece.num_rows]])
    found = pa.Table.from_batches(spill.read(run), written.schema)
    found.validate(full=True)
    assert found.equals(pa.Table.from_batches([written]))


def test_any_number_of_runs_takes_one_descriptor_read_in_turns(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    runs = spill.write([[batch(1000 * n, 1000)] for n in range(50)])
    streams = [run.stream(spill.payload, 4096, spill.budget, spill.metrics) for run in runs]
    firsts = [next(stream) for stream in streams]
    assert [first.column(0)[0].as_py() for first in firsts] == [1000 * n for n in range(50)]
    assert len(open_files(tmp_path)) == 1
    for n, (first, stream) in enumerate(zip(firsts, streams, strict=True)):
        rest = [number for each in stream for number in each.column(0).to_pylist()]
        assert [*first.column(0).to_pylist(), *rest] == list(range(1000 * n, 1000 * n + 1000))
    assert open_files(tmp_path) == []


def test_messages_are_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    spill = Spill(tmp_path, codec=Codec.NONE)
    (run,) = spill.write([[batch(0, 20_000)]])
    sizes = [each.nbytes for each in spill.read(run)]
    assert max(sizes) <= SIZE.buffer
    assert min(sizes) >= SIZE.buffer // 2


# --- memory ------------------------------------------------------------------------------------------------


def test_what_is_held_is_charged_and_bounded_by_the_size_of_a_region(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    small = [batch(n, 10) for n in range(0, 5000, 10)]
    spill.writer.write_run(small)
    assert SIZE.region < spill.budget.peak <= HELD_REGIONS * (SIZE.region + small[0].nbytes)
    assert spill.budget.used == 0
    with spill.writer:
        pass


def test_reading_holds_a_part_and_charges_it(tmp_path: Path) -> None:
    spill = Spill(tmp_path, codec=Codec.NONE)
    (run,) = spill.write([[batch(0, 20_000)]])
    before = spill.budget.peak = 0
    for _ in run.stream(spill.payload, 8192, spill.budget, spill.metrics):
        assert spill.budget.used > before
    assert spill.budget.peak <= 8192
    assert spill.budget.used == 0


def test_slices_of_large_batches_do_not_keep_these_alive(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    spill = Spill(tmp_path, size=SpillSize(4096, MIB))

    def slices() -> list[pa.RecordBatch]:
        for start in range(20):
            large = pa.record_batch([np.arange(start, start + 100_000), ["x"] * 100_000], schema=SCHEMA)
            yield large.slice(0, 1)
            del large
            assert pa.total_allocated_bytes() - before < 3 * MIB

    spill.writer.write_run(slices())
    with spill.writer:
        pass


# --- the file ----------------------------------------------------------------------------------------------


def test_while_it_is_written_it_is_a_partial_that_its_writer_locks(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    spill.writer.write_run([batch(0, 5000)])
    assert names(tmp_path) == ["merge-0.data.partial", "merge-0.index.partial"]
    assert is_locked(str(tmp_path / "merge-0.data.partial"))
    assert list(dead_partials(str(tmp_path), now=float("inf"))) == []
    with spill.writer:
        pass
    assert names(tmp_path) == open_files(tmp_path) == []


def test_when_it_is_written_it_has_no_name_any_more(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    first, second = spill.write([[batch(0, 10)], [batch(10, 10)]])
    assert names(tmp_path) == []
    assert open_files(tmp_path) == [f"{tmp_path}/merge-0.data (deleted)"]
    first.close()
    first.close()
    assert len(open_files(tmp_path)) == 1
    assert spill.read(second) == [batch(10, 10)]
    assert open_files(tmp_path) == []


def test_a_stream_that_is_closed_in_the_middle_closes_its_run(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    (run,) = spill.write([[batch(0, 20_000)]])
    stream = run.stream(spill.payload, 4096, spill.budget, spill.metrics)
    next(stream)
    stream.close()
    assert spill.budget.used == 0
    assert open_files(tmp_path) == []


def test_rows_that_cannot_be_had_leave_nothing_behind(tmp_path: Path) -> None:
    spill = Spill(tmp_path)

    def failing() -> list[pa.RecordBatch]:
        yield batch(0, 5000)
        yield batch(5000, 10)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"), spill.writer as writer:
        writer.write_run([batch(0, 100)])
        writer.write_run(failing())
    assert spill.budget.used == 0
    assert names(tmp_path) == open_files(tmp_path) == []


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "size=256k") as disk:
        spill = Spill(disk, codec=Codec.NONE)
        with pytest.raises(OutOfDiskError) as caught, spill.writer as writer:
            writer.write_run(batch(n, 1000) for n in range(0, 100_000, 1000))
        assert caught.value.path == str(disk)
        assert spill.budget.used == 0
        assert names(disk) == open_files(disk) == []


def test_damage_is_found(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    (run,) = spill.write([[batch(0, 20_000)]])
    (descriptor,) = (
        name for name in os.listdir("/proc/self/fd") if "merge-0.data" in _target(f"/proc/self/fd/{name}")
    )
    at = run.extents[-1].offset + 30
    with changed(f"/proc/self/fd/{descriptor}", at, 1), pytest.raises(CorruptDataError) as caught:
        spill.read(run)
    assert caught.value.place.writer == "this task's own merge"
    assert open_files(tmp_path) == []


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""
