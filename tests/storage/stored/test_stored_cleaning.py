"""What applications have left on shared storage is found and removed, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from engine import ENVIRONMENT, Pair, Region, write_pair
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow.fs import LocalFileSystem
from s3_server import S3Server
from stores import Store, s3_fixture, store_fixture  # noqa: F401

from sortshuffle.storage.stored import stored_cleaning
from sortshuffle.storage.stored.stored_cleaning import remains_below, remove_exchange, remove_remains

PAIR = Pair(2, 0, [Region({0: [b"first"], 1: [bytes(1000)]})])


def fill(store: Store, application: str, attempts: int = 1) -> int:
    """Write so many map outputs; gives their bytes."""
    files = [write_pair(f"{store.root}/{application}", PAIR, attempt) for attempt in range(attempts)]
    return sum(len(store.get(path)) for file in files for path in (file.data_path, file.index_path))


def test_nothing_is_found_where_there_is_nothing(store: Store) -> None:
    assert remains_below(store.root) == []
    assert remains_below(store.root, "app-1") == []
    remove_remains(store.root, "app-1")


def test_each_application_is_found_with_what_it_has(store: Store) -> None:
    started = time.time()
    sizes = {"app-1": fill(store, "app-1"), "app-2": fill(store, "app-2", attempts=3)}
    found = remains_below(store.root)
    assert [(each.application, each.map_outputs, each.uploads) for each in found] == [
        ("app-1", 1, 0),
        ("app-2", 3, 0),
    ]
    assert {each.application: each.bytes for each in found} == sizes
    assert all(started - 2 <= each.changed <= time.time() + 2 for each in found)
    assert [each.url for each in remains_below(store.root, "app-2")] == [f"{store.root}/app-2"]


def test_only_the_applications_own_are_removed(store: Store) -> None:
    fill(store, "app-1")
    fill(store, "app-10")
    foreign = "app-1/notes.txt"
    store.put(f"{store.root}/{foreign}", b"precious")
    assert [each.foreign for each in remains_below(store.root)] == ["notes.txt", None]
    kept = store.names("app-10")
    remove_remains(store.root, "app-1")
    assert store.names() == sorted([foreign, *kept])


def test_the_root_may_be_a_whole_bucket(s3: S3Server) -> None:
    store = Store("s3://shuffles", s3)
    fill(store, "app-7")
    key = "app-8/exchange-1-map-2-attempt-3.data"
    s3.filesystem().call_s3("create_multipart_upload", Bucket="shuffles", Key=key)
    found = {each.application: each for each in remains_below(store.root)}
    assert (found["app-7"].map_outputs, found["app-8"].uploads) == (1, 1)
    for application in ("app-7", "app-8"):
        remove_remains(store.root, application)
    assert remains_below(store.root) == []
    assert store.uploads() == []


def test_partial_files_of_a_killed_task_are_removed(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    store.put(f"{store.root}/app-1/exchange-1-map-2-attempt-3.data.partial", b"half")
    (found,) = remains_below(store.root)
    assert (found.map_outputs, found.bytes) == (1, 4)
    remove_remains(store.root, "app-1")
    assert list(tmp_path.iterdir()) == []


def test_several_may_remove_the_same_exchange(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another has removed since it was listed is passed over; the rest goes."""
    fill(store, "app-1", attempts=3)
    directory = f"{store.root}/app-1"
    listed = list(stored_cleaning._files_of_exchange(directory, 3))
    assert stored_cleaning.sizes_of_exchange(directory, 3).keys() == {
        name.removeprefix("app-1/") for name in store.names()
    }
    store.remove(f"{store.root}/{store.names()[0]}")
    lists, anew = [listed], stored_cleaning._files_of_exchange
    monkeypatch.setattr(
        stored_cleaning, "_files_of_exchange", lambda *of: lists.pop() if lists else anew(*of)
    )
    remove_exchange(directory, 3)
    assert store.names() == []


