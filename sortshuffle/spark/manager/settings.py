"""Spark's settings that turn the shuffle manager on, those that rule it out, and checks for both.

Only this module knows them. `configure()` gives them to a builder, and ``sortshuffle conf`` prints them.

    spark.shuffle.manager            the manager's class
    spark.plugins                    its plugin, after the plugins already set
    spark.jars                       its jar, after the jars already set; executors get it from the driver
    spark.driver.extraClassPath      its jar, first on the path, so that a driver's JVM starts with it
    spark.sortshuffle.manager.python the Python of the engine

`configure()` also gives `WANTED_DAEMON_MODULE`, which depends on the Python of the workers.

All of these are settings of a SparkContext, fixed when it starts. Later ``spark.conf.set`` and
``builder.getOrCreate()`` accept them without an error and without an effect. So only the SparkContext's
configuration says whether the manager is on (`is_on`), never a session's.

`why_not_beside` finds settings with which the manager does not work.

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
"""The class of Spark's own manager. `without_manager` sets this name, which differs from the ``sort`` that a
user sets to get no other manager."""

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
NETWORK_ENCRYPTION = (
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
    "spark.authenticate.enableSaslEncryption",
)
"""With one of these, Spark encrypts all that its processes send each other, its own shuffles included."""

SECRET = f"spark.plugins.internal.conf.{PLUGIN_CLASS}.secret"
"""The application's secret in hex digits. The plugin's driver half makes and returns it, and Spark puts it
here, into the SparkContext's configuration."""

DAEMON_MODULE = "spark.python.daemon.module"
OUR_DAEMON = "sortshuffle.spark.worker.daemon"
SPARKS_DAEMON = "pyspark.daemon"
WANTED_DAEMON_MODULE = f"spark.plugins.internal.conf.{PLUGIN_CLASS}.daemon"
"""The module that is to fork Python workers where all tasks run on the driver's host; empty: Spark's own.
The plugin's driver half knows where they run. It names the module to Spark in `DAEMON_MODULE`, unless the
user has named another."""

OLDEST, NEWEST = (4, 1), (4, 3)
"""Releases of Spark that the manager works with."""


def manager_settings(jar: str, python: str, before: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that turn the manager on. ``before``: the other settings, whose plugins, jars and
    class path stay. ``python``: for the engine, unless ``before`` names one."""
    class_path = entries_of(before.get(DRIVER_CLASS_PATH, ""), os.pathsep)
    return {
        SHUFFLE_MANAGER: MANAGER_CLASS,
        PLUGINS: ",".join([*_other_plugins(before), PLUGIN_CLASS]),
        JARS: ",".join([*_others(entries_of(before.get(JARS, "")), jar), jar]),
        DRIVER_CLASS_PATH: os.pathsep.join([jar, *_others(class_path, jar)]),
        PYTHON: before.get(PYTHON) or python,
    }


def without_manager(before: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that turn the manager off again if ``before`` turns it on. They are needed because
    the settings that a JVM was started with are the defaults of all its SparkContexts."""
    off = {}
    if before.get(SHUFFLE_MANAGER) == MANAGER_CLASS:
        off[SHUFFLE_MANAGER] = SPARKS_OWN
    if PLUGIN_CLASS in entries_of(before.get(PLUGINS, "")):
        off[PLUGINS] = ",".join(_other_plugins(before))
    if before.get(DAEMON_MODULE) == OUR_DAEMON:  # in a copy of a SparkContext's configuration
        off[DAEMON_MODULE] = SPARKS_DAEMON
    return off


def is_on(context: Any) -> bool:
    """Return whether the shuffles of a running SparkContext are the manager's."""
    conf = dict(context.getConf().getAll())
    # a manager that is off leaves all shuffles to Spark's own
    return conf.get(SHUFFLE_MANAGER) == MANAGER_CLASS and not is_off(conf)


def is_off(settings: Mapping[str, str]) -> bool:
    """Return whether settings turn the manager off."""
    return settings.get(MANAGER, "").strip().lower() == "off"


def manager_secret(conf: Mapping[str, str]) -> bytes:
    """Return the secret of the manager's engines in an application; empty if there is no manager."""
    try:
        return bytes.fromhex(conf.get(SECRET, ""))
    except ValueError:  # a server of Spark Connect may redact values that look like secrets
        return b""


def why_not_with(release: str) -> str:
    """Return why the manager does not work with a release of Spark, such as 4.3.0; empty if it does."""
    numbers = tuple(int(part) for part in release.split(".")[:2] if part.isdigit())
    if OLDEST <= numbers <= NEWEST:
        return ""
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    return f"it works with Spark {oldest} to {newest}, and this is Spark {release}"


def why_not_beside(settings: Mapping[str, str]) -> str:
    """Return why the manager does not work with these settings, and the remedy; empty if it does.

    Raises `OptionError` for a setting of this package that is not allowed.
    """
    options = Options.of(settings)
    url = options.storage_url
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
    return f"{ENCRYPTION} is true, and {missing}" if missing else why_unencrypted(settings, options)


def why_unencrypted(settings: Mapping[str, str], options: Options) -> str:
    """Return why rows would cross the network unencrypted where Spark's do not, and the remedy; empty if they
    would not, or if Spark's do, too. ``options``: of these settings."""
    asked = next((key for key in NETWORK_ENCRYPTION if is_true(settings, key)), "")
    is_safe = is_true(settings, ENCRYPTION) or all(options.tls_files)
    crosses = not (options.storage_url or is_local(settings.get("spark.master", "")))
    if not asked or is_safe or not crosses:
        return ""
    return (
        f"{asked} is true, and rows would cross the network unencrypted. Set the three"
        f" spark.sortshuffle.service.tls.*, or {ENCRYPTION}=true"
    )


def is_local(master: str) -> bool:
    """Return whether all tasks run on the driver's host. An unknown master counts as a cluster."""
    return master == "local" or master.startswith("local[")


def is_true(settings: Mapping[str, str], key: str) -> bool:
    """Return whether a setting is true, as Spark reads it."""
    return settings.get(key, "").strip().lower() == "true"


def entries_of(text: str, separator: str = ",") -> list[str]:
    """Return the entries of a setting that is a list."""
    return [each.strip() for each in text.split(separator) if each.strip()]


def is_same_jar(entry: str, jar: str) -> bool:
    """Return whether an entry of jars or of a class path is this jar, in this or another installation.

    Compares base names: executors know jars only by these, and spark-submit turns paths into URLs.
    """
    return entry.rpartition("/")[2] == os.path.basename(jar)


def _other_plugins(settings: Mapping[str, str]) -> list[str]:
    return [each for each in entries_of(settings.get(PLUGINS, "")) if each != PLUGIN_CLASS]


def _others(entries: list[str], jar: str) -> list[str]:
    return [each for each in entries if not is_same_jar(each, jar)]
