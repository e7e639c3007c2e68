"""The engine's Unix socket: map outputs are written as they were sent, or not at all; the JVM hears why;
whatever a JVM does, nothing of its connection is left."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import eventually, fill, names, open_files, small_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from jvm_client import (
    BAD_REQUEST,
    DONE,
    FAILED,
    FINISH,
    FRAME,
    GREETING,
    HERE,
    LOST,
    NO_SPACE,
    READ,
    REMOVE,
    SHUFFLE,
    WRITE,
    Block,
    JvmClient,
    Record,
    Serving,
    connected,
    expected,
    frame_of,
    serving,
)
from serving import no_descriptor_left

from sortshuffle import calls
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.homes import directories, home_failures
from sortshuffle.homes.directories import LEAST_FREE
from sortshuffle.options import KIB, MIB
from sortshuffle.service.jvm.outputs import IndexedMapOutput, SmallMapOutput
from sortshuffle.service.jvm.server import JvmServer
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

NUMBERS = itertools.count(1000)  # of map outputs that many examples write
BOTH_FILES = ["exchange-3-map-0-attempt-7.data", "exchange-3-map-0-attempt-7.index"]


def noise(seed: int, count: int, most: int, subpartitions: int = 4) -> list[Record]:
    chosen = random.Random(seed)
    return [
        (chosen.randrange(subpartitions), b"%d-%d " % (seed, n) + chosen.randbytes(chosen.randrange(most)))
        for n in range(count)
    ]


def written(home: str, map_id: int = 7) -> PartitionedFile:
    return PartitionedFile.named(home, SHUFFLE, 0, map_id)


# Writing


@pytest.mark.parametrize("codec", Codec)
def test_a_map_output_is_written_as_it_was_sent(tmp_path: Path, codec: Codec) -> None:
    frames = [noise(seed, 300, 200) for seed in range(5)]
    with serving(tmp_path, codec=codec) as engine:
        client = engine.connect()
        done = client.write(frames)
        assert engine.files() == BOTH_FILES
        index = read_index(written(engine.homes[0]), done.file_id)
        assert (index.header.codec, index.header.payload_kind) == (codec, PayloadKind.RECORD_BYTES)
        assert done.sizes == tuple(index.entries["bytes"].sum(axis=0).tolist())
        assert done.spills == index.regions - 1 == 0
        assert int(index.entries["records"].sum()) == 1500
        who = index.writer
        assert (who.application, who.exchange, who.stage) == ("app-1", SHUFFLE, 5)
        assert (who.map_index, who.attempt) == (0, 7)
        for subpartition in range(4):
            answer = client.read([Block(7, 0, subpartition, subpartition + 1, done.file_id)])
            assert answer.data == expected(frames, subpartition)


@settings(max_examples=40)
@given(
    st.integers(1, 300),
    st.lists(
        st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=60)), min_size=1, max_size=30),
        max_size=4,
    ),
)
def test_any_records_come_back(engine: Serving, subpartitions: int, drawn: list[list[Record]]) -> None:
    frames = [[(target % subpartitions, record) for target, record in records] for records in drawn]
    map_id = next(NUMBERS)
    with connected(engine.path) as client:
        done = client.write(frames, map_id, subpartitions)
        assert len(done.sizes) == subpartitions
        used = {target for records in frames for target, _ in records}
        assert {at for at, size in enumerate(done.sizes) if size} == used
        for _ in ("as it was kept", "as it stands in the file"):
            for subpartition in sorted(used)[:5]:
                answer = client.read([Block(map_id, 0, subpartition, subpartition + 1, done.file_id)])
                assert answer.data == expected(frames, subpartition)
                assert answer.totals == (done.sizes[subpartition], 1, 0, 0)
            engine.engine.outputs.forget(done.file_id)


def test_the_greeting_tells_the_port_of_the_service(engine: Serving) -> None:
    """By which a JVM notices that the service was started anew, and may have another one."""
    with connected(engine.path) as client:
        assert engine.engine.settings.address.endswith(f":{client.port}")
        assert client.port > 0


@pytest.mark.parametrize("frames", [1, 2])
def test_a_small_map_output_of_one_frame_is_kept_when_it_is_written(
    client: JvmClient, engine: Serving, frames: int
) -> None:
    done = client.write([noise(seed, 100, 200) for seed in range(frames)])
    (known,) = engine.engine.outputs.known([done.file_id])
    assert isinstance(known, SmallMapOutput) == (frames == 1)


def test_one_whose_numbers_take_much_memory_is_not_kept(client: JvmClient, engine: Serving) -> None:
    done = client.write([[(0, b"record")]], subpartitions=20_000)
    assert engine.engine.outputs.known([done.file_id]) == [None]
    assert client.read([Block(7, 0, 0, 20_000, done.file_id)]).data == b"record"
    (known,) = engine.engine.outputs.known([done.file_id])
    assert isinstance(known, IndexedMapOutput)


def test_a_map_output_may_have_no_records(client: JvmClient, engine: Serving) -> None:
    done = client.write([], subpartitions=3)
    assert (done.sizes, done.spills) == ((0, 0, 0), 0)
    answer = client.read([Block(7, 0, 0, 3, done.file_id)])
    assert (answer.data, answer.totals) == (b"", (0, 1, 0, 0))


def test_regions_for_lack_of_memory_are_told(tmp_path: Path) -> None:
    frames = [[(at % 4, random.Random(at).randbytes(2 * MIB))] for at in range(12)]
    with serving(tmp_path, write_memory=16 * MIB) as engine:
        client = engine.connect()
        done = client.write(frames, subpartitions=64)  # else regions are large enough before memory is full
        assert done.spills == read_index(written(engine.homes[0])).regions - 1 > 0
        answer = client.read([Block(7, 0, 1, 2, done.file_id)])
        assert answer.data == expected(frames, 1)


def test_a_last_region_of_one_small_frame_is_not_the_whole_map_output(tmp_path: Path) -> None:
    frames = [[(1, random.Random(1).randbytes(17 * MIB))], [(1, b"the last")]]
    with serving(tmp_path, write_memory=16 * MIB) as engine:
        client = engine.connect()
        done = client.write(frames)
        assert done.spills == 1
        assert client.read([Block(7, 0, 1, 2, done.file_id)]).data == expected(frames, 1)


@pytest.mark.parametrize("extra", [-1, 0, 1, 4 * MIB])
def test_a_single_record_may_be_larger_than_a_frame(client: JvmClient, engine: Serving, extra: int) -> None:
    """A segment takes 6 MiB; what is larger has memory of its own."""
    large = random.Random(1).randbytes(6 * MIB + extra)
    done = client.write([[(1, b"before ")], [(1, large)], [(1, b" after")]])
    assert client.read([Block(7, 0, 1, 2, done.file_id)]).data == b"before " + large + b" after"


def test_connections_write_at_the_same_time(engine: Serving) -> None:
    clients = [engine.connect() for _ in range(4)]
    frames = [[noise(10 * at + n, 50, 500) for n in range(8)] for at in range(4)]
    for at, client in enumerate(clients):
        client.begin(map_id=at, map_index=at)
    for n in range(8):
        for at, client in enumerate(clients):
            client.frame(frames[at][n])
    eventually(lambda: engine.engine.memory.shares == 4, "all of them are being written")
    done = [client.finish() for client in clients]
    assert engine.is_idle()
    assert len({each.file_id for each in done}) == 4
    blocks = [Block(at, at, 2, 3, each.file_id) for at, each in enumerate(done)]
    assert clients[0].read(blocks).data == b"".join(expected(each, 2) for each in frames)


def test_many_connections_write_read_and_remove_at_once(tmp_path: Path) -> None:
    """Each its own shuffle, and all of them more writers than there may be, and more memory than there is."""
    failures: list[BaseException] = []

    def work(engine: Serving, shuffle: int) -> None:
        chosen = random.Random(shuffle)
        try:
            with connected(engine.path) as client:
                for round_ in range(3):
                    outputs = []
                    for map_id in range(4):
                        frames = [
                            noise(chosen.randrange(10**6), 60, chosen.choice([10, 50_000]))
                            for _ in range(chosen.randrange(1, 4))
                        ]
                        number = 10 * round_ + map_id
                        outputs.append((number, frames, client.write(frames, number, shuffle=shuffle)))
                    for subpartition in range(4):
                        blocks = [
                            Block(number, 0, subpartition, subpartition + 1, done.file_id)
                            for number, _, done in outputs
                        ]
                        wanted = b"".join(expected(frames, subpartition) for _, frames, _ in outputs)
                        assert client.read(blocks, shuffle=shuffle).data == wanted
                    assert client.remove(shuffle) == (DONE, b"")
                    assert client.read(blocks, shuffle=shuffle).lost == (0, 1, 2, 3)
        except BaseException as failure:
            failures.append(failure)

    with serving(tmp_path, writers=3, write_memory=16 * MIB) as engine:
        threads = [threading.Thread(target=work, args=(engine, shuffle)) for shuffle in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert failures == []
        assert engine.files() == []
        assert open_files(engine.homes[0]) == []


def test_more_writers_than_there_may_be_wait_for_their_turn(tmp_path: Path) -> None:
    with serving(tmp_path, writers=2) as engine:
        first, second, third = (engine.connect() for _ in range(3))
        first.begin(map_id=1)
        second.begin(map_id=2)
        eventually(lambda: engine.engine.memory.shares == 2, "two are being written")
        third.begin(map_id=3)
        third.frame([(0, b"third")])
        third.request(FINISH)
        first.frame([(0, b"first")])
        first.finish()
        assert third.reply()[0] == DONE
        second.close()
        eventually(lambda: len(engine.files()) == 4, "the second is abandoned")
        assert {name.partition(".")[0][-1] for name in engine.files()} == {"1", "3"}


def test_homes_are_used_in_turn(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with serving(tmp_path, tmp_path / "b") as engine:
        client = engine.connect()
        for map_id in range(4):
            client.write([[(0, b"x")]], map_id=map_id)
        found = [[name for name in os.listdir(home) if name.endswith(".data")] for home in engine.homes]
        assert list(map(len, found)) == [2, 2]


# A JVM that goes away


def stream() -> bytes:
    """What a JVM sends for a map output, FINISH not counted."""
    parts = [(WRITE, struct.pack("<iiqii", SHUFFLE, 0, 7, 4, 5))]
    parts += [(FRAME, frame_of(noise(seed, 40, 100))) for seed in range(2)]
    return b"".join(struct.pack("<BxxxI", kind, len(body)) + body for kind, body in parts)


STREAM = stream()
SECOND = 32 + 8 + len(frame_of(noise(0, 40, 100)))


@pytest.mark.parametrize(
    "cut", [1, 8, 20, 32, 33, 40, 44, 48, 100, SECOND - 1, SECOND, SECOND + 1, SECOND + 8, len(STREAM)]
)
def test_one_that_goes_away_at_any_point_leaves_nothing(
    engine: Serving, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    client = engine.connect()
    client.send(STREAM[:cut])
    if cut >= 32:
        eventually(lambda: engine.files() != [], "it is being written")
    client.close()
    eventually(lambda: engine.files() == [], "what was written is deleted")
    eventually(engine.is_idle, "memory, segment and turn are back")
    eventually(lambda: open_files(engine.homes[0]) == [], "the files are closed")
    assert caplog.records == []


def test_one_that_does_not_wait_for_its_reply_leaves_a_whole_map_output_or_nothing(engine: Serving) -> None:
    client = engine.connect()
    client.send(STREAM)
    client.request(FINISH)
    client.close()
    eventually(lambda: engine.connections() == 0, "the connection has ended")
    assert engine.files() in ([], BOTH_FILES)
    assert engine.is_idle()


def test_one_that_goes_away_between_requests_leaves_what_it_finished(engine: Serving) -> None:
    client = engine.connect()
    client.write([[(0, b"x")]])
    client.close()
    eventually(lambda: engine.connections() == 0, "the connection has ended")
    assert engine.files() == BOTH_FILES


def test_one_that_says_nothing_costs_a_thread_only(engine: Serving) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(engine.path)
    eventually(lambda: engine.connections() == 1, "it has a thread")
    silent.close()
    eventually(lambda: engine.connections() == 0, "which ends with it")


# What is refused while a map output is written


def send_until_refused(client: JvmClient) -> None:
    """As a JVM that does not listen: frames, until one cannot be sent."""
    body = frame_of([(0, random.Random(1).randbytes(MIB))])
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:
            client.request(FRAME, body)


BAD_FRAMES = {
    "an id above": (struct.pack("<ii iii iii", 3, 3, 0, 4, 1, 1, 2, 3) + b"abc", "subpartition 4 of 4"),
    "an id below": (struct.pack("<ii iii iii", 3, 3, 0, -1, 1, 1, 2, 3) + b"abc", "subpartition -1 of 4"),
    "ends that go back": (struct.pack("<ii iii iii", 3, 3, 0, 1, 1, 2, 1, 3) + b"abc", "do not cut"),
    "an end below": (struct.pack("<ii iii iii", 3, 3, 0, 1, 1, -1, 1, 3) + b"abc", "do not cut"),
    "an end beyond": (struct.pack("<ii iii iii", 3, 3, 0, 1, 1, 1, 9, 3) + b"abc", "do not cut"),
    "bytes behind": (struct.pack("<ii iii iii", 3, 4, 0, 1, 1, 1, 2, 3) + b"abcd", "do not cut"),
    "no records": (struct.pack("<ii", 0, 0), "0 records"),
    "no records, but bytes": (struct.pack("<ii", 0, 3) + b"abc", "0 records"),
    "a negative number": (struct.pack("<ii", -1, 8), "-1 records"),
    "fewer than no bytes": (struct.pack("<ii ii", 1, -8, 0, 0), "-8 bytes"),
    "more records than there are": (struct.pack("<ii", 2**28, 0), "268435456 records"),
    "other bytes than there are": (struct.pack("<ii ii", 1, 4, 0, 3) + b"abc", "4 bytes"),
    "half a head": (b"\0\0\0\0", "FRAME of 4 bytes"),
}


@pytest.mark.parametrize("listens", [True, False], ids=["at once", "after it has gone on"])
@pytest.mark.parametrize("case", BAD_FRAMES)
def test_a_bad_frame_is_refused_in_words_that_the_jvm_can_read(
    engine: Serving, case: str, listens: bool
) -> None:
    body, words = BAD_FRAMES[case]
    client = engine.connect()
    client.begin()
    client.frame([(0, b"x")])
    client.request(FRAME, body)
    if not listens:
        send_until_refused(client)
    client.refuses(BAD_REQUEST, words)
    assert engine.files() == []
    eventually(engine.is_idle, "memory, segment and turn are back")


@given(
    at=st.integers(0, 7),
    value=st.one_of(st.sampled_from([-(2**31), -1, 0, 1, 4, 5, 2**31 - 1]), st.integers(-(2**31), 2**31 - 1)),
)
@settings(max_examples=60)
def test_a_frame_with_any_number_changed_is_written_as_it_stands_or_refused(
    engine: Serving, at: int, value: int
) -> None:
    body = bytearray(frame_of([(0, b"a"), (3, b"bcd"), (1, b"")]))
    struct.pack_into("<i", body, 4 * at, value)
    count, size, *rest = struct.unpack("<ii iii iii", body[:32])
    ids, ends = rest[:3], rest[3:]
    is_sound = (
        (count, size) == (3, 4)
        and all(0 <= each < 4 for each in ids)
        and 0 <= ends[0] <= ends[1] <= ends[2] == 4
    )
    map_id = next(NUMBERS)
    with connected(engine.path) as client:
        client.begin(map_id)
        client.request(FRAME, bytes(body))
        if is_sound:
            done = client.finish()
            starts = [0, *ends[:2]]
            records = [(id_, b"abcd"[a:b]) for id_, a, b in zip(ids, starts, ends, strict=True)]
            assert client.read([Block(map_id, 0, 0, 4, done.file_id)]).data == b"".join(
                expected([records], subpartition) for subpartition in range(4)
            )
        else:
            assert client.refusal()[0] == BAD_REQUEST
            assert not os.path.exists(written(engine.homes[0], map_id).partial_data_path)
    eventually(engine.is_idle, "memory, segment and turn are back")


@pytest.mark.parametrize("operation", [WRITE, READ, REMOVE, 0, 6, 255])
def test_no_other_request_comes_within_a_map_output(engine: Serving, operation: int) -> None:
    client = engine.connect()
    client.begin()
    client.request(operation, bytes(24))
    assert client.refusal()[0] == BAD_REQUEST
    assert engine.files() == []
    eventually(engine.is_idle, "memory, segment and turn are back")


def test_a_record_larger_than_any_may_be_is_refused_before_it_comes(engine: Serving) -> None:
    client = engine.connect()
    client.begin()
    client.send(struct.pack("<BxxxI", FRAME, 2**31 + 2**10 + 1))
    client.refuses(BAD_REQUEST, str(2**31 + 2**10 + 1))


def test_a_bad_beginning_is_refused_in_words(engine: Serving) -> None:
    for subpartitions in (0, -1, -(2**31)):
        client = engine.connect()
        client.begin(subpartitions=subpartitions)
        send_until_refused(client)
        client.refuses(BAD_REQUEST, str(subpartitions))
        assert engine.files() == []
    eventually(engine.is_idle, "memory, segment and turn are back")


def test_an_attempt_that_is_there_already_is_refused_and_stays(engine: Serving, client: JvmClient) -> None:
    done = client.write([[(0, b"the first")]])
    again = engine.connect()
    again.begin()
    again.refuses(FAILED, "there already")
    assert client.read([Block(7, 0, 0, 1, done.file_id)]).data == b"the first"


@pytest.mark.parametrize("at_its_end", [True, False], ids=["at its end", "while it is sent"])
def test_a_disk_that_runs_full_is_told_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_its_end: bool
) -> None:
    monkeypatch.setattr(directories, "LEAST_FREE", 0)
    with small_disk(tmp_path / "disk") as disk, serving(tmp_path, disk, write_memory=16 * MIB) as engine:
        small = engine.homes[1]
        client = engine.connect()
        client.begin(map_id=7)
        eventually(lambda: len(engine.files()) == 2, "it is being written")
        assert [name for name in os.listdir(small) if name.endswith(".data.partial")] != []
        if at_its_end:
            client.frame([(0, random.Random(1).randbytes(2 * MIB))])
            client.request(FINISH)
        else:
            send_until_refused(client)
        client.refuses(NO_SPACE, "no space left", small)
        assert [name for name in os.listdir(small) if "exchange" in name] == []
        eventually(engine.is_idle, "memory, segment and turn are back")

        again = engine.connect()
        again.write([[(0, b"x")]], map_id=9)
        assert os.path.exists(written(engine.homes[0], 9).data_path), "the next attempt goes elsewhere"


def test_of_a_home_that_a_full_disk_has_no_room_for_nothing_is_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, serving(tmp_path, disk) as engine:
        fill(disk)
        with engine.connect() as client:
            client.write([[(0, b"x")]])
        assert names(disk) == ["filled"]


def test_disks_without_room_are_told_before_anything_is_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", f"size={LEAST_FREE // 2}") as disk, serving(disk) as engine:
        client = engine.connect()
        client.begin()
        send_until_refused(client)
        client.refuses(NO_SPACE, "spark.sortshuffle.dir")


def test_where_no_home_can_be_used_that_is_told(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with serving(root) as engine:
        (root / "sortshuffle").write_text("no directory")
        client = engine.connect()
        client.begin()
        client.refuses(FAILED, "Not a directory")
        (root / "sortshuffle").unlink()
        assert engine.connect().write([[(0, b"x")]]).sizes == (64, 0, 0, 0)


def test_what_cannot_be_deleted_costs_no_turn_and_no_memory(tmp_path: Path) -> None:
    """The home has become something else: nothing can be unlinked in it."""
    with serving(tmp_path, writers=1) as engine:
        home = Path(engine.homes[0])
        for _ in range(2):
            client = engine.connect()
            client.begin()
            client.frame([(0, b"x")])
            eventually(lambda: len(engine.files()) == 2, "it is being written")
            aside = home.rename(home.with_name("aside"))
            home.touch()
            client.close()
            eventually(lambda: engine.connections() == 0, "the connection has ended")
            assert engine.is_idle()
            home.unlink()
            aside.rename(home)
            for name in engine.files():
                (home / name).unlink()


# The protocol's order


def test_it_greets_with_its_version_and_closes_where_they_differ(
    engine: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.settimeout(30)
        old.connect(engine.path)
        old.sendall(GREETING[:8] + struct.pack("<II", 1, 0))
        assert old.recv(16, socket.MSG_WAITALL)[:12] == GREETING[:12]
        assert old.recv(1) == b""
    eventually(lambda: engine.connections() == 0, "the connection has ended")
    assert "version 1" in caplog.text


@pytest.mark.parametrize("operation", [FRAME, FINISH, 0, 6, 255])
def test_what_comes_out_of_its_order_ends_the_connection_and_the_log_says_so(
    engine: Serving, caplog: pytest.LogCaptureFixture, operation: int
) -> None:
    client = engine.connect()
    client.request(operation)
    try:
        assert client.refusal()[0] == BAD_REQUEST
    except (EOFError, ConnectionResetError):
        pass  # closed without a word to the JVM
    eventually(lambda: engine.connections() == 0, "the connection has ended")
    assert any(each.levelno >= logging.WARNING for each in caplog.records)


def test_a_request_that_is_wrong_is_answered_in_words(engine: Serving) -> None:
    client = engine.connect()
    client.request(READ, struct.pack("<iiii", SHUFFLE, 0, 1, 0))
    answer = client.answer()
    assert (answer.status, "1 blocks" in answer.text) == (BAD_REQUEST, True)

    client = engine.connect()
    client.request(REMOVE, struct.pack("<ii", SHUFFLE, 1))
    assert client.reply()[0] == BAD_REQUEST

    client = engine.connect()
    client.request(WRITE, bytes(23))
    assert client.reply()[0] == BAD_REQUEST


def test_a_request_too_large_to_be_one_takes_no_memory(engine: Serving) -> None:
    for operation in (WRITE, READ, REMOVE):
        client = engine.connect()
        client.send(struct.pack("<BxxxI", operation, 2**32 - 1))
        eventually(client.is_closed, "the connection is closed")


def test_a_connection_goes_on_after_an_error_of_a_request(client: JvmClient) -> None:
    done = client.write([[(1, b"sound")]])
    missing = Block(8, 0, 1, 2, bytes(16))
    for _ in range(3):
        assert client.read([missing]).lost == (0,)
        assert client.read([Block(7, 0, 1, 2, done.file_id)]).data == b"sound"
    assert client.read([missing], ["no address"]).status == BAD_REQUEST
    assert client.write([[(0, b"x")]], map_id=9).sizes == (64, 0, 0, 0)


def test_names_that_are_no_utf8_can_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As directories may have: they are in the words of most errors."""
    root = tmp_path / os.fsdecode(b"disk-\x80")
    root.mkdir()
    with serving(root) as engine:
        client = engine.connect()
        client.write([[(0, b"x")]])
        answer = client.read([Block(7, 0, 0, 1, bytes(16))])
        assert (answer.status, answer.lost, r"disk-\udc80" in answer.text) == (LOST, (0,), True), answer.text

        again = engine.connect()
        again.begin()
        again.refuses(FAILED, r"disk-\udc80")

        def broken(directory: str) -> list[str]:
            raise OSError(errno.EIO, "Input/output error", directory)

        monkeypatch.setattr(calls, "listdir", broken)
        status, body = client.remove()
        assert (status, rb"disk-\udc80" in body) == (FAILED, True), body


