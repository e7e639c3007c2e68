"""Over Spark Connect: the same rows as plain PySpark there, for each kind of operator; and what is not to be
had."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from engine import ROOT
from job_process import run_job

from sortshuffle.spark.session.requirements import NO_ROLLBACK, ROLLBACK

JOB = Path(__file__).parent / "jobs" / "every_operator.py"
PATIENCE = 450  # seconds; the job took 180 beside other tests, on a slow machine
pytestmark = pytest.mark.timeout(PATIENCE + 20)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What jobs with each kind of operator print. It starts a server of its own."""
    pytest.importorskip("grpc", reason="Spark Connect's packages are not installed: the extra `connect`")
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "spark")))
    environment = {**os.environ, "PYTHONPATH": paths}
    directory = str(tmp_path_factory.mktemp("connect"))
    return run_job(JOB, directory, "remote", patience=PATIENCE, environment=environment)


def test_each_kind_of_operator_gives_the_rows_that_plain_pyspark_gives(printed: dict[str, Any]) -> None:
    assert printed["differing"] == {}
    assert printed["cases"] >= 55


def test_every_public_method_has_pysparks_parameters(printed: dict[str, Any]) -> None:
    assert printed["signatures"] == {}


@pytest.mark.parametrize("setting", NO_ROLLBACK)
def test_a_session_without_the_setting_is_refused_with_its_name_and_value(
    printed: dict[str, Any], setting: str
) -> None:
    refusal = printed["refusals"][setting]
    assert f"the setting {setting} to be false, and it is true" in refusal
    assert f'spark.conf.set("{setting}", "false")' in refusal


def test_a_session_with_sparks_default_is_refused(printed: dict[str, Any]) -> None:
    assert f"the setting {ROLLBACK} to be false, and it is true" in printed["refusal_by_default"]


def test_a_setting_that_cannot_be_asked_for_is_none_only_if_spark_does_not_know_it(
    printed: dict[str, Any],
) -> None:
    assert printed["settings"] == [None, "INVALID_HANDLE.SESSION_CLOSED"]


def test_a_stopped_session_is_refused(printed: dict[str, Any]) -> None:
    assert "the session has been stopped" in printed["stopped"]


def test_there_are_no_figures_and_it_is_said(printed: dict[str, Any]) -> None:
    assert printed["stages"] == 0
    assert "over Spark Connect there are no figures" in printed["explained"]


def test_an_error_of_a_worker_is_what_it_is_and_sparks(printed: dict[str, Any]) -> None:
    kind, sparks, message = printed["worker_error"]
    assert (kind, sparks) == ("SchemaMismatchError", "PythonException")
    assert "mapInArrow(<lambda>): PySparkRuntimeError: [RESULT_COLUMN_" in message
