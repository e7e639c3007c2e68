"""Short ways to the driver's JVM through Py4J, for code that calls the JVM for every frame.

Py4J finds ``jvm.org.apache.spark.Name`` by one call for each part of the name, and each looks for a class of
that name in all jars. Given the whole name at once, it makes one call.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaObject

_SEPARATOR = "\0"


def java_class(jvm: Any, name: str) -> Any:
    """Return a class of the JVM by its full name."""
    return getattr(jvm, name)


def scala_object(jvm: Any, name: str) -> Any:
    """Return Scala's singleton object of this full name."""
    return getattr(java_class(jvm, f"{name}$"), "MODULE$")


def dict_of(jvm: Any, texts: Any) -> dict[str, str]:
    """Return a copy of a map of texts in the JVM, which nobody changes meanwhile. Py4J's own iterator takes
    several calls for each entry, so the JVM joins all keys, and all values."""
    join = java_class(jvm, "java.lang.String").join
    java_values = JavaObject.__getattr__(texts, "values")()  # Py4J's own `values` makes a list
    keys, values = (join(_SEPARATOR, each).split(_SEPARATOR) for each in (texts.keySet(), java_values))
    if len(keys) == len(values) == int(texts.size()):
        return dict(zip(keys, values, strict=True))
    return dict(texts)  # it is empty, or a text contains the separator
