"""The process that forks Python workers: what it takes off their path, and that no thread runs in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from sortshuffle.spark.worker.daemon import WORKER, without_archives

PATIENCE_S = 60
OWN_HOME = Path(pyspark.__file__).parent


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
    (home.parent / "py4j").mkdir()
    (home.parent / "py4j" / "__init__.py").touch()


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


def test_they_are_left_out_where_the_home_is_a_link(home: Path, tmp_path: Path) -> None:
    py4j_beside(home)
    (tmp_path / "spark").symlink_to(home)
    path = [str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip"), str(home.parent)]
    assert without_archives(path) == [str(home.parent)]


@pytest.mark.parametrize("lacks", ["pyspark", "py4j"])
def test_they_stay_where_a_package_is_in_no_other_place(home: Path, lacks: str) -> None:
    if lacks == "pyspark":
        py4j_beside(home)
        (home / "__init__.py").unlink()
    assert without_archives(path_of(home)) == path_of(home)


def test_those_of_another_spark_than_the_installed_stay(home: Path, tmp_path: Path) -> None:
    py4j_beside(home)
    other = str(tmp_path / "opt" / "spark" / "python" / "lib" / "pyspark.zip")
    path = [other, str(home.parent)]
    assert without_archives(path) == path


@pytest.mark.parametrize("module", [WORKER, "a_module_of_the_users"])
def test_before_the_first_fork_there_is_no_second_thread(module: str) -> None:
    archives = list((OWN_HOME / "python" / "lib").glob("*.zip"))
    path = os.pathsep.join([*map(str, archives), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-X", "importtime", "-m", "sortshuffle.spark.worker.daemon", module]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdout is not None
        port = int.from_bytes(daemon.stdout.read(4), "big")  # it listens, and would fork now
        threads = len(os.listdir(f"/proc/{daemon.pid}/task"))
        _, lines = daemon.communicate(timeout=PATIENCE_S)  # closes its input: it ends
    imported = {line.rpartition("|")[2].strip() for line in lines.decode().splitlines()}

    assert 0 < port < 1 << 16
    assert threads == 1
    assert "pyspark.daemon" in imported
    assert (WORKER in imported) == (module == WORKER)
    assert not {"numpy", "pyarrow", "pandas"} & imported
