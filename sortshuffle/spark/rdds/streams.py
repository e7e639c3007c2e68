"""Records on their way through a task, one by one or in chunks, whichever the next part takes.

Users' functions take records. What merges, sorts and writes takes chunks, as they were read from an exchange,
with keys and values apart: for these no code of Python's runs for a record, and no tuple is made of a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeAlias

from sortshuffle.payload.pickled import Chunk

Records: TypeAlias = Iterator[Any]

MOST_RECORDS = 4096  # of a chunk made of single records: as good as 16,384


class RecordStream:
    """Made of one, taken as either, once."""

    __slots__ = ("_chunks", "_records")

    def __init__(self, records: Any = None, chunks: Iterable[Chunk] | None = None) -> None:
        self._records = records  # an iterable, or whatever a user's function gave instead
        self._chunks = chunks

    def records(self) -> Records:
        if self._chunks is not None:
            return chain.from_iterable(self._chunks)
        return iter(self._records)

    def chunks(self) -> Iterator[Chunk]:
        if self._chunks is not None:
            return iter(self._chunks)
        records = self.records()
        return iter(lambda: list(islice(records, MOST_RECORDS)), [])


def tuples_of(records: list[Any]) -> list[Any]:
    """Records that are pairs, as tuples. As in PySpark whatever can be unpacked into two is a pair; raises
    what unpacking raises (of what is a tuple already, whoever unpacks it)."""
    if set(map(type, records)) == {tuple}:
        return records
    return [(key, value) for key, value in records]
