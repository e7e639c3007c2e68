"""The home of Spark that tests have."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
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


def test_it_has_all_but_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_home, "DIRECTORY", tmp_path / "homes")
    home = spark_home.spark_home()
    assert (home / "jars").is_dir()
    assert (home / "bin" / "spark-class").is_file()
    assert not (home / "python").exists()


def test_several_processes_may_make_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_home, "DIRECTORY", tmp_path)
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: spark_home.spark_home(), range(8)))
    assert os.listdir(tmp_path) == [homes.pop().name]
    assert not homes
