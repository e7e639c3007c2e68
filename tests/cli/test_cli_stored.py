"""`sortshuffle dump` and `verify` of URLs: what they say of a store is what they say of local files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from built_outputs import fill, start
from engine import ROOT
from map_outputs import MapOutput, write_map
from run_cli import run, run_json
from s3_server import S3Server
from stores import Store, s3_fixture, store_fixture  # noqa: F401

from sortshuffle.storage.files.partitioned_file import PartitionedFile

COMMAND = [sys.executable, "-m", "sortshuffle.cli.main"]
SCHEMA = pa.schema([("number", pa.int64())])


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch([list(range(start, start + rows))], schema=SCHEMA)


@pytest.fixture
def output(store: Store) -> MapOutput:
    regions = [{0: [batch(0, 10), batch(10, 5)], 1: [batch(100, 3)]}, {0: [batch(50, 1)]}]
    return write_map(f"{store.root}/app-1", SCHEMA, regions, subpartitions=2)


def shown(store: Store) -> str:
    """How the commands name the store: a mounted directory by its path."""
    return store.root.removeprefix("file://")


def test_verify_reads_all_of_a_prefix(store: Store, output: MapOutput) -> None:
    write_map(f"{store.root}/app-2", SCHEMA, [{0: [batch(0, 2)]}], map_index=4)
    result = run("verify", store.root)
    assert result.exit_code == 0, result.output
    first, second = f"{shown(store)}/app-1/exchange-1-map-0-attempt-0", "app-2/exchange-1-map-4-attempt-4"
    size = f"{len(store.get(output.file.data_path)):,} bytes"
    assert result.stdout.splitlines()[:2] == [
        f"OK     {first}.index: 2 regions, 2 subpartitions",
        f"OK     {first}.data: {size}, 3 extents, 4 buffers, 19 rows",
    ]
    assert f"{second}.data" in result.stdout.splitlines()[3]


def test_dump_shows_a_map_output(store: Store, output: MapOutput) -> None:
    code, document = run_json("dump", output.file.index_path, "--records", "20", "--subpartition", "0")
    assert code == 0
    assert document["state"] == "complete"
    assert [row["number"] for row in document["records"]["rows"]] == [*range(15), 50]
    page = run("dump", output.file.data_path)
    assert page.exit_code == 0
    assert "exchange-1-map-0-attempt-0" in page.stdout


def test_dump_lists_a_prefix(store: Store, output: MapOutput) -> None:
    code, document = run_json("dump", f"{store.root}/app-1/")
    assert code == 0
    assert "exchange-1-map-0-attempt-0" in str(document)


def test_damage_is_found_with_its_place(store: Store, output: MapOutput) -> None:
    data = store.get(output.file.data_path)
    store.put(output.file.data_path, data[:80] + bytes([data[80] ^ 1]) + data[81:])
    result = run("verify", output.file.data_path)
    assert result.exit_code == 1
    assert "FAULT" in result.stdout
    assert "region 0, subpartition 0, offset 56" in result.stdout
    store.remove(output.file.index_path)
    assert "the index file is missing" in run("verify", store.root).stdout


def test_what_a_task_may_be_writing_is_no_fault_and_called_no_dead_tasks(store: Store) -> None:
    """Where every host sees the files, no lock tells whether their task has ended."""
    directory = f"{store.root}/app-1"
    with start(directory) as output:
        fill(output)
        result = run("verify", store.root)
        if store.server is not None:  # an upload shows nothing before it is complete
            assert (result.exit_code, result.stdout) == (2, "")
            return
        lines = result.stdout.splitlines()
        assert (result.exit_code, [line.split()[0] for line in lines]) == (0, ["OPEN", "OPEN"])
        assert all("unfinished, or being written" in line for line in lines)
        partial = PartitionedFile.named(directory, 3, 0, 100).partial_data_path
        code, document = run_json("dump", partial)
        assert (code, document["state"]) == (1, "unfinished, or being written")
        page = run("dump", partial).stdout
        assert "is unfinished, or a task is writing it" in page
        assert "ended before" not in page


def test_what_is_not_there_is_a_wrong_call(store: Store, output: MapOutput) -> None:
    result = run("dump", f"{store.root}/app-1/exchange-1-map-9-attempt-9.data")
    assert result.exit_code == 2, result.output


def test_a_store_that_refuses_is_one_line(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(s3.filesystem(), "isdir", refuse)
    result = run("dump", "s3://shuffles/x.data")
    assert result.exit_code == 4
    assert result.stderr.startswith("Error: s3://shuffles/x.data: looking for a directory failed: Forbidden.")


def test_a_map_output_that_is_not_there_is_said(store: Store, output: MapOutput) -> None:
    result = run("verify", f"{store.root}/app-1/exchange-1-map-9-attempt-9.data")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "exchange-1-map-9-attempt-9.data" in result.stderr
    assert "is not there" in result.stderr or "does not exist" in result.stderr


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_a_store_whose_library_is_missing_cannot_be_looked_at(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is no damage of files."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    result = run(command, "gs://bucket/prefix")
    assert (result.exit_code, result.stdout) == (4, "")
    said = f"Error: gs://bucket/prefix: cannot be used by the Python at {sys.executable}"
    assert result.stderr.startswith(said)


def test_a_store_whose_library_is_missing_is_in_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    file = write_map(str(tmp_path), SCHEMA, [{0: [batch(0, 2)]}]).file
    code, document = run_json("verify", file.data_path, "gs://bucket/prefix")
    assert (code, document["sound"]) == (4, False)
    assert document["error"]["path"] == "gs://bucket/prefix"
    assert "gcsfs" in document["error"]["why"]


def test_what_was_verified_before_a_store_refused_is_in_the_document(tmp_path: Path) -> None:
    """The store is asked without keys, which is refused without a connection."""
    file = write_map(str(tmp_path), SCHEMA, [{0: [batch(0, 2)]}]).file
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    result = subprocess.run(
        [*COMMAND, "verify", "--json", file.data_path, "s3://bucket/prefix"],
        capture_output=True,
        text=True,
        env={**environment, **nowhere, "PYTHONPATH": str(ROOT)},
    )
    document = json.loads(result.stdout)
    assert (result.returncode, document["sound"]) == (4, False)
    assert document["error"]["path"] == "s3://bucket/prefix"
    assert "Unable to locate credentials" in document["error"]["why"]
    assert result.stderr == f"Error: s3://bucket/prefix: {document['error']['why']}\n"
