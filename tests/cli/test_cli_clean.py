"""`sortshuffle clean`: what it removes, what it leaves, and what it says. Owners are real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from built_outputs import build, fill, start
from run_cli import deep, put_into, run, run_json, unlistable

from sortshuffle import calls
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, process_start
from sortshuffle.homes.shared_home import shared_home
from sortshuffle.service.host import rendezvous, rendezvous_directory
from sortshuffle.service.host.registration import Registration
from sortshuffle.spark.worker.silence import Silence
from sortshuffle.storage.files.partitioned_file import PartitionedFile

LONG_AGO = 1_000_000.0  # seconds since 1970
NOBODYS = "host-77-0123456789ab"  # a home whose owner is not known
TOKEN = "5e" * 16


@pytest.fixture(scope="module")
def ended() -> tuple[int, int]:
    """Pid and start time of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process_start(process.pid)
    assert started is not None
    process.communicate()
    return process.pid, started


def owner_of(pid: int, started: int, **other: object) -> Owner:
    owner = Owner(
        application="app-1",
        host=socket.gethostname(),
        boot=boot_id(),
        pid=pid,
        started=started,
        local_directories=(),
        grace=600.0,
        keep=False,
    )
    return replace(owner, **other)


def live_owner(**other: object) -> Owner:
    started = process_start(os.getpid())
    assert started is not None
    return owner_of(os.getpid(), started, **other)


def home(root: Path, owner: Owner | None, name: str = "") -> Path:
    """A home with one finished map output in it."""
    path = root / "sortshuffle" / "app-1" / (name or (owner.home_name if owner else NOBODYS))
    path.mkdir(parents=True, mode=0o700)
    build(path, unicast_regions=1, count=10)
    if owner is not None:
        owner.write(str(path))
    return path


def size_of(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.iterdir())


def age(path: Path, when: float = LONG_AGO) -> None:
    """Make a home and everything in it look as if it had last changed then."""
    for each in path.iterdir():
        os.utime(each, (when, when), follow_symlinks=False)
    os.utime(path, (when, when))


@pytest.fixture
def boot_time() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime"))


# ---- homes ----------------------------------------------------------------------------------------------


def test_the_home_of_a_dead_executor_goes(tmp_path: Path, ended: tuple[int, int]) -> None:
    path = home(tmp_path, owner_of(*ended))
    (path / "owner.json.77").write_text("{")  # of a process that was killed while it wrote
    size = size_of(path)
    (tmp_path / "keep me").write_text("something else")
    result = run("clean", tmp_path)
    assert result.exit_code == 0
    assert f"{path}: its executor has ended (process {ended[0]})" in result.stdout
    assert result.stdout.startswith("removed")
    assert result.stdout.splitlines()[-1] == f"Removed 1 home ({size / 1024:.1f} KiB); kept nothing."
    assert [each.name for each in tmp_path.iterdir()] == ["keep me"]


def test_dry_run_says_the_same_and_does_nothing(tmp_path: Path, ended: tuple[int, int]) -> None:
    path = home(tmp_path, owner_of(*ended))
    before = sorted(path.iterdir())
    result = run("clean", "--dry-run", tmp_path)
    assert result.exit_code == 0
    assert f"{path}: its executor has ended" in result.stdout
    assert result.stdout.startswith("would remove")
    assert result.stdout.splitlines()[-1].startswith("Would remove 1 home (")
    assert sorted(path.iterdir()) == before


def test_json_says_what_each_is_and_what_came_of_it(tmp_path: Path, ended: tuple[int, int]) -> None:
    dead = home(tmp_path, owner_of(*ended))
    size = sum(path.stat().st_size for path in dead.glob("exchange-*"))
    live = home(tmp_path, live_owner())
    code, would = run_json("clean", "--dry-run", tmp_path)
    assert (code, would["dry_run"]) == (0, True)
    by_path = {each["path"]: each for each in would["found"]}
    assert by_path[str(dead)]["outcome"] == "would remove"
    assert by_path[str(dead)]["what"] == "home"
    assert by_path[str(dead)]["bytes"] >= size
    assert by_path[str(live)]["outcome"] == "kept"
    assert dead.exists()
    code, done = run_json("clean", tmp_path)
    assert (code, done["dry_run"]) == (0, False)
    assert {each["path"]: each["outcome"] for each in done["found"]} == {
        str(dead): "removed",
        str(live): "kept",
    }
    assert not dead.exists()


