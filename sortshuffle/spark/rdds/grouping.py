"""Groups too long for the memory: their values are on disk and are read again for each iteration.

A `LongGroup` replaces the list of a key in a table. Values are added to it as to a list. From time to time
its values become a part of a spill file; the last values stay in memory. For users it is an iterable with a
length, like PySpark's `ExternalList`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from sortshuffle.payload.pickled import unpack_chunk
from sortshuffle.spark.rdds.by_value import pack_any
from sortshuffle.spark.rdds.failures import noting_errors
from sortshuffle.spark.rdds.spilling import RecordSpillFile, SpilledPart, batches

PACKED_TOGETHER = 1024  # values of a pickled group


class LongGroup:
    """The values of one key, in the order in which they were added."""

    __slots__ = ("_aside", "_parts", "_tail", "append", "extend")

    def __init__(self, values: list[Any]) -> None:
        self._tail = values
        self._parts: list[SpilledPart] = []
        self._aside = 0
        self.append = values.append
        self.extend = values.extend

    @property
    def in_memory(self) -> int:
        """Number of values in memory."""
        return len(self._tail)

    def put_aside(self, file: RecordSpillFile) -> None:
        """Spill the values in memory to ``file``."""
        if self._tail:
            file.write([(0, self._tail)])
            self._parts.append(file.part())
            self._aside += len(self._tail)
            self._tail.clear()

    def __len__(self) -> int:
        return self._aside + len(self._tail)

    def __iter__(self) -> Iterator[Any]:
        with noting_errors():
            for part in self._parts:
                for chunk in part.chunks():
                    yield from chunk
        yield from self._tail

    def __reduce__(self) -> Any:
        # another process cannot read the file, so it gets a list; stored values are not unpickled here
        with noting_errors():
            packed = [bytes(chunk) for part in self._parts for chunk in part.packed()]
        packed += [bytes(pack_any(values)) for values in batches(self._tail, PACKED_TOGETHER)]
        return _unpack, (packed,)


def _unpack(packed: list[bytes]) -> list[Any]:
    return list(chain.from_iterable(unpack_chunk(memoryview(chunk)) for chunk in packed))
