"""What one task asks of services beside extents: indexes, what can be adopted, verdicts; and that it has one
connection to each, which no other process shares."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from consumers import together
from engine import DRIVER, ID, Pair, Region, eventually, write_pair
from scripted_server import HonestService, Peer, Script, ScriptedServer, after, cut, refused_address

from sortshuffle import calls
from sortshuffle.errors import (
    MissingDataError,
    Place,
    ProtocolError,
    ServiceUnavailableError,
    StateError,
    UsageError,
)
from sortshuffle.format.header import INDEX_MAGIC, Codec, FileHeader, PayloadKind
from sortshuffle.format.index import unpack_index
from sortshuffle.service.client import backoff, index_channel
from sortshuffle.service.client import client as service_client
from sortshuffle.service.client.client import ServiceClient, ServiceClients
from sortshuffle.service.client.client_channel import RequestSubject
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.credits import FloatingCredits
from sortshuffle.service.client.questions import find_question
from sortshuffle.service.wire.protocol import (
    Fault,
    FoundOutput,
    Kind,
    MapOutputAddress,
    Verdict,
    pack_damage_verdict,
    pack_find_response,
)
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.ranges import SubpartitionRange
from sortshuffle.storage.files.reader import read_index

PATIENT = ClientSettings(timeout=20.0)
OUTPUT = MapOutputAddress("app", 3, 17, 204, ID)
WANTED = MapOutputAddress("app", 1, 2, file_id=DRIVER)
FOUND = FoundOutput(bytes(range(16)), 9, "/far/exchange-1-map-2-attempt-9", "far")


def client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sortshuffle-client")]


@contextmanager
def clients_of(settings: ClientSettings = PATIENT) -> Iterator[ServiceClients]:
    clients = ServiceClients(settings)
    try:
        yield clients
    finally:
        clients.close()
        assert client_threads() == []


@contextmanager
def client_of(server: ScriptedServer) -> Iterator[ServiceClient]:
    with clients_of() as clients:
        yield clients.client(server.address)


@pytest.fixture
def honest(tmp_path: Path) -> HonestService:
    """With a map output whose index takes several segments."""
    regions = [Region({s: [b"x" * (s + 1)] for s in range(100)}) for _ in range(3)]
    return HonestService([write_pair(tmp_path, Pair(100, 0, regions))], piece=1000)


# --- the index ---------------------------------------------------------------------------------------------


def test_the_index_is_the_file(honest: HonestService) -> None:
    expected = Path(honest.files[0].index_path).read_bytes()
    assert len(expected) > 3 * 4096
    with ScriptedServer(honest) as server, client_of(server) as client:
        assert client.index(OUTPUT, "far") == expected
        assert client.index(OUTPUT, "far") == expected
        assert server.connections == 1


def test_an_index_of_any_size_needs_no_more_credit_than_a_few_segments(tmp_path: Path) -> None:
    regions = [Region({s: [b"x"] for s in range(1000)}) for _ in range(4)]
    honest = HonestService([write_pair(tmp_path, Pair(1000, 0, regions))])
    expected = Path(honest.files[0].index_path).read_bytes()
    with ScriptedServer(honest) as server, client_of(server) as client:
        assert client.index(OUTPUT, "far") == expected
    assert len(expected) > 30 * 4096
    assert honest.most_credit <= 16


def test_an_index_goes_on_where_the_connection_broke(
    honest: HonestService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.001)
    expected = Path(honest.files[0].index_path).read_bytes()
    for most_sent in range(0, 5000, 119):
        with ScriptedServer(after(most_sent, honest), honest) as server, client_of(server) as client:
            assert client.index(OUTPUT, "far") == expected, most_sent


def test_a_connection_that_went_while_this_process_stood_still_is_made_anew(
    honest: HonestService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.001)
    now = [100.0]

    def stood_still(peer: Peer) -> None:
        peer.request()
        now[0] += 61.0
        cut(peer)

    with ScriptedServer(stood_still, honest) as server:
        client = ServiceClient(
            server.address, ClientSettings(timeout=20.0), FloatingCredits(MIB), lambda: now[0]
        )
        with closing(client.link):
            assert client.index(OUTPUT, "far") == Path(honest.files[0].index_path).read_bytes()
    client.link.join()


def test_a_host_that_cannot_be_reached_costs_one_and_a_half_time_outs_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its name is found slowly, and nothing answers there."""
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.001)
    now, getaddrinfo = [100.0], calls.getaddrinfo

    def slow(host: str, *of: object, flags: int = 0, **others: object) -> object:
        if not flags:
            now[0] += 1.8
        return getaddrinfo(host, *of, flags=flags, **others)

    def nothing(address: object, timeout: float) -> None:
        now[0] += timeout
        raise TimeoutError("timed out")

    monkeypatch.setattr(calls, "getaddrinfo", slow)
    monkeypatch.setattr(calls, "create_connection", nothing)
    client = ServiceClient("localhost:1", ClientSettings(timeout=4.0), FloatingCredits(MIB), lambda: now[0])
    with closing(client.link), pytest.raises(ServiceUnavailableError, match="could not be reached"):
        client.index(OUTPUT, "far")
    client.link.join()
    assert now[0] - 100.0 <= 1.5 * 4.0


