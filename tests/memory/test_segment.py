"""One piece of page-aligned memory that everything which moves bytes takes without a copy."""

from __future__ import annotations

import mmap
import os
import resource
import socket
from pathlib import Path

import pyarrow as pa
import pytest
from engine import printed

from sortshuffle.errors import UsageError
from sortshuffle.memory.segment import MemorySegment


@pytest.mark.parametrize("size", [1, 31, 64, 127, 4096, 32768, 32769])
def test_a_segment_starts_on_a_page_and_has_exactly_its_size_zeroed(size: int) -> None:
    segment = MemorySegment(size)
    assert segment.address % mmap.PAGESIZE == 0
    assert segment.size == len(segment.view) == len(segment.read_only) == size
    assert bytes(segment.view) == bytes(size)


@pytest.mark.parametrize("size", [0, -1])
def test_a_segment_without_a_byte_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=f"at least 1 byte, not {size}"):
        MemorySegment(size)


def test_both_views_show_the_same_memory_and_one_of_them_cannot_change_it() -> None:
    segment = MemorySegment(8)
    segment.view[:3] = b"abc"
    assert bytes(segment.read_only) == b"abc\0\0\0\0\0"
    with pytest.raises(TypeError):
        segment.read_only[0] = 1


def test_files_and_sockets_fill_it_and_are_filled_from_it(tmp_path: Path) -> None:
    segment = MemorySegment(6)
    path = tmp_path / "bytes"
    path.write_bytes(b"0123456789")
    with path.open("r+b", buffering=0) as file:
        assert os.preadv(file.fileno(), [segment.view], 2) == 6
        assert bytes(segment.view) == b"234567"
        assert os.writev(file.fileno(), [segment.read_only[:2], segment.view[4:]]) == 4
    assert path.read_bytes() == b"2367456789"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"xyz")
        assert ours.recv_into(segment.view[1:4]) == 3
        ours.sendall(segment.read_only)
        assert theirs.recv(100) == b"2xyz67"


def test_its_address_is_where_its_bytes_are() -> None:
    segment = MemorySegment(16)
    segment.view[:4] = b"\1\0\0\0"
    assert pa.py_buffer(segment.view).address == segment.address


def test_the_memory_outlives_the_segment_while_a_view_is_held() -> None:
    segment = MemorySegment(4096)
    view = segment.view[10:13]
    view[:] = b"abc"
    del segment
    assert bytes(view) == b"abc"


def test_a_forked_child_has_a_copy_of_its_own() -> None:
    segment = MemorySegment(4096)
    segment.view[0] = 1
    child = os.fork()
    if child == 0:
        segment.view[0] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert segment.view[0] == 1


LIMITED = """
import resource, sys
from sortshuffle.memory.segment import allocate_segments
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, hard))
try:
    allocate_segments(64, 1 << 26, option="an.option")
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY, reason="limited already"
)
def test_too_little_address_space_is_a_memory_error_that_names_the_option() -> None:
    words = " ".join(printed(LIMITED))
    assert "of 64 segments of 67108864 bytes (4294967296 bytes in all): lower an.option" in words
