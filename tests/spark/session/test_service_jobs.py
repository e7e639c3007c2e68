"""On executors that count as hosts of their own: what lies on another host comes through its shuffle service,
which a task started and which ends with the application."""

from __future__ import annotations

import os
from pathlib import Path

from engine import eventually
from job_process import run_job

from sortshuffle.homes.processes import process_start

JOBS = Path(__file__).parents[1] / "jobs"

GONE = 30.0  # seconds after the application's end


def test_executors_on_other_hosts_are_read_through_their_services(tmp_path: Path) -> None:
    found = run_job(JOBS / "read_remotely.py", str(tmp_path))

    assert (found["rows"], found["sums"], found["reduced"]) == (True, True, True)
    assert len(found["hosts"]) == 2  # both wrote and read
    assert found["others"] == []
    assert len(found["rendezvous"]) == 2
    assert len(found["running"]) == 4  # on each host a supervisor and a service
    processes = [(pid, started) for pid, started in found["running"]]
    eventually(
        lambda: not any(process_start(pid) == started for pid, started in processes), "all have ended", GONE
    )
    assert [path for path in found["rendezvous"] if os.path.exists(path)] == []
    left = [name for _, _, names in os.walk(tmp_path) for name in names if name.startswith("exchange-")]
    assert left == []


def test_with_an_external_service_no_user_code_of_a_lost_executor_runs_again(tmp_path: Path) -> None:
    found = run_job(JOBS / "adopt.py", str(tmp_path))

    assert (found["rows"], found["values"]) == (True, True)
    assert found["victims"] and found["pair_victims"], "the executor that was killed had run no map task"
    assert found["runs"] == [1] * 6
    assert found["pair_runs"] == [1] * 6
    assert found["victim_files"] == len(found["victims"]) + len(found["pair_victims"])
    assert found["others"] == []  # they came through the service
    assert found["left"] is False
    # what was adopted is then lost where it lay
    assert found["rows_after_loss"]
    assert all(found["runs_after_loss"][str(victim)] > 1 for victim in found["victims"])
    assert found["service"] == 0