KIB, MIB = 1 << 10, 1 << 20


def endless(begin: bytes, size: int = MIB, pace: Callable[[], object] = lambda: None) -> Script:
    """An index that begins so and does not end, as long as there is credit for it. ``size``: of its pieces,
    before each of which it calls ``pace``."""

    def run(peer: Peer) -> None:
        request = peer.request()
        credit, sequence = request.credit, 0
        begun = begin[request.skip :]
        while True:
            while not credit:
                header, _ = peer.next()
                credit += header.credit
            pace()
            peer.send_data(request.channel, sequence, begun + bytes(size - len(begun)), backlog=99)
            credit, sequence, begun = credit - 1, sequence + 1, b""

    return run


HEADER = FileHeader(ID, 1000, 0, Codec.NONE, PayloadKind.PICKLE).pack(INDEX_MAGIC)


def test_an_index_without_an_end_is_taken_as_far_as_its_regions_go() -> None:
    entries = 56 + 300 * (1000 * 48 + 1)
    with ScriptedServer(endless(HEADER), segment_bytes=MIB) as server, client_of(server) as client:
        with pytest.raises(ProtocolError, match=f"an index of more than {entries + 16 * MIB} bytes"):
            client.index(OUTPUT, "far", regions=300)
        assert sum(peer.sent for peer in server.peers) < entries + 40 * MIB


@pytest.mark.parametrize("regions", [None, 1 << 31], ids=["not known", "absurd"])
def test_no_index_is_larger_than_the_largest(regions: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_channel, "MOST_INDEX_BYTES", 4 * MIB)
    with (
        ScriptedServer(endless(HEADER), segment_bytes=MIB) as server,
        client_of(server) as client,
        pytest.raises(ProtocolError, match=f"an index of more than {4 * MIB} bytes"),
    ):
        client.index(OUTPUT, "far", regions)


def test_what_does_not_begin_as_an_index_is_none() -> None:
    with ScriptedServer(endless(b"no index"), segment_bytes=MIB) as server, client_of(server) as client:
        with pytest.raises(ProtocolError, match="does not begin as the index does: the magic is wrong"):
            client.index(OUTPUT, "far", regions=1)
        assert server.connections == 3


def test_the_index_of_another_map_output_is_not_believed() -> None:
    """Nor is how large it says that it is."""
    other = FileHeader(bytes(16), 1 << 24, 0, Codec.NONE, PayloadKind.PICKLE).pack(INDEX_MAGIC)
    with ScriptedServer(endless(other), segment_bytes=MIB) as server, client_of(server) as client:
        with pytest.raises(ProtocolError, match="does not begin as the index does: the id is another"):
            client.index(OUTPUT, "far", regions=1)
        assert server.connections == 3
        assert max(peer.sent for peer in server.peers) <= 17 * MIB


def test_an_index_is_held_once(tmp_path: Path) -> None:
    """From the first byte that comes to the entries that are looked up."""
    regions = [Region({s: [b"x"] for s in range(1000)}) for _ in range(100)]
    file = write_pair(tmp_path, Pair(1000, 0, regions))
    size = os.path.getsize(file.index_path)
    sent = Path(file.index_path).read_bytes()
    honest = HonestService([file], piece=64 << 10)
    with ScriptedServer(honest, segment_bytes=64 << 10) as server, client_of(server) as client:
        data = client.index(OUTPUT, "far")
        assert data.readonly
        tracemalloc.start()
        try:
            index = unpack_index(data)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert np.shares_memory(index.entries, np.frombuffer(data, np.uint8))
        assert data == sent
        assert not index.entries.flags.writeable
        assert taken < 0.75 * size, "some numbers of each entry are compared"


