"""Adds the manager's classes to a driver's JVM that runs already.

``spark.jars`` and ``spark.driver.extraClassPath`` are read when a JVM starts. A JVM outlives its
SparkContext, and ``spark-submit`` starts one before the program can configure anything. But Spark loads the
shuffle manager with the thread's context class loader. This is Spark's `MutableURLClassLoader`, to which jars
can be added, as Spark itself does at its start. All threads of Py4J share it. (Tried on 4.3: a second
SparkContext, and a program under spark-submit.)
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext


def provide(jar: str, class_name: str) -> str:
    """Make the JVM find a class of ``jar``. Return why it does not, with the remedy; empty if it does."""
    SparkContext._ensure_initialized()
    if _finds(class_name):
        return ""
    try:
        _class_loader().addURL(SparkContext._jvm.java.io.File(jar).toURI().toURL())
    except Py4JError:  # whoever started this JVM gave it another kind of class loader
        pass
    if _finds(class_name):
        return ""
    return (
        f"the driver's JVM runs already and does not find {class_name}. Start it with the lines that"
        " `sortshuffle conf` prints, or call configure() before the first session is created"
    )


def jar_of(class_name: str) -> str:
    """Return the file in which the JVM finds a class, which it must be able to find."""
    found = _class_of(class_name)
    return str(found.getProtectionDomain().getCodeSource().getLocation().toURI().getPath())


def _finds(class_name: str) -> bool:
    try:
        _class_of(class_name)
    except Py4JError:
        return False
    return True


def _class_of(class_name: str) -> Any:
    # False: find the class without initialising it
    return SparkContext._jvm.java.lang.Class.forName(class_name, False, _class_loader())


def _class_loader() -> Any:
    return SparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
