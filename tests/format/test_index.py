"""The index file: where each entry stands, the tail that makes a pair self-describing, and that an index is
believed as a whole or not at all."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from damaged import refusal, undetected_changes
from engine import WRITER, WRITER_JSON, Pair, Region, pair_by_hand, xxh3
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.format.index import (
    ENTRY,
    ENTRY_BYTES,
    RegionKind,
    WriterInfo,
    pack_tail,
    unpack_entries,
    unpack_index,
)
from sortshuffle.format.malformed import Malformed

SCHEMA = b"a schema message"
PAIR = Pair(
    subpartitions=3,
    first=1,
    regions=(Region({0: [b"a" * 10, b"b" * 100], 1: [b"c"]}), Region({0: [b"to all"]}, RegionKind.BROADCAST)),
    schema=SCHEMA,
)
DATA, GOOD = pair_by_hand(PAIR)
# sizes: header 56, 2 x 3 entries of 48, kinds 2, schema, writer, footer 56
KINDS = 56 + 6 * 48
FOOTER = len(GOOD) - 56


def resealed(index: bytes) -> bytes:
    """The index with the checksum that its bytes call for."""
    return index[:-16] + xxh3(index[:-16]) + index[-8:]


def with_bytes(offset: int, value: bytes) -> bytes:
    return resealed(GOOD[:offset] + value + GOOD[offset + len(value) :])


def with_writer(written: bytes) -> bytes:
    """The index with another JSON object."""
    footer = bytearray(GOOD[FOOTER:])
    struct.pack_into("<I", footer, 8, len(written))
    return resealed(GOOD[: FOOTER - len(WRITER_JSON)] + written + bytes(footer))


def test_an_index_made_by_hand_is_read() -> None:
    index = unpack_index(GOOD)
    assert index.header == PAIR.header
    assert index.kinds == (RegionKind.UNICAST, RegionKind.BROADCAST)
    assert (index.regions, index.schema, index.writer) == (2, SCHEMA, WRITER)
    assert index.data_bytes == len(DATA)


def test_entries_stand_where_the_format_description_says() -> None:
    assert ENTRY_BYTES == 48
    index = unpack_index(GOOD)
    for region in range(2):
        for subpartition in range(3):
            start = 56 + 48 * (region * 3 + subpartition)
            expected = struct.unpack_from("<QQQQQII", GOOD, start)
            assert index.entries[region, subpartition].item() == expected


def test_fields_of_an_entry_are_offset_bytes_raw_bytes_records_checksum_buffers() -> None:
    # write order 1, 2, 0: subpartition 1 has one buffer, 2 is empty, 0 has buffers of 64 and 128 bytes
    entries = unpack_index(GOOD).entries
    fields = ["offset", "bytes", "raw_bytes", "records", "buffers", "reserved"]
    region0 = [tuple(int(entry[name]) for name in fields) for entry in entries[0]]
    assert region0 == [(120, 192, 110, 2, 2, 0), (56, 64, 1, 1, 1, 0), (120, 0, 0, 0, 0, 0)]
    assert [int(entry["offset"]) for entry in entries[1]] == [312, 312, 312]
    assert {int(entry["bytes"]) for entry in entries[1]} == {64}
    assert entries[0]["checksum"][2] == 0
    assert len(set(entries[1]["checksum"].tolist())) == 1


def test_once_counts_the_extent_of_a_broadcast_region_once() -> None:
    owned = unpack_index(GOOD).once()
    assert owned["bytes"].tolist() == [192, 64, 0, 64]
    assert owned["records"].tolist() == [2, 1, 0, 1]


def test_an_index_without_regions_is_read() -> None:
    data, written = pair_by_hand(Pair(subpartitions=4))
    index = unpack_index(written)
    assert (index.regions, index.kinds, index.entries.shape) == (0, (), (0, 4))
    assert len(index.once()) == 0
    assert (index.data_bytes, len(data)) == (56, 56)


def test_a_changed_byte_anywhere_is_refused() -> None:
    assert undetected_changes(GOOD, unpack_index) == []


def test_every_truncated_index_is_refused() -> None:
    assert [size for size in range(len(GOOD)) if refusal(unpack_index, GOOD[:size]) is None] == []


@given(st.binary(min_size=1, max_size=200))
def test_an_index_with_bytes_behind_it_is_refused(rest: bytes) -> None:
    with pytest.raises(Malformed):
        unpack_index(GOOD + rest)


def test_a_whole_index_behind_another_is_refused() -> None:
    with pytest.raises(Malformed, match="checksum"):
        unpack_index(GOOD + GOOD)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(Malformed, match="does not end with its magic: it is cut short") as caught:
        unpack_index(GOOD[:-1])
    assert caught.value.offset == len(GOOD) - 9
    with pytest.raises(Malformed, match="the index is cut short") as caught:
        unpack_index(GOOD[:111])
    assert (caught.value.expected, caught.value.found) == (112, 111)


@pytest.mark.parametrize("field", range(3), ids=["regions", "schema bytes", "writer bytes"])
def test_sizes_in_the_footer_must_add_up(field: int) -> None:
    (value,) = struct.unpack_from("<I", GOOD, FOOTER + 4 * field)
    for wrong in (value - 1, value + 1, 2**32 - 1):
        with pytest.raises(Malformed, match="another size than its footer says") as caught:
            unpack_index(with_bytes(FOOTER + 4 * field, struct.pack("<I", wrong)))
        assert (caught.value.offset, caught.value.found) == (FOOTER, len(GOOD))


@pytest.mark.parametrize(("offset", "total"), [(24, "records"), (32, "buffers")])
def test_totals_in_the_footer_must_add_up(offset: int, total: str) -> None:
    (value,) = struct.unpack_from("<Q", GOOD, FOOTER + offset)
    assert value == 4, total
    with pytest.raises(Malformed, match="totals do not add up"):
        unpack_index(with_bytes(FOOTER + offset, struct.pack("<Q", value + 1)))


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 1 << 40, "outside the data file"),
        (8, 1 << 40, "outside the data file"),
        (8, (1 << 64) - 1, "outside the data file"),  # with the offset it is a small number again
        (0, (1 << 64) - 1, "outside the data file"),
    ],
    ids=["offset", "bytes", "bytes that wrap", "offset that wraps"],
)
def test_an_extent_outside_the_data_file_is_refused(at: int, value: int, message: str) -> None:
    with pytest.raises(Malformed, match=message) as caught:
        unpack_index(with_bytes(56 + at, struct.pack("<Q", value)))
    assert caught.value.offset == 56


@pytest.mark.parametrize("field", range(6), ids=["offset", "bytes", "raw", "records", "checksum", "buffers"])
def test_a_broadcast_region_has_one_extent(field: int) -> None:
    at = 56 + 48 * 4  # of the second subpartition in the second region
    changed = bytearray(GOOD[at : at + 48])
    changed[8 * field] -= 1
    with pytest.raises(Malformed, match="the entries of region 1, a broadcast region, differ") as caught:
        unpack_index(with_bytes(at, bytes(changed)))
    assert caught.value.offset == at


def test_extents_cannot_take_more_than_the_data_file_has() -> None:
    (data_bytes,) = struct.unpack_from("<Q", GOOD, FOOTER + 16)
    everything = struct.pack("<QQ", 0, data_bytes)
    data = with_bytes(56, everything + GOOD[56 + 16 : 56 + 48] + everything)  # two extents of all of it
    with pytest.raises(Malformed, match="take more than the data file has"):
        unpack_index(data)
    with pytest.raises(Malformed, match="take more than the data file has"):
        unpack_index(with_bytes(FOOTER + 16, struct.pack("<Q", (1 << 53) + 1)))


@pytest.mark.parametrize("offset", [FOOTER + 12, *(56 + 48 * entry + 44 for entry in range(6))])
def test_reserved_bytes_are_refused_if_they_are_set(offset: int) -> None:
    for position in range(offset, offset + 4):
        with pytest.raises(Malformed):
            unpack_index(with_bytes(position, b"\x01"))


@pytest.mark.parametrize("kind", [2, 255])
def test_a_region_kind_that_is_not_known_is_refused(kind: int) -> None:
    with pytest.raises(Malformed, match="region kind") as caught:
        unpack_index(with_bytes(KINDS + 1, bytes([kind])))
    assert (caught.value.offset, caught.value.found) == (KINDS + 1, kind)


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe{}",
        b'{"ordering":5}',
        b'{"attempt":"7"}',
        b'{"host":5}',
        b'{"exchange":true}',
    ],
)
def test_a_writer_that_is_not_a_json_object_is_refused(written: bytes) -> None:
    with pytest.raises(Malformed, match="writer") as caught:
        unpack_index(with_writer(written))
    assert caught.value.offset == KINDS + 2 + len(SCHEMA)


def test_keys_that_are_not_known_are_ignored_and_missing_ones_have_their_defaults() -> None:
    index = unpack_index(with_writer(b'{"attempt":9,"from a later release":{"a":[1]},"ordering":["k","l"]}'))
    assert index.writer == WriterInfo(attempt=9, ordering=("k", "l"))


@given(
    st.builds(
        WriterInfo,
        application=st.text(),
        exchange=st.integers(0),
        attempt=st.integers(0),
        host=st.text(),
        ordering=st.lists(st.text()).map(tuple),
    )
)
def test_a_writer_is_read_back_as_it_was(writer: WriterInfo) -> None:
    assert WriterInfo.unpack(writer.pack()) == writer


def test_a_writer_is_compact_utf8_json_with_the_documented_keys() -> None:
    packed = WriterInfo(host="zürich", ordering=("k",)).pack()
    assert "zürich".encode() in packed
    assert b" " not in packed
    assert list(json.loads(packed)) == [
        "application",
        "exchange",
        "stage",
        "map_index",
        "attempt",
        "host",
        "time",
        "software",
        "ordering",
    ]
    assert WRITER.pack() == WRITER_JSON


def test_a_writer_is_shown_as_attempt_map_and_host() -> None:
    assert str(WRITER) == "attempt 204 of map 17 on host"


def tail(head_and_entries: int = 56 + 2 * 3 * 48) -> tuple[bytes, bytes]:
    return pack_tail(
        head_and_entries=head_and_entries,
        subpartitions=3,
        kinds=(RegionKind.UNICAST, RegionKind.BROADCAST),
        schema=SCHEMA,
        writer=WRITER_JSON,
        data_bytes=len(DATA),
        records=4,
        buffers=4,
    )


def test_the_tail_is_written_as_described() -> None:
    body, footer = tail()
    assert body == GOOD[KINDS:FOOTER]
    assert footer == GOOD[FOOTER:-16]


@pytest.mark.parametrize("missing", [-48, 48, 1])
def test_a_tail_that_does_not_fit_the_entries_is_never_written(missing: int) -> None:
    with pytest.raises(ValueError, match="do not match the number of regions"):
        tail(56 + 6 * 48 + missing)


def test_entries_can_be_read_before_there_is_a_tail() -> None:
    entries = unpack_entries(GOOD[56:], 1, 3)
    assert entries.dtype == ENTRY
    np.testing.assert_array_equal(entries, unpack_index(GOOD).entries[:1])
