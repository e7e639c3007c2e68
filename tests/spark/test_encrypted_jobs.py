"""With ``spark.io.encryption.enabled``: what each door writes is encrypted, what it gives is right, and the
keys are nowhere but in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from job_process import run_job

JOB = Path(__file__).parent / "jobs" / "encrypted.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_job(JOB, str(tmp_path_factory.mktemp("encrypted")), has_manager=True)


def test_every_door_gives_what_it_gives_without(found: dict[str, Any]) -> None:
    assert found["given"] == dict.fromkeys(found["given"], True)
    assert len(found["given"]) == 6


def test_the_sparkcontext_says_that_files_are_encrypted_whatever_its_session_says(
    found: dict[str, Any],
) -> None:
    assert found["session says"] == "false"
    assert found["opened"]["plain"] == 0


def test_nothing_of_the_rows_can_be_read_on_any_disk(found: dict[str, Any]) -> None:
    assert found["marked"] == []


def test_every_map_output_is_encrypted_with_the_key_of_its_door(found: dict[str, Any]) -> None:
    opened = found["opened"]
    assert (opened["plain"], opened["nothing"]) == (0, 0)
    assert opened["manager"] > 0
    assert opened["frames"] > 0


def test_hosts_read_each_others_files_through_services(found: dict[str, Any]) -> None:
    assert len(found["hosts"]) == 2


def test_the_manager_leaves_nothing_to_spark_for_it(found: dict[str, Any]) -> None:
    # "placed" and "ordered" are written in one pass, with one shuffle of control rows
    assert found["decisions"] == {"sortshuffle": 3, "control rows of sortshuffle's own frames and RDDs": 4}


def test_the_keys_are_in_no_file_argument_or_environment(found: dict[str, Any]) -> None:
    assert found["events"] > 0, "Spark's log of events, with the properties of jobs"
    assert found["broadcast"] != [], "a pickled function that Spark has put into a file"
    assert found["keys in files"] == []
    assert found["keys in processes"] == []
