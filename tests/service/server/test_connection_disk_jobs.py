"""What a connection has others do is done, whatever becomes of the connection: with a loop that runs when the
test says, and a transport that breaks when it says."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from serving import OUTPUT
from views import Part, Source

from sortshuffle.errors import CorruptDataError, Place
from sortshuffle.service.server.connection import Connection, ServerContext
from sortshuffle.service.server.disk_jobs import DiskJobs
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.wire.protocol import (
    HELLO_BYTES,
    ErrorResponse,
    Fault,
    FrameParser,
    Hello,
    Kind,
    PartitionRequest,
    Sender,
)


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
        try:
            done.set_result(work())
        except OSError as error:
            done.set_exception(error)
        self.waiting.append((back, done))

    def run(self) -> None:
        while self.waiting:
            back, done = self.waiting.pop(0)
            back(done)


class BreakingTransport:
    needs_write = has_pending = False

    def __init__(self, received: bytes) -> None:
        self.received = [received]
        self.sent = b""
        self.is_broken = False

    def receive(self) -> bytes | None:
        return self.received.pop() if self.received else None

    def send(self, pieces: list[memoryview]) -> int:
        if self.is_broken:
            raise OSError(errno.EPIPE, "the client is gone")
        self.sent += b"".join(pieces)
        return sum(map(len, pieces))

    def close(self) -> None:
        pass


def begun(transport: Any, loop: Any, disk_jobs: DiskJobs) -> tuple[Connection, ServerContext]:
    """A connection that has received what the transport has, and whose disk jobs are done."""
    context = ServerContext(loop=loop, limits=Limits(), secret=None, segment_bytes=100, disk_jobs=disk_jobs)
    connection = Connection(transport, "peer", context)
    context.connections[connection] = None
    connection.on_ready(1)
    loop.run()
    return connection, context


def test_a_loss_that_is_found_as_the_client_goes_is_told_of() -> None:
    told: list[object] = []
    views = {1: Source([Part([[b"x"]], 1)]), 2: Source(cause=CorruptDataError(Place("file"), "cut short"))}
    catalog: Any = type("", (), {"create_view": lambda _, request, __: views[request.channel]})()
    losses: Any = type("", (), {"report": lambda _, output: told.append(output)})()
    loop: Any = StepLoop()
    transport: Any = BreakingTransport(
        Hello(bytes(32)).pack() + b"".join(PartitionRequest(each, 5, OUTPUT).pack() for each in views)
    )
    connection, context = begun(transport, loop, DiskJobs(catalog, losses, None))
    transport.is_broken = True
    connection.turn()
    assert connection not in context.connections
    loop.run()
    assert told == [OUTPUT]


@pytest.mark.parametrize(
    ("error", "fault"),
    [(None, Fault.DAMAGED), (OSError(errno.EMFILE, "too many open files"), Fault.INTERNAL)],
)
def test_a_client_hears_of_a_loss_when_spark_does_and_else_asks_again(
    error: OSError | None, fault: Fault
) -> None:
    """Its answer to an internal fault is another request."""

    def report(_: object, output: object) -> None:
        if error is not None:
            raise error

    view = Source(cause=CorruptDataError(Place("file"), "cut short"))
    catalog: Any = type("", (), {"create_view": lambda *_: view})()
    losses: Any = type("", (), {"report": report})()
    loop: Any = StepLoop()
    transport: Any = BreakingTransport(Hello(bytes(32)).pack() + PartitionRequest(1, 5, OUTPUT).pack())
    connection, context = begun(transport, loop, DiskJobs(catalog, losses, None))
    while connection in context.ready:
        del context.ready[connection]
        connection.turn()
        loop.run()
    frames = FrameParser(Sender.SERVER).feed(transport.sent[HELLO_BYTES:])
    errors = [ErrorResponse.unpack(*each) for each in frames if each[0].kind is Kind.ERROR_RESPONSE]
    assert [(each.channel, each.fault) for each in errors] == [(1, fault)]
