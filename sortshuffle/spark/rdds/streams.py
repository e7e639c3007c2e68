"""Streams of records between the parts of a stage, read one by one or in chunks.

Users' functions and writers read records. Merges and sorts read chunks as an exchange delivers them, with
keys and values apart: handing chunks over needs no Python code per record and no tuple per pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeAlias

from sortshuffle.payload.pickled import Chunk

Records: TypeAlias = Iterator[Any]

MOST_RECORDS = 4096  # in a chunk made of single records; 16,384 were no quicker


class RecordStream:
    """A stream made of records or of chunks. It can be read as either, once."""

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
    """Make tuples of pairs. As in PySpark, any record that unpacks into two is a pair. Raises what unpacking
    raises. A list of tuples is returned unchecked; one of another length fails where it is unpacked."""
    if set(map(type, records)) == {tuple}:
        return records
    return [(key, value) for key, value in records]
