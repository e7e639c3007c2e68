"""The process of a shuffle service that tasks started; `service.host.supervisor` keeps it running.

    python -m sortshuffle.service.host.process RENDEZVOUS TCP UNIX  < one line: the configuration

It inherits two listening sockets, on which it serves the map outputs of the executors registered at the
rendezvous: to other hosts, and to the JVMs of this host. When its supervisor ends, so does its standard
input, and then the process.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from dataclasses import dataclass

from sortshuffle import calls
from sortshuffle.format.header import Codec
from sortshuffle.service.client.client_settings import ClientSettings, ClientTls
from sortshuffle.service.host import rendezvous
from sortshuffle.service.host.service_config import ServiceConfig
from sortshuffle.service.jvm.engine import Engine, EngineSettings, SharedHomes
from sortshuffle.service.jvm.server import JvmServer
from sortshuffle.service.server.shuffle_service import ServerSettings, ShuffleService
from sortshuffle.service.server.transport import ServerTls

# ns; a file system's clock ticks every few ms, so two registrations in one tick leave the same time
JUST_NOW = 100_000_000


@dataclass(frozen=True, slots=True)
class RootsAtTime:
    """What the registrations say. ``changed``: when they last changed, in ns since 1970.
    ``spark_directories``: of the application's executors."""

    changed: int
    roots: tuple[str, ...]
    shared: SharedHomes
    spark_directories: tuple[str, ...] = ()


def main(directory: str, listening: int, local: int) -> None:
    """Serve until the supervisor ends. ``listening``, ``local``: descriptors of the TCP and Unix sockets."""
    config = ServiceConfig.unpack(sys.stdin.buffer.readline())
    open_as_many_files_as_allowed()
    engine = engine_of(directory, config)
    roots = RegisteredRoots(directory)
    service = ShuffleService(
        calls.new_socket(fileno=listening),
        roots,
        settings_of(config),
        engine.remove_for_peer,
        roots.spark_directories,
    )
    JvmServer(calls.new_socket(fileno=local), engine).start()
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    threading.Thread(target=_show_status, args=(service, directory), daemon=True).start()
    if engine.has_homes:  # in a thread: a disk or a mount that hangs must not hold up the service
        threading.Thread(target=engine.prepare, daemon=True).start()
    service.run()


class RegisteredRoots:
    """The directories with the homes of registered executors, read again when registrations change."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._application = rendezvous.application_of(directory)
        self._last = RootsAtTime(0, (), SharedHomes(()))

    def __call__(self) -> tuple[str, ...]:
        return self._current().roots

    def spark_directories(self, application: str) -> tuple[str, ...]:
        """Return Spark's directories of the application's executors on this host; none for any other."""
        return self._current().spark_directories if application == self._application else ()

    def shared_homes(self) -> SharedHomes:
        """Return where map outputs that belong to the application lie."""
        return self._current().shared

    def _current(self) -> RootsAtTime:
        try:
            changed = rendezvous.changed_at(self._directory)
            if changed != self._last.changed or time.time_ns() - changed < JUST_NOW:
                self._last = self._read(changed)
        except OSError:
            pass  # such as too many open files: the last answer holds until the system recovers
        return self._last

    def _read(self, changed: int) -> RootsAtTime:
        registrations = rendezvous.registrations(self._directory)
        homes = dict.fromkeys(home for each in registrations for home in each.shared_homes)
        stored = dict.fromkeys(each.stored_home for each in registrations if each.url)
        token = next((each.token for each in registrations if each.token), "")
        keep = any(each.keeps_shared_homes for each in registrations)
        of_spark = frozenset(home for each in registrations for home in each.homes_of_spark)
        shared = SharedHomes(tuple(stored or homes), token, keep, of_spark)
        local = dict.fromkeys(path for each in registrations for path in each.spark_directories)
        return RootsAtTime(changed, rendezvous.roots_of(self._directory), shared, tuple(local))


def engine_of(directory: str, config: ServiceConfig) -> Engine:
    """Create the engine for the application of this rendezvous."""
    clients = ClientSettings(
        config.secret or None, ClientTls(config.authority) if config.authority else None, config.timeout
    )
    settings = EngineSettings(
        application=rendezvous.application_of(directory),
        address=rendezvous.address_of(directory),
        write_memory=config.write_memory,
        codec=Codec[config.codec.upper()],
        codec_level=config.codec_level,
        clients=clients,
        keeper=os.getppid(),
    )
    return Engine(settings, RegisteredRoots(directory).shared_homes)


def settings_of(config: ServiceConfig) -> ServerSettings:
    """Return the server's settings."""
    tls = ServerTls(config.certificate, config.key) if config.certificate else None
    return ServerSettings(secret=config.secret or None, tls=tls, memory=config.memory)


def open_as_many_files_as_allowed() -> None:
    """Raise the limit: a service needs a descriptor for every client and every map output being read."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _show_status(service: ShuffleService, directory: str) -> None:
    from sortshuffle.service.pages.http import StatusServer  # takes 0.1 s, while clients are served already

    rendezvous.write_status_page(directory, StatusServer(service.status).url)


def _end_with_supervisor() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)  # nothing to clean up: the files are not the service's, and clients see their connections end


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
