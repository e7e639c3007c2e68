"""A pytest of their own shows which worker runs which test."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import worker_groups

FILES = (
    "tests/test_one.py",
    "tests/test_two.py",
    "tests/spark/cluster/test_three.py",
    "tests/spark/cluster/test_four.py",
)
MODULE = """
    import os, pathlib, pytest

    @pytest.mark.parametrize("number", range(6))
    def test_says_who_runs_it(number, request):
        with open(request.config.rootpath / "said", "a") as opened:
            print(request.path.relative_to(request.config.rootpath), number, os.getpid(), file=opened)
"""


def test_a_worker_runs_all_tests_of_a_group_in_their_order(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_groups.__file__).parent))
    for path in FILES:
        file = pytester.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pytester.makepyfile(made=MODULE).rename(file)
    result = pytester.runpytest_subprocess(
        "-p", "worker_groups", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", *FILES
    )
    result.assert_outcomes(passed=24)
    numbers, workers = defaultdict(list), defaultdict(set)
    for line in (pytester.path / "said").read_text().splitlines():
        path, number, worker = line.split()
        numbers[path].append(int(number))
        workers[worker_groups.group_of(path)].add(worker)
    assert set(workers) == {"tests/test_one.py", "tests/test_two.py", worker_groups.SHARING}
    assert all(len(each) == 1 for each in workers.values())
    assert len(set.union(*workers.values())) == 2
    assert all(numbers[path] == list(range(6)) for path in FILES)
