"""The home of Spark that tests have."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest
import spark_home
from pyspark.sql import SparkSession


def test_workers_import_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where homes are made."""
    monkeypatch.setattr(spark_home, "DIRECTORY", tmp_path / "homes")
    return tmp_path / "homes"


def test_it_has_what_spark_needs_and_no_archive(homes: Path) -> None:
    home = spark_home.spark_home()
    assert home.parent == homes
    assert (home / "jars").is_dir()
    assert (home / "bin" / "spark-class").is_file()
    assert not (home / "python").exists()


def test_a_home_that_is_there_stays_as_it_is(homes: Path) -> None:
    home = spark_home.spark_home()
    made = home.stat().st_ino
    spark_home.make_home(home, Path(pyspark.__file__).parent)
    assert [path.name for path in homes.iterdir()] == [home.name]
    assert home.stat().st_ino == made


def test_a_home_that_cannot_be_made_leaves_nothing(homes: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spark_home.make_home(tmp_path / "missing" / "home", Path(pyspark.__file__).parent)
    assert list(homes.iterdir()) == []


def test_another_installation_has_another_home(
    homes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [spark_home.spark_home()]
    jars = tmp_path / "pyspark" / "jars"
    jars.mkdir(parents=True)
    os.utime(jars, (1, 1))
    monkeypatch.setattr(pyspark, "__file__", str(jars.parent / "__init__.py"))
    found.append(spark_home.spark_home())
    os.utime(jars, (2, 2))  # the same release again, at the same place
    found.append(spark_home.spark_home())
    monkeypatch.setattr(pyspark, "__version__", "another")
    found.append(spark_home.spark_home())
    assert spark_home.spark_home() == found[-1]
    assert len(set(found)) == 4
