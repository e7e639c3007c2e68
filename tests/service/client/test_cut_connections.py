"""Two hundred consumers of one service, each a real client, through a network that cuts connections in the
middle of what they carry."""

from __future__ import annotations

import random
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from consumers import together
from engine import eventually
from map_outputs import MIB, MapOutput, write_map
from serving import APPLICATION, SEGMENT, SMALL, make_home, serving

from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.reading.gate import InputGate
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.server.shuffle_service import ServerSettings
from sortshuffle.service.wire.protocol import MapOutputAddress

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
SUBPARTITIONS, MAPS, REGIONS, ROWS = 20, 4, 3, 40
CONSUMERS = 200


class CuttingProxy:
    """Passes bytes on between clients and a service. Each new connection is cut when it has carried as many
    bytes as ``lives`` gives next; when that is used up, no more are."""

    def __init__(self, service: str, lives: Iterator[int]) -> None:
        host, _, port = service.rpartition(":")
        self._service = (host, int(port))
        self._lives = lives
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.cuts = 0
        self._stopped, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="cutting-proxy")
        self._thread.start()

    def stop(self) -> None:
        self._stop.close()
        self._thread.join()

    def _run(self) -> None:
        with ExitStack() as opened, selectors.DefaultSelector() as selector:
            for end in (self._stopped, self._listening):
                opened.callback(end.close)
                selector.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._stopped:
                        return
                    if key.fileobj is self._listening:
                        self._accept(selector, opened)
                    elif key.fileobj.fileno() != -1:  # type: ignore[union-attr]  # cut a moment ago
                        key.data.carry(key.fileobj)

    def _accept(self, selector: selectors.BaseSelector, opened: ExitStack) -> None:
        client, _ = self._listening.accept()
        _Carried(
            self, selector, client, socket.create_connection(self._service), next(self._lives, None), opened
        )


class _Carried:
    """One connection, both halves."""

    def __init__(
        self,
        proxy: CuttingProxy,
        selector: selectors.BaseSelector,
        client: socket.socket,
        service: socket.socket,
        life: int | None,
        opened: ExitStack,
    ) -> None:
        self._proxy, self._selector, self._life = proxy, selector, life
        self._other = {client: service, service: client}
        for half in self._other:
            opened.callback(half.close)
            selector.register(half, selectors.EVENT_READ, self)

    def carry(self, half: socket.socket) -> None:
        try:
            data = half.recv(65536)
            if self._life is not None:
                data, left = data[: self._life], self._life - len(data)
                self._life = max(0, left)
            if data:
                self._other[half].sendall(data)
        except OSError:
            data = b""
        if self._life == 0:
            self._proxy.cuts += 1
        if not data or self._life == 0:
            self._end()

    def _end(self) -> None:
        for half in self._other:
            self._selector.unregister(half)
            half.close()


@contextmanager
def cutting(service: str, lives: Iterator[int]) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(service, lives)
    try:
        yield proxy
    finally:
        proxy.stop()


def written(home: Path) -> list[MapOutput]:
    """Map outputs whose subpartition s has the rows that `expected` tells."""
    return [
        write_map(
            home,
            SCHEMA,
            [{s: [rows_of(m, region, s)] for s in range(SUBPARTITIONS)} for region in range(REGIONS)],
            map_index=m,
            subpartitions=SUBPARTITIONS,
            codec=Codec.NONE,
        )
        for m in range(MAPS)
    ]


def rows_of(map_index: int, region: int, subpartition: int) -> pa.RecordBatch:
    start = ((map_index * REGIONS + region) * SUBPARTITIONS + subpartition) * ROWS
    numbers = list(range(start, start + ROWS))
    return pa.record_batch([numbers, [f"{n} {'x' * (n % 300)}" for n in numbers]], schema=SCHEMA)


def expected(subpartition: int) -> pa.Table:
    return pa.Table.from_batches(
        [rows_of(m, region, subpartition) for m in range(MAPS) for region in range(REGIONS)]
    )


def consume(proxy: CuttingProxy, outputs: list[MapOutput], subpartition: int) -> None:
    clients = ServiceClients(ClientSettings(timeout=60.0, floating_bytes=4 * SEGMENT))
    try:
        channels = []
        for output in outputs:
            local = output.channel(subpartition)
            address = MapOutputAddress(APPLICATION, 1, output.map_index, output.map_index, output.file_id)
            channels.append(
                RemoteInputChannel(
                    clients, proxy.address, address, "far", local.path, local.writer, local.extents
                )
            )
        gate = InputGate(channels, outputs[0].payload, MemoryBudget(MIB), 1, TaskMetrics())
        assert (
            pa.Table.from_batches(gate.batches(), SCHEMA).combine_chunks()
            == expected(subpartition).combine_chunks()
        )
    finally:
        clients.close()


@pytest.mark.parametrize(
    "settings", [SMALL, ServerSettings(memory=4 * MIB, segment_bytes=64 << 10)], ids=["small", "large"]
)
def test_two_hundred_consumers_and_cuts_everywhere(tmp_path: Path, settings: ServerSettings) -> None:
    outputs = written(make_home(tmp_path / "disk"))
    generator = random.Random(5)
    # 20 to 40 KB are carried for each consumer; most connections are cut, some of those that follow, too
    lives = iter([generator.randrange(100, 30_000) for _ in range(CONSUMERS + CONSUMERS // 2)])
    with serving(tmp_path / "disk", settings) as service, cutting(service.address, lives) as proxy:
        with together(*[lambda n=n: consume(proxy, outputs, n % SUBPARTITIONS) for n in range(CONSUMERS)]):
            pass
        assert proxy.cuts >= CONSUMERS // 2
        eventually(lambda: not service.status().connections, "the service to know that all have gone")
        status = service.status()
        assert status.connections_total >= CONSUMERS + proxy.cuts
        assert status.pool_segments_free == status.pool_segments
        assert (status.readers, status.reads_waiting) == (0, 0)
