"""What Spark's JVM starts with: its defaults file, and the arguments of spark-submit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sortshuffle.errors import UsageError
from sortshuffle.spark.manager.launch import launch_of

DEFAULTS = r"""
# a comment
! another
spark.jars            /default.jar
spark.plugins=org.other.Plugin
spark.app.name : a job
spark.empty
spark.long  one,\
            two
=nothing
"""


@pytest.fixture
def conf_dir(tmp_path: Path) -> str:
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS)
    return str(tmp_path)


def settings(conf_dir: str, arguments: str = "") -> dict[str, str]:
    return dict(launch_of({"SPARK_CONF_DIR": conf_dir, "PYSPARK_SUBMIT_ARGS": arguments}).settings)


FROM_FILE = {
    "spark.jars": "/default.jar",
    "spark.plugins": "org.other.Plugin",
    "spark.app.name": "a job",
    "spark.empty": "",
    "spark.long": "one,two",
}


def test_a_defaults_file_is_read_as_spark_reads_it(conf_dir: str) -> None:
    assert settings(conf_dir) == FROM_FILE


def test_it_is_looked_for_where_spark_looks(conf_dir: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "spark-defaults.conf").write_text("spark.of home")
    assert launch_of({"SPARK_HOME": str(home)}).settings == {"spark.of": "home"}
    assert launch_of({"SPARK_HOME": str(home), "SPARK_CONF_DIR": conf_dir}).settings == FROM_FILE
    assert launch_of({"SPARK_HOME": "/nowhere"}).settings == {}


def test_arguments_go_before_the_file(conf_dir: str) -> None:
    arguments = (
        "--master local --conf spark.app.name=mine -c 'spark.long=a b' --verbose pyspark-shell --conf a=b"
    )
    found = settings(conf_dir, arguments)
    assert found == {**FROM_FILE, "spark.app.name": "mine", "spark.long": "a b", "spark.master": "local"}


def test_jars_and_class_path_that_are_arguments_go_before_settings_wherever_they_stand(conf_dir: str) -> None:
    arguments = "--jars=/a.jar --driver-class-path /b.jar --conf spark.jars=/c.jar pyspark-shell"
    launch = launch_of({"SPARK_CONF_DIR": conf_dir, "PYSPARK_SUBMIT_ARGS": arguments})
    assert launch.settings["spark.jars"] == "/a.jar"
    assert launch.settings["spark.driver.extraClassPath"] == "/b.jar"
    assert launch.fixed == {"spark.jars", "spark.driver.extraClassPath"}
    assert launch_of({"SPARK_CONF_DIR": conf_dir}).fixed == frozenset()


@pytest.mark.parametrize("master", ["--master yarn", "--master=yarn", '"--master" "yarn"', "--master 'yarn'"])
def test_the_master_that_is_an_argument_goes_before_settings(conf_dir: str, master: str) -> None:
    with open(f"{conf_dir}/spark-defaults.conf", "a", encoding="utf-8") as opened:
        opened.write("spark.master local[2]\n")
    assert settings(conf_dir)["spark.master"] == "local[2]"
    arguments = f"{master} --conf spark.master=local[3] --name PySparkShell pyspark-shell"
    assert settings(conf_dir, arguments)["spark.master"] == "yarn"


def test_a_file_that_is_named_takes_the_place_of_the_defaults(conf_dir: str, tmp_path: Path) -> None:
    named = tmp_path / "named.conf"
    named.write_text("spark.jars=/named.jar")
    only = f"--properties-file {named} pyspark-shell"
    assert settings(conf_dir, only) == {"spark.jars": "/named.jar"}
    assert settings(conf_dir, f"--load-spark-defaults {only}") == {**FROM_FILE, "spark.jars": "/named.jar"}


def test_arguments_that_cannot_be_read_are_named() -> None:
    with pytest.raises(UsageError, match="PYSPARK_SUBMIT_ARGS cannot be read: No closing quotation"):
        launch_of({"PYSPARK_SUBMIT_ARGS": "--conf 'a=b"})


def test_reading_it_loads_no_spark() -> None:
    code = (
        "import sys, sortshuffle.spark.manager.launch as l; l.launch_of({}); print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
