"""`sortshuffle serve`: runs an administrator's shuffle service for one host, or shows the status of one.

The service runs in the foreground, under a supervisor such as systemd. SIGTERM and SIGINT stop it cleanly, or
if a disk hangs, end its process after `STOP_TIMEOUT`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import click

from sortshuffle.cli.durations import seconds_of
from sortshuffle.cli.output import ConsoleOutput, print_json
from sortshuffle.cli.service_page import print_status
from sortshuffle.cli.unseen import CannotLook
from sortshuffle.errors import ProtocolError, ServiceUnavailableError, StateError, UsageError
from sortshuffle.options import parse_size
from sortshuffle.service.host import rendezvous
from sortshuffle.service.host.process import open_as_many_files_as_allowed
from sortshuffle.service.pages.http import LOOPBACK, StatusServer, fetch_status, page_of
from sortshuffle.service.pages.status import ServiceStatus
from sortshuffle.service.server.linger import LINGER, SWEEP_EVERY, LingeringSweep
from sortshuffle.service.server.shuffle_service import STOP_TIMEOUT, ServerSettings, ShuffleService, listen
from sortshuffle.service.server.transport import ServerTls
from sortshuffle.service.wire.address import join_address
from sortshuffle.service.wire.secret import read_secret

PORT = 7448
HTTP_PORT = 7449
_FILE = click.Path(exists=True, dir_okay=False)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of a service. ``http_host``, ``http_port``: of the status page. ``linger``: seconds."""

    directories: tuple[str, ...]
    host: str
    port: int
    secret_file: str | None
    tls_certificate: str | None
    tls_key: str | None
    memory: int
    http_port: int
    http_host: str
    linger: float

    def settings(self) -> ServerSettings:
        """Return the server's settings. Raises `UsageError` for a secret or TLS options that are unusable."""
        return ServerSettings(
            secret=read_secret(self.secret_file) if self.secret_file else None,
            tls=self._tls(),
            memory=self.memory,
            memory_option="--memory",
            secret_option="--secret-file",
        )

    def _tls(self) -> ServerTls | None:
        certificate, key = self.tls_certificate, self.tls_key
        if bool(certificate) != bool(key):
            raise UsageError("--tls-certificate and --tls-key belong together: give both, or none")
        return ServerTls(certificate, key) if certificate and key else None


