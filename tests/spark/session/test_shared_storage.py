"""Jobs that shuffle through storage that every host sees, with Spark's own results; and that the driver
leaves nothing behind there or on local disks, however it ends."""

from __future__ import annotations

import fnmatch
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine import ENVIRONMENT, Pair, eventually, printed, write_pair
from job_process import run_job
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, sum
from s3_server import S3Server
from stores import Store, s3_fixture, store_of  # noqa: F401

import sortshuffle
from sortshuffle.errors import OptionError
from sortshuffle.options import PREFIX, Options
from sortshuffle.spark.session import shared_storage
from sortshuffle.storage.files.urls import application_of

DIR = f"{PREFIX}dir"


@pytest.fixture(params=["s3", "file"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server, spark: SparkSession
) -> Iterator[Store]:
    """Storage that the session's frames write to. Workers find the server as a user's would: by variables."""
    with store_of(request.param, tmp_path, s3) as store:
        spark.conf.set(DIR, store.root)
        yield store
        spark.conf.unset(DIR)
        # the session outlives this store
        shared_storage._remains[spark.sparkContext.applicationId, os.getpid()]._kept.pop(store.root, None)


@pytest.fixture(autouse=True)
def workers_environment(spark: SparkSession, s3: S3Server) -> Iterator[None]:
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update(s3.environment)
    yield
    environment.clear()
    environment.update(before)


def names_of(store: Store, spark: SparkSession) -> list[str]:
    application = spark.sparkContext.applicationId
    return [name for name in store.names() if application_of(name.split("/")[0]) == application]


def test_frames(spark: SparkSession, root: Store) -> None:
    df = spark.range(5000).select("id", (col("id") % 7).alias("key"), col("id").cast("string").alias("text"))
    frame = sortshuffle.frame(df)
    exchanged = frame.repartition(6, "key")
    assert sorted(map(tuple, exchanged.collect())) == sorted(map(tuple, df.collect()))
    names = names_of(root, spark)
    assert names
    assert {name.rpartition(".")[2] for name in names} == {"data", "index"}
    grouped = frame.groupBy("key").agg(sum("id"), count("*"))
    assert sorted(map(tuple, grouped.collect())) == sorted(
        map(tuple, df.groupBy("key").agg(sum("id"), count("*")).collect())
    )


def test_a_merge_of_sorted_runs(spark: SparkSession, root: Store) -> None:
    df = spark.range(4000).select("id", (col("id") * 31 % 100).alias("key"))

    def span(key: tuple[int], rows: object) -> object:
        import pandas as pd

        assert isinstance(rows, pd.DataFrame)
        return pd.DataFrame({"key": [key[0]], "least": [rows["id"].min()], "rows": [len(rows)]})

    schema = "key long, least long, rows long"
    found = sortshuffle.frame(df).groupBy("key").applyInPandas(span, schema).collect()
    expected = df.groupBy("key").applyInPandas(span, schema).collect()
    assert sorted(map(tuple, found)) == sorted(map(tuple, expected))
    ordered = sortshuffle.frame(df).sort("key", "id").collect()
    assert list(map(tuple, ordered)) == list(map(tuple, df.sort("key", "id").collect()))


def test_rdds(spark: SparkSession, root: Store) -> None:
    pairs = spark.sparkContext.parallelize([(n % 11, n) for n in range(3000)], 3)
    found = sortshuffle.rdd(pairs).groupByKey(4).mapValues(sorted).collect()
    expected = pairs.groupByKey(4).mapValues(sorted).collect()
    assert sorted(found) == sorted(expected)
    assert names_of(root, spark)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s4://bucket/prefix", "fsspec knows no storage s4://"),
        ("memory://prefix", "no other process sees that"),
        ("https://host/prefix", "nothing can be written there"),
    ],
)
def test_storage_that_tasks_cannot_share_is_refused_on_the_driver(
    spark: SparkSession, url: str, why: str
) -> None:
    spark.conf.set(DIR, url)
    try:
        with pytest.raises(OptionError, match=why):
            sortshuffle.frame(spark.range(3))
        with pytest.raises(OptionError, match=why):
            sortshuffle.rdd(spark.sparkContext.parallelize([(1, 2)])).partitionBy(2).toRDD()
    finally:
        spark.conf.unset(DIR)


# The end of the application, which has files in such storage and on a local disk

