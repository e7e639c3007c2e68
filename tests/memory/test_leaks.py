"""The debug mode: what is taken is followed, with the place, until it is given back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from engine import ROOT

from sortshuffle.memory import leaks
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.memory.segment import MemorySegment


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The debug mode off."""
    monkeypatch.setattr(leaks, "_enabled", False)


def test_the_tests_run_in_debug_mode() -> None:
    assert leaks.enabled()


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)]
)
def test_the_environment_variable_decides_at_the_import(value: str | None, on: bool) -> None:
    environment = {name: text for name, text in os.environ.items() if name != leaks.VARIABLE}
    environment |= {"PYTHONPATH": str(ROOT)} | ({} if value is None else {leaks.VARIABLE: value})
    program = "from sortshuffle.memory import leaks; print(leaks.enabled())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.strip() == str(on)


def test_what_is_taken_is_outstanding_until_it_is_given_back() -> None:
    segments = [MemorySegment(8), MemorySegment(8)]
    leaks.track("a pool", segments, "a segment")
    leaks.track("another pool", ["something"], "a thing")
    assert [leak.what for leak in leaks.outstanding()] == ["a segment", "a segment", "a thing"]
    assert len(leaks.outstanding("a pool")) == 2
    leaks.untrack(segments[:1])
    assert len(leaks.outstanding("a pool")) == 1
    assert [leak.what for leak in leaks.forget()] == ["a segment", "a thing"]
    assert leaks.outstanding() == []


def test_giving_back_poisons_segments() -> None:
    segment = MemorySegment(3)
    leaks.untrack([segment])
    assert bytes(segment.view) == b"\xdb\xdb\xdb"


def test_the_place_names_the_caller_and_its_callers() -> None:
    def take() -> None:
        leaks.track("a pool", ["something"], "a thing")

    take()
    (leak,) = leaks.forget()
    assert leak.place[0].endswith("in take")
    assert leak.place[1].endswith("in test_the_place_names_the_caller_and_its_callers")
    assert all("test_leaks.py:" in place for place in leak.place[:2])
    assert str(leak).startswith("a thing, taken at ")
    assert len(leak.place) == leaks.PLACE_FRAMES


def test_the_place_of_a_request_is_outside_the_package() -> None:
    network = NetworkBufferPool(2, 16, option="an.option")
    pool = network.create_pool(1)
    buffer = pool.request_blocking()
    places = {leak.what: leak.place[0] for leak in leaks.outstanding(network)}
    assert list(places) == ["local buffer pool '', never closed", "a buffer of local buffer pool ''"]
    assert all(
        place.endswith("in test_the_place_of_a_request_is_outside_the_package") for place in places.values()
    )
    buffer.recycle()
    pool.close()
    assert leaks.outstanding(network) == []


def test_off_nothing_is_followed_nor_poisoned(off: None, caplog: pytest.LogCaptureFixture) -> None:
    network = NetworkBufferPool(2, 16, option="an.option")
    lost = network.create_pool(1).request()
    assert lost is not None
    lost.segment.fill(7)
    assert leaks.outstanding() == []
    network.destroy()
    lost.recycle()
    assert set(lost.segment.view) == {7}
    assert caplog.messages == []


LEAKING = """
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
local = NetworkBufferPool(2, 16, option="an.option").create_pool(2, "leaky")
def test_that_leaks():
    local.request()
def test_that_does_not():
    local.request().recycle()
"""


def test_a_test_that_leaks_fails_and_names_the_place(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "test_leaking.py")
    with open(path, "w") as file:
        file.write(LEAKING)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "conftest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
            path,
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "guards"))),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "2 passed, 1 error" in done.stdout
    assert "a buffer of local buffer pool 'leaky', taken at" in done.stdout
    assert "test_leaking.py:5 in test_that_leaks" in done.stdout
