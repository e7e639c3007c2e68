"""With the manager on, map outputs of frames and RDDs live as long as they can be read, also when that is
longer than their grace time: their control rows are in Spark's own shuffle files, which say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from both_sides import CONTROL
from job_process import run_job

JOB = Path(__file__).parent / "jobs" / "late_reads.py"
PATIENCE = 60.0  # seconds for whatever comes by itself; about 7 for a map output that Spark does not know
TIMEOUT = 300.0  # seconds; the job takes about 30


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_job(
        JOB, str(tmp_path_factory.mktemp("late")), str(PATIENCE), patience=TIMEOUT, has_manager=True
    )


@pytest.mark.parametrize("what", ["frame", "RDD"])
def test_map_outputs_are_there_for_who_reads_them_after_the_grace_time(
    printed: dict[str, Any], what: str
) -> None:
    read = printed[what]
    assert read["found"] == list(range(1000))
    assert read["after"] == read["before"] != []


def test_they_go_when_nobody_can_read_them(printed: dict[str, Any]) -> None:
    assert printed["left"] == []
    assert printed["decisions"] == {CONTROL: 2, "sortshuffle": 1}
