"""What `sortshuffle serve --status` prints: a shuffle service at one moment.

The same figures as on its status page. Long tables are cut after `LIMIT` rows, which is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from sortshuffle.cli.output import Column, ConsoleOutput, Row, count, plural
from sortshuffle.options import format_size
from sortshuffle.service.pages.status import ApplicationStatus, ConnectionStatus, ServiceStatus

LIMIT = 40  # rows of a table
STALL = 5.0  # seconds; a client that takes nothing for so long is marked

_CONNECTION_COLUMNS = (
    Column("client", left=True),
    Column("channels"),
    Column("seconds"),
    Column("sent"),
    Column("waiting"),
    Column("stalled s"),
)
_APPLICATION_COLUMNS = (
    Column("application", left=True),
    Column("executors"),
    Column("map outputs"),
    Column("bytes"),
)


def print_status(out: ConsoleOutput, status: ServiceStatus, page: str) -> None:
    """Figures of the whole, then its applications, then its connections, the slowest first. ``page``: where
    its status page is."""
    out.gap()
    out.line(f"shuffle service {status.address}", "bold")
    out.fields([("page", page), *_facts(status)])
    _print_applications(out, status.applications)
    _print_connections(out, status.connections)


def _facts(status: ServiceStatus) -> list[tuple[str, str]]:
    return [
        ("runs", f"sortshuffle {status.version}, process {status.pid}, for {status.uptime:.0f} s"),
        ("asks for", f"{_if(status.authenticated, 'secret')}, {_if(status.encrypted, 'TLS')}"),
        *(("serves", root) for root in status.roots),
        ("clients", _clients(status)),
        ("sent", _moved(status.bytes_sent_total, status.buffers_sent_total, "response")),
        ("read", _moved(status.bytes_read_total, status.reads_total, "read")),
        ("queue", _queue(status)),
        ("memory", _memory(status)),
    ]


def _clients(status: ServiceStatus) -> str:
    accepted = plural(status.connections_total, "connection")
    refused = f"{count(status.connections_refused_total)} refused"
    asked = f"{plural(status.requests_total, 'request')}, {plural(status.errors_total, 'error')}"
    return f"{accepted}, {refused}; {asked}"


def _moved(size: int, times: int, noun: str) -> str:
    average = f", {format_size(size / times)} on average" if times else ""
    return f"{format_size(size)} in {plural(times, noun)}{average}"


def _queue(status: ServiceStatus) -> str:
    waiting = plural(status.reads_waiting, "map output")
    return f"{waiting} to read; {plural(status.readers, 'reader')} of {status.partitions_open} open"


def _memory(status: ServiceStatus) -> str:
    taken = status.pool_segments - status.pool_segments_free
    held, whole = (format_size(number * status.segment_bytes) for number in (taken, status.pool_segments))
    return f"{held} of {whole} in use, {count(taken)} of {plural(status.pool_segments, 'segment')}"


def _if(is_so: bool, what: str) -> str:
    return what if is_so else f"no {what}"


def _print_applications(out: ConsoleOutput, applications: Sequence[ApplicationStatus]) -> None:
    ordered = sorted(applications, key=lambda each: (-each.bytes, each.application))
    rows = [
        Row([each.application, count(each.homes), count(each.map_outputs), format_size(each.bytes)])
        for each in ordered
    ]
    _print_table(out, _APPLICATION_COLUMNS, rows, "application")


def _print_connections(out: ConsoleOutput, connections: Sequence[ConnectionStatus]) -> None:
    ordered = sorted(connections, key=lambda each: (-each.stalled, -each.backlog, each.peer))
    rows = [
        Row(
            [
                each.peer,
                count(each.channels),
                f"{each.seconds:.0f}",
                format_size(each.bytes_sent),
                format_size(each.backlog),
                f"{each.stalled:.1f}" if each.stalled else "",
            ],
            "yellow" if each.stalled >= STALL else "",
        )
        for each in ordered
    ]
    _print_table(out, _CONNECTION_COLUMNS, rows, "connection")


def _print_table(out: ConsoleOutput, columns: Sequence[Column], rows: Sequence[Row], noun: str) -> None:
    out.gap()
    if not rows:
        out.line(f"There are no {noun}s.", "dim")
        return
    out.table(columns, rows[:LIMIT])
    if len(rows) > LIMIT:
        out.line(f"... and {plural(len(rows) - LIMIT, f'more {noun}')}", "dim")