def test_the_home_of_a_live_executor_stays(tmp_path: Path) -> None:
    path = home(tmp_path, live_owner())
    result = run("clean", tmp_path)
    assert result.exit_code == 0
    assert f"{path}: application app-1 is live (process {os.getpid()})" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Removed nothing; kept 1 home")
    assert (path / "exchange-3-map-0-attempt-100.data").exists()


def test_a_recycled_pid_is_not_its_executor(tmp_path: Path) -> None:
    path = home(tmp_path, owner_of(os.getpid(), 1))
    run("clean", tmp_path)
    assert not path.exists()


def test_a_home_whose_executor_lost_its_directories_goes(tmp_path: Path) -> None:
    path = home(tmp_path, live_owner(local_directories=(str(tmp_path / "gone"),)))
    assert "Spark has removed the directories of its executor" in run("clean", tmp_path).stdout
    assert not path.exists()


def test_kept_files_go_when_their_application_has_ended(tmp_path: Path, ended: tuple[int, int]) -> None:
    path = home(tmp_path, owner_of(*ended, keep=True))
    assert "kept by spark.sortshuffle.keep" in run("clean", tmp_path).stdout
    assert not path.exists()


def test_files_that_a_service_serves_on_go_when_spark_has_removed_what_goes_with_the_application(
    tmp_path: Path, ended: tuple[int, int]
) -> None:
    blocks = tmp_path / "spark" / "executor-1" / "blockmgr"
    blocks.mkdir(parents=True)
    path = home(tmp_path / "served", owner_of(*ended, outlived=True, local_directories=(str(blocks),)))
    assert "may still be served from here" in run("clean", tmp_path / "served").stdout
    assert path.exists()
    blocks.rmdir()
    blocks.parent.rmdir()
    assert "its executor has ended" in run("clean", tmp_path / "served").stdout
    assert not path.exists()


@pytest.mark.parametrize("lives", [True, False])
def test_where_sparks_directories_cannot_be_read_nothing_is_known_to_be_dead(
    tmp_path: Path, ended: tuple[int, int], lives: bool
) -> None:
    unreadable = {"served_by_spark": True, "local_directories": (f"/{'x' * 300}",)}  # its name is too long
    path = home(tmp_path, live_owner(**unreadable) if lives else owner_of(*ended, **unreadable))
    for each in path.iterdir():
        os.utime(each, (LONG_AGO, LONG_AGO))
    before = sorted(path.iterdir())
    assert run("clean", tmp_path).exit_code == 0
    assert sorted(path.iterdir()) == before


def served_by_spark(tmp_path: Path, ended: tuple[int, int]) -> tuple[Path, Path, Path]:
    """A home whose dead executor's files Spark serves, its map output, and Spark's own file."""
    blocks = tmp_path / "spark" / "executor-1" / "blockmgr"
    blocks.mkdir(parents=True)
    owner = owner_of(*ended, served_by_spark=True, local_directories=(str(blocks),))
    path = home(tmp_path / "served", owner)
    (output,) = path.glob("*.index")
    control = blocks / "0c" / f"shuffle_5_{PartitionedFile(str(output.with_suffix(''))).attempt}_0.index"
    control.parent.mkdir()
    control.touch()
    return path, output, control


def test_what_sparks_shuffle_service_may_serve_stays(tmp_path: Path, ended: tuple[int, int]) -> None:
    path, output, control = served_by_spark(tmp_path, ended)
    found = run("clean", tmp_path / "served")
    assert "its executor has ended" in found.stdout
    assert "Spark's shuffle service may still serve what it had finished" in found.stdout
    assert output.exists()
    control.unlink()
    run("clean", tmp_path / "served")
    assert not path.exists()


