"""What a frame needs of a session: `configure`, the check of the workers' Python, and public names that are
there whatever was imported first. What depends on how a process starts is tried in a process of its own, what
depends on a SparkContext with one of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from job_process import run_job
from oracle import confs, jobs
from pyspark import SparkContext
from pyspark.errors import PySparkTypeError
from pyspark.sql import SparkSession
from spark_home import users_environment

import sortshuffle
from sortshuffle.errors import UsageError
from sortshuffle.options import MIB, Options
from sortshuffle.spark.manager.settings import MANAGER
from sortshuffle.spark.plan.chain import FrameContext
from sortshuffle.spark.session.requirements import NO_ROLLBACK, check_workers, setting_of, settings_of
from sortshuffle.spark.session.unix_sockets import DIRECTORY as SOCKET_DIRECTORY
from sortshuffle.spark.session.unix_sockets import ENABLED as UNIX_SOCKETS

PATIENCE = 180  # seconds; each takes about 10


def run(code: str) -> str:
    """What a fresh interpreter prints for this code."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def found_by(code: str, directory: Path, workers: str = "", environment: dict[str, str] | None = None) -> Any:
    """What this code leaves in `found`, with a SparkContext of its own. ``workers``: the interpreter that
    PYSPARK_PYTHON names, if one is to be named. ``environment``: as for `run_job`."""
    names = f"os.environ['PYSPARK_PYTHON'] = {workers!r}" if workers else "del os.environ['PYSPARK_PYTHON']"
    job = directory / "job.py"
    job.write_text(f"import json, os\n{names}\n{code}\nprint(json.dumps({{'found': found}}))\nspark.stop()\n")
    return run_job(job, environment=environment)["found"]


# --- configure ------------------------------------------------------------------------------------------


ALLOCATOR = "spark.executorEnv.MIMALLOC_PURGE_DELAY"


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that has no JVM yet and no settings of Spark."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


@pytest.mark.usefixtures("no_jvm")
def test_configure_sets_what_it_says_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    builder = SparkSession.Builder().config(MANAGER, "off")  # which has tests of its own

    assert sortshuffle.configure(builder) is builder
    assert builder._options == {
        MANAGER: "off",
        UNIX_SOCKETS: "true",
        ALLOCATOR: "3000",
    }
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def configured(**settings: str) -> dict[str, Any]:
    """The settings of a builder without the manager that had these."""
    builder = SparkSession.Builder().config(MANAGER, "off").config(map=settings)
    return dict(sortshuffle.configure(builder)._options)


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.parametrize("by", ["builder", "defaults", "submit"])
@pytest.mark.parametrize(("name", "value"), [(UNIX_SOCKETS, "false"), (ALLOCATOR, "10")])
def test_configure_keeps_what_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str, name: str, value: str
) -> None:
    if by == "defaults":
        (tmp_path / "spark-defaults.conf").write_text(f"{name} {value}\n")
    elif by == "submit":
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {name}={value} pyspark-shell")
    ours = {MANAGER: "off", UNIX_SOCKETS: "true", ALLOCATOR: "3000"}
    if by == "builder":
        assert configured(**{name: value}) == {**ours, name: value}
    else:
        ours.pop(name)
        assert configured() == ours


