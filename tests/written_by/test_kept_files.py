"""Files that releases have written, of every payload kind and codec, are read by this one. The values are
written out here; `tests/kept_files.py` made the files. What it writes today is read in the same way.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine import changed
from kept_files import KEPT, write_files
from run_cli import run, run_json

from sortshuffle.engine import SUPERSTEP, Barrier, MapOutput, UserEvent, open_input
from sortshuffle.errors import CorruptDataError, DecryptionError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.events import END_OF_DATA, END_OF_PARTITION
from sortshuffle.payload.frames import FramesPayload
from sortshuffle.payload.pickled import Pairs, PickledPayload
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.reading.channel import LocalInputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.reading.records import RecordGate
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index

TODAY = "today"
RELEASES = [*sorted(path.name for path in KEPT.iterdir() if (path / "files").is_dir()), TODAY]
KEY = bytes(range(32))
MOST_KEPT = 300_000  # bytes of all that is kept of one release
CODECS = ("none", "lz4", "zstd")
PLAIN_OR_NOT = ("", "-encrypted")

WRITER = {
    "application": "app-1",
    "exchange": 3,
    "stage": 5,
    "map_index": 17,
    "attempt": 204,
    "host": "host",
    "time": "2026-01-02T03:04:05.678+00:00",
    "driver": "202122232425262728292a2b2c2d2e2f",
}


def row(k: int) -> dict[str, Any]:
    return {
        "k": k,
        "text": f"text {k} " * 20,
        "price": Decimal(k) / 4,
        "at": datetime(1970, 1, 1, 0, k // 60, k % 60, tzinfo=timezone.utc),
        "list": [k, -k],
        "half": k / 2,
    }


ROW_OF_NULLS = {"k": 4, "text": None, "price": None, "at": None, "list": None, "half": None}
ROWS = {
    0: [row(0), row(3), row(6), row(100)],
    1: [row(1), ROW_OF_NULLS, row(7), row(100)],
    2: [row(100)],
}
BARRIER = Barrier(7, 1_700_000_000_000_000, b"options")
MESSAGE = UserEvent("name", b"data")
END = [END_OF_DATA, END_OF_PARTITION]
OBJECTS: dict[int, list[Any]] = {
    0: [
        [("a", 1), {"b": [2, None]}, "word " * 500],
        SUPERSTEP,
        (["x", "y"], [1, 2]),
        (["x"], [3], None),
        (["x", "y"], [1, 2, 3], [2, 1]),
        BARRIER,
        MESSAGE,
        ["to all"],
        *END,
    ],
    1: [[3.5], SUPERSTEP, BARRIER, MESSAGE, ["to all"], *END],
    2: [SUPERSTEP, BARRIER, MESSAGE, ["to all"], *END],
}
"""Chunks as they are pickled, and the events between them."""
RECORDS = {
    0: [
        *(("a", 1), {"b": [2, None]}, "word " * 500),
        *(("x", 1), ("y", 2), ("x", 3), ("x", [1, 2]), ("y", [3])),
        "to all",
    ],
    1: [3.5, "to all"],
    2: ["to all"],
}
FRAMES: dict[int, list[Any]] = {
    0: [b"short", bytes(range(256)) * 10, SUPERSTEP, b"to all", *END],
    1: [b"", SUPERSTEP, b"to all", *END],
    2: [SUPERSTEP, b"to all", *END],
}
NUMBERS = {0: list(range(0, 86, 2)), 1: list(range(1, 86, 2)), 2: []}
COUNTS = {"arrow": 7, "pickle": 10, "frames": 4, "record-bytes": 86}
"""Records of a file; those for all subpartitions count once."""


@pytest.fixture(scope="module", params=RELEASES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What that release wrote."""
    if request.param != TODAY:
        return KEPT / request.param / "files"
    directory = tmp_path_factory.mktemp("today")
    write_files(directory)
    return directory


@pytest.fixture(params=PLAIN_OR_NOT, ids=["plain", "encrypted"])
def suffix(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY.hex())
    return path


def pair(directory: Path) -> PartitionedFile:
    return PartitionedFile.named(str(directory), 3, 17, 204)


