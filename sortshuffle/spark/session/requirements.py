"""What a frame needs of a session before it runs anything: settings, and workers that can run it.

Everything here runs on the driver and fails there, at the call that needed it.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from sortshuffle import calls
from sortshuffle.errors import StateError, UsageError, WorkerSetupError
from sortshuffle.homes.environment import ALLOCATOR_DELAY, ALLOCATOR_VARIABLE
from sortshuffle.homes.host import ADDRESS_VARIABLE
from sortshuffle.spark.manager.choice import begins_connect_server, turn_on
from sortshuffle.version import __version__

NEEDED_MODULES = ("pyarrow", "numpy", "xxhash", "sortshuffle")
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
NO_ROLLBACK = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""Whether Spark takes other bytes of a map task that ran again for other rows, and gives up. Control
rows are other bytes each time."""

LOOPBACK = "127.0.0.1"

_checked: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Turns on the shuffle manager (`docs/manager.md`) for a session that is about to be created, unless
    ``spark.sortshuffle.manager`` says otherwise or something speaks against it, which the log then says.

    Sets besides what makes Python stages quick:

    * Unix sockets between the JVM and Python workers: a Python task over loopback TCP costs
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


def address_this_host(master: str) -> None:
    """To be called before a session of our own is started. Spark asks for the address of the host's name, and
    does not start where there is none. For a local master the loopback address does, unless
    `ADDRESS_VARIABLE` says another.

    Raises `UsageError` for another master, whose executors must reach this host.
    """
    name = socket.gethostname()
    if os.environ.get(ADDRESS_VARIABLE) or _has_address(name):
        return
    if not is_local(master):
        raise UsageError(
            f"the name of this host, {name}, has no address, and Spark does not start without one. Put it"
            f" into /etc/hosts, or set {ADDRESS_VARIABLE} to an address at which {master} reaches this host"
        )
    os.environ[ADDRESS_VARIABLE] = LOOPBACK


def _has_address(name: str) -> bool:
    try:
        return bool(calls.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def is_local(master: str) -> bool:
    """Whether all tasks run in the driver's host. What cannot be told is a cluster."""
    return master == "local" or master.startswith("local[")


def require_session(spark: Any) -> SparkSession:
    """``spark``, if it is a session, classic or Spark Connect's. Raises `UsageError`."""
    # what has a JVM is no class of Connect's, whose sessions are no subclass of PySpark's
    if not is_classic(spark) and not (hasattr(spark, "conf") and hasattr(spark, "createDataFrame")):
        raise UsageError(f"a SparkSession is needed, not {type(spark).__name__}")
    require_running(spark)
    session: SparkSession = spark
    return session


def require_running(spark: SparkSession | SparkContext) -> None:
    """Raise `StateError` if what this belongs to was stopped, which Spark itself says in no words of its own.
    Of a session of Spark Connect the server says it."""
    context: Any = spark.sparkContext if is_classic(spark) else spark
    if isinstance(context, SparkContext) and context._jsc is None:
        raise StateError(
            "the SparkContext has been stopped, and with it what its frames and RDDs are made of: make a new"
            " session, and make them anew"
        )


def is_classic(spark: Any) -> bool:
    """Whether a session has a JVM to reach; over Spark Connect there is none."""
    return hasattr(spark, "_jsparkSession")


def context_of(spark: SparkSession) -> SparkContext | None:
    """None over Spark Connect."""
    return spark.sparkContext if is_classic(spark) else None


def application_of(spark: SparkSession) -> str:
    """The application's id, as its tasks know it."""
    context = context_of(spark)
    if context is not None:
        return str(context.applicationId)
    return str(spark.conf.get("spark.app.id"))  # as the server's context has set it


def check_no_rollback(spark: SparkSession) -> None:
    """Raise `UsageError` unless map tasks of this session may return other control rows when they run again.

    In a classic session the planner sees to it.
    """
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


def context_settings(spark: SparkSession | SparkContext) -> dict[str, str]:
    """The settings of the SparkContext, by which the application runs. ``builder.getOrCreate()`` beside one
    that runs tells its session others of the same names, which have no effect. Over Spark Connect nobody can
    ask for the SparkContext's: the session's, which begin as those.
    """
    if not isinstance(spark, SparkContext) and not is_classic(spark):
        return settings_of(spark)
    context = spark if isinstance(spark, SparkContext) else spark.sparkContext
    return dict(context.getConf().getAll())


def check_workers(spark: SparkSession | SparkContext, encrypts: bool = False) -> None:
    """Raise `WorkerSetupError` unless the workers' Python has what the stages import.

    Asks one worker, by a job of one task, once for each SparkContext or, over Spark Connect, session. Raises
    `StateError` if that was stopped. ``encrypts``: they write files that are encrypted.
    """
    require_running(spark)
    # of the same context, sessions have the same workers
    asked: Any = spark.sparkContext if is_classic(spark) else spark
    if asked in _checked:
        return
    if isinstance(asked, SparkContext):
        answer = asked.parallelize([0], 1).mapPartitions(_probe(encrypts)).collect()
    else:
        columns = "executable string, version string, missing array<string>, why string"
        one = asked.range(0, 1, 1, 1)  # in one partition: of several, Spark 4.1 shuffles the first row
        answer = one.mapInArrow(_arrow_probe(_probe(encrypts)), columns).first()
    executable, version, missing, why = answer
    their_python = f"the Python that Spark's workers run, {executable} ({version}),"
    if missing:
        raise WorkerSetupError(
            f"{their_python} lacks {', '.join(missing)}."
            f" Install sortshuffle there, or set the environment variable PYSPARK_PYTHON, before the session"
            f" is created, to an interpreter that has it, such as the driver's own, {sys.executable}"
        )
    if why:
        raise WorkerSetupError(f"{their_python} cannot encrypt files: {why}")
    _checked[asked] = True


def _probe(encrypts: bool) -> Any:
    """A function that is pickled whole: the workers may not have this module, which is the question."""
    modules, release = NEEDED_MODULES, __version__

    def probe(_: Any) -> Any:
        import importlib.util
        import sys

        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        why = ""  # they cannot encrypt
        if encrypts and not missing:
            try:
                from sortshuffle.format.encryption import why_no_encryption

                why = why_no_encryption()
            except ImportError:  # a release from before there was encryption
                theirs = importlib.import_module("sortshuffle").__version__  # which has no version module
                why = f"it has sortshuffle {theirs}, and the driver has {release}: install that"
        return [sys.executable, sys.version.split()[0], missing, why]

    probe.__module__ = "__main__"
    return probe


def _arrow_probe(probe: Any) -> Any:
    """The same as a function on Arrow batches, which is pickled whole, too."""

    def run(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            names = ("executable", "version", "missing", "why")
            kinds = (pa.string(), pa.string(), pa.list_(pa.string()), pa.string())
            columns = [pa.array([value], kind) for value, kind in zip(probe(None), kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, names)

    run.__module__ = "__main__"
    return run
