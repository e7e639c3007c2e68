"""Runs the programs of `job_process.run_job` one after another, in a process whose JVM stays.

    python job_server.py DESCRIPTOR STARTER        of a socket that listens; the process to end with

Each connection is one program: a line of JSON asks for it, a line answers. Each makes a SparkContext of its
own, or several, and stops it. The JVM is PySpark's, which uses the one that there is: starting it is most of
what a short job costs.
"""

from __future__ import annotations

import gc
import io
import json
import os
import runpy
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import SparkContext, cloudpickle

POLL_SECONDS = 1.0  # seconds between looks for the process that started this one
PATIENCE = 10.0  # seconds, for what ends by itself


# ---- one program -------------------------------------------------------------------------------------------


def run(path: str, arguments: list[str], environment: dict[str, str]) -> dict[str, str]:
    """What it printed, or how it failed."""
    printed = io.StringIO()
    before = set(threading.enumerate())
    try:
        log_as_at_first()
        with as_a_program(path, arguments, environment), redirect_stdout(printed):
            runpy.run_path(path, run_name="__main__")
        check_nothing_stays(before)
    except BaseException:
        return {"error": traceback.format_exc()}
    return {"printed": printed.getvalue()}


@contextmanager
def as_a_program(path: str, arguments: list[str], environment: dict[str, str]) -> Iterator[None]:
    """What a program finds in its process, and may change."""
    own, argv, search, modules = dict(os.environ), sys.argv, list(sys.path), set(sys.modules)
    directory = Path(path).parent
    sys.argv, sys.path[0] = [path, *arguments], str(directory)
    set_environment(environment)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, search
        set_environment(own)
        forget_modules(sys.modules.keys() - modules, directory)
        gc.collect()
        forget_local_directories()


def set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def forget_modules(names: set[str], directory: Path) -> None:
    """The next program may have others of the same names beside it."""
    for name in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.unregister_pickle_by_value(ModuleType(name))
    for name in names:
        if directory in Path(getattr(sys.modules[name], "__file__", None) or os.sep).parents:
            del sys.modules[name]


def forget_local_directories() -> None:
    """Spark asks for spark.local.dir once in a JVM, but for tests of its own."""
    if jvm := java():
        utilities = getattr(jvm.org.apache.spark.util, "Utils$")
        getattr(utilities, "MODULE$").clearLocalRootDirs()


def log_as_at_first() -> None:
    """The level that a program sets is the JVM's."""
    if jvm := java():
        jvm.org.apache.spark.util.Utils.setLogLevel(jvm.org.apache.logging.log4j.Level.WARN)


def java() -> Any:
    """None in tests that start no JVM."""
    return SparkContext._jvm


def check_nothing_stays(before: set[threading.Thread]) -> None:
    """As where a process ends, threads that are no daemons are waited for."""
    assert SparkContext._active_spark_context is None, "the job has not stopped its SparkContext"
    until = time.monotonic() + PATIENCE
    threads = [each for each in threading.enumerate() if each not in before and not each.daemon]
    for each in threads:
        each.join(max(0.0, until - time.monotonic()))
    running = [each.name for each in threads if each.is_alive()]
    assert not running, f"the job has left threads that run: {running}"


# ---- the process -------------------------------------------------------------------------------------------


def end_with(starter: int, directory: str) -> None:
    """Whatever a job does. The JVM and its executors are in this process's group."""
    while os.getppid() == starter:
        time.sleep(POLL_SECONDS)
    try:
        if gateway := SparkContext._gateway:
            gateway.proc.terminate()  # which stops its SparkContext, and so its executors
            gateway.proc.wait(PATIENCE)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)


def serve(listening: socket.socket) -> None:
    while True:
        connection, _ = listening.accept()
        # who asked may have ended: then `end_with` ends this process, when it has cleared away
        with suppress(ConnectionError), connection, connection.makefile("rw") as stream:
            if line := stream.readline():
                print(json.dumps(run(**json.loads(line))), file=stream)


def main(descriptor: str, starter: str) -> None:
    threading.Thread(target=end_with, args=(int(starter), os.getcwd()), daemon=True).start()
    # now, because the settings of the application that starts the JVM would be defaults for all
    SparkContext._ensure_initialized()
    serve(socket.socket(fileno=int(descriptor)))


if __name__ == "__main__":
    main(*sys.argv[1:])
