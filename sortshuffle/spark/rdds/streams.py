"""Streams of records between the parts of a stage, read one by one or in chunks.

Users' functions and writers read records. Merges and sorts read chunks as an exchange delivers them, with
keys and values apart: handing chunks over needs no Python code per record and no tuple per pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, NoReturn, TypeAlias

from sortshuffle.options import MIB
from sortshuffle.payload.pickled import Chunk
from sortshuffle.spark.rdds.heap import mean_bytes

Records: TypeAlias = Iterator[Any]

MOST_RECORDS = 4096  # in a chunk made of single records; 16,384 were no quicker
# Bytes of the objects in a chunk of large records. 4096 pairs of an int and a short string take 0.6 MB
BATCH_BYTES = MIB


class RecordStream:
    """A stream made of records or of chunks. It can be read as either, once."""

    __slots__ = ("_chunks", "_records")

    def __init__(self, records: Any = None, chunks: Iterable[Chunk] | None = None) -> None:
        self._records = records  # an iterable, or what a user's function returned instead
        self._chunks = chunks

    def then(self, end: Iterator[NoReturn]) -> RecordStream:
        """Return this stream with an iterator behind it that yields nothing and may raise."""
        if self._chunks is not None:
            return RecordStream(chunks=chain(self._chunks, end))
        return RecordStream(records=chain(self._records, end))

    def records(self) -> Records:
        if self._chunks is not None:
            return chain.from_iterable(self._chunks)
        return iter(self._records)

    def chunks(self) -> Iterator[Chunk]:
        if self._chunks is not None:
            return iter(self._chunks)
        return _chunked(self.records())


def next_size(size: int, mean: float) -> int:
    """Return the number of records to hold next: twice the last number, ``size``, unless records are large.
    ``mean``: bytes of a record, of the last ones, because records may change in size."""
    return min(MOST_RECORDS, 2 * size, max(1, int(BATCH_BYTES / max(1.0, mean))))


def _chunked(records: Records) -> Iterator[Chunk]:
    size = 1
    while chunk := list(islice(records, size)):
        size = next_size(size, mean_bytes(chunk))
        yield chunk
        del chunk


def tuples_of(records: list[Any]) -> list[Any]:
    """Make tuples of pairs. As in PySpark, any record that unpacks into two is a pair. Raises what unpacking
    raises. A list of tuples is returned unchecked; one of another length fails where it is unpacked."""
    if set(map(type, records)) == {tuple}:
        return records
    return [(key, value) for key, value in records]