def key_of(directory: Path) -> EncryptionKey | None:
    return EncryptionKey(KEY) if directory.name.endswith("-encrypted") else None


def channel(directory: Path, subpartition: int) -> LocalInputChannel:
    file = pair(directory)
    index = read_index(file)
    extents = tuple(extents_of(index, subpartition))
    return LocalInputChannel(file, index.header.file_id, 17, str(index.writer), extents, key_of(directory))


def items(directory: Path, subpartition: int, payload: FramesPayload) -> Iterator[Any]:
    """The chunks, or frames, and events of a stream."""
    channels = [channel(directory, subpartition)]
    for each in RecordGate(channels, payload, MemoryBudget(MIB), 2, TaskMetrics(), off_disk=True).buffers():
        yield from map(content, each.chunks)
        if each.event is not None:
            yield each.event


def content(chunk: Any) -> Any:
    if isinstance(chunk, Pairs):
        return chunk.content
    return bytes(chunk[0]) if isinstance(chunk, tuple) else chunk


@pytest.mark.parametrize("subpartition", ROWS)
def test_rows_are_read(files: Path, codec: str, suffix: str, subpartition: int) -> None:
    directory = files / f"arrow-{codec}{suffix}"
    schema = pa.ipc.read_schema(pa.py_buffer(read_index(pair(directory)).schema))
    payload = ArrowPayload(schema, Codec[codec.upper()])
    gate = InputGate([channel(directory, subpartition)], payload, MemoryBudget(MIB), 2, TaskMetrics())
    assert [each for batch in gate.batches() for each in batch.to_pylist()] == ROWS[subpartition]


@pytest.mark.parametrize("subpartition", OBJECTS)
def test_objects_and_events_are_read(files: Path, codec: str, suffix: str, subpartition: int) -> None:
    payload = PickledPayload(Codec[codec.upper()])
    found = items(files / f"pickle-{codec}{suffix}", subpartition, payload)
    assert list(found) == OBJECTS[subpartition]


@pytest.mark.parametrize("subpartition", FRAMES)
def test_frames_are_read(files: Path, codec: str, suffix: str, subpartition: int) -> None:
    payload = FramesPayload(Codec[codec.upper()])
    found = items(files / f"frames-{codec}{suffix}", subpartition, payload)
    assert list(found) == FRAMES[subpartition]


@pytest.mark.parametrize("subpartition", NUMBERS)
def test_record_bytes_are_read(files: Path, codec: str, suffix: str, subpartition: int) -> None:
    directory = files / f"record-bytes-{codec}{suffix}"
    file, payload = pair(directory), RecordBytesPayload(Codec[codec.upper()])
    found = b""
    with PartitionedFileReader(file, key=key_of(directory)) as reader:
        for extent in extents_of(read_index(file), subpartition):
            part = reader.read_extent(extent)
            decoder = payload.decoder(defaultdict(float))
            found += b"".join(bytes(decoder.decode(part.memory, buffer)) for buffer in part.buffers)
    unsafe = [struct.pack(">i", 24) + struct.pack("<qqd", 0, n, n / 2) for n in NUMBERS[subpartition]]
    assert found == b"".join(unsafe)


def map_output(directory: Path) -> MapOutput:
    file = pair(directory)
    index = read_index(file)
    sizes = tuple(index.entries["bytes"].sum(axis=0).tolist())
    return MapOutput("app-1", 3, 17, 204, index.header.file_id, "host", file.base, sizes)


@pytest.mark.parametrize("subpartition", RECORDS)
def test_the_public_reader_gives_records(files: Path, codec: str, subpartition: int) -> None:
    with open_input([map_output(files / f"pickle-{codec}")], subpartition) as stream:
        assert list(stream.records()) == RECORDS[subpartition]


def test_the_public_reader_gives_batches(files: Path, codec: str) -> None:
    with open_input([map_output(files / f"arrow-{codec}")], [2, 0, 1]) as stream:
        found = [each for batch in stream.batches() for each in batch.to_pylist()]
    assert found == [*ROWS[2], *ROWS[0], *ROWS[1]]


