"""Whether Python workers can talk to Spark's JVM over Unix sockets, by which a Python task starts sooner.

Spark puts each socket into ``java.io.tmpdir``, or where `DIRECTORY` says. The system limits the length of a
socket's path, and if that is too long, no Python task runs. An executor's directory may be another than the
driver's: YARN gives each container a long path of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from sortshuffle.service.wire.address import LONGEST_PATH
from sortshuffle.spark.manager.launch import SUBMIT_ARGUMENTS

ENABLED = "spark.python.unix.domain.socket.enabled"
DIRECTORY = "spark.python.unix.domain.socket.dir"
MODE = "PYSPARK_UDS_MODE"
"""The variable of the environment by which a user turns the sockets on or off."""

LONGEST_DIRECTORY = LONGEST_PATH - len("/.") - len("01234567-89ab-cdef-0123-456789abcdef") - len(".sock")
"""Bytes of the path of a directory with Spark's sockets, whose names are random UUIDs."""

# Where options of a JVM of Spark's are: settings, and variables of the environment
_JAVA_OPTIONS = tuple(
    f"spark.{process}.{kind}JavaOptions"
    for process in ("driver", "executor")
    for kind in ("default", "extra")
)
_JAVA_VARIABLES = (
    SUBMIT_ARGUMENTS,
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
)
_TEMPORARY = re.compile(r"-Djava\.io\.tmpdir=['\"]?([^\s'\"]+)")


def takes_sockets(settings: Mapping[str, str], environment: Mapping[str, str], temporary: str) -> bool:
    """Return whether to turn the sockets on: the environment does not say, and their paths are short enough,
    as far as that is known. ``settings``: those of the builder and of Spark's JVM. ``temporary``: the
    temporary directory of a JVM that runs already, else empty."""
    if MODE in environment:
        return False
    named = settings.get(DIRECTORY)
    if named is None and settings.get("spark.master", "").startswith("yarn"):
        return False
    directories = [temporary, *_temporary_directories(settings, environment)] if named is None else [named]
    return all(len(os.fsencode(each)) <= LONGEST_DIRECTORY for each in directories)


def _temporary_directories(settings: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the temporary directories that options of Spark's JVMs name."""
    texts = [settings.get(name, "") for name in _JAVA_OPTIONS]
    texts += [environment.get(name, "") for name in _JAVA_VARIABLES]
    for text in texts:
        yield from _TEMPORARY.findall(text)
