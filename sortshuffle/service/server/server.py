"""`Server`: accepts connections on a listening socket, and gives each its turns.

    made --run, in one thread--> serving --stop, from any--> stopped

Rules
* One round of the loop gives one turn to each connection that has something to send.
* A connection over a limit is closed at once; the others notice nothing. When the process lacks descriptors
  or memory, the server accepts none until the next tick; clients wait in the system's queue.
* At its end everything is given back. Clients see broken connections, and connect again.

Only the loop's thread uses connections; `stop` and `ask` may be called from any thread.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

from sortshuffle import calls
from sortshuffle.service.server.connection import Connection, ServerContext
from sortshuffle.service.server.transport import open_transport

T = TypeVar("T")
_log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 64  # so that a rush of new clients does not delay the turns of the others
ASK_TIMEOUT = 10.0  # seconds; a round of the loop takes milliseconds


class Server:
    """Serves on ``listening``, which it closes at its end. ``tls``: None for plain TCP."""

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext | None, context: ServerContext) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._tls = tls
        self._shared = context
        self._loop = context.loop
        self._loop.on_turn = self._turns
        self._loop.on_tick = self._tick
        self._is_accepting = False

    def fileno(self) -> int:
        return self._listening.fileno()

    def run(self) -> None:
        """Serve until `stop`, then give everything back."""
        self._accept_again()
        try:
            self._loop.run()
        finally:
            for connection in list(self._shared.connections):
                connection.close()
            self._pause()
            self._listening.close()
            self._loop.close()

    def stop(self) -> None:
        """End `run` soon. May be called from any thread, and again."""
        self._loop.stop()

    def ask(self, question: Callable[[], T]) -> T:
        """Return the result of ``question``, called in the loop's thread. Raises TimeoutError."""
        return self._loop.ask(question, ASK_TIMEOUT)

    def on_ready(self, events: int) -> None:
        """Accept waiting connections."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = calls.accept(self._listening)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except (OSError, MemoryError) as error:
                _log.warning("no connection can be taken for a moment: %s", error)
                self._pause()
                return
            self._take(accepted, address)

    def _take(self, accepted: socket.socket, address: object) -> None:
        shared = self._shared
        shared.counts.connections += 1
        strangers = sum(each.is_stranger for each in shared.connections) if self._is_crowded else 0
        if len(shared.connections) >= shared.limits.connections or strangers >= shared.limits.strangers:
            shared.counts.refused += 1
            accepted.close()
            return
        try:
            connection = Connection(open_transport(accepted, self._tls), _named(address), shared)
        except OSError:
            shared.counts.refused += 1
            return
        shared.connections[connection] = None

    @property
    def _is_crowded(self) -> bool:
        return len(self._shared.connections) >= self._shared.limits.strangers

    def _turns(self) -> bool:
        ready = self._shared.ready
        for connection in list(ready):
            if not connection.turn():
                ready.pop(connection, None)
        return bool(ready)

    def _tick(self) -> None:
        now = self._shared.clock()
        for connection in list(self._shared.connections):
            connection.tick(now)
        self._accept_again()

    def _accept_again(self) -> None:
        if not self._is_accepting:
            self._loop.watch(self, selectors.EVENT_READ)
            self._is_accepting = True

    def _pause(self) -> None:
        if self._is_accepting:
            self._loop.watch(self, 0)
            self._is_accepting = False


def _named(address: object) -> str:
    match address:
        case (str(host), int(port), *_):
            return f"{host}:{port}"
        case _:
            return str(address) or "a local socket"
