"""Extents as they come from a service of another host: the same bytes as from the file, whatever happens on
the way, or an error that says where; and nothing held or open behind them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from consumers import together
from engine import Pair, Region, eventually, write_pair
from scripted_server import (
    SEGMENT,
    Cut,
    HonestService,
    Peer,
    Script,
    ScriptedServer,
    after,
    cut,
    refused_address,
    silent,
)

from sortshuffle.errors import (
    AuthenticationError,
    CorruptDataError,
    DataLossError,
    MissingDataError,
    Place,
    ProtocolError,
    ServiceUnavailableError,
    StateError,
)
from sortshuffle.service.client import backoff
from sortshuffle.service.client.client import ServiceClient, ServiceClients
from sortshuffle.service.client.client_channel import ClientChannel
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.client.remote_reader import MOST_ATTEMPTS
from sortshuffle.service.wire.protocol import Fault, Kind, MapOutputAddress, PartitionRequest, Verdict
from sortshuffle.storage.files.extents import Extent, ExtentPart, extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

PATIENT = ClientSettings(timeout=20.0)
HASTY = ClientSettings(timeout=0.5)
"""For tests in which the time must be over."""


def client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sortshuffle-client")]


@pytest.fixture(autouse=True)
def no_threads_are_left() -> Iterator[None]:
    yield
    assert client_threads() == []


@contextmanager
def clients_of(settings: ClientSettings = PATIENT) -> Iterator[ServiceClients]:
    clients = ServiceClients(settings)
    try:
        yield clients
    finally:
        clients.close()
        assert clients.floating.free == clients.floating.total


@dataclass
class Output:
    """A map output of opaque payloads, with the payloads of subpartition 1."""

    file: PartitionedFile
    extents: tuple[Extent, ...]
    payloads: list[bytes]

    def channel(self, clients: ServiceClients, address: str) -> RemoteInputChannel:
        index = read_index(self.file)
        output = MapOutputAddress("app", 3, 17, 204, index.header.file_id)
        return RemoteInputChannel(
            clients, address, output, "far", self.file.data_path, str(index.writer), self.extents
        )


def written(directory: Path, payloads: Sequence[Sequence[bytes]]) -> Output:
    """Payloads of subpartition 1 in each region; those of 0 and 2 are in the way."""
    regions = [
        Region({s: ([b"other" * 50] if s != 1 else list(region)) for s in range(3)}) for region in payloads
    ]
    file = write_pair(directory, Pair(3, 1, regions))
    extents = tuple(extents_of(read_index(file), 1))
    return Output(file, extents, [payload for region in payloads for payload in region])


def payload(number: int, size: int) -> bytes:
    return bytes([number]) * size


@pytest.fixture
def output(tmp_path: Path) -> Output:
    """Four regions, one without anything, with buffers below and above a segment."""
    return written(
        tmp_path,
        [
            [payload(1, 100), payload(2, 3000), payload(3, 9000)],
            [],
            [payload(4, 5000)],
            [payload(n, 700) for n in range(5, 25)],
        ],
    )


def payloads_of(parts: Iterator[ExtentPart] | Sequence[ExtentPart]) -> list[bytes]:
    return [part.memory.slice(b.start, b.size).to_pybytes() for part in parts for b in part.buffers]


def read_whole(channel: RemoteInputChannel) -> list[bytes]:
    with channel.open(channel.extents) as reader:
        return payloads_of([reader.read_extent(extent) for extent in channel.extents])


def read_in_parts(channel: RemoteInputChannel, part_bytes: int = 4096) -> list[bytes]:
    with channel.open(channel.extents) as reader:
        return payloads_of(
            [part for extent in channel.extents for part in reader.read_parts(extent, part_bytes)]
        )


Read = Callable[[RemoteInputChannel], list[bytes]]
BOTH_WAYS = pytest.mark.parametrize("read", [read_whole, read_in_parts])


# --- what is read ------------------------------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize("piece", [64, 1000, SEGMENT, 3 * SEGMENT, 1 << 20])
def test_the_bytes_are_those_of_the_file_however_the_service_cuts_them(
    output: Output, read: Read, piece: int
) -> None:
    with ScriptedServer(HonestService([output.file], piece)) as server, clients_of() as clients:
        assert read(output.channel(clients, server.address)) == output.payloads
        assert server.connections == 1


@pytest.mark.parametrize("part", [1, 64, 1000, 5000, 1 << 20])
@pytest.mark.parametrize("floating", [0, 2 * SEGMENT, 1 << 20])
def test_parts_are_the_same_whatever_their_size_and_the_room_for_data_ahead(
    output: Output, part: int, floating: int
) -> None:
    settings = ClientSettings(timeout=20.0, floating_bytes=floating)
    with ScriptedServer(HonestService([output.file])) as server, clients_of(settings) as clients:
        assert read_in_parts(output.channel(clients, server.address), part) == output.payloads


def test_the_extents_of_a_fetch_are_one_request(output: Output) -> None:
    service = HonestService([output.file])
    with ScriptedServer(service) as server, clients_of() as clients:
        read_whole(output.channel(clients, server.address))
    (request,) = service.requests
    assert (request.subpartitions.first, request.subpartitions.last) == (1, 1)
    assert (request.regions.first, request.regions.count, request.skip) == (0, 4, 0)
    assert request.output == MapOutputAddress("app", 3, 17, 204, request.output.file_id)


@BOTH_WAYS
def test_some_of_the_extents(output: Output, read: Read) -> None:
    with ScriptedServer(HonestService([output.file])) as server, clients_of() as clients:
        channel = output.channel(clients, server.address)
        with channel.open(channel.extents[1:2]) as reader:
            assert payloads_of([reader.read_extent(channel.extents[1])]) == output.payloads[3:4]


def test_extents_may_be_read_again_and_in_another_order(output: Output) -> None:
    with ScriptedServer(HonestService([output.file])) as server, clients_of() as clients:
        channel = output.channel(clients, server.address)
        with channel.open(channel.extents) as reader:
            for number, expected in ((2, output.payloads[4:]), (0, output.payloads[:3])) * 2:
                extent = channel.extents[number]
                assert payloads_of([reader.read_extent(extent)]) == expected
                assert payloads_of(reader.read_parts(extent, 1000)) == expected


def test_payloads_stand_on_64_byte_boundaries(output: Output) -> None:
    with ScriptedServer(HonestService([output.file])) as server, clients_of() as clients:
        channel = output.channel(clients, server.address)
        with channel.open(channel.extents) as reader:
            for extent in channel.extents:
                for part in (reader.read_extent(extent), *reader.read_parts(extent, 5000)):
                    assert all((part.memory.address + b.start) % 64 == 0 for b in part.buffers)


def test_what_was_read_outlives_its_reader_and_the_connection(output: Output) -> None:
    with ScriptedServer(HonestService([output.file])) as server, clients_of() as clients:
        channel = output.channel(clients, server.address)
        with channel.open(channel.extents) as reader:
            parts = [reader.read_extent(extent) for extent in channel.extents]
    assert payloads_of(parts) == output.payloads


def test_nothing_is_asked_for_before_it_is_read(output: Output) -> None:
    with refused_address() as address, clients_of() as clients:
        channel = output.channel(clients, address)
        channel.open(channel.extents).close()
        assert client_threads() == []


# --- room --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floating", [0, 4 * SEGMENT])
def test_a_stream_has_never_more_credit_than_its_part_a_segment_and_what_is_lent(
    tmp_path: Path, floating: int
) -> None:
    output = written(tmp_path, [[payload(n, 1000) for n in range(100)]])
    service = HonestService([output.file])
    settings = ClientSettings(timeout=20.0, floating_bytes=floating)
    with ScriptedServer(service) as server, clients_of(settings) as clients:
        assert read_in_parts(output.channel(clients, server.address), 3 * SEGMENT) == output.payloads
    assert 1 <= service.most_credit <= 3 + 1 + floating // 2 // SEGMENT


def test_what_is_read_whole_has_credit_for_all_of_it_at_once(output: Output) -> None:
    service = HonestService([output.file])
    with ScriptedServer(service) as server, clients_of() as clients:
        read_whole(output.channel(clients, server.address))
        assert [header.kind for header in server.peers[0].received] == [Kind.PARTITION_REQUEST]
    assert sum(extent.bytes for extent in output.extents) <= service.most_credit * SEGMENT


def test_many_streams_in_turn_share_the_room_for_data_ahead_and_all_get_on(tmp_path: Path) -> None:
    """As a merge reads: one part of each, over and over, in one thread."""
    outputs = []
    for number in range(12):
        directory = tmp_path / str(number)
        directory.mkdir()
        outputs.append(written(directory, [[payload(n, 900) for n in range(60)]]))
    settings = ClientSettings(timeout=20.0, floating_bytes=8 * SEGMENT)
    servers = [ScriptedServer(HonestService([output.file])) for output in outputs[:3]]
    with servers[0], servers[1], servers[2], clients_of(settings) as clients:
        readers, parts = [], []
        for number in range(len(outputs)):
            # what they serve is the same, so each service stands for four
            channel = outputs[number % 3].channel(clients, servers[number % 3].address)
            readers.append(channel.open(channel.extents))
            parts.append(readers[-1].read_parts(channel.extents[0], 2000))
        found: list[list[bytes]] = [[] for _ in outputs]
        left = list(range(len(outputs)))
        while left:
            for number in list(left):
                part = next(parts[number], None)
                if part is None:
                    left.remove(number)
                else:
                    found[number] += payloads_of([part])
                assert clients.floating.free >= 0
        for reader in readers:
            reader.close()
    assert found == [output.payloads for output in outputs]


# --- a connection that breaks ------------------------------------------------------------------------------


@BOTH_WAYS
def test_a_connection_that_is_cut_at_any_byte_goes_on_where_it_was(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.001)
    output = written(tmp_path, [[payload(1, 50)], [payload(2, 300), payload(3, 10)]])
    honest = HonestService([output.file], piece=96)
    total = sum(extent.bytes for extent in output.extents)
    frames = 1 + sum(-(-extent.bytes // 96) for extent in output.extents)
    for most_sent in range(0, total + 24 * frames + 1, 3):
        with ScriptedServer(after(most_sent, honest), honest) as server, clients_of() as clients:
            assert read(output.channel(clients, server.address)) == output.payloads, most_sent
        skipped = honest.requests[-1].skip
        assert skipped <= most_sent


@BOTH_WAYS
def test_a_connection_that_is_cut_again_and_again_goes_on_as_long_as_it_gets_on(
    output: Output, read: Read
) -> None:
    honest = HonestService([output.file], piece=1000)
    with ScriptedServer(after(9000, honest)) as server, clients_of() as clients:
        assert read(output.channel(clients, server.address)) == output.payloads
        assert server.connections >= sum(extent.bytes for extent in output.extents) // 9000
    skips = [request.skip for request in honest.requests]
    assert skips == sorted(skips)
    assert skips[1] == 9000 - 24 * 9  # to the byte, headers not counted


def test_channels_of_one_connection_all_go_on_when_it_breaks(tmp_path: Path) -> None:
    output = written(tmp_path, [[payload(n, 2000) for n in range(40)]])
    honest = HonestService([output.file], piece=1000)
    with ScriptedServer(after(30_000, honest), after(90_000, honest), honest) as server:
        with clients_of() as clients:
            found: list[list[bytes]] = []

            def read() -> None:
                found.append(read_whole(output.channel(clients, server.address)))

            with together(*[read] * 8):
                pass
        assert found == [output.payloads] * 8
        assert server.connections == 3


@BOTH_WAYS
def test_a_service_that_comes_late_is_waited_for(output: Output, read: Read) -> None:
    honest = HonestService([output.file])
    with ScriptedServer(cut, cut, honest) as server, clients_of() as clients:
        assert read(output.channel(clients, server.address)) == output.payloads
        assert server.connections == 3


@BOTH_WAYS
def test_a_service_that_falls_silent_is_connected_to_anew(output: Output, read: Read) -> None:
    def falls_silent(peer: Peer) -> None:
        request = peer.request()
        peer.send_data(
            request.channel, 0, Path(output.file.data_path).read_bytes()[output.extents[0].offset :][:64]
        )
        peer.until_gone()

    honest = HonestService([output.file])
    settings = ClientSettings(timeout=2.0)
    with ScriptedServer(falls_silent, honest) as server, clients_of(settings) as clients:
        assert read(output.channel(clients, server.address)) == output.payloads
    assert honest.requests[0].skip == 64


def test_a_connection_on_which_nothing_is_expected_may_be_silent(output: Output) -> None:
    with ScriptedServer(HonestService([output.file])) as server, clients_of(HASTY) as clients:
        channel = output.channel(clients, server.address)
        with channel.open(channel.extents[:1]) as reader:
            assert payloads_of(reader.read_parts(channel.extents[0], 1 << 20)) == output.payloads[:3]
            silence = threading.Event()
            assert not silence.wait(1.0)  # longer than the time-out: what is tested is that nothing happens
        assert read_whole(channel) == output.payloads
        assert server.connections == 1


# --- a service that is not there ---------------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize("script", [cut, silent])
def test_a_service_that_never_answers_is_an_error_that_says_what_and_how_long(
    output: Output, read: Read, script: Script
) -> None:
    with ScriptedServer(script) as server, clients_of(HASTY) as clients:
        with pytest.raises(ServiceUnavailableError) as caught:
            read(output.channel(clients, server.address))
        told = str(caught.value)
        for words in (
            server.address,
            "exchange 3, map 17, attempt 204 of app",
            "subpartition 1",
            "on host far",
            output.file.data_path,
            "spark.sortshuffle.service.timeout (0.5s now)",
        ):
            assert words in told
        assert server.connections > 1


def test_nobody_listens(output: Output) -> None:
    with refused_address() as address, clients_of(HASTY) as clients:
        with pytest.raises(ServiceUnavailableError, match=f"{address} could not be reached") as caught:
            read_whole(output.channel(clients, address))
        assert "refused" in str(caught.value)


def test_all_who_wait_are_told_and_a_later_channel_tries_again(output: Output) -> None:
    honest = HonestService([output.file])
    healed = threading.Event()

    def broken(peer: Peer) -> None:
        if not healed.is_set():
            raise Cut
        honest(peer)

    with ScriptedServer(broken) as server, clients_of(HASTY) as clients:
        failures: list[BaseException] = []

        def read() -> None:
            with pytest.raises(ServiceUnavailableError) as caught:
                read_whole(output.channel(clients, server.address))
            failures.append(caught.value)

        with together(*[read] * 5):
            pass
        assert len(failures) == 5
        healed.set()
        assert read_whole(output.channel(clients, server.address)) == output.payloads


def test_a_wrong_secret_is_an_error_at_once(output: Output) -> None:
    honest = HonestService([output.file])
    with ScriptedServer(honest, secret=b"right") as server:
        with clients_of(ClientSettings(b"right", timeout=20.0)) as clients:
            assert read_whole(output.channel(clients, server.address)) == output.payloads
        for wrong in (b"wrong", None):
            before = server.connections
            with (
                clients_of(ClientSettings(wrong, timeout=20.0)) as clients,
                pytest.raises(AuthenticationError, match="secret"),
            ):
                read_whole(output.channel(clients, server.address))
            assert server.connections - before <= 2


def test_a_client_with_a_secret_talks_to_no_service_without_one(output: Output) -> None:
    with ScriptedServer(HonestService([output.file])) as server:
        with (
            clients_of(ClientSettings(b"secret", timeout=20.0)) as clients,
            pytest.raises(AuthenticationError, match="asks for no secret"),
        ):
            read_whole(output.channel(clients, server.address))
        assert server.connections == 1


# --- a service that breaks the protocol --------------------------------------------------------------------


def _first_piece(output: Output, size: int = 64) -> bytes:
    return Path(output.file.data_path).read_bytes()[output.extents[0].offset :][:size]


def _wrong_sequence(peer: Peer, request: PartitionRequest, output: Output) -> None:
    peer.send_data(request.channel, 1, _first_piece(output))


def _unknown_channel(peer: Peer, request: PartitionRequest, output: Output) -> None:
    peer.send_data(request.channel + 1, 0, _first_piece(output))


def _garbage(peer: Peer, request: PartitionRequest, output: Output) -> None:
    peer.send(bytes(range(200, 256)) * 3)


# of a channel, and of the connection; all that there are: test_request_table.py
BREACHES = [_wrong_sequence, _unknown_channel, _garbage]
Breach = Callable[[Peer, PartitionRequest, Output], None]


def _breaking(output: Output, breach: Breach) -> Script:
    def run(peer: Peer) -> None:
        breach(peer, peer.request(), output)
        peer.until_gone()

    return run


@BOTH_WAYS
@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_of_the_protocol_costs_the_connection(output: Output, read: Read, breach: Breach) -> None:
    honest = HonestService([output.file])
    with ScriptedServer(_breaking(output, breach), honest) as server, clients_of() as clients:
        assert read(output.channel(clients, server.address)) == output.payloads
        assert server.connections == 2


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_that_is_repeated_is_an_error(output: Output, breach: Breach) -> None:
    with ScriptedServer(_breaking(output, breach)) as server, clients_of() as clients:
        with pytest.raises(ProtocolError):
            read_whole(output.channel(clients, server.address))
        assert server.connections == 3


def test_one_channel_that_is_always_cut_short_fails_and_the_others_do_not(tmp_path: Path) -> None:
    directories = [tmp_path / "good", tmp_path / "bad"]
    for directory in directories:
        directory.mkdir()
    good = written(directories[0], [[payload(n, 3000) for n in range(30)]])
    bad = written(directories[1], [[payload(n, 3000) for n in range(3)]])
    honest = HonestService([good.file], piece=500)

    def truncates(request: PartitionRequest, data: bytes) -> bytes:
        return data[:128] if request.regions.count == 1 and request.output.attempt == 9 else data

    honest.change = truncates
    with ScriptedServer(honest) as server, clients_of() as clients:
        channel = bad.channel(clients, server.address)
        lost = RemoteInputChannel(
            clients,
            server.address,
            MapOutputAddress("app", 3, 17, 9, channel.output.file_id),
            "far",
            channel.path,
            channel.writer,
            channel.extents,
        )
        honest.files = [good.file, PartitionedFile(str(directories[1] / "exchange-3-map-17-attempt-9"))]
        for suffix in (".data", ".index"):
            Path(bad.file.base + suffix).rename(honest.files[1].base + suffix)
        found: list[list[bytes]] = []

        def read_lost() -> None:
            with pytest.raises(ProtocolError, match="the stream ended after 128 bytes") as caught:
                read_whole(lost)
            assert "attempt 9 of app" in str(caught.value)

        def read_good() -> None:
            found.append(read_whole(good.channel(clients, server.address)))

        with together(read_lost, read_good):
            pass
    assert found == [good.payloads]


# --- what the service says ---------------------------------------------------------------------------------


def _failing(fault: Fault, place: Place | None = None) -> Script:
    def run(peer: Peer) -> None:
        while True:
            peer.fail(peer.request().channel, fault, "as scripted", place)

    return run


@BOTH_WAYS
@pytest.mark.parametrize(
    ("fault", "kind"), [(Fault.MISSING, MissingDataError), (Fault.DAMAGED, CorruptDataError)]
)
@pytest.mark.parametrize("place", [None, Place("/far/file.data", 7, 1, 99, "attempt 1 of map 2 on far")])
def test_lost_data_are_an_error_with_the_place_and_the_host(
    output: Output, read: Read, fault: Fault, kind: type[DataLossError], place: Place | None
) -> None:
    with ScriptedServer(_failing(fault, place)) as server, clients_of() as clients:
        with pytest.raises(kind, match="as scripted, says the shuffle service of far") as caught:
            read(output.channel(clients, server.address))
        assert server.connections == 1
    if place is not None:
        assert caught.value.place == place
    else:
        found = caught.value.place
        assert (found.file, found.region, found.subpartition) == (output.file.data_path, 0, 1)
        assert found.offset == output.extents[0].offset
        assert found.writer == str(read_index(output.file).writer)


def test_a_request_that_is_not_understood_is_an_error_at_once(output: Output) -> None:
    with ScriptedServer(_failing(Fault.BAD_REQUEST)) as server, clients_of() as clients:
        with pytest.raises(ProtocolError, match="does not understand"):
            read_whole(output.channel(clients, server.address))
        assert server.connections == 1


@BOTH_WAYS
@pytest.mark.parametrize("fault", [Fault.TOO_MUCH, Fault.TIMEOUT, Fault.INTERNAL])
def test_what_cannot_be_served_now_is_asked_for_again_on_the_same_connection(
    output: Output, read: Read, fault: Fault
) -> None:
    honest = HonestService([output.file])

    def at_first_busy(peer: Peer) -> None:
        for _ in range(2):
            peer.fail(peer.request().channel, fault)
        honest(peer)

    with ScriptedServer(at_first_busy) as server, clients_of() as clients:
        assert read(output.channel(clients, server.address)) == output.payloads
        assert server.connections == 1


@pytest.mark.parametrize("fault", [Fault.TOO_MUCH, Fault.TIMEOUT, Fault.INTERNAL])
def test_what_can_never_be_served_is_an_error_when_the_time_is_over(output: Output, fault: Fault) -> None:
    with (
        ScriptedServer(_failing(fault)) as server,
        clients_of(HASTY) as clients,
        pytest.raises(ServiceUnavailableError, match=r"cannot serve subpartition 1 of .*: as scripted"),
    ):
        read_whole(output.channel(clients, server.address))


def test_an_error_of_the_connection_is_a_cut(output: Output) -> None:
    def refuses(peer: Peer) -> None:
        peer.fail(0xFFFFFFFF, Fault.TOO_MUCH, "too many connections")

    honest = HonestService([output.file])
    with ScriptedServer(refuses, honest) as server, clients_of() as clients:
        assert read_whole(output.channel(clients, server.address)) == output.payloads
    with (
        ScriptedServer(refuses) as server,
        clients_of(HASTY) as clients,
        pytest.raises(ServiceUnavailableError, match="too many connections"),
    ):
        read_whole(output.channel(clients, server.address))


# --- checksums ---------------------------------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize("times", range(1, MOST_ATTEMPTS))
def test_bytes_that_were_changed_on_the_way_are_asked_for_again(
    output: Output, read: Read, times: int
) -> None:
    size = output.extents[1].bytes
    service = HonestService([output.file])
    service.change = _change_of_size(size, times)
    with ScriptedServer(service) as server, clients_of() as clients:
        assert read(output.channel(clients, server.address)) == output.payloads
    assert [(report.region, report.subpartition) for report in service.reports] == [(2, 1)] * times


def _change_of_size(size: int, times: int) -> Callable[[PartitionRequest, bytes], bytes]:
    left = [times]

    def change(request: PartitionRequest, data: bytes) -> bytes:
        if left[0] and len(data) == size:
            left[0] -= 1
            return data[:40] + bytes([data[40] ^ 4]) + data[41:]
        return data

    return change


@BOTH_WAYS
def test_bytes_that_are_always_changed_on_the_way_are_an_error_that_blames_the_network(
    output: Output, read: Read
) -> None:
    service = HonestService([output.file])
    service.change = _change_of_size(output.extents[1].bytes, 1000)
    with (
        ScriptedServer(service) as server,
        clients_of() as clients,
        pytest.raises(CorruptDataError, match="the network changed it") as caught,
    ):
        read(output.channel(clients, server.address))
    place = caught.value.place
    assert (place.file, place.region, place.subpartition) == (output.file.data_path, 2, 1)
    assert place.offset == output.extents[1].offset
    assert len(service.reports) == MOST_ATTEMPTS - 1


@BOTH_WAYS
@pytest.mark.parametrize(
    ("verdict", "kind", "why"),
    [
        (Verdict.DAMAGED, CorruptDataError, "the shuffle service of far reads the same"),
        (Verdict.MISSING, MissingDataError, "the map output is gone, says the shuffle service of far"),
    ],
)
def test_damage_that_the_service_finds_too_is_an_error_with_its_place(
    output: Output, read: Read, verdict: Verdict, kind: type[DataLossError], why: str
) -> None:
    service = HonestService([output.file], verdict=verdict)
    service.change = _change_of_size(output.extents[1].bytes, 1000)
    with (
        ScriptedServer(service) as server,
        clients_of() as clients,
        pytest.raises(kind, match=why) as caught,
    ):
        read(output.channel(clients, server.address))
    place = caught.value.place
    assert (place.file, place.region, place.subpartition) == (output.file.data_path, 2, 1)
    assert place.offset == output.extents[1].offset
    assert place.writer == str(read_index(output.file).writer)
    assert len(service.reports) == 1


@BOTH_WAYS
def test_what_goes_wrong_before_the_service_has_said_so_is_no_sign_of_damage(
    output: Output, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_short(*_: object) -> Verdict:
        raise MemoryError

    monkeypatch.setattr(ServiceClient, "report_damage", run_short)
    service = HonestService([output.file])
    service.change = _change_of_size(output.extents[1].bytes, 1000)
    with (
        ScriptedServer(service) as server,
        clients_of() as clients,
        pytest.raises(MemoryError) as caught,
    ):
        read(output.channel(clients, server.address))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_parts_that_were_delivered_are_not_delivered_again(tmp_path: Path) -> None:
    output = written(tmp_path, [[payload(n, 1000) for n in range(30)]])
    service = HonestService([output.file])
    left = [1]

    def change(request: PartitionRequest, data: bytes) -> bytes:
        at = len(data) - 500
        if left[0]:
            left[0] -= 1
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    service.change = change
    with ScriptedServer(service) as server, clients_of() as clients:
        assert read_in_parts(output.channel(clients, server.address), 5000) == output.payloads
    assert len(service.reports) == 1


# --- giving up ---------------------------------------------------------------------------------------------


def test_who_waits_is_woken_when_it_is_given_up(output: Output) -> None:
    asked = threading.Event()

    def says_nothing(peer: Peer) -> None:
        peer.request()
        asked.set()
        peer.until_gone()

    with ScriptedServer(says_nothing) as server, clients_of() as clients:
        channel = output.channel(clients, server.address)
        reader = channel.open(channel.extents)

        def wait() -> None:
            with pytest.raises(StateError, match="the reader was closed"), reader:
                reader.read_unverified(channel.extents[0])

        with together(wait):
            assert asked.wait(20)
            reader.give_up()
        with pytest.raises(StateError, match="the reader was closed"):
            reader.read_unverified(channel.extents[0])


@pytest.mark.parametrize("read", ["read_unverified", "fetch"])
def test_a_reader_may_be_given_up_just_before_its_request(
    output: Output, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread of the task has failed. Its error must not be hidden by one of this thread."""
    with ScriptedServer(lambda peer: peer.until_gone()) as server, clients_of() as clients:
        channel = output.channel(clients, server.address)
        extent = channel.extents[0]
        with channel.open(channel.extents) as reader:
            link = clients.client(server.address).link
            opens = link.open

            def give_up_and_open(stream: ClientChannel) -> None:
                reader.give_up()
                opens(stream)

            monkeypatch.setattr(link, "open", give_up_and_open)
            with pytest.raises(StateError, match="the reader was closed"):
                reader.read_unverified(extent) if read == "read_unverified" else reader.fetch(1, extent)


