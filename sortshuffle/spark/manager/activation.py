"""Turns the shuffle manager on for a session that is about to be created, or says what speaks against it.

``spark.sortshuffle.manager`` is read from the builder, or else from what Spark's JVM starts with (`launch`):

    auto   turn the manager on, unless something speaks against it; then leave the session as it is, and log
           the reason in one line
    on     turn it on, or raise `UsageError`
    off    leave it off

Only settings that are known when `configure()` is called can speak against the manager. The Java half checks
settings that a builder gets afterwards.
"""

from __future__ import annotations

import logging
import os
import site
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.util import default_api_mode

from sortshuffle.errors import UsageError
from sortshuffle.options import Options
from sortshuffle.spark.manager import jar
from sortshuffle.spark.manager import settings as manager
from sortshuffle.spark.manager.launch import SUBMIT_ARGUMENTS, Launch, has_jvm, launch
from sortshuffle.spark.manager.running_jvm import jar_of, provide
from sortshuffle.version import __version__

LOGGER = "sortshuffle.manager"
API_MODE = "spark.api.mode"
SQL_PYTHON = "spark.sql.execution.pyspark.python"

_log = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings for a builder. ``reason``: why Spark's own shuffle is used although the manager was
    wanted, else empty. ``stays_on``: whether the manager is used although it was not wanted."""

    settings: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    stays_on: bool = False


def turn_on(builder: SparkSession.Builder) -> None:
    """Give ``builder`` the settings of the manager if it is wanted and nothing speaks against it; otherwise
    log the reason. Raises as `choose` does."""
    choice = choose(builder)
    if choice.reason:
        _log.warning("the session's shuffles stay Spark's own: %s", choice.reason)
    if choice.stays_on:
        _log.warning("the session's shuffles stay sortshuffle's: %s", _RUNS_WITH_IT)
    for key, value in choice.settings.items():
        builder.config(key, value)


def choose(builder: SparkSession.Builder) -> Choice:
    """Decide, by the builder's settings so far, whether the manager will be on.

    Brings the manager's classes to a JVM that runs already. Raises `UsageError` if the manager must be on
    and cannot be, `OptionError` for a setting of this package that is not allowed. If a SparkContext runs
    already, only ``spark.sortshuffle.manager`` counts and is checked.
    """
    start, own = launch(), _settings_of(builder)
    settings = {**start.settings, **own}
    wanted = Options.of({manager.MANAGER: settings.get(manager.MANAGER, "auto")}).manager
    running = SparkContext._active_spark_context
    if running is not None:
        return _beside_running(wanted, manager.is_on(running))
    if wanted == "off":
        return Choice(manager.without_manager(settings))
    reason = _why_not(start, own, settings)
    if reason:
        return Choice(manager.without_manager(settings), _refusal(wanted, reason))
    result = manager.manager_settings(_jar(), _python(), settings)
    if has_jvm():  # an earlier builder of this JVM may have set another value
        result[manager.MANAGER] = wanted
    daemon = _daemon(settings)
    if daemon or manager.WANTED_DAEMON_MODULE in settings:  # which may be another Python's
        result[manager.WANTED_DAEMON_MODULE] = daemon
    return Choice(result)


_RUNS = (
    "the SparkContext runs already, and its shuffle manager is fixed. Call configure() before the first"
    " session is created, or stop this one first; where Spark is started otherwise, start it with the lines"
    " that `sortshuffle conf` prints"
)
_RUNS_WITH_IT = (
    "the SparkContext runs already, with the shuffle manager. Stop it before a session without the manager is"
    " created"
)


def _beside_running(wanted: str, is_on: bool) -> Choice:
    """Return the choice for a session of a SparkContext that runs already."""
    if wanted == "off":
        return Choice(stays_on=is_on)
    return Choice(reason="" if is_on else _refusal(wanted, _RUNS))


def _refusal(wanted: str, reason: str) -> str:
    """Return the reason why a session has no manager. Raises `UsageError` if it must have one."""
    if wanted == "on":
        raise UsageError(f"{manager.MANAGER}=on, and the shuffle manager cannot be on: {reason}")
    return reason


def _settings_of(builder: SparkSession.Builder) -> dict[str, str]:
    """Return a builder's settings so far."""
    options: Mapping[str, Any] = builder._options
    return {key: str(value) for key, value in options.items()}


