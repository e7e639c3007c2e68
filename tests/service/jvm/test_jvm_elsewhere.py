"""What an engine keeps of map outputs elsewhere: how much, and for how long."""

from __future__ import annotations

import numpy as np

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import ENTRY, Index, Writer
from sortshuffle.service.jvm.elsewhere import INDEX_OVERHEAD_BYTES, KnownElsewhere, KnownIndexes
from sortshuffle.service.jvm.outputs import KnownOutputs, SmallMapOutput
from sortshuffle.service.jvm.small_outputs import SmallOutput
from sortshuffle.storage.files.partitioned_file import PartitionedFile


def index_of(number: int, subpartitions: int, shuffle: int = 1) -> Index:
    header = FileHeader(number.to_bytes(16, "big"), subpartitions, 0, Codec.NONE, PayloadKind.RECORD_BYTES)
    writer = Writer(exchange=shuffle)
    return Index(header, np.zeros((1, subpartitions), ENTRY), (), b"", writer, 0)


def test_indexes_are_kept_up_to_a_size_the_longest_unused_goes_first() -> None:
    known = KnownIndexes(3 * (10 * ENTRY.itemsize + INDEX_OVERHEAD_BYTES))
    indexes = [index_of(number, 10) for number in range(5)]
    for each in indexes[:3]:
        known.put(each)
    assert known.get(indexes[0].header.file_id) is indexes[0]
    known.put(indexes[3])
    assert [known.get(each.header.file_id) is each for each in indexes] == [True, False, True, True, False]
    known.put(indexes[3])  # again: that takes no more room
    assert [known.get(each.header.file_id) is each for each in indexes] == [True, False, True, True, False]
    known.forget(indexes[2].header.file_id)
    known.forget(indexes[2].header.file_id)
    known.put(indexes[4])
    assert [known.get(each.header.file_id) is each for each in indexes] == [True, False, False, True, True]
    huge = index_of(9, 1000)
    known.put(huge)
    assert known.get(huge.header.file_id) is huge
    assert all(known.get(each.header.file_id) is None for each in indexes)


def test_what_is_known_of_a_removed_shuffle_is_forgotten() -> None:
    known = KnownElsewhere(KnownOutputs())
    for shuffle in (1, 2):
        known.indexes.put(index_of(shuffle, 10, shuffle))
        records = SmallOutput(b"record", np.array([6]), np.array([6]))
        known.small.keep(SmallMapOutput(file_of(shuffle), bytes([shuffle]), records))
    ids = [index_of(1, 10).header.file_id, index_of(2, 10).header.file_id, bytes([1]), bytes([2])]
    assert list(known.get_all(ids)) == ids
    known.forget_all(1)
    assert list(known.get_all(ids)) == [ids[1], ids[3]]


def test_the_room_of_forgotten_indexes_is_free_again() -> None:
    known = KnownIndexes(2 * (10 * ENTRY.itemsize + INDEX_OVERHEAD_BYTES))
    kept, removed, new = (index_of(number, 10, shuffle) for number, shuffle in ((1, 1), (2, 2), (3, 1)))
    known.put(kept)
    known.put(removed)
    known.forget_all(2)
    known.put(new)
    assert known.get(kept.header.file_id) is kept
    assert known.get(new.header.file_id) is new


def file_of(shuffle: int) -> PartitionedFile:
    return PartitionedFile.named("directory", shuffle, 0, 0)
