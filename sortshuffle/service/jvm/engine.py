"""`Engine`: the state that all connections of the JVMs of this host share.

    connection, connection, ..  -->  Engine  -->  MapOutputs      the files of the application on this host
                                             -->  segments        receive frames from the socket
                                             -->  memory          for records that wait for their region
                                             -->  NonLocalCache   map outputs on other hosts, and at a URL

Any thread may call any method. Each shared part has its own lock; all locks are leaves.
"""

from __future__ import annotations

import hmac
import logging
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sortshuffle import calls
from sortshuffle.errors import (
    BufferTimeoutError,
    ProtocolError,
    ServiceUnavailableError,
    SortShuffleError,
    StateError,
    WorkerSetupError,
)
from sortshuffle.format.encryption import EncryptionKey, why_no_encryption
from sortshuffle.format.header import Codec
from sortshuffle.homes import home_failures
from sortshuffle.homes.host import host_name
from sortshuffle.homes.lifetime import PARTIAL_SETTLES, remove_unowned, sweep_partials
from sortshuffle.homes.shared_home import expect_stored_home, make_shared_home
from sortshuffle.memory.network_buffer_pool import NetworkBufferPool
from sortshuffle.memory.shared_budget import SharedBudget
from sortshuffle.options import MIB
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.jvm.block_reader import BlockReader
from sortshuffle.service.jvm.lost_blocks import PROBLEMS
from sortshuffle.service.jvm.map_output_writer import SEGMENT_BYTES, MapOutputWriter, WritingResources
from sortshuffle.service.jvm.outputs import MapOutputCache, MapOutputs
from sortshuffle.service.jvm.protocol import EVERYTHING, ReadRequest, RemoveRequest, WriteRequest
from sortshuffle.service.jvm.remote import RemoteSettings
from sortshuffle.service.jvm.silent_services import RETRY_AFTER, SilentServices
from sortshuffle.service.jvm.stored import StoredSettings
from sortshuffle.service.wire.address import split_address
from sortshuffle.service.wire.protocol import MapOutputAddress
from sortshuffle.storage.files.urls import is_url, root_and_application
from sortshuffle.storage.stored.stored_cleaning import remove_remains

# Map outputs that may be written at the same time; more must wait. Each has a segment, which costs nothing
# but address space until a frame comes
MOST_WRITERS = 256
# The most that their segments take of a limited address space. A service that a Python worker starts inherits
# the worker's limit (spark.executor.pyspark.memory), which is usually less than 256 segments take. That
# service has an engine even if no JVM of the application ever asks for one
SEGMENTS_SHARE = 1 / 4
# Bytes of records that each writer may hold whatever the others hold: two frames, and the memory to write
# them. With less, every frame would become a region
FLOOR_BYTES = 16 * MIB
REMOVAL_TIMEOUT = 10.0  # seconds for another host to accept the removal of a shuffle
REMOVAL_THREADS = 4  # threads for such requests: a few silent hosts must not delay the others
WRITER_TIMEOUT = 600.0  # seconds that a task waits for another one to finish writing
SWEEP_AFTER = PARTIAL_SETTLES + 1.0  # seconds
MEMORY_OPTION = "spark.sortshuffle.manager.memory"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """``application``: its id. ``address``: of this host's service. ``write_memory``: bytes for records that
    wait for their region. ``codec``, ``codec_level``: for new map outputs. ``clients``: how to reach other
    hosts' services. ``keeper``: the process that keeps this one running."""

    application: str
    address: str
    write_memory: int
    codec: Codec
    codec_level: int
    clients: ClientSettings
    keeper: int


@dataclass(frozen=True, slots=True)
class SharedHomes:
    """``paths``: the application's shared homes on this host, or its one home at a URL. ``token``: the
    application's, hex digits; empty until a JVM has registered. ``keep``: the homes stay when the application
    ends. ``of_spark``: the homes in directories that Spark makes; after Spark has removed the directory, such
    a home is not made again."""

    paths: tuple[str, ...]
    token: str = ""
    keep: bool = False
    of_spark: frozenset[str] = frozenset()


