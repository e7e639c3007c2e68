"""`sortshuffle serve` as a process: it serves, shows its status, ends in good order; and wrong calls."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from engine import Pair, running, write_pair
from run_cli import run, run_json
from serving import Client, make_disk

from sortshuffle.homes.processes import process_start
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.host import rendezvous
from sortshuffle.service.wire.protocol import MapOutputAddress
from sortshuffle.storage.files.reader import read_index

SOON = 30.0


@dataclass
class Served:
    process: subprocess.Popen[str]
    line: str

    @property
    def address(self) -> str:
        return re.search(r" at (\S+:\d+);", self.line)[1]  # type: ignore[index]

    @property
    def pages(self) -> str:
        return re.search(r"status: (\S+)", self.line)[1]  # type: ignore[index]


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    command = (sys.executable, "-m", "sortshuffle.cli.main", "serve", "--port", "0", "--http-port", "0")
    with running(*command, *arguments) as process:
        assert process.stdout is not None
        yield Served(process, process.stdout.readline())


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(secrets.token_hex(16) + "\n")
    path.chmod(0o600)
    return path


def home(root: Path) -> Path:
    made = root / "sortshuffle" / "app-1" / "host-17"
    made.mkdir(parents=True)
    return made


def test_it_serves_the_directories_to_who_knows_the_secret(tmp_path: Path, secret_file: Path) -> None:
    root = tmp_path / "served"
    file = write_pair(home(root), Pair(2))
    output = MapOutputAddress("app-1", 3, 17, 204, read_index(file).header.file_id)
    with served(str(root), "--host", "127.0.0.1", "--secret-file", str(secret_file)) as service:
        assert service.line.startswith(f"sortshuffle serves {root} at 127.0.0.1:")
        secret = secret_file.read_bytes().strip()
        clients = ServiceClients(ClientSettings(secret, timeout=SOON))
        try:
            assert clients.client(service.address).index(output, "host") == Path(file.index_path).read_bytes()
        finally:
            clients.close()
        shown = run("serve", "--status", service.pages)
        assert shown.exit_code == 0
        assert f"shuffle service {service.address}" in shown.stdout
        assert f"serves    {root}" in shown.stdout
        code, document = run_json("serve", "--status", service.pages)
        (status,) = document["services"]
        assert (code, status["address"], status["roots"]) == (0, service.address, [str(root)])
        assert status["page"].startswith(f"http://{service.pages.removeprefix('http://').rstrip('/')}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_it_ends_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    with served(str(tmp_path), "--host", "127.0.0.1") as service:
        host, port = service.address.split(":")
        with socket.create_connection((host, int(port)), SOON):
            service.process.send_signal(number)
            assert service.process.wait(SOON) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), SOON)


# The command, with a system call that never comes back after it has told so, as on a disk that hangs
HANGING = """
import os, sys
from sortshuffle import calls
from sortshuffle.cli import serve
from sortshuffle.cli.main import main

def hang(*arguments):
    print("it hangs", flush=True)
    os.read(os.pipe()[0], 1)

