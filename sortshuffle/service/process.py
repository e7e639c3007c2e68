"""The process of a shuffle service that tasks started: what `service.supervisor` keeps running.

    python -m sortshuffle.service.process RENDEZVOUS LISTENING     < the configuration, one line, then nothing

It serves what the executors that have registered at the rendezvous have below their roots, on the listening
socket that it was given. It ends when its standard input does: then its supervisor has ended.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
import time
from dataclasses import dataclass

from sortshuffle.service import rendezvous
from sortshuffle.service.rendezvous import ServiceConfig
from sortshuffle.service.shuffle_service import ServerSettings, ShuffleService
from sortshuffle.service.transport import ServerTls

# ns; a file system's clock ticks every some ms, and two that register in one tick leave one time
JUST_NOW = 100_000_000


@dataclass(frozen=True, slots=True)
class ReadRoots:
    """What was read, and when it had last been changed: ns since 1970."""

    changed: int
    roots: tuple[str, ...]


def main(directory: str, listening: int) -> None:
    """Serve until the supervisor has ended."""
    config = ServiceConfig.unpack(sys.stdin.buffer.readline())
    open_as_many_files_as_allowed()
    service = ShuffleService(socket.socket(fileno=listening), RegisteredRoots(directory), settings_of(config))
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    threading.Thread(target=_show_status, args=(service, directory), daemon=True).start()
    service.run()


class RegisteredRoots:
    """The directories in which registered executors have their homes, read anew only if others have come."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._read = ReadRoots(0, ())

    def __call__(self) -> tuple[str, ...]:
        changed = rendezvous.changed_at(self._directory)
        if changed != self._read.changed or time.time_ns() - changed < JUST_NOW:
            self._read = ReadRoots(changed, rendezvous.roots_of(self._directory))
        return self._read.roots


def settings_of(config: ServiceConfig) -> ServerSettings:
    """What the service is told, as it takes it."""
    tls = ServerTls(config.certificate, config.key) if config.certificate else None
    return ServerSettings(secret=config.secret or None, tls=tls, memory=config.memory)


def open_as_many_files_as_allowed() -> None:
    """A service has a descriptor for every client, and for every map output that is being read."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _show_status(service: ShuffleService, directory: str) -> None:
    from sortshuffle.service.http import StatusServer  # takes 0.1 s, for which no client has to wait

    rendezvous.tell_status_page(directory, StatusServer(service.status).url)


def _end_with_supervisor() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)  # nothing that it has outlives it: what it reads is others', and clients see a connection end


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
