"""`jar_method`: a static method of the manager's jar, in the driver's JVM, for what Py4J takes many calls."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark import SparkContext

from sortshuffle.errors import UnsupportedError
from sortshuffle.spark.manager.jar import jar_path, why_no_jar
from sortshuffle.spark.manager.running_jvm import provide


def jar_method(class_name: str, method: str) -> Any:
    """Return a static method of the class ``org.sortshuffle.<class_name>``. Raises `UnsupportedError` if the
    JVM cannot have the class."""
    SparkContext._ensure_initialized()
    return _method_of(SparkContext._gateway, class_name, method)


@lru_cache(maxsize=8)
def _method_of(gateway: Any, class_name: str, method: str) -> Any:
    # kept, because Py4J looks each part of the name up in the JVM
    reason = why_no_jar() or provide(jar_path(), f"org.sortshuffle.{class_name}")
    if reason:
        raise UnsupportedError(f"Spark's plan cannot be read: {reason}")
    return getattr(getattr(gateway.jvm.org.sortshuffle, class_name), method)
