"""What tools/fuzz begins with and has found stays mended, and it finds a fault where there is one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import run, targets
from fuzz.__main__ import cases_tried, keep
from fuzz.targets import TARGETS

CASES = Path(__file__).parent / "fuzz_cases"
FOUND = sorted(path for path in CASES.glob("*/*") if path.is_file())


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_a_target_begins_with_is_sound(name: str) -> None:
    seeds = TARGETS[name].seeds()
    assert len(set(seeds)) == len(seeds) > 2
    for data in seeds:
        TARGETS[name].check(data)


def test_the_seeds_are_understood_behind_their_checksums() -> None:
    """Or else only refusals would be fuzzed."""
    assert [targets.verified_index(seed, "index").regions for seed in targets.index_seeds()] == [0, 1, 2]
    for seed in targets.frame_seeds():
        assert list(targets.protocol.FrameParser(targets.Sender(seed[0])).feed(seed[1:]))


def test_what_was_found_is_mended() -> None:
    assert FOUND, f"there is no case below {CASES}"
    done = _run("-m", "fuzz.replay", *map(str, FOUND))
    assert done.returncode == 0, done.stdout + done.stderr  # the last line of the first shows which
    assert done.stdout.splitlines() == [f"{case.parent.name}/{case.name}" for case in FOUND]


@pytest.mark.parametrize(
    ("does", "status", "says"),
    [
        ("bytearray(2 << 30)", 1, "MemoryError"),
        ("all(itertools.repeat(True))", -signal.SIGALRM, ""),  # no signal handler runs meanwhile
    ],
)
def test_a_case_is_replayed_within_the_limits_of_its_search(
    tmp_path: Path, does: str, status: int, says: str
) -> None:
    (tmp_path / "broken").mkdir()
    for name, data in {"1": b"sound", "2": b"unsound", "3": b"sound"}.items():
        (tmp_path / "broken" / name).write_bytes(data)
    replayed = (
        "import itertools, pathlib\n"
        "from fuzz import replay, run\n"
        "from fuzz.targets import Target\n"
        f"def check(data): data == b'sound' or {does}\n"
        "run.CASE_SECONDS = 1\n"
        "run.TARGETS['broken'] = Target(check, lambda: [b'sound'])\n"
        f"replay.main(sorted(pathlib.Path({str(tmp_path)!r}, 'broken').iterdir()))\n"
    )
    done = _run("-c", replayed)
    assert done.returncode == status
    assert says in done.stderr
    assert done.stdout.splitlines() == ["broken/1", "broken/2"]


def test_a_fault_is_found_and_its_case_kept(tmp_path: Path) -> None:
    """With a target that takes any change amiss."""
    broken = (
        "import sys; sys.modules['atheris'] = None\n"
        "from fuzz import run\n"
        "from fuzz.targets import Target\n"
        "def check(data): assert data == b'sound', data\n"
        "run.TARGETS['broken'] = Target(check, lambda: [b'sound'])\n"
        f"run.main('broken', 20.0, 7, {str(tmp_path)!r})\n"
    )
    done = _run("-c", broken)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
    [case] = tmp_path.iterdir()
    assert case.read_bytes() != b"sound"


def test_a_case_that_takes_too_long_is_found_whatever_is_caught_on_the_way(tmp_path: Path) -> None:
    endless = (
        "import sys, time; sys.modules['atheris'] = None\n"
        "from fuzz import run\n"
        "from fuzz.targets import Target\n"
        "def check(data):\n"
        "    try: data == b'sound' or time.sleep(30)\n"
        "    except Exception: pass\n"
        "run.CASE_SECONDS = 1\n"
        "run.TARGETS['endless'] = Target(check, lambda: [b'sound'])\n"
        f"run.main('endless', 2.0, 7, {str(tmp_path)!r})\n"
    )
    done = _run("-c", endless)
    assert done.returncode == 1
    assert "a case takes more than 1 s" in done.stderr


@pytest.mark.parametrize("signal_name", ["SIGSEGV", "SIGKILL"])
def test_a_case_that_ends_the_process_is_kept(tmp_path: Path, signal_name: str) -> None:
    found, kept = tmp_path / "found", tmp_path / "kept"
    found.mkdir()
    crashing = (
        "import os, signal, sys; sys.modules['atheris'] = None\n"
        "from fuzz import run\n"
        "from fuzz.targets import Target\n"
        f"def check(data): data == b'sound' or os.kill(os.getpid(), signal.{signal_name})\n"
        "run.TARGETS['crashing'] = Target(check, lambda: [b'sound'])\n"
        "run._changed = lambda chance, data: b'unsound'\n"
        f"run.main('crashing', 20.0, 7, {str(found)!r})\n"
    )
    done = _run("-c", crashing)
    assert done.returncode == -getattr(signal, signal_name)
    [case] = keep(found, kept, has_ended_well=False)
    assert case.parent == kept
    assert case.name != run.CURRENT
    assert case.read_bytes() == b"unsound"


def test_what_a_run_was_at_is_no_case_if_it_ended_well_or_says_another(tmp_path: Path) -> None:
    (tmp_path / run.CURRENT).write_bytes(b"sound")
    (tmp_path / "corpus").mkdir()
    kept = tmp_path / "kept"
    assert keep(tmp_path, kept, has_ended_well=True) == []
    (tmp_path / "crash-1").write_bytes(b"unsound")
    assert keep(tmp_path, kept, has_ended_well=False) == [kept / "crash-1"]


@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("stat::number_of_executed_units: 512\nstat::average_exec_per_sec: 3\n", 512),
        ("17 cases by chance\n", 17),
        ("0 cases by chance\n", 0),
        ("", 0),
    ],
)
def test_the_number_of_cases_is_told(output: str, count: int) -> None:
    assert cases_tried(output) == count


def test_the_command_tells_the_number_of_cases() -> None:
    done = _command("--minutes", "0.005", "event")
    assert done.returncode == 0, done.stdout
    assert "event: no fault in " in done.stdout


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_no_time_to_fuzz_for_is_refused(minutes: str) -> None:
    assert _command(f"--minutes={minutes}", "event").returncode == 2


def test_a_run_without_a_case_fails() -> None:
    code = "import sys; sys.modules['atheris'] = None; from fuzz.__main__ import main; sys.exit(main())"
    done = _run("-c", code, "--minutes", "0.000000001", "event")
    assert done.returncode == 1
    assert "event: no case was tried" in done.stdout


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _run("-m", "fuzz", *arguments)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    environment = {"PYTHONPATH": f"{root}:{root / 'tools' / 'lib'}", "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
