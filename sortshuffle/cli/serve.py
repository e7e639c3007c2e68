"""`sortshuffle serve`: an administrator's shuffle service for one host, and a look at one that runs.

In the foreground, for whatever keeps daemons running. Ends in good order on SIGTERM and SIGINT.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from types import FrameType

import click

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
from sortshuffle.service.server.shuffle_service import ServerSettings, ShuffleService, listen
from sortshuffle.service.server.transport import ServerTls
from sortshuffle.service.wire.address import join_address
from sortshuffle.service.wire.secret import read_secret

PORT = 7448
HTTP_PORT = 7449
_TIME_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_FILE = click.Path(exists=True, dir_okay=False)


def _seconds(context: click.Context, parameter: click.Parameter, text: str) -> float:
    match = re.fullmatch(r"(\d+)([a-z]+)", text.strip().lower())
    if match is None or match[2] not in _TIME_UNITS:
        raise click.BadParameter(f"{text!r} is not a time such as 90s, 30min or 12h")
    return float(match[1]) * _TIME_UNITS[match[2]]


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
    callback=_seconds,
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
def serve(
    directories: tuple[str, ...],
    host: str,
    port: int,
    secret_file: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    memory: int,
    http_port: int,
    http_host: str,
    linger: float,
    status: str | None,
    as_json: bool,
) -> None:
    """Serve this host's map outputs to other hosts.

    DIR are the directories that spark.sortshuffle.dir names, in applications that set
    spark.sortshuffle.service=external. Run one on every host, as the user that the executors run as. It
    serves whoever knows the secret; without one only this host, with --host 127.0.0.1. Map outputs of
    applications that have ended are removed.

    Exit codes: 0 ended by SIGTERM or SIGINT, 1 it could not go on, 2 the call is wrong, 4 with --status: a
    service does not answer.
    """
    if status is not None:
        _show(status, as_json)
        return
    if as_json:
        raise UsageError("--json needs --status")
    if not directories:
        raise UsageError("name the directories to serve: those of spark.sortshuffle.dir")
    settings = ServerSettings(
        secret=read_secret(secret_file) if secret_file else None,
        tls=_tls(tls_certificate, tls_key),
        memory=memory,
        memory_option="--memory",
        secret_option="--secret-file",
    )
    with ExitStack() as opened:
        service = _service(directories, host, port, settings)
        opened.callback(service.stop)
        pages = opened.enter_context(closing(_pages(service, http_host, http_port)))
        opened.enter_context(_sweeping(LingeringSweep(lambda: directories, linger)))
        stopped = _end_on_signals(service.stop)
        click.echo(f"sortshuffle serves {', '.join(directories)} at {service.address}; status: {pages.url}")
        try:
            service.run()
        except StateError:
            if not stopped.is_set():
                raise  # else it was told to end before it had begun


def _show(address: str, as_json: bool) -> None:
    """Of all services that answer. The document names the first that does not, standard error every one."""
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


def _tls(certificate: str | None, key: str | None) -> ServerTls | None:
    if bool(certificate) != bool(key):
        raise UsageError("--tls-certificate and --tls-key belong together: give both, or none")
    return ServerTls(certificate, key) if certificate and key else None


def _service(directories: tuple[str, ...], host: str, port: int, settings: ServerSettings) -> ShuffleService:
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
        return ShuffleService(listening, lambda: directories, settings)
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


def _end_on_signals(stop: Callable[[], None]) -> threading.Event:
    """Set when a signal has come."""
    came = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        came.set()
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return came
