"""Directories at a URL are listed by name; what cannot be listed is an error, and nothing else is."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from stores import Store, s3_fixture, store_fixture  # noqa: F401

from sortshuffle.storage.stored import stored_cleaning, stored_listing
from sortshuffle.storage.stored.stored_listing import directories_in, files_in


class PartlyListed(MemoryFileSystem):
    """fsspec's memory as some file systems are: ``ls`` takes no further arguments, and fails for directories
    that a test names."""

    protocol = "partly"
    store: dict[str, object] = {}  # noqa: RUF012  (of the class, as MemoryFileSystem has it)
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    errors: dict[str, OSError] = {}  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("partly://", "memory://"))

    def ls(self, path: str, detail: bool = True) -> object:
        path = self._strip_protocol(path)
        if path in self.errors:
            raise self.errors[path]
        return super().ls(path, detail)


fsspec.register_implementation("partly", PartlyListed, clobber=True)


@pytest.fixture
def partly() -> Iterator[Store]:
    yield Store("partly://bucket")
    PartlyListed.store.clear()
    PartlyListed.errors.clear()


def test_the_files_of_a_directory_are_those_of_a_prefix(store: Store) -> None:
    started = time.time()
    for name in ("exchange-1-a", "exchange-10-a", "exchange-1-b", "below/exchange-1-c", "other/x"):
        store.put(f"{store.root}/app/{name}", b"1234")
    assert [(file.name, file.bytes) for file in files_in(f"{store.root}/app", "exchange-10-")] == [
        ("exchange-10-a", 4)
    ]
    found = {file.name: file for file in files_in(f"{store.root}/app")}
    assert found.keys() == {"exchange-1-a", "exchange-10-a", "exchange-1-b"}
    assert all(started - 2 <= file.changed <= time.time() + 2 for file in found.values())
    assert directories_in(f"{store.root}/app") == ["below", "other"]


def test_a_directory_that_is_not_there_has_nothing(store: Store) -> None:
    for url in (store.root, f"{store.root}/app"):
        assert (files_in(url), files_in(url, "exchange-1-"), directories_in(url)) == ([], [], [])


def test_a_mounted_directory_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "app").touch()
    for call in (files_in, directories_in):
        with pytest.raises(NotADirectoryError):
            call(f"file://{tmp_path}/app")
    with pytest.raises(OSError, match=r"listing map outputs failed: Not a directory\. See that"):
        stored_cleaning.sizes_of_exchange(f"file://{tmp_path}/app", 1)
    with pytest.raises(OSError, match="listing map outputs failed"):
        stored_cleaning.remove_exchange(f"file://{tmp_path}/app", 1)


def test_a_store_that_fails_is_an_error(partly: Store) -> None:
    partly.put("partly://bucket/app/exchange-1-map-1-attempt-1.data", b"x")
    assert len(files_in("partly://bucket/app", "exchange-1-")) == 1
    PartlyListed.errors["/bucket/app"] = OSError(errno.EIO, "busy")
    with pytest.raises(OSError, match="listing map outputs failed: busy"):
        stored_cleaning.sizes_of_exchange("partly://bucket/app", 1)
    with pytest.raises(OSError, match="listing map outputs failed: busy"):
        stored_cleaning.remove_remains("partly://bucket", "app")
    with pytest.raises(OSError, match="listing map outputs failed: busy"):
        stored_cleaning.remains_below("partly://bucket")


def test_what_another_user_has_is_passed_over_unless_it_is_named(partly: Store) -> None:
    for application in ("ours", "theirs"):
        partly.put(f"partly://bucket/{application}/exchange-1-map-1-attempt-1.data", b"x")
    PartlyListed.errors["/bucket/theirs"] = PermissionError(errno.EACCES, "not yours")
    assert [each.application for each in stored_cleaning.remains_below("partly://bucket")] == ["ours"]
    with pytest.raises(PermissionError):
        stored_cleaning.remains_below("partly://bucket", "theirs")


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        ({"LastModified": datetime(2026, 1, 2, tzinfo=timezone.utc)}, 1767312000.0),
        ({"mtime": 12.5}, 12.5),
        ({"LastModified": None, "created": 7}, 7.0),
    ],
)
def test_stores_tell_times_in_their_own_ways(told: Mapping[str, Any], changed: float) -> None:
    assert stored_listing._changed(dict(told)) == changed


def test_a_file_of_unknown_age_is_new() -> None:
    before = time.time()
    assert before <= stored_listing._changed({"size": 1}) <= time.time()
