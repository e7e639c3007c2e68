"""The settings that Spark's JVM starts with, besides those of a builder.

A setting that `configure()` gives to a builder replaces the same setting of ``spark-defaults.conf`` and of
``spark-submit``. So plugins, jars and class path must be read from there before they are added to.

* If there is a JVM (under ``spark-submit``, or left over from a stopped SparkContext), this module reads its
  settings. A JVM that PySpark started keeps the settings of the first builder. ``spark.sortshuffle.manager``
  is not read from such a JVM, because the next builder may want another value.
* Otherwise PySpark will start a JVM by ``spark-submit``. Its settings are those of ``spark-defaults.conf``,
  overridden by the arguments in ``PYSPARK_SUBMIT_ARGS``. ``--jars``, ``--driver-class-path`` and ``--master``
  override the settings of the same meaning.

This module imports PySpark only if there is a JVM to ask.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.spark.manager.settings import DRIVER_CLASS_PATH, JARS, MANAGER

SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
MASTER = "MASTER"
GATEWAY = "PYSPARK_GATEWAY_PORT"  # in the environment of a Python that spark-submit started
_DEFAULTS_FILE = "spark-defaults.conf"
_MEANINGS = {"--jars": JARS, "--driver-class-path": DRIVER_CLASS_PATH, "--master": "spark.master"}
_LOADS_DEFAULTS = "--load-spark-defaults"
_FLAGS = {"--verbose", "-v", "--supervise", "--version", "--help", "-h", _LOADS_DEFAULTS}  # take no value
_PROPERTY = re.compile(r"([^\s=:]+)\s*[=:]?\s*(.*)")


@dataclass(frozen=True, slots=True)
class Launch:
    """How Spark's JVM starts. ``settings``: those that it starts with. ``fixed``: keys of settings that a
    builder can change for the SparkContext, but not for the JVM itself."""

    settings: Mapping[str, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()


def has_jvm() -> bool:
    """Return whether this process has a JVM of Spark's."""
    context = sys.modules.get("pyspark.core.context")
    return GATEWAY in os.environ or (context is not None and context.SparkContext._gateway is not None)


def launch() -> Launch:
    """Return how this process's JVM was or will be started. Raises `UsageError` for submit arguments that
    cannot be read."""
    if not has_jvm():
        return launch_of(os.environ)
    settings = _settings_of_jvm()
    if GATEWAY not in os.environ:
        settings[MANAGER] = launch_of(os.environ).settings.get(MANAGER, "auto")
    return Launch(settings)


def launch_of(environment: Mapping[str, str]) -> Launch:
    """Return how a JVM will be started in a process with this environment that has none yet."""
    arguments = list(_arguments(environment.get(SUBMIT_ARGUMENTS, "")))
    files = [value for name, value in arguments if name == "--properties-file"]
    # as in spark-submit: a named file replaces the default one, or overrides it
    loads_defaults = not files or any(name == _LOADS_DEFAULTS for name, _ in arguments)
    settings = _settings_in(defaults_file(environment)) if loads_defaults else {}
    settings |= _settings_in(files[-1]) if files else {}
    fixed = set()
    # --conf first: options override settings of the same meaning
    for name, value in arguments:
        if name in ("--conf", "-c"):
            key, _, text = value.partition("=")
            settings[key.strip()] = text
            fixed.add(key.strip())
    for name, value in arguments:
        if name in _MEANINGS:
            settings[_MEANINGS[name]] = value
            fixed.add(_MEANINGS[name])
    if MASTER in environment:  # the last place where spark-submit looks
        settings.setdefault("spark.master", environment[MASTER])
    return Launch(settings, frozenset(fixed & {JARS, DRIVER_CLASS_PATH}))


def _settings_of_jvm() -> dict[str, str]:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # connects to the JVM of spark-submit, unless already connected
    return dict(SparkConf().getAll())


def temporary_directory() -> str:
    """Return where Spark's JVM keeps temporary files; empty if there is no JVM yet."""
    if not has_jvm():
        return ""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    return str(jvm.System.getProperty("java.io.tmpdir"))


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    """Yield the options of spark-submit and their values, up to the program. Raises `UsageError`."""
    try:
        words = iter(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"the environment's {SUBMIT_ARGUMENTS} cannot be read: {error}: {text!r}") from None
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("-"):
            return
        if equals:
            yield name, value
        else:
            yield name, "" if name in _FLAGS else next(words, "")


def defaults_file(environment: Mapping[str, str]) -> str:
    """Return the path of Spark's defaults; empty if no Spark is installed."""
    directory = environment.get("SPARK_CONF_DIR")
    if directory:
        return os.path.join(directory, _DEFAULTS_FILE)
    home = environment.get("SPARK_HOME")
    if not home:
        found = importlib.util.find_spec("pyspark")
        home = os.path.dirname(found.origin) if found is not None and found.origin else ""
    return os.path.join(home, "conf", _DEFAULTS_FILE) if home else ""


def _settings_in(path: str) -> dict[str, str]:
    """Return the settings in a properties file. As in Spark, there are none if it cannot be read."""
    try:
        with calls.open_file(path, encoding="utf-8", errors="replace") as opened:
            text = opened.read()
    except OSError:
        return {}
    return dict(_properties(text))


def _properties(text: str) -> Iterator[tuple[str, str]]:
    """Yield keys and values as `java.util.Properties` reads them: a key ends at a blank, ``=`` or ``:``; a
    backslash at the end of a line joins it to the next."""
    lines = re.sub(r"\\\r?\n[ \t\f]*", "", text)
    for line in map(str.strip, lines.splitlines()):
        found = _PROPERTY.match(line)
        if found is not None and line[0] not in "#!":
            yield found[1], found[2].strip()
