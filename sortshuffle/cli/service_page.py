"""The output of `sortshuffle serve --status`: a snapshot of the figures on the status page.

Tables are cut after `LIMIT` rows; a line then says how many more there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from sortshuffle.cli.output import Column, ConsoleOutput, Row, count, plural
from sortshuffle.options import format_size
from sortshuffle.service.pages.status import STALL, ServiceStatus

LIMIT = 40  # rows of a table

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
    """Print a service's figures, applications and connections. ``page``: the URL of its status page."""
    out.gap()
    out.line(f"shuffle service {status.address}", "bold")
    out.fields([("page", page), *_facts(status)])
    _print_applications(out, status)
    _print_connections(out, status)


def _facts(status: ServiceStatus) -> list[tuple[str, str]]:
    return [
        ("runs", f"sortshuffle {status.version}, process {status.pid}, for {status.uptime:.0f} s"),
        ("asks for", f"{_or_no(status.authenticated, 'secret')}, {_or_no(status.encrypted, 'TLS')}"),
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
    used = status.pool_segments_used
    held, whole = (format_size(number * status.segment_bytes) for number in (used, status.pool_segments))
    return f"{held} of {whole} in use, {count(used)} of {plural(status.pool_segments, 'segment')}"


def _or_no(is_so: bool, what: str) -> str:
    return what if is_so else f"no {what}"


def _print_applications(out: ConsoleOutput, status: ServiceStatus) -> None:
    rows = [
        Row([each.application, count(each.homes), count(each.map_outputs), format_size(each.bytes)])
        for each in status.largest_applications
    ]
    _print_table(out, _APPLICATION_COLUMNS, rows, "application")


def _print_connections(out: ConsoleOutput, status: ServiceStatus) -> None:
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
        for each in status.slowest_connections
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
