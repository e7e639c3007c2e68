"""`sortshuffle dump` and `verify` of encrypted map outputs: without a key all but payloads, with it those
too; a wrong key is no fault of a file, and what was changed on purpose is one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from built_outputs import SCHEMA, build, expected_rows
from run_cli import run, run_json

from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, INDEX_MAGIC, Codec
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.inspection.contents import inspect

KEY = EncryptionKey(bytes(range(32)))


@pytest.fixture
def file(tmp_path: Path) -> PartitionedFile:
    return build(str(tmp_path), key=KEY)


def key_file(directory: Path, text: str = KEY.secret.hex() + "\n") -> Path:
    path = directory / "key"
    path.write_text(text)
    return path


def last_line(*arguments: object) -> tuple[int, str]:
    """Exit code of ``verify``, and what it says of the data file."""
    result = run("verify", *arguments)
    return result.exit_code, result.stdout.splitlines()[-1]


def test_verify_checks_checksums_without_a_key_and_all_with_it(file: PartitionedFile, tmp_path: Path) -> None:
    code, line = last_line(file.data_path)
    assert code == 0
    assert line.startswith("OK")
    assert line.endswith("rows, encrypted, and there is no key")
    code, line = last_line(file.data_path, "--key-file", key_file(tmp_path))
    assert code == 0
    assert line.endswith("rows, encrypted")


def test_verify_fails_where_the_key_that_is_given_does_not_open_the_payloads(
    file: PartitionedFile, tmp_path: Path
) -> None:
    code, line = last_line(file.data_path, "--key-file", key_file(tmp_path, "00" * 16))
    assert code == 1
    assert line.startswith("FAULT")
    assert "the key that was given does not open it" in line
    assert line.endswith("rows, encrypted, and the key is another one")


def test_a_key_may_come_through_a_pipe(file: PartitionedFile) -> None:
    """``--key-file <(...)``"""
    reading, writing = os.pipe()
    os.write(writing, KEY.secret.hex().encode())
    os.close(writing)
    try:
        code, line = last_line(file.data_path, "--key-file", f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert code == 0
    assert line.endswith("rows, encrypted")


@pytest.mark.parametrize(
    ("key", "check", "what"),
    [
        (None, bytes(range(8)), "a buffer is not encrypted, in a file that is"),
        (KEY, b"", "a buffer is encrypted, in a file that is not"),
    ],
    ids=["plain", "encrypted"],
)
def test_buffers_are_held_against_the_version_of_their_file(
    tmp_path: Path, key: EncryptionKey | None, check: bytes, what: str
) -> None:
    """Headers that say otherwise, with checksums made anew. No key is needed to see it."""
    file = build(str(tmp_path), key=key)
    header = inspect(file.data_path).header
    assert header is not None
    data, index = bytearray(Path(file.data_path).read_bytes()), bytearray(Path(file.index_path).read_bytes())
    data[:HEADER_BYTES] = replace(header, key_check=check).pack(DATA_MAGIC)
    index[:HEADER_BYTES] = replace(header, key_check=check).pack(INDEX_MAGIC)
    index[-16:-8] = xxhash.xxh3_64_intdigest(bytes(index[:-16])).to_bytes(8, "little")
    Path(file.data_path).write_bytes(data)
    Path(file.index_path).write_bytes(index)
    code, line = last_line(file.data_path)
    assert code == 1
    assert what in line


def test_verify_finds_damage_without_a_key(file: PartitionedFile) -> None:
    data = bytearray(Path(file.data_path).read_bytes())
    data[200] ^= 1
    Path(file.data_path).write_bytes(data)
    code, line = last_line(file.data_path)
    assert code == 1
    assert "a buffer fails its checksum" in line


def test_verify_with_the_key_finds_what_was_changed_on_purpose(file: PartitionedFile, tmp_path: Path) -> None:
    """The first buffer, with checksums made anew as whoever changes it would."""
    data, index = bytearray(Path(file.data_path).read_bytes()), bytearray(Path(file.index_path).read_bytes())
    table = inspect(file.data_path).table
    assert table is not None
    entry = next(each for each in table.extents() if each.offset == 56)
    assert entry.buffers == 1
    end = 56 + entry.bytes
    data[100] ^= 1
    data[end - 8 : end] = xxhash.xxh3_64_intdigest(bytes(data[56 : end - 8])).to_bytes(8, "little")
    at = 56 + 48 * entry.subpartition + 32
    index[at : at + 8] = xxhash.xxh3_64_intdigest(bytes(data[end - 8 : end])).to_bytes(8, "little")
    index[-16:-8] = xxhash.xxh3_64_intdigest(bytes(index[:-16])).to_bytes(8, "little")
    Path(file.data_path).write_bytes(data)
    Path(file.index_path).write_bytes(index)
    assert last_line(file.data_path)[0] == 0
    code, line = last_line(file.data_path, "--key-file", key_file(tmp_path))
    assert code == 1
    assert "does not open with the file's own key: it was changed on purpose" in line
    assert "offset 56" in line


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("subpartition", [0, 2, 5])
def test_dump_shows_rows_with_the_key(tmp_path: Path, codec: Codec, subpartition: int) -> None:
    file = build(str(tmp_path), key=KEY, codec=codec)
    wanted = expected_rows(subpartition)
    arguments = ["dump", file.data_path, "--records", len(wanted) + 1, "--subpartition", subpartition]
    code, document = run_json(*arguments, "--key-file", key_file(tmp_path))
    assert (code, document["state"]) == (0, "complete")
    assert [row["k"] for row in document["records"]["rows"]] == wanted


def test_dump_shows_all_but_payloads_without_a_key(file: PartitionedFile) -> None:
    code, document = run_json("dump", file.data_path, "--records", 1)
    assert (code, document["state"]) == (0, "complete")
    assert (document["header"]["version"], document["header"]["encrypted"]) == (2, True)
    assert document["records"]["rows"] is None
    assert "they are encrypted, and --key-file FILE names their key" in document["records"]["problem"]
    page = run("dump", file.data_path).stdout
    assert "encrypted, and there is no key" in page
    assert all(field.name in page for field in SCHEMA)


def test_dump_says_of_a_wrong_key_that_it_is_one(file: PartitionedFile, tmp_path: Path) -> None:
    other = key_file(tmp_path, "ab" * 24)
    code, document = run_json("dump", file.data_path, "--records", 1, "--key-file", other)
    assert (code, document["state"]) == (0, "complete")
    assert document["records"]["problem"].endswith("they are encrypted, and the key is another one")


def test_dump_of_a_directory_says_what_was_opened_and_fails_for_what_the_key_does_not_open(
    file: PartitionedFile, tmp_path: Path
) -> None:
    """Of one file the page says it, and `verify` fails."""
    directory = os.path.dirname(file.base)
    build(directory, attempt=300)
    other = EncryptionKey(bytes(16))
    build(directory, attempt=400, key=other)
    locked = "encrypted, and the key is another one"
    ours = key_file(tmp_path)
    for options, code, said in (
        ((), 0, ["encrypted, and there is no key"] * 2),
        (("--key-file", ours), 1, ["encrypted", locked]),
        (("--key-file", ours, "--quick"), 1, ["encrypted", locked]),
    ):
        exit_code, document = run_json("dump", directory, *options)
        assert (exit_code, document["incomplete"]) == (code, 0)
        assert [pair["encryption"] for pair in document["pairs"]] == [said[0], "", said[1]]
    result = run("dump", directory, "--key-file", ours)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-2:] == ["1 map output of 3: encrypted", f"1 map output of 3: {locked}"]
    lines = run("dump", directory).stdout.splitlines()
    assert lines[-1] == "2 map outputs of 3: encrypted, and there is no key"
    assert run("dump", file.data_path, "--key-file", key_file(tmp_path, "ab" * 24)).exit_code == 0


@pytest.mark.parametrize("text", ["", "no hex", "00" * 15, "00" * 33, "\x00\xff"])
def test_a_file_that_holds_no_key_is_refused(file: PartitionedFile, tmp_path: Path, text: str) -> None:
    for command in ("dump", "verify"):
        result = run(command, file.data_path, "--key-file", key_file(tmp_path, text))
        assert result.exit_code == 2
        assert "holds no key: 32, 48 or 64 hex digits are wanted" in result.stderr


def test_a_plain_map_output_needs_no_key_and_takes_any(tmp_path: Path) -> None:
    file = build(str(tmp_path))
    code, line = last_line(file.data_path, "--key-file", key_file(tmp_path))
    assert (code, line.endswith("rows")) == (0, True)
    assert run_json("dump", file.data_path)[1]["header"]["encrypted"] is False
