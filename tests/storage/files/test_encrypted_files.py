"""Encrypted pairs: read with the key as they were written; nothing of the payloads is in the files. A wrong
key, no key and bytes that were changed on purpose are each a typed error, and none of them is lost data."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash
from engine import ID, OTHER_ID, Pair, Region, changed, read_pair, write_pair
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import CorruptDataError, DataLossError, DecryptionError
from sortshuffle.format.buffer import seal
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import RegionKind, WriterInfo
from sortshuffle.options import MIB
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index
from sortshuffle.storage.writer import ENCRYPTED_AT_ONCE, PartitionedFileWriter

KEY = EncryptionKey(bytes(range(16)))
OTHER_KEY = EncryptionKey(bytes(range(1, 33)))
BY_KEY = "It opens with the key of the application that wrote it alone (spark.io.encryption.enabled)"
PAIR = Pair(
    subpartitions=3,
    first=2,
    regions=(
        Region({0: [b"first marker", b""], 2: [bytes(range(50))]}),
        Region({0: [b"to all marker"]}, RegionKind.BROADCAST),
        Region({1: [b"second marker"], 0: [b"behind marker", b"again marker"]}),
    ),
    schema=b"schema",
)


@pytest.fixture
def file(tmp_path: Path) -> PartitionedFile:
    return write_pair(tmp_path, PAIR, key=KEY)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    subpartitions = draw(st.integers(1, 5))
    first = draw(st.integers(0, subpartitions - 1))
    payloads = st.lists(st.binary(max_size=200), max_size=4)
    regions = []
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            regions.append(Region({0: draw(payloads)}, RegionKind.BROADCAST))
        else:
            regions.append(Region(draw(st.dictionaries(st.integers(0, subpartitions - 1), payloads))))
    return Pair(
        subpartitions, first, regions, draw(st.binary(max_size=20)), draw(st.binary(min_size=16, max_size=16))
    )


@given(pairs(), st.sampled_from([None, 64, 200]))
def test_what_is_written_with_a_key_is_read_with_it(
    tmp_path_factory: pytest.TempPathFactory, pair: Pair, part_bytes: int | None
) -> None:
    file = write_pair(tmp_path_factory.mktemp("pair"), pair, key=KEY)
    assert read_pair(file, part_bytes, KEY) == pair.everything()


def test_what_the_files_show_is_no_payload(file: PartitionedFile) -> None:
    data, index = Path(file.data_path).read_bytes(), Path(file.index_path).read_bytes()
    assert b"marker" not in data + index
    assert bytes(range(20)) not in data[56:] + index[56:]
    assert b"schema" in index
    plain = write_pair(os.path.dirname(file.base), PAIR, attempt=205)
    assert Path(plain.data_path).read_bytes().count(b"marker") == 5


def test_the_same_payloads_in_two_files_are_other_bytes(file: PartitionedFile) -> None:
    twin = write_pair(os.path.dirname(file.base), replace(PAIR, file_id=OTHER_ID), attempt=205, key=KEY)
    assert read_pair(twin, key=KEY) == PAIR.everything()
    ours, theirs = (Path(each.data_path).read_bytes()[64:80] for each in (file, twin))
    assert ours != theirs


@pytest.mark.parametrize("part_bytes", [None, 64], ids=["whole extents", "parts"])
def test_a_wrong_key_is_known_at_once_and_is_no_lost_data(
    file: PartitionedFile, part_bytes: int | None
) -> None:
    with pytest.raises(DecryptionError, match="encrypted with another key") as caught:
        read_pair(file, part_bytes, OTHER_KEY)
    assert not isinstance(caught.value, DataLossError)
    assert caught.value.place.file == file.data_path
    assert str(caught.value).endswith(BY_KEY)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.place) == (DecryptionError, str(caught.value), caught.value.place)


@pytest.mark.parametrize("part_bytes", [None, 64], ids=["whole extents", "parts"])
def test_without_a_key_payloads_are_refused_and_checksums_are_verified(
    file: PartitionedFile, part_bytes: int | None
) -> None:
    with pytest.raises(DecryptionError, match="there is no key") as caught:
        read_pair(file, part_bytes)
    assert str(caught.value).endswith(BY_KEY)
    with PartitionedFileReader(file) as reader:
        found = [list(reader.checked_parts(each, 64)) for each in extents_of(read_index(file), 0)]
        assert [len(parts) for parts in found] == [2, 1, 2]
        extent = extents_of(read_index(file), 0)[0]
        with changed(file.data_path, extent.offset + 20, 1), pytest.raises(CorruptDataError):
            list(reader.checked_parts(extent, 64))


def test_a_plain_file_is_refused_where_there_is_a_key(tmp_path: Path) -> None:
    plain = write_pair(tmp_path, PAIR)
    with pytest.raises(DecryptionError, match="is not encrypted, as all of this application's is") as caught:
        read_pair(plain, key=KEY)
    assert "opens with the key" not in str(caught.value)
    assert str(caught.value).endswith("Somebody else wrote it: see who can write to this directory")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.place) == (str(caught.value), caught.value.place)


def test_a_change_of_any_byte_is_corrupt_data_before_it_is_decrypted(file: PartitionedFile) -> None:
    for offset in range(os.path.getsize(file.data_path)):
        with changed(file.data_path, offset, 1), pytest.raises(CorruptDataError):
            read_pair(file, key=KEY)
    assert read_pair(file, key=KEY) == PAIR.everything()


# Changes on purpose: with all checksums made anew


def _xxh3(data: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")


@contextmanager
def forged(file: PartitionedFile, change: Callable[[bytearray], None]) -> Iterator[None]:
    """The data file changed, with buffers' and extents' checksums and the index's to match."""
    before = Path(file.data_path).read_bytes(), Path(file.index_path).read_bytes()
    data, index = bytearray(before[0]), bytearray(before[1])
    change(data)
    entries = read_index(file).entries
    for number, entry in enumerate(entries.reshape(-1)):
        position, end = int(entry["offset"]), int(entry["offset"] + entry["bytes"])
        digests = b""
        while position < end:
            size = int.from_bytes(data[position + 4 : position + 8], "little")
            stop = position + -(-(size + 16) // 64) * 64
            data[stop - 8 : stop] = _xxh3(bytes(data[position : stop - 8]))
            digests += data[stop - 8 : stop]
            position = stop
        if digests:
            at = 56 + 48 * number + 32
            index[at : at + 8] = _xxh3(digests)
    index[-16:-8] = _xxh3(bytes(index[:-16]))
    Path(file.data_path).write_bytes(data)
    Path(file.index_path).write_bytes(index)
    try:
        yield
    finally:
        Path(file.data_path).write_bytes(before[0])
        Path(file.index_path).write_bytes(before[1])


def _payload_offsets(file: PartitionedFile) -> Iterator[int]:
    """Of every byte that is encrypted, and of the tags."""
    position, end = 56, os.path.getsize(file.data_path)
    data = Path(file.data_path).read_bytes()
    while position < end:
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        yield from range(position + 8, position + 8 + size)
        position += -(-(size + 16) // 64) * 64


def test_any_changed_byte_of_a_payload_or_tag_is_found_although_checksums_match(
    file: PartitionedFile,
) -> None:
    for offset in _payload_offsets(file):

        def flip(data: bytearray, at: int = offset) -> None:
            data[at] ^= 0x10

        with forged(file, flip), pytest.raises(DecryptionError, match="does not open"):
            read_pair(file, key=KEY)
    assert read_pair(file, key=KEY) == PAIR.everything()


def test_another_data_type_is_found_although_checksums_match(file: PartitionedFile) -> None:
    def make_event(data: bytearray) -> None:
        data[56] = 1

    with forged(file, make_event), pytest.raises(DecryptionError, match="does not open"):
        read_pair(file, key=KEY)


def test_buffers_that_change_places_are_found_although_checksums_match(tmp_path: Path) -> None:
    payloads = [b"one", b"two", b"six"]
    file = write_pair(tmp_path, Pair(2, regions=(Region({0: payloads[:2], 1: payloads[2:]}),)), key=KEY)

    for one, other in ((56, 120), (56, 184), (120, 184)):

        def swap(data: bytearray, a: int = one, b: int = other) -> None:
            data[a : a + 64], data[b : b + 64] = data[b : b + 64], data[a : a + 64]

        with forged(file, swap), pytest.raises(DecryptionError, match="does not open"):
            read_pair(file, key=KEY)
    assert read_pair(file, key=KEY) == [payloads[:2], payloads[2:]]


def test_an_index_that_gives_one_subpartitions_data_to_another_is_found(tmp_path: Path) -> None:
    file = write_pair(tmp_path, Pair(2, regions=(Region({0: [b"one"], 1: [b"two"]}),)), key=KEY)
    index = bytearray(Path(file.index_path).read_bytes())
    index[56:104], index[104:152] = index[104:152], index[56:104]
    index[-16:-8] = _xxh3(bytes(index[:-16]))
    Path(file.index_path).write_bytes(index)
    with pytest.raises(DecryptionError, match="does not open"):
        read_pair(file, key=KEY)


def test_a_file_under_anothers_id_is_found(tmp_path: Path) -> None:
    """Also where the header is forged: the id is what the file's key comes from."""
    file = write_pair(tmp_path, PAIR, key=KEY)
    check = KEY.of_file(OTHER_ID).check
    for path in (file.data_path, file.index_path):
        data = bytearray(Path(path).read_bytes())
        data[16:32], data[40:48] = OTHER_ID, check
        data[48:56] = _xxh3(bytes(data[:48]))
        if path == file.index_path:
            data[-16:-8] = _xxh3(bytes(data[:-16]))
        Path(path).write_bytes(data)
    assert read_index(file).header.file_id == OTHER_ID != ID
    with pytest.raises(DecryptionError, match="does not open"):
        read_pair(file, key=KEY)


def test_of_many_extents_at_once_the_one_that_does_not_open_is_named(tmp_path: Path) -> None:
    pair = Pair(2, 0, (Region({0: [b"first"], 1: [b"second"]}),), b"")
    file = write_pair(tmp_path, pair, key=KEY)
    first, second = (extents_of(read_index(file), subpartition)[0] for subpartition in (0, 1))
    with PartitionedFileReader(file, key=KEY) as reader:
        whole = replace(first, bytes=first.bytes + second.bytes)
        memory = reader.fetch(whole.bytes, whole)
        singles = [(0, len(b"first") + 16, 0), (first.bytes, len(b"second") + 16, 1)]
        assert reader.plain_singles(memory, singles, first.offset, 0) == [b"first", b"second"]
        singles[1] = (*singles[1][:2], 0)  # that is the first one's subpartition
        with pytest.raises(DecryptionError, match="does not open") as caught:
            reader.plain_singles(memory, singles, first.offset, 0)
    assert caught.value.place.offset == second.offset


def large_buffers(tmp_path: Path, count: int, size: int) -> tuple[PartitionedFile, list[int]]:
    """A pair with one extent of so many buffers, and the bytes that each append of data was given."""
    header = FileHeader(ID, 1, 0, Codec.NONE, PayloadKind.FRAMES)
    file = PartitionedFile(str(tmp_path / "large"))
    appended: list[int] = []
    payload = bytes(size)
    with PartitionedFileWriter(file, header, key=KEY) as writer:
        append = writer._pair.append_data

        def noted(pieces: Sequence[BytesLike]) -> None:
            appended.append(sum(len(memoryview(piece).cast("B")) for piece in pieces))
            append(pieces)

        writer._pair.append_data = noted  # type: ignore[method-assign]
        writer.start_region()
        writer.write_extents([(0, [seal(payload, size, records=1)] * count)])
        writer.finish_region()
        writer.finish(WriterInfo())
    return file, appended


def test_no_more_is_encrypted_at_a_time_than_is_worth_an_append(tmp_path: Path) -> None:
    file, appended = large_buffers(tmp_path, 10, 3 * MIB)
    (extent,) = extents_of(read_index(file), 0)
    assert len(appended) == 4
    assert max(appended) < ENCRYPTED_AT_ONCE + 3 * MIB
    assert sum(appended) == extent.bytes


def test_of_a_part_that_is_read_only_what_was_decrypted_is_held(tmp_path: Path) -> None:
    file, _ = large_buffers(tmp_path, 4, MIB)
    (extent,) = extents_of(read_index(file), 0)
    with PartitionedFileReader(file, key=KEY) as reader:
        before = pa.total_allocated_bytes()
        for part in reader.read_parts(extent, MIB + 128):
            assert part.memory.size <= pa.total_allocated_bytes() - before < 1.5 * MIB
            del part
