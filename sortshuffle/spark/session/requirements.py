"""What frames and RDDs require of a session: its settings, and workers that can run their stages.

All checks run on the driver, and fail in the user's call.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sortshuffle import calls
from sortshuffle.errors import StateError, UsageError, WorkerSetupError
from sortshuffle.homes.environment import ALLOCATOR_DELAY, ALLOCATOR_VARIABLE
from sortshuffle.homes.host import ADDRESS_VARIABLE
from sortshuffle.spark.manager.activation import begins_connect_server, turn_on
from sortshuffle.spark.manager.launch import launch, temporary_directory
from sortshuffle.spark.manager.settings import is_local
from sortshuffle.spark.session import unix_sockets
from sortshuffle.spark.session.java import dict_of
from sortshuffle.spark.session.progress import SPARKS_BARS, wants_sparks_bars
from sortshuffle.version import __version__

UNKNOWN_SETTING = "SQL_CONF_NOT_FOUND"  # Spark's name of the error
NEEDED_MODULES = ("pyarrow", "numpy", "xxhash", "sortshuffle")
ROLLBACK = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""Whether Spark rolls stages back if a map task that runs again returns other bytes, as tasks with control
rows do. It ends the job if it cannot."""
QUERY_ROLLBACK = "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch"
"""The same for all stages of a query. Spark 4.1 does not know it."""
NO_ROLLBACK = {ROLLBACK: "false", QUERY_ROLLBACK: "false"}
"""What shuffles of control rows need."""

LOOPBACK = "127.0.0.1"

_checked: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
# by SparkContext, for which they never change: reading them takes several calls of the JVM for each
_applications: WeakKeyDictionary[SparkContext, str] = WeakKeyDictionary()
_context_settings: WeakKeyDictionary[SparkContext, dict[str, str]] = WeakKeyDictionary()


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Turn on the shuffle manager (`docs/manager.md`) for a session that is about to be created. Leave it
    off if ``spark.sortshuffle.manager`` says so, or if something speaks against it; the log says what.
    Return the builder.

    This also sets what makes Python stages faster, and shows how far they are:

    * Unix sockets between the JVM and Python workers, unless their paths would be too long
      (`unix_sockets`): the latency of a Python task is some 26 ms over loopback TCP, and about 5 ms over a
      Unix socket.
    * The workers run the driver's Python, unless ``PYSPARK_PYTHON`` names another. Otherwise Spark would run
      the first ``python3`` on the path. A session that is created from Python reads only that variable, and
      no setting, so this call sets the variable.
    * The workers' allocator keeps freed memory for some seconds instead of milliseconds.
    * Spark draws its progress bars in a terminal also under ``spark-submit``
      (`sortshuffle.spark.session.progress`).
    * Workers that run the driver's Python on its host start sooner, where the manager is on:
      `sortshuffle.spark.worker.daemon` forks them.

    Plugins, jars and class path of the builder stay, and what else the user has set. Set them before this
    call: a setting that the builder gets afterwards replaces the one from this call. Frames and RDDs also
    work without this call. For a Spark Connect session, call it after ``remote(...)``: it then sets only what
    shuffles need in such a session. The rest is set when the server is started, with the lines that
    ``sortshuffle conf`` prints.

    Raises `UsageError` if ``spark.sortshuffle.manager`` is ``on`` and the manager cannot be, `OptionError`
    for a setting of this package that is not allowed. If the manager is ``off``, or a SparkContext runs
    already, only ``spark.sortshuffle.manager`` itself is checked here; a frame checks the others.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # over Connect it only matters to a local server
    if "spark.remote" in builder._options or "SPARK_REMOTE" in os.environ:
        return builder.config(map=NO_ROLLBACK)
    if begins_connect_server(builder._options):
        builder.config(map=NO_ROLLBACK)
    turn_on(builder)
    options: dict[str, Any] = builder._options
    before = {**launch().settings, **{key: str(value) for key, value in options.items()}}
    wanted = {f"spark.executorEnv.{ALLOCATOR_VARIABLE}": ALLOCATOR_DELAY}
    if unix_sockets.takes_sockets(before, os.environ, temporary_directory()):
        wanted[unix_sockets.ENABLED] = "true"
    if wants_sparks_bars(before):
        wanted[SPARKS_BARS] = "true"
    return builder.config(map={key: value for key, value in wanted.items() if key not in before})


def address_this_host(master: str) -> None:
    """Let Spark start on a host whose name, which Spark looks up, has no address. With a local master Spark
    gets the loopback address, unless `ADDRESS_VARIABLE` has another. For programs that start their own
    session. Raises `UsageError` for any other master, because its executors must reach this host."""
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


def require_session(spark: Any) -> SparkSession:
    """Return ``spark`` if it is a running session, classic or Spark Connect's. Raises `UsageError` if it is
    none, `StateError` if its SparkContext was stopped."""
    # sessions of Connect are not instances of PySpark's SparkSession
    is_session = is_classic(spark) or (hasattr(spark, "conf") and hasattr(spark, "createDataFrame"))
    if not is_session or isinstance(spark, type):
        raise UsageError(f"a SparkSession is needed, not {type(spark).__name__}")
    require_running(spark)
    return plain_session(spark)


def plain_session(spark: Any) -> SparkSession:
    """Return PySpark's own session, in which plans are made: ``spark``, or the session that it was made of by
    `sortshuffle.session`."""
    session: SparkSession = getattr(spark, "_plain_session", spark)
    return session