WRITE = """
import os, signal, sys, threading
import fsspec, sortshuffle
from pyspark.sql import SparkSession

url, kept, local, store = {arguments}
os.environ.update(store)
spark = (
    sortshuffle.configure(SparkSession.builder).master("local[2]").config("spark.ui.enabled", "false")
    .config(map={{f"spark.executorEnv.{{name}}": value for name, value in store.items()}})
    .config("spark.local.dir", f"{{local}}/spark").getOrCreate()
)
def job(directory):
    spark.conf.set("spark.sortshuffle.dir", directory)
    frame = sortshuffle.frame(spark.range(100)).repartition(3, "id")
    assert frame.count() == 100
    return frame
def files(url):
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()
    return filesystem.find(path)
held = job(local)
frame = job(url)
# Spark's own files are below the local directory, too
counted = [sum("/exchange-" in name for name in files(each)) for each in (local, url)]
assert all(counted), counted
"""
STOP = """
import json
for name in files(url):
    if name.endswith(".data"):
        fsspec.core.url_to_fs(url)[0].rm_file(name)
try:
    frame.collect()
except Exception as error:
    assert "MissingDataError" in str(error), error
else:
    raise AssertionError
rows = len(frame.collect())  # with one attempt for each task: it is the next action that can
spark.conf.set("spark.sortshuffle.keep", "true")
job(kept)
spark.stop()
print(json.dumps({"rows": rows, "left": files(url), "kept": len(files(kept))}))
"""
FORK = """
from sortshuffle.spark.session.application_end import _is_made_here
before = files(url)
assert _is_made_here(spark.sparkContext)
child = os.fork()
if not child:
    assert not _is_made_here(spark.sparkContext)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert files(url) == before
assert len(frame.collect()) == 100
"""
ENDINGS = {
    "exit": "",
    "exception": "raise ZeroDivisionError",
    # a shell that starts the tests in its background has it ignored
    "interrupt": "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "os.killpg(0, signal.SIGINT); threading.Event().wait()",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    # a handler of the user's runs before this package's. Without the cache it must resolve the store's name
    "handler": "import atexit; atexit.register(spark.stop)\n"
    "fsspec.core.url_to_fs(url)[0].clear_instance_cache()",
    "fork": FORK,
}


@dataclass(frozen=True)
class Ended:
    """A job that has ended. ``left``: names in its storage. ``local``: its local disk."""

    store: Store
    local: Path
    said: str
    code: int
    left: list[str]


def program(store: Store, directory: Path, server: S3Server, ending: str) -> str:
    # by name, because resolving names is what a Python that exits no longer does
    endpoint = server.environment["AWS_ENDPOINT_URL_S3"].replace("127.0.0.1", "localhost")
    environment = {**server.environment, "AWS_ENDPOINT_URL_S3": endpoint}
    arguments = (store.root, f"file://{directory}/kept", str(directory / "local"), environment)
    return WRITE.format(arguments=arguments) + ending


def end(kind: str, directory: Path, server: S3Server, ending: str) -> Ended:
    directory.mkdir()
    with store_of(kind, directory, server) as store:
        done = subprocess.run(
            [sys.executable, "-c", program(store, directory, server, ending)],
            env=ENVIRONMENT,
            text=True,
            capture_output=True,
            timeout=180,
            check=False,
            start_new_session=True,
        )
        return Ended(store, directory / "local", done.stderr, done.returncode, store.names())


