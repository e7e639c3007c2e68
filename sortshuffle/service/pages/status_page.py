"""The status page: the figures of a shuffle service for a browser.

The browser reloads the page every few seconds. Its elements and its style are those of `html_page`.
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement

from sortshuffle.html_page import add, add_card, add_table, document, format_time, new_page
from sortshuffle.options import format_size
from sortshuffle.service.pages.status import STALL, ServiceStatus

REFRESH = 5  # seconds


@dataclass(frozen=True, slots=True)
class Throughput:
    """Bytes per second over the last ``seconds``."""

    sent: float
    read: float
    seconds: float

    @staticmethod
    def between(before: ServiceStatus | None, now: ServiceStatus) -> Throughput:
        """Return the throughput since an earlier status, or without one since the service's start."""
        if before is None or before.uptime >= now.uptime:
            return Throughput._of(now.bytes_sent_total, now.bytes_read_total, now.uptime)
        return Throughput._of(
            now.bytes_sent_total - before.bytes_sent_total,
            now.bytes_read_total - before.bytes_read_total,
            now.uptime - before.uptime,
        )

    @staticmethod
    def _of(sent: int, read: int, seconds: float) -> Throughput:
        return Throughput(sent / seconds, read / seconds, seconds) if seconds > 0 else Throughput(0, 0, 0)


def status_page(status: ServiceStatus, before: ServiceStatus | None = None) -> bytes:
    """Return the page in UTF-8. ``before``: an earlier status, since which throughput is measured."""
    page, body = new_page(f"sortshuffle service {status.address}", REFRESH)
    _title(body, status)
    cards = add(body, "div", "cards")
    _throughput(cards, status, Throughput.between(before, status))
    _clients(cards, status)
    _memory(cards, status)
    _reads(cards, status)
    _connections(body, status)
    _applications(body, status)
    _foot(body, status)
    return document(page)


def _title(body: Element, status: ServiceStatus) -> None:
    add(body, "h1", text=f"Shuffle service {status.address}")
    about = f"sortshuffle {status.version}, process {status.pid}, up {format_time(status.uptime)}"
    add(body, "p", "soft", about)
    safety = add(body, "p")
    add(
        safety, "span", *_mark(status.authenticated, "clients must know the secret", "clients need no secret")
    )
    add(safety, "span", "soft", " · ")
    add(safety, "span", *_mark(status.encrypted, "encrypted", "not encrypted"))


def _mark(is_so: bool, yes: str, no: str) -> tuple[str, str]:
    return ("good", yes) if is_so else ("soft", no)


# ---- cards -------------------------------------------------------------------------------------------------


def _throughput(cards: Element, status: ServiceStatus, throughput: Throughput) -> None:
    add_card(
        cards,
        f"Sent, last {format_time(throughput.seconds)}",
        f"{format_size(throughput.sent)}/s",
        [
            f"{format_size(status.bytes_sent_total)} in {status.buffers_sent_total:,} responses in all",
            f"{format_size(throughput.read)}/s read from disk",
        ],
    )


def _clients(cards: Element, status: ServiceStatus) -> None:
    channels = sum(each.channels for each in status.connections)
    card = add_card(
        cards,
        "Connections",
        f"{len(status.connections):,}",
        [
            f"{channels:,} channels; {status.requests_total:,} requests in all",
            f"{status.connections_total:,} connections in all",
        ],
    )
    _warning(card, status.connections_refused_total, "refused")
    _warning(card, status.errors_total, "ended in an error")


def _warning(card: Element, number: int, what: str) -> None:
    if number:
        add(card, "p", "warn", f"{number:,} {what}")


def _memory(cards: Element, status: ServiceStatus) -> None:
    used, segments = status.pool_segments_used, status.pool_segments
    held, whole = (format_size(number * status.segment_bytes) for number in (used, segments))
    card = add_card(cards, "Read memory in use", held, [])
    meter = SubElement(card, "meter", min="0", max=str(max(1, segments)), value=str(used))
    meter.text = f"{used} of {segments}"
    add(card, "p", "soft", f"of {whole}: {used:,} of {segments:,} segments")


def _reads(cards: Element, status: ServiceStatus) -> None:
    average = status.bytes_read_total / status.reads_total if status.reads_total else 0
    add_card(
        cards,
        "Queue of reads",
        f"{status.reads_waiting:,}",
        [
            f"{status.readers:,} readers of {status.partitions_open:,} open map outputs",
            f"{status.reads_total:,} reads in all, {format_size(average)} on average",
        ],
    )


# ---- tables ------------------------------------------------------------------------------------------------


def _connections(body: Element, status: ServiceStatus) -> None:
    add(body, "h2", text="Connections")
    rows = [
        (
            each.stalled >= STALL,
            [
                each.peer,
                f"{each.channels:,}",
                format_time(each.seconds),
                format_size(each.bytes_sent),
                format_size(each.backlog),
                format_time(each.stalled) if each.stalled else "",
            ],
        )
        for each in status.slowest_connections
    ]
    add_table(body, ["client", "channels", "for", "sent", "waits to be sent", "takes nothing for"], rows)


def _applications(body: Element, status: ServiceStatus) -> None:
    add(body, "h2", text="Applications")
    rows = [
        (False, [each.application, f"{each.homes:,}", f"{each.map_outputs:,}", format_size(each.bytes)])
        for each in status.largest_applications
    ]
    add_table(body, ["application", "executors", "map outputs", "bytes"], rows)


def _foot(body: Element, status: ServiceStatus) -> None:
    add(body, "h2", text="Directories")
    for root in status.roots:
        add(add(body, "p"), "code", text=root)
    foot = add(body, "footer")
    for path, name in (("metrics", "for Prometheus"), ("status.json", "as JSON")):
        add(foot, "a", text=name).set("href", path)
