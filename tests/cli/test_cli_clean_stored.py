"""`sortshuffle clean URL`: lists what applications have left on storage that every host sees, and removes
what it is told to, unfinished uploads included, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine import ENVIRONMENT, Pair, Region, write_pair
from run_cli import run, run_json
from s3_server import S3Server
from stores import Store, s3_fixture, store_fixture  # noqa: F401

PAIR = Pair(3, 1, [Region({0: [b"first", b"second"], 2: [bytes(1000)]})])


def fill(store: Store, *applications: str) -> None:
    for application in applications:
        for attempt in (1, 2):
            write_pair(f"{store.root}/{application}", PAIR, attempt)


def lines(*arguments: object) -> list[str]:
    result = run("clean", *arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_it_lists_and_removes_nothing_by_itself(store: Store) -> None:
    fill(store, "app-1", "app-2")
    before = store.names()
    first, second, summary = lines(store.root)
    kept = f"kept 3.3 KiB {store.root}/app-1: 2 map outputs; nothing has changed for"
    assert first.startswith(kept)
    assert second.startswith(kept.replace("app-1", "app-2"))
    assert summary == "Removed nothing; kept 2 applications (6.6 KiB)."
    assert store.names() == before


def test_the_application_that_is_named_is_removed(store: Store) -> None:
    fill(store, "app-1", "app-2")
    found = lines(store.root, "--application", "app-1")
    assert found[-1] == "Removed 1 application (3.3 KiB); kept nothing."
    assert {name.split("/")[0] for name in store.names()} == {"app-2"}
    assert lines(store.root, "--application", "app-1") == [
        f"There are no files of sortshuffle's executors below {store.root}."
    ]


def test_the_id_of_an_application_means_all_its_directories_and_a_name_one(store: Store) -> None:
    """Those that older versions wrote have no token."""
    token, other = "0123456789abcdef" * 2, "f" * 32
    fill(store, "app-1", f"app-1-{token}", f"app-1-{other}", "app-10", f"app-10-{token}")
    found = lines(store.root, "--application", f"app-1-{token}")
    assert found[-1] == "Removed 1 application (3.3 KiB); kept nothing."
    found = lines(store.root, "--application", "app-1")
    assert found[-1] == "Removed 2 applications (6.6 KiB); kept nothing."
    assert {name.split("/")[0] for name in store.names()} == {"app-10", f"app-10-{token}"}


def test_what_is_older_is_removed(store: Store) -> None:
    fill(store, "app-1")
    assert lines(store.root, "--older-than", "1h")[-1].startswith("Removed nothing; kept 1 application")
    assert lines(store.root, "--older-than", "0s")[-1].startswith("Removed 1 application")
    assert store.names() == []


def test_a_dry_run_only_says_so(store: Store) -> None:
    fill(store, "app-1")
    before = store.names()
    found = lines(store.root, "--application", "app-1", "--dry-run")
    assert found[0].startswith("would remove 3.3 KiB")
    assert found[-1].startswith("Would remove 1 application")
    assert store.names() == before


def test_what_is_not_ours_stays(store: Store) -> None:
    fill(store, "app-1")
    foreign = [
        "app-1/notes.txt",
        "app-1/deeper/exchange-1-map-1-attempt-1.data",
        "other/table.parquet",
        "x.data",
    ]
    for name in foreign:
        store.put(f"{store.root}/{name}", b"precious")
    first, _ = lines(store.root, "--older-than", "0s")
    assert "'notes.txt' there is not sortshuffle's and stays" in first
    assert store.names() == sorted(foreign)


def test_the_directory_of_a_mounted_application_is_removed_with_it(tmp_path: Path) -> None:
    fill(Store(f"file://{tmp_path}"), "app-1", "app-2")
    lines(f"file://{tmp_path}/", "--application", "app-1")
    assert os.listdir(tmp_path) == ["app-2"]


def test_a_killed_tasks_upload_is_given_up(s3: S3Server) -> None:
    program = (
        "import os, signal\n"
        "from engine import Pair, Region, write_region\n"
        "from sortshuffle.storage.files.partitioned_file import PartitionedFile\n"
        "from sortshuffle.storage.writer import PartitionedFileWriter\n"
        "region = Region({0: [bytes(9 << 20)]})\n"
        f"file = PartitionedFile.named({s3.root!r} + '/app-1', 3, 17, 204)\n"
        "write_region(PartitionedFileWriter(file, Pair(1).header), region, [0])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([tests, ENVIRONMENT["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=60)
    assert done.returncode == -9
    assert s3.uploads() == ["below/this/app-1/exchange-3-map-17-attempt-204.data"]
    first, summary = lines(s3.root, "--older-than", "0s")
    assert f"{s3.root}/app-1: 0 map outputs and 1 unfinished upload; nothing has changed for" in first
    assert summary == "Removed 1 application (0 B); kept nothing."
    assert s3.uploads() == []


def test_storage_that_cannot_be_listed_is_an_error_with_its_url(s3: S3Server) -> None:
    result = run("clean", "s3://no-such-bucket/x")
    assert result.exit_code == 4
    assert "Error: s3://no-such-bucket/x: listing map outputs failed:" in result.stderr


def test_what_was_cleaned_before_a_store_refused_is_in_the_document(store: Store, s3: S3Server) -> None:
    fill(store, "app-1")
    code, document = run_json("clean", store.root, "--older-than", "0s", "s3://no-such-bucket/x")
    assert code == 4
    assert [(each["outcome"], each["path"]) for each in document["found"]] == [
        ("removed", f"{store.root}/app-1")
    ]
    assert store.names() == []
    assert document["error"]["path"] == "s3://no-such-bucket/x"
    assert document["error"]["why"].startswith("listing map outputs failed:")


def test_what_is_no_storage_is_a_wrong_call_before_anything_is_removed(store: Store) -> None:
    fill(store, "app-1")
    before = store.names()
    result = run("clean", store.root, "--older-than", "0s", "s4://bucket/x")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: s4://bucket/x is no URL that fsspec takes: Protocol not known: s4" in result.stderr
    assert store.names() == before


def test_a_store_whose_library_is_missing_cannot_be_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    fill(store, "app-1")
    before = store.names()
    code, document = run_json("clean", store.root, "--older-than", "0s", "gs://bucket/x")
    assert (code, document["found"]) == (4, [])
    assert document["error"]["path"] == "gs://bucket/x"
    assert document["error"]["why"].startswith(f"cannot be used by the Python at {sys.executable}")
    assert store.names() == before


def test_an_application_is_named_only_at_a_url(tmp_path: Path) -> None:
    result = run("clean", tmp_path, "--application", "app-1")
    assert result.exit_code == 2
    assert "--application is for URLs" in result.stderr
