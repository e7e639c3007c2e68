"""Pickled chunks as payloads: Python objects, pickled many at a time.

Used by `ShuffleRDD` and `engine`. A chunk is a frame (`payload.frames`): the number of its records (u32,
little-endian) and one pickle (protocol 5) that holds them. So records are counted without unpickling, which
would run whatever code the pickle names. A pickle holds one of

    [record, ...]                      any objects
    ([key, ...], [value, ...])         pairs
    ([key, ...], [combiner, ...], None)   pairs of a key and what was made of several values of it
    ([key, ...], [value, ...], [n, ...])  keys, the values of all of them, and how many each of them has

Keys and values are in lists of their own, because a tuple for each pair costs pickle more than its content: a
pair of an int and a short string takes 45 ns to pickle and 89 to unpickle as a tuple, 16 and 24 this way.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from sortshuffle.format.header import PayloadKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.payload.frames import FramesPayload

PROTOCOL = 5

_COUNT = struct.Struct("<I")
_STOP = ord(pickle.STOP)


@dataclass(slots=True)
class Pairs:
    """Keys and values in lists of their own.

    One value for each key; with ``combined`` one combiner for each; with ``counts`` the next ``counts[i]``
    values for key i.
    """

    keys: Sequence[Any]
    values: Sequence[Any]
    combined: bool = False
    counts: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        if self.counts is None:
            return zip(self.keys, self.values, strict=True)
        return self._groups(self.counts)

    def _groups(self, counts: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        start = 0
        for key, count in zip(self.keys, counts, strict=True):
            yield key, self.values[start : start + count]
            start += count

    @property
    def content(self) -> tuple[Any, ...]:
        """What is pickled."""
        if self.combined or self.counts is not None:
            return self.keys, self.values, self.counts
        return self.keys, self.values


Chunk: TypeAlias = "list[Any] | Pairs"
"""The records of one chunk."""


def pack_chunk(objects: Sequence[Any]) -> bytearray:
    """The frame of these objects. Raises what pickle raises for objects that it cannot take."""
    return pack_content(len(objects), list(objects))


def pack_content(count: int, content: Any, dumps: Callable[[Any, int], bytes] = pickle.dumps) -> bytearray:
    """The frame of ``content``, which holds ``count`` records. ``dumps``: pickles an object by a protocol.
    Raises what ``dumps`` raises."""
    chunk = bytearray(_COUNT.pack(count))
    chunk += dumps(content, PROTOCOL)
    return chunk


def count_objects(chunk: memoryview) -> int:
    """The number of objects in a chunk's head. Raises `Malformed`."""
    if len(chunk) <= _COUNT.size or chunk[-1] != _STOP:
        raise Malformed("a chunk of objects is no pickle or has bytes behind it", 0)
    return int(_COUNT.unpack_from(chunk)[0])


def unpack_chunk(chunk: memoryview) -> Chunk:
    """The records of a chunk. **Runs what the pickle names**: only for files that this application wrote.

    Raises `Malformed` if it does not hold as many as it says, what unpickling raises otherwise.
    """
    expected = count_objects(chunk)
    content = pickle.loads(chunk[_COUNT.size :])
    if type(content) is tuple:
        records: Chunk = _pairs(content)
    elif isinstance(content, list):
        records = content
    else:
        raise Malformed(_OTHER_NUMBER, 0, expected, type(content).__name__)
    if len(records) != expected:
        raise Malformed(_OTHER_NUMBER, 0, expected, len(records))
    return records


_OTHER_NUMBER = "a chunk holds another number of objects than it says"


def _pairs(content: tuple[Any, ...]) -> Pairs:
    if len(content) not in (2, 3) or not all(isinstance(part, list) for part in content[:2]):
        raise Malformed("a chunk holds a tuple that is no keys and values", 0)
    keys, values = content[:2]
    counts = content[2] if len(content) > 2 else None
    if (
        sum(counts) != len(values) or len(counts) != len(keys)
        if counts is not None
        else len(keys) != len(values)
    ):
        raise Malformed("a chunk of pairs has not as many values as keys", 0, len(keys), len(values))
    return Pairs(keys, values, len(content) > 2 and counts is None, counts)


class PickledPayload(FramesPayload):
    """Chunks of objects."""

    kind: ClassVar[PayloadKind] = PayloadKind.PICKLE

    def count(self, frame: memoryview) -> int:
        """The number of objects in a chunk's head."""
        return count_objects(frame)

    def records(self, frame: memoryview) -> Chunk:
        """The records of one chunk. **Runs what the pickle names.**"""
        return unpack_chunk(frame)
