"""A consumer task and a running shuffle service: what comes through gates over local and remote channels is
what the files hold, within the memory that was given, whatever befalls the service and its disk meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import trustme
from consumers import together
from engine import arrow_memory, changed
from map_outputs import ALL_CODECS, MIB, MapOutput, files_in, reading_threads, rows_of, write_map
from serving import APPLICATION, SEGMENT, SMALL, make_home, serving

from sortshuffle.errors import (
    AuthenticationError,
    CorruptDataError,
    DecryptionError,
    MissingDataError,
    ServiceUnavailableError,
)
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading.channel import InputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings, ClientTls
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.server.shuffle_service import ServerSettings, ShuffleService, listen
from sortshuffle.service.server.transport import ServerTls
from sortshuffle.service.wire.protocol import MapOutputAddress, Verdict

SCHEMA = pa.schema([("key", pa.int64()), ("number", pa.int64()), ("text", pa.string())])
BY_KEY = RowOrder((0,))
LARGE = ServerSettings(memory=8 * MIB, segment_bytes=64 * KIB)
FLOATING = 16 * SEGMENT


@pytest.fixture(autouse=True)
def no_threads_are_left() -> Iterator[None]:
    yield
    assert [
        t.name for t in threading.enumerate() if t.name.startswith(("sortshuffle-client", "sortshuffle-read"))
    ] == []


@dataclass
class Far:
    """A service of a "host", and the clients of one task on another."""

    home: Path
    service: ShuffleService
    clients: ServiceClients

    def channel(self, output: MapOutput, subpartition: int = 0) -> RemoteInputChannel:
        local = output.channel(subpartition)
        address = MapOutputAddress(APPLICATION, 1, output.map_index, output.map_index, output.file_id)
        return RemoteInputChannel(
            self.clients,
            self.service.address,
            address,
            "far",
            local.path,
            local.writer,
            local.extents,
            output.key,
        )

    def channels(self, outputs: Sequence[MapOutput], subpartition: int = 0) -> list[InputChannel]:
        return [self.channel(output, subpartition) for output in outputs]


@contextmanager
def far(root: Path, settings: ServerSettings = SMALL, client: ClientSettings | None = None) -> Iterator[Far]:
    client = client or ClientSettings(settings.secret, timeout=20.0, floating_bytes=FLOATING)
    with serving(root, settings) as service:
        clients = ServiceClients(client)
        try:
            home = next((root / "sortshuffle" / APPLICATION).iterdir(), None) if root.exists() else None
            yield Far(home or make_home(root), service, clients)
        finally:
            clients.close()
            assert clients.floating.free == clients.floating.total


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "disk")


@pytest.fixture
def root(home: Path, tmp_path: Path) -> Path:
    return tmp_path / "disk"


def batch(start: int, rows: int, wide: int = 0, keys: np.random.Generator | None = None) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    key = np.arange(start, start + rows) if keys is None else np.sort(keys.integers(0, 50, rows))
    return pa.record_batch([key, list(numbers), [f"{n} {'x' * wide}" for n in numbers]], schema=SCHEMA)


def maps(
    home: Path,
    count: int,
    *,
    regions: int = 3,
    rows: int = 60,
    messages: int = 2,
    wide: int = 20,
    codec: Codec = Codec.LZ4,
    keys: np.random.Generator | None = None,
    first: int = 0,
    key: EncryptionKey | None = None,
) -> list[MapOutput]:
    """Map outputs whose rows are numbered in the order of the maps. With ``keys`` each extent is sorted."""
    outputs, start = [], 0
    for map_index in range(first, first + count):
        written = []
        for _ in range(regions):
            whole = batch(start, rows * messages, wide, keys)
            written.append({0: [whole.slice(n * rows, rows) for n in range(messages)]})
            start += rows * messages
        outputs.append(write_map(home, SCHEMA, written, map_index=map_index, codec=codec, key=key))
    return outputs


@dataclass
class Consumer:
    gate: InputGate
    budget: MemoryBudget


def consumer_of(
    channels: Sequence[InputChannel], outputs: Sequence[MapOutput], memory: int, spill: Path
) -> Consumer:
    budget = MemoryBudget(memory)
    gate = InputGate(channels, outputs[0].payload, budget, 4, TaskMetrics(), files_in(spill))
    return Consumer(gate, budget)


def numbers_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [number for found in batches for number in found.column("number").to_pylist()]


# --- the same rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.parametrize("memory", [64 * KIB, MIB, 64 * MIB])
@pytest.mark.parametrize("mixed", [False, True], ids=["all-remote", "some-remote"])
def test_rows_come_in_the_order_of_the_maps_whatever_is_remote(
    root: Path, home: Path, tmp_path: Path, codec: Codec, memory: int, mixed: bool
) -> None:
    outputs = maps(home, 6, codec=codec)
    with far(root) as host:
        channels = host.channels(outputs)
        if mixed:
            channels[::2] = [output.channel() for output in outputs[::2]]
        consumer = consumer_of(list(reversed(channels)), outputs, memory, tmp_path)
        assert numbers_of(consumer.gate.batches()) == list(range(6 * 3 * 120))
        assert consumer.budget.used == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("memory", [64 * KIB, 64 * MIB], ids=["in parts", "whole"])
def test_the_service_forwards_what_is_encrypted_and_the_consumer_decrypts(
    root: Path, home: Path, tmp_path: Path, codec: Codec, memory: int
) -> None:
    outputs = maps(home, 4, codec=codec, key=EncryptionKey(bytes(16)))
    with far(root) as host:
        consumer = consumer_of(host.channels(outputs), outputs, memory, tmp_path)
        assert numbers_of(consumer.gate.batches()) == list(range(4 * 3 * 120))
        without = [replace(each, key=None) for each in outputs]
        with pytest.raises(DecryptionError, match="there is no key"):
            numbers_of(consumer_of(host.channels(without), without, memory, tmp_path).gate.batches())
        wrong = [replace(each, key=EncryptionKey(bytes(32))) for each in outputs]
        with pytest.raises(DecryptionError, match="the key is another one"):
            numbers_of(consumer_of(host.channels(wrong), wrong, memory, tmp_path).gate.batches())


@pytest.mark.parametrize("memory", [64 * KIB, 256 * KIB, MIB, 64 * MIB])
@pytest.mark.parametrize("floating", [0, FLOATING])
def test_many_sorted_runs_are_merged_as_if_they_were_local(
    root: Path, home: Path, tmp_path: Path, memory: int, floating: int
) -> None:
    outputs = maps(home, 8, regions=4, rows=100, messages=4, keys=np.random.default_rng(1))
    local = consumer_of([output.channel() for output in outputs], outputs, memory, tmp_path)
    expected = numbers_of(local.gate.sorted_batches(BY_KEY))
    settings = ClientSettings(timeout=20.0, floating_bytes=floating)
    with far(root, client=settings) as host:
        remote = consumer_of(host.channels(outputs), outputs, memory, tmp_path)
        assert numbers_of(remote.gate.sorted_batches(BY_KEY)) == expected
        assert remote.budget.used == 0
        if memory >= MIB:  # a smaller one does not hold two of these runs, which are merged all the same
            assert remote.budget.peak <= memory
    assert sorted(expected) == list(range(8 * 4 * 400))


def test_256_channels_of_one_service(root: Path, home: Path, tmp_path: Path) -> None:
    outputs = maps(home, 256, regions=1, rows=10, messages=1)
    with far(root) as host:
        consumer = consumer_of(host.channels(outputs), outputs, MIB, tmp_path)
        assert numbers_of(consumer.gate.batches()) == list(range(2560))
        assert len(host.service.status().connections) == 1
        assert host.service.status().connections_total == 1


def test_256_sorted_runs_are_streamed_at_a_time(root: Path, home: Path, tmp_path: Path) -> None:
    outputs = maps(home, 256, regions=1, rows=40, messages=3, wide=100, keys=np.random.default_rng(2))
    with far(root) as host:
        memory = 6 * MIB  # does not hold them whole
        consumer = consumer_of(host.channels(outputs), outputs, memory, tmp_path)
        found = [
            row for each in consumer.gate.sorted_batches(BY_KEY) for row in each.column("key").to_pylist()
        ]
    assert found == sorted(found)
    assert len(found) == 256 * 120
    assert consumer.budget.peak <= memory


def test_many_consumers_of_one_map_output_each_with_a_connection_of_its_own(root: Path, home: Path) -> None:
    regions = [{s: [batch(1000 * s, 200)] for s in range(32)} for _ in range(2)]
    output = write_map(home, SCHEMA, regions, subpartitions=32)
    with far(root) as host:

        def consume(subpartition: int) -> None:
            clients = ServiceClients(ClientSettings(timeout=20.0))
            try:
                channel = replace(host.channel(output, subpartition), clients=clients)
                gate = InputGate([channel], output.payload, MemoryBudget(MIB), 1, TaskMetrics())
                assert (
                    numbers_of(gate.batches()) == [*range(1000 * subpartition, 1000 * subpartition + 200)] * 2
                )
            finally:
                clients.close()

        with together(*[lambda s=s: consume(s) for s in range(32)]):
            pass


def test_indexes_come_through_the_service(root: Path, home: Path) -> None:
    (output,) = maps(home, 1)
    with far(root) as host:
        channel = host.channel(output)
        data = host.clients.client(host.service.address).index(channel.output, "far")
        assert data == Path(output.file.index_path).read_bytes()


def test_with_a_secret_and_tls(root: Path, home: Path, tmp_path: Path) -> None:
    authority, outputs = trustme.CA(), maps(home, 3)
    certificate = authority.issue_cert("127.0.0.1")
    chain, key, trusted = (tmp_path / name for name in ("chain.pem", "key.pem", "authority.pem"))
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(str(chain), append=True)
    certificate.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(trusted))
    settings = replace(SMALL, secret=b"a secret", tls=ServerTls(str(chain), str(key)))
    tls = ClientTls(str(trusted))
    with far(root, settings, ClientSettings(b"a secret", tls, 20.0, FLOATING)) as host:
        consumer = consumer_of(host.channels(outputs), outputs, 64 * KIB, tmp_path)
        assert numbers_of(consumer.gate.batches()) == list(range(1080))
        assert len(rows_of(consumer.gate.sorted_batches(BY_KEY))) == 1080
    with (
        far(root, settings, ClientSettings(b"another", tls, 20.0)) as host,
        pytest.raises(AuthenticationError),
    ):
        consumer_of(host.channels(outputs), outputs, MIB, tmp_path).gate.batches().__next__()


# --- memory ------------------------------------------------------------------------------------------------


def most_memory(consumer: Consumer, *, in_order: bool) -> int:
    """Bytes that Arrow had at most while everything was read."""
    with arrow_memory() as pool:
        gate = consumer.gate
        for _ in gate.sorted_batches(BY_KEY) if in_order else gate.batches():
            continue
        return int(pool.max_memory())


@pytest.mark.parametrize("in_order", [False, True], ids=["as-written", "merged"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_memory_is_that_of_local_files_and_the_room_for_data_ahead(
    root: Path, home: Path, tmp_path: Path, codec: Codec, in_order: bool
) -> None:
    keys = np.random.default_rng(3)
    outputs = maps(home, 12, regions=2, rows=700, messages=4, wide=200, codec=codec, keys=keys)
    memory = 4 * MIB
    with far(root, LARGE) as host:
        local = consumer_of([output.channel() for output in outputs], outputs, memory, tmp_path)
        remote = consumer_of(host.channels(outputs), outputs, memory, tmp_path)
        ours, theirs = most_memory(remote, in_order=in_order), most_memory(local, in_order=in_order)
    assert 0 < remote.budget.peak <= memory
    assert ours <= theirs + memory + FLOATING  # what either has read ahead at its worst moment differs


# --- faults ------------------------------------------------------------------------------------------------


@contextmanager
def restartable(root: Path, settings: ServerSettings = SMALL) -> Iterator[Far]:
    """A service that `restart` ends and makes anew at the same address."""
    with ExitStack() as stack:
        service = ShuffleService(listen("127.0.0.1", 0), lambda: [str(root)], settings)
        service.start()
        clients = ServiceClients(ClientSettings(timeout=20.0, floating_bytes=FLOATING))
        stack.callback(clients.close)
        found = Far(next((root / "sortshuffle" / APPLICATION).iterdir()), service, clients)
        stack.callback(lambda: found.service.stop())
        yield found


def restart(host: Far, root: Path, settings: ServerSettings = SMALL) -> None:
    port = int(host.service.address.rpartition(":")[2])
    host.service.stop()
    host.service = ShuffleService(listen("127.0.0.1", port), lambda: [str(root)], settings)
    host.service.start()


@pytest.mark.parametrize("in_order", [False, True], ids=["as-written", "merged"])
@pytest.mark.parametrize("segment", [SEGMENT, 2 * SEGMENT], ids=["same-segments", "other-segments"])
def test_a_service_that_is_restarted_in_mid_stream_goes_on(
    root: Path, home: Path, tmp_path: Path, in_order: bool, segment: int
) -> None:
    outputs = maps(home, 5, regions=2, rows=2500, wide=200, codec=Codec.NONE, keys=np.random.default_rng(4))
    memory = 2 * MIB
    local = consumer_of([output.channel() for output in outputs], outputs, memory, tmp_path).gate
    expected = numbers_of(local.sorted_batches(BY_KEY) if in_order else local.batches())
    with restartable(root) as host:
        gate = consumer_of(host.channels(outputs), outputs, memory, tmp_path).gate
        found: list[int] = []
        for number, each in enumerate(gate.sorted_batches(BY_KEY) if in_order else gate.batches()):
            found += each.column("number").to_pylist()
            if number in (0, 2):
                restart(host, root, replace(SMALL, segment_bytes=segment))
        assert found == expected


def test_a_service_that_is_down_for_good_is_an_error_for_all_who_wait(
    root: Path, home: Path, tmp_path: Path
) -> None:
    outputs = maps(home, 8, regions=2, rows=2000, wide=500, codec=Codec.NONE)
    with far(root, client=ClientSettings(timeout=0.5)) as host:
        consumer = consumer_of(host.channels(outputs), outputs, 128 * KIB, tmp_path)
        batches = consumer.gate.batches()
        next(batches)
        host.service.stop()
        with pytest.raises(ServiceUnavailableError, match="on host far") as caught:
            list(batches)
        assert host.service.address in str(caught.value)
        assert "spark.sortshuffle.service.timeout" in str(caught.value)
        assert consumer.budget.used == 0
        assert reading_threads() == []


def test_a_deleted_map_output_is_missing(root: Path, home: Path, tmp_path: Path) -> None:
    outputs = maps(home, 3)
    with far(root) as host:
        channels = host.channels(outputs)
        outputs[1].file.delete()
        consumer = consumer_of(channels, outputs, MIB, tmp_path)
        with pytest.raises(MissingDataError, match="says the shuffle service of far") as caught:
            list(consumer.gate.batches())
        assert "exchange-1-map-1-attempt-1" in caught.value.place.file
        assert consumer.budget.used == 0


@pytest.mark.parametrize("in_order", [False, True], ids=["as-written", "merged"])
def test_a_damaged_extent_is_an_error_with_its_place(
    root: Path, home: Path, tmp_path: Path, in_order: bool
) -> None:
    outputs = maps(home, 3, regions=3, rows=200, wide=100)
    extent = outputs[1].channel().extents[2]
    with far(root) as host, changed(outputs[1].file.data_path, extent.offset + 100, 0x20):
        consumer = consumer_of(host.channels(outputs), outputs, MIB if not in_order else 128 * KIB, tmp_path)
        batches = consumer.gate.sorted_batches(BY_KEY) if in_order else consumer.gate.batches()
        with pytest.raises(CorruptDataError, match="the shuffle service of far reads the same") as caught:
            list(batches)
        place = caught.value.place
        assert (place.file, place.region, place.subpartition) == (outputs[1].file.data_path, 2, 0)
        assert place.offset is not None
        assert extent.offset <= place.offset <= extent.offset + 100
        assert place.writer == "attempt 1 of map 1"
        assert consumer.budget.used == 0


def test_a_file_that_is_cut_short_is_an_error_with_its_place(root: Path, home: Path, tmp_path: Path) -> None:
    outputs = maps(home, 2, regions=3, rows=300, wide=100)
    extent = outputs[0].channel().extents[1]
    with far(root) as host:
        channels = host.channels(outputs)
        os.truncate(outputs[0].file.data_path, extent.offset + 100)
        with pytest.raises(CorruptDataError, match="cut short") as caught:
            list(consumer_of(channels, outputs, MIB, tmp_path).gate.batches())
        assert caught.value.place.file == outputs[0].file.data_path
        assert caught.value.place.region is not None


def test_verdicts(root: Path, home: Path) -> None:
    (output,) = maps(home, 1)
    with far(root) as host:
        client, address = host.clients.client(host.service.address), host.channel(output).output
        assert client.report_damage(address, "far", 0, 1) is Verdict.SOUND
        with changed(output.file.data_path, output.channel().extents[1].offset + 9, 1):
            assert client.report_damage(address, "far", 0, 1) is Verdict.DAMAGED
            assert client.report_damage(address, "far", 0, 2) is Verdict.SOUND
        output.file.delete()
        assert client.report_damage(address, "far", 0, 1) is Verdict.MISSING


# --- giving up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_order", [False, True], ids=["as-written", "merged"])
def test_a_consumer_that_gives_up_leaves_nothing_behind(
    root: Path, home: Path, tmp_path: Path, in_order: bool
) -> None:
    keys = np.random.default_rng(5)
    outputs = maps(home, 8, regions=2, rows=300, messages=4, wide=200, codec=Codec.NONE, keys=keys)
    with far(root) as host:
        for _ in range(3):
            consumer = consumer_of(host.channels(outputs), outputs, 2 * MIB, tmp_path)
            batches = consumer.gate.sorted_batches(BY_KEY) if in_order else consumer.gate.batches()
            next(batches)
            batches.close()  # type: ignore[attr-defined]
            assert consumer.budget.used == 0
            assert reading_threads() == []
            assert host.clients.floating.free == host.clients.floating.total
        whole = consumer_of(host.channels(outputs), outputs, MIB, tmp_path)
        assert len(numbers_of(whole.gate.batches())) == 8 * 2 * 1200
        assert host.service.status().connections_total == 1


def test_a_consumer_that_gives_up_does_not_wait_for_a_service_that_is_gone(
    root: Path, home: Path, tmp_path: Path
) -> None:
    outputs = maps(home, 30, regions=2, rows=300, wide=200)
    with far(root, client=ClientSettings(timeout=3600.0)) as host:
        consumer = consumer_of(host.channels(outputs), outputs, 512 * KIB, tmp_path)
        batches = consumer.gate.batches()
        next(batches)
        host.service.stop()
        batches.close()  # type: ignore[attr-defined]
        assert reading_threads() == []
        assert consumer.budget.used == 0


def test_a_slow_consumer_delays_nobody(root: Path, home: Path, tmp_path: Path) -> None:
    """One keeps a stream open and takes nothing; others read all meanwhile, through the same connection."""
    outputs = maps(home, 6, regions=2, rows=1000, wide=200, codec=Codec.NONE)
    with far(root) as host:
        channel = host.channel(outputs[0])
        with channel.open(channel.extents) as slow:
            parts = slow.read_parts(channel.extents[0], SEGMENT)
            next(parts)
            consumer = consumer_of(host.channels(outputs), outputs, 256 * KIB, tmp_path)
            assert len(numbers_of(consumer.gate.batches())) == 6 * 2 * 2000
            assert sum(1 for _ in parts) > 0
