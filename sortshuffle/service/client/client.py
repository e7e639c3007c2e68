"""`ServiceClient`: makes requests to the shuffle service of one host; `ServiceClients`: those of all hosts.

    ServiceClients          one per task: a client for each service, and the memory for data ahead
      ServiceClient         one per service: the requests that can be made
        ServiceLink         its channels, and the thread that receives for them

Rules
* Closing never waits for the service.
* Connections are not inherited: a forked process starts with new clients.
* Large indexes come one at a time: the request that has the turn waits for its index and for nothing else,
  and for one time-out at most. Then it continues without the turn, beside the next one.

Lock order: the turn of large indexes, a link's lock, that of `FloatingCredits`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

import pyarrow as pa

from sortshuffle.errors import Place, StateError
from sortshuffle.service.client.client_channel import ClientChannel, RequestSubject
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.credits import FloatingCredits
from sortshuffle.service.client.extent_streams import WholeStream
from sortshuffle.service.client.index_channel import IndexChannel
from sortshuffle.service.client.questions import damage_question, find_question, remove_question
from sortshuffle.service.client.service_link import JOIN_TIMEOUT, ServiceLink
from sortshuffle.service.wire.address import split_address
from sortshuffle.service.wire.protocol import FoundOutput, MapOutputAddress, Verdict
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.files.ranges import SubpartitionRange

Opened: TypeAlias = Callable[[ClientChannel], AbstractContextManager[None]]
"""Keeps a channel open while a block runs."""

TURN_TICK = 1.0  # seconds between checks whether a large index that waits for its turn is still wanted


class ServiceClients:
    """The clients of one task, each created on first use. The caller closes them. ``turn``: the turn of large
    indexes, if several instances in this process share it."""

    def __init__(self, settings: ClientSettings, turn: threading.Lock | None = None) -> None:
        self.settings = settings
        self._shared_turn = turn
        self._begin()

    def client(self, address: str) -> ServiceClient:
        """Return the client for the service at ``host:port``. Does not connect. Raises `UsageError` for a
        malformed address, `StateError` after `close`."""
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            if self._closed:
                raise StateError("the task's connections to shuffle services are closed")
            client = self._clients.get(address)
            if client is None:
                split_address(address)
                client = self._clients[address] = ServiceClient(
                    address, self.settings, self.floating, turn=self._turn
                )
            return client

    def close(self) -> None:
        """Abort reads that are under way, and close all connections. Waits for the threads to end, but no
        longer than `JOIN_TIMEOUT` in all, nor longer than the settings' ``until``. May be called again."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            clients = list(self._clients.values())
        for client in clients:
            client.link.close()
        until = time.monotonic() + JOIN_TIMEOUT
        if self.settings.until is not None:
            until = min(until, self.settings.until)
        for client in clients:
            client.link.join(max(0.0, until - time.monotonic()))

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._clients: dict[str, ServiceClient] = {}
        self._closed = False
        self._turn = self._shared_turn or threading.Lock()
        self.floating = FloatingCredits(self.settings.floating_bytes)


class ServiceClient:
    """Makes requests to the service at ``address``. ``turn``: of large indexes, which clients share."""

    def __init__(
        self,
        address: str,
        settings: ClientSettings,
        floating: FloatingCredits,
        clock: Callable[[], float] = time.monotonic,
        turn: threading.Lock | None = None,
    ) -> None:
        self.address = address
        self.link = ServiceLink(address, settings, floating, clock)
        self._timeout = settings.timeout
        self._clock = clock
        self._turn = turn or threading.Lock()

    def index(self, output: MapOutputAddress, host: str, regions: int | None = None) -> memoryview:
        """Return the index file of a map output, unverified. ``regions``: how many it has, None if unknown.
        A large index waits until no other large one is coming, or the other has had its time-out. Raises
        `DataLossError` if the index is gone, `ServiceUnavailableError`, `AuthenticationError`,
        `ProtocolError` if it is larger than such an index can be."""
        channel = IndexChannel(_asked("the index", output, host), output, regions)
        with self.link.opened(channel):
            self.link.wait(channel, lambda: channel.is_complete or channel.needs_turn)
            if not channel.is_complete:
                with self._in_turn(channel):
                    until = self._clock() + self._timeout
                    self.link.change(channel.take_turn)
                    self.link.wait(channel, lambda: channel.is_complete or self._clock() >= until, until)
                self.link.wait(channel, lambda: channel.is_complete)
        return channel.data

    def extents(
        self, output: MapOutputAddress, host: str, subpartitions: SubpartitionRange, extent: Extent
    ) -> pa.Buffer:
        """Return the bytes of these subpartitions of a map output that has one region, unverified.
        ``extent``: stands for the extents of them all. Raises as `index` does."""
        stream = WholeStream(
            _asked(f"subpartitions {subpartitions}", output, host), output, (extent,), subpartitions
        )
        with self.link.opened(stream):
            self.link.wait(stream, lambda: stream.has_next)
            return stream.take()

    def find(self, wanted: MapOutputAddress) -> FoundOutput | None:
        """Find a finished map output of an ended executor; None if the service has none. ``wanted``: attempt
        0, and for its id the driver's name. Raises `ServiceUnavailableError`, `AuthenticationError`."""
        name = f"exchange {wanted.exchange}, map {wanted.map_index} of {wanted.application}"
        what = f"a finished output of {name}"
        question = find_question(RequestSubject(what, Place(what), self.address), wanted)
        with self.link.opened(question):
            self.link.wait(question, lambda: question.is_complete)
        return question.result if isinstance(question.result, FoundOutput) else None

    def report_damage(
        self,
        output: MapOutputAddress,
        host: str,
        subpartition: int,
        region: int,
        opened: Opened | None = None,
    ) -> Verdict:
        """Have the service check bytes that failed their checksum here, and return its verdict. If they are
        damaged or gone, the service makes the producer run again. ``opened``: in place of the link's, for a
        caller that another thread may stop. Raises as `find` does, `StateError` if it was stopped."""
        what = f"the verdict on region {region}, subpartition {subpartition} of {output} on host {host}"
        # with the place that the bytes came from, so that a service that refuses the question names it
        asked = RequestSubject(what, Place(output.file_in(host).data_path), host)
        question = damage_question(asked, output, subpartition, region)
        with (opened or self.link.opened)(question):
            self.link.wait(question, lambda: question.is_complete)
        assert isinstance(question.result, Verdict)
        return question.result

    def remove(self, application: str, shuffle: int, token: bytes) -> bool:
        """Have the service's engine delete the map outputs of a shuffle. Returns whether the engine belongs
        to that application. Raises as `find` does."""
        what = f"the removal of shuffle {shuffle} of {application}"
        question = remove_question(
            RequestSubject(what, Place(what), self.address), application, shuffle, token
        )
        with self.link.opened(question):
            self.link.wait(question, lambda: question.is_complete)
        return bool(question.result)

    @contextmanager
    def _in_turn(self, channel: IndexChannel) -> Iterator[None]:
        """Hold the turn of large indexes while the block runs; or run the block without it once nothing more
        will come for the channel, because it is complete, has failed, or was closed."""
        has_turn = False
        while channel.is_wanted and not has_turn:
            has_turn = self._turn.acquire(timeout=TURN_TICK)
        try:
            yield
        finally:
            if has_turn:
                self._turn.release()


def _asked(what: str, output: MapOutputAddress, host: str) -> RequestSubject:
    return RequestSubject(f"{what} of {output} on host {host}", Place(str(output)), host)
