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
# Factor for the mean size of earlier records, for each batch. Of 40,000 records, one in 100 had 1 MiB and the
# others were small: 51 MiB were held at once with 0 and 0.5, in 51 batches; 45 MiB with 0.8, in 332; 20 MiB
# with 0.9, 0.95 and 0.98, in 1024, 2098 and 3158
MEAN_FALLS = 0.9


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


class BatchSize:
    """How many records to hold next (``records``): many small ones, or few large ones. The first batch is one
    record, because its size is not known. A batch is at most twice as long as the last one."""

    __slots__ = ("_mean", "records")

    def __init__(self) -> None:
        self.records = 1
        self._mean = 1.0  # bytes of a record

    def adapt(self, mean: float) -> None:
        """Choose the next number. ``mean``: bytes of a record of the last batch. If earlier records were
        larger, more of them may come, and a sample may have missed some: so the mean falls slowly."""
        self._mean = max(1.0, mean, MEAN_FALLS * self._mean)
        self.records = max(1, min(MOST_RECORDS, 2 * self.records, int(BATCH_BYTES / self._mean)))


def _chunked(records: Records) -> Iterator[Chunk]:
    size = BatchSize()
    while chunk := list(islice(records, size.records)):
        size.adapt(mean_bytes(chunk))
        yield chunk
        del chunk


def tuples_of(records: list[Any]) -> list[Any]:
    """Make tuples of pairs. As in PySpark, any record that unpacks into two is a pair. Raises what unpacking
    raises. A list of tuples is returned unchecked; one of another length fails where it is unpacked."""
    if set(map(type, records)) == {tuple}:
        return records
    return [(key, value) for key, value in records]
