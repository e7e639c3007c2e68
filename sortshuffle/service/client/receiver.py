"""`Receiver`: passes what arrives on one connection to its channels.

It runs in the thread of a `ServiceLink` until the connection fails; closing the link makes it fail. Data are
received straight into memory of the channels, under no lock. The link's lock is held before that, to get the
memory, and after it, to count the bytes.
"""

from __future__ import annotations

import threading
from typing import NoReturn

from sortshuffle.service.client.client_connection import ClientConnection
from sortshuffle.service.client.reconnect_policy import ReconnectPolicy
from sortshuffle.service.client.request_table import RequestTable
from sortshuffle.service.wire.protocol import Data, Header, Kind


class Receiver:
    """Receives on one connection. ``lock``: guards ``table`` and ``reconnect_policy``."""

    def __init__(
        self,
        connection: ClientConnection,
        table: RequestTable,
        reconnect_policy: ReconnectPolicy,
        lock: threading.Lock,
    ) -> None:
        self._connection = connection
        self._table = table
        self._reconnect_policy = reconnect_policy
        self._lock = lock

    def run(self) -> NoReturn:
        """Receive until the connection fails. Raises as `ClientConnection.fill` does, and `ProtocolError`."""
        while True:
            header = self._connection.receive_header()
            if header.kind is not Kind.BUFFER_RESPONSE:
                self._receive_answer(header)
            elif header.data_type == Data.END_OF_PARTITION:
                with self._lock:
                    self._got_on(self._table.end(header))
            else:
                self._receive_data(header)

    def _receive_answer(self, header: Header) -> None:
        body = bytearray(header.length)
        self._connection.fill(memoryview(body))
        with self._lock:
            self._got_on(self._table.answer(header, body))

    def _receive_data(self, header: Header) -> None:
        connection, table = self._connection, self._table
        with self._lock:
            channel, views = table.accept(header)
        before = connection.received
        try:
            for view in views:
                connection.fill(view)
        finally:
            if channel is not None:
                with self._lock:
                    self._got_on(channel.count_filled(connection.received - before))
                    table.announce(channel)
        connection.flush()

    def _got_on(self, is_progress: bool) -> None:
        if is_progress:
            self._connection.liveness.progress()
            self._reconnect_policy.progress()
