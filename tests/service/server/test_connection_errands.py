"""What a connection has others do is done, whatever becomes of the connection: with a loop that runs when the
test says, and a transport that breaks when it says."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from serving import OUTPUT
from views import Part, Source

from sortshuffle.errors import CorruptDataError, Place
from sortshuffle.service.server.connection import Connection, Surroundings
from sortshuffle.service.server.errands import Errands
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.wire.protocol import Hello, PartitionRequest


class StepLoop:
    """Does what is to be done in the background when the test says."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[Any], None], Future[Any]]] = []

    def watch(self, *_: object) -> None:
        pass

    def in_background(
        self, work: Callable[[], Any], back: Callable[[Any], None], takes_long: bool = False
    ) -> None:
        done: Future[Any] = Future()
        done.set_result(work())
        self.waiting.append((back, done))

    def run(self) -> None:
        while self.waiting:
            back, done = self.waiting.pop(0)
            back(done)


class BreakingTransport:
    needs_write = has_pending = False

    def __init__(self, received: bytes) -> None:
        self.received = [received]
        self.is_broken = False

    def receive(self) -> bytes | None:
        return self.received.pop() if self.received else None

    def send(self, pieces: list[memoryview]) -> int:
        if self.is_broken:
            raise OSError(errno.EPIPE, "the client is gone")
        return sum(map(len, pieces))

    def close(self) -> None:
        pass


def test_a_loss_that_is_found_as_the_client_goes_is_told_of() -> None:
    told: list[object] = []
    views = {1: Source([Part([[b"x"]], 1)]), 2: Source(cause=CorruptDataError(Place("file"), "cut short"))}
    catalog: Any = type("", (), {"create_view": lambda _, request, __: views[request.channel]})()
    losses: Any = type("", (), {"report": lambda _, output: told.append(output)})()
    loop: Any = StepLoop()
    transport: Any = BreakingTransport(
        Hello(bytes(32)).pack() + b"".join(PartitionRequest(each, 5, OUTPUT).pack() for each in views)
    )
    surroundings = Surroundings(
        loop=loop, limits=Limits(), secret=None, segment_bytes=100, errands=Errands(catalog, losses, None)
    )
    connection = Connection(transport, "peer", surroundings)
    surroundings.connections[connection] = None
    connection.on_ready(1)
    loop.run()
    transport.is_broken = True
    connection.turn()
    assert connection not in surroundings.connections
    loop.run()
    assert told == [OUTPUT]
