"""Blocks of other hosts, read through their real shuffle services, on other loopback addresses: the bytes,
the losses, services that do not answer; and shuffles that are removed there."""

from __future__ import annotations

import errno
import os
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from consumers import PATIENCE
from engine import changed, eventually
from jvm_client import (
    APPLICATION,
    BAD_REQUEST,
    DONE,
    FAILED,
    HERE,
    LOST,
    SHUFFLE,
    TOKEN,
    Block,
    JvmClient,
    Output,
    Record,
    Serving,
    frames,
    serving,
    some,
    write_output,
)
from scripted_server import HonestService, Peer, ScriptedServer, refused_address, silent

from sortshuffle import calls
from sortshuffle.errors import MissingDataError
from sortshuffle.format.header import Codec
from sortshuffle.options import KIB, MIB
from sortshuffle.reading.fetcher import Fetcher, Items
from sortshuffle.service.client.client import ServiceClient, ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.request_table import MOST_PROTOCOL_ERRORS
from sortshuffle.service.jvm import engine as engines
from sortshuffle.service.jvm import nonlocal_blocks, protocol
from sortshuffle.service.jvm.lost_blocks import MOST_REASONS
from sortshuffle.service.jvm.nonlocal_blocks import ALL_READ_AHEAD_BYTES, THREADS
from sortshuffle.service.jvm.outputs import MapOutputCache
from sortshuffle.service.jvm.remote import MOST_ASKED, MOST_REFUSED
from sortshuffle.service.jvm.silent_services import MOST_FAILURES, RETRY_AFTER, SilentServices
from sortshuffle.service.server.shuffle_service import ServerSettings, ShuffleService, listen
from sortshuffle.service.wire.protocol import Fault, Stream
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

SECRET = b"s" * 32
SHORT = 0.3  # seconds after which a service that does not answer is given up
SIZES = pytest.mark.parametrize("size", [100, 300 * KIB], ids=["small", "large"])


@dataclass
class Host:
    """Another host: the engine that wrote its map outputs, and the service that serves them."""

    engine: Serving
    service: ShuffleService
    address: str
    client: JvmClient

    def write(self, map_id: int, frames: Sequence[Sequence[Record]], subpartitions: int = 4) -> Output:
        return write_output(self.client, map_id, frames, subpartitions)

    def file(self, output: Output) -> PartitionedFile:
        return output.file(self.engine.homes[0])


@contextmanager
def host(
    root: Path, ip: str, codec: Codec = Codec.LZ4, key: bytes = b"", **changed: object
) -> Iterator[Host]:
    root.mkdir()
    clients = ClientSettings(SECRET, timeout=PATIENCE)
    settings = ServerSettings(secret=SECRET, memory=8 * MIB)
    with serving(root, clients=clients, codec=codec, **changed) as engine:
        remove = engine.engine.remove_for_peer
        with ShuffleService(listen(ip, 0), lambda: [str(root)], settings, remove) as service:
            yield Host(engine, service, service.address, engine.connect(key))


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Host]:
    with host(tmp_path / "there", "127.0.0.2") as other:
        yield other


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "here").mkdir()
    with serving(tmp_path / "here", clients=ClientSettings(SECRET, timeout=PATIENCE)) as engine:
        yield engine


@contextmanager
def impatient(tmp_path: Path) -> Iterator[JvmClient]:
    """A JVM whose engine waits for services a moment only."""
    (tmp_path / "impatient").mkdir()
    with serving(tmp_path / "impatient", clients=ClientSettings(SECRET, timeout=SHORT)) as engine:
        yield engine.connect()


# Reading


@pytest.mark.parametrize("codec", Codec)
@SIZES
def test_blocks_of_another_host_come_through_its_service(
    tmp_path: Path, here: Serving, codec: Codec, size: int
) -> None:
    client = here.connect()
    with host(tmp_path / "there", "127.0.0.2", codec) as there:
        outputs = [there.write(at, some(at, size)) for at in range(5)]
        for _ in range(2):  # with indexes that are asked for, and with known ones
            answer = client.read([each.block(1, 4) for each in outputs], [there.address])
            assert answer.data == b"".join(each.expected(1, 4) for each in outputs)
            assert answer.totals == (0, 0, sum(sum(each.done.sizes[1:]) for each in outputs), 5)
        assert client.read([outputs[2].block(0, 1)], [there.address]).data == outputs[2].expected(0, 1)


@SIZES
def test_encrypted_blocks_of_another_host_are_decrypted_here(
    tmp_path: Path, here: Serving, size: int
) -> None:
    key = bytes(range(16))
    with host(tmp_path / "there", "127.0.0.2", Codec.NONE, key) as there:
        output = there.write(1, some(1, size))
        assert output.expected(0, 1)[:60] not in Path(there.file(output).data_path).read_bytes()
        answer = here.connect().read([output.block(1, 4)], [there.address])
        assert (answer.status, answer.data) == (FAILED, b"")
        assert "the data is encrypted, and there is no key" in answer.text
        answer = here.connect(key).read([output.block(1, 4)], [there.address])
        assert answer.data == output.expected(1, 4)


def test_blocks_of_many_regions_and_large_extents_come_whole(here: Serving, tmp_path: Path) -> None:
    with host(tmp_path / "there", "127.0.0.2", write_memory=16 * MIB) as there:
        large = [(at % 2, random.Random(at).randbytes(3 * MIB)) for at in range(12)]
        output = there.write(1, [[each] for each in large], 3)
        regions = read_index(there.file(output)).regions
        for first, end in ((0, 1), (1, 2), (2, 3)):
            answer = here.connect().read([output.block(first, end)], [there.address])
            assert answer.data == output.expected(first, end)
        everything = here.connect().read([output.block(0, 3)], [there.address]).data
        local = there.client.read([output.block(0, 3)]).data
        assert everything == local, "in the same order as on its own host"
        assert regions > 1 and len(everything) == sum(len(record) for _, record in large)


