"""What an engine keeps of map outputs elsewhere: how much, and for how long."""

from __future__ import annotations

import numpy as np

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import ENTRY, Index, Writer
from sortshuffle.service.jvm.elsewhere import KnownElsewhere
from sortshuffle.service.jvm.outputs import KnownOutputs, SmallMapOutput
from sortshuffle.service.jvm.small_outputs import SmallOutput
from sortshuffle.storage.files.partitioned_file import PartitionedFile


def index_of(number: int, subpartitions: int, shuffle: int = 1) -> Index:
    header = FileHeader(number.to_bytes(16, "big"), subpartitions, 0, Codec.NONE, PayloadKind.RECORD_BYTES)
    writer = Writer(exchange=shuffle)
    return Index(header, np.zeros((1, subpartitions), ENTRY), (), b"", writer, 0)


def test_what_is_known_of_a_removed_shuffle_is_forgotten() -> None:
    known = KnownElsewhere(KnownOutputs())
    for shuffle in (1, 2):
        known.indexes.keep(index_of(shuffle, 10, shuffle))
        records = SmallOutput(b"record", np.array([6]), np.array([6]))
        known.small.keep(SmallMapOutput(file_of(shuffle), bytes([shuffle]), records))
    ids = [index_of(1, 10).header.file_id, index_of(2, 10).header.file_id, bytes([1]), bytes([2])]
    assert list(known.get_all(ids)) == ids
    known.forget_all(1)
    assert list(known.get_all(ids)) == [ids[1], ids[3]]


def file_of(shuffle: int) -> PartitionedFile:
    return PartitionedFile.named("directory", shuffle, 0, 0)
