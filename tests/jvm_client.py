"""The JVM's end of the manager's protocol, written from docs/manager.md and not from the package; and an
engine in this process that it talks to."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import socket
import struct
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from consumers import PATIENCE
from engine import eventually

from sortshuffle.format.header import Codec
from sortshuffle.homes.processes import boot_id
from sortshuffle.homes.shared_home import make_stored_home, shared_home, stored_home
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.jvm import engine as engines
from sortshuffle.service.jvm.engine import Engine, EngineSettings, SharedHomes
from sortshuffle.service.jvm.protocol import Block as ReceivedBlock
from sortshuffle.service.jvm.server import JvmServer
from sortshuffle.storage.files.partitioned_file import PartitionedFile

GREETING = b"\x89SSJ\r\n\x1a\n\x04\0\0\0\0\0\0\0"
WRITE, FRAME, FINISH, READ, REMOVE, SHARE, SHARED_FRAME = range(1, 8)
DONE, BAD_REQUEST, NO_SPACE, FAILED, LOST = range(5)
ERROR = 0xFFFFFFFF
APPLICATION = "app-1"
TOKEN = "5e" * 16
SHUFFLE = 3
HERE = "127.0.0.1:7"  # the address of the engine in this process, which has no service
WRITERS = 4

Record = tuple[int, bytes]
"""A subpartition, and the bytes of a record."""


@dataclass(frozen=True)
class Written:
    """The reply to FINISH."""

    file_id: bytes
    spills: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A block of a request to read."""

    map_id: int
    map_index: int
    first: int
    end: int
    file_id: bytes
    service: int = 0

    def received(self) -> ReceivedBlock:
        """As the engine has it from a request."""
        return ReceivedBlock(self.map_id, self.map_index, self.first, self.end, self.service, self.file_id)

    def packed(self) -> bytes:
        return (
            struct.pack("<qiiii", self.map_id, self.map_index, self.first, self.end, self.service)
            + self.file_id
        )


@dataclass(frozen=True)
class Output:
    """A map output that was written. Its map index is its map id."""

    done: Written
    frames: Sequence[Sequence[Record]]
    map_id: int

    def block(self, first: int = 0, end: int | None = None, service: int = 0) -> Block:
        end = len(self.done.sizes) if end is None else end
        return Block(self.map_id, self.map_id, first, end, self.done.file_id, service)

    def expected(self, first: int = 0, end: int | None = None) -> bytes:
        end = len(self.done.sizes) if end is None else end
        return b"".join(expected(self.frames, subpartition) for subpartition in range(first, end))

    def file(self, home: str) -> PartitionedFile:
        return PartitionedFile.named(home, SHUFFLE, self.map_id, self.map_id)


@dataclass(frozen=True)
class Answer:
    """To READ. ``data``: the bytes of all pieces; ``pieces``: how many there were. ``totals``: bytes and
    blocks here, bytes and blocks of other hosts. ``status``: of an error, `DONE` at the end. ``lost``:
    numbers of blocks. ``silent``: numbers of services."""

    data: bytes
    pieces: int
    totals: tuple[int, ...] = ()
    status: int = DONE
    lost: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    text: str = ""