sys.stderr = sys.stdout  # one pipe for both
setattr(calls, sys.argv.pop(1), hang)
serve.STOP_TIMEOUT = 0.5
serve.SWEEP_EVERY = float(sys.argv.pop(1))
main()
"""


@contextmanager
def hanging(call: str, root: Path, sweep_every: float) -> Iterator[subprocess.Popen[str]]:
    """A service in which this call hangs."""
    local = ("serve", str(root), "--host", "127.0.0.1", "--port", "0", "--http-port", "0")
    with running(sys.executable, "-c", HANGING, call, str(sweep_every), *local) as process:
        yield process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def ends_with_a_word(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON) == 1
    assert "did not end within 0.5 s: a disk hangs" in line(process)
    assert line(process) == ""


@pytest.mark.parametrize("call", ["preadv", "pread"], ids=["in a scheduled read", "while a file is opened"])
def test_it_ends_although_a_disk_hangs(tmp_path: Path, call: str) -> None:
    _, output = make_disk(tmp_path).write_random()
    with hanging(call, tmp_path, sweep_every=100.0) as process:
        service = Served(process, line(process))
        with Client(service.address) as client:
            client.request(1, output)
            assert line(process) == "it hangs\n"
            ends_with_a_word(process)


def test_it_ends_although_a_disk_hangs_in_the_sweep(tmp_path: Path) -> None:
    with hanging("scandir", tmp_path, sweep_every=0.0) as process:
        assert "it hangs\n" in (line(process), line(process))
        ends_with_a_word(process)


def refused(*arguments: str) -> str:
    result = run("serve", *arguments)
    assert result.exit_code == 2, result.output
    return re.sub(r"\s+", " ", result.output)


def with_mode(path: Path, text: str, mode: int) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_beyond_loopback_it_asks_for_a_secret(tmp_path: Path) -> None:
    told = refused(str(tmp_path), "--port", "0")
    assert "would serve anybody who reaches it: give it a secret (--secret-file), or listen" in told
    shown = re.sub(r"\s+", " ", run("serve", "--help").stdout)
    assert "without one only this host, with --host 127.0.0.1" in shown


def test_calls_that_cannot_be_meant_are_refused_with_what_to_do(tmp_path: Path) -> None:
    directory = str(tmp_path)
    pem = with_mode(tmp_path / "pem", "x", 0o600)
    short = with_mode(tmp_path / "short", "abc", 0o600)
    open_to_all = with_mode(tmp_path / "open", "a" * 40, 0o644)
    local = (directory, "--host", "127.0.0.1", "--port", "0")
    calls: Sequence[tuple[tuple[str, ...], str]] = [
        ((), "name the directories to serve: those of spark.sortshuffle.dir"),
        ((f"{directory}/missing",), "does not exist"),
        ((*local, "--tls-key", pem), "belong together: give both, or none"),
        ((*local, "--tls-key", pem, "--tls-certificate", pem), "the files for TLS cannot be used"),
        ((*local, "--secret-file", short), "holds 3 bytes, and a secret has at least 16"),
        ((*local, "--secret-file", open_to_all), "others may read it: chmod 600"),
        ((*local, "--memory", "lots"), "'lots' is not a size such as 64m or 1g"),
        ((*local, "--memory", "1k"), "--memory: 1024 bytes hold no segment of 524288 bytes"),
        ((directory, "--json"), "--json needs --status"),
        ((*local, "--linger", "soon"), "'soon' is not a time such as 90s, 30min or 12h"),
    ]
    for arguments, what in calls:
        assert what in refused(*arguments)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        local = (str(tmp_path), "--host", "127.0.0.1")
        told = refused(*local, "--port", port)
        assert f"cannot listen at 127.0.0.1:{port}" in told
        assert "set spark.sortshuffle.service.port" in told
        assert "Give another --http-port" in refused(*local, "--port", "0", "--http-port", port)


def test_the_services_that_answer_are_shown_beside_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    with served(str(tmp_path), "--host", "127.0.0.1") as service:
        for name, page in (("a", nobody), ("b", service.pages)):
            told_by_a_live_process(tmp_path / f"sortshuffle-{os.geteuid()}" / name, page)
        code, document = run_json("serve", "--status")
        shown = run("serve", "--status")
    assert [each["address"] for each in document["services"]] == [service.address]
    assert (code, document["error"]["path"]) == (4, nobody)
    assert document["error"]["why"].startswith("no shuffle service tells its status at")
    assert shown.exit_code == 4
    assert shown.stdout.startswith(f"shuffle service {service.address}\n")
    assert shown.stderr.startswith(f"Error: {nobody}: no shuffle service")


def told_by_a_live_process(directory: Path, page: str) -> None:
    """As a service that a task has started says where its status page is."""
    directory.mkdir(parents=True)
    pid = os.getpid()
    service = rendezvous.ServiceRecord("127.0.0.1", 1, pid, process_start(pid) or 0)
    (directory / rendezvous.SERVICE_FILE).write_text(json.dumps(asdict(service)))
    rendezvous.write_status_page(str(directory), page)


def test_the_status_of_nobody_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = run("serve", "--status", f"127.0.0.1:{port}")
    assert result.exit_code == 4
    assert str(port) in result.output
    assert os.linesep not in result.output.strip()
