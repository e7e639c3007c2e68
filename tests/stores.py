"""Storage that every host sees, for tests: a real S3-compatible server, a mounted directory, and fsspec's own
memory, behind one way to look at what is there and to damage it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from s3_server import BUCKET, S3Server, running_s3_server

from sortshuffle.storage.files.urls import open_store

KINDS = ("s3", "file", "memory")


@dataclass(frozen=True)
class Store:
    """``root``: the URL that ``spark.sortshuffle.dir`` would name."""

    root: str
    server: S3Server | None = None

    def names(self, below: str = "") -> list[str]:
        """What there is below the root, unfinished things included where the store shows them."""
        filesystem, root = open_store(self.root)
        filesystem.invalidate_cache()
        top = f"{root}/{below}".rstrip("/")
        return sorted(path.removeprefix(root).lstrip("/") for path in filesystem.find(top))

    def uploads(self) -> list[str]:
        """Uploads that were begun and neither completed nor given up."""
        return self.server.uploads() if self.server else []

    def get(self, url: str) -> bytes:
        filesystem, path = open_store(url)
        data: bytes = filesystem.cat_file(path)
        return data

    def put(self, url: str, data: bytes) -> None:
        filesystem, path = open_store(url)
        filesystem.makedirs(filesystem._parent(path), exist_ok=True)
        filesystem.pipe_file(path, data)

    def remove(self, url: str) -> None:
        filesystem, path = open_store(url)
        filesystem.rm_file(path)


@contextmanager
def store_of(kind: str, directory: Path, server: S3Server) -> Iterator[Store]:
    """An empty store of one of the `KINDS`; below ``directory`` if it is a mounted one."""
    if kind == "file":
        yield Store(f"file://{directory}/mounted")
        return
    store = (
        Store(f"s3://{BUCKET}/{directory.name}", server) if kind == "s3" else Store(f"memory://{directory}")
    )
    try:
        yield store
    finally:
        filesystem, path = open_store(store.root)
        if filesystem.exists(path):
            filesystem.rm(path, recursive=True)


@pytest.fixture(scope="module", name="s3")
def s3_fixture() -> Iterator[S3Server]:
    with running_s3_server() as server:
        yield server


@pytest.fixture(params=KINDS, name="store")
def store_fixture(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> Iterator[Store]:
    with store_of(request.param, tmp_path, s3) as found:
        yield found


@pytest.fixture(params=["s3", "memory"], name="object_store")
def object_store_fixture(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> Iterator[Store]:
    """One that is not a directory of this host."""
    with store_of(request.param, tmp_path, s3) as found:
        yield found
