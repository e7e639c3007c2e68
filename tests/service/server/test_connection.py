"""What one client gets of a running service: its bytes, for its credit, in turns; and its memory back when it
stops, is silent, or says what cannot be meant."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from consumers import PATIENCE, Reads, one, reads, stored
from engine import DRIVER, Pair, Region, changed, open_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import (
    OUTPUT,
    SEGMENT,
    SMALL,
    Client,
    Disk,
    What,
    ended_owner,
    make_disk,
    serving,
    until,
)

from sortshuffle.format.index import RegionKind
from sortshuffle.service.server import transport
from sortshuffle.service.server.catalog import Catalog
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.server_channel import ChannelState
from sortshuffle.service.server.shuffle_service import ShuffleService, listen
from sortshuffle.service.server.transport import ServerTls
from sortshuffle.service.wire.handshake import greet
from sortshuffle.service.wire.protocol import (
    DamageReport,
    Data,
    ErrorResponse,
    Fault,
    Header,
    Kind,
    PartitionRequest,
    Verdict,
    pack_close,
    pack_find_request,
    pack_remove_request,
    unpack_find_response,
)
from sortshuffle.storage.files.ranges import RegionRange, SubpartitionRange
from sortshuffle.storage.files.reader import read_index

__all__ = ["reads"]  # a fixture
QUICK = Limits(stall=0.2)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return make_disk(tmp_path)


@pytest.fixture
def service(disk: Disk) -> Iterator[ShuffleService]:
    with serving(disk.root) as made:
        yield made


@pytest.fixture
def client(service: ShuffleService) -> Iterator[Client]:
    with Client(service.address) as made:
        yield made


def free(service: ShuffleService) -> bool:
    """Whether all read memory has come home."""
    status = service.status()
    return status.pool_segments_free == status.pool_segments


# What is sent


def test_subpartitions_and_ranges_of_them(disk: Disk, client: Client) -> None:
    file, output = disk.write_random()
    for first, last in [(0, 0), (3, 3), (0, 3), (1, 2)]:
        stream = client.fetch(output, first, last)
        assert bytes(stream.data) == stored(file, SubpartitionRange(first, last))
        assert stream.ended


def test_a_response_holds_bytes_of_one_extent_only(disk: Disk, client: Client) -> None:
    file, output = disk.write_random(subpartitions=3, regions=5, payload=300)
    stream = client.fetch(output, 1)
    extents = read_index(file).entries[:, 1]["bytes"].tolist()
    assert stream.sizes == extents
    large_file, large = disk.write_random(subpartitions=1, regions=3, payload=50_000, attempt=205)
    sizes = iter(client.fetch(large, credit=3).sizes)
    for extent in read_index(large_file).entries[:, 0]["bytes"].tolist():
        while extent:
            extent -= next(sizes)
            assert extent >= 0


def test_broadcast_regions_are_sent_once(disk: Disk, client: Client) -> None:
    broadcast = Region({0: [os.urandom(9000)]}, RegionKind.BROADCAST)
    pair = Pair(3, 1, [broadcast, Region({s: [os.urandom(5000)] for s in range(3)}), broadcast])
    file, output = disk.write(pair)
    for first, last in [(0, 0), (2, 2), (0, 2)]:
        assert bytes(client.fetch(output, first, last).data) == stored(file, SubpartitionRange(first, last))


@pytest.mark.parametrize("empty", [Pair(3), Pair(3, 0, [Region({1: [b"only here"]})])], ids=["none", "other"])
def test_the_end_needs_no_credit(disk: Disk, client: Client, empty: Pair) -> None:
    _, output = disk.write(empty)
    stream = client.fetch(output, 2, credit=0)
    assert (stream.ended, stream.data, stream.sizes) == (True, b"", [])


def test_it_goes_on_at_any_byte(disk: Disk, client: Client) -> None:
    file, output = disk.write_random()
    everything = stored(file, one(2))
    for skip in (0, 1, 10_047, 10_048, 10_049, len(everything) - 1, len(everything)):
        assert bytes(client.fetch(output, 2, skip=skip).data) == everything[skip:]


def test_some_regions_of_a_subpartition(disk: Disk, client: Client) -> None:
    file, output = disk.write_random(regions=5)
    sizes = read_index(file).entries[:, 1]["bytes"].tolist()
    start, end = sum(sizes[:1]), sum(sizes[:3])
    stream = client.fetch(output, 1, regions=RegionRange(1, 2), skip=5)
    assert bytes(stream.data) == stored(file, one(1))[start + 5 : end]


def test_the_index_file_goes_through_the_same_rules(disk: Disk, client: Client) -> None:
    file, output = disk.write_random(subpartitions=300, payload=10)
    index = Path(file.index_path).read_bytes()
    assert len(index) > 4 * SEGMENT
    stream = client.request(1, output, credit=2, what=What.INDEX)
    client.receive()
    assert (len(stream.data), stream.ended) == (2 * SEGMENT, False)
    assert stream.backlogs == [client.cost(len(index) - 2 * SEGMENT)]
    client.add_credit(1, 100)
    client.read(1)
    assert bytes(stream.data) == index
    assert bytes(client.fetch(output, what=What.INDEX, skip=77).data) == index[77:]


def test_whether_the_file_has_a_codec_is_told(disk: Disk, client: Client) -> None:
    _, output = disk.write_random()
    client.request(1, output)
    header, _ = client.receive()
    assert (header.kind, header.data_type, header.flags) == (Kind.BUFFER_RESPONSE, Data.BYTES, 0)


# Credit


@pytest.mark.parametrize("credit", [1, 3, 7])
def test_no_more_is_sent_than_there_is_credit_for(disk: Disk, client: Client, credit: int) -> None:
    file, output = disk.write_random(subpartitions=2, regions=3, payload=30_000)
    stream = client.request(1, output, credit=credit)
    _, small = disk.write_random(subpartitions=1, regions=1, payload=10, attempt=300)
    spent = 0
    while not stream.ended:
        _, body = client.receive()
        spent += client.cost(len(body))
        assert spent <= credit
        if body and spent == credit:
            # whatever the server would send now without credit comes before the answer to this
            so_far = len(stream.data)
            assert client.fetch(small).ended
            assert len(stream.data) == so_far
            client.add_credit(1, credit)
            spent = 0
    assert bytes(stream.data) == stored(file, one(0))


def test_the_backlog_says_what_credit_the_rest_needs(
    disk: Disk, client: Client, service: ShuffleService
) -> None:
    _, output = disk.write_random(subpartitions=1, regions=1, payload=10 * SEGMENT)
    stream = client.request(1, output, credit=2)
    client.receive()
    assert stream.backlogs == [9]  # of ten segments and a header
    until(lambda: service.status().reads_waiting == 0)
    assert service.status().bytes_read_total == 2 * SEGMENT  # nothing is read without credit


# Turns


def test_two_hundred_channels_on_one_connection(disk: Disk, client: Client) -> None:
    file, output = disk.write_random(subpartitions=200, regions=2, payload=6000)
    for channel in range(200):
        client.request(channel, output, channel, credit=2)
    client.read()
    for channel in range(200):
        assert bytes(client.streams[channel].data) == stored(file, one(channel))


# Memory comes back


def test_cancel_in_mid_stream_gives_the_memory_back(
    disk: Disk, client: Client, service: ShuffleService
) -> None:
    file, output = disk.write_random(subpartitions=2, regions=1, payload=100_000)
    client.request(1, output, 0, credit=2)
    client.receive()
    until(lambda: service.status().readers == 1)
    client.cancel(1)
    until(lambda: service.status().readers == 0 and free(service))
    assert open_files(disk.home) == []
    client.request(1, output, 1)  # the number may be used again
    client._next[1] = 0
    client.read(1)
    assert bytes(client.streams[1].data) == stored(file, one(1))


def test_a_silent_channel_keeps_neither_memory_nor_files_and_goes_on(disk: Disk) -> None:
    file, output = disk.write_random(subpartitions=4, regions=2, payload=60_000)
    with serving(disk.root, SMALL, limits=QUICK) as service, Client(service.address) as client:
        silent = client.request(1, output, 0, credit=1)
        client.receive()
        assert open_files(disk.home) != []
        until(lambda: free(service) and open_files(disk.home) == [])
        assert bytes(client.fetch(output, 1).data) == stored(file, one(1))
        client.add_credit(1, 1)  # it goes on where it stopped
        client.read(1)
        assert bytes(silent.data) == stored(file, one(0))


def test_a_connection_that_takes_nothing_keeps_no_memory_and_loses_nothing(disk: Disk) -> None:
    file, output = disk.write_random(subpartitions=2, regions=3, payload=4 << 20)
    roomy = replace(SMALL, memory=512 * SEGMENT)
    with serving(disk.root, roomy, limits=QUICK) as service, Client(service.address) as client:
        for channel in range(2):
            client.request(channel, output, channel, credit=4096)
        until(lambda: any(each.stalled for each in service.status().connections), "the stall")
        until(lambda: free(service), "the memory of a stalled connection")
        [status] = service.status().connections
        assert 0 < status.backlog < 4 << 20
        assert service._shared.copies.size == status.backlog
        client.read()
        assert service._server.ask(lambda: service._shared.copies.size) == 0
        for channel in range(2):
            assert bytes(client.streams[channel].data) == stored(file, one(channel))


def test_what_is_kept_for_clients_that_take_nothing_is_bounded(disk: Disk) -> None:
    file, output = disk.write_random(subpartitions=2, regions=3, payload=4 << 20)
    roomy = replace(SMALL, memory=512 * SEGMENT)
    with serving(disk.root, roomy, limits=Limits(stall=0.2, kept=0)) as service:
        with Client(service.address) as silent:
            stream = silent.request(1, output, credit=4096)
            until(lambda: service.status().connections_total == 1 and not service.status().connections)
            assert free(service)
            with pytest.raises(ConnectionError):
                silent.read(1)
        with Client(service.address) as again:
            rest = again.fetch(output, credit=4096, skip=len(stream.data))
            assert bytes(stream.data + rest.data) == stored(file, one(0))
        assert service._server.ask(lambda: service._shared.copies.size) == 0


def test_parking_at_any_moment_loses_nothing(disk: Disk) -> None:
    file, output = disk.write_random(subpartitions=3, regions=3, payload=2 << 20)
    roomy = replace(SMALL, memory=512 * SEGMENT, limits=Limits(stall=0.0))
    with serving(disk.root, roomy) as service, Client(service.address) as client:

        def tick() -> int:
            """Every moment is too long for it. How many channels wait for nothing that will come."""
            [connection] = service._shared.connections
            connection.tick(service._shared.clock())
            channels = connection._conversation.channels
            parked = [each for each in channels._by_number.values() if each.state is ChannelState.PARKED]
            return sum(each.credit > 0 and each not in channels.due for each in parked)

        for channel in range(3):
            client.request(channel, output, channel, credit=4096)
        forgotten = sum(service._server.ask(tick) for _ in range(1000))
        assert forgotten == 0
        client.read()
        for channel in range(3):
            assert bytes(client.streams[channel].data) == stored(file, one(channel))


def test_the_memory_comes_back_when_a_client_is_gone(disk: Disk, service: ShuffleService) -> None:
    _, output = disk.write_random(subpartitions=2, regions=1, payload=200_000)
    with Client(service.address) as client:
        client.request(1, output, 0, credit=3)
        client.receive()
    until(lambda: free(service) and not service.status().connections)
    assert open_files(disk.home) == []


def test_a_client_that_goes_while_its_view_is_opened_leaves_nothing(
    disk: Disk, service: ShuffleService
) -> None:
    _, output = disk.write_random(subpartitions=50, regions=1, payload=10_000)
    for _ in range(5):
        with Client(service.address) as client:
            for channel in range(50):
                client.request(channel, output, channel)
    until(lambda: free(service) and not service.status().connections)
    until(lambda: open_files(disk.home) == [])


def test_close_ends_the_connection(disk: Disk, client: Client, service: ShuffleService) -> None:
    _, output = disk.write_random(payload=300_000)
    client.request(1, output, credit=5)
    client.send(pack_close())
    assert client.is_cut_off()
    until(lambda: free(service) and not service.status().connections)
    assert service.status().errors_total == 0


@pytest.mark.parametrize("tail", [pack_close(), bytes(24)], ids=["a Close", "what is no frame"])
def test_what_is_asked_before_the_end_in_one_piece_with_it_is_done(disk: Disk, tail: bytes) -> None:
    removed: list[object] = []
    made = ShuffleService(listen("127.0.0.1", 0), lambda: [str(disk.root)], SMALL, remove=removed.append)
    with made, Client(made.address) as client:
        client.send(pack_remove_request(6, "app-1", 3, bytes(16)) + tail)
        assert client.is_cut_off()
        until(lambda: len(removed) == 1, "the removal")


def test_idle_connections_are_closed(disk: Disk) -> None:
    _, output = disk.write_random(payload=200_000)
    with serving(disk.root, limits=Limits(idle=0.1)) as service, Client(service.address) as client:
        client.request(1, output, credit=1)
        client.receive()
        with Client(service.address) as idle:
            assert idle.is_cut_off()
        client.add_credit(1, 1)  # who has a channel is not idle
        client.read(1)
        assert client.streams[1].ended


def held_up(monkeypatch: pytest.MonkeyPatch, method: str) -> threading.Event:
    """The catalog's method does its work when the event is set."""
    go, work = threading.Event(), getattr(Catalog, method)

    def when_set(catalog: Catalog, *arguments: object) -> object:
        assert go.wait(PATIENCE)
        return work(catalog, *arguments)

    monkeypatch.setattr(Catalog, method, when_set)
    return go


