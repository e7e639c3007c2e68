"""`PartitionedFileWriter` on storage that every host sees: the same bytes as in local files; nothing is seen
before it is finished, and nothing is left of what was not."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine import (
    ENVIRONMENT,
    WRITER,
    Pair,
    Region,
    eventually,
    open_files,
    pair_by_hand,
    small_disk,
    write_pair,
    write_region,
)
from s3_server import S3Server
from stores import Store, object_store_fixture, s3_fixture, store_fixture  # noqa: F401

from sortshuffle import calls
from sortshuffle.errors import OutOfDiskError, StateError, WorkerSetupError
from sortshuffle.format.buffer import seal
from sortshuffle.options import KIB
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.stored import stored_pair
from sortshuffle.storage.stored.stored_pair import PART_BYTES, StoredPair
from sortshuffle.storage.writer import PartitionedFileWriter

BASE = "app-1/exchange-3-map-17-attempt-204"
BOTH = [f"{BASE}.data", f"{BASE}.index"]
SMALL = Pair(3, 1, [Region({0: [b"first", b"second"], 2: [bytes(1000)]}), Region({1: [b"third"]})], b"schema")
# three parts of the upload, in buffers that do not end where parts do
LARGE = Pair(2, 0, [Region({s: [bytes([s, n]) * (350 * KIB) for n in range(15)] for s in (0, 1)})])


def directory_of(store: Store) -> str:
    return f"{store.root}/app-1"


def new_writer(store: Store, pair: Pair = SMALL) -> PartitionedFileWriter:
    return PartitionedFileWriter(PartitionedFile.named(directory_of(store), 3, 17, 204), pair.header)


def contents(store: Store, file: PartitionedFile) -> tuple[bytes, bytes]:
    return store.get(file.data_path), store.get(file.index_path)


@pytest.mark.parametrize("pair", [SMALL, LARGE, Pair(4)], ids=["small", "large", "empty"])
def test_the_bytes_are_those_of_local_files(store: Store, pair: Pair) -> None:
    file = write_pair(directory_of(store), pair)
    assert file.base == f"{store.root}/{BASE}"
    assert contents(store, file) == pair_by_hand(pair)
    assert store.names() == BOTH
    assert store.uploads() == []


def test_the_large_one_is_larger_than_two_parts() -> None:
    assert len(pair_by_hand(LARGE)[0]) > 2 * PART_BYTES


@pytest.mark.parametrize("pair", [SMALL, LARGE], ids=["small", "large"])
def test_nothing_has_its_name_before_it_is_finished(store: Store, pair: Pair) -> None:
    with new_writer(store, pair) as writer:
        for region in pair.regions:
            write_region(writer, region, pair.order)
            assert not set(store.names()) & set(BOTH)
        writer.finish(WRITER)
        assert store.names() == BOTH


@pytest.mark.parametrize("pair", [SMALL, LARGE], ids=["small", "large"])
def test_nothing_is_left_of_what_was_abandoned(store: Store, pair: Pair) -> None:
    with new_writer(store, pair) as writer:
        write_region(writer, pair.regions[0], pair.order)
    assert store.names() == []
    assert store.uploads() == []
    writer.abandon()
    with pytest.raises(StateError, match="abandoned"):
        writer.start_region()


def test_an_error_of_the_user_abandons(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), new_writer(store, LARGE) as writer:
        write_region(writer, LARGE.regions[0], LARGE.order)
        raise ZeroDivisionError
    assert store.names() == []
    assert store.uploads() == []


def test_what_was_finished_stays(store: Store) -> None:
    with new_writer(store) as writer:
        file = writer.finish(WRITER)
        writer.abandon()
    assert contents(store, file) == pair_by_hand(Pair(3, 1))


def test_a_large_upload_goes_in_parts_of_the_stated_size(s3: S3Server) -> None:
    file = write_pair(f"{s3.root}/app-5", LARGE)
    filesystem = s3.filesystem()
    bucket, key, _ = filesystem.split_path(file.data_path)
    sizes = [
        filesystem.call_s3("head_object", Bucket=bucket, Key=key, PartNumber=number)["ContentLength"]
        for number in (1, 2, 3)
    ]
    assert sizes == [PART_BYTES, PART_BYTES, len(pair_by_hand(LARGE)[0]) - 2 * PART_BYTES]


def test_small_pieces_become_few_requests(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_pair, "PART_BYTES", 5 << 20)  # the least that S3 takes
    requests = recorded_requests(s3, monkeypatch)
    pair = Pair(1, 0, [Region({0: [bytes(2000)] * 5000})])
    write_pair(f"{s3.root}/app-2", pair)
    assert requests == [
        "create_multipart_upload",
        "upload_part",
        "upload_part",
        "complete_multipart_upload",
        "put_object",
    ]


def test_a_small_pair_is_two_requests(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = recorded_requests(s3, monkeypatch)
    write_pair(f"{s3.root}/app-3", SMALL)
    assert requests == ["put_object", "put_object"]


def recorded_requests(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    requests: list[str] = []
    filesystem = server.filesystem()
    asked = filesystem._call_s3

    async def call(method: str, *arguments: object, **named: object) -> object:
        requests.append(method)
        return await asked(method, *arguments, **named)

    monkeypatch.setattr(filesystem, "_call_s3", call)
    monkeypatch.setattr(filesystem, "call_s3", lambda *a, **k: _sync(filesystem, call, *a, **k))
    return requests


def _sync(filesystem: object, call: object, *arguments: object, **named: object) -> object:
    from fsspec.asyn import sync

    return sync(filesystem.loop, call, *arguments, **named)  # type: ignore[attr-defined]


# Failures of the store


def test_a_bucket_that_is_not_there_is_named(s3: S3Server) -> None:
    url = "s3://no-such-bucket/app-1"
    with pytest.raises(
        FileNotFoundError, match=r"writing failed.*does not exist.*See that this host reaches"
    ) as caught:
        write_pair(url, SMALL)
    assert caught.value.filename == f"s3://no-such-bucket/{BASE}.data"


def test_an_upload_that_fails_half_way_leaves_nothing(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = s3.filesystem()
    asked = filesystem.call_s3
    parts = 0

    def call(method: str, *arguments: object, **named: object) -> object:
        nonlocal parts
        parts += method == "upload_part"
        if parts == 2:
            raise OSError(errno.EIO, "the second part does not arrive")
        return asked(method, *arguments, **named)

    monkeypatch.setattr(filesystem, "call_s3", call)
    with pytest.raises(OSError, match="the second part does not arrive") as caught:
        write_pair(f"{s3.root}/app-4", LARGE)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, f"{s3.root}/app-4/{BASE[6:]}.data")
    parts = 0
    assert s3.objects("app-4") == []
    assert s3.uploads() == []


class Stuck:
    """A new object that cannot be removed."""

    def discard(self) -> None:
        raise OSError(errno.EIO, "nor removed")


def pair_of(monkeypatch: pytest.MonkeyPatch, *objects: Stuck) -> StoredPair:
    """Where no more than these can be opened."""
    begun = iter(objects)

    def new(url: str) -> Stuck:
        for each in begun:
            return each
        raise OSError(errno.EIO, "cannot be opened")

    monkeypatch.setattr(stored_pair, "_new_object", new)
    return StoredPair(PartitionedFile.named("s3://nowhere/app-1", 3, 17, 204))


def test_what_cannot_be_removed_either_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="cannot be opened"):
        pair_of(monkeypatch, Stuck())
    pair_of(monkeypatch, Stuck(), Stuck()).discard()


def test_a_pair_whose_index_fails_has_no_data_object(
    object_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise OSError(errno.EIO, "the index does not arrive")

    with pytest.raises(OSError, match="the index does not arrive"), new_writer(object_store) as writer:
        write_region(writer, SMALL.regions[0], SMALL.order)
        monkeypatch.setattr(writer._pair._index, "commit", fail.__get__(writer))  # type: ignore[attr-defined]
        writer.finish(WRITER)
    assert object_store.names() == []


def test_a_store_whose_library_is_missing_says_where_to_install_it() -> None:
    with pytest.raises(WorkerSetupError, match=rf"{sys.executable}.* on .*Install") as caught:
        write_pair("gs://bucket/app-1", SMALL)
    assert "gs://bucket/app-1" in str(caught.value)


def test_a_full_mounted_directory_is_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        url = f"file://{disk}"
        with pytest.raises(OutOfDiskError, match="no space left"):
            write_pair(url, LARGE)
        assert os.listdir(disk) == []


def test_an_attempts_file_is_not_written_twice(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a"
    write_pair(url, SMALL)
    with pytest.raises(FileExistsError, match="there already"):
        write_pair(url, SMALL)


def test_a_mounted_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    file = write_pair(f"file://{tmp_path}/mount/app-1", SMALL)
    path = file.data_path.removeprefix("file://")
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


def test_mounted_files_are_closed_before_they_get_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[list[str]] = []
    rename = os.rename

    def look_and_rename(old: str, new: str) -> None:
        opened.append(open_files(tmp_path))
        rename(old, new)

    monkeypatch.setattr(calls, "rename", look_and_rename)
    write_pair(f"file://{tmp_path}/mount", SMALL)
    assert opened == [[], []]


def test_a_killed_process_leaves_an_upload_that_nobody_sees(s3: S3Server) -> None:
    program = (
        "import sys, os, signal\n"
        "from test_stored_pair import LARGE, new_writer, write_region\n"
        "from stores import Store\n"
        f"writer = new_writer(Store({s3.root!r} + '/killed'), LARGE)\n"
        "write_region(writer, LARGE.regions[0], LARGE.order)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, os.path.dirname(os.path.dirname(here)), ENVIRONMENT["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=60)
    assert done.returncode == -9
    assert s3.objects("killed") == []
    assert s3.uploads() == [f"below/this/killed/{BASE}.data"]
    filesystem = s3.filesystem()
    filesystem.clear_multipart_uploads("shuffles")
    eventually(lambda: not s3.uploads(), "the upload is given up")


def test_pieces_of_any_kind_of_memory(store: Store) -> None:
    with new_writer(store, Pair(1)) as writer:
        writer.start_region()
        writer.write_extents(
            [(0, [seal(p, len(p), records=1) for p in (b"x", bytearray(b"yz"), memoryview(b"u"))])]
        )
        writer.finish_region()
        file = writer.finish(WRITER)
    expected = Pair(1, 0, [Region({0: [b"x", b"yz", b"u"]})])
    assert contents(store, file) == pair_by_hand(expected)


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ([], []),
        ([1, 2, 3], [6]),
        ([stored_pair.BLOCK_BYTES, 5], [stored_pair.BLOCK_BYTES, 5]),
        ([5, stored_pair.BLOCK_BYTES, 7], [stored_pair.BLOCK_BYTES + 5, 7]),
        ([stored_pair.BLOCK_BYTES - 1, 1, 9], [stored_pair.BLOCK_BYTES, 9]),
    ],
    ids=["nothing", "small", "large first", "large later", "full"],
)
def test_small_pieces_are_joined(sizes: list[int], blocks: list[int]) -> None:
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    found = list(stored_pair._in_blocks(pieces))
    assert [len(block) for block in found] == blocks
    assert b"".join(found) == b"".join(pieces)
