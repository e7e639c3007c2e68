"""`ServiceLink`: the channels of one client to one shuffle service, and the thread that receives for them.

    ServiceLink           its channels outlive its connections
      ClientConnection    at most one at a time: the socket
      RequestTable        the requests on it that may be answered: the protocol, without I/O
      Receiver            passes what arrives to the channels
      ReconnectPolicy     whether to try again

    idle --open a channel--> connecting --greeted--> receiving
      ^                        ^   |                    |
      |                        +---+-----cut------------+        any --close--> closed
      +--(no channel is open)------+

Rules
* The thread runs while there are channels or a connection; it alone connects and receives.
* A connection is replaced if it breaks, if it is silent while something is owed, or if the service breaks the
  protocol on it. All open channels then continue exactly at the byte where they were. After the time-out
  without progress all of them fail, with an error for each consumer that waits.
* A secret or certificate that is not accepted is an error at once.
* Closing never waits for the service.

Lock order: the link's lock, that of `FloatingCredits`. Nothing is sent, received or waited for under them,
and loans are given back under neither.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sortshuffle.errors import ServiceUnavailableError, StateError
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.client_channel import ClientChannel
from sortshuffle.service.client.client_connection import ClientConnection, ServiceEndpoint
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.credits import FloatingCredits
from sortshuffle.service.client.extent_streams import PartStream
from sortshuffle.service.client.receiver import Receiver
from sortshuffle.service.client.reconnect_policy import ReconnectPolicy
from sortshuffle.service.client.request_table import RequestTable
from sortshuffle.service.wire.protocol import pack_close

# A connection may be silent for 1/SILENCES of the time-out, so the client reconnects once before it gives up
SILENCES = 2
JOIN_TIMEOUT = 10.0  # seconds; the thread of a closed link ends at once, unless it is connecting

_log = logging.getLogger(__name__)


class ServiceLink:
    """The link to the service at ``address``. ``floating``: memory for data ahead, which links share."""

    def __init__(
        self, address: str, settings: ClientSettings, floating: FloatingCredits, clock: Callable[[], float]
    ) -> None:
        self.address = address
        self.floating = floating
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._woken = threading.Condition(self._lock)  # wakes the thread while it waits to reconnect
        self._endpoint = ServiceEndpoint(address, settings.secret, settings.tls, settings.timeout / SILENCES)
        self._reconnect_policy = ReconnectPolicy(settings.timeout, clock)
        self._closed = False
        self._thread: threading.Thread | None = None  # the last one that was started
        self._is_running = False
        self._channels: dict[ClientChannel, None] = {}  # open ones, in the order of opening
        self._connection: ClientConnection | None = None
        self._table: RequestTable | None = None  # of the connection, once it is greeted

    # --- channels, for their readers -----------------------------------------------------------------------

    @contextmanager
    def opened(self, channel: ClientChannel) -> Iterator[None]:
        """Keep the channel open while the block runs."""
        self.open(channel)
        try:
            yield
        finally:
            self.release(channel)

    def open(self, channel: ClientChannel) -> None:
        """Request what the channel wants, now or as soon as there is a connection. Never blocks. The caller
        releases the channel. Raises `StateError` if the link is closed, RuntimeError if the process gets no
        thread; after that there is nothing to release."""
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
                    del self._channels[channel]  # the caller will not release it
                    raise
                self._thread, self._is_running = thread, True
        self._flush()

    def wait(
        self, channel: ClientChannel, is_there: Callable[[], bool], look_at: float | None = None
    ) -> None:
        """Wait until ``is_there``, called under the lock when the channel has changed and at ``look_at`` by
        the link's clock, returns true. Raises the channel's failure, `ServiceUnavailableError` if the time
        for all requests is over, `StateError` if the channel was closed."""
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
                    raise StateError(f"the reader was closed: {channel.asked.what}")
                if not (requested := self._request(channel)) and not is_there():
                    channel.changed.wait(self._until_look(channel, look_at))
            if requested:
                self._flush()

    def change(self, change: Callable[[], None]) -> None:
        """Call ``change`` under the lock, which guards the channels. It must not block."""
        with self._lock:
            change()

    def announce(self, channel: ClientChannel) -> None:
        """Announce the channel's new credit to the service, if that is worth a frame."""
        with self._lock:
            self._announce(channel)
        self._flush()

    def consumed(self, stream: PartStream) -> None:
        """Give back what a stream had borrowed for a part that its reader took, and announce new credit."""
        with self._lock:
            spare = stream.spare()
        if spare:
            self.floating.give_back(stream, spare)
        self.announce(stream)

    def lent(self, stream: PartStream, size: int) -> None:
        """Add a loan of ``size`` bytes to the stream. Called by `FloatingCredits`."""
        with self._lock:
            if stream.is_closed:
                return
            stream.add_loan(size)
            self._announce(stream)
        self._flush()

    def give_up(self, channel: ClientChannel) -> None:
        """Wake the channel's consumer with an error; any thread may. The channel must still be released."""
        with self._lock:
            channel.close()

    def release(self, channel: ClientChannel) -> None:
        """Close the channel and cancel its request. May be called again."""
        with self._lock:
            channel.close()
            self._channels.pop(channel, None)
            if not self._channels:
                self._reconnect_policy.end()  # no consumer waits for its end: the next failure is new trouble
            if self._table is not None:
                self._table.leave(channel)
            self._woken.notify_all()
        if isinstance(channel, PartStream):
            self.floating.leave(channel)
        self._flush()

    def close(self) -> None:
        """Give up all channels and the connection, without waiting. May be called again."""
        with self._lock:
            self._closed = True
            for channel in self._channels:
                channel.close()
            connection = self._connection
            self._woken.notify_all()
        if connection is not None:
            connection.leave(pack_close())

    def join(self, within: float = JOIN_TIMEOUT) -> None:
        """Wait until the thread of a closed link has ended, or for ``within`` seconds."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(within)

    # --- under the lock ------------------------------------------------------------------------------------

    def _request(self, channel: ClientChannel) -> bool:
        """Request the channel's data if that is due. Returns whether there is something to send."""
        return self._table is not None and self._table.request(channel)

    def _announce(self, channel: ClientChannel) -> None:
        if self._table is not None:
            self._table.announce(channel)

    def _until_look(self, channel: ClientChannel, look_at: float | None) -> float | None:
        """Return the seconds that the consumer may wait before it looks again; None: until the channel
        changes. Raises `ServiceUnavailableError` if the time for all requests is over."""
        retry = channel.retry_in(self._clock())
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

    def _fail_all(self, error_of: Callable[[ClientChannel], BaseException]) -> None:
        for channel in self._channels:
            channel.fail(error_of(channel))

    def _is_expecting(self) -> bool:
        with self._lock:
            return self._table is not None and self._table.is_expecting

    def _flush(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.flush()

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (connection := self._next_connection()) is not None:
                self._recover(*self._converse(connection))
        except BaseException as error:  # a bug in this package: consumers must not wait for ever
            failure = error
            _log.exception("the client of the shuffle service at %s failed", self.address)
            with self._lock:
                self._is_running = False
                self._fail_all(lambda channel: failure)

    def _converse(self, connection: ClientConnection) -> tuple[OSError, float]:
        """Connect, and receive until the connection fails. Returns the error, and when the last progress was:
        no longer ago than a connection may be silent. If the clock says longer, this process stood still, and
        the service did not have that time."""
        connecting: float | None = self._clock()
        try:
            connection.connect()
            receiver = self._begin(connection)
            connecting = None
            receiver.run()
        except OSError as error:  # which a ProtocolError and an AuthenticationError are too
            since = connection.liveness.last_progress if connecting is None else connecting
            return error, max(since, self._clock() - self._endpoint.silence)
        finally:
            self._end()
            connection.close()

    def _next_connection(self) -> ClientConnection | None:
        """Return a new connection; None if no channel needs one: then the thread ends."""
        with self._lock:
            if self._closed or not any(channel.is_wanted for channel in self._channels):
                self._is_running = False
                return None
            self._connection = ClientConnection(self._endpoint, self._is_expecting, self._clock)
            return self._connection

    def _begin(self, connection: ClientConnection) -> Receiver:
        """Begin to use a greeted connection: request everything that is open."""
        with self._lock:
            if self._closed:
                raise ServiceUnavailableError("the client was closed")
            self._reconnect_policy.greeted()
            service = f"the shuffle service at {self.address}"
            table = RequestTable(service, connection.segment_bytes, connection.post, self._clock)
            self._table = table  # at once, so that `_end` cuts it whatever fails
            for channel in self._channels:
                table.request(channel)
        connection.flush()
        return Receiver(connection, table, self._reconnect_policy, self._lock)

    def _end(self) -> None:
        """End the use of the connection: what was requested will be requested again."""
        with self._lock:
            if self._table is not None:
                self._table.cut()
            self._connection = self._table = None
            for channel in self._channels:
                channel.forget_request()

    def _recover(self, error: OSError, since: float) -> None:
        """Wait until it is time to reconnect, or give up and fail all channels."""
        with self._lock:
            if self._closed or not self._channels:
                return
            if self._reconnect_policy.is_final(error):
                self._fail_all(lambda channel: error)
                return
            delay = self._reconnect_policy.failed(since)
            if delay is None:
                tried = self._reconnect_policy.lasted
                self._reconnect_policy.end()
                self._fail_all(lambda channel: self._unavailable(channel, error, tried))
                return
            self._woken.wait_for(lambda: self._closed or not self._channels, delay)

    def _unavailable(self, channel: ClientChannel, error: OSError, tried: float) -> ServiceUnavailableError:
        unavailable = ServiceUnavailableError(
            f"the shuffle service at {self.address} could not be reached, or did not answer, for"
            f" {tried:.0f} s, in which {channel.asked.what} was asked for: {error}. See that it runs, or"
            f" wait longer with spark.sortshuffle.service.timeout ({self._settings.timeout:g}s now)"
        )
        unavailable.__cause__ = error
        return unavailable
