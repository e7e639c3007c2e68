"""Pickled chunks as payloads: Python objects, pickled many at a time.

Used by `ShuffleRDD`. A chunk is a frame (`payload.frames`) of a number of objects (u32, little-endian) and
one pickle (protocol 5) of a list of so many. So they can be counted, and checked, without unpickling them:
that would run whatever code the pickle names.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from sortshuffle.format.header import PayloadKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.payload.frames import FramesPayload

PROTOCOL = 5

_COUNT = struct.Struct("<I")
_STOP = ord(pickle.STOP)


def pack_chunk(objects: Sequence[Any], dumps: Callable[[Any, int], bytes] = pickle.dumps) -> bytearray:
    """The frame of these objects. ``dumps``: pickles an object by a protocol, such that pickle can read it.
    Raises what that raises for objects that it cannot take."""
    chunk = bytearray(_COUNT.pack(len(objects)))
    chunk += dumps(list(objects), PROTOCOL)
    return chunk


def count_objects(chunk: memoryview) -> int:
    """How many objects a chunk says that it holds. Raises `Malformed`."""
    if len(chunk) <= _COUNT.size or chunk[-1] != _STOP:
        raise Malformed("a chunk of objects is no pickle or has bytes behind it", 0)
    return int(_COUNT.unpack_from(chunk)[0])


def unpack_chunk(chunk: memoryview) -> list[Any]:
    """The objects of a chunk. **Runs what the pickle names**: only for files that this application wrote.

    Raises `Malformed` if it is not a list of as many objects as it says, what unpickling raises otherwise.
    """
    expected = count_objects(chunk)
    objects = pickle.loads(chunk[_COUNT.size :])
    if not isinstance(objects, list) or len(objects) != expected:
        found = len(objects) if isinstance(objects, list) else type(objects).__name__
        raise Malformed("a chunk holds another number of objects than it says", 0, expected, found)
    return objects


class PickledPayload(FramesPayload):
    """Chunks of objects."""

    kind: ClassVar[PayloadKind] = PayloadKind.PICKLE

    def count(self, frame: memoryview) -> int:
        """How many objects a chunk holds, as it says."""
        return count_objects(frame)

    def records(self, frame: memoryview) -> Sequence[Any]:
        """The objects of one chunk. **Runs what the pickle names.**"""
        return unpack_chunk(frame)