def test_what_sparks_shuffle_service_may_serve_goes_where_a_person_says_after_how_long(
    tmp_path: Path, ended: tuple[int, int]
) -> None:
    """A Worker that was killed removes no directory of its applications: Spark's own files stay for good."""
    path, output, control = served_by_spark(tmp_path, ended)
    age(path)
    assert "nothing has changed in it for" in run("clean", tmp_path / "served").stdout
    run("clean", "--older-than", "90000d", tmp_path / "served")
    assert output.exists()
    run("clean", "--older-than", "1h", tmp_path / "served")
    assert not path.exists()
    assert control.exists()


def test_what_an_executors_workers_tell_each_other_of_services_is_sortshuffles(
    tmp_path: Path, ended: tuple[int, int]
) -> None:
    path = home(tmp_path, owner_of(*ended))
    Silence(str(path)).note(["a:1"])
    (silent,) = path.glob("silent*")
    shutil.copy(silent, f"{silent}.{os.getpid()}")  # of a worker that was killed while it wrote
    run("clean", tmp_path)
    assert not path.exists()


@pytest.mark.parametrize("start_at", ["", "sortshuffle", "sortshuffle/app-1", "sortshuffle/app-1/NAME"])
def test_it_may_start_anywhere_at_or_above_a_home(
    tmp_path: Path, ended: tuple[int, int], start_at: str
) -> None:
    path = home(tmp_path / "spark-1" / "executor-1" / "blockmgr-1", owner_of(*ended))
    run("clean", tmp_path / "spark-1/executor-1/blockmgr-1" / start_at.replace("NAME", path.name))
    assert not path.exists()


def test_homes_are_found_however_deep_spark_puts_them(tmp_path: Path, ended: tuple[int, int]) -> None:
    path = home(tmp_path / "usercache/u/appcache/application_1/blockmgr-1", owner_of(*ended))
    run("clean", tmp_path)
    assert not path.exists()


def test_several_directories_at_once(tmp_path: Path, ended: tuple[int, int]) -> None:
    first, second = home(tmp_path / "a", owner_of(*ended)), home(tmp_path / "b", owner_of(*ended))
    result = run("clean", tmp_path / "a", tmp_path / "b", tmp_path)
    assert "Removed 2 homes" in result.stdout
    assert not first.exists() and not second.exists()


# ---- what cannot be judged ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"host": "elsewhere"}, "it belongs to host elsewhere; nothing has changed in it for"),
        ({"namespace": "pid:[1]"}, f"it belongs to another container of {socket.gethostname()}"),
        ({"boot": "another boot"}, f"another machine called {socket.gethostname()}"),
    ],
    ids=["host", "container", "machine"],  # in another container another process has that number
)
def test_homes_of_others_stay_and_are_listed(
    tmp_path: Path, ended: tuple[int, int], other: dict[str, str], why: str
) -> None:
    path = home(tmp_path, owner_of(*ended, **other))
    result = run("clean", tmp_path)
    assert (result.exit_code, result.stdout.startswith("kept")) == (0, True)
    assert f"{path}: " in result.stdout and why in result.stdout
    assert path.exists()


def test_older_than_judges_them_by_their_age(tmp_path: Path, ended: tuple[int, int]) -> None:
    path = home(tmp_path, owner_of(*ended, host="elsewhere"))
    age(path, time.time() - 8 * 86400)
    run("clean", "--older-than", "9d", tmp_path)
    assert path.exists()
    result = run("clean", "--older-than", "7d", tmp_path)
    assert "it belongs to host elsewhere; nothing has changed in it for 8 days" in result.stdout
    assert not path.exists()


def test_older_than_does_not_touch_live_homes(tmp_path: Path) -> None:
    path = home(tmp_path, live_owner())
    age(path)
    run("clean", "--older-than", "1s", tmp_path)
    assert path.exists()


