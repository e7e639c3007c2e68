"""`ServiceClients`: how one task reads through the shuffle services of other hosts.

    ServiceClients          one per task: a client for each service, and the room for data ahead
      ServiceClient         one per service: its channels, and the thread that receives for them
        ClientConnection    at most one at a time
        ClientChannel ..    any number; they outlive the connection

    idle --open a channel--> connecting --greeted--> receiving
      ^                        ^   |                    |
      |                        +---+-----cut------------+        any --close--> closed
      +--(no channel is open)------+

Rules
* The thread runs while there are channels or a connection; it alone connects and receives. What it receives
  goes straight into memory of the channels.
* A connection that breaks, is silent where something is owed, or on which the service breaks the protocol, is
  made again (`Backoff`), and all open channels go on where they were, to the byte. After the time-out without
  progress all of them fail, and with them whoever waits.
* A secret or certificate that is not accepted is an error at once.
* Closing never waits for the service.
* Connections are not inherited: in a forked process the clients begin anew.

Lock order: the turn of large indexes, a client's lock, that of `FloatingCredits`. Nothing is sent, received
or waited for under the last two, and loans are given back under none. Who has the turn waits for its index,
and for nothing else, and for a time-out at most: then it goes on without the turn, beside the next one.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from sortshuffle.errors import (
    AuthenticationError,
    Place,
    ProtocolError,
    ServiceUnavailableError,
    StateError,
)
from sortshuffle.options import MIB
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.client_channel import (
    MOST_PROTOCOL_ERRORS,
    Asked,
    ClientChannel,
    IndexChannel,
    damage_question,
    find_question,
    remove_question,
)
from sortshuffle.service.client.client_connection import ClientConnection, ClientTls, Dial
from sortshuffle.service.client.credits import FloatingCredits
from sortshuffle.service.client.extent_streams import PartStream, WholeStream
from sortshuffle.service.wire.address import split_address
from sortshuffle.service.wire.protocol import (
    NO_CHANNEL,
    Data,
    ErrorResponse,
    FoundOutput,
    Header,
    Kind,
    MapOutputAddress,
    Verdict,
    pack_add_credit,
    pack_cancel,
    pack_close,
)
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.files.ranges import SubpartitionRange

FLOATING_BYTES = 8 * MIB  # at most, and by default: of the 64 MiB that a task reads ahead
FLOATING_SHARE = 8  # of what is read ahead: so much of it, where that is less
SILENCES = 2  # a silent service is connected to anew once before its time is over
SCRATCH_BYTES = 64 << 10  # what comes for channels that nobody wants any more is read into that
TURN_TICK = 1.0  # seconds between two looks at whether a large index that waits for its turn is still wanted
JOIN_TIMEOUT = 10.0  # seconds; a thread that is told to end does so at once, but for a connection being made

_log = logging.getLogger(__name__)


def floating_bytes_of(read_ahead: int) -> int:
    """Bytes out of ``read_ahead`` for data that come before they are asked for."""
    return min(FLOATING_BYTES, read_ahead // FLOATING_SHARE)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """``secret``: None where services ask for none. ``timeout``: seconds without progress until it is given
    up. ``floating_bytes``: room for data ahead of their consumers, of all channels together. ``until``: when
    all that is asked is given up, by `time.monotonic`; None: never."""

    secret: bytes | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    timeout: float = 60.0
    floating_bytes: int = FLOATING_BYTES
    until: float | None = None


class _BreachError(ProtocolError):
    """Of the protocol, for which one channel was blamed."""


class ServiceClients:
    """The clients of one task, made when they are first needed. The caller closes them. ``turn``: of large
    indexes, where others in this process ask for such, too."""

    def __init__(self, settings: ClientSettings, turn: threading.Lock | None = None) -> None:
        self.settings = settings
        self._shared_turn = turn
        self._begin()

    def client(self, address: str) -> ServiceClient:
        """Of the service at ``host:port``. Nothing is connected yet. Raises `UsageError` for what is no
        address, `StateError` after `close`."""
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
        """Give up what is still being read, and close all connections. Waits for the threads to end, but no
        longer than `JOIN_TIMEOUT` together, nor longer than ``until``. May be called again."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            clients = list(self._clients.values())
        for client in clients:
            client.close()
        until = time.monotonic() + JOIN_TIMEOUT
        if self.settings.until is not None:
            until = min(until, self.settings.until)
        for client in clients:
            client.join(max(0.0, until - time.monotonic()))

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._clients: dict[str, ServiceClient] = {}
        self._closed = False
        self._turn = self._shared_turn or threading.Lock()
        self.floating = FloatingCredits(self.settings.floating_bytes)


