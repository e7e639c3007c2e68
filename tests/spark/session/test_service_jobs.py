"""On executors that count as hosts of their own, with an external shuffle service. Services that tasks start
are tested in tests/spark/cluster."""

from __future__ import annotations

from pathlib import Path

from job_process import run_job

JOBS = Path(__file__).parents[1] / "jobs"


def test_with_an_external_service_no_user_code_of_a_lost_executor_runs_again(tmp_path: Path) -> None:
    found = run_job(JOBS / "adopt.py", str(tmp_path))

    assert (found["rows"], found["values"]) == (True, True)
    assert found["victims"] and found["pair_victims"], "the executor that was killed had run no map task"
    assert found["runs"] == [1] * 4
    assert found["pair_runs"] == [1] * 4
    assert found["victim_files"] == len(found["victims"]) + len(found["pair_victims"])
    assert found["others"] == []  # they came through the service
    assert found["left"] is False
    # what was adopted is then lost where it lay
    assert found["rows_after_loss"]
    assert all(found["runs_after_loss"][str(victim)] > 1 for victim in found["victims"])
    assert found["service"] == 0
