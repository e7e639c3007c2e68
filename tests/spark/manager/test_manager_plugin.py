"""What the manager's Java half makes of settings that no Python has seen: lines given to spark-submit."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from driver_process import DriverProcess
from java_options import submit_arguments

from sortshuffle.spark.manager.jar import jar_path
from sortshuffle.spark.manager.settings import manager_settings

PATIENCE = 180.0  # seconds until a context counts as hanging; each takes about 2
JOB = Path(__file__).parent / "jobs" / "contexts.py"


@dataclass(frozen=True, slots=True)
class Done:
    """How a context with a shuffle went. ``stdout``: whether storage counts as reliable, when idle executors
    go that have written map outputs, and the manager's decisions, a line each. ``stderr``: its log."""

    returncode: int
    stdout: str
    stderr: str


class Contexts(DriverProcess):
    """A driver that runs one context after the other."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(
            [sys.executable, str(JOB), json.dumps(settings)],
            directory / "log",
            {
                **os.environ,
                "TMPDIR": str(directory),
                "PYSPARK_SUBMIT_ARGS": submit_arguments("on", has_manager=True),
            },
        )

    def run(self, settings: Mapping[str, str]) -> Done:
        before = self.log.stat().st_size
        code, printed = self.request(settings=dict(settings)).result(PATIENCE)
        with open(self.log, "rb") as log:
            log.seek(before)
            return Done(code, printed, log.read().decode(errors="replace"))


COMMON = {
    **manager_settings(jar_path(), sys.executable, {}),
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.sortshuffle.manager": "on",
}


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contexts]:
    contexts = Contexts(tmp_path_factory.mktemp("contexts"), COMMON)
    try:
        yield contexts
    finally:
        contexts.kill()


SessionWith = Callable[..., Done]


@pytest.fixture
def session_with(contexts: Contexts) -> SessionWith:
    """A session that runs a job with a shuffle. Keywords are settings of this package."""

    def run(directory: Path, others: Mapping[str, str] = {}, **settings: str) -> Done:
        ours = {f"spark.sortshuffle.{name}": value for name, value in settings.items()}
        return contexts.run({**COMMON, "spark.local.dir": str(directory), **ours, **others})

    return run


def test_off_is_off_with_spaces_around_it(session_with: SessionWith, tmp_path: Path) -> None:
    done = session_with(tmp_path, manager=" OFF ")
    assert done.returncode == 0, done.stderr
    (decision,) = done.stdout.splitlines()[-1:]
    assert decision.startswith("{'spark.sortshuffle.manager is off': ")


def test_a_url_that_no_library_knows_fails_the_job_and_is_named(
    session_with: SessionWith, tmp_path: Path
) -> None:
    done = session_with(tmp_path, manager="on", dir=" s4://bucket/x/")
    assert done.returncode != 0
    assert "s4://bucket/x" in done.stderr
    assert "fsspec knows no storage s4://" in done.stderr
    assert "Lost task" not in done.stderr, "it fails before the first task"
    assert "manager.python to a Python" not in done.stderr


def test_storage_is_reliable_at_a_url_only_whatever_settings_were_copied(
    session_with: SessionWith, tmp_path: Path
) -> None:
    """The manager's own class is among the settings of a SparkContext that had a URL."""
    others = {"spark.shuffle.sort.io.plugin.class": "org.sortshuffle.Storage"}
    for directory, is_reliable in (
        (f"file://{tmp_path}/mounted", "true"),
        (str(tmp_path / "local"), "false"),
    ):
        done = session_with(tmp_path, others, manager="on", dir=directory)
        assert done.returncode == 0, done.stderr
        assert done.stdout.lower().splitlines()[-3] == is_reliable
        assert "Spark asks it" not in done.stderr


def test_what_spark_asks_of_storage_is_what_somebody_else_has_set(
    session_with: SessionWith, tmp_path: Path
) -> None:
    components = "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO"
    others = {"spark.shuffle.sort.io.plugin.class": components}
    done = session_with(tmp_path, others, manager="on", dir=f"file://{tmp_path}/mounted")
    assert done.returncode == 0, done.stderr
    assert f"spark.shuffle.sort.io.plugin.class is {components}: Spark asks it" in done.stderr
    assert done.stdout.splitlines()[-1] == "{'sortshuffle': 2}"
    assert [path for path in (tmp_path / "mounted").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("others", "why"),
    [
        (
            {
                "spark.master": "local-cluster[1,1,1024]",
                "spark.authenticate": "true",
                "spark.authenticate.secret": "of the test",
                "spark.network.crypto.enabled": "true",
            },
            "spark.network.crypto.enabled is true, and rows would cross the network unencrypted",
        ),
        ({"spark.shuffle.push.enabled": "true"}, "has no push-based shuffle: set spark.shuffle.push.enabled"),
        ({"spark.shuffle.service.enabled": "true"}, "has a service of its own: set spark.shuffle.service"),
        ({"spark.shuffle.manager": "sort"}, "spark.shuffle.manager is sort: set it to org.sortshuffle."),
    ],
)
def test_what_it_does_not_work_beside_starts_no_context(
    session_with: SessionWith, tmp_path: Path, others: dict[str, str], why: str
) -> None:
    """Whoever sets it by settings alone has not been told by `configure`."""
    done = session_with(tmp_path, others, manager="on")
    assert done.returncode != 0
    assert why in done.stderr
    assert "Or leave sortshuffle's manager out, by spark.sortshuffle.manager=off" in done.stderr


@pytest.mark.parametrize(
    ("others", "timeout"),
    [
        ({}, "0"),
        ({"spark.dynamicAllocation.shuffleTracking.timeout": "1h"}, "1h"),
        ({"spark.io.encryption.enabled": "true"}, "0"),
    ],
)
def test_idle_executors_may_go_although_they_have_written_map_outputs(
    session_with: SessionWith, tmp_path: Path, others: dict[str, str], timeout: str
) -> None:
    done = session_with(tmp_path, others, manager="on")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2] == timeout
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == {"sortshuffle": 2}