def test_local_and_remote_blocks_of_several_hosts_come_in_one_answer(
    tmp_path: Path, here: Serving, there: Host
) -> None:
    client = here.connect()
    own = [write_output(client, at, some(at, 100)) for at in range(2)]
    with host(tmp_path / "third", "127.0.0.3") as third:
        others = [there.write(10, some(10, 100)), third.write(20, some(20, 100))]
        services = [there.address, HERE, third.address]
        blocks = [
            others[0].block(0, 2, 0),
            own[0].block(0, 2, 1),
            others[1].block(0, 2, 2),
            own[1].block(0, 2, 1),
        ]
        answer = client.read(blocks, services)
        wanted = [each.expected(0, 2) for each in (*own, *others)]
        assert len(answer.data) == sum(map(len, wanted))
        assert all(each in answer.data for each in wanted)
        assert (answer.totals[1], answer.totals[3]) == (2, 2)


def test_blocks_of_this_host_come_first_and_then_all_in_the_order_of_the_request(
    here: Serving, there: Host
) -> None:
    client = here.connect()
    mine = write_output(client, 0, some(0, 100))
    other = there.write(1, some(1, 100))
    blocks = [other.block(0, 1, 0), mine.block(0, 1, 1), other.block(1, 2, 0)]
    wanted = mine.expected(0, 1) + other.expected(0, 1) + other.expected(1, 2)
    assert client.read(blocks, [there.address, HERE]).data == wanted


def request_for(there: Host, *outputs: Output) -> protocol.ReadRequest:
    """All subpartitions of these map outputs."""
    return protocol.ReadRequest(
        SHUFFLE, (there.address,), tuple(each.block(0, 4).received() for each in outputs)
    )


def test_requests_read_ahead_in_one_memory(here: Serving, there: Host) -> None:
    request = request_for(there, *(there.write(at, some(at, MIB)) for at in range(6)))
    memory = here.engine._remote.read_ahead
    readers = [here.engine.read(request) for _ in range(3)]
    for reader in readers:
        reader.locate()
    pieces = [reader.pieces() for reader in readers]
    for count, piece in enumerate(pieces, 1):
        next(piece)
        assert memory.shares == count
    assert 0 < memory.used <= ALL_READ_AHEAD_BYTES
    for reader, piece in zip(readers, pieces, strict=True):
        piece.close()
        reader.close()
    assert (memory.used, memory.shares) == (0, 0)