def _numbers(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the numbers that a body begins with, and what follows them."""
    (count,) = struct.unpack_from("<I", body)
    return struct.unpack_from(f"<{count}i", body, 4), body[4 + 4 * count :]


class JvmClient:
    """A connection of a JVM, greeted. The caller closes it. ``key``: by which files are to be encrypted.
    ``port``: of the engine's service."""

    def __init__(self, connected: socket.socket, key: bytes = b"") -> None:
        self.socket = connected
        self.socket.settimeout(PATIENCE)
        self.send(GREETING[:12] + struct.pack("<I", len(key)) + key)
        answer = self.receive(len(GREETING))
        assert answer[:-4] == GREETING[:-4]
        self.port = int.from_bytes(answer[-4:], "little")

    # Requests

    def begin(
        self, map_id: int = 7, subpartitions: int = 4, shuffle: int = SHUFFLE, map_index: int = 0
    ) -> None:
        self.request(WRITE, struct.pack("<iiqii", shuffle, map_index, map_id, subpartitions, 5))

    def frame(self, records: Sequence[Record]) -> None:
        self.request(FRAME, frame_of(records))

    def share(self, size: int) -> mmap.mmap | None:
        """Memory that the engine reads frames in; None if it has none."""
        self.request(SHARE, struct.pack("<q", size))
        status, path = self.reply()
        assert status == DONE, path
        if not path:
            return None
        descriptor = os.open(path.decode(), os.O_RDWR)
        try:
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def shared_frame(self, shared: mmap.mmap, position: int, records: Sequence[Record]) -> None:
        """Put a frame there, and name it. The reply is left to the caller."""
        self.send(shared_frame_of(shared, position, records))

    def finish(self) -> Written:
        self.request(FINISH)
        status, body = self.reply()
        assert status == DONE, body
        file_id, spills, zero = struct.unpack_from("<16sii", body)
        assert zero == 0
        return Written(file_id, spills, struct.unpack(f"<{(len(body) - 24) // 8}q", body[24:]))

    def write(
        self,
        frames: Sequence[Sequence[Record]],
        map_id: int = 7,
        subpartitions: int = 4,
        shuffle: int = SHUFFLE,
        map_index: int = 0,
    ) -> Written:
        """A map output, from WRITE to the reply to FINISH."""
        self.begin(map_id, subpartitions, shuffle, map_index)
        for records in frames:
            self.frame(records)
        return self.finish()

    def ask(self, blocks: Sequence[Block], services: Sequence[str] = (HERE,), shuffle: int = SHUFFLE) -> None:
        """READ, without waiting for the answer."""
        self._ask(blocks, services, shuffle, only_looks=0)

    def _ask(self, blocks: Sequence[Block], services: Sequence[str], shuffle: int, only_looks: int) -> None:
        head = struct.pack("<iiii", shuffle, len(services), len(blocks), only_looks)
        self.request(READ, head + texts(services) + b"".join(block.packed() for block in blocks))

    def read(
        self, blocks: Sequence[Block], services: Sequence[str] = (HERE,), shuffle: int = SHUFFLE
    ) -> Answer:
        self.ask(blocks, services, shuffle)
        return self.answer()

    def look(self, blocks: Sequence[Block], services: Sequence[str] = (HERE,)) -> Answer:
        """READ, to know only what is lost."""
        self._ask(blocks, services, SHUFFLE, only_looks=1)
        return self.answer()

    def remove(self, shuffle: int = SHUFFLE, services: Sequence[str] = ()) -> tuple[int, bytes]:
        self.request(REMOVE, struct.pack("<ii", shuffle, len(services)) + texts(services))
        return self.reply()

    def request(self, operation: int, body: bytes = b"") -> None:
        self.send(request_of(operation, body))

    # Answers

    def reply(self) -> tuple[int, bytes]:
        """Its status and body."""
        status, zeros, size = struct.unpack("<B3sI", self.receive(8))
        assert zeros == b"\0\0\0"
        return status, self.receive(size)

    def refusal(self) -> tuple[int, str]:
        """A reply that says why, behind which the connection is closed."""
        status, body = self.reply()
        assert self.is_closed()
        return status, body.decode()

    def refuses(self, status: int, *words: str) -> None:
        """The next reply is a refusal with these words."""
        found, text = self.refusal()
        assert (found, [each for each in words if each not in text]) == (status, []), text

    def answer(self) -> Answer:
        data = bytearray()
        pieces = 0
        while True:
            (size,) = struct.unpack("<I", self.receive(4))
            if size == ERROR:
                return self._error(bytes(data), pieces)
            totals = struct.unpack("<qqqq", self.receive(32))
            if not size:
                return Answer(bytes(data), pieces, totals)
            data += self.receive(size)
            pieces += 1

    def _error(self, data: bytes, pieces: int) -> Answer:
        status, body = self.reply()
        lost: tuple[int, ...] = ()
        silent: tuple[int, ...] = ()
        if status == LOST:
            lost, body = _numbers(body)
            silent, body = _numbers(body)
        return Answer(data, pieces, (), status, lost, silent, body.decode())

    # Bytes

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            got = self.socket.recv(size - len(data))
            if not got:
                raise EOFError(f"the engine closed the connection, {size - len(data)} bytes early")
            data += got
        return bytes(data)

    def is_closed(self) -> bool:
        """Whether the engine has closed the connection, and has sent nothing more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> JvmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connected(path: str, key: bytes = b"") -> JvmClient:
    """To the engine whose socket is there."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE)
    client.connect(path)
    return JvmClient(client, key)


def frame_of(records: Sequence[Record]) -> bytes:
    """The body of a FRAME."""
    ids = [subpartition for subpartition, _ in records]
    data = [record for _, record in records]
    ends = np.cumsum([len(each) for each in data]).tolist()
    count = len(records)
    return struct.pack(f"<ii{count}i{count}i", count, sum(map(len, data)), *ids, *ends) + b"".join(data)


def request_of(operation: int, body: bytes = b"") -> bytes:
    return struct.pack("<BxxxI", operation, len(body)) + body


def shared_frame_of(shared: mmap.mmap, position: int, records: Sequence[Record]) -> bytes:
    """Put a frame's parts there, one behind the other. The SHARED_FRAME that names them."""
    frame = frame_of(records)
    head, body = frame[:8], frame[8:]
    shared[position : position + len(body)] = body
    ends = position + 4 * len(records)
    return request_of(SHARED_FRAME, head + struct.pack("<iii", position, ends, ends + 4 * len(records)))


def texts(every: Sequence[str]) -> bytes:
    return b"".join(struct.pack("<I", len(each.encode())) + each.encode() for each in every)


def write_output(
    client: JvmClient, map_id: int, frames: Sequence[Sequence[Record]], subpartitions: int = 4
) -> Output:
    return Output(client.write(frames, map_id, subpartitions, map_index=map_id), frames, map_id)


def some(seed: int, size: int, subpartitions: int = 4) -> list[list[Record]]:
    """A frame with two records of about this size for each subpartition."""
    chosen = random.Random(seed)
    everywhere = [*range(subpartitions)] * 2
    return [[(at, b"%d " % seed + chosen.randbytes(size + chosen.randrange(9))) for at in everywhere]]


def expected(frames: Sequence[Sequence[Record]], subpartition: int) -> bytes:
    """The bytes of a subpartition, in their order."""
    return b"".join(data for records in frames for target, data in records if target == subpartition)


# An engine in this process

SETTINGS = EngineSettings(
    application=APPLICATION,
    address=HERE,
    write_memory=64 << 20,
    codec=Codec.LZ4,
    codec_level=1,
    clients=ClientSettings(None, timeout=PATIENCE),
    keeper=1,
)


@dataclass
class Serving:
    """An engine and its server. ``homes``: where its map outputs lie. ``path``: of the socket."""

    engine: Engine
    homes: tuple[str, ...]
    path: str
    _clients: list[JvmClient] = field(default_factory=list)

    def connect(self, key: bytes = b"") -> JvmClient:
        """A connection, which is closed with the engine."""
        self._clients.append(connected(self.path, key))
        return self._clients[-1]

    def files(self) -> list[str]:
        """Of all homes, with the owners' left out."""
        found = [path.name for home in self.homes for path in Path(home).glob("*")]
        return sorted(name for name in found if name != "owner.json")

    def is_idle(self) -> bool:
        """Whether no writer has a segment, memory or a turn any more."""
        segments = self.engine._writing.segments
        memory = self.engine.memory
        return (
            segments.available == segments.total
            and segments.guaranteed == 0
            and (memory.used, memory.shares) == (0, 0)
            and self.engine._writers._value == engines.MOST_WRITERS
        )

    def connections(self) -> int:
        """How many there are. Each has a thread, and there is one that takes them."""
        return max(0, len(self.threads()) - 1)

    def threads(self) -> list[threading.Thread]:
        served = (
            (thread, getattr(getattr(thread, "_target", None), "__self__", None))
            for thread in threading.enumerate()
        )
        return [thread for thread, run_by in served if getattr(run_by, "_engine", None) is self.engine]

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()


@contextmanager
def serving(
    root: Path | str,
    *roots: Path,
    writers: int = WRITERS,
    settings: EngineSettings = SETTINGS,
    keep: bool = False,
    **changed: object,
) -> Iterator[Serving]:
    """An engine with a shared home below each root, or one at a URL. In the end nothing of it is left but
    finished files."""
    before = engines.MOST_WRITERS
    engines.MOST_WRITERS = writers
    try:
        homes = tuple(shared_home(str(each), APPLICATION, boot_id(), TOKEN) for each in (root, *roots))
        if isinstance(root, str):
            homes = (stored_home(root, APPLICATION, TOKEN),)
            with suppress(OSError):
                make_stored_home(homes[0])  # as the driver does
        settings = replace(settings, **changed)  # type: ignore[arg-type]
        directory = tempfile.mkdtemp(prefix="engine-")  # short: a socket's path has at most 107 bytes
        path = os.path.join(directory, "socket")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen(64)
        served = Serving(Engine(settings, lambda: SharedHomes(homes, TOKEN, keep)), homes, path)
        server = JvmServer(listening, served.engine)
        server.start()
        try:
            yield served
            served.close_clients()
            eventually(served.is_idle, "the engine is idle when all JVMs are gone", PATIENCE)
        finally:
            served.close_clients()
            server.stop()
            shutil.rmtree(directory)
            eventually(lambda: not served.threads(), "all connections have ended", PATIENCE)
            # what other services are told of removals ends in its own time-out
            served.engine._removal_threads.shutdown(wait=True)
            eventually(lambda: not _clients_threads(), "all clients have ended", PATIENCE)
    finally:
        engines.MOST_WRITERS = before


def _clients_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("sortshuffle-client")]


def frames(error: BaseException | None) -> list[str]:
    """The functions whose variables are kept by an error, and by those that it came from."""
    found = []
    while error is not None:
        found += [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
        error = error.__cause__ or error.__context__
    return found
