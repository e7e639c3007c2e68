"""The command by which a JVM finds the engine of its host, or starts it if it is not running.

    python -m sortshuffle.service.host.jvm_launch     < a JSON object, as docs/manager.md describes it

Prints a JSON object with ``socket``, ``host`` and ``port`` once the engine has answered. On failure it exits
with status 3, and its last line on standard error says why. Any other status: Python cannot run the module.

For the driver it also makes the application's home at a URL, if that is a mounted directory.

The engine is the shuffle service of the application on this host (`service.host.rendezvous`). Tasks of this
package that run there use the same one, if they know the same secret.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import dataclass

from sortshuffle import calls
from sortshuffle.errors import (
    OptionError,
    ProtocolError,
    ServiceUnavailableError,
    SortShuffleError,
    UsageError,
)
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import process_start
from sortshuffle.homes.shared_home import make_stored_home
from sortshuffle.options import Options
from sortshuffle.service.host import rendezvous
from sortshuffle.service.host.registration import Registration
from sortshuffle.service.host.rendezvous_directory import directory_of, socket_path
from sortshuffle.service.host.service_config import ServiceConfig
from sortshuffle.service.jvm.greeting import GREETING, check_greeting, pack_greeting
from sortshuffle.service.wire.address import address_of_host, split_address
from sortshuffle.service.wire.secret import read_secret
from sortshuffle.storage.files.urls import why_not_shared

TOKEN_BYTES = 16  # as a file id, whose place the token takes in requests to remove a shuffle
# seconds until an engine must answer; a start takes 0.5 s. One that dies at each start is started nine times
GREETING_TIMEOUT = 30.0
POLL_SECONDS = 0.05  # seconds between two attempts to greet the engine
FAILED = 3  # exit status; Python's own are 1 and 2


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What the JVM says of itself. ``driver``: it is the driver's. ``outlives``: the service outlives it.
    ``driver_pid``: the driver's process, if that is known to be on this host; 0 if not."""

    application: str
    token: str
    secret: bytes
    driver: bool
    driver_host: str
    outlives: bool
    pid: int
    local_directories: tuple[str, ...]
    options: Options
    driver_pid: int = 0

    @staticmethod
    def unpack(text: str) -> LaunchRequest:
        """Parse a request. Raises `UsageError` if it is not as documented, `OptionError` for a setting."""
        try:
            fields = json.loads(text)
            request = LaunchRequest(
                application=str(fields["application"]),
                token=_token(fields["token"]),
                secret=_secret(fields["secret"]),
                driver=bool(fields["driver"]),
                driver_host=str(fields["driver_host"]),
                outlives=bool(fields["outlives"]),
                pid=int(fields["pid"]),
                local_directories=_directories(fields["local_directories"]),
                options=Options.of(fields["settings"]),
                driver_pid=int(fields.get("driver_pid", 0)),
            )
            if not request.roots():
                raise ValueError("neither local directories nor spark.sortshuffle.dir")
            return request
        except OptionError:
            raise
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"the launcher was asked in a way that it does not know: {error!r}") from None
        except ValueError as error:  # not JSON, or a malformed number or hexadecimal string
            raise UsageError(f"the launcher was asked in a way that it does not know: {error}") from None

    def roots(self) -> tuple[str, ...]:
        """Return the directories that hold the application's shared homes."""
        if self.options.directories:
            return self.options.directories
        if not self.outlives:
            return self.local_directories
        return tuple(dict.fromkeys(map(os.path.dirname, self.local_directories)))


def _secret(text: str) -> bytes:
    if not text:
        raise ValueError("no secret")
    return bytes.fromhex(text)


def _directories(field: object) -> tuple[str, ...]:
    if not isinstance(field, list):
        raise ValueError(f"local directories {field!r}")
    return tuple(map(str, field))


def _token(text: str) -> str:
    token = bytes.fromhex(text)
    if len(token) != TOKEN_BYTES:
        raise ValueError(f"a token of {len(token)} bytes")
    return token.hex()


def launch(request: LaunchRequest) -> dict[str, object]:
    """Start the engine if it is not running, wait until it answers, and return where it listens. Raises
    `ServiceUnavailableError`, `UsageError`, `ProtocolError`, OSError."""
    options, host = request.options, address_of_host(request.driver_host)
    problem = why_not_shared(options.storage_url) if options.storage_url else ""
    if problem:
        raise UsageError(f"spark.sortshuffle.dir is {options.storage_url}, and {problem}")
    secret = read_secret(options.service_secret_file) if options.service_secret_file else request.secret
    # not the file's secret: the random one distinguishes the engines of two applications with the same id
    directory = directory_of(request.application, host, request.secret, options)
    config = ServiceConfig.of(secret, options)
    registration = _registration(request)
    if registration.url and request.driver:
        make_stored_home(registration.stored_home)
    name, port = split_address(rendezvous.ensure(directory, host, config, registration))
    path = socket_path(directory)
    _wait_until_up(path, directory)
    return {"socket": path, "host": name, "port": port}


def _wait_until_up(path: str, directory: str) -> None:
    """Greet the engine until it answers. A connection alone proves nothing: the supervisor holds the socket,
    and connections wait there even for an engine that never comes up. Raises `ServiceUnavailableError`,
    `ProtocolError`."""
    until = time.monotonic() + GREETING_TIMEOUT
    while True:
        try:
            _greet(path, max(POLL_SECONDS, until - time.monotonic()))
            return
        except ProtocolError:
            raise
        except OSError as error:  # also if an engine dies meanwhile: the supervisor starts the next one
            if time.monotonic() >= until:
                raise ServiceUnavailableError(
                    f"the engine has not answered on {path} for {GREETING_TIMEOUT:g} s: {error}. The end of"
                    f" its log, in {directory}: {_last_words(directory)}"
                ) from error
            time.sleep(POLL_SECONDS)


def _greet(path: str, timeout: float) -> None:
    with calls.new_socket(socket.AF_UNIX) as client:
        client.settimeout(timeout)
        calls.connect(client, path)
        calls.sendall(client, pack_greeting())
        with client.makefile("rb") as answers:
            answer = answers.read(GREETING.size)
    if len(answer) < GREETING.size:
        raise ConnectionError("it has closed the connection")
    check_greeting(answer, is_of_engine=True)


def _last_words(directory: str) -> str:
    try:
        return rendezvous.last_words(directory)
    except OSError as error:
        return str(error)


def _registration(request: LaunchRequest) -> Registration:
    url = request.options.storage_url
    owner = Owner.of_process(
        request.pid,
        request.application,
        request.local_directories,
        request.options.grace,
        request.options.keep,
        outlived=request.outlives and not url,  # files at a URL need no service
    )
    return Registration(
        owner,
        roots=(),
        shared_roots=() if url else request.roots(),
        token=request.token,
        url=url,
        is_driver=request.driver,
        driver_pid=request.driver_pid,
        driver_started=(process_start(request.driver_pid) or 0) if request.driver_pid else 0,
    )


def main() -> int:
    """Run the command, and return the exit status."""
    try:
        address = launch(LaunchRequest.unpack(sys.stdin.read()))
    except (SortShuffleError, OSError) as error:
        print(error, file=sys.stderr)
        return FAILED
    print(json.dumps(address), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