@pytest.mark.parametrize("text", ["7", "d", "seven days", "-7d", "7y"])
def test_an_age_that_is_none_is_a_wrong_call(tmp_path: Path, text: str) -> None:
    result = run("clean", f"--older-than={text}", tmp_path)
    assert result.exit_code == 2
    assert "is not a time such as 90min, 12h or 7d" in result.stderr


def test_homes_from_before_the_machine_was_started_go(
    tmp_path: Path, ended: tuple[int, int], boot_time: float
) -> None:
    path = home(tmp_path, owner_of(*ended, boot="another boot"))
    age(path, boot_time - 60)
    assert "the machine was started again after it was written" in run("clean", tmp_path).stdout
    assert not path.exists()


def test_a_home_without_an_owner_stays(tmp_path: Path) -> None:
    path = home(tmp_path, None)
    age(path)
    assert "it has no owner.json that can be read" in run("clean", tmp_path).stdout
    assert path.exists()
    (path / "owner.json").write_text("{}")
    assert "it has no owner.json that can be read" in run("clean", tmp_path).stdout
    age(path)
    run("clean", "--older-than", "7d", tmp_path)
    assert not path.exists()


def test_a_home_that_was_never_used_goes_after_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "sortshuffle" / "app-1" / NOBODYS
    path.mkdir(parents=True)
    (path / "owner.json.77").write_text("{")
    assert "it is being made" in run("clean", tmp_path).stdout
    age(path)
    assert "its executor ended before it wrote anything" in run("clean", tmp_path).stdout
    assert list(tmp_path.iterdir()) == []


