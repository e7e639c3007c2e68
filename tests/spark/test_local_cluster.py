"""On two executors (`local-cluster`): the same answers as anywhere, and a lost executor costs exactly its own
map tasks, also after some reduce tasks have finished.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from job_process import run_job

JOBS = Path(__file__).parent / "jobs"


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_lost_executor_costs_exactly_its_own_map_tasks(tmp_path: Path, when: str) -> None:
    found = run_job(JOBS / "lose_executor.py", str(tmp_path), when)

    assert found["rows"] == 60_000
    assert found["total"] == sum(range(60_000))
    assert found["partitions"] == list(range(8))
    assert found["victims"], "the executor that was killed had run no map task"
    expected = {str(p): 2 if p in found["victims"] else 1 for p in range(6)}
    assert found["runs"] == expected
