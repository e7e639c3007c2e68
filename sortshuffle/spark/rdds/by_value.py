"""Pickling by value: chunks of records whose classes or functions cannot be imported.

Records of a `ShuffleRDD` may be anything that PySpark's serializer accepts: also functions, and instances of
classes from the user's script or notebook, which came to the worker by value. PySpark pickles all records by
cloudpickle, which takes 1.2 us more for each instance of a class. Here only the chunks that need it do.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from pyspark.serializers import CPickleSerializer

from sortshuffle.payload.pickled import Pairs, pack_content

_FAILURES = (pickle.PicklingError, AttributeError, TypeError)  # of pickle, for what cannot be imported


def pack_any(objects: Sequence[Any]) -> bytearray:
    """The frame of these objects. Raises what PySpark's serializer raises for what cannot be pickled."""
    return _packed(len(objects), list(objects))


def pack_any_pairs(pairs: Pairs) -> bytearray:
    """The same for pairs."""
    return _packed(len(pairs), pairs.content)


def _packed(count: int, content: Any) -> bytearray:
    try:
        return pack_content(count, content)
    except _FAILURES:
        return pack_content(count, content, _by_value)


def _by_value(objects: Any, protocol: int) -> bytes:
    pickled: bytes = CPickleSerializer().dumps(objects)
    return pickled
