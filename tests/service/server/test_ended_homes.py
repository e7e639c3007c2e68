"""What ended executors left is listed once, and as it is: counted by the directories that are listed."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine import running
from serving import APPLICATION, ended_owner, make_home

from sortshuffle import calls
from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.service.server.ended_homes import FORGETS_EVERY, HELD_AT_MOST, WAITED_AT_MOST, EndedHomes
from sortshuffle.storage.files.partitioned_file import PartitionedFile

EXCHANGE = 5


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that have been listed."""
    found: list[str] = []

    def listdir(path: str) -> list[str]:
        found.append(path)
        return os.listdir(path)

    monkeypatch.setattr(calls, "listdir", listdir)
    return found


def put(home: Path, *outputs: tuple[int, int]) -> None:
    for map_index, attempt in outputs:
        Path(PartitionedFile.named(str(home), EXCHANGE, map_index, attempt).index_path).touch()
    settle(home)


def settle(*directories: Path) -> None:
    """Let some time pass for them, as the clock of the file system tells."""
    for directory in directories:
        found = os.stat(directory)
        os.utime(directory, ns=(found.st_atime_ns, found.st_mtime_ns - 10**10))


def attempts(homes: EndedHomes, root: Path, map_index: int, application: str = APPLICATION) -> list[int]:
    found = homes.outputs([str(root)], application, EXCHANGE, map_index)
    return [file.attempt or 0 for file, _ in found]


def test_many_questions_list_each_directory_once(tmp_path: Path, listed: list[str]) -> None:
    first, second = (make_home(tmp_path, f"ended-{n}", ended_owner()) for n in (1, 2))
    put(first, *((n, 1000 + n) for n in range(3000)))
    put(second, (7, 12), (3000, 13))
    settle(first.parent)
    homes = EndedHomes()
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda n: attempts(homes, tmp_path, n), range(3001)))
    assert found[7] == [12, 1007]
    assert found[3000] == [13]
    assert [each for n, each in enumerate(found) if n not in (7, 3000)] == [
        [1000 + n] for n in range(3000) if n != 7
    ]
    assert sorted(listed) == sorted(map(str, (first.parent, first, second)))
    assert attempts(homes, tmp_path, 3001) == []
    assert homes.outputs([str(tmp_path)], APPLICATION, EXCHANGE + 1, 7) == []


def test_what_comes_and_goes_is_seen(tmp_path: Path, listed: list[str]) -> None:
    home = make_home(tmp_path, "ended-1", ended_owner())
    put(home, (1, 10), (2, 20))
    settle(home.parent)
    homes = EndedHomes()
    assert [attempts(homes, tmp_path, n) for n in (1, 2, 3)] == [[10], [20], []]
    os.unlink(PartitionedFile.named(str(home), EXCHANGE, 1, 10).index_path)
    put(home, (3, 30))
    assert [attempts(homes, tmp_path, n) for n in (1, 2, 3)] == [[], [20], [30]]
    other = make_home(tmp_path, "ended-2", ended_owner())
    put(other, (2, 15))
    assert attempts(homes, tmp_path, 2) == [15, 20]
    shutil.rmtree(home)
    assert attempts(homes, tmp_path, 2) == [15]
    shutil.rmtree(other.parent)
    assert attempts(homes, tmp_path, 2) == []
    assert list(homes._root(str(tmp_path))._applications) == []


def test_a_directory_that_has_just_changed_is_listed_again(tmp_path: Path, listed: list[str]) -> None:
    """It may change again within a tick of the file system's clock."""
    home = make_home(tmp_path, "ended-1", ended_owner())
    settle(home.parent)
    homes = EndedHomes()
    just_now = time.time_ns() + 10**9  # until then the test is over
    for map_index in (1, 2):
        put(home, (map_index, 10))
        os.utime(home, ns=(just_now, just_now))
        assert attempts(homes, tmp_path, map_index) == [10]


def test_an_executor_is_looked_at_until_it_has_ended(tmp_path: Path, listed: list[str]) -> None:
    with running("sleep", "600") as process:
        live = Owner.of_process(process.pid, APPLICATION, (), 600.0, keep=False, outlived=True)
        home = make_home(tmp_path, "executor", live)
        put(home, (1, 10))
        settle(home.parent)
        homes = EndedHomes()
        assert attempts(homes, tmp_path, 1) == []
        assert str(home) not in listed
        process.kill()
        process.wait()
        assert attempts(homes, tmp_path, 1) == [10]