LONG = "/tmp/" + "x" * 59  # a byte more than leaves room for the name of a socket
ROOM = LONG[:-1]


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.parametrize(
    ("settings", "variables", "takes_sockets"),
    [
        ({"spark.driver.extraJavaOptions": f"-Xss4m -Djava.io.tmpdir={LONG} -ea"}, {}, False),
        ({"spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={LONG}"}, {}, False),
        ({"spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={ROOM}"}, {}, True),
        ({"spark.driver.extraJavaOptions": f'-ea -Djava.io.tmpdir="{LONG}"'}, {}, False),
        ({"spark.driver.extraJavaOptions": f"-Djava.io.tmpdir='{ROOM}'"}, {}, True),
        ({}, {"JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={LONG}"}, False),
        ({}, {"JDK_JAVA_OPTIONS": f"'-Djava.io.tmpdir={LONG}'"}, False),
        ({}, {"JDK_JAVA_OPTIONS": f"'-Djava.io.tmpdir={ROOM}'"}, True),
        ({}, {"TMPDIR": LONG}, True),
        (
            {},
            {"PYSPARK_SUBMIT_ARGS": f"--driver-java-options -Djava.io.tmpdir={LONG} pyspark-shell"},
            False,
        ),
        ({SOCKET_DIRECTORY: "/s"}, {"JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={LONG}"}, True),
        ({SOCKET_DIRECTORY: LONG}, {}, False),
        ({"spark.master": "yarn"}, {}, False),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--master yarn --name n pyspark-shell"}, False),
        ({}, {"PYSPARK_SUBMIT_ARGS": '"--master" "yarn" "--name" "PySparkShell" "pyspark-shell"'}, False),
        ({"spark.master": "local[2]"}, {"PYSPARK_SUBMIT_ARGS": "--master=yarn pyspark-shell"}, True),
        ({"spark.master": "yarn", SOCKET_DIRECTORY: "/s"}, {}, True),
        ({"spark.master": "k8s://https://host"}, {}, True),
        ({}, {"PYSPARK_UDS_MODE": "false"}, False),
        ({}, {"PYSPARK_UDS_MODE": "true"}, False),  # Spark turns them on
    ],
)
def test_configure_leaves_sockets_off_whose_paths_are_too_long(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    variables: dict[str, str],
    takes_sockets: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (UNIX_SOCKETS in configured(**settings)) == takes_sockets


@pytest.mark.usefixtures("no_jvm")
def test_the_master_of_submit_arguments_goes_before_that_of_the_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master local[2]\n")
    assert UNIX_SOCKETS in configured()
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")
    assert UNIX_SOCKETS not in configured()


@pytest.mark.parametrize(("length", "runs"), [(63, False), (64, False), (64, True)])
def test_a_configured_session_runs_whatever_the_length_of_its_temporary_directory(
    tmp_path: Path, length: int, runs: bool
) -> None:
    """``runs``: whether the JVM runs before, so that no variable of Python's says how it was started."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="") as short:
        directory = Path(short, "x" * (length - len(short) - 1))
        directory.mkdir()
        code = f"""
import sortshuffle
from pyspark import SparkContext
from pyspark.sql import SparkSession
os.environ["PYSPARK_SUBMIT_ARGS"] = "pyspark-shell"
os.environ["JDK_JAVA_OPTIONS"] = "-Djava.io.tmpdir={directory}"
if {runs}:
    SparkContext._ensure_initialized()
    del os.environ["JDK_JAVA_OPTIONS"]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = sortshuffle.configure(builder.config("spark.sortshuffle.manager", "off")).getOrCreate()
rows = sortshuffle.frame(spark.range(7)).repartition(2).count()
found = [spark.conf.get("spark.python.unix.domain.socket.enabled", "false"), rows]
"""
        found = found_by(code, tmp_path, sys.executable, users_environment())
    assert found == ["true" if length == 63 else "false", 7]


def test_configure_sets_for_spark_connect_what_shuffles_need_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other/python")
    builder = sortshuffle.configure(SparkSession.Builder().remote("sc://somewhere"))
    assert builder._options == {"spark.remote": "sc://somewhere", **NO_ROLLBACK}

    monkeypatch.setenv("SPARK_REMOTE", "sc://somewhere")
    assert sortshuffle.configure(SparkSession.Builder())._options == NO_ROLLBACK


def test_configure_leaves_the_choice_of_the_workers_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other/python")
    sortshuffle.configure(SparkSession.Builder().config(MANAGER, "off"))

    assert os.environ["PYSPARK_PYTHON"] == "/opt/other/python"


def test_a_configured_session_runs_workers_of_the_drivers_python_over_unix_sockets(tmp_path: Path) -> None:
    code = """
import sortshuffle
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = sortshuffle.configure(builder.config("spark.sortshuffle.manager", "off")).getOrCreate()
worker = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).first()
rows = sortshuffle.frame(spark.range(7)).repartition(2).count()
found = [worker, spark.conf.get("spark.python.unix.domain.socket.enabled"), rows]
"""
    assert found_by(code, tmp_path) == [sys.executable, "true", 7]


# --- the workers' Python --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter of this version that has no packages."""
    directory = tmp_path_factory.mktemp("bare")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=PATIENCE
    )
    return str(directory / "bin" / "python")