def test_requests_are_answered_one_after_the_other(client: JvmClient) -> None:
    done = client.write([[(1, b"sound")]])
    for _ in range(5):
        client.ask([Block(7, 0, 1, 2, done.file_id)])
    assert [client.answer().data for _ in range(5)] == [b"sound"] * 5


# Removing


def test_a_shuffle_is_removed_and_others_stay(engine: Serving, client: JvmClient) -> None:
    """Small map outputs, which are kept in memory, and large ones, whose files are kept open."""
    large = random.Random(1).randbytes(MIB)
    kept = [client.write([[(0, data)]], shuffle=33, map_id=at) for at, data in enumerate((b"small", large))]
    gone = [client.write([[(0, data)]], shuffle=3, map_id=at) for at, data in enumerate((b"small", large))]
    of_kept = [Block(at, 0, 0, 1, each.file_id) for at, each in enumerate(kept)]
    of_gone = [Block(at, 0, 0, 1, each.file_id) for at, each in enumerate(gone)]
    assert client.read(of_gone).data == client.read(of_kept, shuffle=33).data == b"small" + large
    assert len(open_files(engine.homes[0])) == 2
    assert client.remove(3) == (DONE, b"")
    assert [name.split("-map")[0] for name in engine.files()] == ["exchange-33"] * 4
    assert len(open_files(engine.homes[0])) == 1
    assert client.read(of_gone).lost == (0, 1)
    assert client.read(of_kept, shuffle=33).data == b"small" + large