def _bytes(context: click.Context, parameter: click.Parameter, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a size such as 64m or 1g") from None


@click.command(short_help="Serve this host's map outputs to other hosts.")
@click.argument("directories", metavar="[DIR...]", nargs=-1, type=click.Path(exists=True, file_okay=False))
@click.option("--host", default="", help="Interface to listen on. Default: all.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0: a free one.")
@click.option("--secret-file", type=_FILE, help="What clients must know; readable by its owner only.")
@click.option(
    "--tls-certificate", type=_FILE, help="PEM file with the certificate and its chain. Turns on TLS."
)
@click.option("--tls-key", type=_FILE, help="PEM file with the certificate's key.")
@click.option(
    "--memory", default="64m", callback=_bytes, show_default=True, help="What it reads into, for all clients."
)
@click.option(
    "--http-port",
    default=HTTP_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Of the status page and /metrics, on 127.0.0.1. 0: a free one.",
)
@click.option("--http-host", default=LOOPBACK, show_default=True, help="Interface of the status page.")
@click.option(
    "--linger",
    default=f"{LINGER / 3600:.0f}h",
    show_default=True,
    callback=seconds_of("90s, 30min or 12h"),
    metavar="TIME",
    help="How long an application's map outputs stay after its last executor here, where Spark's own"
    " directories do not show that it has ended.",
)
@click.option(
    "--status",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="Show what a service does, and end: the one whose status page is at ADDRESS; without one, all that"
    " tasks of this user have started on this host, or the one at the default port.",
)
@click.option("--json", "as_json", is_flag=True, help="With --status: print one JSON object.")
def serve(status: str | None, as_json: bool, **options: Any) -> None:
    """Serve this host's map outputs to other hosts.

    DIR are the directories that spark.sortshuffle.dir names, in applications that set
    spark.sortshuffle.service=external. Run one on every host, as the user that the executors run as. It
    serves whoever knows the secret; without one only this host, with --host 127.0.0.1. Map outputs of
    applications that have ended are removed.

    Exit codes: 0 ended by SIGTERM or SIGINT, 1 it could not go on, or a disk hung when it was to end, 2 the
    call is wrong, 4 with --status: a service does not answer.
    """
    if status is not None:
        _show(status, as_json)
        return
    if as_json:
        raise UsageError("--json needs --status")
    if not options["directories"]:
        raise UsageError("name the directories to serve: those of spark.sortshuffle.dir")
    _serve(ServeOptions(**options))


def _serve(options: ServeOptions) -> None:
    """Serve until a signal arrives."""
    directories = options.directories
    with ExitStack() as stack:
        end = stack.enter_context(closing(_BoundedEnd(STOP_TIMEOUT)))
        service = _service(options)
        stack.callback(service.stop)
        pages = stack.enter_context(closing(_pages(service, options.http_host, options.http_port)))
        stack.enter_context(_sweeping(LingeringSweep(lambda: directories, options.linger)))
        stack.callback(end.begin)  # before all others
        _end_on_signals(end, service.stop)
        click.echo(f"sortshuffle serves {', '.join(directories)} at {service.address}; status: {pages.url}")
        try:
            service.run()
        except StateError:
            if not end.is_begun:
                raise  # otherwise a signal arrived before the service ran


def _show(address: str, as_json: bool) -> None:
    """Print the status of all services that answer. Of those that do not, the JSON document names the first,
    and standard error all."""
    default = join_address(LOOPBACK, HTTP_PORT)
    addresses = [address] if address else rendezvous.status_pages() or [default]
    found: dict[str, ServiceStatus] = {}  # by page
    refusals = []
    for each in addresses:
        try:
            found[page_of(each)] = fetch_status(each)
        except (ServiceUnavailableError, ProtocolError) as error:
            refusals.append(CannotLook(page_of(each), str(error)))
    if as_json:
        services = [{"page": page, **asdict(status)} for page, status in found.items()]
        print_json({"services": services, "error": refusals[0].document if refusals else None})
    else:
        out = ConsoleOutput()
        for page, status in found.items():
            print_status(out, status, page)
    for refusal in refusals[1:]:
        refusal.show()
    if refusals:
        raise refusals[0]


def _service(options: ServeOptions) -> ShuffleService:
    settings, host, port = options.settings(), options.host, options.port
    open_as_many_files_as_allowed()
    try:
        listening = listen(host, port)
    except OSError as error:
        where = join_address(host or "*", port)
        raise UsageError(
            f"cannot listen at {where}: {error.strerror or error}. Is another service running? Give another"
            " --port, and set spark.sortshuffle.service.port to it"
        ) from error
    try:
        return ShuffleService(listening, lambda: options.directories, settings)
    except OSError as error:
        listening.close()
        raise UsageError(f"the files for TLS cannot be used: {error}") from error
    except BaseException:
        listening.close()
        raise


def _pages(service: ShuffleService, host: str, port: int) -> StatusServer:
    try:
        return StatusServer(service.status, host, port)
    except OSError as error:
        where = join_address(host, port)
        raise UsageError(
            f"the status page cannot listen at {where}: {error.strerror or error}. Give another --http-port"
        ) from error


@contextmanager
def _sweeping(sweep: LingeringSweep) -> Iterator[None]:
    """Sweep in a thread while the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(SWEEP_EVERY):
            try:
                sweep.sweep()
            except OSError as error:
                click.echo(f"sweeping failed, and is tried again: {error}", err=True)

    thread = threading.Thread(target=run, name="sortshuffle-linger", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _BoundedEnd:
    """Ends the process with exit code 1 if the service does not end within ``seconds`` of `begin`. Threads
    that wait for a disk cannot be interrupted, and Python itself would wait for them."""

    def __init__(self, seconds: float) -> None:
        self.is_begun = False
        self._seconds = seconds
        # queues, not events: a handler may interrupt another one's `put`, but would wait for its `Event.set`
        self._begun: SimpleQueue[None] = SimpleQueue()
        self._over: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="sortshuffle-end", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Start the clock: the service is to end. May be called again, and in signal handlers."""
        self.is_begun = True
        self._begun.put(None)

    def close(self) -> None:
        """Stop the clock: the service has ended, and its threads too."""
        self._over.put(None)
        self._begun.put(None)
        self._thread.join()

    def _watch(self) -> None:
        self._begun.get()
        try:
            self._over.get(timeout=self._seconds)
        except Empty:
            try:
                why = f"the service did not end within {self._seconds:g} s: a disk hangs, or is slow"
                click.echo(f"Error: {why}. Its process ends without waiting for it", err=True)
            finally:
                os._exit(1)


def _end_on_signals(end: _BoundedEnd, stop: Callable[[], None]) -> None:
    """Begin the end on SIGTERM and SIGINT."""

    def handle(number: int, frame: FrameType | None) -> None:
        end.begin()
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
