"""Frames in memory that a JVM and the engine share: the same map output as through the socket, whatever is
written there after the engine's reply; nothing outside of it is read; nothing of it is left."""

from __future__ import annotations

import errno
import mmap
import os
import random
import select
import struct

import pytest
from engine import eventually
from jvm_client import (
    BAD_REQUEST,
    DONE,
    FAILED,
    FINISH,
    SHARE,
    SHARED_FRAME,
    Block,
    JvmClient,
    Record,
    Serving,
    connected,
    expected,
    request_of,
    shared_frame_of,
)

from sortshuffle import calls
from sortshuffle.homes import home_failures
from sortshuffle.options import KIB, MIB
from sortshuffle.service.jvm import server as servers
from sortshuffle.service.jvm.map_output_writer import MapOutputWriter
from sortshuffle.service.jvm.shared_frames import MOST_BYTES
from sortshuffle.writing.placed_records import PlacedRecordEncoder

SLOT = 64 * KIB
SUBPARTITIONS = 5


def shared_by(client: JvmClient, size: int = 2 * SLOT) -> mmap.mmap:
    found = client.share(size)
    assert found is not None
    return found


def some_records(seed: int) -> list[Record]:
    chosen = random.Random(seed)
    return [(chosen.randrange(SUBPARTITIONS), chosen.randbytes(chosen.randrange(300))) for _ in range(200)]


def memories() -> list[str]:
    """The memories for frames that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            pass  # that of the listing
    return [each for each in found if "sortshuffle-frames" in each]


def test_records_come_as_through_the_socket(client: JvmClient) -> None:
    """Two slots in turn. One is overwritten as soon as the engine has said that it has its records."""
    shared = shared_by(client)
    frames = [some_records(seed) for seed in range(9)]
    client.begin(subpartitions=SUBPARTITIONS)
    for number, records in enumerate(frames):
        at = number % 2 * SLOT
        client.shared_frame(shared, at, records)
        assert client.reply() == (DONE, b"")
        shared[at : at + SLOT] = b"\xff" * SLOT
    done = client.finish()
    for subpartition in range(SUBPARTITIONS):
        answer = client.read([Block(7, 0, subpartition, subpartition + 1, done.file_id)])
        assert answer.data == expected(frames, subpartition)


def test_frames_of_both_kinds_keep_their_order(client: JvmClient) -> None:
    """A record that fits into no slot comes through the socket, between the others."""
    shared = shared_by(client)
    frames = [some_records(1), [(2, random.Random(2).randbytes(5 * MIB))], some_records(3)]
    client.begin(subpartitions=SUBPARTITIONS)
    client.shared_frame(shared, 0, frames[0])
    client.frame(frames[1])
    client.shared_frame(shared, SLOT, frames[2])
    assert [client.reply() for _ in range(2)] == [(DONE, b"")] * 2
    done = client.finish()
    answer = client.read([Block(7, 0, 2, 3, done.file_id)])
    assert answer.data == expected(frames, 2)


def test_the_memory_stays_for_the_next_map_output(client: JvmClient) -> None:
    shared = shared_by(client)
    for map_id in (7, 8):
        client.begin(map_id, SUBPARTITIONS)
        client.shared_frame(shared, 0, [(1, b"%d" % map_id)])
        assert client.reply() == (DONE, b"")
        done = client.finish()
        assert client.read([Block(map_id, 0, 1, 2, done.file_id)]).data == b"%d" % map_id


@pytest.mark.parametrize(
    ("records", "size", "ids", "ends", "data"),
    [
        (1, 8, 0, 4, 2 * SLOT - 7),  # the records end outside
        (1, 8, 2 * SLOT - 3, 4, 8),
        (1, 8, 0, 2 * SLOT, 8),
        (1, 8, -4, 4, 8),
        (1, 8, 0, 4, -1),
        (1 << 29, 8, 0, 4, 8),
        (0, 0, 0, 4, 8),
        (-1, 8, 0, 4, 8),
        (1, -8, 0, 4, 8),
    ],
)
def test_a_frame_outside_is_refused(
    client: JvmClient, engine: Serving, records: int, size: int, ids: int, ends: int, data: int
) -> None:
    shared_by(client)
    client.begin()
    client.request(SHARED_FRAME, struct.pack("<iiiii", records, size, ids, ends, data))
    assert client.refusal()[0] == BAD_REQUEST
    eventually(lambda: engine.files() == [], "the map output is abandoned")


def test_a_frame_where_nothing_is_shared_is_refused(client: JvmClient) -> None:
    client.begin()
    client.request(SHARED_FRAME, struct.pack("<iiiii", 1, 1, 0, 4, 8))
    client.refuses(BAD_REQUEST, "where none is shared")


@pytest.mark.parametrize("size", [0, -1, MOST_BYTES + 1])
def test_a_size_that_cannot_be_is_refused(client: JvmClient, size: int) -> None:
    client.request(SHARE, struct.pack("<q", size))
    assert client.refusal()[0] == BAD_REQUEST


def test_memory_is_shared_once(client: JvmClient) -> None:
    shared_by(client)
    client.request(SHARE, struct.pack("<q", SLOT))
    assert client.refusal()[0] == BAD_REQUEST


def test_nobody_can_cut_it_off(client: JvmClient) -> None:
    """A process that reads behind the end of a file gets SIGBUS."""
    client.request(SHARE, struct.pack("<q", SLOT))
    path = client.reply()[1].decode()
    descriptor = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def test_nothing_of_it_is_left_when_the_connection_ends(engine: Serving) -> None:
    before = memories()
    with connected(engine.path) as client:
        shared = shared_by(client)
        client.begin()
        client.shared_frame(shared, 0, [(0, b"record")])
        assert client.reply() == (DONE, b"")
        assert len(memories()) > len(before)
        shared.close()
    eventually(lambda: memories() == before, "the memory goes")


def bare_frame(client: JvmClient, shared: mmap.mmap, at: int, subpartition: int) -> None:
    client.shared_frame(shared, at, [(subpartition, b"record")])


@pytest.mark.parametrize("is_finished", [False, True], ids=["frames", "frames and FINISH"])
def test_a_refusal_comes_behind_what_was_acknowledged_and_ends_it(
    client: JvmClient, engine: Serving, is_finished: bool
) -> None:
    """What was sent behind the wrong frame has no reply."""
    shared = shared_by(client, 3 * SLOT)
    client.begin(subpartitions=SUBPARTITIONS)
    frames = [
        shared_frame_of(shared, number * SLOT, [(subpartition, b"record")])
        for number, subpartition in enumerate((0, SUBPARTITIONS, 0))
    ]
    # all at once: after the refusal the engine takes no more
    client.send(b"".join(frames) + (request_of(FINISH) if is_finished else b""))
    assert client.reply() == (DONE, b"")
    client.refuses(BAD_REQUEST, "subpartition 5 of 5")
    eventually(lambda: engine.files() == [], "the map output is abandoned")


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_acknowledgement_comes_with_the_end(
    client: JvmClient, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A call less for each small map output. It comes first all the same."""
    shared = shared_by(client)
    client.begin(subpartitions=SUBPARTITIONS)
    came_before: list[bool] = []
    finish = MapOutputWriter.finish

    def finished(writing: MapOutputWriter) -> bytes:
        came_before.append(bool(select.select([client.socket], [], [], 0)[0]))
        if fails:
            raise OSError("it cannot be finished")
        return finish(writing)

    monkeypatch.setattr(MapOutputWriter, "finish", finished)
    client.send(shared_frame_of(shared, 0, [(1, b"record")]) + request_of(FINISH))
    assert client.reply() == (DONE, b"")
    assert came_before == [False]
    if fails:
        assert client.refusal() == (FAILED, "it cannot be finished")
    else:
        assert client.reply()[0] == DONE


