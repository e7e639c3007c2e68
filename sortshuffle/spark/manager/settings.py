"""The settings of Spark that turn the shuffle manager on, and whether a SparkContext has them.

This is the only place that knows them. `configure()` gives them to a builder, ``sortshuffle conf`` prints
them.

    spark.shuffle.manager            the manager's class
    spark.plugins                    its plugin, behind the plugins that are there
    spark.jars                       its jar, behind the jars that are there; executors get it from the driver
    spark.driver.extraClassPath      its jar, before what is there: a driver's JVM has it from its start
    spark.sortshuffle.manager.python the Python of the engine
    spark.dynamicAllocation.shuffleTracking.timeout
                                     with dynamic allocation: when idle executors go

Settings that it does not work beside are known here, too (`why_not_beside`).

All of them are settings of a SparkContext, fixed when it starts. ``spark.conf.set`` and
``builder.getOrCreate()`` accept them later without an error and without an effect. So whoever asks whether
the manager is on must ask the SparkContext's own configuration (`is_on`), never a session's.

This module imports nothing of Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sortshuffle.options import Options

MANAGER_CLASS = "org.sortshuffle.SortMergeShuffleManager"
PLUGIN_CLASS = "org.sortshuffle.SortMergeShufflePlugin"
SPARKS_OWN = "sort"

SHUFFLE_MANAGER = "spark.shuffle.manager"
PLUGINS = "spark.plugins"
JARS = "spark.jars"
DRIVER_CLASS_PATH = "spark.driver.extraClassPath"
MANAGER = "spark.sortshuffle.manager"
PYTHON = "spark.sortshuffle.manager.python"
DIRECTORIES = "spark.sortshuffle.dir"
PUSH = "spark.shuffle.push.enabled"
SPARKS_SERVICE = "spark.shuffle.service.enabled"
MASTER = "spark.master"
ENCRYPTION = "spark.io.encryption.enabled"
DYNAMIC = "spark.dynamicAllocation.enabled"
IDLE_TIMEOUT = "spark.dynamicAllocation.executorIdleTimeout"
TRACKING_TIMEOUT = "spark.dynamicAllocation.shuffleTracking.timeout"
SPARKS_IDLE_TIMEOUT = "60s"  # Spark's default

SECRET = f"spark.plugins.internal.conf.{PLUGIN_CLASS}.secret"
"""Hex digits. The plugin's driver half makes the application's secret; Spark puts what it returns here, in
the SparkContext's configuration."""

OLDEST, NEWEST = (4, 1), (4, 3)
"""Releases of Spark that the manager works with."""


def manager_settings(jar: str, python: str, before: Mapping[str, str]) -> dict[str, str]:
    """The settings that turn the manager on. ``before``: the settings there are otherwise, whose plugins,
    jars and class path stay. ``python``: for the engine, unless ``before`` names one."""
    class_path = entries_of(before.get(DRIVER_CLASS_PATH, ""), os.pathsep)
    return {
        SHUFFLE_MANAGER: MANAGER_CLASS,
        PLUGINS: ",".join([*_other_plugins(before), PLUGIN_CLASS]),
        JARS: ",".join([*_others(entries_of(before.get(JARS, "")), jar), jar]),
        DRIVER_CLASS_PATH: os.pathsep.join([jar, *_others(class_path, jar)]),
        PYTHON: before.get(PYTHON) or python,
        **_idle_executors(before),
    }


def _idle_executors(before: Mapping[str, str]) -> dict[str, str]:
    """With dynamic allocation Spark keeps idle executors for ever that have written map outputs. The
    manager's belong to the host, so such executors may go like others, once no job runs that has the shuffle.

    Nothing is set where map outputs end with their executor: in containers, and with encryption, which leaves
    all shuffles to Spark. A master that is not known may be one of containers.
    """
    master = before.get(MASTER, "")
    outlive = master != "" and not master.startswith("k8s") and not is_true(before, ENCRYPTION)
    if not outlive or not is_true(before, DYNAMIC) or TRACKING_TIMEOUT in before:
        return {}
    timeout = before.get(IDLE_TIMEOUT, SPARKS_IDLE_TIMEOUT).strip()
    return {TRACKING_TIMEOUT: f"{timeout}s" if timeout.isdigit() else timeout}  # whose own unit would be ms


def without_manager(before: Mapping[str, str]) -> dict[str, str]:
    """The settings that turn the manager off again where ``before`` turns it on: what a JVM was started with
    stays its default for every SparkContext."""
    off = {}
    if before.get(SHUFFLE_MANAGER) == MANAGER_CLASS:
        off[SHUFFLE_MANAGER] = SPARKS_OWN
    if PLUGIN_CLASS in entries_of(before.get(PLUGINS, "")):
        off[PLUGINS] = ",".join(_other_plugins(before))
    return off


def is_on(context: Any) -> bool:
    """Whether the shuffles of a running SparkContext are the manager's."""
    conf = context.getConf()
    is_off = conf.get(MANAGER, "").strip().lower() == "off"  # then its manager leaves all to Spark's
    return conf.get(SHUFFLE_MANAGER, "") == MANAGER_CLASS and not is_off


def manager_secret(conf: Mapping[str, str]) -> bytes:
    """The secret that the manager's engines have in an application; empty where there is no manager."""
    try:
        return bytes.fromhex(conf.get(SECRET, ""))
    except ValueError:  # a server of Spark Connect may hide what looks like a secret
        return b""


def why_not_with(release: str) -> str:
    """Why the manager does not work with a release of Spark, such as 4.3.0; empty where it does."""
    numbers = tuple(int(part) for part in release.split(".")[:2] if part.isdigit())
    if OLDEST <= numbers <= NEWEST:
        return ""
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    return f"it works with Spark {oldest} to {newest}, and this is Spark {release}"


def why_not_beside(settings: Mapping[str, str]) -> str:
    """Why the manager does not work beside these settings, and the remedy; empty where it does.

    Raises `OptionError` for a setting of this package that is not allowed.
    """
    url = Options.of(settings).storage_url
    if url:
        return f"it writes to local directories only, and {DIRECTORIES} is {url}. Name local directories"
    other = settings.get(SHUFFLE_MANAGER, "")
    if other not in ("", MANAGER_CLASS):
        return f"{SHUFFLE_MANAGER} is {other}. Leave that setting out"
    for key, what in ((PUSH, "push-based shuffle"), (SPARKS_SERVICE, "Spark's external shuffle service")):
        if is_true(settings, key):
            return f"it does not work with {what}. Set {key}=false"
    return ""


def is_true(settings: Mapping[str, str], key: str) -> bool:
    """Whether a setting is on, as Spark reads it."""
    return settings.get(key, "").strip().lower() == "true"


def entries_of(text: str, separator: str = ",") -> list[str]:
    """The entries of a setting that is a list."""
    return [each.strip() for each in text.split(separator) if each.strip()]


def names(entry: str, jar: str) -> bool:
    """Whether an entry of jars or of a class path is this jar, of this installation or of another one.

    Executors get jars by the base name, so two of one name are one to them. And spark-submit makes URLs of
    paths.
    """
    return entry.rpartition("/")[2] == os.path.basename(jar)


def _other_plugins(settings: Mapping[str, str]) -> list[str]:
    return [each for each in entries_of(settings.get(PLUGINS, "")) if each != PLUGIN_CLASS]


def _others(entries: list[str], jar: str) -> list[str]:
    return [each for each in entries if not names(each, jar)]
