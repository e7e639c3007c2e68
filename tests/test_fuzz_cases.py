"""What tools/fuzz begins with and has found stays mended, and it finds a fault where there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import targets
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
    for case in FOUND:
        TARGETS[case.parent.name].check(case.read_bytes())  # a failure's stack shows which


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
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, env=_environment())
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
    done = subprocess.run([sys.executable, "-c", endless], capture_output=True, text=True, env=_environment())
    assert done.returncode == 1
    assert "a case takes more than 1 s" in done.stderr


def _environment() -> dict[str, str]:
    root = Path(__file__).parents[1]
    return {"PYTHONPATH": f"{root}:{root / 'tools' / 'lib'}", "PATH": "/usr/bin:/bin"}