class ServiceClient:
    """All that a task asks of the service at ``address``. ``turn``: of large indexes, also of others."""

    def __init__(
        self,
        address: str,
        settings: ClientSettings,
        floating: FloatingCredits,
        clock: Callable[[], float] = time.monotonic,
        turn: threading.Lock | None = None,
    ) -> None:
        self.address = address
        self.floating = floating
        self._settings = settings
        self._clock = clock
        self._turn = turn or threading.Lock()
        self._lock = threading.Lock()
        self._woken = threading.Condition(self._lock)  # the thread, where it waits before it tries again
        self._dial = Dial(address, settings.secret, settings.tls, settings.timeout / SILENCES)
        self._backoff = Backoff(settings.timeout, clock)
        self._closed = False
        self._thread: threading.Thread | None = None  # the last one that was started
        self._is_running = False
        self._channels: dict[ClientChannel, None] = {}  # open ones, in the order in which they came
        self._connection: ClientConnection | None = None
        self._is_greeted = False
        self._numbers = itertools.count()
        self._requested: dict[int, ClientChannel] = {}
        self._abandoned: dict[int, int] = {}  # numbers that may still be answered, and with how much credit
        self._protocol_errors = 0
        self._rejections = 0
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    # --- what may be asked ---------------------------------------------------------------------------------

    def index(self, output: MapOutputAddress, host: str, regions: int | None = None) -> memoryview:
        """The index file of a map output, not verified. ``regions``: how many it has, None if that is not
        known. A large one waits until no other large one comes, or the other has had its time-out. Raises
        `DataLossError` if it is gone, `ServiceUnavailableError`, `AuthenticationError`, `ProtocolError` for
        one that is larger than such an index can be."""
        channel = IndexChannel(_asked("the index", output, host), output, regions)
        with self.opened(channel):
            self.wait(channel, lambda: channel.is_complete or channel.needs_turn)
            if not channel.is_complete:
                with self._in_turn(channel):
                    until = self._clock() + self._settings.timeout
                    self.change(channel, channel.take_turn)
                    self.wait(channel, lambda: channel.is_complete or self._clock() >= until, until)
                self.wait(channel, lambda: channel.is_complete)
        return channel.data

    def extents(
        self, output: MapOutputAddress, host: str, subpartitions: SubpartitionRange, extent: Extent
    ) -> pa.Buffer:
        """The bytes of these subpartitions of a map output that has one region, not verified. ``extent``: all
        of theirs as if they were one. Raises as `index` does."""
        stream = WholeStream(
            _asked(f"subpartitions {subpartitions}", output, host), output, (extent,), subpartitions
        )
        with self.opened(stream):
            self.wait(stream, lambda: stream.is_next_here)
            return stream.take()

    def find(self, wanted: MapOutputAddress) -> FoundOutput | None:
        """A finished map output whose executor has ended, if the service has one. ``wanted``: its attempt is
        0, and its id is the driver's name. Raises `ServiceUnavailableError`, `AuthenticationError`."""
        name = f"exchange {wanted.exchange}, map {wanted.map_index} of {wanted.application}"
        what = f"a finished output of {name}"
        question = find_question(Asked(what, Place(what), self.address), wanted)
        with self.opened(question):
            self.wait(question, lambda: question.is_complete)
        return question.result if isinstance(question.result, FoundOutput) else None

    def report_damage(self, output: MapOutputAddress, host: str, subpartition: int, region: int) -> Verdict:
        """What the service finds where bytes failed their checksum here. Where they are damaged or gone it
        sees to it that the producer runs again. Raises as `find` does."""
        asked = _asked(f"the verdict on region {region}, subpartition {subpartition}", output, host)
        question = damage_question(asked, output, subpartition, region)
        with self.opened(question):
            self.wait(question, lambda: question.is_complete)
        assert isinstance(question.result, Verdict)
        return question.result

    def remove(self, application: str, shuffle: int, token: bytes) -> bool:
        """Have the service's engine delete the map outputs of a shuffle; whether it is of that application.
        Raises as `find` does."""
        what = f"the removal of shuffle {shuffle} of {application}"
        question = remove_question(Asked(what, Place(what), self.address), application, shuffle, token)
        with self.opened(question):
            self.wait(question, lambda: question.is_complete)
        return bool(question.result)

    # --- channels, for their readers -----------------------------------------------------------------------

    @contextmanager
    def opened(self, channel: ClientChannel) -> Iterator[None]:
        """The channel is open while the block runs."""
        self.open(channel)
        try:
            yield
        finally:
            self.release(channel)

    def open(self, channel: ClientChannel) -> None:
        """Ask for what the channel wants, now or as soon as there is a connection. Never blocks. The caller
        releases it. Raises `StateError` if the client is closed, RuntimeError if the process gets no thread
        for it: then there is nothing to release."""
        channel.attach(self._lock, Backoff(self._settings.timeout, self._clock))
        with self._lock:
            if self._closed:
                raise StateError(f"the connection to the shuffle service at {self.address} is closed")
            self._channels[channel] = None
            self._request(channel)
            if not self._is_running:
                name = f"sortshuffle-client-{self.address}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                try:
                    thread.start()
                except BaseException:
                    del self._channels[channel]  # its opener does not come to release it
                    raise
                self._thread, self._is_running = thread, True
        self._flush()

    def wait(
        self, channel: ClientChannel, is_there: Callable[[], bool], look_at: float | None = None
    ) -> None:
        """Until ``is_there``, asked under the lock whenever the channel has changed, and at ``look_at`` by
        the client's clock. Raises what the channel failed with, `ServiceUnavailableError` if the time for all
        questions is over, `StateError` if it was closed."""
        self.announce(channel)
        while True:
            with self._lock:
                if is_there():
                    return
                if channel.failure is not None:
                    if isinstance(channel.failure, ServiceUnavailableError):
                        channel.failure.address = self.address
                    raise channel.failure
                if channel.is_closed:
                    raise StateError(f"nobody waits any more for {channel.asked.what}")
                if not (requested := self._request(channel)) and not is_there():
                    channel.changed.wait(self._until_look(channel, look_at))
            if requested:
                self._flush()

    def change(self, channel: ClientChannel, change: Callable[[], None]) -> None:
        """Change something of the channel where nobody else does. Must not block."""
        with self._lock:
            change()

    def announce(self, channel: ClientChannel) -> None:
        """Tell the service what the channel has room for, as far as that is worth it."""
        with self._lock:
            self._announce(channel)
        self._flush()

    def consumed(self, stream: PartStream) -> None:
        """The stream's reader took something: give back what it had borrowed for that, and go on."""
        with self._lock:
            spare = stream.spare()
        if spare:
            self.floating.give_back(stream, spare)
        self.announce(stream)

    def lent(self, stream: PartStream, size: int) -> None:
        """The stream was lent so many bytes; what `FloatingCredits` calls."""
        with self._lock:
            if stream.is_closed:
                return
            stream.add_loan(size)
            self._announce(stream)
        self._flush()

    def give_up(self, channel: ClientChannel) -> None:
        """Wake who waits for it, with an error. By any thread; it is released all the same."""
        with self._lock:
            channel.close()

    def release(self, channel: ClientChannel) -> None:
        """The channel is not wanted any more. May be called again."""
        with self._lock:
            channel.close()
            self._channels.pop(channel, None)
            if not self._channels:
                self._backoff.progress()  # nobody waits for the end of this trouble: the next one is new
            self._leave(channel)
            self._woken.notify_all()
        if isinstance(channel, PartStream):
            self.floating.leave(channel)
        self._flush()

    def close(self) -> None:
        """Give up all channels and the connection. Does not wait. May be called again."""
        with self._lock:
            self._closed = True
            for channel in self._channels:
                channel.close()
            connection = self._connection
            self._woken.notify_all()
        if connection is not None:
            connection.leave(pack_close())

    def join(self, within: float = JOIN_TIMEOUT) -> None:
        """Until the thread has ended, which it does when the client is closed, or for so many seconds."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(within)

    @contextmanager
    def _in_turn(self, channel: IndexChannel) -> Iterator[None]:
        """No other large index takes its turn while the block runs. Without the turn where nothing more is to
        come: the channel is complete, has failed, or was closed."""
        has_turn = False
        while channel.is_wanted and not has_turn:
            has_turn = self._turn.acquire(timeout=TURN_TICK)
        try:
            yield
        finally:
            if has_turn:
                self._turn.release()

    # --- under the lock ------------------------------------------------------------------------------------

    def _request(self, channel: ClientChannel) -> bool:
        """Ask for it if that is due: it is not asked for, has room, and the service did not refuse it a
        moment ago."""
        connection = self._connection
        if not self._is_greeted or connection is None or channel.is_requested or not channel.is_wanted:
            return False
        if self._until_retry(channel) is not None:
            return False
        number = next(self._numbers)
        frame = channel.request(number, connection.segment_bytes)
        if frame is None:
            return False
        self._requested[number] = channel
        connection.post(frame)
        return True

    def _until_retry(self, channel: ClientChannel) -> float | None:
        """Seconds until a refused channel is to be asked for again; None if that is now or it was not
        refused."""
        if channel.retry_at is None:
            return None
        left = channel.retry_at - self._clock()
        return left if left > 0 else None

    def _until_look(self, channel: ClientChannel, look_at: float | None) -> float | None:
        """Seconds for which its consumer may wait before it looks again; None: until the channel changes.
        Raises `ServiceUnavailableError` if the time for all questions is over."""
        retry = self._until_retry(channel)
        if look_at is not None:
            left = max(0.0, look_at - self._clock())
            retry = left if retry is None else min(left, retry)
        if self._settings.until is None:
            return retry
        left = self._settings.until - self._clock()
        if left <= 0:
            error = ServiceUnavailableError(
                f"the shuffle service at {self.address} was asked for {channel.asked.what}, and has not"
                " answered in the time that there was for all questions"
            )
            error.address = self.address
            raise error
        return left if retry is None else min(left, retry)

    def _announce(self, channel: ClientChannel) -> None:
        if not (channel.is_requested and channel.is_wanted) or self._connection is None:
            return
        credit = channel.credit_due()
        if credit:
            self._connection.post(pack_add_credit(channel.number, credit))

    def _leave(self, channel: ClientChannel) -> None:
        if not channel.is_requested or self._connection is None:
            return
        del self._requested[channel.number]
        self._abandoned[channel.number] = channel.credit
        if not channel.is_complete:
            self._connection.post(pack_cancel(channel.number))
        channel.lost()

    def _fail_all(self, error_of: Callable[[ClientChannel], BaseException]) -> None:
        for channel in self._channels:
            channel.fail(error_of(channel))

    def _is_expecting(self) -> bool:
        with self._lock:
            return any(channel.is_expecting for channel in self._requested.values())

    def _flush(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.flush()

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (connection := self._next_connection()) is not None:
                self._recover(*self._converse(connection))
        except BaseException as error:  # a fault of this package: whoever waits must hear of it
            failure = error
            _log.exception("the client of the shuffle service at %s failed", self.address)
            with self._lock:
                self._is_running = False
                self._fail_all(lambda channel: failure)

    def _converse(self, connection: ClientConnection) -> tuple[OSError, float]:
        """Connect and receive until that is over: why, and since when nothing came. That is no longer ago
        than a connection may be silent: where the clock says more, this process stood still, and the service
        has not had that time."""
        connecting: float | None = self._clock()
        try:
            connection.connect()
            self._begin(connection)
            connecting = None
            while True:
                self._receive(connection, connection.receive_header())
        except OSError as error:  # which a ProtocolError and an AuthenticationError are too
            since = connection.heard if connecting is None else connecting
            return error, max(since, self._clock() - self._dial.silence)
        finally:
            self._end(connection)
            connection.close()

    def _next_connection(self) -> ClientConnection | None:
        """None if there is nothing to connect for: the thread ends."""
        with self._lock:
            if self._closed or not any(channel.is_wanted for channel in self._channels):
                self._is_running = False
                return None
            self._connection = ClientConnection(self._dial, self._is_expecting, self._clock)
            return self._connection

    def _begin(self, connection: ClientConnection) -> None:
        """Greeted: ask for everything that is open."""
        with self._lock:
            if self._closed:
                raise ServiceUnavailableError("the client was closed")
            self._is_greeted = True
            self._rejections = 0
            self._numbers = itertools.count()
            for channel in self._channels:
                self._request(channel)
        connection.flush()

    def _end(self, connection: ClientConnection) -> None:
        """Cut: what was asked for will be asked for again."""
        with self._lock:
            self._connection = None
            self._is_greeted = False
            self._requested.clear()
            self._abandoned.clear()
            for channel in self._channels:
                channel.lost()

    def _recover(self, error: OSError, since: float) -> None:
        """Wait until it is time to connect again; where it is not, fail all who wait."""
        with self._lock:
            if self._closed or not self._channels:
                return
            if self._is_final(error):
                self._fail_all(lambda channel: error)
                return
            delay = self._backoff.failed(since)
            if delay is None:
                tried, self._backoff = self._backoff.lasted, Backoff(self._settings.timeout, self._clock)
                self._fail_all(lambda channel: self._unavailable(channel, error, tried))
                return
            self._woken.wait_for(lambda: self._closed or not self._channels, delay)

    def _is_final(self, error: OSError) -> bool:
        """Whether trying again will not help."""
        if isinstance(error, ProtocolError) and not isinstance(error, _BreachError):
            self._protocol_errors += 1
            return self._protocol_errors >= MOST_PROTOCOL_ERRORS
        if isinstance(error, AuthenticationError):
            # a service that ends at this very moment looks like one that does not believe the proof: once
            self._rejections += 1
            return self._rejections > 1 or not isinstance(error.__cause__, ServiceUnavailableError)
        return False

    def _unavailable(self, channel: ClientChannel, error: OSError, tried: float) -> ServiceUnavailableError:
        unavailable = ServiceUnavailableError(
            f"the shuffle service at {self.address} could not be reached, or did not answer, for"
            f" {tried:.0f} s, in which {channel.asked.what} was asked for: {error}. See that it runs, or"
            f" wait longer with spark.sortshuffle.service.timeout ({self._settings.timeout:g}s now)"
        )
        unavailable.__cause__ = error
        return unavailable

    def _receive(self, connection: ClientConnection, header: Header) -> None:
        """One frame, whose header came."""
        if header.kind is Kind.BUFFER_RESPONSE:
            self._receive_buffer(connection, header)
            return
        body = bytearray(header.length)
        connection.fill(memoryview(body))
        with self._lock:
            if header.kind is Kind.ERROR_RESPONSE:
                self._take_error(ErrorResponse.unpack(header, bytes(body)))
                return
            channel = self._channel(header)
            if channel is not None:
                with self._blaming(channel):
                    channel.answer(header, body)
                self._got_on()

    def _receive_buffer(self, connection: ClientConnection, header: Header) -> None:
        with self._lock:
            channel = self._channel(header)
            if channel is None:
                views = self._unwanted(header)
            elif header.data_type == Data.END_OF_PARTITION:
                self._take_end(channel, header)
                return
            else:
                with self._blaming(channel):
                    views = channel.accept(header)
        before = connection.received
        try:
            for view in views:
                connection.fill(view)
        finally:
            if channel is not None:
                with self._lock:
                    self._take_bytes(channel, connection.received - before)
        connection.flush()

    def _take_bytes(self, channel: ClientChannel, count: int) -> None:
        if channel.filled(count):
            self._got_on()
        self._announce(channel)

    def _channel(self, header: Header) -> ClientChannel | None:
        """The channel that a frame is for; None if nobody wants it any more. Raises `ProtocolError`."""
        channel = self._requested.get(header.channel)
        if channel is None and header.channel not in self._abandoned:
            raise ProtocolError(f"a {header.kind.name} for channel {header.channel}, which is none")
        return channel

    def _unwanted(self, header: Header) -> list[memoryview]:
        """Where data go that nobody wants any more."""
        connection = self._connection
        assert connection is not None
        if header.data_type == Data.END_OF_PARTITION:
            del self._abandoned[header.channel]
            return []
        left = self._abandoned[header.channel] - -(-header.length // connection.segment_bytes)
        if left < 0:
            raise ProtocolError(f"more data than there was credit for, for channel {header.channel}")
        self._abandoned[header.channel] = left
        whole, rest = divmod(header.length, SCRATCH_BYTES)
        return [self._scratch] * whole + [self._scratch[:rest]]

    def _take_end(self, channel: ClientChannel, header: Header) -> None:
        with self._blaming(channel):
            channel.end(header)
        self._got_on()
        del self._requested[header.channel]
        channel.lost()

    def _take_error(self, response: ErrorResponse) -> None:
        if response.channel == NO_CHANNEL:
            raise ServiceUnavailableError(f"the service ended the connection: {response.what}")
        channel = self._requested.pop(response.channel, None)
        if channel is not None:
            who = f"the shuffle service at {self.address}"
            channel.refuse(response, self._clock(), who)
        elif self._abandoned.pop(response.channel, None) is None:
            raise ProtocolError(f"an error for channel {response.channel}, which is none: {response.what}")

    def _got_on(self) -> None:
        if self._connection is not None:
            self._connection.got_on()
        self._backoff.progress()
        self._protocol_errors = 0

    @contextmanager
    def _blaming(self, channel: ClientChannel) -> Iterator[None]:
        """What breaks the protocol here is this channel's, and fails it where it happens again and again,
        whatever the others do."""
        try:
            yield
        except ProtocolError as error:
            channel.protocol_errors += 1
            what = f"the shuffle service at {self.address} broke the protocol while it was asked for"
            told = f"{what} {channel.asked.what}: {error}"
            if channel.protocol_errors >= MOST_PROTOCOL_ERRORS:
                channel.fail(ProtocolError(told))
            raise _BreachError(told) from error


def _asked(what: str, output: MapOutputAddress, host: str) -> Asked:
    return Asked(f"{what} of {output} on host {host}", Place(str(output)), host)