@pytest.mark.parametrize("in_parts", [False, True])
def test_who_waits_for_a_verdict_is_woken_when_it_is_given_up(output: Output, in_parts: bool) -> None:
    """The service was asked whether it has the bytes sound, and says nothing."""
    service = HonestService([output.file], verdict=None)
    service.change = _change_of_size(output.extents[0].bytes, 1000)
    with ScriptedServer(service) as server, clients_of() as clients:
        channel = output.channel(clients, server.address)
        reader = channel.open(channel.extents)

        def wait() -> None:
            with pytest.raises(StateError, match="the reader was closed: the verdict on region 0"), reader:
                if in_parts:
                    list(reader.read_parts(channel.extents[0], 4096))
                else:
                    reader.read_extent(channel.extents[0])

        with together(wait):
            eventually(lambda: len(service.reports) == 1, "the verdict is asked for")
            reader.give_up()
    assert len(service.reports) == 1


def test_closing_the_clients_wakes_who_waits_and_ends_the_threads(output: Output) -> None:
    asked = threading.Event()

    def says_nothing(peer: Peer) -> None:
        peer.request()
        asked.set()
        peer.until_gone()

    with ScriptedServer(says_nothing) as server:
        clients = ServiceClients(PATIENT)

        def wait() -> None:
            with pytest.raises(StateError, match="the reader was closed"):
                read_whole(output.channel(clients, server.address))

        with together(wait):
            assert asked.wait(20)
            clients.close()
            assert client_threads() == []
        with pytest.raises(StateError, match="closed"):
            clients.client(server.address)


