"""Over Spark Connect, where the server has the manager, frames give what plain PySpark gives. Their control
rows are known by their columns and stay Spark's; all other shuffles are the manager's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from both_sides import CONTROL
from job_process import run_job

JOB = Path(__file__).parent / "jobs" / "connect_frames.py"
PATIENCE = 250  # seconds; the job takes about 25


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    pytest.importorskip("grpc", reason="Spark Connect's packages are not installed: the extra `connect`")
    # alone: one process cannot have sessions of both kinds
    return run_job(JOB, patience=PATIENCE, environment=os.environ)


@pytest.mark.parametrize(
    ("case", "shuffles"),
    [
        ("a source that shuffles", {CONTROL: 1, "sortshuffle": 2}),
        ("without adaptive execution", {CONTROL: 1, "sortshuffle": 2}),
        ("several inputs", {CONTROL: 1}),
        ("a cached frame", {CONTROL: 1}),
        ("a user's columns", {"sortshuffle": 1}),
        ("a client that turns the manager off", {CONTROL: 1, "sortshuffle": 2}),
    ],
)
def test_control_rows_are_sparks_and_other_shuffles_are_ours(
    cases: dict[str, Any], case: str, shuffles: dict[str, int]
) -> None:
    assert cases[case]["found"] == cases[case]["expected"] != []
    assert cases[case]["shuffles"] == shuffles