@pytest.fixture(scope="module")
def ended(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Each is an application with a driver of its own, and takes some seconds: all at once."""
    on_disk = ("interrupt", "kill", "fork")
    directory = tmp_path_factory.mktemp("jobs")
    with ThreadPoolExecutor(len(ENDINGS)) as pool:
        running = {
            name: pool.submit(end, "file" if name in on_disk else "s3", directory / name, s3, ending)
            for name, ending in ENDINGS.items()
        }
        return {name: job.result() for name, job in running.items()}


@pytest.fixture(scope="module")
def stopped(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an application found that lost its files, and then stopped; and its directory."""
    directory = tmp_path_factory.mktemp("stopped")
    job = directory / "job.py"
    with store_of("s3", directory, s3) as store:
        job.write_text(program(store, directory, s3, STOP))
        return {**run_job(job), "names": store.names(), "directory": directory}


def local_files(directory: Path) -> list[str]:
    return [name for _, _, names in os.walk(directory) for name in fnmatch.filter(names, "exchange-*")]


def janitors(directory: Path) -> list[int]:
    """Processes that tidy homes below a directory."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if b"sortshuffle.homes.janitor" in command and str(directory).encode() in command:
            found.append(int(entry))
    return found


def nothing_is_left_on(directory: Path) -> None:
    eventually(lambda: not local_files(directory), "the files go with the application", 60.0)
    eventually(lambda: not janitors(directory), "the janitor ends", 60.0)


CODES = {"exception": 1, "interrupt": -signal.SIGINT, "kill": -signal.SIGKILL}  # others: 0


def assert_ended_as_told(ended: Ended, ending: str) -> None:
    """And by nothing else, after it had seen its files."""
    assert ended.code == CODES.get(ending, 0), ended.said
    assert ("ZeroDivisionError" in ended.said) == (ending == "exception"), ended.said


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left_on_local_disks_however_the_application_ends(
    ended: dict[str, Ended], ending: str
) -> None:
    job = ended[ending]
    assert_ended_as_told(job, ending)
    nothing_is_left_on(job.local)


def test_nothing_is_left_on_local_disks_while_the_driver_goes_on(stopped: dict[str, Any]) -> None:
    nothing_is_left_on(stopped["directory"] / "local")


@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending != "kill"])
def test_a_driver_that_ends_leaves_nothing(ended: dict[str, Ended], ending: str) -> None:
    job = ended[ending]
    assert_ended_as_told(job, ending)
    assert "are left below" not in job.said
    assert job.left == []


def test_map_tasks_run_again_whose_outputs_are_lost(stopped: dict[str, Any]) -> None:
    assert stopped["rows"] == 100


def test_where_the_driver_cannot_reach_the_storage_it_warns(spark: SparkSession) -> None:
    """It need not have the library of a store that only the workers use."""
    context = SimpleNamespace(applicationId="nobody", _jsc=object(), stopped=0)
    context.stop = lambda: setattr(context, "stopped", context.stopped + 1)
    shared_storage.note_use(context, Options(directories=("gs://bucket/prefix",)), "nobody")  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="clean gs://bucket/prefix --application nobody-[0-9a-f]{32}"):
        context.stop()
    context.stop()
    assert context.stopped == 2


def test_drivers_of_one_application_id_share_no_directory(tmp_path: Path) -> None:
    """The masters of two clusters count alike, and name applications by the second."""
    root = f"file://{tmp_path}"
    options = Options(directories=(root,))
    stopped = SimpleNamespace(_jsc=object(), stop=lambda: None)
    ours = shared_storage.note_use(stopped, options, "app-20261122-0000").storage_url  # type: ignore[arg-type]
    use = f"shared_storage.note_use(None, Options(directories=({root!r},)), 'app-20261122-0000').storage_url"
    modules = "from sortshuffle.options import Options; from sortshuffle.spark.session import shared_storage"
    (theirs,) = printed(f"{modules}; print({use})")
    for directory in (ours, theirs):
        write_pair(directory, Pair(2))
    assert shared_storage.note_use(None, options, "app-20261122-0000").storage_url == ours
    stopped.stop()
    assert os.listdir(tmp_path) == [os.path.basename(theirs)]


FORKED = """
import multiprocessing, os, socketserver, sys, threading
from types import SimpleNamespace
from sortshuffle.options import Options
from sortshuffle.spark.session import shared_storage

directory, kind, first, does, ends = sys.argv[1:]

def use():
    used = shared_storage.note_use(context, Options(directories=(f"file://{directory}",)), "app")
    os.makedirs(used.storage_url.removeprefix("file://"))

def child():
    if does == "uses":
        before = len(os.listdir(directory))
        use()
        assert len(os.listdir(directory)) == before + 1
    if ends == "stops":
        context.stop()

# as a SparkContext has one
server = socketserver.TCPServer(("localhost", 0), socketserver.BaseRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
context = SimpleNamespace(
    _jsc=object(), _accumulatorServer=server, stop=lambda: print("stopped", flush=True)
)
if first == "parent":
    use()
if kind == "multiprocessing":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
else:
    number = os.fork()
    if not number:
        child()
        sys.exit()
    assert os.waitpid(number, 0)[1] == 0
if first == "child":
    use()
print(len(os.listdir(directory)), flush=True)
context.stop()
print(len(os.listdir(directory)))
"""


@pytest.mark.parametrize("ends", ["stops", "exits"])
@pytest.mark.parametrize("does", ["uses", "idles"])
@pytest.mark.parametrize("first", ["parent", "child"])
@pytest.mark.parametrize("kind", ["os.fork", "multiprocessing"])
def test_a_forked_process_removes_only_its_own_and_stops_only_if_told(
    tmp_path: Path, kind: str, first: str, does: str, ends: str
) -> None:
    by_child = ["stopped"] if ends == "stops" else []
    assert printed(FORKED, str(tmp_path), kind, first, does, ends) == [*by_child, "1", "stopped", "0"]


def test_a_session_that_stops_leaves_what_is_to_be_kept(stopped: dict[str, Any]) -> None:
    kept = Store(f"file://{stopped['directory']}/kept")
    assert stopped["left"] == stopped["names"] == []
    assert stopped["kept"] == len(kept.names()) > 0


def test_a_killed_driver_leaves_it_to_clean(ended: dict[str, Ended]) -> None:
    job = ended["kill"]
    (application,) = {name.split("/")[0] for name in job.left}
    root = job.store.root
    command = [sys.executable, "-m", "sortshuffle.cli.main", "clean", root, "--application", application]
    said = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=60, check=True)
    assert "Removed 1 application" in said.stdout
    assert os.listdir(root.removeprefix("file://")) == []