@pytest.mark.parametrize("is_finished", [False, True], ids=["frames", "frames and FINISH"])
def test_a_jvm_that_reads_no_acknowledgement_leaves_nothing_unfinished(
    engine: Serving, is_finished: bool
) -> None:
    before = memories()
    with connected(engine.path) as client:
        shared = shared_by(client)
        client.begin(subpartitions=SUBPARTITIONS)
        for slot in (0, SLOT):
            bare_frame(client, shared, slot, 1)
        if is_finished:
            client.request(FINISH)
        shared.close()
    eventually(lambda: memories() == before, "the memory goes")
    eventually(engine.is_idle, "the writer's memory and turn are back")
    assert [name for name in engine.files() if name.endswith(".partial")] == []
    if not is_finished:
        assert engine.files() == []


def test_a_map_output_that_failed_keeps_no_memory(engine: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine remembers why its home failed, and not what was in hand."""
    before = memories()
    client = engine.connect()
    shared = shared_by(client)
    client.begin(subpartitions=SUBPARTITIONS)
    path = os.path.join(engine.homes[0], "exchange-3-map-0-attempt-7.data.partial")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(PlacedRecordEncoder, "add", full)
    monkeypatch.setattr(servers._log, "disabled", True)  # pytest keeps what is logged, and the error with it
    bare_frame(client, shared, 0, 0)
    assert client.refusal()[0] == FAILED
    shared.close()
    assert home_failures.last_error(engine.homes[0]) is not None
    eventually(lambda: memories() == before, "the memory goes")


def test_its_pages_are_there_before_it_is_written(client: JvmClient) -> None:
    """A process that writes a page which the system does not have gets SIGBUS."""
    client.request(SHARE, struct.pack("<q", SLOT))
    assert os.stat(client.reply()[1].decode()).st_blocks * 512 >= SLOT


def test_where_there_is_too_little_memory_frames_come_through_the_socket(
    client: JvmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = memories()

    def none_left(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(calls, "posix_fallocate", none_left)
    assert client.share(SLOT) is None
    assert memories() == before
    done = client.write([[(0, b"record")]])
    assert client.read([Block(7, 0, 0, 1, done.file_id)]).data == b"record"


def test_a_system_without_such_memory(client: JvmClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(calls, "memfd_create")
    assert client.share(SLOT) is None
    done = client.write([[(0, b"record")]])
    assert client.read([Block(7, 0, 0, 1, done.file_id)]).data == b"record"
