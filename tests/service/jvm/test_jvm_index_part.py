"""What a request holds of an index: the entries of its block, and nothing that keeps the others."""

from __future__ import annotations

import numpy as np
import pytest
from engine import WRITER

from sortshuffle.errors import UsageError
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import ENTRY, Index, RegionKind
from sortshuffle.service.jvm.index_part import IndexPart
from sortshuffle.service.jvm.protocol import Block

REGIONS, SUBPARTITIONS = 3, 10


@pytest.fixture
def index() -> Index:
    header = FileHeader(bytes(16), SUBPARTITIONS, 0, Codec.LZ4, PayloadKind.RECORD_BYTES)
    entries = np.zeros((REGIONS, SUBPARTITIONS), ENTRY)
    entries["bytes"] = np.arange(REGIONS * SUBPARTITIONS).reshape(REGIONS, SUBPARTITIONS)
    return Index(header, entries, (RegionKind.UNICAST,) * REGIONS, b"", WRITER, 1234)


def block(first: int, end: int) -> Block:
    return Block(1, 1, first, end, 0, bytes(16))


def test_it_has_the_blocks_own_entries_alone(index: Index) -> None:
    part = IndexPart.of(index, block(4, 6))
    assert (part.codec, part.writer, part.data_bytes, part.first) == (Codec.LZ4, str(WRITER), 1234, 4)
    assert part.entries["bytes"].tolist() == [[4, 5], [14, 15], [24, 25]]
    assert part.entries.base is None, "a view would keep all entries"


def test_subpartitions_that_there_are_not_are_an_error(index: Index) -> None:
    assert IndexPart.of(index, block(9, 10)).entries["bytes"].tolist() == [[9], [19], [29]]
    with pytest.raises(UsageError, match="subpartitions 9 to 10 of a map output that has 10"):
        IndexPart.of(index, block(9, 11))