def test_what_the_store_does_not_let_go_of_is_told(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 says for each object whether it is deleted, and s3fs hears nothing of that."""

    async def delete_none(filesystem: object, paths: list[str], **named: object) -> list[str]:
        return paths

    store = Store(f"s3://shuffles/{tmp_path.name}", s3)
    fill(store, "app-1", attempts=2)
    with monkeypatch.context() as patch:
        patch.setattr("s3fs.core.S3FileSystem._bulk_delete", delete_none)
        for remove in (
            lambda: remove_remains(store.root, "app-1"),
            lambda: remove_exchange(f"{store.root}/app-1", 3),
        ):
            with pytest.raises(OSError, match=r"4 of 4 objects stay, .*app-1/exchange-3-"):
                remove()
    remove_remains(store.root, "app-1")
    assert store.names() == []


def test_who_may_not_see_uploads_may_remove_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, "app-1")

    def not_allowed(filesystem: object, path: str) -> list[Any]:
        raise PermissionError("ListBucketMultipartUploads")

    monkeypatch.setattr(stored_cleaning, "_uploads_below", not_allowed)
    with pytest.raises(PermissionError, match="ListBucketMultipartUploads"):
        remove_remains(store.root, "app-1")
    assert store.names() == []


def test_a_file_system_that_takes_one_file_at_a_time_and_removes_directories_with_what_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fsspec's for HDFS does: Arrow's, here over a directory."""
    arrow = ArrowFSWrapper(LocalFileSystem())
    monkeypatch.setattr(stored_cleaning, "open_store", lambda url: (arrow, url.removeprefix("file://")))
    store = Store(f"file://{tmp_path}")
    fill(store, "app-1", attempts=2)
    fill(store, "app-2")
    foreign = tmp_path / "app-1" / "below" / "notes.txt"
    foreign.parent.mkdir()
    foreign.write_text("precious")
    for application in ("app-1", "app-2"):
        remove_remains(store.root, application)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [foreign]
    assert not (tmp_path / "app-2").exists()


def test_it_is_a_program_too(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    fill(store, "app-1")
    command = [sys.executable, "-m", "sortshuffle.storage.stored.stored_cleaning", store.root, "app-1"]
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_alone_it_writes_down_what_it_could_not_remove(tmp_path: Path) -> None:
    """Nobody waits for it, and nobody reads what it prints."""
    root, left = f"file://{tmp_path}/mounted", tmp_path / "tidied" / "left"
    fill(Store(root), "app-1")
    (tmp_path / "mounted" / "app-2").touch()
    stored_cleaning.main(root, "app-1", str(left))
    assert not left.exists()
    stored_cleaning.main(root, "app-2", str(left))
    first, second = left.read_text().splitlines()
    assert "listing map outputs failed: Not a directory. See that" in first
    assert second == f"Remove what is left with: sortshuffle clean {root} --application app-2"


class PagedStore:
    """S3 as s3fs shows it, with one upload on a page: the server of the tests does not page."""

    keys = ("app-1/exchange-1-map-1-attempt-1.data", "app-1/exchange-1-map-2-attempt-2.data")

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method: str, **named: str) -> dict[str, Any]:
        assert method == "list_multipart_uploads"
        assert (named["Bucket"], named["Prefix"]) == ("bucket", "app-1/")
        page = 1 if named.get("KeyMarker") == self.keys[0] and named.get("UploadIdMarker") == "id-0" else 0
        upload = {"Key": self.keys[page], "UploadId": f"id-{page}", "Initiated": datetime.now(timezone.utc)}
        more = {"NextKeyMarker": self.keys[0], "NextUploadIdMarker": "id-0"}
        return {"Uploads": [upload], "IsTruncated": page == 0, **(more if page == 0 else {})}


def test_all_pages_of_uploads_are_read() -> None:
    found = list(stored_cleaning._uploads_below(PagedStore(), "bucket/app-1"))
    assert [(each.path, each.upload) for each in found] == [
        (f"bucket/{key}", f"id-{number}") for number, key in enumerate(PagedStore.keys)
    ]