def test_a_connection_is_not_idle_while_something_is_done_for_it(
    disk: Disk, service: ShuffleService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = replace(disk.write_random()[1], attempt=0)
    go = held_up(monkeypatch, "adoptable")

    def much_later() -> int:
        """The disk jobs of the connection, when the time has been looked at."""
        [connection] = service._shared.connections
        connection.tick(service._shared.clock() + 10 * Limits().idle)
        return connection._conversation.pending.open_disk_jobs

    client.send(pack_find_request(3, output))
    until(lambda: bool(service._server.ask(lambda: service._shared.counts.requests)))
    assert service._server.ask(much_later) == 1
    go.set()
    header, _ = client.receive()
    assert (header.kind, header.channel) == (Kind.FIND_RESPONSE, 3)
    service._server.ask(much_later)
    assert client.is_cut_off()


def test_all_requests_of_one_tls_record_are_heard(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What TLS has decrypted no selector sees."""
    monkeypatch.setattr(transport, "RECEIVE_BYTES", 100)
    authority = trustme.CA()
    certificate = str(tmp_path / "certificate.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    output = replace(disk.write_random()[1], attempt=0)
    settings = replace(SMALL, tls=ServerTls(certificate, certificate))
    with serving(disk.root, settings) as service, Client(service.address, tls=trusting) as client:
        client.send(b"".join(pack_find_request(number, output) for number in range(20)))
        answers = [client.receive()[0] for _ in range(20)]
    assert sorted(header.channel for header in answers) == list(range(20))
    assert {header.kind for header in answers} == {Kind.FIND_RESPONSE}


# Errors


def test_a_missing_map_output_is_said_at_once(disk: Disk, client: Client) -> None:
    _, output = disk.write_random()
    for wrong in (
        replace(output, attempt=999),
        replace(output, file_id=bytes(16)),
        replace(output, application="app-2"),
        replace(output, map_index=18),
    ):
        error = client.fetch(wrong).error
        assert error is not None and error.fault is Fault.MISSING
        assert error.place is not None
        assert f"map-{wrong.map_index}-attempt-{wrong.attempt}" in error.place.file
        assert wrong.file_id.hex() in (error.expected or "")
    assert client.fetch(output).ended


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"first": 4}, "subpartitions 4"),
        ({"first": 0, "last": 9}, "subpartitions 0..9"),
        ({"skip": 1 << 40}, "bytes are to be skipped"),
    ],
    ids=["subpartition", "range", "skip"],
)
def test_what_is_not_there_cannot_be_asked_for(
    disk: Disk, client: Client, asked: dict[str, int], what: str
) -> None:
    _, output = disk.write_random()
    error = client.fetch(output, **asked).error
    assert error is not None and error.fault is Fault.BAD_REQUEST
    assert what in error.what


def test_a_damaged_index_is_said_with_its_place(disk: Disk, client: Client) -> None:
    file, output = disk.write_random()
    with changed(file.index_path, 100, 1):
        error = client.fetch(output).error
        index_error = client.fetch(output, what=What.INDEX).error
    assert error is not None and error.fault is Fault.DAMAGED
    assert error.place is not None and error.place.file == file.index_path
    assert index_error is not None and index_error.fault is Fault.DAMAGED
    assert client.fetch(output).ended


def control_file(tmp_path: Path, attempt: int = 204) -> Path:
    path = tmp_path / "blockmgr" / "0a" / f"shuffle_5_{attempt}_0.index"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_file_that_is_cut_short_fails_in_mid_stream_and_its_producer_runs_again(tmp_path: Path) -> None:
    control = control_file(tmp_path)
    disk = make_disk(tmp_path, ended_owner([str(tmp_path / "blockmgr")]))
    file, output = disk.write_random(subpartitions=1, regions=2, payload=50_000)
    good = stored(file, one(0))[:80_000]
    os.truncate(file.data_path, 80_000)
    with serving(disk.root) as service, Client(service.address) as client:
        stream = client.fetch(output)
        assert stream.error is not None and stream.error.fault is Fault.DAMAGED
        assert stream.error.place is not None and stream.error.place.region == 1
        assert good.startswith(bytes(stream.data))  # as much as was sent before the damage was found
        assert not control.exists()
        until(lambda: free(service))


def test_a_map_output_that_is_gone_makes_its_producer_run_again(tmp_path: Path) -> None:
    control = control_file(tmp_path)
    disk = make_disk(tmp_path, ended_owner([str(tmp_path / "blockmgr")]))
    file, output = disk.write_random()
    with serving(disk.root) as service, Client(service.address) as client:
        assert client.fetch(output, 0).ended
        assert control.exists()
        until(lambda: not open_files(disk.root), "the end of the first view")  # or it could be read on
        file.delete()
        stream = client.fetch(output, 1)
        assert stream.error is not None and stream.error.fault is Fault.MISSING
        assert not control.exists()


# Questions


def ask(client: Client, frame: bytes) -> tuple[Header, bytes]:
    client.send(frame)
    return client.receive()


def test_a_report_of_damage_is_judged_by_reading(tmp_path: Path) -> None:
    control = control_file(tmp_path)
    disk = make_disk(tmp_path, ended_owner([str(tmp_path / "blockmgr")]))
    file, output = disk.write_random()
    report = DamageReport(7, output, subpartition=2, region=1).pack()
    offset = int(read_index(file).entries[1, 2]["offset"])
    with serving(disk.root) as service, Client(service.address) as client:
        header, _ = ask(client, report)
        assert (header.kind, header.channel, header.data_type) == (Kind.DAMAGE_VERDICT, 7, Verdict.SOUND)
        with changed(file.data_path, offset - 5, 1):  # another subpartition's
            assert ask(client, report)[0].data_type == Verdict.SOUND
        assert control.exists()
        with changed(file.data_path, offset + 100, 1):
            assert ask(client, report)[0].data_type == Verdict.DAMAGED
        assert not control.exists()
        file.delete()
        assert ask(client, report)[0].data_type == Verdict.MISSING


def test_damage_of_what_is_not_there_cannot_be_reported(disk: Disk, client: Client) -> None:
    _, output = disk.write_random()
    for subpartition, region in [(9, 0), (0, 9)]:
        header, body = ask(client, DamageReport(7, output, subpartition, region).pack())
        assert header.kind is Kind.ERROR_RESPONSE
        assert ErrorResponse.unpack(header, body).fault is Fault.BAD_REQUEST


def test_finished_outputs_of_ended_executors_are_found(tmp_path: Path) -> None:
    disk = make_disk(tmp_path, ended_owner())
    file, output = disk.write_random(attempt=77)
    with serving(disk.root) as service, Client(service.address) as client:
        wanted = replace(output, attempt=0, file_id=DRIVER)
        header, body = ask(client, pack_find_request(3, wanted))
        found = unpack_find_response(header, body)
        assert (header.kind, header.channel, header.data_type) == (Kind.FIND_RESPONSE, 3, 1)
        assert found is not None
        assert (found.base, found.attempt, found.file_id) == (file.base, 77, output.file_id)
        header, body = ask(client, pack_find_request(4, replace(wanted, map_index=1)))
        assert (header.data_type, unpack_find_response(header, body)) == (0, None)


# Peers that say what cannot be meant

REQUEST = PartitionRequest(1, 1, OUTPUT)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stage=st.sampled_from(["at once", "greeted", "streaming"]),
    garbage=st.one_of(
        st.binary(min_size=1, max_size=300),
        st.builds(
            lambda kind, rest: bytes([0, 0, 0, 0, kind]) + rest, st.integers(0, 11), st.binary(max_size=99)
        ),
    ),
)
def test_garbage_costs_one_connection_and_nothing_else(
    disk: Disk, service: ShuffleService, stage: str, garbage: bytes
) -> None:
    if not os.path.exists(OUTPUT.file_in(str(disk.home)).index_path):
        disk.write(Pair(1, 0, [Region({0: [bytes(50_000)]})]))
    host, port = service.address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as peer:
        if stage != "at once":
            greet(peer, None)
        if stage == "streaming":
            peer.sendall(PartitionRequest(1, 2, OUTPUT).pack())
        peer.sendall(garbage)
        peer.shutdown(socket.SHUT_WR)
        try:
            while peer.recv(1 << 16):
                continue
        except ConnectionError:
            pass
    with Client(service.address) as other:
        assert len(other.fetch(OUTPUT).data) > 50_000
    until(lambda: not service.status().connections and free(service))


def test_a_client_that_reads_no_answers_is_cut_off(disk: Disk) -> None:
    with serving(disk.root, limits=Limits(answers=10_000)) as service:
        with Client(service.address) as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            missing = b"".join(PartitionRequest(n, 1, OUTPUT).pack() for n in range(40_000))
            try:
                client.send(missing)
            except ConnectionError:
                pass
            until(lambda: not service.status().connections)
        assert service.status().errors_total > 1


def test_a_fault_of_the_server_is_said_and_costs_the_channel_only(
    disk: Disk, client: Client, reads: Reads
) -> None:
    file, output = disk.write_random()

    def fail(offset: int, size: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    reads.before = fail
    stream = client.fetch(output, 0)
    assert stream.error is not None and stream.error.fault is Fault.INTERNAL
    assert "Cannot allocate memory" in stream.error.what
    reads.before = lambda offset, size: None
    assert bytes(client.fetch(output, 1).data) == stored(file, one(1))
