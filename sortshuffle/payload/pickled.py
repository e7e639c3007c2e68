"""Pickled chunks as payloads: Python objects, pickled many at a time.

Used by `ShuffleRDD` and `engine`. A chunk is a frame (`payload.frames`): the number of its records (u32,
little-endian), then one pickle (protocol 5) that holds the records. The number lets a reader count records
without unpickling, which would run whatever code the pickle names. A pickle holds one of

    [record, ...]                         any objects
    ([key, ...], [value, ...])            pairs
    ([key, ...], [combiner, ...], None)   pairs of a key and a combiner of several of the key's values
    ([key, ...], [value, ...], [n, ...])  keys, the values of all keys, and how many values each key has

Keys and values are in separate lists, because pickle spends more on the tuple of a pair than on its content:
a pair of an int and a short string takes 45 ns to pickle and 89 to unpickle as a tuple, 16 and 24 this way.
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
    """Keys and their values, in separate lists. Each key has one value, or one combiner if ``combined``. With
    ``counts``, key i has the next ``counts[i]`` values."""

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
        """The tuple that is pickled."""
        if self.combined or self.counts is not None:
            return self.keys, self.values, self.counts
        return self.keys, self.values


Chunk: TypeAlias = "list[Any] | Pairs"
"""The records of one chunk."""


def pack_chunk(objects: Sequence[Any]) -> bytearray:
    """Pack ``objects`` into a frame. Raises what pickle raises for objects that it cannot pickle."""
    return pack_content(len(objects), list(objects))


def pack_content(count: int, content: Any, dumps: Callable[[Any, int], bytes] = pickle.dumps) -> bytearray:
    """Pack ``content``, which holds ``count`` records, into a frame. ``dumps``: pickles an object with a
    given protocol. Raises what ``dumps`` raises."""
    chunk = bytearray(_COUNT.pack(count))
    chunk += dumps(content, PROTOCOL)
    return chunk


def count_objects(chunk: memoryview) -> int:
    """Return the number of objects that a chunk's header gives. Raises `Malformed`."""
    if len(chunk) <= _COUNT.size or chunk[-1] != _STOP:
        raise Malformed("a chunk of objects is no pickle or has bytes behind it", 0)
    return int(_COUNT.unpack_from(chunk)[0])


def unpack_chunk(chunk: memoryview) -> Chunk:
    """Unpickle the records of a chunk. **Runs what the pickle names**: only for files that this application
    wrote. Raises `Malformed` for another form or number of records, and whatever unpickling raises."""
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
    """Decodes frames that are chunks of pickled objects."""

    kind: ClassVar[PayloadKind] = PayloadKind.PICKLE

    def count(self, frame: memoryview) -> int:
        return count_objects(frame)

    def records(self, frame: memoryview) -> Chunk:
        """Return the records of one chunk. **Runs what the pickle names.**"""
        return unpack_chunk(frame)