def test_removing_what_is_not_there_is_done_at_once(client: JvmClient) -> None:
    assert client.remove(99) == (DONE, b"")
    assert client.remove(99) == (DONE, b"")


def test_a_shuffle_that_was_removed_may_run_again(engine: Serving, client: JvmClient) -> None:
    before = client.write([[(0, b"before")]], map_id=1)
    client.remove()
    again = client.write([[(0, b"again")]], map_id=2)
    assert client.read([Block(1, 0, 0, 1, before.file_id)]).lost == (0,)
    assert client.read([Block(2, 0, 0, 1, again.file_id)]).data == b"again"


def test_one_that_is_being_written_while_its_shuffle_is_removed_is_finished(
    engine: Serving, client: JvmClient
) -> None:
    client.begin()
    client.frame([(0, b"x")])
    eventually(lambda: len(engine.files()) == 2, "it is being written")
    assert engine.connect().remove() == (DONE, b"")
    done = client.finish()
    assert client.read([Block(7, 0, 0, 1, done.file_id)]).data == b"x"


def test_one_that_is_removed_while_it_is_read_is_read_to_its_end(engine: Serving, client: JvmClient) -> None:
    frames = [[(1, random.Random(seed).randbytes(3 * MIB))] for seed in range(5)]
    done = client.write(frames)
    client.ask([Block(7, 0, 1, 2, done.file_id)])
    first = struct.unpack("<Iqqqq", client.receive(36))[0]
    begun = client.receive(first)
    assert engine.connect().remove() == (DONE, b"")
    assert engine.files() == []
    assert begun + client.answer().data == expected(frames, 1)
    eventually(lambda: open_files(engine.homes[0]) == [], "its files are closed")


