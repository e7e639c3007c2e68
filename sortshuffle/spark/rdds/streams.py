"""Streams of records between the parts of a stage, read one by one or in chunks.

Users' functions read records. Merges, sorts and writers read chunks, as they come from an exchange, with keys
and values apart. So no Python code runs for each record, and no tuple is made of a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeAlias

from sortshuffle.payload.pickled import Chunk

Records: TypeAlias = Iterator[Any]

MOST_RECORDS = 4096  # of a chunk made of single records; 16,384 were no quicker


class RecordStream:
    """Made of records or of chunks; read as either, once."""

    __slots__ = ("_chunks", "_records")

    def __init__(self, records: Any = None, chunks: Iterable[Chunk] | None = None) -> None:
        self._records = records  # an iterable, or what a user's function returned instead
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
    """Pairs as tuples. As in PySpark a pair is what can be unpacked into two. Raises what unpacking raises;
    tuples of another length pass, and fail where they are unpacked."""
    if set(map(type, records)) == {tuple}:
        return records
    return [(key, value) for key, value in records]
