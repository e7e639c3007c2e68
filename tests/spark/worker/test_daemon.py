"""The process that forks Python workers: what it takes off their path, and that no thread runs in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from sortshuffle.spark.worker.daemon import WORKER, without_archives

PATIENCE_S = 60
OWN_HOME = Path(pyspark.__file__).parent
SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory like that of an installed PySpark, with archives."""
    home = tmp_path / "packages" / "pyspark"
    (home / "python" / "lib").mkdir(parents=True)
    for name in ("pyspark.zip", "py4j-0-src.zip"):
        (home / "python" / "lib" / name).touch()
    (home / "__init__.py").touch()
    return home


def py4j_beside(home: Path) -> None:
    py4j_in(home.parent)


def py4j_in(directory: Path) -> None:
    (directory / "py4j").mkdir(parents=True)
    (directory / "py4j" / "__init__.py").touch()


def path_of(home: Path) -> list[str]:
    """The path of a worker, as Spark makes it."""
    archives = [str(home / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0-src.zip")]
    return ["", *archives, *others_of(home)]


def others_of(home: Path) -> list[str]:
    """What is on the path besides Spark's archives."""
    return [str(home / "python" / "lib" / "mine.zip"), str(home.parent / "other.zip"), str(home.parent)]


def test_the_archives_of_an_installed_pyspark_are_left_out(home: Path) -> None:
    py4j_beside(home)
    assert without_archives(path_of(home)) == ["", *others_of(home)]


@pytest.mark.parametrize("link", ["spark", "packages of a venv"])
def test_they_are_left_out_where_the_home_or_what_is_installed_is_a_link(
    home: Path, tmp_path: Path, link: str
) -> None:
    py4j_beside(home)
    spark, packages = home, home.parent
    if link == "spark":
        spark = tmp_path / "spark"
        spark.symlink_to(home)
    else:
        packages = tmp_path / "linked"
        packages.symlink_to(home.parent)
    path = [str(spark / "python" / "lib" / "pyspark.zip"), str(packages)]
    assert without_archives(path) == [str(packages)]


@pytest.mark.parametrize("lacks", ["pyspark", "pyspark's __init__.py", "py4j"])
def test_they_stay_where_a_package_is_in_no_other_place(home: Path, tmp_path: Path, lacks: str) -> None:
    path = path_of(home)
    if lacks == "pyspark":
        path[-1] = str(tmp_path / "elsewhere")
        py4j_in(tmp_path / "elsewhere")
    elif lacks == "pyspark's __init__.py":
        py4j_beside(home)
        (home / "__init__.py").unlink()
    assert without_archives(path) == path


def test_they_stay_where_py4j_is_not_beside_pyspark(home: Path, tmp_path: Path) -> None:
    """It may be of any release."""
    py4j_in(tmp_path / "vendored")
    path = [*path_of(home), str(tmp_path / "vendored")]
    assert without_archives(path) == path


def test_those_of_another_spark_than_the_installed_stay(home: Path, tmp_path: Path) -> None:
    py4j_beside(home)
    other = str(tmp_path / "opt" / "spark" / "python" / "lib" / "pyspark.zip")
    path = [other, str(home.parent)]
    assert without_archives(path) == path
    both = [*path_of(home), other]
    assert without_archives(both) == both


@pytest.mark.parametrize("module", [WORKER, "a_module_of_the_users"])
def test_before_the_first_fork_there_is_no_second_thread(module: str) -> None:
    with started(module, "-X", "importtime") as daemon:
        port = port_of(daemon)  # it listens, and would fork now
        threads = len(os.listdir(f"/proc/{daemon.pid}/task"))
        _, lines = daemon.communicate(timeout=PATIENCE_S)  # closes its input: it ends
    imported = {line.rpartition("|")[2].strip() for line in lines.decode().splitlines()}

    assert 0 < port < 1 << 16
    assert threads == 1
    assert "pyspark.daemon" in imported
    if module == WORKER:
        assert WORKER in imported
    elif SPARK >= (4, 3):  # earlier, Spark's daemon imports it, too
        assert WORKER not in imported
    assert not {"numpy", "pyarrow", "pandas"} & imported


def test_with_a_second_thread_it_becomes_sparks_daemon(tmp_path: Path) -> None:
    """As where a user's ``sitecustomize`` starts one: what to do about it then is Spark's choice."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    with started(WORKER, first=[str(tmp_path)]) as daemon:
        port = port_of(daemon)
        arguments = Path(f"/proc/{daemon.pid}/cmdline").read_bytes().decode().split("\0")
        daemon.communicate(timeout=PATIENCE_S)
    assert 0 < port < 1 << 16
    assert arguments[1:] == ["-m", "pyspark.daemon", WORKER, ""]


def started(module: str, *options: str, first: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Return the daemon as Spark starts it. ``first``: directories that come first on its path."""
    archives = list((OWN_HOME / "python" / "lib").glob("*.zip"))
    entries = [*first, *map(str, archives), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, *options, "-m", "sortshuffle.spark.worker.daemon", module],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entries)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def port_of(daemon: subprocess.Popen[bytes]) -> int:
    """Return the port on which it waits for Spark's requests."""
    assert daemon.stdout is not None
    return int.from_bytes(daemon.stdout.read(4), "big")