def test_workers_that_lack_the_package_are_named_on_the_driver_before_anything_runs(
    bare_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "nothing"
    directory.mkdir()
    code = f"""
import sortshuffle
from pyspark.sql import SparkSession
from sortshuffle.errors import WorkerSetupError
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sortshuffle.dir", {str(directory)!r})
found = []
frame = sortshuffle.frame(spark.range(5)).repartition(2, "id")
for action in (frame.toDF, frame.count, lambda: frame.write.parquet({str(directory / "out")!r})):
    try:
        action()
    except WorkerSetupError as error:
        found.append(str(error))
"""
    monkeypatch.chdir(tmp_path)  # where workers do not find the package
    told = found_by(code, tmp_path, bare_python, users_environment())

    assert len(told) == 3
    interpreter = f"{bare_python} ({sys.version.split()[0]})"
    for line in told:
        assert f"that Spark's workers run, {interpreter}, lacks pyarrow, numpy, xxhash, sortshuffle." in line
        assert "PYSPARK_PYTHON" in line
        assert line.endswith(sys.executable)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        (
            "cryptography/__init__.py",
            "raise ImportError('libssl.so.3 is not there')",
            "cannot encrypt files: this Python lacks the package cryptography, by which files are encrypted,"
            " or has one that does not work (libssl.so.3 is not there).",
        ),
        (
            "sortshuffle/__init__.py",
            # an editable installation would find what the package does not have
            "import sys\n__version__ = '0.0.1'\nsys.modules['sortshuffle.format.encryption'] = None",
            "cannot encrypt files: it has sortshuffle 0.0.1, and the driver has"
            f" {sortshuffle.__version__}: install that",
        ),
    ],
    ids=["a package that does not load", "an older release"],
)
def test_workers_that_cannot_encrypt_say_why(tmp_path: Path, module: str, text: str, said: str) -> None:
    file = tmp_path / "packages" / module
    file.parent.mkdir(parents=True)
    file.write_text(text)
    python = tmp_path / "python"
    path = f"{tmp_path}/packages:$PYTHONPATH"
    python.write_text(f'#!/bin/sh\nexec env PYTHONPATH={path} {sys.executable} "$@"\n')
    python.chmod(0o755)
    code = """
import sortshuffle
from pyspark.sql import SparkSession
from sortshuffle.errors import WorkerSetupError
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.io.encryption.enabled", "true").getOrCreate()
try:
    sortshuffle.frame(spark.range(5)).repartition(2, "id").count()
except WorkerSetupError as error:
    found = str(error)
"""
    told = found_by(code, tmp_path, str(python))
    version = sys.version.split()[0]
    assert told.startswith(f"the Python that Spark's workers run, {sys.executable} ({version}), {said}")


def test_workers_are_asked_once(spark: SparkSession) -> None:
    check_workers(spark.sparkContext)
    with jobs(spark) as run:
        check_workers(spark.sparkContext)
        check_workers(spark.newSession().sparkContext)

    assert run.ids == []


# --- settings -------------------------------------------------------------------------------------------


def test_files_that_are_not_encrypted_have_no_key(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match=r"spark\.io\.encryption\.enabled is not true"):
        sortshuffle.files_key(spark)


def test_a_setting_is_none_only_if_spark_does_not_know_it(spark: SparkSession) -> None:
    assert setting_of(spark, "no.such.setting") is None
    assert setting_of(spark, "spark.sql.caseSensitive") == "false"
    wrong: Any = 3
    with pytest.raises(PySparkTypeError):
        setting_of(spark, wrong)


def test_the_sparkcontext_says_whether_files_are_encrypted_and_no_session(spark: SparkSession) -> None:
    """As `builder.config(...).getOrCreate()` leaves a session beside a SparkContext that runs."""
    other = spark.newSession()
    state = other._jsparkSession.sessionState().conf()  # type: ignore[attr-defined]
    state.setConfString("spark.io.encryption.enabled", "true")
    assert settings_of(other)["spark.io.encryption.enabled"] == "true"
    assert FrameContext.of(other).services.key is None
    with pytest.raises(UsageError, match=r"spark\.io\.encryption\.enabled is not true"):
        sortshuffle.files_key(other)


