"""Conversations of releases that were kept: this release's service answers the client of then, and this
release's client reads from the service of then. `tests/kept_conversation.py` recorded them.

The peers of then are made of the recorded bytes and of what docs/protocol.md says, and of nothing of the
package.
"""

from __future__ import annotations

import hmac
import json
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from consumers import PATIENCE
from engine import ENVIRONMENT
from serving import SMALL, make_home, serving

from sortshuffle.engine import MapOutput, open_input
from sortshuffle.service.wire.protocol import proof

HERE = Path(__file__).parent
RELEASES = sorted(path.parent.name for path in HERE.glob("*/conversation.txt"))
SECRET = b"the secret of the kept greeting"
SEGMENT = 1024
HELLO_BYTES = 48
HEAD = struct.Struct("<IBBBBIIQ")  # length, kind, data type, flags, reserved, channel, credit, sequence
MAGIC = b"\x89SSW\r\n\x1a\n"
REQUEST, RESPONSE, ERROR, CLOSE = 1, 3, 4, 6
FOUND, VERDICT, REMOVED = 8, 10, 12
DATA, END = 0, 2
EXTENTS, INDEX = 0, 1
MISSING = 1
SERVED = "pickle-none"
REGIONS = 6
NAME = "exchange-3-map-17-attempt-204"
FILE_ID = bytes([2, 0, 0]).ljust(16, b"\xaa")
RECORDS = [
    *(("a", 1), {"b": [2, None]}, "word " * 500),
    *(("x", 1), ("y", 2), ("x", 3), ("x", [1, 2]), ("y", [3])),
    "to all",
]
"""Of subpartition 0."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    data_type: int
    channel: int
    credit: int
    sequence: int
    body: bytes

    @staticmethod
    def of(message: bytes) -> Frame:
        length, kind, data_type, flags, reserved, channel, credit, sequence = HEAD.unpack(
            message[: HEAD.size]
        )
        assert (len(message), flags, reserved) == (HEAD.size + length, 0, 0)
        return Frame(kind, data_type, channel, credit, sequence, message[HEAD.size :])

    def packed(self) -> bytes:
        head = (len(self.body), self.kind, self.data_type, 0, 0, self.channel, self.credit, self.sequence)
        return HEAD.pack(*head) + self.body


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversation: the hellos, and the frames after them."""

    client_hello: bytes
    server_hello: bytes
    said: list[Frame]
    answered: list[Frame]

    @staticmethod
    def of(directory: Path) -> Kept:
        messages = messages_of(directory / "conversation.txt")
        said, answered = ([text for who, text in messages if who == side] for side in "><")
        return Kept(said[0], answered[0], [*map(Frame.of, said[1:])], [*map(Frame.of, answered[1:])])

    def data(self, channel: int) -> bytes:
        return data_of(self.answered, channel)


def messages_of(path: Path) -> list[tuple[str, bytes]]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(who, bytes.fromhex(digits)) for who, digits in lines]


def data_of(frames: list[Frame], channel: int) -> bytes:
    own = [frame for frame in frames if frame.kind == RESPONSE and frame.channel == channel]
    assert [frame.sequence for frame in own] == list(range(len(own)))
    assert [frame.data_type for frame in own] == [DATA] * (len(own) - 1) + [END]
    return b"".join(frame.body for frame in own)


def exactly(peer: socket.socket, size: int) -> bytes:
    """So many bytes; none if the peer closes the connection first."""
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def next_frame(peer: socket.socket) -> Frame | None:
    head = exactly(peer, HEAD.size)
    return Frame.of(head + exactly(peer, HEAD.unpack(head)[0])) if head else None


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return request.param


def test_todays_service_answers_the_client_of_then(release: str, tmp_path: Path) -> None:
    kept = Kept.of(HERE / release)
    shutil.copytree(HERE / release / "files" / SERVED, make_home(tmp_path), dirs_exist_ok=True)
    *questions, goodbye = kept.said
    assert goodbye.kind == CLOSE
    with (
        serving(tmp_path, replace(SMALL, segment_bytes=SEGMENT)) as service,
        socket.create_connection(service.address.rsplit(":", 1), PATIENCE) as connected,
    ):
        connected.sendall(kept.client_hello)
        hello = exactly(connected, HELLO_BYTES)
        connected.sendall(b"".join(question.packed() for question in questions))
        answers = answers_from(connected, wanted=set(range(1, 9)) - {4})  # the client has cancelled 4
        connected.sendall(goodbye.packed())
        assert exactly(connected, 1) == b""

    assert hello[:16] == kept.server_hello[:16] == MAGIC + struct.pack("<HHI", 1, 0, SEGMENT)
    for channel in (1, 2, 3):
        assert data_of(answers, channel) == kept.data(channel)
    by_channel = {frame.channel: frame for frame in answers if frame.kind != RESPONSE}
    assert (by_channel[5].kind, by_channel[5].data_type) == (ERROR, MISSING)
    then = next(frame for frame in kept.answered if frame.kind == ERROR)
    assert json.loads(by_channel[5].body).keys() == json.loads(then.body).keys()
    assert by_channel[6] == Frame(VERDICT, 0, 6, 0, 0, b"")  # sound
    assert by_channel[7] == Frame(FOUND, 0, 7, 0, 0, b"{}")
    assert by_channel[8] == Frame(REMOVED, 0, 8, 0, 0, b"")  # unknown
    assert [frame for frame in kept.answered if frame.channel > 5] == [by_channel[n] for n in (6, 7, 8)]