def test_a_home_in_which_a_process_holds_a_lock_stays(tmp_path: Path, ended: tuple[int, int]) -> None:
    path = home(tmp_path, owner_of(*ended))
    with open(path / "janitor.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "a process holds a lock in it" in run("clean", tmp_path).stdout
        assert path.exists()
    run("clean", tmp_path)
    assert not path.exists()


# ---- homes of the shuffle manager -----------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path, ended: tuple[int, int]) -> Path:
    """A home of which the process that kept its service has ended, with a map output in it, all old."""
    name = os.path.basename(shared_home("/", "app-1", boot_id(), TOKEN))
    path = home(tmp_path / "local", owner_of(*ended, grace=0.0), name)
    age(path)
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory in which executors of its application register."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return os.path.join(rendezvous_directory.own_directory(), "app-1-host-0123abcd")


def register(place: str, owner: Owner, token: str = TOKEN, **other: object) -> None:
    registration = Registration(owner, roots=(), shared_roots=("/local",), token=token)
    with rendezvous_directory.directory_lock(place):
        rendezvous._register(place, replace(registration, **other))


@pytest.mark.parametrize("is_driver", [False, True])
def test_a_shared_home_stays_while_somebody_lives_who_registered_it(
    tmp_path: Path, ended: tuple[int, int], shared: Path, place: str, is_driver: bool
) -> None:
    """The process that kept its service was killed, and the next task starts another."""
    register(place, owner_of(*ended))
    register(place, live_owner(), is_driver=is_driver)
    result = run("clean", "--older-than", "1h", tmp_path / "local")
    said = f"{shared}: application app-1 is live, though its service has ended (process {ended[0]})"
    assert (result.exit_code, said in result.stdout) == (0, True)
    assert (shared / "exchange-3-map-0-attempt-100.data").exists()


def test_a_shared_home_goes_when_all_have_ended_who_registered_it(
    tmp_path: Path, ended: tuple[int, int], shared: Path, place: str
) -> None:
    register(place, owner_of(*ended))
    register(f"{place}-other", live_owner(application="app-2"), token="6f" * 16)
    for name in ("0f" * 12 + ".socket", f"{os.path.basename(place)}.left"):
        Path(place).with_name(name).touch()
    assert "and so has its application here" in run("clean", tmp_path / "local").stdout
    assert not shared.exists()


def test_a_shared_home_whose_application_may_get_executors_again_cannot_be_judged(
    tmp_path: Path, ended: tuple[int, int], shared: Path, place: str
) -> None:
    blocks = tmp_path / "spark" / "executor-1" / "blockmgr"
    blocks.mkdir(parents=True)
    register(place, owner_of(*ended, outlived=True, local_directories=(str(blocks),)))
    assert "its application may get executors here again" in run("clean", tmp_path / "local").stdout
    assert shared.exists()
    run("clean", "--older-than", "1h", tmp_path / "local")
    assert not shared.exists()


@pytest.mark.parametrize("what", ["nobody registered", "another's", "open to others", "unreadable"])
def test_a_shared_home_of_which_nothing_tells_cannot_be_judged(
    tmp_path: Path, ended: tuple[int, int], shared: Path, place: str, what: str
) -> None:
    if what != "nobody registered":
        register(place, owner_of(*ended), token="6f" * 16 if what == "another's" else TOKEN)
    if what == "open to others":  # they could have put the registration there
        os.chmod(os.path.dirname(place), 0o755)
    if what == "unreadable":
        shutil.rmtree(os.path.join(place, rendezvous.ROOTS))
        Path(place, rendezvous.ROOTS).touch()
    result = run("clean", tmp_path / "local")
    assert "nothing that this user can read tells whether its application has" in result.stdout
    assert (result.exit_code, shared.exists()) == (0, True)
    run("clean", "--older-than", "1h", tmp_path / "local")
    assert not shared.exists()


def test_looking_for_registrations_makes_nothing(tmp_path: Path, shared: Path, place: str) -> None:
    run("clean", tmp_path / "local")
    assert list((tmp_path / "temporary").iterdir()) == []


# ---- what is not ours -----------------------------------------------------------------------------------


def test_a_home_with_foreign_files_stays(tmp_path: Path, ended: tuple[int, int]) -> None:
    for number, make in enumerate((Path.touch, Path.mkdir, lambda path: path.symlink_to("/"))):
        path = home(tmp_path, owner_of(*ended), f"host-{number}")
        (path / "passed-over").touch()  # a task failed there
        make(path / "precious")
        assert "'precious' in it is not sortshuffle's" in run("clean", tmp_path).stdout
        assert (path / "exchange-3-map-0-attempt-100.data").exists()


def test_a_pipe_in_a_home_is_foreign_and_not_waited_for(tmp_path: Path, ended: tuple[int, int]) -> None:
    path = home(tmp_path, owner_of(*ended))
    os.mkfifo(path / "exchange-3-map-8-attempt-108.data.partial")
    said = "'exchange-3-map-8-attempt-108.data.partial' in it is not sortshuffle's"
    assert said in run("clean", tmp_path).stdout
    assert path.exists()


def test_spare_files_go_with_their_home(tmp_path: Path, ended: tuple[int, int]) -> None:
    path = home(tmp_path, owner_of(*ended))
    (path / "spares").mkdir()
    (path / "spares" / "exchange-3-map-0-attempt-1.spare").write_bytes(bytes(5 << 20))
    found = run("clean", "--dry-run", tmp_path).stdout
    assert "5.0 MiB" in found
    run("clean", tmp_path)
    assert not path.exists()


def test_a_file_that_has_the_name_of_the_spares_directory_is_foreign(
    tmp_path: Path, ended: tuple[int, int]
) -> None:
    path = home(tmp_path, owner_of(*ended))
    (path / "spares").touch()
    assert "'spares' in it is not sortshuffle's" in run("clean", tmp_path).stdout
    assert path.exists()


def test_directories_that_only_look_like_homes_stay(tmp_path: Path) -> None:
    for name in (
        "sortshuffle/tests/cli",
        "sortshuffle/tests/format-1-0123456789ab/deep",
        f"other/app-1/{NOBODYS}",
    ):
        (tmp_path / name).mkdir(parents=True)
    age(tmp_path / "sortshuffle/tests/cli")
    (tmp_path / "sortshuffle" / "tests" / "format-1-0123456789ab" / "file").touch()
    run("clean", tmp_path)
    assert (tmp_path / "sortshuffle/tests/cli").exists()
    assert (tmp_path / "sortshuffle/tests/format-1-0123456789ab/deep").exists()
    assert (tmp_path / f"other/app-1/{NOBODYS}").exists()


@pytest.mark.parametrize("linked", ["sortshuffle", "sortshuffle/app-1", "sortshuffle/app-1/NAME"])
def test_symbolic_links_are_not_followed(tmp_path: Path, ended: tuple[int, int], linked: str) -> None:
    real = home(tmp_path / "elsewhere", owner_of(*ended))
    linked = linked.replace("NAME", real.name)
    link = tmp_path / "looked at" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere" / linked)
    result = run("clean", tmp_path / "looked at")
    assert "There are no files of sortshuffle's executors below" in result.stdout
    assert real.exists() and link.is_symlink()


def test_a_link_to_a_file_in_a_home_is_not_followed(tmp_path: Path, ended: tuple[int, int]) -> None:
    precious = tmp_path / "precious.data"
    precious.write_text("precious")
    path = home(tmp_path, owner_of(*ended))
    (path / "exchange-1-map-1-attempt-1.data").symlink_to(precious)
    assert "'exchange-1-map-1-attempt-1.data' in it is not sortshuffle's" in run("clean", tmp_path).stdout
    assert precious.read_text() == "precious"


# ---- map outputs of live executors ----------------------------------------------------------------------


@pytest.fixture
def live_home(tmp_path: Path) -> Iterator[Path]:
    """A live executor's home: one finished map output that Spark knows, and what the tests add."""
    blocks = tmp_path / "blockmgr-1"
    (blocks / "0a").mkdir(parents=True)
    (blocks / "0a" / "shuffle_5_100_0.index").touch()
    yield home(blocks, live_owner(local_directories=(str(blocks),)))


def test_unfinished_map_outputs_of_dead_tasks_go(live_home: Path, tmp_path: Path) -> None:
    with start(live_home, map_index=7, attempt=107) as output:
        fill(output, 1, 10)
        for path in live_home.glob("*.partial"):
            shutil.copy(path, str(path).replace("map-7-attempt-107", "map-8-attempt-108"))
        for path in live_home.glob("*.partial"):
            os.utime(path, (LONG_AGO, LONG_AGO))
        result = run("clean", "--dry-run", tmp_path)
        assert "exchange-3-map-8-attempt-108: its task ended before it was finished" in result.stdout
        assert len(list(live_home.glob("*-108.*"))) == 2
        result = run("clean", tmp_path)
        assert result.stdout.splitlines()[-1].startswith("Removed 1 map output (")
        assert list(live_home.glob("*-108.*")) == []
        assert len(list(live_home.glob("*-107.*"))) == 2
    assert (live_home / "exchange-3-map-0-attempt-100.data").exists()


def test_where_locks_cannot_be_asked_for_no_unfinished_output_is_dead(
    live_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    partial = live_home / "exchange-3-map-8-attempt-108.data.partial"
    partial.touch()
    os.utime(partial, (LONG_AGO, LONG_AGO))
    with monkeypatch.context() as lockless:
        lockless.setattr(calls, "flock", refuse)
        assert run("clean", tmp_path).exit_code == 0
    assert partial.exists()
    run("clean", tmp_path)
    assert not partial.exists()


def test_finished_map_outputs_that_spark_has_forgotten_go(live_home: Path, tmp_path: Path) -> None:
    old, new = build(live_home, map_index=1, attempt=101), build(live_home, map_index=2, attempt=102)
    for path in (old.data_path, old.index_path, live_home / "exchange-3-map-0-attempt-100.data"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    result = run("clean", tmp_path)
    assert "exchange-3-map-1-attempt-101: Spark has forgotten it" in result.stdout
    assert not os.path.exists(old.data_path) and not os.path.exists(old.index_path)
    assert os.path.exists(new.data_path)
    assert (live_home / "exchange-3-map-0-attempt-100.data").exists()


# ---- trouble --------------------------------------------------------------------------------------------


def test_what_cannot_be_removed_is_said(tmp_path: Path, ended: tuple[int, int]) -> None:
    path = home(tmp_path, owner_of(*ended))
    if subprocess.run(["chattr", "+i", path], capture_output=True).returncode:
        pytest.skip("no file can be made immutable here")
    try:
        result = run("clean", tmp_path)
        assert result.exit_code == 1
        assert result.stdout.startswith("failed")
        assert "Could not remove 1 home" in result.stdout
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


def test_what_cannot_be_listed_is_in_the_document_and_in_the_exit_code(
    tmp_path: Path, ended: tuple[int, int]
) -> None:
    gone = home(tmp_path, owner_of(*ended))
    path = unlistable(tmp_path)
    code, document = run_json("clean", tmp_path)
    assert code == 1
    assert [(each["outcome"], each["path"]) for each in document["found"]] == [("removed", str(gone))]
    assert document["passed_over"] == [{"path": path, "why": "File name too long"}]
    assert document["error"] is None


def test_a_home_of_which_the_system_tells_nothing_is_passed_over_and_said(
    tmp_path: Path, ended: tuple[int, int]
) -> None:
    gone = home(tmp_path / "a", owner_of(*ended))
    path, name = deep(tmp_path, f"/sortshuffle/app-1/{NOBODYS}"), "exchange-3-map-0-attempt-100.data"
    owner_of(*ended).write(str(path))
    put_into(path, name)
    code, document = run_json("clean", tmp_path)
    assert code == 1
    assert [(each["outcome"], each["path"]) for each in document["found"]] == [("removed", str(gone))]
    assert document["passed_over"] == [{"path": f"{path}/{name}", "why": "File name too long"}]


def test_a_shared_home_whose_owner_cannot_be_read_is_passed_over_and_said(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an owner its name alone does not make it a home."""
    owner, open_file = str(shared / "owner.json"), calls.open_file

    def refuse(path: str, *arguments: Any, **named: Any) -> Any:
        if path == owner:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return open_file(path, *arguments, **named)

    monkeypatch.setattr(calls, "open_file", refuse)
    code, document = run_json("clean", tmp_path)
    assert (code, document["found"]) == (1, [])
    assert document["passed_over"] == [{"path": owner, "why": "Input/output error"}]


def test_a_file_that_goes_while_its_home_is_looked_at_does_not_hide_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, scandir = home(tmp_path, live_owner()), calls.scandir
    gone = path / "exchange-3-map-8-attempt-108.data.partial"

    @contextmanager
    def scan_and_lose(directory: str) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(directory) as scan:
            entries = list(scan)
        gone.unlink(missing_ok=True)
        yield entries

    gone.touch()
    monkeypatch.setattr(calls, "scandir", scan_and_lose)
    code, document = run_json("clean", tmp_path)
    assert (code, [each["path"] for each in document["found"]]) == (0, [str(path)])


def test_a_home_that_can_be_listed_no_more_ends_nothing(
    tmp_path: Path, ended: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was listed once already, when it was judged."""
    live, failing, dead = (
        home(tmp_path / name, owner)
        for name, owner in (("a", live_owner()), ("b", owner_of(*ended)), ("c", owner_of(*ended)))
    )
    listdir = calls.listdir

    def refuse(path: str) -> list[str]:
        if path in (str(live), str(failing)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return listdir(path)

    monkeypatch.setattr(calls, "listdir", refuse)
    code, document = run_json("clean", tmp_path)
    assert code == 1
    assert [(each["outcome"], each["path"]) for each in document["found"]] == [
        ("kept", str(live)),
        ("failed", str(failing)),
        ("removed", str(dead)),
    ]


def test_a_directory_that_is_not_there_is_a_wrong_call(tmp_path: Path) -> None:
    assert run("clean", tmp_path / "missing").exit_code == 2
    assert run("clean").exit_code == 2
