"""What RDDs give their record writer: pairs with values of each kind, whole records, errors."""

from __future__ import annotations

from pickle import PicklingError
from typing import Any

import pytest

from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.pickled import Chunk, Pairs, unpack_chunk
from sortshuffle.spark.rdds.aggregations import ValueKind
from sortshuffle.spark.rdds.by_value import pack_any
from sortshuffle.spark.rdds.key_selectors import FunctionKeySelector
from sortshuffle.spark.rdds.writing import PAIR_SERIALIZERS, _emit_pairs
from sortshuffle.writing.record_writer import RecordWriter, Serializer


class Target:
    """Keeps the chunks of its one subpartition."""

    subpartitions = 1

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def emit(self, frame: Any, subpartition: int) -> None:
        self.chunks.append(unpack_chunk(memoryview(frame)))

    def broadcast_frame(self, frame: Any) -> None:
        raise AssertionError

    def broadcast_event(self, event: Any) -> None:
        raise AssertionError


def writer_to(target: Target, serializer: Serializer = PAIR_SERIALIZERS[ValueKind.PLAIN]) -> RecordWriter:
    return RecordWriter(FunctionKeySelector(lambda key: 0, 1), serializer, target, TaskMetrics())


def test_chunks_hold_values_of_one_kind() -> None:
    target = Target()
    writer = writer_to(target)
    _emit_pairs(writer, [1, 2], [10, 20], ValueKind.PLAIN)
    _emit_pairs(writer, [1, 2], [[1, 2], [3]], ValueKind.GROUPED)
    _emit_pairs(writer, [3], [{4}], ValueKind.COMBINED)
    _emit_pairs(writer, [5], [50], ValueKind.PLAIN)
    writer.finish()
    found: dict[tuple[bool, bool], list[Any]] = {}
    for chunk in target.chunks:
        assert isinstance(chunk, Pairs)
        found.setdefault((chunk.combined, chunk.counts is not None), []).extend(chunk)
    assert found == {
        (False, False): [(1, 10), (2, 20), (5, 50)],
        (False, True): [(1, [1, 2]), (2, [3])],
        (True, False): [(3, {4})],
    }


def test_whole_records_need_not_be_pairs() -> None:
    target = Target()
    writer = writer_to(target, pack_any)
    records = [1, "a", None, (1, 2), (1, 2, 3)]
    writer.emit_batch(records, records)
    writer.finish()
    assert [record for chunk in target.chunks for record in chunk] == records
    assert not any(isinstance(chunk, Pairs) for chunk in target.chunks)


def test_what_cannot_be_pickled_is_pysparks_error() -> None:
    writer = writer_to(Target())
    with pytest.raises(PicklingError, match="cannot pickle 'generator'"):
        _emit_pairs(writer, [1], [(n for n in range(1))], ValueKind.PLAIN)
