"""`ShuffleService`: the service that serves the map outputs on this host's disks, as its users see it.

    with sortshuffle.serve(["/data1", "/data2"], port=7448, secret=secret) as service:
        ...

    made --start (a thread) or run (this one)--> serving --stop--> stopped

It owns the listening socket, the read pool, the catalog and the server's loop, and gives all of them back
when it stops. A new service over the same directories serves everything that the previous one did.

Rules
* Beyond the loopback interface, it serves only clients that know a secret.
* Its resources are fixed when it is made: the pool's bytes, and `Limits`.
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
from sortshuffle.service.server.connection import ServerContext
from sortshuffle.service.server.disk_jobs import DiskJobs, Remove
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.server.loop import EventLoop
from sortshuffle.service.server.losses import Losses, SparkDirectories, no_directories
from sortshuffle.service.server.result_partition_manager import ResultPartitionManager, Roots
from sortshuffle.service.server.server import Server
from sortshuffle.service.server.transport import ServerTls
from sortshuffle.service.wire.address import is_loopback
from sortshuffle.version import __version__

# Bytes of one credit, and of the pieces that are read and sent, each of which costs some steps of Python.
# With 1, 16 and 256 channels a service on one core sent 2.6, 2.6 and 2.4 GB/s in pieces of 256 KiB, 2.8, 2.7
# and 2.9 of 512 KiB, 2.8, 2.9 and 2.8 of 1 MiB. A consumer needs memory for whole pieces
SEGMENT_BYTES = 512 << 10
MEMORY = 64 * MIB
BATCHES = 8  # least number of batches in a pool: even a small pool reads that many partitions concurrently
BACKLOG = 1024  # connections that wait in the system's queue: the tasks of a stage connect all at once
DEFAULT_LIMITS = Limits()
STOP_TIMEOUT = 30.0  # seconds to wait for reads that are under way


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """``secret``: what clients must know; None only on loopback. ``tls``: None for plain TCP. ``memory``:
    bytes of the read pool. ``segment_bytes``: bytes of one credit. ``buffer_timeout``: seconds without a
    segment taken or returned until reads fail. ``memory_option``, ``secret_option``: for error texts."""

    secret: bytes | None = None
    tls: ServerTls | None = None
    memory: int = MEMORY
    segment_bytes: int = SEGMENT_BYTES
    limits: Limits = DEFAULT_LIMITS
    buffer_timeout: float = BUFFER_TIMEOUT
    memory_option: str = "spark.sortshuffle.service.memory"
    secret_option: str = "spark.sortshuffle.service.secret.file"


class ShuffleService:
    """Serves the map outputs below ``roots`` (called each time they are needed) on ``listening``, which it
    closes. ``remove``: deletes a shuffle of the engine in the same process. ``spark_directories``: as in
    `Losses`.

    Raises `UsageError` if it would serve clients beyond loopback without a secret, `OptionError` for a pool
    without room for a segment, OSError for TLS files that cannot be read.
    """

    def __init__(
        self,
        listening: socket.socket,
        roots: Roots,
        settings: ServerSettings = ServerSettings(),
        remove: Remove | None = None,
        spark_directories: SparkDirectories = no_directories,
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
        self._shared = ServerContext(
            loop=EventLoop(),
            limits=settings.limits,
            secret=settings.secret,
            segment_bytes=settings.segment_bytes,
            disk_jobs=DiskJobs(self._catalog, Losses(self._catalog, spark_directories), remove),
        )
        self._server = Server(listening, context, self._shared)
        self._thread: threading.Thread | None = None
        self._is_begun = False

    def start(self) -> None:
        """Serve in a new thread until `stop`. Call it once."""
        self._begin()
        self._thread = threading.Thread(target=self._run, name="sortshuffle-serve", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Serve in this thread until another thread or a signal handler calls `stop`. Call it once. It waits
        for reads that are under way: while a disk hangs, it does not return."""
        self._begin()
        self._run()

    def stop(self) -> None:
        """Stop serving, and close all connections and files. May be called again, and before the start.
        Raises `StateError` if reads that are under way do not end in time."""
        self._server.stop()
        if not self._is_begun:
            self.run()  # ends at once, and gives everything back
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT)
            if self._thread.is_alive():
                raise StateError(f"the shuffle service at {self.address} does not end: a disk hangs")

    def status(self) -> ServiceStatus:
        """Return the figures of this moment. Lists directories. Raises TimeoutError if the loop hangs."""
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
    """Serve the map outputs below these directories to consumers on other hosts, until the caller stops it.

    ``directories``: Spark's local directories or those of ``spark.sortshuffle.dir``, or a function that
    returns them. ``host``: the interface to listen on, ``""`` for all; beyond loopback give a ``secret``.
    ``port``: 0 for a free one; `ShuffleService.address` says which. ``memory``: bytes of the read pool.

    Raises `UsageError` and `OptionError` for invalid arguments, OSError if the port is taken.
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
    """Return a socket that listens there, for the caller to close. ``host``: ``""`` for all interfaces.
    ``port``: 0 for a free one. Raises OSError."""
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
