"""`configure` turns the shuffle manager on, leaves it out and says why, or refuses. What depends on a JVM is
tried in a process of its own, with the real jar.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest
from java_options import SHORT_LIVED, java_options
from job_process import run_job
from pyspark import SparkContext
from pyspark.sql import SparkSession
from spark_home import users_environment

import sortshuffle
from sortshuffle.errors import OptionError, UsageError
from sortshuffle.spark.manager import jar
from sortshuffle.spark.manager.activation import LOGGER
from sortshuffle.spark.manager.settings import (
    MANAGER_CLASS,
    NETWORK_ENCRYPTION,
    OUR_DAEMON,
    PLUGIN_CLASS,
    WANTED_DAEMON_MODULE,
    is_on,
    manager_settings,
    without_manager,
)
from sortshuffle.spark.session.requirements import NO_ROLLBACK
from sortshuffle.version import __version__

MANAGER = "spark.sortshuffle.manager"
ALWAYS = {"spark.python.unix.domain.socket.enabled": "true", "spark.executorEnv.MIMALLOC_PURGE_DELAY": "3000"}
PATIENCE = 180  # seconds; each takes about 15
PATIENCE_FOR_SEVERAL = 270  # seconds; seven sessions take about 60


@pytest.fixture
def the_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A jar that is there, in a process that has no JVM yet and no settings of Spark."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    path = tmp_path / "sortshuffle-manager.jar"
    path.touch()
    monkeypatch.setattr(jar, "jar_path", lambda: str(path))
    return path


def configured(**settings: str) -> dict[str, Any]:
    """The settings of a builder that had these."""
    builder = SparkSession.Builder()
    for key, value in settings.items():
        builder.config(key.replace("_", "."), value)
    made: dict[str, Any] = sortshuffle.configure(builder)._options
    return made


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


# --- what a builder is given --------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [{}, {MANAGER: "auto"}, {MANAGER: "on"}])
def test_it_is_on_where_nothing_speaks_against_it(
    the_jar: Path, wanted: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    on = manager_settings(str(the_jar), "/opt/python", {})
    assert configured(**wanted) == {**wanted, **on, **ALWAYS}
    assert said(caplog) == []


@pytest.fixture
def workers_run_this_python(monkeypatch: pytest.MonkeyPatch, the_jar: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)


@pytest.mark.usefixtures("workers_run_this_python")
def test_workers_are_forked_by_our_daemon_if_all_run_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they run on this host is known to the plugin alone."""
    assert configured()[WANTED_DAEMON_MODULE] == OUR_DAEMON
    assert WANTED_DAEMON_MODULE not in configured(spark_sql_execution_pyspark_python="/opt/python")

    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/opt/python")  # which reads data sources written in Python
    assert WANTED_DAEMON_MODULE not in configured()


def test_settings_from_another_python_do_not_name_our_daemon(the_jar: Path) -> None:
    """A builder may be configured twice, or have a copy of a SparkContext's configuration."""
    builder = SparkSession.Builder().config(WANTED_DAEMON_MODULE, OUR_DAEMON)
    assert sortshuffle.configure(builder)._options[WANTED_DAEMON_MODULE] == ""


def test_without_the_manager_a_copied_configuration_does_not_name_our_daemon() -> None:
    key = "spark.python.daemon.module"
    assert without_manager({key: OUR_DAEMON}) == {key: "pyspark.daemon"}
    assert without_manager({key: "users"}) == {}


@pytest.mark.parametrize(
    ("of_user", "of_all", "daemon"),
    [
        ([], [], None),
        ([], ["0.0.1"], None),
        ([], [__version__], OUR_DAEMON),
        ([__version__], [], OUR_DAEMON),
        (["0.0.1"], [__version__], None),  # the user's is the one that is imported
    ],
)
@pytest.mark.usefixtures("workers_run_this_python")
def test_our_daemon_is_wanted_if_this_release_is_installed(
    tmp_path: Path,
    of_user: list[str],
    of_all: list[str],
    daemon: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program may have put it on its own path, which Python workers do not have. A user's packages come
    before everybody's."""
    for place, versions in (("user", of_user), ("all", of_all)):
        for version in versions:
            directory = tmp_path / place / f"sortshuffle-{version}.dist-info"
            directory.mkdir(parents=True)
            (directory / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: sortshuffle\nVersion: {version}\n"
            )
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "all")])
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "user"))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)

    settings = configured()

    assert settings.get(WANTED_DAEMON_MODULE) == daemon
    assert PLUGIN_CLASS in settings["spark.plugins"]

    if of_user:
        monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
        assert configured().get(WANTED_DAEMON_MODULE) == (OUR_DAEMON if of_all else None)


