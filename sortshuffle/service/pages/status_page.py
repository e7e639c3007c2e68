"""The status page: the figures of a shuffle service for a browser.

The page is one document, without scripts or external resources, that the browser reloads every few seconds.
It is built as a tree, which escapes every name: no HTML is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from sortshuffle.options import format_size
from sortshuffle.service.pages.status import STALL, ServiceStatus

REFRESH = 5  # seconds
MOST_ROWS = 100  # of a table; a service may have thousands of connections

_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #57606a; --card: #f6f8fa;
  --warn: #9a4b00; --good: #1a7f37; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3d444d; --soft: #9198a1; --card: #1c2128; --warn: #f0a35e; --good: #57ab5a; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; }
.soft { color: var(--soft); }
.warn { color: var(--warn); font-weight: 600; }
.good { color: var(--good); }
.cards { display: grid; gap: .75rem; margin: 1.5rem 0;
  grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem; }
.card h2 { margin: 0; font-size: .85rem; font-weight: 500; color: var(--soft); }
.figure { font-size: 1.6rem; font-variant-numeric: tabular-nums; }
meter { width: 100%; height: .75rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; min-width: 10rem; overflow-wrap: anywhere;
  white-space: normal; }
code { font-size: .9em; overflow-wrap: anywhere; }
footer { margin-top: 2rem; }
footer a { margin-right: 1.5rem; }
"""


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
    page = Element("html", lang="en")
    _head(page, status)
    body = SubElement(page, "body")
    _title(body, status)
    cards = _add(body, "div", "cards")
    _throughput(cards, status, Throughput.between(before, status))
    _clients(cards, status)
    _memory(cards, status)
    _reads(cards, status)
    _connections(body, status)
    _applications(body, status)
    _foot(body, status)
    return f"<!DOCTYPE html>\n{tostring(page, encoding='unicode', method='html')}".encode()


def _head(page: Element, status: ServiceStatus) -> None:
    head = SubElement(page, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "meta", {"http-equiv": "refresh", "content": str(REFRESH)})
    _add(head, "title", text=f"sortshuffle service {status.address}")
    SubElement(head, "style").text = _STYLE


def _title(body: Element, status: ServiceStatus) -> None:
    _add(body, "h1", text=f"Shuffle service {status.address}")
    about = f"sortshuffle {status.version}, process {status.pid}, up {_time(status.uptime)}"
    _add(body, "p", "soft", about)
    safety = _add(body, "p")
    _add(
        safety, "span", *_mark(status.authenticated, "clients must know the secret", "clients need no secret")
    )
    _add(safety, "span", "soft", " · ")
    _add(safety, "span", *_mark(status.encrypted, "encrypted", "not encrypted"))


def _mark(is_so: bool, yes: str, no: str) -> tuple[str, str]:
    return ("good", yes) if is_so else ("soft", no)


# ---- cards -------------------------------------------------------------------------------------------------


def _throughput(cards: Element, status: ServiceStatus, throughput: Throughput) -> None:
    _card(
        cards,
        f"Sent, last {_time(throughput.seconds)}",
        f"{format_size(throughput.sent)}/s",
        [
            f"{format_size(status.bytes_sent_total)} in {status.buffers_sent_total:,} responses in all",
            f"{format_size(throughput.read)}/s read from disk",
        ],
    )


def _clients(cards: Element, status: ServiceStatus) -> None:
    channels = sum(each.channels for each in status.connections)
    card = _card(
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
        _add(card, "p", "warn", f"{number:,} {what}")


def _memory(cards: Element, status: ServiceStatus) -> None:
    used, segments = status.pool_segments_used, status.pool_segments
    held, whole = (format_size(number * status.segment_bytes) for number in (used, segments))
    card = _card(cards, "Read memory in use", held, [])
    meter = SubElement(card, "meter", min="0", max=str(max(1, segments)), value=str(used))
    meter.text = f"{used} of {segments}"
    _add(card, "p", "soft", f"of {whole}: {used:,} of {segments:,} segments")


def _reads(cards: Element, status: ServiceStatus) -> None:
    average = status.bytes_read_total / status.reads_total if status.reads_total else 0
    _card(
        cards,
        "Queue of reads",
        f"{status.reads_waiting:,}",
        [
            f"{status.readers:,} readers of {status.partitions_open:,} open map outputs",
            f"{status.reads_total:,} reads in all, {format_size(average)} on average",
        ],
    )


def _card(cards: Element, title: str, figure: str, lines: Iterable[str]) -> Element:
    card = _add(cards, "section", "card")
    _add(card, "h2", text=title)
    _add(card, "div", "figure", figure)
    for line in lines:
        _add(card, "p", "soft", line)
    return card


# ---- tables ------------------------------------------------------------------------------------------------


def _connections(body: Element, status: ServiceStatus) -> None:
    _add(body, "h2", text="Connections")
    rows = [
        (
            each.stalled >= STALL,
            [
                each.peer,
                f"{each.channels:,}",
                _time(each.seconds),
                format_size(each.bytes_sent),
                format_size(each.backlog),
                _time(each.stalled) if each.stalled else "",
            ],
        )
        for each in status.slowest_connections
    ]
    _table(body, ["client", "channels", "for", "sent", "waits to be sent", "takes nothing for"], rows)


def _applications(body: Element, status: ServiceStatus) -> None:
    _add(body, "h2", text="Applications")
    rows = [
        (False, [each.application, f"{each.homes:,}", f"{each.map_outputs:,}", format_size(each.bytes)])
        for each in status.largest_applications
    ]
    _table(body, ["application", "executors", "map outputs", "bytes"], rows)


def _table(body: Element, names: Sequence[str], rows: Sequence[tuple[bool, Sequence[str]]]) -> None:
    """Add a table. ``rows``: whether to mark the row, and its cells."""
    if not rows:
        _add(body, "p", "soft", "None.")
        return
    table = SubElement(_add(body, "div", "scroll"), "table")
    head = SubElement(SubElement(table, "thead"), "tr")
    for name in names:
        _add(head, "th", text=name)
    lines = SubElement(table, "tbody")
    for marked, cells in rows[:MOST_ROWS]:
        line = _add(lines, "tr", "warn" if marked else "")
        for cell in cells:
            _add(line, "td", text=cell)
    if len(rows) > MOST_ROWS:
        _add(body, "p", "soft", f"and {len(rows) - MOST_ROWS:,} more")


def _foot(body: Element, status: ServiceStatus) -> None:
    _add(body, "h2", text="Directories")
    for root in status.roots:
        _add(_add(body, "p"), "code", text=root)
    foot = _add(body, "footer")
    for path, name in (("metrics", "for Prometheus"), ("status.json", "as JSON")):
        _add(foot, "a", text=name).set("href", path)


# ---- elements ----------------------------------------------------------------------------------------------


def _add(parent: Element, tag: str, kind: str = "", text: str = "") -> Element:
    """Append a child and return it. ``kind``: its CSS class."""
    child = SubElement(parent, tag, {"class": kind} if kind else {})
    child.text = _shown(text)
    return child


def _shown(text: str) -> str:
    """Replace unprintable characters: names come from disks and peers."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _time(seconds: float) -> str:
    """Format a time: 1.5 s, 12 min, 3 h 5 min, 2 d 4 h."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
