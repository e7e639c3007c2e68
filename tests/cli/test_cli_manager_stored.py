"""What the command line says and does of the shuffle manager's map outputs at a URL."""

from __future__ import annotations

import struct

import pytest
from jvm_client import APPLICATION, SHUFFLE, TOKEN, serving
from run_cli import run, run_json
from stores import Store, s3_fixture, store_fixture  # noqa: F401

from sortshuffle.storage.files.partitioned_file import PartitionedFile

ROWS = 100
HOME = f"{APPLICATION}-{TOKEN}"


@pytest.fixture
def file(store: Store) -> PartitionedFile:
    """Rows (n, n / 2) of subpartition n mod 4, as UnsafeRowSerializer writes them."""
    rows = [struct.pack(">i", 24) + struct.pack("<qqd", 0, n, n / 2) for n in range(ROWS)]
    with serving(store.root) as served:
        served.connect().write([[(n % 4, row) for n, row in enumerate(rows)]], 7)
    return PartitionedFile.named(f"{store.root}/{HOME}", SHUFFLE, 0, 7)


def test_dump_decodes_rows_of_a_schema(file: PartitionedFile) -> None:
    code, document = run_json(
        *("dump", file.index_path, "--records", 2, "--subpartition", 1, "--schema", "n long, half double")
    )
    assert (code, document["state"], document["header"]["payload"]) == (0, "complete", "record_bytes")
    assert document["records"]["rows"] == [{"n": 1, "half": 0.5}, {"n": 5, "half": 2.5}]


def test_verify_finds_what_is_whole_and_what_is_not(store: Store, file: PartitionedFile) -> None:
    verified = run("verify", store.root)
    assert (verified.exit_code, f"{ROWS} rows" in verified.output) == (0, True)
    store.remove(file.data_path)
    assert run("verify", store.root).exit_code == 1


def test_clean_lists_it_and_removes_what_is_named(store: Store, file: PartitionedFile) -> None:
    listed = run("clean", store.root)
    assert (listed.exit_code, f"/{HOME}: 1 map output" in listed.output) == (0, True)
    assert len(store.names()) == 2
    assert run("clean", store.root, "--application", HOME).exit_code == 0
    assert store.names() == []
