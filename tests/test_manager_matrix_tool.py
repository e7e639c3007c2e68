"""`tools/manager_matrix`: whatever pytest says, a run in which something went wrong counts as one."""

from __future__ import annotations

from pathlib import Path

import pytest
from manager_matrix import run

PASSES = "def test_it() -> None: pass\n"
FAILS = "def test_it() -> None: assert False\n"
SKIPS = "import pytest\n@pytest.mark.skip\ndef test_it() -> None: pass\n"
ENDS_BADLY = "def pytest_sessionfinish(session): session.exitstatus = 3\n"


@pytest.mark.parametrize(
    ("tests", "conftest", "passed", "failed", "skipped"),
    [
        (PASSES, "", 1, (), 0),
        (FAILS, "", 0, ("test_some::test_it",), 0),
        (SKIPS, "", 0, ("no test has passed",), 1),
        (PASSES, ENDS_BADLY, 1, ("pytest ended with status 3",), 0),
        ("", "", 0, ("pytest ended with status 5",), 0),  # it found none
    ],
)
def test_what_a_run_counts_as(
    tmp_path: Path, tests: str, conftest: str, passed: int, failed: tuple[str, ...], skipped: int
) -> None:
    (tmp_path / "test_some.py").write_text(tests)
    (tmp_path / "conftest.py").write_text(conftest)
    outcome = run("here", (str(tmp_path),), {})
    names = tuple(name.split(".")[-1] for name in outcome.failed)  # some have directories before, some not
    assert (outcome.passed, names, outcome.skipped) == (passed, failed, skipped)


def test_tests_that_are_not_there(tmp_path: Path) -> None:
    assert run("here", (str(tmp_path / "nowhere"),), {}).failed == ("pytest ended with status 4",)
