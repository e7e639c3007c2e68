"""`sortshuffle conf`: the lines for spark-submit, for a properties file, and why there are none."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pyspark
import pytest
from run_cli import run
from spark_home import users_environment

import sortshuffle
from sortshuffle.cli import conf as command
from sortshuffle.spark.manager.settings import MANAGER_CLASS, PLUGIN_CLASS, manager_settings

PATIENCE = 180  # seconds; the job takes about 15


@pytest.fixture
def jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A jar that is there, beside a Spark without defaults."""
    path = tmp_path / "sortshuffle-manager.jar"
    path.touch()
    monkeypatch.setattr(command, "jar_path", lambda: str(path))
    monkeypatch.setattr(command, "why_no_jar", lambda: "")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars /of-this-process.jar pyspark-shell")
    return str(path)


def settings(*arguments: str) -> dict[str, str]:
    """What spark-submit gets of the lines in `$(sortshuffle conf)`."""
    result = run("conf", *arguments)
    assert result.exit_code == 0
    script = "printf '%s\\n' $(cat)"
    done = subprocess.run(
        ["bash", "-c", script], input=result.stdout, capture_output=True, text=True, check=True
    )
    words = done.stdout.splitlines()
    assert words[::2] == ["--conf"] * (len(words) // 2)
    return {key: value for key, _, value in (word.partition("=") for word in words[1::2])}


def refusal(*arguments: str) -> str:
    """Why there is no line."""
    result = run("conf", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    return result.stderr.splitlines()[-1]


def test_a_line_for_each_setting(jar: str) -> None:
    assert settings() == manager_settings(jar, sys.executable, {})
    assert settings()["spark.shuffle.manager"] == MANAGER_CLASS


def test_the_python_of_the_engine_can_be_named(jar: str) -> None:
    assert settings("--python", "python3.12")["spark.sortshuffle.manager.python"] == "python3.12"


def test_what_sparks_defaults_name_stays(jar: str, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.plugins org.other.Plugin\nspark.jars=/other.jar\n")
    found = settings()
    assert found["spark.plugins"] == f"org.other.Plugin,{PLUGIN_CLASS}"
    assert found["spark.jars"] == f"/other.jar,{jar}"


def test_a_properties_file_of_them_reads_back(jar: str) -> None:
    lines = run("conf", "--properties").stdout.splitlines()
    expected = manager_settings(jar, sys.executable, {})
    assert lines == [f"{key}={value}" for key, value in expected.items()]


@pytest.mark.parametrize("characters", ["plain", "tilde~", "it's", "a&b;c", "$HOME", "(1)", '"x"', "a\\b"])
def test_whatever_characters_a_path_has_the_shell_leaves_them(
    jar: str, monkeypatch: pytest.MonkeyPatch, characters: str
) -> None:
    path = f"/{characters}/sortshuffle-manager.jar"
    monkeypatch.setattr(command, "jar_path", lambda: path)
    assert settings() == manager_settings(path, sys.executable, {})


def test_white_space_which_no_line_can_have_is_for_a_file(jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/with blank/sortshuffle-manager.jar"
    monkeypatch.setattr(command, "jar_path", lambda: path)
    assert refusal().startswith(f"Error: there is white space in spark.jars={path}, at which the shell")
    assert refusal().endswith("--properties-file FILE")
    assert f"spark.jars={path}" in run("conf", "--properties").stdout.splitlines()


def test_it_says_for_which_spark(jar: str, tmp_path: Path) -> None:
    checked = f"Checked for Spark {pyspark.__version__} (the installed pyspark)"
    assert run("conf").stderr == f"{checked}; no spark-defaults.conf\n"
    defaults = tmp_path / "spark-defaults.conf"
    defaults.write_text("")
    assert run("conf").stderr == f"{checked}; defaults of {defaults}\n"


def test_beside_another_spark_its_defaults_count_and_its_release_is_not_known(
    jar: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("spark.plugins org.other.Plugin\n")
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert settings()["spark.plugins"] == f"org.other.Plugin,{PLUGIN_CLASS}"
    checked = f"Checked for Spark {pyspark.__version__} (the installed pyspark)"
    assert run("conf").stderr == f"{checked}; defaults of {defaults}\n"


def test_without_pyspark_no_release_is_checked(jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(command, "version", not_found)
    expected = "Checked for no release of Spark (no pyspark is installed); no spark-defaults.conf\n"
    assert run("conf").stderr == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("spark.shuffle.manager sort", "spark.shuffle.manager is sort. Leave that setting out"),
        ("spark.shuffle.service.enabled true", "does not work with Spark's external shuffle service"),
        ("spark.shuffle.push.enabled true", "does not work with push-based shuffle"),
        ("spark.sortshuffle.manager OFF", "has spark.sortshuffle.manager=off. Leave that setting out"),
        ("spark.sortshuffle.dir s4://bucket", "fsspec knows no storage s4://"),
        ("spark.sortshuffle.memroy 1g", "Did you mean spark.sortshuffle.memory?"),
    ],
)
@pytest.mark.parametrize("arguments", [(), ("--properties",)])
def test_what_sparks_defaults_say_may_speak_against_it(
    jar: str, tmp_path: Path, line: str, reason: str, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"{line}\n")
    assert refusal(*arguments).startswith("Error: the shuffle manager cannot be on: ")
    assert reason in refusal(*arguments)


def test_a_local_master_of_the_environment_may_be_another_one_in_the_end(
    jar: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.network.crypto.enabled true\n")
    monkeypatch.setenv("MASTER", "local[2]")
    assert "rows would cross the network unencrypted" in refusal()


def test_without_the_jar_there_is_a_reason_and_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "why_no_jar", lambda: "its jar is not there")
    assert refusal() == "Error: the shuffle manager cannot be on: its jar is not there"


def test_for_another_spark_there_is_a_reason_and_no_line(jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "version", lambda name: "4.0.1")
    assert "it works with Spark 4.1 to 4.3, and this is Spark 4.0.1" in refusal()


def test_it_loads_no_spark() -> None:
    code = "import sys, sortshuffle.cli.conf; print([n for n in ('pyspark', 'pyarrow') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_job_that_spark_submit_runs_with_its_lines_is_shuffled_by_the_manager(tmp_path: Path) -> None:
    """A job that knows nothing of this package."""
    program = tmp_path / "job.py"
    program.write_text(
        "import json\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "count = spark.range(100).repartition(3).count()\n"
        f"decisions = dict(spark.sparkContext._jvm.{MANAGER_CLASS}.decisions())\n"
        "print(json.dumps([count, decisions]))\n"
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    lines = run("conf").stdout.split()
    calm = ["--conf", "spark.ui.enabled=false", "--driver-java-options", "-XX:TieredStopAtLevel=1"]
    done = subprocess.run(
        [str(submit), "--master", "local[1]", *calm, *lines, str(program)],
        env={**users_environment(), "PYTHONPATH": str(Path(sortshuffle.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [100, {"sortshuffle": 2}]
