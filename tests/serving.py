"""What the tests of the shuffle service's server share: a home with map outputs, a running service, and a
plain client that speaks the protocol frame by frame."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from consumers import PATIENCE, Consumer, random_pair, read_pool
from engine import ID, Pair, write_pair

from sortshuffle.homes.host import host_name
from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.homes.processes import boot_id, process_start
from sortshuffle.service.server.catalog import Catalog
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.result_partition_manager import ResultPartitionManager
from sortshuffle.service.server.shuffle_service import ServerSettings, ShuffleService, listen
from sortshuffle.service.wire.handshake import greet
from sortshuffle.service.wire.protocol import (
    HEADER_BYTES,
    Data,
    ErrorResponse,
    Header,
    Kind,
    MapOutputAddress,
    PartitionRequest,
    Sender,
    pack_add_credit,
    pack_cancel,
)
from sortshuffle.service.wire.protocol import Stream as What
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import ALL_REGIONS, RegionRange, SubpartitionRange

APPLICATION = "app-1"
SEGMENT = 4096
OUTPUT = MapOutputAddress(APPLICATION, exchange=3, map_index=17, attempt=204, file_id=ID)
SMALL = ServerSettings(memory=64 * SEGMENT, segment_bytes=SEGMENT)


def owner(pid: int | None = None, directories: Sequence[str] = (), started: int | None = None) -> Owner:
    """Of a home: an executor that lives (this process), or has ended."""
    pid = os.getpid() if pid is None else pid
    started = (process_start(pid) or 0) if started is None else started
    return Owner(APPLICATION, host_name(), boot_id(), pid, started, tuple(directories), 600.0, False)


def ended_owner(directories: Sequence[str] = ()) -> Owner:
    """Of an executor that has ended: this process's number, another start."""
    return replace(owner(directories=directories), started=1)


def make_home(root: Path, name: str = "host-1", whose: Owner | None = None) -> Path:
    home = root / HOME_ROOT / APPLICATION / name
    home.mkdir(parents=True)
    (whose or owner()).write(str(home))
    return home


@dataclass
class Disk:
    """A root with one home in it, and map outputs in that."""

    root: Path
    home: Path

    def write(self, pair: Pair, attempt: int = 204) -> tuple[PartitionedFile, MapOutputAddress]:
        file = write_pair(self.home, pair, attempt)
        return file, replace(OUTPUT, attempt=attempt, file_id=pair.file_id)

    def write_random(
        self, subpartitions: int = 4, regions: int = 3, payload: int = 10_000, attempt: int = 204
    ) -> tuple[PartitionedFile, MapOutputAddress]:
        pair = replace(
            random_pair(subpartitions, regions, payload, first=1 % subpartitions), file_id=id_of(attempt)
        )
        return self.write(pair, attempt)


def id_of(attempt: int) -> bytes:
    return attempt.to_bytes(16, "big")


def make_disk(root: Path, whose: Owner | None = None) -> Disk:
    return Disk(root, make_home(root, whose=whose))


@contextmanager
def serving(
    root: Path, settings: ServerSettings = SMALL, *, limits: Limits | None = None
) -> Iterator[ShuffleService]:
    """A service on a free port of loopback; in the end nothing of it is left."""
    settings = replace(settings, limits=limits) if limits else settings
    service = ShuffleService(listen("127.0.0.1", 0), lambda: [str(root)], settings)
    with service:
        yield service
    assert service.status().connections == ()
    assert service._pool._destroyed


class Shelf:
    """A catalog over some roots, with its manager and pool."""

    def __init__(self, *roots: Path) -> None:
        self.roots = [str(root) for root in roots]
        self.pool = read_pool(16, SEGMENT, batch=4)
        self.manager = ResultPartitionManager(lambda: self.roots, self.pool)
        self.catalog = Catalog(lambda: self.roots, self.manager, SEGMENT)

    def read(self, request: PartitionRequest) -> bytes:
        consumer = Consumer()
        request = replace(request, credit=1000)
        consumer.consume(self.catalog.create_view(request, consumer.on_available), credits=1000)
        assert consumer.cause is None
        return bytes(consumer.data)

    def close(self) -> None:
        self.manager.shutdown()
        self.pool.destroy()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """This process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def until(condition: Callable[[], bool], what: str = "what must come") -> None:
    """Look again and again, no longer than `PATIENCE`."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} does not come"
        time.sleep(0.005)


@dataclass
class Stream:
    """What came on one channel."""

    data: bytearray = field(default_factory=bytearray)
    sizes: list[int] = field(default_factory=list)
    backlogs: list[int] = field(default_factory=list)
    ended: bool = False
    error: ErrorResponse | None = None

    @property
    def is_over(self) -> bool:
        return self.ended or self.error is not None


class Client:
    """One connection, one frame after the other. Sequence numbers are checked."""

    def __init__(self, address: str, secret: bytes | None = None, tls: ssl.SSLContext | None = None) -> None:
        host, port = address.rsplit(":", 1)
        self.socket: socket.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.segment_bytes = greet(self.socket, secret)
        self.streams: dict[int, Stream] = {}
        self.order: list[int] = []
        self._next: dict[int, int] = {}

    def request(
        self,
        channel: int,
        output: MapOutputAddress,
        first: int = 0,
        last: int | None = None,
        *,
        credit: int = 100,
        regions: RegionRange = ALL_REGIONS,
        skip: int = 0,
        what: What = What.EXTENTS,
    ) -> Stream:
        asked = SubpartitionRange(first, first if last is None else last)
        request = PartitionRequest(channel, credit, output, asked, regions, skip, what)
        stream = self.streams[channel] = Stream()
        self._next[channel] = 0
        self.send(request.pack())
        return stream

    def add_credit(self, channel: int, credit: int) -> None:
        self.send(pack_add_credit(channel, credit))

    def cancel(self, channel: int) -> None:
        self.send(pack_cancel(channel))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> tuple[Header, bytes]:
        header = Header.unpack(self._exactly(HEADER_BYTES), Sender.SERVER)
        body = self._exactly(header.length)
        stream = self.streams.get(header.channel)
        if header.kind is Kind.BUFFER_RESPONSE:
            assert stream is not None and not stream.is_over
            assert header.sequence == self._next[header.channel]
            self._next[header.channel] += 1
            if header.data_type == Data.END_OF_PARTITION:
                assert not body
                stream.ended = True
            else:
                stream.data += body
                stream.sizes.append(len(body))
                stream.backlogs.append(header.credit)
                self.order.append(header.channel)
        elif header.kind is Kind.ERROR_RESPONSE and stream is not None:
            stream.error = ErrorResponse.unpack(header, body)
        return header, body

    def read(self, *channels: int, refill: bool = True) -> None:
        """Until these (all) are over, with the credit given back that each response costs."""
        wanted = [self.streams[channel] for channel in channels or self.streams]
        while not all(stream.is_over for stream in wanted):
            header, body = self.receive()
            if refill and body and header.kind is Kind.BUFFER_RESPONSE:
                self.add_credit(header.channel, self.cost(len(body)))

    def fetch(self, output: MapOutputAddress, first: int = 0, last: int | None = None, **more: Any) -> Stream:
        """One channel, from its request to its end."""
        channel = max(self.streams, default=0) + 1
        stream = self.request(channel, output, first, last, **more)
        self.read(channel)
        return stream

    def cost(self, size: int) -> int:
        return -(-size // self.segment_bytes)

    def is_cut_off(self) -> bool:
        """Whether the server has closed the connection; what it sent before is read over."""
        try:
            while self.socket.recv(1 << 16):
                continue
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the server closed the connection")
            data += part
        return data
