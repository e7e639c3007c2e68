"""Shared homes: named so that no two applications, containers or runs of a system meet; private; owned by who
keeps the service running; removed with everything in them, unless their owner keeps it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine import Pair, names, running, small_disk, write_pair

from sortshuffle.errors import UsageError
from sortshuffle.homes import shared_home as shared_homes
from sortshuffle.homes.host import host_name
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, process_namespace, process_start
from sortshuffle.homes.shared_home import (
    expect_stored_home,
    is_shared,
    make_shared_home,
    make_stored_home,
    remove_shared_home,
    shared_home,
    stored_home,
)

TOKEN = "5e" * 8


@pytest.fixture
def home(tmp_path: Path) -> str:
    return shared_home(str(tmp_path / "root"), "app-1", boot_id(), TOKEN)


@contextmanager
def booted(identity: str) -> Iterator[None]:
    """As if the system had been started with that id."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_homes, "boot_id", lambda: identity)
        yield


def test_its_name_has_the_boot_and_the_token(tmp_path: Path) -> None:
    boot = boot_id().replace("-", "")[:8]
    assert len(boot) == 8
    assert shared_home("/disk", "app-1", boot_id(), TOKEN) == f"/disk/sortshuffle/app-1/shared-{boot}-{TOKEN}"


def test_no_two_that_must_not_meet_have_one_name() -> None:
    found = {
        shared_home(root, application, boot_id(), token)
        for root in ("/a", "/b")
        for application in ("app-1", "app-2")
        for token in (TOKEN, "6f" * 8)
    }
    found.add(shared_home("/a", "app-1", "0f1e2d3c-0000-0000-0000-000000000000", TOKEN))
    found.add(shared_home("/a", "app-1", "", TOKEN))
    assert len(found) == 10


def test_at_a_url_it_is_one_for_all_hosts() -> None:
    assert stored_home("s3://bucket", "app-1", TOKEN) == f"s3://bucket/app-1-{TOKEN}"
    assert stored_home("file:///mount/x/", "app-1", TOKEN) == f"file:///mount/x/app-1-{TOKEN}"


def test_the_drivers_host_makes_it_where_a_directory_is_mounted(tmp_path: Path) -> None:
    """By it other hosts know that they have mounted the same."""
    home = stored_home(f"file://{tmp_path}/a/b", "app-1", TOKEN)
    with pytest.raises(OSError, match=rf"host {host_name()} does not see it\. Mount the same") as caught:
        expect_stored_home(home)
    assert (caught.value.errno, caught.value.filename) == (errno.ENODEV, home)
    make_stored_home(home)
    make_stored_home(home)
    expect_stored_home(home)
    assert stat.S_IMODE(os.stat(tmp_path / "a" / "b" / f"app-1-{TOKEN}").st_mode) == 0o700


def test_a_mounted_directory_that_fails_is_not_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    home = stored_home(f"file://{tmp_path}/a", "app-1", TOKEN)
    for call in (make_stored_home, expect_stored_home):
        with pytest.raises(NotADirectoryError, match="the application's directory failed"):
            call(home)


def test_an_object_store_has_no_directory_to_make() -> None:
    make_stored_home("s3://bucket/app-1")
    expect_stored_home("s3://bucket/app-1")


def test_it_is_known_by_its_name(home: str) -> None:
    assert is_shared(home)
    assert not is_shared("/disk/sortshuffle/app-1/host-4711")
    assert not is_shared("/disk/shared-x/app-1/host-4711")


def test_it_is_made_private_and_says_who_keeps_the_service(home: str) -> None:
    with running("sleep", "60") as keeper:
        make_shared_home(home, keeper.pid, keep=False)
        assert stat.S_IMODE(os.stat(home).st_mode) == 0o700
        assert Owner.read(home) == Owner(
            application="app-1",
            host=host_name(),
            boot=boot_id(),
            pid=keeper.pid,
            started=process_start(keeper.pid) or 0,
            local_directories=(),
            grace=0.0,
            keep=False,
            namespace=process_namespace(),
        )
        owner = Owner.read(home)
        assert owner is not None
        assert owner.on_this_host()
        assert owner.is_live()
    assert not owner.is_live()


