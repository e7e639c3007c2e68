"""The status page: well-formed, without scripts and outside resources, with the right figures, and names that
are only ever text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import pytest
from service_figures import IDLE, LARGE, QUIET, STALLED, STATUS

from sortshuffle.html_page import MOST_ROWS
from sortshuffle.service.pages.status import ServiceStatus
from sortshuffle.service.pages.status_page import REFRESH, Throughput, status_page

VOID = {"meta", "br", "link", "img", "input"}


@dataclass
class Seen(HTMLParser):
    """What a browser would find. Fails on elements that are not closed in their order."""

    page: bytes
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.page.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.cells.append([])
            self.classes.append(dict(attrs).get("class") or "")
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("td", "th"):
            self.cells[-1][-1] += data
        elif self._open and self._open[-1] != "style" and data.strip():
            self.texts.append(data)


def seen(status: ServiceStatus = STATUS, before: ServiceStatus | None = None) -> Seen:
    return Seen(status_page(status, before))


def test_the_figures() -> None:
    texts = seen(
        before=replace(STATUS, uptime=3715.5, bytes_sent_total=2 << 30, bytes_read_total=7 << 20)
    ).texts
    for expected in [
        "Shuffle service 10.0.0.1:7448",
        "sortshuffle 1.2.3, process 4711, up 1 h 2 min",
        "clients must know the secret",
        "not encrypted",
        "Sent, last 10 s",
        "102.4 MiB/s",
        "3.0 GiB in 106 responses in all",
        "10.0 MiB/s read from disk",
        "7 channels; 103 requests in all",
        "101 connections in all",
        "102 refused",
        "104 ended in an error",
        "7.8 MiB",
        "of 62.5 MiB: 250 of 2,000 segments",
        "23",
        "22 readers of 21 open map outputs",
        "107 reads in all, 1.0 MiB on average",
        "/disks/one",
        "/disks/two",
    ]:
        assert expected in texts


def test_the_slowest_client_and_the_largest_application_come_first() -> None:
    page = seen()
    assert page.cells == [
        ["client", "channels", "for", "sent", "waits to be sent", "takes nothing for"],
        [STALLED.peer, "4", "1 min", "5.9 KiB", "2.0 KiB", "1 min"],
        [QUIET.peer, "3", "12 s", "4.9 KiB", "0 B", ""],
        ["application", "executors", "map outputs", "bytes"],
        [LARGE.application, "2", "30", "68.4 KiB"],
        ["app-small", "1", "5", "1000 B"],
    ]
    assert page.classes == ["", "warn", "", "", "", ""]


def test_a_service_that_has_done_nothing() -> None:
    page = seen(IDLE)
    assert page.cells == []
    assert page.texts.count("None.") == 2
    assert "0 B/s" in page.texts
    assert "clients need no secret" in page.texts and "encrypted" in page.texts
    assert not any(attributes.get("class") == "warn" for _, attributes in page.tags)


def test_long_tables_are_cut_which_is_said() -> None:
    clients = tuple(replace(QUIET, peer=f"10.0.0.2:{port}") for port in range(10_000, 10_000 + MOST_ROWS + 7))
    page = seen(replace(STATUS, connections=clients, applications=()))
    assert len(page.cells) == 1 + MOST_ROWS
    assert "and 7 more" in page.texts


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "</td><img src=x>", "\"'><b>", "&lt;", "<!--", "]]>"], ids=repr
)
def test_names_are_text_wherever_they_stand(name: str) -> None:
    plain = [tag for tag, _ in seen().tags]
    status = replace(
        STATUS,
        address=name,
        version=name,
        roots=(name, name),
        connections=(replace(QUIET, peer=name), STALLED),
        applications=(replace(LARGE, application=name), replace(LARGE, application=name)),
    )
    page = seen(status)
    assert [tag for tag, _ in page.tags] == plain
    assert page.cells[2][0] == name
    assert page.cells[4][0] == name
    assert page.texts.count(name) == 2  # the directories
    assert f"Shuffle service {name}" in page.texts


def test_what_cannot_be_printed_is_not_in_the_page() -> None:
    page = status_page(replace(STATUS, roots=("/a\x1b[31m\0\u202eb",)))
    assert (
        "/a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b" in page.decode()
    )


def test_it_loads_nothing_and_runs_nothing() -> None:
    page = seen()
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "form"}
    attributes = {name: value for _, each in page.tags for name, value in each.items()}
    assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
    assert {each["href"] for _, each in page.tags if "href" in each} == {"metrics", "status.json"}
    assert "url(" not in status_page(STATUS).decode() and "@import" not in status_page(STATUS).decode()
    assert ("meta", {"http-equiv": "refresh", "content": str(REFRESH)}) in page.tags


def test_throughput_is_since_an_earlier_moment_of_this_service() -> None:
    now = replace(STATUS, uptime=100.0, bytes_sent_total=5_000, bytes_read_total=3_000)
    before = replace(now, uptime=60.0, bytes_sent_total=1_000, bytes_read_total=2_000)
    assert Throughput.between(before, now) == Throughput(100.0, 25.0, 40.0)
    assert Throughput.between(None, now) == Throughput(50.0, 30.0, 100.0)
    assert Throughput.between(now, now) == Throughput(50.0, 30.0, 100.0)
    assert Throughput.between(None, replace(now, uptime=0.0)) == Throughput(0, 0, 0)
