"""The rows that stages of `ShuffleRDD` send each other through Spark.

A control row has the content of a row of `spark.control_rows`, without Arrow: the number of the exchange, the
subpartition and the map index (4 bytes each, little endian), then the same packed description. Only
subpartitions with records have one; the others hold nothing but the closing events. A task without records
writes no files.

A task that reads several inputs gets the control rows of all their exchanges, exchange by exchange. Then come
rows with the chunks of inputs that were in place without an exchange (`plan.PassedInput`), input by input.
Such a row has the number of the input for its exchange and `PASSED` for its map index; the chunk follows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from sortshuffle.payload.pickled import Chunk, unpack_chunk
from sortshuffle.reading.channel import InputChannel
from sortshuffle.spark.control_rows import MARK, SCHEMA, Reach, SparkMapOutput, channels, control_batches

ControlRow: TypeAlias = "tuple[int, bytes]"
"""The number of a partition, and a row for this partition."""

PASSED = 2**32 - 1  # no map task has this number

_HEAD = struct.Struct("<III")


def control_rows(output: SparkMapOutput, reach: Reach) -> Iterator[ControlRow]:
    """Yield the control rows of a map output, with their partitions."""
    index, exchange = reach.index(output), output.exchange
    has_records = index.entries["records"].sum(axis=0).tolist()
    for batch in control_batches(output, index, exchange=exchange):
        subpartitions, map_indexes, packed = (
            batch.column(name).to_pylist() for name in ("subpartition", "map_index", "output")
        )
        for subpartition, map_index, row in zip(subpartitions, map_indexes, packed, strict=True):
            if has_records[subpartition]:  # others hold only events
                yield subpartition, _HEAD.pack(exchange, subpartition, map_index) + row


def passed_row(number: int, chunk: bytes | bytearray) -> bytes:
    """Make a row that carries a chunk of input ``number``."""
    return _HEAD.pack(number, 0, PASSED) + chunk


class TaskInput:
    """What a task receives from Spark: records, or rows. ``has_steps``: whether the stage has steps.

    Rows are read on demand: the control rows all at once, passed chunks one by one.
    """

    def __init__(self, records: Iterator[Any], has_steps: bool = False) -> None:
        self.records = records
        self.has_steps = has_steps
        self._outputs: dict[int, list[bytes]] | None = None
        self._next: bytes | None = None  # a passed row that was read but not used yet

    def channels(self, exchange: int, reach: Reach) -> list[InputChannel]:
        """Open channels to the map outputs of an exchange."""
        return _channels(self._control().get(exchange, ()), reach)

    def passed(self, number: int) -> Iterator[Chunk]:
        """Yield the chunks of an input. Inputs must be read in their order; unread chunks of earlier inputs
        are skipped."""
        self._control()
        while self._next is not None:
            of = _HEAD.unpack_from(self._next)[0]
            if of > number:
                return
            row, self._next = self._next, next(self.records, None)
            if of == number:
                yield unpack_chunk(memoryview(row)[_HEAD.size :])

    def _control(self) -> dict[int, list[bytes]]:
        if self._outputs is None:
            self._outputs = {}
            for row in self.records:
                exchange, _, map_index = _HEAD.unpack_from(row)
                if map_index == PASSED:
                    self._next = row
                    break
                self._outputs.setdefault(exchange, []).append(row)
        return self._outputs


def _channels(rows: Iterable[bytes], reach: Reach) -> list[InputChannel]:
    rows = list(rows)
    heads = np.array([_HEAD.unpack_from(row) for row in rows], np.int64).reshape(-1, 3).astype(np.int32)
    columns = {
        MARK: pa.array(heads[:, 1]),
        "subpartition": pa.array(heads[:, 1]),
        "map_index": pa.array(heads[:, 2]),
        "output": pa.array([row[_HEAD.size :] for row in rows], pa.binary()),
        "exchange": pa.array(heads[:, 0]),
    }
    batch = pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    return channels(iter((batch,)), reach)
