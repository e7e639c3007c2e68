"""On two executors (`local-cluster`): the same answers as anywhere, and a lost executor costs exactly its own
map tasks, also after some reduce tasks have finished.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parent / "jobs"
PATIENCE = 240  # seconds; a job takes about 20


def run_job(name: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(JOBS / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_lost_executor_costs_exactly_its_own_map_tasks(tmp_path: Path, when: str) -> None:
    found = run_job("lose_executor", str(tmp_path), when)

    assert found["rows"] == 60_000
    assert found["total"] == sum(range(60_000))
    assert found["partitions"] == list(range(8))
    assert found["victims"], "the executor that was killed had run no map task"
    expected = {str(p): 2 if p in found["victims"] else 1 for p in range(6)}
    assert found["runs"] == expected