# The server


def test_one_that_is_stopped_takes_no_connection_and_ends(tmp_path: Path, short_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(short_path / "socket"))
    listening.listen()
    with serving(tmp_path) as engine:
        server = JvmServer(listening, engine.engine)
        server.start()
        client = connected(str(short_path / "socket"))
        stopping = threading.Thread(target=server.stop, daemon=True)
        stopping.start()
        stopping.join(10)
        try:
            assert not stopping.is_alive()
            assert client.write([[(0, b"x")]]).sizes == (64, 0, 0, 0), "those that are open go on"
            with pytest.raises(ConnectionRefusedError):
                connected(str(short_path / "socket"))
        finally:
            client.close()
            listening.close()


def test_without_a_descriptor_for_it_a_connection_waits(engine: Serving, client: JvmClient) -> None:
    waiting = socket.socket(socket.AF_UNIX)
    with waiting:
        waiting.settimeout(30)
        with no_descriptor_left():
            waiting.connect(engine.path)
            waiting.sendall(GREETING)
            client.begin()
            client.refuses(FAILED, "Too many open files")
        assert waiting.recv(16, socket.MSG_WAITALL)[:12] == GREETING[:12]
    assert home_failures._failures == {}, "that is not the home's fault"


def test_without_memory_for_it_a_connection_waits(engine: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    accept, has_failed = calls.accept, threading.Event()

    def accept_later(listening: socket.socket) -> tuple[socket.socket, Any]:
        if listening.family is socket.AF_UNIX and not has_failed.is_set():
            has_failed.set()
            raise MemoryError
        return accept(listening)

    monkeypatch.setattr(calls, "accept", accept_later)
    engine.connect().close()  # after the call of `accept` that waited already
    with engine.connect() as client:
        assert client.write([[(0, b"x")]]).sizes == (64, 0, 0, 0)
    assert has_failed.is_set()


def test_a_reader_that_goes_away_leaves_nothing(engine: Serving, client: JvmClient) -> None:
    frames = [[(1, np.random.default_rng(seed).bytes(4 * MIB - KIB))] for seed in range(4)]
    done = client.write(frames)
    for taken in (0, 4, 100, 3 * MIB):
        reader = engine.connect()
        reader.ask([Block(7, 0, 1, 2, done.file_id)], [HERE])
        reader.receive(taken)
        reader.close()
    eventually(lambda: engine.connections() == 1, "their connections have ended")
    assert client.read([Block(7, 0, 1, 2, done.file_id)]).data == expected(frames, 1)
    assert len(open_files(engine.homes[0])) == 1