@pytest.mark.parametrize("kind", COUNTS)
def test_dump_says_what_the_file_is(files: Path, kind: str, codec: str, suffix: str, key_file: Path) -> None:
    directory = files / f"{kind}-{codec}{suffix}"
    code, found = run_json("dump", pair(directory).data_path, "--key-file", key_file)
    assert (code, found["state"], found["faults"], found["encryption"]) == (0, "complete", [], suffix[1:])
    header, wrote = found["header"], found["writer"]
    assert wrote.pop("software").startswith("sortshuffle ")
    assert wrote == {**WRITER, "ordering": ["k"] if kind == "arrow" else []}
    assert (header["version"], header["encrypted"]) == ((2, True) if suffix else (1, False))
    assert (header["codec"], header["payload"]) == (codec, kind.replace("-", "_"))
    assert (header["subpartitions"], header["first_subpartition"]) == (3, 1)
    assert found["totals"]["rows"] == COUNTS[kind]


def shown(directory: Path, subpartition: int, key_file: Path, *more: str) -> Any:
    """The records of a subpartition that ``dump`` shows."""
    how = ("--records", 100, "--subpartition", subpartition, "--key-file", key_file, *more)
    code, found = run_json("dump", pair(directory).data_path, *how)
    assert code == 0
    return found["records"]["rows"]


def test_dump_shows_records(files: Path, codec: str, suffix: str, key_file: Path) -> None:
    def of(kind: str, subpartition: int, *more: str) -> Any:
        return shown(files / f"{kind}-{codec}{suffix}", subpartition, key_file, *more)

    for subpartition in range(3):
        assert [each["k"] for each in of("arrow", subpartition)] == [each["k"] for each in ROWS[subpartition]]
        numbers = of("record-bytes", subpartition, "--schema", "n long, half double")
        assert numbers == [{"n": n, "half": n / 2} for n in NUMBERS[subpartition]]
    assert of("arrow", 0)[1] == {
        "k": 3,
        "text": "text 3 " * 20,
        "price": "0.75",
        "at": "1970-01-01T00:00:03+00:00",
        "list": [3, -3],
        "half": 1.5,
    }
    assert of("frames", 0) == [
        {"bytes": 5, "begins with": "0x73686f7274"},
        {"bytes": 2560, "begins with": f"0x{bytes(range(24)).hex()}"},
        {"bytes": 6, "begins with": "0x746f20616c6c"},
    ]
    assert of("pickle", 1, "--unpickle") == [{"object": 3.5}, {"object": "to all"}]


def test_verify_checks_every_checksum(files: Path, key_file: Path) -> None:
    result = run("verify", files, "--key-file", key_file)
    assert result.exit_code == 0, result.stdout
    pairs = len(COUNTS) * len(CODECS) * len(PLAIN_OR_NOT)
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["OK"] * 2 * pairs


def test_a_changed_byte_is_found(files: Path, tmp_path: Path) -> None:
    """Also where there is no key."""
    for kind, suffix in product(COUNTS, PLAIN_OR_NOT):
        directory = tmp_path / f"{kind}-lz4{suffix}"
        directory.mkdir()
        for path in (files / directory.name).iterdir():
            (directory / path.name).write_bytes(path.read_bytes())
        file = pair(directory)
        first = extents_of(read_index(file), 0)[0]
        with (
            changed(file.data_path, first.offset + 10, 0x01),
            PartitionedFileReader(file) as reader,
            pytest.raises(CorruptDataError, match="a buffer fails its checksum"),
        ):
            reader.read_extent(first)


def test_another_key_does_not_open_them(files: Path, codec: str) -> None:
    for kind in COUNTS:
        with pytest.raises(DecryptionError):
            PartitionedFileReader(pair(files / f"{kind}-{codec}-encrypted"), key=EncryptionKey(bytes(32)))


def contents(directory: Path) -> dict[Path, bytes]:
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_same_release_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_files(tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


@pytest.mark.parametrize("release", RELEASES[:-1])
def test_little_is_kept(release: str) -> None:
    assert sum(map(len, contents(KEPT / release).values())) < MOST_KEPT
