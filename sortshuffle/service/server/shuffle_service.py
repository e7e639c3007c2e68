"""`ShuffleService`: one process's serving of the map outputs on this host's disks, from the outside.

    with sortshuffle.serve(["/data1", "/data2"], port=7448, secret=secret) as service:
        ...

    made --start (a thread) or run (this one)--> serving --stop--> stopped

It owns the listening socket, the pool that reads go through, the catalog and the server's loop, and gives all
of it back when it stops. A service that is made anew over the same directories serves what the last one did.

Rules
* Beyond the loopback interface it serves only who knows a secret.
* What it may use is fixed when it is made: the pool's bytes, and `Limits`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from sortshuffle import calls
from sortshuffle.errors import StateError, UsageError
from sortshuffle.memory.read_buffer_pool import BATCH_BYTES, ReadBufferPool
from sortshuffle.options import MIB
from sortshuffle.reading.scheduler import BUFFER_TIMEOUT
from sortshuffle.service.pages.status import ServiceStatus
from sortshuffle.service.server.catalog import Catalog
from sortshuffle.service.server.connection import Surroundings
from sortshuffle.service.server.errands import Errands, Remove
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.loop import EventLoop
from sortshuffle.service.server.losses import Losses
from sortshuffle.service.server.result_partition_manager import ResultPartitionManager, Roots
from sortshuffle.service.server.server import Server
from sortshuffle.service.server.transport import ServerTls
from sortshuffle.service.wire.address import is_loopback
from sortshuffle.version import __version__

# What one credit is worth, and how large the pieces are that are read and sent, each of which costs some
# steps of Python: with 1, 16 and 256 channels a service on one core sent 2.6, 2.6 and 2.4 GB/s in pieces of
# 256 KiB, 2.8, 2.7 and 2.9 of 512 KiB, 2.8, 2.9 and 2.8 of 1 MiB; a consumer has room for whole ones
SEGMENT_BYTES = 512 << 10
MEMORY = 64 * MIB
BATCHES = 8  # at least, that a pool has: so many partitions are read side by side, however small it is
BACKLOG = 1024  # connections that wait in the system's queue: a stage's tasks come all at once
DEFAULT_LIMITS = Limits()
STOP_TIMEOUT = 30.0  # seconds; reads that are under way end first


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """``secret``: what clients must know; None only on loopback. ``tls``: None for plain TCP. ``memory``:
    bytes that all reads go through, and ``segment_bytes`` those of one credit. ``buffer_timeout``: seconds in
    which nobody at all gives memory back, until reads fail. ``memory_option``, ``secret_option``: what errors
    call them."""

    secret: bytes | None = None
    tls: ServerTls | None = None
    memory: int = MEMORY
    segment_bytes: int = SEGMENT_BYTES
    limits: Limits = DEFAULT_LIMITS
    buffer_timeout: float = BUFFER_TIMEOUT
    memory_option: str = "spark.sortshuffle.service.memory"
    secret_option: str = "spark.sortshuffle.service.secret.file"


class ShuffleService:
    """Serves the map outputs below ``roots`` (asked for anew each time) on ``listening``, which it closes.
    ``remove``: deletes a shuffle of the engine in the same process.

    Raises `UsageError` where it would serve anybody beyond loopback, `OptionError` for a pool without room
    for a segment, OSError for TLS files that cannot be read.
    """

    def __init__(
        self,
        listening: socket.socket,
        roots: Roots,
        settings: ServerSettings = ServerSettings(),
        remove: Remove | None = None,
    ) -> None:
        _expect_secret(listening, settings)
        context = settings.tls.context() if settings.tls else None
        self.address = _named(listening)
        self._roots = roots
        self._settings = settings
        self._began = time.monotonic()
        self._pool = ReadBufferPool(
            settings.memory,
            settings.segment_bytes,
            option=settings.memory_option,
            batch_bytes=min(BATCH_BYTES, settings.memory // BATCHES),
        )
        self._manager = ResultPartitionManager(roots, self._pool, timeout=settings.buffer_timeout)
        self._catalog = Catalog(roots, self._manager, settings.segment_bytes)
        self._shared = Surroundings(
            loop=EventLoop(),
            limits=settings.limits,
            secret=settings.secret,
            segment_bytes=settings.segment_bytes,
            errands=Errands(self._catalog, Losses(self._catalog), remove),
        )
        self._server = Server(listening, context, self._shared)
        self._thread: threading.Thread | None = None
        self._is_begun = False

    def start(self) -> None:
        """Serve in a thread of its own until `stop`. Once."""
        self._begin()
        self._thread = threading.Thread(target=self._run, name="sortshuffle-serve", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Serve in this thread until `stop` is called by another, or a signal's handler. Once."""
        self._begin()
        self._run()

    def stop(self) -> None:
        """End it: connections are closed, nothing stays open. May be called again, and before the start.

        Raises `StateError` if reads that are under way do not end in time.
        """
        self._server.stop()
        if not self._is_begun:
            self.run()  # ends at once, and closes what was made
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT)
            if self._thread.is_alive():
                raise StateError(f"the shuffle service at {self.address} does not end: a disk hangs")

    def status(self) -> ServiceStatus:
        """What it is doing. Looks at the directories. Raises TimeoutError if the server does not answer."""
        counts, reads = self._shared.counts, self._manager.figures()
        connections = self._server.ask(lambda: tuple(each.status() for each in self._shared.connections))
        return ServiceStatus(
            address=self.address,
            version=__version__,
            pid=os.getpid(),
            uptime=time.monotonic() - self._began,
            authenticated=bool(self._settings.secret),
            encrypted=self._settings.tls is not None,
            roots=tuple(self._roots()),
            connections=connections,
            applications=tuple(self._catalog.applications()),
            pool_segments=self._pool.total_segments,
            pool_segments_free=self._pool.available,
            segment_bytes=self._settings.segment_bytes,
            partitions_open=reads.partitions_open,
            readers=reads.readers,
            reads_waiting=reads.waiting,
            connections_total=counts.connections,
            connections_refused_total=counts.refused,
            requests_total=counts.requests,
            errors_total=counts.errors,
            bytes_sent_total=counts.bytes_sent,
            buffers_sent_total=counts.buffers_sent,
            reads_total=reads.reads_total,
            bytes_read_total=reads.bytes_read_total,
        )

    def __enter__(self) -> ShuffleService:
        if not self._is_begun:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _begin(self) -> None:
        if self._is_begun:
            raise StateError("a shuffle service is started once: make another")
        self._is_begun = True

    def _run(self) -> None:
        try:
            self._server.run()
        finally:
            self._manager.shutdown()
            self._pool.destroy()


