"""`sortshuffle demo` where something is missing that it needs, or can do without, and says so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine import ROOT
from java_options import java_options
from run_cli import run

from sortshuffle.cli.demo import is_missing
from sortshuffle.homes.host import ADDRESS_VARIABLE, NAME_VARIABLE

PATIENCE = 180  # seconds; takes about 10
NAMELESS = "no-host-of-this-name.invalid"


def demo(
    directory: Path, *options: str, package: Path = ROOT, nameless: bool = False
) -> tuple[int, str, str]:
    """Exit code and output. ``package``: where it is found, with the manager's jar or without. ``nameless``:
    on a host whose name has no address."""
    table = directory / "table.parquet"
    pq.write_table(pa.table({"k": [1, 2, 2, 3]}), table)
    left_out = ("PYSPARK_", ADDRESS_VARIABLE, NAME_VARIABLE)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    command = [sys.executable, "-m", "sortshuffle.cli.main", "demo", "--parquet", str(table), "--key", "k"]
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
    assert "\nSpark's own stages are shuffled by sortshuffle, too: its shuffle manager is on." in said
    assert "What was shuffled" in said
    assert re.search(r"^The files went with the job\..*demo --keep$", said, re.MULTILINE), "on one line"
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
    reason = f"its jar {jar} is not there. In a clone, tools/jar builds it"
    assert f"\nSpark's own stages use Spark's own shuffle: {reason}" in said
    assert "What was shuffled" in said
    assert "session's shuffles" not in errors


def test_with_another_master_it_says_what_such_a_host_lacks(tmp_path: Path) -> None:
    if reason := why_not_nameless():
        pytest.skip(f"no host name of its own can be had here: {reason}")
    code, said, errors = demo(tmp_path, "--master", "spark://127.0.0.1:1", nameless=True)
    assert (code, said) == (2, "")
    assert f"the name of this host, {NAMELESS}, has no address" in errors
    assert ADDRESS_VARIABLE in errors


def test_files_that_are_not_there_are_missed_before_spark_starts(tmp_path: Path) -> None:
    result = run("demo", "--parquet", tmp_path / "nothing", "--key", "k")
    assert result.exit_code == 2
    assert f"there is nothing at {tmp_path}/nothing" in result.output.replace("\n", "")
    assert "Spark" not in result.output


@pytest.mark.parametrize("path", ["hdfs:/data", "s3a://bucket/data", "file:{there}", "{there}", "{there}/*"])
def test_what_is_there_or_may_be_is_left_to_spark(path: str, tmp_path: Path) -> None:
    assert not is_missing(path.format(there=tmp_path))


@pytest.mark.parametrize("path", ["nothing", "file:/nothing/here", "/nothing/a:b"])
def test_what_is_missing_on_this_host_is_known(path: str) -> None:
    assert is_missing(path)