def test_large_indexes_come_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several services and of several requests, as soon as they are larger than most are."""
    monkeypatch.setattr(index_channel, "LARGE_INDEX_BYTES", 64 << 10)
    regions = [Region({s: [b"x"] for s in range(1000)}) for _ in range(10)]
    file = write_pair(tmp_path, Pair(1000, 0, regions))
    expected = Path(file.index_path).read_bytes()
    services = [HonestService([file]) for _ in range(4)]
    turn, most, taken = threading.Lock(), [0], threading.Lock()

    class OneAtATime(index_channel.IndexChannel):
        def take_turn(self) -> None:
            assert turn.locked(), "it has its turn"
            assert len(self._received) <= 64 << 10, "nothing more has come before"
            assert taken.acquire(blocking=False), "another one has its turn"
            most[0] += 1
            super().take_turn()

        def _check_end(self) -> None:
            super()._check_end()
            taken.release()

    monkeypatch.setattr(service_client, "IndexChannel", OneAtATime)
    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer(each)) for each in services]
        found: list[memoryview] = []
        asked = [
            stack.enter_context(closing(ServiceClients(ClientSettings(timeout=20.0), turn))).client(
                server.address
            )
            for server in servers
        ]
        with together(*[lambda each=each: found.append(each.index(OUTPUT, "far")) for each in asked]):
            pass
    assert found == [expected] * 4
    assert most == [4]
    assert not turn.locked()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody knows that an index must wait for its turn, as they do after 8 KiB here."""
    monkeypatch.setattr(index_channel, "LARGE_INDEX_BYTES", 8 << 10)
    monkeypatch.setattr(service_client, "TURN_TICK", 0.01)
    known = threading.Event()

    class Noted(index_channel.IndexChannel):
        @property
        def needs_turn(self) -> bool:
            needs = super().needs_turn
            if needs and threading.current_thread().name not in client_threads():
                known.set()
            return needs

    monkeypatch.setattr(service_client, "IndexChannel", Noted)
    return known


def test_a_large_index_whose_turn_does_not_come_can_be_given_up(
    tmp_path: Path, waits: threading.Event
) -> None:
    file = write_pair(tmp_path, Pair(1000, 0, [Region({s: [b"x"] for s in range(1000)})]))
    turn = threading.Lock()
    with ScriptedServer(HonestService([file])) as server, turn:
        clients = ServiceClients(ClientSettings(timeout=20.0), turn)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(clients.client(server.address).index, OUTPUT, "far")
            assert waits.wait(20)
            clients.close()
            with pytest.raises(StateError, match="the reader was closed"):
                asked.result(20)


def test_a_large_index_whose_service_goes_does_not_wait_for_its_turn(
    tmp_path: Path, waits: threading.Event
) -> None:
    file = write_pair(tmp_path, Pair(1000, 0, [Region({s: [b"x"] for s in range(1000)})]))
    turn = threading.Lock()
    with turn, ThreadPoolExecutor(1) as threads:
        with ScriptedServer(HonestService([file])) as server:
            clients = ServiceClients(ClientSettings(timeout=0.5), turn)
            asked = threads.submit(clients.client(server.address).index, OUTPUT, "far")
            assert waits.wait(20)
        try:
            with pytest.raises(ServiceUnavailableError, match="could not be reached"):
                asked.result(20)
        finally:
            clients.close()


def test_a_large_index_that_is_complete_does_not_wait_for_its_turn(waits: threading.Event) -> None:
    """Its last byte took the room that it had without one, and its end came later."""
    data = HEADER + bytes((8 << 10) - len(HEADER))

    def ends_late(peer: Peer) -> None:
        request = peer.request()
        peer.send_data(request.channel, 0, data[:4096])
        peer.send_data(request.channel, 1, data[4096:])
        assert waits.wait(20)
        peer.send_end(request.channel, 2)
        peer.until_gone()

    turn = threading.Lock()
    with ScriptedServer(ends_late) as server, turn, ThreadPoolExecutor(1) as threads:
        clients = ServiceClients(ClientSettings(timeout=20.0), turn)
        asked = threads.submit(clients.client(server.address).index, OUTPUT, "far")
        try:
            assert asked.result(20) == data
        finally:
            clients.close()


