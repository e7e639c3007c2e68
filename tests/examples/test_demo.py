"""The demo, and what it says where something is missing that it needs, or can do without."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine import ROOT
from java_options import java_options
from spark_home import users_environment

from sortshuffle.homes.host import ADDRESS_VARIABLE, NAME_VARIABLE
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.spark.worker.reports import TaskReport, stage_totals

DEMO = ROOT / "examples" / "demo" / "flights.py"
PATIENCE = 180  # seconds; takes about 10
NAMELESS = "no-host-of-this-name.invalid"


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo as a module."""
    monkeypatch.syspath_prepend(DEMO.parent)
    return importlib.import_module("flights")


def demo(
    directory: Path, *options: str, package: Path = ROOT, nameless: bool = False
) -> tuple[int, str, str]:
    """Exit code and output. ``package``: where it is found, with the manager's jar or without. ``nameless``:
    on a host whose name has no address."""
    table = directory / "table.parquet"
    pq.write_table(pa.table({"k": [1, 2, 2, 3]}), table)
    addresses = (ADDRESS_VARIABLE, NAME_VARIABLE)
    inherited = {name: value for name, value in users_environment().items() if not name.startswith(addresses)}
    command = [sys.executable, str(DEMO), "--parquet", str(table), "--key", "k"]
    if nameless:
        command = ["unshare", "--uts", "sh", "-c", f'hostname {NAMELESS} && exec "$@"', "sh", *command]
    done = subprocess.run(
        [*command, "--partitions", "2", *options],
        cwd=directory,
        env={**inherited, "PYTHONPATH": str(package), "JDK_JAVA_OPTIONS": java_options(package == ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def why_not_nameless() -> str:
    """A host name of its own takes rights that only some have."""
    tried = subprocess.run(["unshare", "--uts", "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else ""


def test_with_the_jar_it_works_also_where_its_host_has_no_address(tmp_path: Path) -> None:
    """It runs where such a host cannot be had, too: it is the one run of the whole demo with the jar."""
    reason = why_not_nameless()
    code, said, errors = demo(tmp_path, nameless=not reason)
    assert code == 0, (said + errors)[-4000:]
    assert "\nThe shuffle of Spark's own stages is sortshuffle's: its shuffle manager is on." in said
    assert "What was shuffled" in said
    assert re.search(r"^The files went with the job\..*flights.py --keep$", said, re.MULTILINE), "on one line"
    assert "session's shuffles" not in errors
    if reason:
        pytest.skip(f"it works with the jar; no host name of its own can be had here: {reason}")


def test_without_the_jar_it_works_and_says_so(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__", "*.jar")
    shutil.copytree(ROOT / "sortshuffle", clone / "sortshuffle", ignore=ignored)
    code, said, errors = demo(tmp_path, package=clone)
    assert code == 0, (said + errors)[-4000:]
    jar = clone / "sortshuffle" / "spark" / "manager" / "sortshuffle-manager.jar"
    assert "\nThe shuffle of Spark's own stages is Spark's own." in said
    assert f"its jar {jar} is not there. In a clone, tools/jar builds it" in errors
    assert "What was shuffled" in said


def test_with_another_master_it_says_what_such_a_host_lacks(tmp_path: Path) -> None:
    if reason := why_not_nameless():
        pytest.skip(f"no host name of its own can be had here: {reason}")
    code, said, errors = demo(tmp_path, "--master", "spark://127.0.0.1:1", nameless=True)
    assert (code, said) == (2, "")
    assert f"the name of this host, {NAMELESS}, has no address" in errors
    assert ADDRESS_VARIABLE in errors


def test_files_that_are_not_there_are_missed_before_spark_starts(tmp_path: Path) -> None:
    code, said, errors = demo(tmp_path, "--parquet", str(tmp_path / "nothing"))
    assert (code, said) == (2, "")
    assert f"there is nothing at {tmp_path}/nothing" in errors


def test_a_table_of_ones_own_and_its_key_go_together(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--key", "k"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--parquet and --key go together" in done.stderr


@pytest.mark.parametrize("path", ["hdfs:/data", "s3a://bucket/data", "file:{there}", "{there}", "{there}/*"])
def test_what_is_there_or_may_be_is_left_to_spark(path: str, tmp_path: Path, flights: ModuleType) -> None:
    assert not flights.is_missing(path.format(there=tmp_path))


@pytest.mark.parametrize("path", ["nothing", "file:/nothing/here", "/nothing/a:b"])
def test_what_is_missing_on_this_host_is_known(path: str, flights: ModuleType) -> None:
    assert flights.is_missing(path)


def test_it_shows_what_each_stage_did_and_what_each_exchange_holds(
    flights: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, one, two = TaskMetrics(), TaskMetrics(), TaskMetrics()
    one.add(rows_written=1500, bytes_written=2048, buffers_written=9, regions=4, spills=3, files=2)
    two.add(rows_written=20, bytes_written=1024, buffers_written=2, regions=1, files=2)
    metrics.add(rows_in=1520)
    metrics.peak(3 * MIB)
    metrics.seconds.update(user=2.0, wait=0.5)
    flights.Display().stages(
        stage_totals({(3, 0): TaskReport(metrics, 2.5, "", {3: one, 4: two})}.items()), 3.0
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["3", "1", "1,520", "scanned", "2.5", "s", "0.5", "s", "3.0", "MiB", "user,", "wait"] in lines
    assert ["3", "stage", "3", "1,500", "2.0", "KiB", "9", "4", "3", "2"] in lines
    assert ["4", "stage", "3", "20", "1.0", "KiB", "2", "1", "0", "2"] in lines
