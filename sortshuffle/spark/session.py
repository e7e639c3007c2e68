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

from sortshuffle.errors import UsageError, WorkerSetupError
from sortshuffle.options import Options
from sortshuffle.spark.manager.choice import begins_connect_server, turn_on
from sortshuffle.spark.versions import at_least
from sortshuffle.storage.environment import ALLOCATOR_DELAY, ALLOCATOR_VARIABLE

NEEDED_MODULES = ("pyarrow", "numpy", "xxhash", "sortshuffle")
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
NO_ROLLBACK = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""Whether Spark 4.1+ takes other bytes of a map task that ran again for other rows, and gives up. Control
rows are other bytes each time."""

_checked: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Turns on the shuffle manager (`docs/manager.md`) for a session that is about to be created, unless
    ``spark.sortshuffle.manager`` says otherwise or something speaks against it, which the log then says.

    Sets besides what makes Python stages quick:

    * Unix sockets between the JVM and Python workers (Spark 4.1+): a Python task over loopback TCP costs
      some 26 ms of latency, over a Unix socket about 5 ms;
    * the workers run the driver's Python, unless ``PYSPARK_PYTHON`` names another: Spark would take the
      first ``python3`` on the path. It reads that variable, and no setting, when a session is created from
      Python, so this sets the variable;
    * the workers' allocator keeps freed memory for some seconds instead of milliseconds.

    What is set in the builder before is taken into account: its plugins, jars and class path stay. Set those
    before, because a setting that the builder gets afterwards takes the place of this one's. Frames and RDDs
    work without all this. For a builder of a Spark Connect session, after ``remote(...)``, it sets
    what shuffles need of such a session; the rest is set where the server is started, with the lines that
    ``sortshuffle conf`` prints. Returns the builder.

    Raises `UsageError` where ``spark.sortshuffle.manager`` is ``on`` and the manager cannot be, `OptionError`
    for a setting of this package that is not allowed. Where the manager is ``off``, and where a SparkContext
    runs already, only ``spark.sortshuffle.manager`` itself is checked here; a frame checks the others.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # over Connect for a server in this machine alone
    if "spark.remote" in builder._options or "SPARK_REMOTE" in os.environ:
        return builder.config(NO_ROLLBACK, "false")
    if begins_connect_server(builder._options):
        builder.config(NO_ROLLBACK, "false")
    turn_on(builder)
    environment = f"spark.executorEnv.{ALLOCATOR_VARIABLE}"
    return builder.config(UNIX_SOCKETS, "true").config(environment, ALLOCATOR_DELAY)


def require_session(spark: Any) -> SparkSession:
    """``spark``, if it is a session, classic or Spark Connect's. Raises `UsageError`."""
    # what has a JVM is no class of Connect's, whose sessions are no subclass of PySpark's
    if not is_classic(spark) and not (hasattr(spark, "conf") and hasattr(spark, "createDataFrame")):
        raise UsageError(f"a SparkSession is needed, not {type(spark).__name__}")
    session: SparkSession = spark
    return session


def is_classic(spark: Any) -> bool:
    """Whether a session has a JVM to reach; over Spark Connect there is none."""
    return hasattr(spark, "_jsparkSession")


def application_of(spark: SparkSession) -> str:
    """The application's id, as its tasks know it."""
    if is_classic(spark):
        return str(spark.sparkContext.applicationId)
    return str(spark.conf.get("spark.app.id"))  # as the server's context has set it


def check_no_rollback(spark: SparkSession) -> None:
    """Raise `UsageError` unless map tasks of this session may return other control rows when they run again.

    In a classic session the planner sees to it.
    """
    if not at_least(spark, "4.1"):
        return  # which does not compare them
    value = str(spark.conf.get(NO_ROLLBACK)).lower()
    if value != "false":
        raise UsageError(
            f"over Spark Connect a shuffle needs the setting {NO_ROLLBACK} to be false, and it is {value}:"
            " map tasks that run again, after an executor was lost, return other control rows, and Spark"
            f' would end the job. Set it with spark.conf.set("{NO_ROLLBACK}", "false"), or make the session'
            " with sortshuffle.configure(SparkSession.builder.remote(...))"
        )


def settings_of(spark: SparkSession) -> dict[str, str]:
    """All settings of the session now, those of its application among them."""
    settings: Any = spark.conf.getAll
    return dict(settings)


def options_of(spark: SparkSession) -> Options:
    """The ``spark.sortshuffle.*`` settings of the session now. Raises `OptionError`."""
    return Options.of(settings_of(spark))


def check_workers(spark: SparkSession | SparkContext) -> None:
    """Raise `WorkerSetupError` unless the workers' Python has what the stages import.

    Asks one worker, by a job of one task, once for each SparkContext or, over Spark Connect, session.
    """
    # of the same context, sessions have the same workers
    asked: Any = spark.sparkContext if is_classic(spark) else spark
    if asked in _checked:
        return
    if isinstance(asked, SparkContext):
        executable, version, missing = asked.parallelize([0], 1).mapPartitions(_probe()).collect()
    else:
        columns = "executable string, version string, missing array<string>"
        one = asked.range(0, 1, 1, 1)  # in one partition: of several, Spark 4.1 shuffles the first row
        executable, version, missing = one.mapInArrow(_arrow_probe(_probe()), columns).first()
    if missing:
        raise WorkerSetupError(
            f"the Python that Spark's workers run, {executable} ({version}), lacks {', '.join(missing)}."
            f" Install sortshuffle there, or set the environment variable PYSPARK_PYTHON, before the session"
            f" is created, to an interpreter that has it, such as the driver's own, {sys.executable}"
        )
    _checked[asked] = True


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


def _arrow_probe(probe: Any) -> Any:
    """The same as a function on Arrow batches, which is pickled whole, too."""

    def run(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            executable, version, missing = probe(None)
            answer = {"executable": executable, "version": version, "missing": missing}
            kinds = {"executable": pa.string(), "version": pa.string(), "missing": pa.list_(pa.string())}
            yield pa.RecordBatch.from_pylist([answer], pa.schema(kinds))

    run.__module__ = "__main__"
    return run
