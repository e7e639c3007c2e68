"""With the manager on, control rows stay with Spark's own shuffle, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from job_process import run_job

JOB = Path(__file__).parent / "jobs" / "control_rows.py"
PATIENCE = 180  # seconds; the job takes about 15


@pytest.fixture(scope="module")
def shuffles() -> dict[str, Any]:
    return run_job(JOB, patience=PATIENCE, has_manager=True)


@pytest.mark.parametrize("where", ["frame", "in a thread"])
def test_a_frames_control_rows_are_sparks_and_the_shuffles_of_its_source_are_ours(
    shuffles: dict[str, Any], where: str
) -> None:
    assert shuffles[where] == [[3, "Spark's"], [7, "ours"]]


def test_control_rows_of_several_exchanges_are_sparks(shuffles: dict[str, Any]) -> None:
    assert shuffles["two exchanges in one pass"] == [[7, "Spark's"], [7, "ours"]]


def test_an_rdds_control_rows_are_sparks_and_the_shuffles_of_its_source_are_ours(
    shuffles: dict[str, Any],
) -> None:
    assert shuffles["RDD"] == [[3, "Spark's"], [7, "ours"]]
    assert shuffles["cogrouped"] == [[3, "Spark's"], [7, "ours"], [7, "ours"]]


def test_shuffles_behind_them_are_ours(shuffles: dict[str, Any]) -> None:
    assert shuffles["behind a frame"] == [[5, "ours"], [3, "Spark's"], [7, "ours"]]
    assert shuffles["behind an RDD"] == [[5, "ours"], [3, "Spark's"], [7, "ours"]]


def test_rows_of_sql_whose_columns_are_not_found_are_sparks(shuffles: dict[str, Any]) -> None:
    assert shuffles["unknown columns"] == [[2, "Spark's"], [2, "ours"]] * 2
