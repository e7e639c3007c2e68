"""`ServiceLink`: the channels of one client to one shuffle service, and the thread that receives for them.

    ServiceLink           its channels outlive its connections
      ClientConnection    at most one at a time: the socket
      RequestTable        what was asked on it, and what may be answered: the protocol, without I/O
      Receiver            takes what comes to the channels
      Trouble             whether to try again

    idle --open a channel--> connecting --greeted--> receiving
      ^                        ^   |                    |
      |                        +---+-----cut------------+        any --close--> closed
      +--(no channel is open)------+

Rules
* The thread runs while there are channels or a connection; it alone connects and receives.
* A connection that breaks, is silent where something is owed, or on which the service breaks the protocol, is
  made again, and all open channels go on where they were, to the byte. After the time-out without progress
  all of them fail, and with them whoever waits.
* A secret or certificate that is not accepted is an error at once.
* Closing never waits for the service.

Lock order: the link's lock, that of `FloatingCredits`. Nothing is sent, received or waited for under them,
and loans are given back under none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sortshuffle.errors import ServiceUnavailableError, StateError
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.client_channel import ClientChannel
from sortshuffle.service.client.client_connection import ClientConnection, Dial
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.credits import FloatingCredits
from sortshuffle.service.client.extent_streams import PartStream
from sortshuffle.service.client.receiver import Receiver
from sortshuffle.service.client.request_table import RequestTable
from sortshuffle.service.client.trouble import Trouble
from sortshuffle.service.wire.protocol import pack_close

SILENCES = 2  # a silent service is connected to anew once before its time is over
JOIN_TIMEOUT = 10.0  # seconds; a thread that is told to end does so at once, but for a connection being made

_log = logging.getLogger(__name__)


class ServiceLink:
    """To the service at ``address``. ``floating``: room for data ahead, which links share."""

    def __init__(
        self, address: str, settings: ClientSettings, floating: FloatingCredits, clock: Callable[[], float]
    ) -> None:
        self.address = address
        self.floating = floating
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._woken = threading.Condition(self._lock)  # the thread, where it waits before it tries again
        self._dial = Dial(address, settings.secret, settings.tls, settings.timeout / SILENCES)
        self._trouble = Trouble(settings.timeout, clock)
        self._closed = False
        self._thread: threading.Thread | None = None  # the last one that was started
        self._is_running = False
        self._channels: dict[ClientChannel, None] = {}  # open ones, in the order in which they came
        self._connection: ClientConnection | None = None
        self._table: RequestTable | None = None  # of the connection, when it is greeted

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
        releases it. Raises `StateError` if the link is closed, RuntimeError if the process gets no thread
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
        the link's clock. Raises what the channel failed with, `ServiceUnavailableError` if the time for all
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
                self._trouble.end()  # nobody waits for the end of this one: the next is new
            if self._table is not None:
                self._table.leave(channel)
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
        """Until the thread has ended, which it does when the link is closed, or for so many seconds."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(within)

    # --- under the lock ------------------------------------------------------------------------------------

    def _request(self, channel: ClientChannel) -> bool:
        """Ask for it if that is due. Whether there is something to send now."""
        return self._table is not None and self._table.request(channel)

    def _announce(self, channel: ClientChannel) -> None:
        if self._table is not None:
            self._table.announce(channel)

    def _until_look(self, channel: ClientChannel, look_at: float | None) -> float | None:
        """Seconds for which its consumer may wait before it looks again; None: until the channel changes.
        Raises `ServiceUnavailableError` if the time for all questions is over."""
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
            receiver = self._begin(connection)
            connecting = None
            receiver.run()
        except OSError as error:  # which a ProtocolError and an AuthenticationError are too
            since = connection.liveness.heard if connecting is None else connecting
            return error, max(since, self._clock() - self._dial.silence)
        finally:
            self._end()
            connection.close()

    def _next_connection(self) -> ClientConnection | None:
        """None if there is nothing to connect for: the thread ends."""
        with self._lock:
            if self._closed or not any(channel.is_wanted for channel in self._channels):
                self._is_running = False
                return None
            self._connection = ClientConnection(self._dial, self._is_expecting, self._clock)
            return self._connection

    def _begin(self, connection: ClientConnection) -> Receiver:
        """Greeted: ask for everything that is open."""
        with self._lock:
            if self._closed:
                raise ServiceUnavailableError("the client was closed")
            self._trouble.greeted()
            service = f"the shuffle service at {self.address}"
            table = RequestTable(service, connection.segment_bytes, connection.post, self._clock)
            self._table = table  # at once, so that `_end` cuts it whatever fails
            for channel in self._channels:
                table.request(channel)
        connection.flush()
        return Receiver(connection, table, self._trouble, self._lock)

    def _end(self) -> None:
        """Cut: what was asked for will be asked for again."""
        with self._lock:
            if self._table is not None:
                self._table.cut()
            self._connection = self._table = None
            for channel in self._channels:
                channel.lost()

    def _recover(self, error: OSError, since: float) -> None:
        """Wait until it is time to connect again; where it is not, fail all who wait."""
        with self._lock:
            if self._closed or not self._channels:
                return
            if self._trouble.is_final(error):
                self._fail_all(lambda channel: error)
                return
            delay = self._trouble.failed(since)
            if delay is None:
                tried = self._trouble.lasted
                self._trouble.end()
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
