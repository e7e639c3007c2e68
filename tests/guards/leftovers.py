"""A file of tests leaves no descriptor, thread or process behind, or its last test fails with what it was.

What is there is looked at before a file's first test, and after its fixtures have ended. Processes are known
by a variable that all inherit whom this pytest starts, whatever they detach themselves from.

What all files share stays, and is known below. While the session of the fixture `spark` lives, its JVM and
what belongs to its application are no leftovers; nor is a Python worker of the JVM whose daemon has ended.
Sockets, pipes and threads of this process are none either: PySpark keeps some for each thread and each
collected result.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import fsspec.asyn
import psutil
import pytest

GONE_S = 15.0  # in which what is ending must have ended: janitors and supervisors look round once a second
WORKER = "daemon pyspark.worker"
"""How the command line of a Python worker ends, and that of its daemon, which is Spark's or ours."""
JVM = " pyspark-shell"  # how its command line ends
STARTED_AS = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""A JVM that PySpark starts has its own value of this variable. Its Python workers inherit it."""
EXECUTOR = "SPARK_EXECUTOR_DIRS"
"""An executor that a driver or a worker of Spark starts has this variable. Its Python workers inherit it."""
LOOK_S = 0.05
MARK = "SORTSHUFFLE_TEST_RUN"
PY_SPY = Path(sys.executable).with_name("py-spy")

MOTO = f"{tempfile.gettempdir()}/#"
"""Its S3 server runs in this process and keeps large objects in files without a name, until it is reset."""
FONTS = "/mpl-data/fonts/"
"""matplotlib keeps the fonts open that it has drawn with."""
SHARED_THREADS = {
    "fsspecIO": "fsspec has one event loop for all file systems of a process",
    "asyncio_": "with threads that look names up",
}
SHARED_PROCESSES = {
    "org.apache.spark.deploy.master.Master": "of the cluster of tests/spark/cluster, which its files share",
    "org.apache.spark.deploy.worker.Worker": "the same",
    "/job_server.py": "runs the jobs of all files, with a JVM, which is known by its parent",
}
"""How names begin, or words of a command line, and why they may stay."""


@dataclass(frozen=True, slots=True)
class SharedSpark:
    """The JVM of the fixture `spark`, and the application that runs in it, if one does."""

    jvm: int
    application: str


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds, by what tells one from another, with words for each."""

    descriptors: dict[str, str]
    threads: dict[int, str]
    processes: dict[tuple[int, float], str]

    def beyond(self, before: Held) -> list[str]:
        return [
            *(text for key, text in self.descriptors.items() if key not in before.descriptors),
            *(text for key, text in self.threads.items() if key not in before.threads),
            *(text for key, text in self.processes.items() if key not in before.processes),
        ]


def held() -> Held:
    spark = shared_spark()
    return Held(descriptors(spark), threads(spark), processes(spark))


def shared_spark() -> SharedSpark | None:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    jvm = getattr(SparkContext._gateway, "proc", None)  # which outlives the session
    return SharedSpark(jvm.pid, str(context.applicationId) if context else "") if jvm else None


def descriptors(spark: SharedSpark | None) -> dict[str, str]:
    found = {}
    for number in set(os.listdir("/proc/self/fd")) - {"0", "1", "2"}:  # which pytest exchanges as it captures
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the listing's own
            continue
        if target.startswith(MOTO) or FONTS in target:
            continue
        if spark is None or not target.startswith(("socket:", "pipe:")):
            # sockets and pipes have numbers of their own; a file may be opened again
            key = target if target.startswith(("socket:", "pipe:")) else f"{number} {target}"
            found[key] = f"descriptor {number}: {target}"
    return found


def threads(spark: SharedSpark | None) -> dict[int, str]:
    if spark is not None:
        return {}
    own = (each for each in threading.enumerate() if not each.name.startswith(tuple(SHARED_THREADS)))
    return {id(each): str(each) for each in own}


def processes(spark: SharedSpark | None) -> dict[tuple[int, float], str]:
    found = {}
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.environ().get(MARK) != str(os.getpid()):
                continue
            command = command_of(process)
            if command and not may_stay(spark, process, command):
                owner = jvm_of_orphan(process, command)
                if owner is None or not may_stay(spark, owner, command_of(owner)):
                    found[process.pid, process.create_time()] = f"process {process.pid}: {command[-200:]}"
        except psutil.Error as error:
            if error.pid != process.pid:  # of another process, which has ended: the next look decides
                found[process.pid, 0.0] = f"process {process.pid}"
    return found


def command_of(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def may_stay(spark: SharedSpark | None, process: psutil.Process, command: str) -> bool:
    return is_shared(process, command) or (spark is not None and belongs_to(spark, process, command))


def jvm_of_orphan(process: psutil.Process, command: str) -> psutil.Process | None:
    """Return the JVM that keeps a Python worker without a daemon, known by the environment that the worker
    has from it. Return None if the process is no such worker, or if the JVM has ended.

    Spark 4.3 leaves such a worker when a task is interrupted while the worker starts: it takes the interrupt
    for a timeout, ends the daemon, and keeps its own end of the new worker's socket open as long as it lives.
    An executor's worker has the driver's environment, too, but ends with the executor.
    """
    if not command.endswith(WORKER) or EXECUTOR in process.environ():
        return None
    if any(each.name() == "java" for each in process.parents()):  # it has a daemon
        return None
    return next((each for each in psutil.process_iter() if is_jvm_of(process, each)), None)


def is_jvm_of(worker: psutil.Process, process: psutil.Process) -> bool:
    try:
        is_jvm = command_of(process).endswith(JVM)
        return is_jvm and process.environ().get(STARTED_AS) == worker.environ()[STARTED_AS]
    except (psutil.Error, KeyError):
        return False


def is_shared(process: psutil.Process, command: str) -> bool:
    if command.endswith(JVM):  # of a Python process
        parent = process.parent()
        command = command_of(parent) if parent else ""
    return any(word in command for word in SHARED_PROCESSES)


def belongs_to(spark: SharedSpark, process: psutil.Process, command: str) -> bool:
    is_named = spark.application and spark.application in command
    return bool(is_named or spark.jvm in (process.pid, *(p.pid for p in process.parents())))


class Guard:
    """Of the file whose tests run."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._before = Held({}, {}, {})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.path != self._path:
            self._path, self._before = item.path, held()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                getattr(item, "funcargs", {}).clear()  # they keep what the last test's fixtures have opened
                left = settled(self._before)
                assert not left, "left behind:\n" + "\n".join([*left, *stacks(self._before)])


def settled(before: Held) -> list[str]:
    """What is left when all has gone that goes by itself."""
    started = time.monotonic()
    gc.collect()
    while (left := held().beyond(before)) and time.monotonic() < started + GONE_S:
        time.sleep(LOOK_S)
        gc.collect()
    return left


def stacks(before: Held) -> list[str]:
    """Where the threads of the Python processes are that are left. Of other processes it says nothing."""
    left = [pid for pid, _ in processes(shared_spark()).keys() - before.processes.keys()]
    spies = [[str(PY_SPY), "dump", "--pid", str(pid)] for pid in left]
    return [subprocess.run(spy, capture_output=True, text=True, check=False).stdout for spy in spies]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Guard())
    os.environ[MARK] = str(os.getpid())
    fsspec.asyn.get_loop()  # whose descriptors are there before the first file's, then
