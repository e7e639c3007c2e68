"""`PickledFunction`: a user's function as it was when the user passed it.

PySpark pickles a function at the call of ``mapInPandas`` and the like. What the function refers to may change
before the frame runs: the variable of a loop, or a dict of settings. So it is pickled at the call here, too,
and every stage that has it sends these bytes. Workers get the function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import Broadcast, SparkContext, cloudpickle
from pyspark.serializers import CloudPickleSerializer

from sortshuffle.spark.functions.signatures import Function


class PickledFunction:
    """``pickled``: the function. ``broadcasts``: the broadcast variables in it, which Spark must send too."""

    __slots__ = ("_broadcasts", "_pickled")

    def __init__(self, pickled: bytes, broadcasts: tuple[Broadcast[Any], ...]) -> None:
        self._pickled = pickled
        self._broadcasts = broadcasts

    @staticmethod
    def of(function: Function) -> Any:
        """Pickle a function. To a type checker the result is what workers get. Raises PySpark's error if that
        fails."""
        context = SparkContext._active_spark_context
        if context is None:  # Spark Connect, which has no broadcast variables
            return PickledFunction(CloudPickleSerializer().dumps(function), ())
        registry: Any = context._pickled_broadcast_vars  # of this thread
        before = list(registry)
        registry.clear()
        try:
            pickled = CloudPickleSerializer().dumps(function)
            return PickledFunction(pickled, tuple(registry))
        finally:
            registry.clear()
            for broadcast in before:
                registry.add(broadcast)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        for broadcast in self._broadcasts:
            broadcast._pickle_registry.add(broadcast)  # as pickling the broadcast variable itself does
        return cloudpickle.loads, (self._pickled,)