def serve(
    directories: Sequence[str] | Callable[[], Sequence[str]],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    secret: bytes | None = None,
    tls: ServerTls | None = None,
    memory: int = MEMORY,
) -> ShuffleService:
    """Serve the map outputs below these directories to consumers on other hosts; the caller stops it.

    ``directories``: those that Spark's local directories or ``spark.sortshuffle.dir`` name, or what gives
    them. ``host``: the interface to listen on, ``""`` for all; beyond loopback a ``secret`` is needed.
    ``port``: 0 for a free one; `ShuffleService.address` says which. ``memory``: bytes that it reads into.

    Raises `UsageError` and `OptionError` for what cannot be meant, OSError if the port is taken.
    """
    roots = directories if callable(directories) else _always(tuple(directories))
    listening = listen(host, port)
    try:
        service = ShuffleService(listening, roots, ServerSettings(secret=secret, tls=tls, memory=memory))
    except BaseException:
        listening.close()
        raise
    service.start()
    return service


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; ``""``: on all interfaces, 0: on a free port. The caller closes it.

    Raises OSError if that cannot be.
    """
    if not host:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return calls.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    family = calls.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return calls.create_server((host, port), family=socket.AddressFamily(family), backlog=BACKLOG)


def _always(directories: tuple[str, ...]) -> Roots:
    return lambda: directories


def _expect_secret(listening: socket.socket, settings: ServerSettings) -> None:
    if settings.secret is not None and not settings.secret:
        raise UsageError("an empty secret is none: give one of at least 16 random bytes")
    if settings.secret is None and not _is_loopback(listening):
        raise UsageError(
            f"a shuffle service at {_named(listening)} would serve anybody who reaches it: give it a secret"
            f" ({settings.secret_option}), or listen on 127.0.0.1"
        )


def _is_loopback(listening: socket.socket) -> bool:
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    return is_loopback(listening.getsockname()[0])


def _named(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