def _jar() -> str:
    """Return the jar for executors: that of the driver's JVM, if it runs already."""
    return jar_of(manager.MANAGER_CLASS) if has_jvm() else jar.jar_path()


def _python() -> str:
    """Return the Python of the engine, which is the workers' as `configure()` chooses it."""
    program = os.environ.get("PYSPARK_PYTHON", sys.executable)
    is_relative = "/" in program and not program.startswith(("/", "./"))
    return f"./{program}" if is_relative else program


def _daemon(settings: Mapping[str, str]) -> str:
    """Return the module that is to fork Python workers on this host. It is empty if some of them may lack the
    module: they run another Python than this process does, or this package is not installed for it."""
    run_this_python = sys.executable == os.environ.get("PYSPARK_PYTHON") == _python_of_sources()
    has_it = run_this_python and not settings.get(SQL_PYTHON) and _is_installed()
    return manager.OUR_DAEMON if has_it else ""


def _python_of_sources() -> str:
    """Return the Python of tasks that read data sources written in Python. Spark's JVM chooses it by its own
    environment."""
    jvm: Any = SparkContext._jvm
    variable: Any = jvm.System.getenv if has_jvm() else os.environ.get
    return str(variable("PYSPARK_DRIVER_PYTHON") or variable("PYSPARK_PYTHON") or "python3")


def _is_installed() -> bool:
    """Return whether this release is the one that is installed for this Python. This process may have found
    it on a path of its own."""
    of_user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    found = distributions(name="sortshuffle", path=[*of_user, *site.getsitepackages()])
    first = next(iter(found), None)  # in the order of a worker's path
    return first is not None and first.version == __version__


def _why_not(start: Launch, own: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """Return the reason against the manager, and the remedy; empty if there is none."""
    return (
        manager.why_not_beside(settings)
        or manager.why_not_with(pyspark.__version__)
        or jar.why_no_jar()
        or _why_not_over_connect(own)
        or _why_no_classes(start)
    )


def begins_connect_server(own: Mapping[str, Any]) -> bool:
    """Return whether PySpark is about to start a server of Spark Connect in this process, which replaces
    ``spark.plugins``. PySpark decides this by the builder and the environment, and by no other settings."""
    asked = str(own.get(API_MODE, os.environ.get("SPARK_API_MODE", ""))).lower()
    return (asked if asked in ("classic", "connect") else default_api_mode()) == "connect"


def _why_not_over_connect(own: Mapping[str, str]) -> str:
    if not begins_connect_server(own):
        return ""
    return (
        f"{API_MODE} is connect, for which PySpark starts a server of Spark Connect without plugins."
        " Start one with the lines that `sortshuffle conf` prints, and give its address to remote()"
    )


def _why_no_classes(start: Launch) -> str:
    """Return why the driver's JVM will not find the manager's classes; empty if it will. Brings them to a JVM
    that runs already."""
    path = jar.jar_path()
    if has_jvm():
        return provide(path, manager.MANAGER_CLASS)
    both = {manager.JARS, manager.DRIVER_CLASS_PATH} <= start.fixed
    if both and not any(manager.is_same_jar(entry, path) for entry in _class_path(start)):
        return (
            f"the environment's {SUBMIT_ARGUMENTS} gives the driver's jars and its class path, and the"
            f" manager's jar is in neither. Add {path} to one of them"
        )
    return ""


def _class_path(start: Launch) -> list[str]:
    """Return the jars and directories of the driver's JVM."""
    jars = manager.entries_of(start.settings.get(manager.JARS, ""))
    return [
        *jars,
        *manager.entries_of(start.settings.get(manager.DRIVER_CLASS_PATH, ""), os.pathsep),
    ]