def test_applications_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    put(make_home(tmp_path, "ended-1", ended_owner()), (1, 10))
    now = 0.0
    homes = EndedHomes(lambda: now)
    assert attempts(homes, tmp_path, 1) == [10]
    applications = tmp_path / HOME_ROOT
    (applications / APPLICATION).rename(applications / "app-2")
    now += FORGETS_EVERY
    assert attempts(homes, tmp_path, 1, "app-2") == [10]
    root = homes._root(str(tmp_path))
    assert list(root._applications) == list(root._names) == [str(applications / "app-2")]
    assert list(root._ended) == list(root._homes) == [str(applications / "app-2" / "ended-1")]


def test_homes_that_are_gone_are_forgotten_with_the_next_question(tmp_path: Path) -> None:
    for number in range(30):
        put(make_home(tmp_path, f"ended-{number}", ended_owner()), (1, number))
    homes = EndedHomes()
    assert attempts(homes, tmp_path, 1) == list(range(30))
    for number in range(1, 30):
        shutil.rmtree(tmp_path / HOME_ROOT / APPLICATION / f"ended-{number}")
    assert attempts(homes, tmp_path, 1) == [0]
    root, left = homes._root(str(tmp_path)), str(tmp_path / HOME_ROOT / APPLICATION / "ended-0")
    assert list(root._ended) == list(root._homes) == [left]


def test_questions_for_an_application_that_left_nothing_look_at_no_homes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all first map tasks of other applications are: they come all the time."""
    for number in range(30):
        put(make_home(tmp_path, f"ended-{number}", ended_owner()), (1, number))
    homes = EndedHomes()
    attempts(homes, tmp_path, 1)
    looked: list[str] = []
    monkeypatch.setattr(calls, "lstat", lambda path: looked.append(path) or os.lstat(path))
    for _ in range(100):
        assert attempts(homes, tmp_path, 1, "app-2") == []
    assert looked == []


def test_a_disk_that_gets_on_is_waited_for_however_many_homes_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each home takes less than a disk may stand still for, and all of them more than twice as much."""
    for number in range(3):
        put(make_home(tmp_path, f"ended-{number}", ended_owner()), (1, number))
    now, looked = 0.0, itertools.count(1)
    at_last, gets_on, other_looks = threading.Event(), threading.Event(), itertools.count(1)

    def clock() -> float:
        is_other = at_last.is_set() and threading.current_thread() is threading.main_thread()
        if is_other and next(other_looks) == 2:  # it has waited, and now finds out whether it may wait on
            gets_on.set()
        return now

    def stat(path: str) -> os.stat_result:
        nonlocal now
        if os.path.basename(path).startswith("ended-") and not gets_on.is_set():
            now += 0.8 * HELD_AT_MOST
            if next(looked) == 3:
                at_last.set()
                assert gets_on.wait(60)
        return os.stat(path)

    homes = EndedHomes(clock)
    monkeypatch.setattr(calls, "stat", stat)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(attempts, homes, tmp_path, 1)
        try:
            assert at_last.wait(60)
            assert attempts(homes, tmp_path, 1) == [0, 1, 2]
        finally:
            gets_on.set()
        assert first.result() == [0, 1, 2]


def test_a_disk_that_gets_on_slowly_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each home of it, and there are many, takes nearly as long as a disk may stand still for."""
    put(make_home(tmp_path, "ended-0", ended_owner()), (1, 0))
    now, homes_looked_at = 0.0, 0
    is_held, other_gave_up = threading.Event(), threading.Event()
    homes = EndedHomes(lambda: now)

    def stat(path: str) -> os.stat_result:
        nonlocal now, homes_looked_at
        if os.path.basename(path).startswith("ended-") and not is_held.is_set():
            is_held.set()
            while not other_gave_up.wait(0.001):  # another home each time
                (root,) = homes._roots.values()
                root._held_since = now + 0.9 * HELD_AT_MOST
                now += 0.9 * HELD_AT_MOST
                homes_looked_at += 1
        return os.stat(path)

    monkeypatch.setattr(calls, "stat", stat)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(attempts, homes, tmp_path, 1)
        try:
            assert is_held.wait(60)
            assert attempts(homes, tmp_path, 1) == []
        finally:
            other_gave_up.set()
        assert first.result() == [0]
    assert homes_looked_at >= WAITED_AT_MOST / HELD_AT_MOST


def test_a_disk_that_stands_still_stops_no_question_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("still", "sound"):
        put(make_home(tmp_path / name, "ended-1", ended_owner()), (1, 10))
    homes, reached, gets_on = EndedHomes(), threading.Event(), threading.Event()

    def stat(path: str) -> os.stat_result:
        if path.startswith(str(tmp_path / "still")):
            reached.set()
            assert gets_on.wait(60)
        return os.stat(path)

    monkeypatch.setattr(calls, "stat", stat)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(attempts, homes, tmp_path / "still", 1)
        try:
            assert reached.wait(60)
            assert attempts(homes, tmp_path / "sound", 1) == [10]
        finally:
            gets_on.set()
        assert waiting.result() == [10]