def test_closing_while_it_tries_to_connect_ends_the_thread(output: Output) -> None:
    with ScriptedServer(cut) as server:
        clients = ServiceClients(PATIENT)

        def wait() -> None:
            with pytest.raises(StateError):
                read_whole(output.channel(clients, server.address))

        with together(wait):
            eventually(lambda: server.connections >= 2, "a second attempt")
            clients.close()
            assert client_threads() == []


@BOTH_WAYS
def test_what_is_not_read_to_its_end_is_cancelled_and_the_connection_serves_others(
    tmp_path: Path, read: Read
) -> None:
    output = written(tmp_path, [[payload(n, 2000)] for n in range(60)])
    service = HonestService([output.file], piece=500)
    with ScriptedServer(service) as server, clients_of() as clients:
        channel = output.channel(clients, server.address)
        for _ in range(5):
            reader = channel.open(channel.extents)
            reader.read_unverified(channel.extents[0])
            reader.close()
            reader.close()
            parts = channel.open(channel.extents)
            next(parts.read_parts(channel.extents[0], 1000))
            parts.close()
        assert read(channel) == output.payloads
        assert server.connections == 1


def test_readers_that_come_and_go_while_data_come_leave_nothing_behind(tmp_path: Path) -> None:
    output = written(tmp_path, [[payload(n, 3000)] for n in range(20)])
    settings = ClientSettings(timeout=20.0, floating_bytes=6 * SEGMENT)
    with ScriptedServer(HonestService([output.file])) as server, clients_of(settings) as clients:

        def come_and_go() -> None:
            channel = output.channel(clients, server.address)
            for turn in range(30):
                with channel.open(channel.extents) as reader:
                    extent = channel.extents[turn % 20]
                    if turn % 3:
                        assert payloads_of([reader.read_extent(extent)]) == [output.payloads[turn % 20]]
                    else:
                        next(reader.read_parts(extent, 64))

        with together(*[come_and_go] * 4):
            pass
        assert clients.floating.free == clients.floating.total
        assert server.connections == 1
