"""A peer that speaks the shuffle service's protocol on a real socket, faults included, as a script says.

A script is one function per connection, the last one for all further ones, which gets a `Peer` when that has
greeted. `serving` is the script of an honest service, of files; others begin as it does and then go wrong.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from consumers import PATIENCE

from sortshuffle.errors import AuthenticationError, Place, ProtocolError
from sortshuffle.service.wire.handshake import ServerGreeting
from sortshuffle.service.wire.protocol import (
    DamageReport,
    ErrorResponse,
    Fault,
    FrameParser,
    Header,
    Kind,
    MapOutputAddress,
    PartitionRequest,
    Stream,
    Verdict,
    pack_buffer_header,
    pack_damage_verdict,
    pack_end_of_partition,
    pack_find_response,
)
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import extents_of_range
from sortshuffle.storage.files.reader import read_index

SEGMENT = 4096

Script = Callable[["Peer"], None]


class Cut(Exception):  # noqa: N818 - a step of a script
    """The script cuts the connection here."""


@dataclass
class Peer:
    """One connection of a client. ``most_sent``: bytes after which the connection is cut, greeting not
    counted."""

    socket: socket.socket
    segment_bytes: int
    rest: bytes = b""
    most_sent: int | None = None
    sent: int = 0
    received: list[Header] = field(default_factory=list)
    _parser: FrameParser = field(default_factory=FrameParser)
    _frames: list[tuple[Header, bytes]] = field(default_factory=list)

    def next(self) -> tuple[Header, bytes]:
        """The next frame. Raises `Cut` if the client is gone."""
        while not self._frames:
            data, self.rest = self.rest or self._receive(), b""
            self._frames += self._parser.feed(data)
        self.received.append(self._frames[0][0])
        return self._frames.pop(0)

    def request(self) -> PartitionRequest:
        """The next one, whatever is said of earlier ones before it. Raises `Cut` at a goodbye."""
        header, body = self.next()
        while header.kind in (Kind.ADD_CREDIT, Kind.CANCEL):
            header, body = self.next()
        if header.kind is Kind.CLOSE:
            raise Cut
        assert header.kind is Kind.PARTITION_REQUEST, header
        return PartitionRequest.unpack(header, body)

    def send(self, *pieces: bytes | memoryview) -> None:
        data = b"".join(map(bytes, pieces))
        if self.most_sent is not None and self.sent + len(data) > self.most_sent:
            self.socket.sendall(data[: self.most_sent - self.sent])
            raise Cut
        try:
            self.socket.sendall(data)
        except OSError:
            raise Cut from None
        self.sent += len(data)

    def send_data(self, channel: int, sequence: int, data: bytes, backlog: int = 0) -> None:
        self.send(pack_buffer_header(channel, sequence, backlog, len(data), False), data)

    def send_end(self, channel: int, sequence: int) -> None:
        self.send(pack_end_of_partition(channel, sequence))

    def fail(self, channel: int, fault: Fault, what: str = "as scripted", place: Place | None = None) -> None:
        self.send(ErrorResponse(channel, fault, what, place).pack())

    def until_gone(self) -> list[Header]:
        """Take what the client sends until it is gone."""
        while True:
            try:
                self.next()
            except Cut:
                return self.received

    def _receive(self) -> bytes:
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            raise Cut from None
        if not data:
            raise Cut
        return data


class ScriptedServer:
    """``peers``: the connections that greeted, in their order. The block leaves when all scripts have ended;
    what one raises is raised."""

    def __init__(self, *scripts: Script, secret: bytes | None = None, segment_bytes: int = SEGMENT) -> None:
        self._scripts = scripts
        self._secret = secret
        self._segment_bytes = segment_bytes
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._closed = False
        self.connections = 0
        self.peers: list[Peer] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> ScriptedServer:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connected in self._open:
            shut(connected)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a script does not end"
        if self._failures and error is None:
            raise self._failures[0]

    def cut_all(self) -> None:
        """Cut all connections that there are."""
        for connected in self._open:
            shut(connected)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connected)
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            self._start(lambda connected=connected, script=script: self._run(connected, script))

    def _run(self, connected: socket.socket, script: Script) -> None:
        try:
            peer = self._greeted(connected)
            self.peers.append(peer)
            script(peer)
        except (Cut, AuthenticationError, ProtocolError, ConnectionError):
            pass
        except BaseException as failure:
            self._failures.append(failure)
        finally:
            shut(connected)
            connected.close()

    def _greeted(self, connected: socket.socket) -> Peer:
        greeting = ServerGreeting(self._secret, self._segment_bytes)
        while not greeting.is_done:
            data = connected.recv(4096)
            if not data:
                raise Cut
            connected.sendall(greeting.feed(data))
        return Peer(connected, self._segment_bytes, greeting.rest)


def shut(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def cut(peer: Peer) -> None:
    """A script: gone at once."""
    raise Cut


def silent(peer: Peer) -> None:
    """A script: takes everything, says nothing."""
    peer.until_gone()


def after(most_sent: int, script: Script) -> Script:
    """That script, cut when it has sent so many bytes."""

    def run(peer: Peer) -> None:
        peer.most_sent = most_sent
        script(peer)
        peer.until_gone()

    return run


@dataclass
class _Sending:
    """A channel of an honest service: its extents cut into pieces, which wait for credit."""

    request: PartitionRequest
    pieces: list[bytes]
    credit: int
    sequence: int = 0

    def next_piece(self, segment_bytes: int) -> bytes:
        """As far as the credit goes."""
        most = self.credit * segment_bytes
        piece, left = self.pieces[0][:most], self.pieces[0][most:]
        self.pieces[:1] = [left] if left else []
        return piece


@dataclass
class HonestService:
    """Serves these files as `docs/protocol.md` says. ``piece``: bytes that a response has at most.

    ``refuses``: requests that it says it cannot serve now, with ``fault``. ``verdict``: what it answers to
    reports of damage, None for nothing; ``change``: what becomes of bytes on their way. ``most_credit``: that
    any channel ever had.
    """

    files: Sequence[PartitionedFile]
    piece: int = SEGMENT
    refuses: Callable[[PartitionRequest], bool] = lambda request: False
    fault: Fault = Fault.INTERNAL
    verdict: Verdict | None = Verdict.SOUND
    change: Callable[[PartitionRequest, bytes], bytes] = lambda request, data: data
    reports: list[DamageReport] = field(default_factory=list)
    requests: list[PartitionRequest] = field(default_factory=list)
    most_credit: int = 0

    def __call__(self, peer: Peer) -> None:
        sending: dict[int, _Sending] = {}
        while True:
            header, body = peer.next()
            match header.kind:
                case Kind.PARTITION_REQUEST:
                    request = PartitionRequest.unpack(header, body)
                    self.requests.append(request)
                    if self.refuses(request):
                        peer.fail(request.channel, self.fault)
                        continue
                    sending[request.channel] = _Sending(request, self._pieces(request), request.credit)
                case Kind.ADD_CREDIT:
                    if header.channel in sending:
                        sending[header.channel].credit += header.credit
                case Kind.CANCEL:
                    sending.pop(header.channel, None)
                case Kind.DAMAGE_REPORT:
                    self.reports.append(DamageReport.unpack(header, body))
                    if self.verdict is not None:
                        peer.send(pack_damage_verdict(header.channel, self.verdict))
                case Kind.FIND_REQUEST:
                    peer.send(pack_find_response(header.channel, None))
                case _:
                    return
            self._send(peer, sending)

    def _pieces(self, request: PartitionRequest) -> list[bytes]:
        file = next(file for file in self.files if _is_of(request.output, file))
        if request.stream is Stream.INDEX:
            return _cut([Path(file.index_path).read_bytes()], request.skip, self.piece)
        index, data = read_index(file), Path(file.data_path).read_bytes()
        wanted = request.regions.of(index.regions)
        extents = [
            self.change(request, data[extent.offset : extent.offset + extent.bytes])
            for extent in extents_of_range(index, request.subpartitions)
            if extent.region in wanted
        ]
        return _cut(extents, request.skip, self.piece)

    def _send(self, peer: Peer, sending: dict[int, _Sending]) -> None:
        """In turns, a piece of each."""
        while sending:
            sent = False
            for number, channel in list(sending.items()):
                self.most_credit = max(self.most_credit, channel.credit)
                if not channel.pieces:
                    peer.send_end(number, channel.sequence)
                    del sending[number]
                    continue
                if not channel.credit:
                    continue
                piece = channel.next_piece(peer.segment_bytes)
                channel.credit -= -(-len(piece) // peer.segment_bytes)
                backlog = -(-sum(map(len, channel.pieces)) // peer.segment_bytes)
                peer.send_data(number, channel.sequence, piece, backlog)
                channel.sequence += 1
                sent = True
            if not sent:
                return


def _is_of(output: MapOutputAddress, file: PartitionedFile) -> bool:
    return f"exchange-{output.exchange}-map-{output.map_index}-attempt-{output.attempt}" in file.base


def _cut(extents: Sequence[bytes], skip: int, piece: int) -> list[bytes]:
    pieces: list[bytes] = []
    for extent in extents:
        left = extent[min(skip, len(extent)) :]
        skip -= len(extent) - len(left)
        pieces += [left[start : start + piece] for start in range(0, len(left), piece)]
    return pieces


@contextmanager
def refused_address() -> Iterator[str]:
    """An address at which nobody listens, as long as the block runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