def test_whoever_has_the_turn_for_a_time_out_goes_on_without_it(
    tmp_path: Path, waits: threading.Event
) -> None:
    """A host that gets on, however slowly, does not hold up what others have."""
    file = write_pair(tmp_path, Pair(1000, 0, [Region({s: [b"x"] for s in range(1000)})]))
    turn, is_over = threading.Lock(), threading.Event()
    slow = endless(HEADER, 64 * KIB, pace=lambda: is_over.wait(0.1))
    with (
        ScriptedServer(slow, segment_bytes=64 * KIB) as holder,
        ScriptedServer(HonestService([file])) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        clients = ServiceClients(ClientSettings(timeout=1.0), turn)
        others = ServiceClients(ClientSettings(timeout=20.0), turn)
        try:
            holding = threads.submit(clients.client(holder.address).index, OUTPUT, "far")
            eventually(turn.locked, "it has the turn")
            asked = threads.submit(others.client(other.address).index, OUTPUT, "far")
            assert asked.result(20) == Path(file.index_path).read_bytes()
            assert not holding.done()
        finally:
            clients.close()
            others.close()
            is_over.set()
        with pytest.raises(StateError, match="the reader was closed"):
            holding.result(20)


def test_what_did_not_begin_as_an_index_is_no_part_of_the_next(honest: HonestService) -> None:
    expected = Path(honest.files[0].index_path).read_bytes()
    with (
        ScriptedServer(endless(b"no index"), honest, segment_bytes=MIB) as server,
        client_of(server) as client,
    ):
        assert client.index(OUTPUT, "far", regions=3) == expected
        assert server.connections == 2


def test_a_byte_now_and_then_is_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection gives one byte and is cut: that does not go on for ever."""
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.001)
    honest = HonestService([write_pair(tmp_path, Pair(1, 0, [Region({0: [b"x" * 500]})]))], piece=1)
    [extent] = extents_of(read_index(honest.files[0]), 0)
    with (
        ScriptedServer(after(25, honest)) as server,
        closing(ServiceClients(ClientSettings(timeout=0.5))) as clients,
    ):
        with pytest.raises(ServiceUnavailableError):
            clients.client(server.address).extents(OUTPUT, "far", SubpartitionRange(0, 0), extent)
        assert 1 < server.connections < extent.bytes


def test_an_index_that_is_gone_is_missing(honest: HonestService) -> None:
    def gone(peer: Peer) -> None:
        peer.fail(peer.request().channel, Fault.MISSING, "no such map output")
        peer.until_gone()

    with ScriptedServer(gone) as server, client_of(server) as client:
        with pytest.raises(
            MissingDataError, match="no such map output, says the shuffle service of far"
        ) as caught:
            client.index(OUTPUT, "far")
        assert caught.value.place.file == str(OUTPUT)


# --- questions ---------------------------------------------------------------------------------------------


def _answering(found: FoundOutput | None = None, verdict: Verdict = Verdict.SOUND) -> object:
    def run(peer: Peer) -> None:
        while True:
            header, _ = peer.next()
            if header.kind is Kind.FIND_REQUEST:
                peer.send(pack_find_response(header.channel, found))
            elif header.kind is Kind.DAMAGE_REPORT:
                peer.send(pack_damage_verdict(header.channel, verdict))

    return run


@pytest.mark.parametrize("found", [None, FOUND], ids=["none", "one"])
def test_what_can_be_adopted(found: FoundOutput | None) -> None:
    with ScriptedServer(_answering(found)) as server, client_of(server) as client:
        assert client.find(WANTED) == found
        assert client.find(replace(WANTED, map_index=3)) == found
        assert server.connections == 1


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_the_service_finds_of_damage(verdict: Verdict) -> None:
    with ScriptedServer(_answering(verdict=verdict)) as server, client_of(server) as client:
        assert client.report_damage(OUTPUT, "far", 5, 2) is verdict


def test_a_refused_question_about_damage_names_the_file() -> None:
    """By which a reader finds out whose bytes they are."""

    def refuses(peer: Peer) -> None:
        while True:
            header, _ = peer.next()
            peer.fail(header.channel, Fault.INTERNAL, "as scripted")

    hasty = ClientSettings(timeout=0.5)
    with (
        ScriptedServer(refuses) as server,
        clients_of(hasty) as clients,
        pytest.raises(ServiceUnavailableError, match="as scripted") as raised,
    ):
        clients.client(server.address).report_damage(OUTPUT, "far", 5, 2)
    assert raised.value.refused is not None
    assert raised.value.refused.file == OUTPUT.file_in("far").data_path


def test_a_question_is_asked_again_when_the_connection_breaks() -> None:
    with ScriptedServer(cut, _answering(FOUND)) as server, client_of(server) as client:
        assert client.find(WANTED) == FOUND
        assert server.connections == 2


def test_an_answer_to_another_question_breaks_the_protocol() -> None:
    def confused(peer: Peer) -> None:
        header, _ = peer.next()
        peer.send(pack_damage_verdict(header.channel, Verdict.SOUND))
        peer.until_gone()

    with ScriptedServer(confused) as server, client_of(server) as client:
        with pytest.raises(ProtocolError, match="DAMAGE_VERDICT that was not asked for"):
            client.find(WANTED)
        assert server.connections == 3


def test_many_questions_at_once_each_get_their_own_answer() -> None:
    def numbered(peer: Peer) -> None:
        waiting = []
        while True:
            header, body = peer.next()
            if header.kind is not Kind.FIND_REQUEST:
                return
            waiting.append((header.channel, MapOutputAddress.unpack(body)[0].map_index))
            if len(waiting) == 8:  # all of them, and the last one first
                for channel, map_index in reversed(waiting):
                    peer.send(pack_find_response(channel, replace(FOUND, attempt=map_index)))
                waiting = []

    with ScriptedServer(numbered) as server, client_of(server) as client:
        found: dict[int, int] = {}

        def ask(map_index: int) -> None:
            answer = client.find(replace(WANTED, map_index=map_index))
            assert answer is not None
            found[map_index] = answer.attempt

        with together(*[lambda n=n: ask(n) for n in range(8)]):
            pass
    assert found == {n: n for n in range(8)}


# --- clients -----------------------------------------------------------------------------------------------


def test_trouble_that_nobody_waits_out_is_over_when_the_last_one_leaves() -> None:
    """What fails ten minutes later is other trouble, with time of its own."""
    with refused_address() as address, clients_of() as clients:
        client = clients.client(address)
        for _ in range(2):
            with client.link.opened(find_question(RequestSubject("it", Place("it"), "far"), OUTPUT)):
                eventually(lambda: client.link._reconnect_policy.lasted > 0, "it fails")
            assert client.link._reconnect_policy.lasted == 0


def test_one_client_for_each_service() -> None:
    with clients_of() as clients:
        first = clients.client("127.0.0.1:1")
        assert clients.client("127.0.0.1:1") is first
        assert clients.client("127.0.0.1:2") is not first
        assert client_threads() == []


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(ClientSettings(b"hush"))


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:many", "host:0"])
def test_what_is_no_address(address: str) -> None:
    with clients_of() as clients, pytest.raises(UsageError, match="address of a service"):
        clients.client(address)


def test_closed_clients_open_nothing(honest: HonestService) -> None:
    with ScriptedServer(honest) as server:
        with client_of(server) as client:
            client.index(OUTPUT, "far")
        with pytest.raises(StateError, match="closed"):
            client.index(OUTPUT, "far")


def test_a_service_is_told_when_a_client_leaves(honest: HonestService) -> None:
    with ScriptedServer(honest) as server:
        with client_of(server) as client:
            client.index(OUTPUT, "far")
        (peer,) = server.peers
        eventually(lambda: peer.received[-1].kind is Kind.CLOSE, "goodbye")


def test_a_connection_that_breaks_while_nothing_is_asked_is_made_anew_when_something_is(
    honest: HonestService,
) -> None:
    with ScriptedServer(honest) as server, client_of(server) as client:
        client.index(OUTPUT, "far")
        server.cut_all()
        eventually(lambda: not client_threads(), "the end of the thread")
        assert client.index(OUTPUT, "far") == Path(honest.files[0].index_path).read_bytes()
        assert server.connections == 2


def test_a_forked_process_has_connections_of_its_own(honest: HonestService) -> None:
    with ScriptedServer(honest) as server, clients_of() as clients:
        expected = clients.client(server.address).index(OUTPUT, "far")
        child = os.fork()
        if not child:
            status = 1
            try:
                if clients.client(server.address).index(OUTPUT, "far") == expected:
                    clients.close()
                    status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert server.connections == 2
        assert clients.client(server.address).index(OUTPUT, "far") == expected
        assert server.connections == 2
