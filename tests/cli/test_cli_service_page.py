"""What `serve --status` prints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from service_figures import IDLE, QUIET, STATUS

from sortshuffle.cli.output import ConsoleOutput
from sortshuffle.cli.service_page import LIMIT, print_status
from sortshuffle.service.pages.status import ServiceStatus


def printed(status: ServiceStatus, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_status(ConsoleOutput(), status, "http://127.0.0.1:7449/")
    return capsys.readouterr().out.splitlines()


def test_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(STATUS, capsys) == [
        "shuffle service 10.0.0.1:7448",
        "  page      http://127.0.0.1:7449/",
        "  runs      sortshuffle 1.2.3, process 4711, for 3726 s",
        "  asks for  secret, no TLS",
        "  serves    /disks/one",
        "  serves    /disks/two",
        "  clients   101 connections, 102 refused; 103 requests, 104 errors",
        "  sent      3.0 GiB in 106 responses, 29.0 MiB on average",
        "  read      107.0 MiB in 107 reads, 1.0 MiB on average",
        "  queue     23 map outputs to read; 22 readers of 21 open",
        "  memory    7.8 MiB of 62.5 MiB in use, 250 of 2,000 segments",
        "",
        "application  executors  map outputs     bytes",
        "app-large            2           30  68.4 KiB",
        "app-small            1            5    1000 B",
        "",
        "client          channels  seconds     sent  waiting  stalled s",
        "10.0.0.3:40002         4       75  5.9 KiB  2.0 KiB       61.5",
        "10.0.0.2:40001         3       12  4.9 KiB      0 B",
    ]


def test_a_service_that_has_done_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(IDLE, capsys)
    assert "  asks for  no secret, TLS" in lines
    assert "  read      0 B in 0 reads" in lines
    assert lines[-3:] == ["There are no applications.", "", "There are no connections."]


def test_long_tables_are_cut_and_names_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    clients = tuple(replace(QUIET, peer=f"\x1b[31m{n}") for n in range(LIMIT + 3))
    lines = printed(replace(STATUS, connections=clients), capsys)
    assert lines[-1] == "... and 3 more connections"
    assert not any("\x1b" in line for line in lines)
    assert len([line for line in lines if line.startswith("\\x1b[31m")]) == LIMIT
