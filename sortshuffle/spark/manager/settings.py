"""The settings of Spark that turn the shuffle manager on, and whether a SparkContext has them.

Only this module knows them. `configure()` gives them to a builder, ``sortshuffle conf`` prints them.

    spark.shuffle.manager            the manager's class
    spark.plugins                    its plugin, behind the plugins that are there
    spark.jars                       its jar, behind the jars that are there; executors get it from the driver
    spark.driver.extraClassPath      its jar, before what is there: a driver's JVM has it from its start
    spark.sortshuffle.manager.python the Python of the engine

All of them are settings of a SparkContext, fixed when it starts. ``spark.conf.set`` and
``builder.getOrCreate()`` accept them later without an error and without an effect. So only the SparkContext's
configuration says whether the manager is on (`is_on`), never a session's.

Settings with which the manager does not work are here, too (`why_not_beside`).

This module imports nothing of Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sortshuffle.format.encryption import why_no_encryption
from sortshuffle.options import Options
from sortshuffle.storage.files.urls import why_not_shared

MANAGER_CLASS = "org.sortshuffle.SortMergeShuffleManager"
PLUGIN_CLASS = "org.sortshuffle.SortMergeShufflePlugin"
SPARKS_OWN = "org.apache.spark.shuffle.sort.SortShuffleManager"
"""Spark's own manager, by its class. `without_manager` gives this name, so that it differs from the ``sort``
of a user, who wants no other manager."""

SHUFFLE_MANAGER = "spark.shuffle.manager"
PLUGINS = "spark.plugins"
JARS = "spark.jars"
DRIVER_CLASS_PATH = "spark.driver.extraClassPath"
MANAGER = "spark.sortshuffle.manager"
PYTHON = "spark.sortshuffle.manager.python"
DIRECTORIES = "spark.sortshuffle.dir"
PUSH = "spark.shuffle.push.enabled"
SPARKS_SERVICE = "spark.shuffle.service.enabled"
ENCRYPTION = "spark.io.encryption.enabled"

SECRET = f"spark.plugins.internal.conf.{PLUGIN_CLASS}.secret"
"""Hex digits. The plugin's driver half makes the application's secret; Spark puts what it returns here, in
the SparkContext's configuration."""

OLDEST, NEWEST = (4, 1), (4, 3)
"""Releases of Spark that the manager works with."""


def manager_settings(jar: str, python: str, before: Mapping[str, str]) -> dict[str, str]:
    """The settings that turn the manager on. ``before``: the other settings, whose plugins, jars and class
    path stay. ``python``: for the engine, unless ``before`` names one."""
    class_path = entries_of(before.get(DRIVER_CLASS_PATH, ""), os.pathsep)
    return {
        SHUFFLE_MANAGER: MANAGER_CLASS,
        PLUGINS: ",".join([*_other_plugins(before), PLUGIN_CLASS]),
        JARS: ",".join([*_others(entries_of(before.get(JARS, "")), jar), jar]),
        DRIVER_CLASS_PATH: os.pathsep.join([jar, *_others(class_path, jar)]),
        PYTHON: before.get(PYTHON) or python,
    }


def without_manager(before: Mapping[str, str]) -> dict[str, str]:
    """The settings that turn the manager off again if ``before`` turns it on: settings with which a JVM was
    started are the defaults of all its SparkContexts."""
    off = {}
    if before.get(SHUFFLE_MANAGER) == MANAGER_CLASS:
        off[SHUFFLE_MANAGER] = SPARKS_OWN
    if PLUGIN_CLASS in entries_of(before.get(PLUGINS, "")):
        off[PLUGINS] = ",".join(_other_plugins(before))
    return off


def is_on(context: Any) -> bool:
    """Whether the shuffles of a running SparkContext are the manager's."""
    conf = dict(context.getConf().getAll())
    # a manager that is off leaves all to Spark's
    return conf.get(SHUFFLE_MANAGER) == MANAGER_CLASS and not is_off(conf)


def is_off(settings: Mapping[str, str]) -> bool:
    """Whether settings turn the manager off."""
    return settings.get(MANAGER, "").strip().lower() == "off"


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
    none = why_not_shared(url) if url else ""
    if none:
        return f"{DIRECTORIES} is {url}, and {none}"
    other = settings.get(SHUFFLE_MANAGER, "")
    if other not in ("", MANAGER_CLASS, SPARKS_OWN):
        return f"{SHUFFLE_MANAGER} is {other}. Leave that setting out"
    for key, what in ((PUSH, "push-based shuffle"), (SPARKS_SERVICE, "Spark's external shuffle service")):
        if is_true(settings, key):
            return f"it does not work with {what}. Set {key}=false"
    missing = why_no_encryption() if is_true(settings, ENCRYPTION) else ""
    return f"{ENCRYPTION} is true, and {missing}" if missing else ""


def is_true(settings: Mapping[str, str], key: str) -> bool:
    """Whether a setting is on, as Spark reads it."""
    return settings.get(key, "").strip().lower() == "true"


def entries_of(text: str, separator: str = ",") -> list[str]:
    """The entries of a setting that is a list."""
    return [each.strip() for each in text.split(separator) if each.strip()]


def names(entry: str, jar: str) -> bool:
    """Whether an entry of jars or of a class path is this jar, of this installation or of another one.

    Executors know jars by the base name only, and spark-submit makes URLs of paths. So base names are
    compared.
    """
    return entry.rpartition("/")[2] == os.path.basename(jar)


def _other_plugins(settings: Mapping[str, str]) -> list[str]:
    return [each for each in entries_of(settings.get(PLUGINS, "")) if each != PLUGIN_CLASS]


def _others(entries: list[str], jar: str) -> list[str]:
    return [each for each in entries if not names(each, jar)]