@pytest.mark.parametrize(("named", "daemon"), [("", OUR_DAEMON), ("pyspark.daemon", "pyspark.daemon")])
def test_the_daemon_forks_workers_unless_the_user_names_another(
    named: str, daemon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`configure` is called before the master is named. A job's own files come before what is installed."""
    monkeypatch.chdir(tmp_path)  # the working directory comes before both, and may be this checkout
    with ZipFile(tmp_path / "files.zip", "w") as files:
        files.writestr("sortshuffle/__init__.py", "of = 'the job'")
    job = tmp_path / "job.py"
    job.write_text(f"""
import json
import sortshuffle
from pyspark.sql import SparkSession
builder = SparkSession.builder.config("spark.ui.enabled", "false").config({MANAGER!r}, "on")
if {named!r}:
    builder = builder.config("spark.python.daemon.module", {named!r})
spark = sortshuffle.configure(builder).master("local[1]").getOrCreate()

def worker(_):
    import sys, pyspark
    archives = [path for path in sys.path if path.endswith(("pyspark.zip", "-src.zip"))]
    import sortshuffle
    return sys.orig_argv[1:], pyspark.__file__, len(archives), sortshuffle.of

spark.sparkContext.addPyFile({str(tmp_path / "files.zip")!r})
found = spark.sparkContext.parallelize([0], 1).map(worker).first()
rows = spark.range(7).repartition(2).rdd.map(lambda row: row.id).sum()
print(json.dumps({{"found": found, "sum": rows}}))
spark.stop()
""")
    result = run_job(job, patience=PATIENCE, environment=users_environment())
    is_ours = daemon == OUR_DAEMON
    arguments, package, archives, of = result["found"]
    assert arguments == ["-m", daemon, "pyspark.worker"]
    assert (package == pyspark.__file__) == is_ours
    assert archives == (0 if is_ours else 2)
    assert of == "the job"
    assert result["sum"] == 21


def test_each_session_of_a_process_has_the_daemon_for_its_own_python_and_master(tmp_path: Path) -> None:
    """A JVM keeps the settings of its first session as defaults. A copy of a SparkContext's configuration has
    what the plugin has added."""
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    job = tmp_path / "job.py"
    job.write_text(f"""
import json, os
import sortshuffle
from pyspark import SparkConf
from pyspark.sql import SparkSession

def daemon(conf, later={{}}, **settings):
    builder = SparkSession.builder.config(conf=conf)
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    builder = sortshuffle.configure(builder)
    for key, value in later.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    made = spark.sparkContext.getConf()
    spark.stop()
    return made.get("spark.python.daemon.module"), made

start = SparkConf().set("spark.ui.enabled", "false").set({MANAGER!r}, "on")
first, made = daemon(start, spark_master="local[1]")
cluster, _ = daemon(made, spark_master="local-cluster[1,1,1024]")
named, _ = daemon(made, spark_master="local-cluster[1,1,1024]", spark_python_daemon_module="users")
again, _ = daemon(SparkConf(), spark_master="local[1]")
off, _ = daemon(made, spark_sortshuffle_manager="off")
off_later, _ = daemon(made, {{{MANAGER!r}: "off"}})
os.environ["PYSPARK_PYTHON"] = {str(other)!r}
elsewhere, _ = daemon(made, spark_master="local[1]")
print(json.dumps({{"found": [first, cluster, named, again, off, off_later, elsewhere]}}))
""")
    found = run_job(job, patience=PATIENCE_FOR_SEVERAL, environment=users_environment())["found"]
    assert found == [OUR_DAEMON, None, "users", OUR_DAEMON, "pyspark.daemon", None, None]


def test_off_leaves_it_out_without_a_word(the_jar: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert configured(spark_sortshuffle_manager="off") == {MANAGER: "off", **ALWAYS}
    assert said(caplog) == []


def test_what_is_off_in_sparks_defaults_is_off(the_jar: Path) -> None:
    Path(os.environ["SPARK_CONF_DIR"], "spark-defaults.conf").write_text(f"{MANAGER} off\n")
    assert configured() == ALWAYS


def test_another_word_is_refused(the_jar: Path) -> None:
    with pytest.raises(OptionError, match=r"manager = 'yes' is not allowed: give auto, on, off"):
        configured(spark_sortshuffle_manager="yes")


def test_a_setting_of_ours_that_is_not_allowed_is_refused_before_the_first_shuffle(the_jar: Path) -> None:
    with pytest.raises(OptionError, match=r"Did you mean spark\.sortshuffle\.memory\?"):
        configured(spark_sortshuffle_memroy="1g")
    Path(os.environ["SPARK_CONF_DIR"], "spark-defaults.conf").write_text("spark.sortshuffle.codec gzip\n")
    with pytest.raises(OptionError, match=r"codec = 'gzip' is not allowed"):
        configured()
    assert configured(spark_sortshuffle_manager="off") == {MANAGER: "off", **ALWAYS}  # a frame says it then


def test_what_is_set_in_the_builder_and_in_sparks_defaults_stays(the_jar: Path) -> None:
    defaults = "spark.plugins org.default.Plugin\nspark.driver.extraClassPath /default.jar\n"
    Path(os.environ["SPARK_CONF_DIR"], "spark-defaults.conf").write_text(defaults)
    made = configured(spark_jars="/mine.jar", spark_plugins="org.mine.Plugin")
    assert made["spark.jars"] == f"/mine.jar,{the_jar}"
    assert made["spark.plugins"] == f"org.mine.Plugin,{PLUGIN_CLASS}"
    assert made["spark.driver.extraClassPath"] == f"{the_jar}:/default.jar"


def test_twice_is_once(the_jar: Path) -> None:
    builder = SparkSession.Builder()
    once = dict(sortshuffle.configure(builder)._options)
    assert sortshuffle.configure(builder)._options == once


@pytest.mark.parametrize("first", ["off", "auto"])
def test_a_builder_that_was_left_without_it_may_have_it_after_all(the_jar: Path, first: str) -> None:
    """Where Spark's defaults turn the manager on, `configure` turns it off by the class of Spark's own."""
    on_in_defaults()
    builder = SparkSession.Builder().config(MANAGER, first).config("spark.shuffle.push.enabled", "true")
    off = "org.apache.spark.shuffle.sort.SortShuffleManager"
    assert sortshuffle.configure(builder)._options["spark.shuffle.manager"] == off
    builder.config(MANAGER, "on").config("spark.shuffle.push.enabled", "false")
    made = sortshuffle.configure(builder)._options
    assert (made["spark.shuffle.manager"], made["spark.plugins"]) == (MANAGER_CLASS, PLUGIN_CLASS)


def on_in_defaults() -> None:
    defaults = f"spark.shuffle.manager {MANAGER_CLASS}\nspark.plugins {PLUGIN_CLASS}\n"
    Path(os.environ["SPARK_CONF_DIR"], "spark-defaults.conf").write_text(defaults)


def test_a_builder_that_asks_for_sparks_own_shuffle_has_it(
    the_jar: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_in_defaults()
    made = configured(spark_shuffle_manager="sort")
    assert (made["spark.shuffle.manager"], made["spark.plugins"]) == ("sort", "")
    (line,) = said(caplog)
    assert "spark.shuffle.manager is sort. Leave that setting out" in line


@pytest.mark.parametrize(
    ("workers", "engine"),
    [
        ("/opt/env/bin/python", "/opt/env/bin/python"),
        ("python3", "python3"),
        ("env/bin/python", "./env/bin/python"),
    ],
)
def test_the_engine_runs_the_workers_python(
    the_jar: Path, monkeypatch: pytest.MonkeyPatch, workers: str, engine: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", workers)
    assert configured()["spark.sortshuffle.manager.python"] == engine
    named = {"spark.sortshuffle.manager.python": "python3.12"}
    assert configured(**named)["spark.sortshuffle.manager.python"] == "python3.12"


@pytest.mark.parametrize("wanted", ["auto", "on"])
def test_encryption_leaves_it_on(the_jar: Path, caplog: pytest.LogCaptureFixture, wanted: str) -> None:
    made = configured(spark_io_encryption_enabled="true", spark_sortshuffle_manager=wanted)
    assert made["spark.shuffle.manager"] == MANAGER_CLASS
    assert said(caplog) == []


# --- what speaks against it ---------------------------------------------------------------------------------


def left_out(reason: str, caplog: pytest.LogCaptureFixture, **settings: str) -> None:
    """With auto the builder is left as it was and one line says why, with on it is refused."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    assert configured(**settings) == {**given, **ALWAYS}
    (line,) = said(caplog)
    assert line.startswith("the session's shuffles stay Spark's own: ")
    assert reason in line
    with pytest.raises(
        UsageError, match=r"^spark\.sortshuffle\.manager=on, and the shuffle manager cannot be"
    ):
        configured(**settings, spark_sortshuffle_manager="on")


def test_without_the_jar(the_jar: Path, caplog: pytest.LogCaptureFixture) -> None:
    the_jar.unlink()
    left_out(f"its jar {the_jar} is not there. In a clone, tools/jar builds it", caplog)


@pytest.mark.parametrize("release", ["4.0.2", "4.4.0"])
def test_with_another_spark(
    the_jar: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", release)
    left_out(f"it works with Spark 4.1 to 4.3, and this is Spark {release}", caplog)


@pytest.mark.parametrize("other", ["sort", "org.other.ShuffleManager"])
def test_beside_another_shuffle_manager(the_jar: Path, caplog: pytest.LogCaptureFixture, other: str) -> None:
    left_out(f"spark.shuffle.manager is {other}. Leave that setting out", caplog, spark_shuffle_manager=other)


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("spark.shuffle.push.enabled", "push-based shuffle"),
        ("spark.shuffle.service.enabled", "Spark's external shuffle service"),
    ],
)
def test_beside_what_it_does_not_work_with(
    the_jar: Path, caplog: pytest.LogCaptureFixture, key: str, what: str
) -> None:
    left_out(f"it does not work with {what}. Set {key}=false", caplog, **{key: "true"})
    assert configured(**{key: "false"})["spark.shuffle.manager"] == MANAGER_CLASS


@pytest.mark.parametrize("key", NETWORK_ENCRYPTION)
def test_where_spark_encrypts_what_crosses_the_network_and_services_would_not(
    the_jar: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    left_out(f"{key} is true, and rows would cross the network unencrypted", caplog, **{key: "true"})
    tls = {
        f"spark.sortshuffle.service.tls.{name}": f"/{name}" for name in ("certificate", "key", "authority")
    }
    for safe in (
        {"spark.io.encryption.enabled": "true"},
        tls,
        {"spark.master": "local[2]"},
        {"spark.sortshuffle.dir": "s3://bucket/shuffles"},
    ):
        assert configured(**{key: "true"}, **safe)["spark.shuffle.manager"] == MANAGER_CLASS
    for cluster in ("spark://host:7077", "local-cluster[2,1,1024]"):
        assert "spark.shuffle.manager" not in configured(**{key: "true", "spark.master": cluster})


def test_with_encryption_where_the_package_is_missing(
    the_jar: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.kdf.hkdf", None)
    why = (
        "spark.io.encryption.enabled is true, and this Python lacks the package cryptography, by which files"
        " are encrypted"
    )
    left_out(why, caplog, spark_io_encryption_enabled="true")
    assert configured(spark_io_encryption_enabled="false")["spark.shuffle.manager"] == MANAGER_CLASS


@pytest.mark.parametrize("where", ["/disk1,/disk2", "s3://bucket/prefix", "file:///mount/shuffles"])
def test_with_directories_and_with_storage_that_every_host_sees(the_jar: Path, where: str) -> None:
    assert configured(spark_sortshuffle_dir=where)["spark.shuffle.manager"] == MANAGER_CLASS


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (
            "s4://bucket/prefix",
            "fsspec knows no storage s4://. It knows, among others, s3://, gs://, abfs://, hdfs:// and file://,"
            " a directory that all hosts have mounted",
        ),
        ("memory://prefix", "no other process sees that. Name storage that all hosts see"),
        ("http://host", "nothing can be written there. Name storage that all hosts write to"),
    ],
)
def test_with_storage_that_is_none(
    the_jar: Path, caplog: pytest.LogCaptureFixture, url: str, why: str
) -> None:
    left_out(f"spark.sortshuffle.dir is {url}, and {why}", caplog, spark_sortshuffle_dir=url)


def test_where_submit_arguments_would_hide_the_jar_from_the_driver(
    the_jar: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars /a.jar --driver-class-path /b.jar pyspark-shell")
    left_out(f"Add {the_jar} to one of them", caplog)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars /a.jar pyspark-shell")
    assert configured()["spark.jars"] == f"/a.jar,{the_jar}"
    hidden = f"--jars /a.jar,{the_jar} --driver-class-path /b.jar pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", hidden)
    assert configured()["spark.shuffle.manager"] == MANAGER_CLASS


def test_the_jar_of_another_installation_is_replaced(the_jar: Path) -> None:
    """Spark sends jars to executors by their base names: one of the two would come in place of the other."""
    defaults = f"spark.jars file:/opt/a%20b/{the_jar.name}\nspark.driver.extraClassPath /opt/{the_jar.name}\n"
    Path(os.environ["SPARK_CONF_DIR"], "spark-defaults.conf").write_text(defaults)
    made = configured()
    assert (made["spark.jars"], made["spark.driver.extraClassPath"]) == (str(the_jar), str(the_jar))


def test_over_spark_connect_nothing_is_set_or_said(the_jar: Path, caplog: pytest.LogCaptureFixture) -> None:
    for wanted in ("auto", "on"):
        made = configured(spark_remote="sc://somewhere", spark_sortshuffle_manager=wanted)
        assert "spark.shuffle.manager" not in made
    assert said(caplog) == []


def test_where_pyspark_starts_a_server_of_spark_connect(
    the_jar: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert configured(spark_api_mode="connect") == {"spark.api.mode": "connect", **NO_ROLLBACK, **ALWAYS}
    (line,) = said(caplog)
    assert "spark.api.mode is connect" in line and "`sortshuffle conf`" in line
    with pytest.raises(UsageError, match=r"manager=on.*spark\.api\.mode is connect"):
        configured(spark_api_mode="connect", spark_sortshuffle_manager="on")
    monkeypatch.setenv("SPARK_API_MODE", "connect")
    assert configured() == {**NO_ROLLBACK, **ALWAYS}
    monkeypatch.delenv("SPARK_API_MODE")
    defaults = Path(os.environ["SPARK_CONF_DIR"], "spark-defaults.conf")
    defaults.write_text("spark.api.mode connect\n")  # which PySpark does not ask
    assert configured()["spark.shuffle.manager"] == MANAGER_CLASS
    monkeypatch.setenv("SPARK_API_MODE", "connect")
    assert configured(spark_api_mode="classic")["spark.shuffle.manager"] == MANAGER_CLASS


def test_where_a_session_runs_already(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    if is_on(spark.sparkContext):
        pytest.skip("the session that runs has the manager")
    caplog.set_level(logging.WARNING, LOGGER)
    # the JVM was started with what `configure` sets always
    assert configured(spark_sortshuffle_manager="auto") == {MANAGER: "auto"}
    (line,) = said(caplog)
    assert "the SparkContext runs already" in line and "`sortshuffle conf`" in line
    with pytest.raises(UsageError, match=r"manager=on.*the SparkContext runs already"):
        configured(spark_sortshuffle_manager="on")
    caplog.clear()
    assert configured(spark_sortshuffle_manager="off") == {MANAGER: "off"}
    assert said(caplog) == []
    misspelt = {"spark.sortshuffle.memroy": "1g", MANAGER: "off"}  # a frame says it
    assert configured(spark_sortshuffle_memroy="1g", spark_sortshuffle_manager="off") == misspelt


# --- with a JVM ---------------------------------------------------------------------------------------------


HEAD = f"""
import json, logging
logging.basicConfig(format="%(name)s %(message)s")
import sortshuffle
from pyspark.sql import SparkSession
from sortshuffle.spark.manager.settings import is_on

def session(wanted, configured=True):
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder.config("spark.driver.extraJavaOptions", "{java_options(has_manager=True)}")
    if wanted:
        builder.config("{MANAGER}", wanted)
    if configured:
        sortshuffle.configure(builder)
    return builder.getOrCreate()

def shuffled(spark):
    before = ours(spark)
    assert spark.range(100).repartition(3).count() == 100
    return [is_on(spark.sparkContext), ours(spark) - before]

def ours(spark):
    return dict(spark.sparkContext._jvm.{MANAGER_CLASS}.decisions()).get("sortshuffle", 0)
"""


def run(*command: str) -> tuple[Any, str]:
    """What a driver prints last, and its log. It does not have the settings of this process's Spark."""
    root = str(Path(sortshuffle.__file__).parent.parent)
    done = subprocess.run(
        command,
        env={**users_environment(), "PYTHONPATH": root, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr  # spark-submit mixes them


def test_two_contexts_of_one_process_one_after_the_other_have_it() -> None:
    code = """
answers = []
for wanted in ("on", "auto"):
    spark = session(wanted)
    answers.append(shuffled(spark))
    assert session("on") is spark  # which has it
    if wanted == "auto":
        answers.append(shuffled(session("off")))
    spark.stop()
print(json.dumps(answers))
"""
    answers, log = run(sys.executable, "-c", HEAD + code)
    assert answers == [[True, 2], [True, 2], [True, 2]]
    assert "has been added already" not in log  # by Spark, of a jar
    (line,) = (line for line in log.splitlines() if line.startswith(LOGGER))
    assert "stay sortshuffle's: the SparkContext runs already, with the shuffle manager. Stop it" in line


def test_each_context_of_a_jvm_that_pyspark_started_has_what_it_asks_for(tmp_path: Path) -> None:
    """It was started without the classes."""
    job = tmp_path / "job.py"
    job.write_text(f"""{HEAD}
import os
del os.environ["PYSPARK_SUBMIT_ARGS"]  # which says whether tests have the manager
session("off").stop()
answers = shuffled(session("on"))
session("on").stop()
spark = session("off")
answers += shuffled(spark)
spark.stop()
spark = session(None)  # which is auto: what the JVM was started with is the first builder's answer
answers += shuffled(spark)
spark.stop()
print(json.dumps({{"answers": answers}}))
""")
    answers = run_job(job, environment=dict(os.environ))["answers"]  # no other program has been in its JVM
    assert answers == [True, 2, False, 0, True, 2]


def test_each_context_under_spark_submit_has_what_it_asks_for(tmp_path: Path) -> None:
    """The JVM was started without the classes: spark-submit was not given their lines. A session that was
    made without the manager is named in one line."""
    program = tmp_path / "job.py"
    program.write_text(f"""{HEAD}
plain = session(None, configured=False)
spark = session("auto")
answers = [spark is plain, spark.conf.get("spark.shuffle.manager", None), is_on(spark.sparkContext)]
spark.stop()
answers += shuffled(session("auto"))
session("auto").stop()
spark = session("off")
answers += shuffled(spark)
spark.stop()
answers += shuffled(session(None))  # which is auto: an earlier builder's answer was its own
print(json.dumps(answers))
""")
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    answers, log = run(submit, "--driver-java-options", java_options(), str(program))
    assert answers == [True, None, False, True, 2, False, 0, True, 2]
    (line,) = (line for line in log.splitlines() if line.startswith(LOGGER))
    assert "stay Spark's own: the SparkContext runs already" in line


def test_under_spark_submit_executors_get_the_jar_that_the_driver_has(tmp_path: Path) -> None:
    """Another installation's, whose lines spark-submit was given."""
    other = tmp_path / "with blank" / jar.JAR_NAME
    other.parent.mkdir()
    shutil.copy(jar.jar_path(), other)
    program = tmp_path / "job.py"
    program.write_text(f"""{HEAD}
spark = session("on")
print(json.dumps([*shuffled(spark), spark.sparkContext.getConf().get("spark.jars")]))
""")
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    lines = ("--jars", str(other), "--driver-class-path", str(other))
    answers, _ = run(submit, "--driver-java-options", SHORT_LIVED, *lines, str(program))
    assert answers == [True, 2, str(other)]
