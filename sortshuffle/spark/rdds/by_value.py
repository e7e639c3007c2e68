"""Pickling by value: chunks of records whose classes or functions cannot be imported.

A record of a `ShuffleRDD` may be anything that PySpark's serializer accepts, including functions, and objects
of classes from the user's script or notebook, which reached the worker by value. PySpark pickles all records
by cloudpickle, which takes 1.2 us more per instance of a class. Here only chunks that pickle refuses use it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from pyspark.serializers import CPickleSerializer

from sortshuffle.payload.pickled import Pairs, pack_content

_FAILURES = (pickle.PicklingError, AttributeError, TypeError)  # pickle's errors for unimportable objects


def pack_any(objects: Sequence[Any]) -> bytearray:
    """Pickle objects into a frame. Raises what PySpark's serializer raises for objects it cannot pickle."""
    return _pack(len(objects), list(objects))


def pack_any_pairs(pairs: Pairs) -> bytearray:
    """Pickle pairs into a frame. Raises what `pack_any` raises."""
    return _pack(len(pairs), pairs.content)


def _pack(count: int, content: Any) -> bytearray:
    try:
        return pack_content(count, content)
    except _FAILURES:
        return pack_content(count, content, _by_value)


def _by_value(objects: Any, protocol: int) -> bytes:
    pickled: bytes = CPickleSerializer().dumps(objects)
    return pickled
