"""Many small extents sealed at once are byte for byte those that are sealed one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.format.buffer import scan_extent, seal
from sortshuffle.format.checksum import checksum_of_checksums
from sortshuffle.format.extent_run import checksums_of_single, seal_run


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=40))
def test_a_run_is_what_its_extents_are_one_by_one(payloads: list[bytes]) -> None:
    numbers = np.arange(3, 3 + 2 * len(payloads), 2)
    sizes = np.array([len(each) for each in payloads], np.int64)
    run = seal_run(b"".join(payloads), numbers, sizes, np.full(len(payloads), 7, np.int64))
    sealed = [seal(each, len(each), records=7) for each in payloads]
    assert bytes(run.data) == b"".join(each.header + each.payload + each.tail for each in sealed)
    assert run.bytes.tolist() == [each.bytes for each in sealed]
    assert run.raw_bytes.tolist() == [len(each) for each in payloads]
    assert run.checksums.tolist() == [checksum_of_checksums([each.checksum]) for each in sealed]
    assert (len(run), run.subpartitions.tolist()) == (len(payloads), numbers.tolist())
    assert run.records.tolist() == [7] * len(payloads)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_the_checksum_of_one_checksum_is_that_of_its_bytes(checksums: list[int]) -> None:
    found = checksums_of_single(np.array(checksums, np.uint64))
    assert found.dtype == np.uint64
    assert found.tolist() == [checksum_of_checksums([each]) for each in checksums]


def test_a_reader_finds_the_payloads_in_a_run() -> None:
    payloads = [b"a", b"", b"c" * 100]
    run = seal_run(b"".join(payloads), np.arange(3), np.array([1, 0, 100]), np.ones(3, np.int64))
    view, start, found = memoryview(run.data), 0, []
    for size, checksum in zip(run.bytes.tolist(), run.checksums.tolist(), strict=True):
        extent = view[start : start + size]
        (buffer,) = scan_extent(extent, checksum, 1)
        found.append(bytes(extent[buffer.start : buffer.start + buffer.size]))
        start += size
    assert found == payloads