class Engine:
    """``homes``: returns the shared homes that executors have registered; called anew for each use."""

    def __init__(self, settings: EngineSettings, homes: Callable[[], SharedHomes]) -> None:
        self.settings = settings
        self._homes_now = homes
        self._last_homes = SharedHomes(())
        self._home_locks: dict[str, threading.Lock] = {}  # by home
        self._locks_guard = threading.Lock()  # guards the dict of locks
        self._ready: set[str] = set()  # homes that this engine has made
        known = MapOutputCache()
        self._key: EncryptionKey | None = None
        self._key_lock = threading.Lock()
        self.outputs = MapOutputs(lambda: self._registered().paths, known, self._homes, lambda: self._key)
        self._most_writers = most_writers()
        segments = NetworkBufferPool(self._most_writers, SEGMENT_BYTES, option=MEMORY_OPTION)
        self.memory = SharedBudget(settings.write_memory, FLOOR_BYTES)
        self._writing = WritingResources(
            settings.application,
            host_name(),
            self.outputs,
            segments,
            self.memory,
            settings.codec,
            settings.codec_level,
        )
        self._writers = threading.BoundedSemaphore(self._most_writers)
        self._removal_threads = ThreadPoolExecutor(REMOVAL_THREADS, thread_name_prefix="sortshuffle-remove")
        self._silent = SilentServices()
        self._remote = RemoteSettings.of(settings.application, settings.clients)
        self._stored = StoredSettings.at("", known)

    def _registered(self) -> SharedHomes:
        """Return what executors have registered. If the temporary directory with the registrations is
        emptied, the last answer holds: otherwise all map outputs would count as lost."""
        homes = self._homes_now()
        if homes.paths:
            self._last_homes = homes
        return self._last_homes

    @property
    def port(self) -> int:
        """The port of this host's service."""
        return split_address(self.settings.address)[1]

    @property
    def has_homes(self) -> bool:
        """Whether a JVM has registered."""
        return bool(self._registered().paths)

    def prepare(self) -> None:
        """Make the shared homes ready. An earlier engine may have left unfinished files in them."""
        try:
            self._homes()
        except (OSError, SortShuffleError) as error:  # a task that writes will get the error
            _log.warning("the shared homes are not ready: %s", error)

    def use_key(self, secret: bytes) -> None:
        """Take the key of the application's files, which each of its JVMs sends, and keep it in memory only.
        Raises `ProtocolError` for a key that is malformed or differs from the first; `WorkerSetupError` if
        this Python cannot encrypt."""
        with self._key_lock:
            try:
                key = EncryptionKey(bytes(secret))
            except ValueError as error:
                raise ProtocolError(f"a JVM has given a key that is none: {error}") from None
            if self._key is not None and not hmac.compare_digest(self._key.secret, key.secret):
                raise ProtocolError("a JVM has given another key than the one before it")
            if self._key is None and (missing := why_no_encryption()):
                raise WorkerSetupError(f"files are to be encrypted, and {missing}")
            self._key = key

    @contextmanager
    def writing(self, request: WriteRequest) -> Iterator[MapOutputWriter]:
        """Begin a new map output, and abandon it unless it is finished. Waits while too many are being
        written. Raises `BufferTimeoutError`, and as `MapOutputs.new` does."""
        if not self._writers.acquire(timeout=WRITER_TIMEOUT):
            raise BufferTimeoutError(
                f"{self._most_writers} map outputs are written on this host at the same time, and none was"
                f" finished for {WRITER_TIMEOUT:g} s: let fewer tasks run at a time, by spark.executor.cores"
            )
        try:
            writing = MapOutputWriter(request, self._writing)
            try:
                yield writing
            finally:
                _close(writing)
        finally:
            self._writers.release()

    def read(self, request: ReadRequest) -> BlockReader:
        """Return a reader of these blocks. The caller closes it."""
        stored = next(filter(is_url, self._registered().paths), "")
        if stored:  # no service is asked then, whatever the request names
            elsewhere = replace(self._stored, home=stored, key=self._key)
            return BlockReader(request, self.outputs, "", elsewhere)
        remote = self._remote if self._key is None else replace(self._remote, key=self._key)
        return BlockReader(request, self.outputs, self.settings.address, remote)

    def remove(self, request: RemoveRequest) -> None:
        """Delete a shuffle's map outputs here, and ask the named services to do the same, in the background.
        If one does not answer, its map outputs stay until the application ends.

        `EVERYTHING` means that the application ends: delete its files at its URL now. Each host's rendezvous
        deletes those on the host.
        """
        if request.shuffle == EVERYTHING:
            self._remove_stored()
            return
        try:
            self._remove(request.shuffle)
        finally:
            for service in request.services:
                if service != self.settings.address:
                    self._tell_later(service, request.shuffle)

    def _tell_later(self, service: str, shuffle: int) -> None:
        try:
            self._removal_threads.submit(self._tell, service, shuffle)
        except (RuntimeError, MemoryError) as error:  # no thread can be started; one that ends may do it yet
            _log.warning("shuffle %d may not be removed where %s serves: %s", shuffle, service, error)

    def _remove_stored(self) -> None:
        registered = self._registered()
        for home in registered.paths:
            if is_url(home) and not registered.keep:
                remove_remains(*root_and_application(home))

    def remove_for_peer(self, shuffle: MapOutputAddress) -> bool:
        """Delete a shuffle's map outputs here, at the request of the engine on the driver's host. Returns
        False, and deletes nothing, if this engine does not belong to that application."""
        token = self._registered().token
        known = bool(token) and shuffle.application == self.settings.application
        if not known or not hmac.compare_digest(shuffle.file_id, bytes.fromhex(token)):
            return False
        self._remove(shuffle.exchange)
        return True

    def _remove(self, shuffle: int) -> None:
        self._remote.known.forget_all(shuffle)
        self._stored.known.forget_all(shuffle)
        self.outputs.remove(shuffle)

    def note_failure(self, error: BaseException) -> None:
        """Note that a map output could not be written. If its home is at fault, the next go to another."""
        if isinstance(error, OSError) and not isinstance(error, ServiceUnavailableError):
            home_failures.note_failure(error)

    def _tell(self, service: str, shuffle: int) -> None:
        """Ask a service on another host to remove a shuffle, unless the service is skipped."""
        began = self._silent.begin_attempt(service)
        if began is None:
            return
        settings = replace(self.settings.clients, timeout=REMOVAL_TIMEOUT)
        clients = ServiceClients(settings)
        try:
            token = bytes.fromhex(self._registered().token)
            if not clients.client(service).remove(self.settings.application, shuffle, token):
                _log.warning("%s does not serve this application: nothing of shuffle %d", service, shuffle)
            self._silent.answered(service)
        except PROBLEMS as error:
            _log.warning("shuffle %d is not removed where %s serves: %s", shuffle, service, error)
            if isinstance(error, ServiceUnavailableError):
                if self._silent.failed(service, began):
                    _log.warning(
                        "%s gets no removal requests for %g s, and longer each time: it does not answer",
                        service,
                        RETRY_AFTER,
                    )
            elif isinstance(error, SortShuffleError):
                self._silent.answered(service)  # a refusal is an answer
        finally:
            clients.close()

    def _homes(self) -> tuple[str, ...]:
        """Return the shared homes, and make each when it is first needed. Writers skip a home that cannot be
        made (`homes.directories`). Raises OSError if the home at a URL is not visible here."""
        registered = self._registered()
        if not registered.paths:
            raise StateError("no executor has registered a directory for map outputs of this host")
        for home in registered.paths:
            if is_url(home):
                expect_stored_home(home)
                continue
            with self._locks_guard:
                lock = self._home_locks.setdefault(home, threading.Lock())
            with lock:  # of this home only: making it may take long
                if home not in self._ready or not calls.isdir(home):
                    self._make(home, registered)
        return registered.paths

    def _sweep_later(self, home: str) -> None:
        """Start a timer that removes what a killed engine left: unfinished files, old and not locked."""
        timer = threading.Timer(SWEEP_AFTER, _sweep, (home,))
        timer.daemon = True
        timer.start()

    def _make(self, home: str, registered: SharedHomes) -> None:
        try:
            makes_root = home not in registered.of_spark
            make_shared_home(home, self.settings.keeper, registered.keep, makes_root=makes_root)
        except OSError as error:
            if home_failures.is_homes_fault(error):
                remove_unowned(home)
                home_failures.remember_in_process(home, error)
            return
        home_failures.watch((home,))
        if home not in self._ready:
            self._ready.add(home)
            self._sweep_later(home)


def _close(writing: MapOutputWriter) -> None:
    try:
        writing.close()
    except OSError as error:  # the map output is finished or abandoned nevertheless
        _log.warning("what a map output left unfinished is not wholly removed: %s", error)


def _sweep(home: str) -> None:
    try:
        sweep_partials(home, time.time())
    except OSError as error:
        _log.warning("unfinished files in %s stay until the application ends: %s", home, error)


def most_writers() -> int:
    """Return how many map outputs may be written at a time in the address space of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return MOST_WRITERS
    return max(1, min(MOST_WRITERS, int(soft * SEGMENTS_SHARE) // SEGMENT_BYTES))