def test_of_a_request_with_many_extents_some_are_planned_at_a_time(
    here: Serving, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []
    items = Fetcher.items

    def counted(fetcher: Fetcher, channels: Iterable[Any]) -> Items:
        channels = list(channels)
        planned.append(sum(len(channel.extents) for channel in channels))
        return items(fetcher, channels)

    monkeypatch.setattr(nonlocal_blocks, "MOST_EXTENTS", 10)
    monkeypatch.setattr(Fetcher, "items", counted)
    outputs = [there.write(at, some(at, 300 * KIB)) for at in range(6)]
    answer = here.connect().read([each.block(0, 4) for each in outputs], [there.address])
    assert answer.data == b"".join(each.expected(0, 4) for each in outputs)
    assert planned == [8, 8, 8]


def test_blocks_count_where_they_are_begun(here: Serving, there: Host) -> None:
    """One is asked for twice, one is empty, and the last one, too."""
    first, second = there.write(1, some(1, MIB)), there.write(2, [[(0, bytes(MIB))]])
    asked = [first.block(0, 1), first.block(0, 1), second.block(1, 2), second.block(0, 1), second.block(2, 3)]
    request = protocol.ReadRequest(SHUFFLE, (there.address,), tuple(each.received() for each in asked))
    with closing(here.engine.read(request)) as reader:
        reader.locate()
        assert reader.totals() == protocol.ReadTotals()
        begun = [reader.totals().remote_blocks for _ in reader.pieces()]
        assert sorted(set(begun)) == [1, 2, 4]
        assert begun == sorted(begun)
        size = 2 * first.done.sizes[0] + second.done.sizes[0]
        assert reader.totals() == protocol.ReadTotals(0, 0, size, 5)


@pytest.mark.parametrize("codec", Codec)
def test_a_small_map_output_comes_whole_by_two_requests_for_all_tasks(
    tmp_path: Path, here: Serving, codec: Codec
) -> None:
    """Its index, and its data. Nothing is asked for again, even if the host is gone by then."""
    client, subpartitions = here.connect(), 50
    with host(tmp_path / "there", "127.0.0.2", codec) as there:
        outputs = [there.write(at, some(at, 40 * at, subpartitions), subpartitions) for at in range(4)]
        before = there.service.status().requests_total
        assert client.read([outputs[1].block(7, 8)], [there.address]).data == outputs[1].expected(7, 8)
        assert there.service.status().requests_total - before == 2
        assert client.read([each.block(0, 1) for each in outputs], [there.address]).status == DONE
        assert there.service.status().requests_total - before == 2 * len(outputs)
    for first, end in ((0, 50), (3, 17), (49, 50)):
        answer = client.read([each.block(first, end) for each in outputs], [there.address])
        assert answer.data == b"".join(each.expected(first, end) for each in outputs)
        assert answer.totals[2:] == (sum(sum(each.done.sizes[first:end]) for each in outputs), 4)


@pytest.mark.parametrize("codec", Codec)
def test_neighbouring_subpartitions_of_a_region_come_by_one_request(
    tmp_path: Path, here: Serving, codec: Codec
) -> None:
    """As adaptive execution asks for them. Some are empty, some larger than what is fetched at a time."""
    sizes = {1: 5 * MIB, 2: 100, 4: 9 * MIB, 7: 10, 8: 20 * KIB, 19: MIB}
    with host(tmp_path / "there", "127.0.0.2", codec) as there:
        frames = [[(at, random.Random(at).randbytes(size)) for at, size in sizes.items()]]
        output = there.write(1, frames, 20)
        client = here.connect()
        assert client.read([output.block(0, 1)], [there.address]).data == b""
        before = there.service.status().requests_total
        for first, end in ((0, 20), (2, 4), (2, 9), (5, 20), (7, 9)):
            answer = client.read([output.block(first, end)], [there.address])
            assert answer.data == output.expected(first, end)
            assert answer.totals == (0, 0, sum(output.done.sizes[first:end]), 1)
        assert there.service.status().requests_total - before < 12


def test_tasks_that_ask_at_once_ask_once_for_all(here: Serving, there: Host) -> None:
    output = there.write(1, some(1, 100, 20), 20)
    before = there.service.status().requests_total
    clients = [here.connect() for _ in range(8)]
    for at, client in enumerate(clients):
        client.ask([output.block(at, at + 1)], [there.address])
    for at, client in enumerate(clients):
        assert client.answer().data == output.expected(at, at + 1)
    assert there.service.status().requests_total - before == 2


def test_what_is_changed_on_the_way_is_asked_for_again(
    here: Serving, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extent by extent, because then the service says whether it has it sound."""
    output = there.write(1, some(1, 100, 20), 20)
    whole = ServiceClient.extents

    def change(client: ServiceClient, *of: Any) -> pa.Buffer:
        found = bytearray(whole(client, *of))
        found[len(found) // 2] ^= 1
        return pa.py_buffer(found)

    client = here.connect()
    with monkeypatch.context() as patch:
        patch.setattr(ServiceClient, "extents", change)
        for _ in range(2):
            answer = client.read([output.block(0, 20)], [there.address])
            assert (answer.status, answer.data) == (DONE, output.expected(0, 20))
    kept = here.engine._remote.known.small
    assert kept.get_all([output.done.file_id]) == [None], "what was changed is not kept"


def test_records_of_a_removed_shuffle_are_forgotten(here: Serving, there: Host) -> None:
    outputs = [there.write(at, some(at, 100)) for at in range(3)]
    ids = [each.done.file_id for each in outputs]
    client, kept = here.connect(), here.engine._remote.known.small
    assert client.read([each.block(0, 4) for each in outputs], [there.address]).status == DONE
    assert None not in kept.get_all(ids)
    client.remove(SHUFFLE + 1)
    assert None not in kept.get_all(ids)
    client.remove(SHUFFLE)
    assert kept.get_all(ids) == [None] * 3


def test_services_that_are_gone_are_waited_for_together(tmp_path: Path) -> None:
    """The blocks of each are as many as there are threads, one service's behind another's."""
    with ExitStack() as stack:
        gone = [stack.enter_context(refused_address()) for _ in range(3)]
        client = stack.enter_context(impatient(tmp_path))
        blocks = [Block(at, at, 0, 1, bytes(16), at // THREADS) for at in range(3 * THREADS)]
        answer = client.read(blocks, gone)
        assert (answer.silent, answer.lost) == ((0, 1, 2), tuple(range(3 * THREADS)))


def test_where_there_is_no_room_small_ones_are_read_by_their_index(
    here: Serving, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MapOutputCache, "has_room_for_small", lambda self: False)
    outputs = [there.write(at, some(at, 100, 20), 20) for at in range(3)]
    client = here.connect()
    for first, end in ((0, 20), (3, 5)):
        answer = client.read([each.block(first, end) for each in outputs], [there.address])
        assert answer.data == b"".join(each.expected(first, end) for each in outputs)
    assert here.engine._remote.known.small.get_all([outputs[0].done.file_id]) == [None]


def test_large_ones_are_fetched_ahead_whatever_is_between_them(here: Serving, there: Host) -> None:
    outputs = [there.write(at, some(at, (300 * KIB, 100)[at % 2])) for at in range(6)]
    service = HonestService([there.file(each) for each in outputs], piece=MIB)
    with ScriptedServer(service, secret=SECRET, segment_bytes=MIB) as server:
        asked = tuple(each.block(0, 4).received() for each in outputs)
        request = protocol.ReadRequest(SHUFFLE, (server.address,), asked)

        def asked_since(before: int) -> set[int]:
            return {each.output.map_index for each in service.requests[before:]}

        with closing(here.engine.read(request)) as reader:
            reader.locate()
            before = len(service.requests)
            pieces = reader.pieces()
            first = bytes(next(pieces))
            eventually(lambda: asked_since(before) == {0, 2, 4}, "all large ones are asked for")
            rest = b"".join(map(bytes, pieces))
    assert first + rest == b"".join(each.expected(0, 4) for each in outputs)


def test_empty_remote_blocks_are_read_too(here: Serving, there: Host) -> None:
    output = there.write(1, [[(2, b"x")]], 5)
    answer = here.connect().read([output.block(0, 2), output.block(3, 5)], [there.address])
    assert (answer.data, answer.totals) == (b"", (0, 0, 0, 2))


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("first", "end"), [(4, 5), (0, 5)])
@SIZES
def test_subpartitions_that_there_are_not_are_no_empty_ones(
    here: Serving, there: Host, size: int, first: int, end: int, is_known: bool
) -> None:
    output = there.write(1, some(1, size))
    client = here.connect()
    if is_known:
        client.read([output.block(0, 4)], [there.address])
    assert client.read([output.block(first, end)], [there.address]).status not in (DONE, LOST)


def test_a_reader_that_goes_away_lets_go_of_its_connections(here: Serving, there: Host) -> None:
    frames = [[(0, random.Random(at).randbytes(4 * MIB - KIB))] for at in range(12)]
    output = there.write(1, frames, 1)
    client = here.connect()
    client.ask([output.block(0, 1)], [there.address])
    client.receive(100)
    client.close()
    eventually(lambda: there.service.status().connections == (), "the connection to the service is closed")
    eventually(lambda: not remote_threads(), "all threads have ended")


def remote_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("sortshuffle-client", "sortshuffle-read"))]


# Losses


@pytest.mark.parametrize("suffix", ["data", "index"])
@SIZES
def test_all_that_are_lost_are_named_at_once(here: Serving, there: Host, size: int, suffix: str) -> None:
    outputs = [there.write(at, some(at, size)) for at in range(6)]
    for at in (1, 2, 5):
        file = there.file(outputs[at])
        os.unlink(file.data_path if suffix == "data" else file.index_path)
    client = here.connect()
    answer = client.read([each.block(0, 4) for each in outputs], [there.address])
    assert (answer.status, answer.data, answer.lost) == (LOST, b"", (1, 2, 5))
    rest = [outputs[at] for at in (0, 3, 4)]
    answer = client.read([each.block(0, 4) for each in rest], [there.address])
    assert answer.data == b"".join(each.expected(0, 4) for each in rest)


def test_lost_ones_here_and_there_are_named_together(here: Serving, there: Host) -> None:
    client = here.connect()
    other = there.write(1, some(1, 100))
    blocks = [
        Block(8, 8, 0, 1, bytes(16), 1),
        other.block(0, 1),
        Block(9, 9, 0, 1, bytes(16), 0),
        Block(9, 9, 1, 2, bytes(16), 0),
    ]
    answer = client.read(blocks, [there.address, HERE])
    assert (answer.status, answer.data, sorted(answer.lost)) == (LOST, b"", [0, 2, 3])


@pytest.mark.parametrize("count", [1, 5])
def test_those_that_are_lost_behind_known_indexes_are_named_at_once(
    here: Serving, there: Host, count: int
) -> None:
    """Another task of this host has read them before. Spark gives up if it hears of one at a time."""
    outputs = [there.write(at, some(at, 300 * KIB)) for at in range(6)]
    client = here.connect()
    blocks = [each.block(0, 4) for each in outputs]
    assert client.read(blocks, [there.address]).status == DONE
    there.client.remove()
    for each in outputs[count:]:
        there.write(each.map_id, each.frames)  # others of the same names, with ids of their own
    for _ in range(2):
        answer = client.read(blocks[:count], [there.address])
        assert (answer.status, answer.lost) == (LOST, tuple(range(count)))


def test_those_behind_known_indexes_are_named_with_those_that_are_looked_for(
    here: Serving, there: Host
) -> None:
    client, outputs = here.connect(), [there.write(at, some(at, 300 * KIB)) for at in range(6)]
    blocks = [each.block(0, 4) for each in outputs]
    assert client.read(blocks[:3], [there.address]).status == DONE
    there.client.remove()
    answer = client.read(blocks, [there.address])
    assert (answer.status, answer.lost) == (LOST, tuple(range(6)))


def test_a_look_finds_what_is_lost_behind_known_indexes(here: Serving, there: Host) -> None:
    """Also behind blocks that are sound, whose bytes would come first."""
    client, others = here.connect(), [there.write(at, some(at, 300 * KIB)) for at in range(3)]
    mine = write_output(client, 9, some(9, MIB))
    blocks = [mine.block(0, 4, 1), *(each.block(0, 4) for each in others)]
    services = [there.address, HERE]
    assert client.read(blocks, services).status == DONE
    assert client.look(blocks, services).status == DONE
    there.client.remove()
    there.write(1, others[1].frames)  # another of that name
    answer = client.look(blocks, services)
    assert (answer.status, answer.data, answer.lost) == (LOST, b"", (1, 2, 3))


def test_another_file_of_that_name_is_not_taken(here: Serving, there: Host) -> None:
    output = there.write(1, some(1, 100))
    other = replace(output.block(0, 1), file_id=bytes(16))
    answer = here.connect().read([output.block(0, 1), other], [there.address])
    assert (answer.status, answer.lost, answer.data) == (LOST, (1,), b"")


@pytest.mark.parametrize("is_known", [False, True])
@SIZES
def test_damage_there_is_a_loss_and_never_handed_out(
    here: Serving, there: Host, size: int, is_known: bool
) -> None:
    outputs = [there.write(at, some(at, size)) for at in range(3)]
    blocks = [each.block(0, 4) for each in outputs]
    everything = b"".join(each.expected(0, 4) for each in outputs)
    client = here.connect()
    if is_known:
        assert client.read(blocks, [there.address]).data == everything
    path = there.file(outputs[1]).data_path
    with changed(path, os.path.getsize(path) // 2, 0x01):
        answer = client.read(blocks, [there.address])
    if is_known and size == 100:
        assert (answer.status, answer.data) == (DONE, everything), "small ones are known whole"
        return
    assert (answer.status, answer.lost) == (LOST, (1,))
    assert everything.startswith(answer.data)
    assert len(answer.data) < len(everything)


@pytest.mark.parametrize("is_known", [False, True])
@SIZES
def test_all_that_are_cut_short_there_are_named_at_once(
    here: Serving, there: Host, size: int, is_known: bool
) -> None:
    """Their indexes are sound. Spark gives up if it hears of one at a time."""
    outputs = [there.write(at, some(at, size)) for at in range(7)]
    client, blocks = here.connect(), [each.block(0, 4) for each in outputs]
    if is_known:
        assert client.read(blocks, [there.address]).status == DONE
    for at in (1, 2, 3, 5, 6):
        os.truncate(there.file(outputs[at]).data_path, 400)
    answer = client.read(blocks, [there.address])
    if is_known and size == 100:
        assert answer.status == DONE, "small ones are known whole"
        return
    assert (answer.status, answer.lost) == (LOST, (1, 2, 3, 5, 6)), answer.text


# Services that do not answer


def test_of_a_service_that_is_gone_all_blocks_are_named(tmp_path: Path, there: Host) -> None:
    output = there.write(1, some(1, 100))
    with refused_address() as gone, impatient(tmp_path) as client:
        mine = client.write([[(0, b"x")]], 5)
        blocks = [
            output.block(0, 1, 0),
            Block(2, 2, 0, 1, bytes(16), 1),
            Block(5, 0, 0, 1, mine.file_id, 2),
            Block(3, 3, 0, 1, bytes(16), 1),
        ]
        for _ in range(2):  # the connection goes on
            answer = client.read(blocks, [there.address, gone, HERE])
            assert (answer.silent, answer.data, answer.lost) == ((1,), b"", (1, 3))
            assert gone in answer.text
        assert client.read(blocks[:1], [there.address]).data == output.expected(0, 1)


def test_lost_ones_are_named_though_a_service_is_gone(tmp_path: Path, there: Host) -> None:
    """What is lost here, what is lost at a service that answers, and all of one that does not."""
    with refused_address() as gone, impatient(tmp_path) as client:
        blocks = [Block(at, at, 0, 1, bytes(16), at % 3) for at in range(6)]
        answer = client.read(blocks, [there.address, gone, HERE])
        assert (answer.status, answer.lost, answer.silent) == (LOST, (0, 1, 2, 3, 4, 5), (1,))


def test_the_text_of_a_loss_names_what_is_lost_here_there_and_the_silent_service(
    tmp_path: Path, there: Host
) -> None:
    with refused_address() as gone, impatient(tmp_path) as client:
        blocks = [Block(1, 1, 0, 1, bytes(16), 2), Block(2, 2, 0, 1, bytes(16), 0)]
        answer = client.read([*blocks, Block(3, 3, 0, 1, bytes(16), 1)], [there.address, gone, HERE])
        assert (answer.silent, sorted(answer.lost)) == ((1,), [0, 1, 2])
        for text in (f"exchange-{SHUFFLE}-map-1-attempt-1", f"exchange-{SHUFFLE}-map-2-attempt-2", gone):
            assert text in answer.text


def test_of_many_losses_the_text_still_names_the_silent_service(tmp_path: Path) -> None:
    with refused_address() as gone, impatient(tmp_path) as client:
        blocks = [Block(at, at, 0, 1, bytes(16), 0) for at in range(3 * MOST_REASONS)]
        answer = client.read([*blocks, Block(99, 99, 0, 1, bytes(16), 1)], [HERE, gone])
        assert (answer.silent, answer.lost) == ((1,), tuple(range(3 * MOST_REASONS + 1)))
        assert gone in answer.text
        assert answer.text.endswith(f"; and {2 * MOST_REASONS + 1} more")


def test_more_services_than_there_are_threads_are_waited_for_together(tmp_path: Path) -> None:
    """None of them answers before all of them are asked."""
    count = THREADS + 2
    all_are_asked = threading.Barrier(count)

    def until_all_are_asked(peer: Peer) -> None:
        channel = peer.request().channel
        all_are_asked.wait(PATIENCE)
        peer.fail(channel, Fault.MISSING)
        peer.until_gone()

    (tmp_path / "here").mkdir()
    with ExitStack() as stack:
        scripted = [ScriptedServer(until_all_are_asked, secret=SECRET) for _ in range(count)]
        servers = [stack.enter_context(each) for each in scripted]
        clients = ClientSettings(SECRET, timeout=PATIENCE)
        client = stack.enter_context(serving(tmp_path / "here", clients=clients)).connect()
        blocks = [Block(at, at, 0, 1, bytes(16), at) for at in range(count)]
        answer = client.read(blocks, [each.address for each in servers])
        assert (answer.status, answer.lost) == (LOST, tuple(range(count))), answer.text


def test_a_service_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with ScriptedServer(silent, secret=SECRET) as server, impatient(tmp_path) as client:
        answer = client.read([Block(1, 1, 0, 1, bytes(16))] * 2, [server.address])
        assert (answer.silent, answer.lost) == ((0,), (0, 1))


def test_a_service_that_ends_while_it_is_read_is_unreachable(tmp_path: Path) -> None:
    with impatient(tmp_path) as client:
        with host(tmp_path / "there", "127.0.0.2") as there:
            outputs = [there.write(at, some(at, 300 * KIB)) for at in range(3)]
            blocks = [each.block(0, 4) for each in outputs]
            assert client.read(blocks, [there.address]).status == DONE  # their indexes are known
        answer = client.read(blocks, [there.address])
        assert (answer.silent, answer.lost, answer.data) == ((0,), (0, 1, 2), b"")


def test_a_service_that_answers_is_not_blamed_for_another(tmp_path: Path, there: Host) -> None:
    """The indexes of both are known, and the other's blocks come last: nothing was asked of it yet."""
    with impatient(tmp_path) as client:
        sound = there.write(100, some(100, 100))
        with host(tmp_path / "other", "127.0.0.3") as other:
            outputs = [other.write(at, some(at, 300 * KIB)) for at in range(8)]
            blocks = [*(each.block(0, 4, 0) for each in outputs), sound.block(0, 4, 1)]
            services = [other.address, there.address]
            assert client.read(blocks, services).status == DONE
        answer = client.read(blocks, services)
        assert (answer.silent, answer.lost) == ((0,), tuple(range(8)))


@SIZES
@pytest.mark.parametrize("stream", Stream)
def test_what_a_service_refuses_is_lost_alone(tmp_path: Path, there: Host, size: int, stream: Stream) -> None:
    """It has no such fault as to be gone: the map tasks of its host do not all run again."""
    outputs = [there.write(at, some(at, size)) for at in range(3)]
    service = HonestService(
        [there.file(each) for each in outputs],
        refuses=lambda request: request.output.map_index == 1 and request.stream is stream,
    )
    with ScriptedServer(service, secret=SECRET) as server, impatient(tmp_path) as client:
        answer = client.read([each.block(0, 4) for each in outputs], [server.address])
        assert (answer.status, answer.lost, answer.silent) == (LOST, (1,), ()), answer.text
        assert "cannot serve" in answer.text
        rest = [outputs[at] for at in (0, 2)]
        answer = client.read([each.block(0, 4) for each in rest], [server.address])
        assert answer.data == b"".join(each.expected(0, 4) for each in rest)


@SIZES
@pytest.mark.parametrize("fault", [Fault.TIMEOUT, Fault.TOO_MUCH])
def test_a_service_that_has_no_room_or_time_for_data_is_unreachable(
    tmp_path: Path, there: Host, size: int, fault: Fault
) -> None:
    """It answers what is asked of indexes. If one map output at a time were lost, Spark would give up before
    all are written anew."""
    outputs = [there.write(at, some(at, size)) for at in range(3)]
    service = HonestService(
        [there.file(each) for each in outputs],
        refuses=lambda request: request.stream is not Stream.INDEX,
        fault=fault,
    )
    with ScriptedServer(service, secret=SECRET) as server, impatient(tmp_path) as client:
        answer = client.read([each.block(0, 4) for each in outputs], [server.address])
        assert (answer.silent, answer.lost) == ((0,), (0, 1, 2)), answer.text
        assert "cannot serve" in answer.text


def test_a_service_that_refuses_many_is_unreachable(tmp_path: Path) -> None:
    """Each is refused for a time-out: that is not waited for hundreds of times."""
    count = 5 * MOST_REFUSED
    service = HonestService([], refuses=lambda request: True)
    with (
        ScriptedServer(service, secret=SECRET) as server,
        refused_address() as gone,
        impatient(tmp_path) as client,
    ):
        blocks = [Block(at, at, 0, 1, at.to_bytes(16, "big")) for at in range(count)]
        answer = client.read([*blocks, Block(count, count, 0, 1, bytes(16), 1)], [server.address, gone])
        assert (answer.silent, answer.lost) == ((0, 1), tuple(range(count + 1)))
        assert len({each.output.map_index for each in service.requests}) < MOST_REFUSED + 2 * THREADS


def test_one_that_breaks_the_protocol_loses_nothing_and_is_an_error_in_words(here: Serving) -> None:
    client = here.connect()
    with ScriptedServer(babbling, secret=SECRET) as server:
        answer = client.read([Block(1, 1, 0, 1, bytes(16))], [server.address])
        assert (answer.status, answer.lost) == (FAILED, ())
        assert f"the shuffle service at {server.address} breaks the protocol" in answer.text
        assert client.write([[(0, b"x")]]).sizes == (64, 0, 0, 0), "the connection goes on"


def test_one_that_does_not_know_the_secret_is_an_error_in_words(tmp_path: Path) -> None:
    with ScriptedServer(silent, secret=b"another" * 5) as server, impatient(tmp_path) as client:
        answer = client.read([Block(1, 1, 0, 1, bytes(16))], [server.address])
        assert (answer.status, server.address in answer.text) == (FAILED, True), answer.text
        assert client.write([[(0, b"x")]]).sizes == (64, 0, 0, 0), "the connection goes on"


def test_a_known_loss_is_told_if_a_service_cannot_be_asked(tmp_path: Path) -> None:
    with ScriptedServer(silent, secret=b"another" * 5) as server, impatient(tmp_path) as client:
        mine = client.write([[(0, b"x")]], 5)
        blocks = [Block(1, 1, 0, 1, bytes(16), 0), Block(5, 0, 0, 1, mine.file_id, 1)]
        lost = Block(2, 2, 0, 1, bytes(16), 1)
        answer = client.read([*blocks, lost], [server.address, HERE])
        assert (answer.status, answer.lost) == (LOST, (2,)), answer.text


@contextmanager
def too_few_descriptors(monkeypatch: pytest.MonkeyPatch, *services: str) -> Iterator[None]:
    """The engine has no descriptor left whenever it connects to one of these services."""
    ports, connect = {int(each.rpartition(":")[2]) for each in services}, calls.create_connection

    def failing(address: tuple[str, int], *arguments: Any) -> socket.socket:
        if address[1] in ports:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return connect(address, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(calls, "create_connection", failing)
        yield


def text_of_shortage(
    tmp_path: Path, there: Host, shortage: AbstractContextManager[object], is_known: bool
) -> str:
    """Return the text of the error of a read during a shortage of the engine. Nothing of the sound host is
    lost, and all can be read afterwards. ``is_known``: the engine has read the map outputs before."""
    outputs = [there.write(at, some(at, 300 * KIB)) for at in range(2)]
    blocks = [each.block(0, 4) for each in outputs]
    with impatient(tmp_path) as client:
        if is_known:
            assert client.read(blocks, [there.address]).status == DONE
        with shortage:
            answer = client.read(blocks, [there.address])
        assert (answer.status, answer.lost) == (FAILED, ())
        assert client.read(blocks, [there.address]).data == b"".join(each.expected(0, 4) for each in outputs)
        return str(answer.text)


@pytest.mark.parametrize("is_known", [False, True])
def test_an_engine_without_descriptors_loses_nothing_of_a_sound_host(
    tmp_path: Path, there: Host, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Neither when it looks for map outputs, nor when it fetches those whose indexes are known."""
    text = text_of_shortage(tmp_path, there, too_few_descriptors(monkeypatch, there.address), is_known)
    for part in (there.address, "Too many open files", "ulimit -n"):
        assert part in text


def test_a_shortage_is_waited_for_once_however_many_map_outputs_are_asked_for(
    tmp_path: Path, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time-out without descriptors, no further service is asked."""
    asked: list[tuple[str, int]] = []

    def failing(address: tuple[str, int], *arguments: Any) -> socket.socket:
        asked.append(address)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    services = [f"127.0.0.1:{port}" for port in range(100, 100 + 5 * MOST_ASKED)]
    with impatient(tmp_path) as client, monkeypatch.context() as patch:
        patch.setattr(calls, "create_connection", failing)
        blocks = [Block(at, at, 0, 1, bytes(16), at) for at in range(len(services))]
        answer = client.read(blocks, services)
    assert (answer.status, answer.lost) == (FAILED, ())
    assert len(set(asked)) <= 2 * MOST_ASKED


@contextmanager
def no_thread(monkeypatch: pytest.MonkeyPatch, name: str, times: int = sys.maxsize) -> Iterator[list[str]]:
    """The system does not start threads whose names begin so, this many times. Yields the names of those."""
    start, left, refused = threading.Thread.start, iter(range(times)), list[str]()

    def start_others(thread: threading.Thread) -> None:
        if thread.name.startswith(name) and next(left, None) is not None:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_others)
        yield refused


OF_CONNECTIONS, OF_LOOKS_AND_FETCHES = "sortshuffle-client", "sortshuffle-read"


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("name", [OF_CONNECTIONS, OF_LOOKS_AND_FETCHES])
def test_an_engine_without_threads_loses_nothing_of_a_sound_host(
    tmp_path: Path, there: Host, monkeypatch: pytest.MonkeyPatch, name: str, is_known: bool
) -> None:
    text = text_of_shortage(tmp_path, there, no_thread(monkeypatch, name), is_known)
    for part in (there.address, "can't start new thread", "ulimit -u"):
        assert part in text


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("name", [OF_CONNECTIONS, OF_LOOKS_AND_FETCHES])
def test_an_engine_that_has_no_thread_for_a_moment_waits_for_one(
    here: Serving, there: Host, monkeypatch: pytest.MonkeyPatch, name: str, is_known: bool
) -> None:
    outputs = [there.write(at, some(at, 300 * KIB)) for at in range(2)]
    blocks, client = [each.block(0, 4) for each in outputs], here.connect()
    if is_known:
        assert client.read(blocks, [there.address]).status == DONE
    with no_thread(monkeypatch, name, times=2) as refused:
        answer = client.read(blocks, [there.address])
    assert (answer.status, len(refused)) == (DONE, 2)
    assert answer.data == b"".join(each.expected(0, 4) for each in outputs)


def test_a_lack_of_threads_is_waited_for_once_however_many_services_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = [f"127.0.0.1:{port}" for port in range(100, 100 + 5 * MOST_ASKED)]
    with impatient(tmp_path) as client, no_thread(monkeypatch, OF_CONNECTIONS) as refused:
        blocks = [Block(at, at, 0, 1, bytes(16), at) for at in range(len(services))]
        answer = client.read(blocks, services)
    assert (answer.status, answer.lost) == (FAILED, ())
    assert len(set(refused)) <= 2 * MOST_ASKED


def test_all_that_are_lost_are_named_by_an_engine_that_has_no_thread_to_look(
    here: Serving, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = [there.write(at, some(at, 100)) for at in range(4)]
    for at in (1, 3):
        os.unlink(there.file(outputs[at]).data_path)
    with no_thread(monkeypatch, OF_LOOKS_AND_FETCHES):
        answer = here.connect().read([each.block(0, 4) for each in outputs], [there.address])
    assert (answer.status, answer.lost) == (LOST, (1, 3))


def test_the_answers_of_a_look_hold_no_frames(here: Serving, there: Host) -> None:
    """One error may be the answer for several requests, which keep it."""
    lost = there.write(1, some(1, 100))
    os.unlink(there.file(lost).data_path)
    request = protocol.ReadRequest(SHUFFLE, (there.address,), (lost.block(0, 4).received(),))
    with closing(here.engine._remote.blocks(request, list(enumerate(request.blocks)))) as blocks:
        answer = blocks._answers(blocks._blocks)[0]
    assert isinstance(answer, MissingDataError)
    assert frames(answer) == []


def babbling(peer: Peer) -> None:
    peer.request()
    peer.send(b"\xff" * 100)
    peer.until_gone()


@contextmanager
def breaks_the_protocol(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ScriptedServer(babbling, secret=SECRET) as server:
        yield server.address


@contextmanager
def knows_another_secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ScriptedServer(silent, secret=b"another" * 5) as server:
        yield server.address


@contextmanager
def gets_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ScriptedServer(silent, secret=SECRET) as server, too_few_descriptors(monkeypatch, server.address):
        yield server.address


WRONG_SERVICES = [breaks_the_protocol, knows_another_secret, gets_no_descriptor]


@pytest.mark.parametrize("wrong_service", WRONG_SERVICES)
def test_an_error_of_a_service_hides_no_loss_at_others(
    tmp_path: Path,
    there: Host,
    monkeypatch: pytest.MonkeyPatch,
    wrong_service: Callable[[pytest.MonkeyPatch], AbstractContextManager[str]],
) -> None:
    """Spark runs the map tasks of the lost ones again. If nothing is lost, the error is the answer."""
    sound, gone = there.write(1, some(1, 100)), there.write(2, some(2, 100))
    os.unlink(there.file(gone).data_path)
    with wrong_service(monkeypatch) as wrong, impatient(tmp_path) as client:
        of_wrong = Block(5, 5, 0, 1, bytes(16), 0)
        answer = client.read([of_wrong, gone.block(0, 1, 1), sound.block(0, 1, 1)], [wrong, there.address])
        assert (answer.status, answer.lost) == (LOST, (1,)), answer.text
        answer = client.read([of_wrong, sound.block(0, 1, 1)], [wrong, there.address])
        assert (answer.status, answer.lost, wrong in answer.text) == (FAILED, (), True), answer.text


def test_a_service_that_does_not_answer_is_told_before_the_error_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with breaks_the_protocol(monkeypatch) as wrong, refused_address() as gone, impatient(tmp_path) as client:
        blocks = [Block(at, at, 0, 1, bytes(16), at) for at in range(2)]
        answer = client.read(blocks, [wrong, gone])
        assert (answer.silent, answer.lost) == ((1,), (1,)), answer.text


def test_a_service_that_breaks_the_protocol_is_not_asked_for_each_of_its_map_outputs(tmp_path: Path) -> None:
    with ScriptedServer(babbling, secret=SECRET) as server, impatient(tmp_path) as client:
        blocks = [Block(at, at, 0, 1, at.to_bytes(16, "big")) for at in range(20 * THREADS)]
        answer = client.read(blocks, [server.address])
        assert (answer.status, answer.lost) == (FAILED, ()), answer.text
        assert server.connections <= 2 * MOST_PROTOCOL_ERRORS


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:0", "127.0.0.1:x"])
def test_what_is_no_address_is_refused(here: Serving, address: str) -> None:
    answer = here.connect().read([Block(1, 1, 0, 1, bytes(16))], [address])
    assert (answer.status, "give host:port" in answer.text) == (BAD_REQUEST, True)


# Removing


def test_other_services_are_told_to_remove_a_shuffle(here: Serving, there: Host) -> None:
    there.write(1, some(1, 100))
    there.client.write(some(2, 100), 2, shuffle=33)
    client = here.connect()
    client.write([[(0, b"x")]])
    assert client.remove(SHUFFLE, [there.address, HERE]) == (DONE, b"")
    assert here.files() == []
    eventually(lambda: len(there.engine.files()) == 2, "it is removed there, too")
    assert there.engine.files()[0].startswith("exchange-33-")


@pytest.mark.parametrize(
    ("application", "token"),
    [("app-2", TOKEN), (APPLICATION, "6f" * 16), (APPLICATION, "00" * 16)],
    ids=["another application", "another token", "none"],
)
def test_whoever_does_not_know_the_token_removes_nothing(there: Host, application: str, token: str) -> None:
    there.write(1, some(1, 100))
    clients = ServiceClients(ClientSettings(SECRET, timeout=PATIENCE))
    try:
        client = clients.client(there.address)
        assert client.remove(application, SHUFFLE, bytes.fromhex(token)) is False
        assert len(there.engine.files()) == 2
        assert client.remove(APPLICATION, SHUFFLE, bytes.fromhex(TOKEN)) is True
        assert there.engine.files() == []
    finally:
        clients.close()


def test_a_service_that_cannot_be_told_does_not_hold_up_the_jvm(
    tmp_path: Path, there: Host, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "REMOVAL_TIMEOUT", SHORT)
    there.write(1, some(1, 100))
    with refused_address() as gone, impatient(tmp_path) as client:
        client.write([[(0, b"x")]])
        assert client.remove(SHUFFLE, [gone, "no address", there.address]) == (DONE, b"")
        eventually(lambda: there.engine.files() == [], "the others are told")
        eventually(lambda: "no address" in caplog.text, "the log says so")


def test_without_a_thread_to_tell_services_the_files_here_are_removed_and_the_log_says_what_is_left(
    here: Serving, there: Host, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    client = here.connect()
    client.write([[(0, b"x")]])
    there.write(1, some(1, 100))
    threads = here.engine._removal_threads
    threads.submit(int).result(PATIENCE)  # there is a thread to ask, but none for a link
    eventually(lambda: threads._idle_semaphore._value == 1, "it is idle")
    monkeypatch.setattr(threading.Thread, "start", start)
    assert client.remove(SHUFFLE, [there.address]) == (DONE, b"")
    eventually(lambda: f"is not removed where {there.address} serves" in caplog.text, "the log says so")
    assert here.files() == []
    assert len(there.engine.files()) == 2


class Telling:
    """What an engine's log says of the removals that a service did not hear of."""

    def __init__(self, engine: Serving, service: str, caplog: pytest.LogCaptureFixture) -> None:
        self._engine = engine.engine
        self._service = service
        self._caplog = caplog

    def tell(self) -> None:
        """Wait until the attempt, or the decision to make none, is over."""
        self._engine._tell(self._service, SHUFFLE)

    def unheard(self) -> int:
        return self._caplog.text.count(f"is not removed where {self._service} serves")

    def passed_over(self) -> int:
        return self._caplog.text.count(f"{self._service} gets no removal requests for 600 s")


def test_a_service_that_does_not_hear_time_and_again_is_passed_over_for_a_while(
    here: Serving, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "REMOVAL_TIMEOUT", SHORT)
    now = [1000.0]
    here.engine._silent = SilentServices(lambda: now[0])
    with refused_address() as gone:
        telling = Telling(here, gone, caplog)
        for times in range(MOST_FAILURES):
            assert (telling.unheard(), telling.passed_over()) == (times, 0)
            telling.tell()
        assert (telling.unheard(), telling.passed_over()) == (MOST_FAILURES, 1)
        now[0] += RETRY_AFTER - 1
        telling.tell()
        assert telling.unheard() == MOST_FAILURES
        now[0] += 1
        telling.tell()
        telling.tell()
    assert (telling.unheard(), telling.passed_over()) == (MOST_FAILURES + 1, 1), "it is tried once"


def pass_over(engine: Serving, service: str) -> None:
    """As after attempts that have failed."""
    services = engine.engine._silent
    for _ in range(MOST_FAILURES):
        began = services.begin_attempt(service)
        assert began is not None
        services.failed(service, began)


def test_a_service_that_is_back_is_told_again(
    here: Serving, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    here.engine._silent = SilentServices(lambda: now[0])
    pass_over(here, there.address)
    there.write(1, some(1, 100))
    here.engine._tell(there.address, SHUFFLE)
    assert len(there.engine.files()) == 2, "it is passed over"
    now[0] += RETRY_AFTER
    for map_id in (1, 2):
        here.engine._tell(there.address, SHUFFLE)
        assert there.engine.files() == []
        there.write(map_id, some(map_id, 100))


def test_an_error_that_says_nothing_of_the_host_does_not_count(
    tmp_path: Path, there: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine does not know the secret of that service. It answers: so it is passed over no more."""
    now = [1000.0]
    (tmp_path / "here").mkdir()
    with serving(tmp_path / "here", clients=ClientSettings(b"x" * 32, timeout=PATIENCE)) as here:
        here.engine._silent = SilentServices(lambda: now[0])
        pass_over(here, there.address)
        now[0] += RETRY_AFTER
        telling = Telling(here, there.address, caplog)
        for times in range(MOST_FAILURES + 2):
            assert telling.unheard() == times
            telling.tell()
    assert telling.passed_over() == 0


def test_services_that_are_passed_over_do_not_keep_the_others_from_it(
    here: Serving, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are more than there are threads, and an attempt would take longer than is waited for here."""
    monkeypatch.setattr(engines, "REMOVAL_TIMEOUT", 60.0)
    there.write(1, some(1, 100))
    client = here.connect()
    client.write([[(0, b"x")]])
    with ExitStack() as stack:
        gone = [stack.enter_context(refused_address()) for _ in range(engines.REMOVAL_THREADS + 1)]
        for service in gone:
            pass_over(here, service)
        assert client.remove(SHUFFLE, [*gone, there.address]) == (DONE, b"")
        eventually(lambda: there.engine.files() == [], "the others are told")