def require_running(spark: SparkSession | SparkContext) -> None:
    """Raise `StateError` if the SparkContext was stopped, or a session of Spark Connect, which Spark's own
    error does not say."""
    context: Any = spark.sparkContext if is_classic(spark) else spark
    if isinstance(context, SparkContext):
        what, is_stopped = "SparkContext", context._jsc is None
    else:
        what, is_stopped = "session", context.is_stopped
    if is_stopped:
        raise StateError(
            f"the {what} has been stopped, and with it what its frames and RDDs are made of: make a new"
            " session, and make them anew"
        )


def is_classic(spark: Any) -> bool:
    """Return whether a session has a JVM. Over Spark Connect it has none."""
    return hasattr(spark, "_jsparkSession")


def context_of(spark: SparkSession) -> SparkContext | None:
    """Return the session's SparkContext; None over Spark Connect."""
    return spark.sparkContext if is_classic(spark) else None


def has_profiler(spark: SparkSession) -> bool:
    """Return whether Spark profiles users' functions, because the SparkContext was started with
    ``spark.python.profile`` or ``spark.python.profile.memory``. Spark Connect has no such profiler."""
    context = context_of(spark)
    return context is not None and context.profiler_collector is not None


def application_of(spark: SparkSession) -> str:
    """Return the application's id, as its tasks know it."""
    context = context_of(spark)
    if context is None:
        return str(spark.conf.get("spark.app.id"))  # set by the server's context
    known = _applications.get(context)
    if known is None:
        known = _applications[context] = str(context.applicationId)
    return known


def check_no_rollback(spark: SparkSession) -> None:
    """Raise `UsageError` unless map tasks of this session may return other control rows when they run again.
    In a classic session the planner ensures this."""
    for key in NO_ROLLBACK:
        value = setting_of(spark, key)
        if value not in (None, "false"):
            raise UsageError(
                f"over Spark Connect a shuffle needs the setting {key} to be false, and it is {value}: map"
                " tasks that run again, after an executor was lost, return other control rows, and Spark"
                f' would end the job. Set it with spark.conf.set("{key}", "false"), or make the session'
                " with sortshuffle.configure(SparkSession.builder.remote(...))"
            )


def setting_of(spark: SparkSession, name: str) -> str | None:
    """Return a setting of the session, or Spark's default, in lower case. None if this Spark does not know
    it. Raises what Spark raises if it cannot be asked."""
    try:
        return str(spark.conf.get(name)).lower()
    except PySparkException as error:
        if error.getCondition() != UNKNOWN_SETTING:
            raise
        return None


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return all current settings of the session, including those of its application."""
    if is_classic(spark):
        session: Any = spark
        return dict_of(session.sparkContext._jvm, session._jsparkSession.conf().getAllAsJava())
    settings: Any = spark.conf.getAll
    return dict(settings)


def context_settings(spark: SparkSession | SparkContext) -> dict[str, str]:
    """Return the settings of the SparkContext, which the application runs by. A session's settings of the
    same names have no effect, though ``builder.getOrCreate()`` accepts them while a SparkContext runs. Over
    Spark Connect the SparkContext's cannot be read: return the session's, which start as a copy of them."""
    if not isinstance(spark, SparkContext) and not is_classic(spark):
        return settings_of(spark)
    context = spark if isinstance(spark, SparkContext) else spark.sparkContext
    if context not in _context_settings:
        _context_settings[context] = dict(context.getConf().getAll())
    return dict(_context_settings[context])


def check_workers(spark: SparkSession | SparkContext, encrypts: bool = False) -> None:
    """Raise `WorkerSetupError` unless the workers' Python has the modules that stages import, and
    `StateError` if the SparkContext was stopped. A job of one task asks one worker, once for each
    SparkContext (over Spark Connect: each session). ``encrypts``: the workers write encrypted files.
    """
    require_running(spark)
    # all sessions of a SparkContext have the same workers
    asked: Any = spark.sparkContext if is_classic(spark) else spark
    if asked in _checked:
        return
    if isinstance(asked, SparkContext):
        answer = asked.parallelize([0], 1).mapPartitions(_probe(encrypts)).collect()
    else:
        columns = "executable string, version string, missing array<string>, why string"
        one = asked.range(0, 1, 1, 1)  # one partition: with several, Spark 4.1 would shuffle for first()
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
    """Return the function that a worker runs. It is pickled by value, as workers may lack this package."""
    modules, release = NEEDED_MODULES, __version__

    def probe(_: Any) -> Any:
        import importlib.util
        import sys

        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        why = ""  # the reason why workers cannot encrypt
        if encrypts and not missing:
            try:
                from sortshuffle.format.encryption import why_no_encryption

                why = why_no_encryption()
            except ImportError:  # an older release, without encryption or a version module
                theirs = importlib.import_module("sortshuffle").__version__
                why = f"it has sortshuffle {theirs}, and the driver has {release}: install that"
        return [sys.executable, sys.version.split()[0], missing, why]

    probe.__module__ = "__main__"
    return probe


def _arrow_probe(probe: Any) -> Any:
    """Wrap ``probe`` as a function on Arrow batches, also pickled by value."""

    def run(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            names = ("executable", "version", "missing", "why")
            kinds = (pa.string(), pa.string(), pa.list_(pa.string()), pa.string())
            columns = [pa.array([value], kind) for value, kind in zip(probe(None), kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, names)

    run.__module__ = "__main__"
    return run