def answers_from(service: socket.socket, wanted: set[int]) -> list[Frame]:
    """Until these channels and questions have their last answer."""
    answers = []
    while wanted:
        frame = next_frame(service)
        assert frame is not None, f"no answer to {wanted}"
        answers.append(frame)
        if frame.kind != RESPONSE or frame.data_type == END:
            wanted = wanted - {frame.channel}
    return answers


def test_what_was_sent_then_is_what_the_files_hold(release: str) -> None:
    kept, directory = Kept.of(HERE / release), HERE / release / "files" / SERVED
    assert kept.data(1) == (directory / f"{NAME}.index").read_bytes()
    data = (directory / f"{NAME}.data").read_bytes()
    assert len(kept.data(2)) > 2 * SEGMENT  # more than one credit
    assert all(frame.body in data for frame in kept.answered if frame.channel in (2, 3))


@dataclass(slots=True)
class ServiceOfThen:
    """One connection to a service that answers what it was asked then, as far as there is credit."""

    kept: Kept
    connected: socket.socket
    hello: bytes = b""
    requests: list[Frame] = field(default_factory=list)
    _credit: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _answers: dict[int, list[Frame]] = field(default_factory=dict)

    def serve(self) -> None:
        """Until the client is gone."""
        self.hello = exactly(self.connected, HELLO_BYTES)
        self.connected.sendall(self.kept.server_hello)
        while (frame := next_frame(self.connected)) is not None and frame.kind != CLOSE:
            self._credit[frame.channel] += frame.credit
            if frame.kind == REQUEST:
                self.requests.append(frame)
                self._answers[frame.channel] = self._answers_to(frame)
            self._send(frame.channel)

    def _answers_to(self, request: Frame) -> list[Frame]:
        """Then channel 1 was for the index, and 2 for subpartition 0. Now they may have other numbers."""
        then = 1 if request.data_type == INDEX else 2
        frames = [frame for frame in self.kept.answered if frame.channel == then]
        return [replace(frame, channel=request.channel) for frame in frames]

    def _send(self, channel: int) -> None:
        """Each response is worth one credit at most, and the end none."""
        waiting = self._answers.get(channel, [])
        while waiting and (self._credit[channel] > 0 or not waiting[0].body):
            self._credit[channel] -= bool(waiting[0].body)
            self.connected.sendall(waiting.pop(0).packed())


@contextmanager
def service_of_then(kept: Kept) -> Iterator[tuple[str, list[ServiceOfThen]]]:
    """Its address, and its connections."""
    connections: list[ServiceOfThen] = []

    def accept() -> None:
        connected, _ = listening.accept()
        connected.settimeout(PATIENCE)
        with connected:
            connections.append(ServiceOfThen(kept, connected))
            connections[0].serve()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE)
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}", connections
        finally:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_todays_client_reads_from_the_service_of_then(release: str) -> None:
    output = MapOutput("app-1", 3, 17, 204, FILE_ID, "elsewhere", f"/not/here/{NAME}", (1, 1, 1))
    with (
        service_of_then(Kept.of(HERE / release)) as (address, connections),
        open_input([output], 0, services={"elsewhere": address}) as stream,
    ):
        assert list(stream.records()) == RECORDS
    (service,) = connections
    assert service.hello[:8] == MAGIC
    assert [(frame.data_type, frame.sequence) for frame in service.requests] == [(INDEX, 0), (EXTENTS, 0)]
    address_of_file = FILE_ID + struct.pack("<QIIH", 204, 3, 17, 5) + b"app-1"
    ranges = [(0, 0, 0, 0), (0, 0, 0, REGIONS)]  # what was recorded is for subpartition 0, and all regions
    assert [frame.body for frame in service.requests] == [
        address_of_file + struct.pack("<IIII", *asked) for asked in ranges
    ]


def test_the_proofs_are_those_of_then(release: str) -> None:
    messages = messages_of(HERE / release / "greeting.txt")
    assert [who for who, _ in messages] == [">", "<", ">", "<"]
    client_hello, server_hello, client_proof, server_proof = (message for _, message in messages)
    assert server_hello[:16] == MAGIC + struct.pack("<HHI", 1, 1, SEGMENT)
    for role, proved in (("client", client_proof), ("server", server_proof)):
        assert proof(SECRET, role, client_hello, server_hello) == proved
        text = f"sortshuffle {role}".encode() + client_hello + server_hello
        assert hmac.digest(SECRET, text, "sha256") == proved


def test_the_script_still_records(tmp_path: Path) -> None:
    """The same, but for the places where the service has cut the data."""
    for name in ("one", "other"):
        command = [sys.executable, HERE.parent / "kept_conversation.py", tmp_path / name]
        subprocess.run(command, env=ENVIRONMENT, check=True)
    one, other = Kept.of(tmp_path / "one"), Kept.of(tmp_path / "other")
    assert (one.client_hello, one.server_hello) == (other.client_hello, other.server_hello)
    assert without_data(one.answered) == without_data(other.answered)
    for channel in (1, 2, 3):
        assert one.data(channel) == other.data(channel)
    greetings = [(tmp_path / name / "greeting.txt").read_text() for name in ("one", "other")]
    assert greetings[0] == greetings[1]


def without_data(frames: list[Frame]) -> list[Frame]:
    return [frame for frame in frames if frame.kind != RESPONSE]