def test_options_are_those_of_the_session_at_that_moment(spark: SparkSession) -> None:
    before = Options.of(settings_of(spark))
    with confs(spark, {"spark.sortshuffle.memory": "32m", "spark.sortshuffle.codec": "ZSTD"}):
        within = Options.of(settings_of(spark))
        assert Options.of(settings_of(spark.newSession())) == before

    assert (within.memory, within.codec) == (32 * MIB, "zstd")
    assert Options.of(settings_of(spark)) == before
    assert before.memory != within.memory


def test_functions_that_a_sparkcontext_profiles_are_left_to_spark(tmp_path: Path) -> None:
    code = f"""
import sortshuffle
from pyspark.sql import SparkSession
def seen(group):
    return group
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.python.profile", "true").config("spark.sortshuffle.manager", "off")
builder.config("spark.python.profile.dump", "{tmp_path}/profiles")  # else they are printed at the end
spark = sortshuffle.session(builder)
groups = spark.range(3).groupBy("id").applyInPandas(seen, "id long")
rows = groups.count()
profiles = [each.stats() for _, each, _ in spark.sparkContext.profiler_collector.profilers]
names = [name for each in profiles if each for _, _, name in each.stats]
found = [groups._is_in_python, rows, "seen" in names]
"""
    assert found_by(code, tmp_path, sys.executable, users_environment()) == [False, 3, True]


# --- public names ---------------------------------------------------------------------------------------


IMPORTS = [
    "pass",
    "import sortshuffle.reading.gate",
    "import sortshuffle.spark.frame.shuffle_frame",
    "sortshuffle.frame",
]


@pytest.mark.parametrize("imports", IMPORTS)
def test_public_names_are_there_whatever_was_imported_before(imports: str) -> None:
    # `read` is a function of the package and also the name of a subpackage, which importing would bind
    code = f"""
import sortshuffle
{imports}
from sortshuffle.reading.gate import InputGate
from sortshuffle import read
for name in sortshuffle.__all__:
    print(name, type(getattr(sortshuffle, name)).__name__)
print(read is sortshuffle.read, InputGate.__module__)
"""
    assert run(code).splitlines() == [
        "ShuffleFrame type",
        "ShuffleRDD type",
        "__version__ str",
        "broadcast function",
        "configure function",
        "files_key function",
        "frame function",
        "rdd function",
        "read function",
        "register function",
        "serve function",
        "session function",
        "True sortshuffle.reading.gate",
    ]


# --- a session that was stopped -------------------------------------------------------------------------

AFTER_STOP = """
from pyspark.sql import SparkSession
import sortshuffle
from sortshuffle.errors import StateError

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.range(4)
frame = sortshuffle.frame(df)
ran = frame.repartition(2, "id")
assert ran.count() == 4
pairs = sortshuffle.rdd(spark.sparkContext.parallelize([(1, 2)], 1))
plain = spark.sparkContext.parallelize([(1, 2)], 1)
spark.stop()
calls = {
    "count": ran.count,
    "toDF": ran.toDF,
    "collect": frame.repartition(3, "id").collect,
    "sort": lambda: frame.sort("id").count(),
    "groupBy": lambda: frame.groupBy("id").count(),
    "frame": lambda: sortshuffle.frame(df),
    "read": lambda: sortshuffle.read(spark),
    "rdd": lambda: sortshuffle.rdd(plain),
    "partitionBy": lambda: pairs.partitionBy(2).collect(),
}
found = {}
for name, call in calls.items():
    try:
        call()
        found[name] = "nothing"
    except StateError as error:
        found[name] = str(error)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"[:300]
"""


def test_after_the_stop_of_a_session_everything_says_so(tmp_path: Path) -> None:
    said = found_by(AFTER_STOP, tmp_path, sys.executable)
    assert {
        name for name, text in said.items() if "the SparkContext has been stopped" not in text
    } == set(), said
