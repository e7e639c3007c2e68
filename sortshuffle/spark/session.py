"""What a frame needs of a session before it runs anything: options, and workers that can run it.

Everything here runs on the driver and fails there, at the call that needed it.
"""

from __future__ import annotations

import os
import sys
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from sortshuffle.errors import UnsupportedError, WorkerSetupError
from sortshuffle.options import Options

NEEDED_MODULES = ("pyarrow", "numpy", "xxhash", "sortshuffle")
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
# How long pyarrow's allocator keeps freed memory before it gives it back to the system, milliseconds. A task
# frees and takes a region's memory again and again; with the default of 10 ms every page is faulted in anew.
# The engine, 1 GB, 64 subpartitions, two warm runs each: 40,000 to 55,000 page faults against 600 to 4,400,
# 0.2 s of encoding against 0.1 s; the whole 1.8 to 2.0 s against 1.8 s, because writing outweighs it.
ALLOCATOR_VARIABLE, ALLOCATOR_DELAY = "MIMALLOC_PURGE_DELAY", "3000"

_checked: WeakKeyDictionary[SparkContext, bool] = WeakKeyDictionary()


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Settings that make Python stages quick, for a session that is about to be created:

    * Unix sockets between the JVM and Python workers (Spark 4.1+): a Python task over loopback TCP costs
      some 26 ms of latency, over a Unix socket about 5 ms;
    * the workers run the driver's Python, unless ``PYSPARK_PYTHON`` names another: Spark would take the
      first ``python3`` on the path. It reads that variable, and no setting, when a session is created from
      Python, so this sets the variable;
    * the workers' allocator keeps freed memory for some seconds instead of milliseconds.

    Returns the builder. Everything else works without it.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    environment = f"spark.executorEnv.{ALLOCATOR_VARIABLE}"
    return builder.config(UNIX_SOCKETS, "true").config(environment, ALLOCATOR_DELAY)


def require_classic(spark: Any) -> SparkSession:
    """The session, if it has a JVM to reach. Raises `UnsupportedError` for Spark Connect."""
    if not hasattr(spark, "_jsparkSession"):
        raise UnsupportedError(
            "a Spark Connect session has no JVM that this release could reach: use a classic session"
            " (SparkSession.builder.master(...) or spark-submit)"
        )
    session: SparkSession = spark
    return session


def options_of(spark: SparkSession) -> Options:
    """The ``spark.sortshuffle.*`` settings of the session now. Raises `OptionError`."""
    settings: Any = spark.conf.getAll
    return Options.of(settings)


def check_workers(context: SparkContext) -> None:
    """Raise `WorkerSetupError` unless the workers' Python has what the stages import.

    Asks one worker, by a job of one task, once for each SparkContext.
    """
    if context in _checked:
        return
    executable, version, missing = context.parallelize([0], 1).mapPartitions(_probe()).collect()
    if missing:
        raise WorkerSetupError(
            f"the Python that Spark's workers run, {executable} ({version}), lacks {', '.join(missing)}."
            f" Install sortshuffle there, or set the environment variable PYSPARK_PYTHON, before the session"
            f" is created, to an interpreter that has it, such as the driver's own, {sys.executable}"
        )
    _checked[context] = True


def _probe() -> Any:
    """A function that is pickled whole: the workers may not have this module, which is the question."""

    def probe(_: Any) -> Any:
        import importlib.util
        import sys

        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        return [sys.executable, sys.version.split()[0], missing]

    modules = NEEDED_MODULES
    probe.__module__ = "__main__"
    return probe