def test_a_root_that_is_not_to_be_made_stays_gone(home: str, tmp_path: Path) -> None:
    """Spark's own directory, which tells that the application lives."""
    root = tmp_path / "root"
    with pytest.raises(FileNotFoundError):
        make_shared_home(home, os.getpid(), keep=False, makes_root=False)
    assert not root.exists()
    root.mkdir()
    for _ in range(2):
        make_shared_home(home, os.getpid(), keep=False, makes_root=False)
        assert os.listdir(home) == ["owner.json"]
    assert [stat.S_IMODE(os.stat(each).st_mode) for each in (home, os.path.dirname(home))] == [0o700] * 2


def test_making_it_again_changes_what_is_new_only(home: str) -> None:
    make_shared_home(home, os.getpid(), keep=False)
    file = write_pair(home, Pair(2))
    path = os.path.join(home, "owner.json")
    before = os.stat(path).st_ino
    make_shared_home(home, os.getpid(), keep=False)
    assert os.stat(path).st_ino == before
    make_shared_home(home, os.getppid(), keep=True)
    owner = Owner.read(home)
    assert owner is not None
    assert (owner.pid, owner.keep) == (os.getppid(), True)
    assert os.path.exists(file.data_path)


def test_a_keeper_that_has_ended_is_no_reason_to_fail(home: str) -> None:
    with running("true") as gone:
        gone.wait()
    make_shared_home(home, gone.pid, keep=False)
    owner = Owner.read(home)
    assert owner is not None
    assert not owner.is_live()


def test_where_it_cannot_be_made_the_reason_is_told(tmp_path: Path, home: str) -> None:
    (tmp_path / "root").write_text("no directory")
    with pytest.raises(NotADirectoryError):
        make_shared_home(home, os.getpid(), keep=False)


def test_it_is_removed_with_everything_in_it_and_empty_directories_above(tmp_path: Path, home: str) -> None:
    make_shared_home(home, os.getpid(), keep=False)
    write_pair(home, Pair(2))
    Path(home, "exchange-1-map-2-attempt-3.data.partial").touch()
    Path(home, "passed-over").touch()
    assert remove_shared_home(home)
    assert names(tmp_path / "root") == []


def test_others_beside_it_stay(tmp_path: Path, home: str) -> None:
    make_shared_home(home, os.getpid(), keep=False)
    other = tmp_path / "root" / "sortshuffle" / "app-1" / "host-4711"
    other.mkdir()
    assert remove_shared_home(home)
    assert names(tmp_path / "root" / "sortshuffle" / "app-1") == ["host-4711"]


def test_one_that_is_gone_need_not_be_removed(home: str) -> None:
    assert remove_shared_home(home)
    make_shared_home(home, os.getpid(), keep=False)
    assert remove_shared_home(home)
    assert remove_shared_home(home)


def test_one_whose_owner_was_never_written_is_removed(home: str) -> None:
    """The engine was killed before it wrote it, or the disk was full."""
    os.makedirs(home)
    write_pair(home, Pair(2))
    assert remove_shared_home(home)
    assert not os.path.exists(home)


@pytest.mark.parametrize("level", ["home", "application"])
def test_links_are_not_followed(tmp_path: Path, home: str, level: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    link = home if level == "home" else os.path.dirname(home)
    os.makedirs(os.path.dirname(link))
    os.symlink(elsewhere, link)
    if level == "application":
        (elsewhere / os.path.basename(home)).mkdir()
        (elsewhere / os.path.basename(home) / "file").touch()
    with pytest.raises(UsageError, match="not deleted"):
        remove_shared_home(home)
    assert (elsewhere / "file").exists()


def test_what_is_not_named_like_a_home_is_not_deleted(tmp_path: Path) -> None:
    directory = tmp_path / "shared-0-5e"
    directory.mkdir()
    with pytest.raises(UsageError, match="not deleted"):
        remove_shared_home(str(directory))
    assert directory.exists()


def test_one_that_cannot_be_removed_is_found_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        home = shared_home(str(disk), "app-1", boot_id(), TOKEN)
        make_shared_home(home, os.getpid(), keep=False)
        busy = Path(home, "busy")
        with small_disk(busy):
            assert not remove_shared_home(home)
            assert names(home) == ["busy", "owner.json"]
        assert remove_shared_home(home)
