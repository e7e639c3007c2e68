"""The wheel and the sdist hold the shuffle manager's jar, installing from one compiles nothing, and neither
is made without it. Both are built from a copy of the checkout, which stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from engine import ROOT

JAR = "sortshuffle/spark/manager/sortshuffle-manager.jar"
JAVA = "sortshuffle/spark/manager/java/org/sortshuffle/SortMergeShuffleManager.java"
PATIENCE = 180  # seconds; building takes about 3
PARTS = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the archives are made of."""
    copy = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("sortshuffle", "pyspark_sortshuffle"):
        shutil.copytree(ROOT / package, copy / package, ignore=ignored)
    for name in PARTS:
        shutil.copy(ROOT / name, copy / name)
    assert (copy / JAR).is_file(), "tools/jar builds it; tools/test calls that"
    return copy


def build(checkout: Path, hook: str) -> subprocess.CompletedProcess[str]:
    """As pip has archives built, without an environment of their own."""
    code = f"from setuptools import build_meta; print(build_meta.{hook}('dist'))"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def built(checkout: Path, hook: str) -> Path:
    done = build(checkout, hook)
    assert done.returncode == 0, done.stderr[-4000:]
    return checkout / "dist" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    return built(checkout, "build_wheel")


def test_the_wheel_holds_the_jar_and_not_its_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read(JAR) == (ROOT / JAR).read_bytes()
    assert "sortshuffle/py.typed" in names
    assert {"sortshuffle/spark/manager/activation.py", "pyspark_sortshuffle/__init__.py"} <= set(names)
    assert [name for name in names if name.endswith(".java")] == []


def test_the_sdist_holds_the_jar_and_its_sources_and_makes_the_same_wheel(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(built(checkout, "build_sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {JAR, JAVA, "setup.py", "sortshuffle/py.typed"} <= names
    (unpacked,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(built(unpacked, "build_wheel")) as other:
        assert sorted(other.namelist()) == sorted(one.namelist())
        assert other.read(JAR) == one.read(JAR)


def test_an_installed_wheel_says_how_to_turn_the_manager_on(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--target",
            target,
            wheel,
        ],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    done = subprocess.run(
        [sys.executable, "-m", "sortshuffle.cli.main", "conf"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target), "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"--conf spark.jars={target / JAR}\n" in done.stdout
    assert (target / JAR).read_bytes() == (ROOT / JAR).read_bytes()


@pytest.mark.parametrize("hook", ["build_wheel", "build_sdist"])
def test_without_the_jar_neither_is_made(checkout: Path, tmp_path: Path, hook: str) -> None:
    without = tmp_path / "without"
    shutil.copytree(checkout, without, ignore=shutil.ignore_patterns("*.jar", "dist", "build", "*.egg-info"))
    done = build(without, hook)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(
        f"{JAR} is not there, and a wheel or an sdist of sortshuffle"
    )
    assert done.stderr.rstrip().endswith("tools/jar")
    assert not (without / "dist").exists() or os.listdir(without / "dist") == []


def test_with_a_jar_that_is_older_than_its_sources_neither_is_made(checkout: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(checkout, clone, ignore=shutil.ignore_patterns("dist", "build", "*.egg-info"))
    for source in clone.rglob("*.java"):
        os.utime(source, (0, 0))
    newer = (clone / JAR).stat().st_mtime + 2
    os.utime(clone / JAVA, (newer, newer))
    assert built(clone, "build_wheel").is_file()  # an unpacked sdist, whose times are those of unpacking
    (clone / ".git").mkdir()
    done = build(clone, "build_wheel")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(f"{JAR} is older than {JAVA}. Build it again")


def test_an_editable_install_does_without_it(checkout: Path, tmp_path: Path) -> None:
    without = tmp_path / "without"
    shutil.copytree(checkout, without, ignore=shutil.ignore_patterns("*.jar", "dist", "build", "*.egg-info"))
    assert built(without, "build_editable").is_file()
