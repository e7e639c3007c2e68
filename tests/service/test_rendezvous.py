"""The rendezvous of an application's tasks: real processes that look for the service at once start exactly
one; a supervisor that died is replaced on the same port; what others could have put there is refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from engine import ENVIRONMENT, eventually, running

from sortshuffle.errors import ServiceUnavailableError, UsageError
from sortshuffle.service import rendezvous
from sortshuffle.service.rendezvous import Registration, ServiceConfig
from sortshuffle.storage.lifetime import Owner, boot_id, process_start

HOST = "127.0.0.1"
CONFIG = ServiceConfig(b"s" * 32, 8 << 20)
PRODUCERS = 16

ENSURE = """
import json, sys
from sortshuffle.service import rendezvous
from sortshuffle.service.rendezvous import Registration, ServiceConfig
from sortshuffle.storage.lifetime import Owner, process_start
sys.stdin.readline()
pid, root = int(sys.argv[2]), sys.argv[3]
owner = Owner("app-1", "127.0.0.1", "", pid, process_start(pid) or 0, (), 600.0, False)
registration = Registration(owner, (root,))
print(rendezvous.ensure(sys.argv[1], "127.0.0.1", ServiceConfig(b"s" * 32, 8 << 20), registration))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    """A rendezvous; its supervisor ends with the test."""
    (tmp_path / "own").mkdir(mode=0o700)
    directory = str(tmp_path / "own" / "app-1")
    yield directory
    found = supervised(directory)
    if found:
        end(found["pid"])
    rendezvous._found.pop(directory, None)
    rendezvous._registered.clear()


def supervised(directory: str) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads(Path(directory, rendezvous.SERVICE_FILE).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return found


def end(pid: int) -> None:
    """Kill a process of this test, and know that it is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    eventually(lambda: process_start(pid) is None, f"process {pid} is gone")


def executor(pid: int, *roots: str) -> Registration:
    owner = Owner("app-1", HOST, boot_id(), pid, process_start(pid) or 0, (), 600.0, False)
    return Registration(owner, roots)


def accepts(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(5)
        return client.connect_ex((HOST, port)) == 0


def test_the_first_producer_starts_a_service_and_need_not_wait_for_it(place: str) -> None:
    address = rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    host, port = address.split(":")
    assert host == HOST
    assert accepts(int(port))  # by the backlog, whether or not the service is up
    assert rendezvous.roots_of(place) == ("/a",)
    assert supervised(place)["port"] == int(port)


def test_whoever_comes_later_finds_it_and_adds_directories(place: str) -> None:
    address = rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    started = supervised(place)
    with running("sleep", "60") as other:
        assert rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/b")) == address
        assert rendezvous.ensure(place, HOST, CONFIG, executor(other.pid, "/b", "/c")) == address
        assert rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a")) == address
        assert sorted(rendezvous.roots_of(place)) == ["/a", "/b", "/c"]
    assert supervised(place) == started


def test_of_many_that_come_at_once_one_starts_it(place: str, tmp_path: Path) -> None:
    pids = [os.getpid()] * PRODUCERS
    command = (sys.executable, "-c", ENSURE, place)
    pipe = subprocess.PIPE
    producers = [
        subprocess.Popen((*command, str(pid), f"/{at}"), stdin=pipe, stdout=pipe, env=ENVIRONMENT, text=True)
        for at, pid in enumerate(pids)
    ]
    for each in producers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    addresses = {each.communicate(timeout=60)[0] for each in producers}
    assert [each.returncode for each in producers] == [0] * PRODUCERS
    assert len(addresses) == 1
    assert addresses.pop().strip().endswith(f":{supervised(place)['port']}")
    assert set(rendezvous.roots_of(place)) == {f"/{at}" for at in range(PRODUCERS)}
    assert len(supervisors(place)) == 1


def supervisors(directory: str) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sortshuffle.service.supervisor" in words and directory.encode() in words:
            found.append(int(entry))
    return found


def test_a_supervisor_that_died_is_replaced_on_the_same_port(place: str) -> None:
    address = rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    before = supervised(place)
    end(before["pid"])
    eventually(lambda: not accepts(before["port"]), "the service ends with its supervisor")
    assert rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a")) == address
    after = supervised(place)
    assert (after["port"], after["host"]) == (before["port"], before["host"])
    assert after["pid"] != before["pid"]


def test_where_the_port_is_taken_meanwhile_it_takes_another(place: str) -> None:
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    before = supervised(place)
    end(before["pid"])
    eventually(lambda: not accepts(before["port"]), "the service ends with its supervisor")
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind((HOST, before["port"]))
        squatter.listen()
        rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
        assert supervised(place)["port"] != before["port"]


def test_all_of_it_is_the_users_alone(place: str) -> None:
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    for path, names, files in os.walk(os.path.dirname(place)):
        assert [stat.S_IMODE(os.lstat(os.path.join(path, name)).st_mode) for name in names] == [0o700] * len(
            names
        )
        assert [stat.S_IMODE(os.lstat(os.path.join(path, name)).st_mode) for name in files] == [0o600] * len(
            files
        )


def test_the_secret_is_neither_in_a_file_nor_in_an_argument(place: str) -> None:
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    secret = (CONFIG.secret, CONFIG.secret.hex().encode())
    texts = [path.read_bytes() for path in Path(place).rglob("*") if path.is_file()]
    texts += [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in supervisors(place)]
    assert len(texts) >= 4
    assert not any(each in text for text in texts for each in secret)
    assert "ssss" not in repr(CONFIG)


@pytest.mark.parametrize("what", ["link", "open to others", "file"])
def test_a_directory_that_another_could_have_put_there_is_refused(
    place: str, tmp_path: Path, what: str
) -> None:
    if what == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        os.symlink(tmp_path / "elsewhere", place)
    elif what == "file":
        Path(place).touch(mode=0o600)
    else:
        os.mkdir(place)
        os.chmod(place, 0o755)
    with pytest.raises(UsageError, match=r"is not a directory of user \d+ alone.*TMPDIR"):
        rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    assert supervised(place) == {}


def test_a_service_that_cannot_be_started_is_an_error_with_the_way_out(place: str) -> None:
    os.mkdir(place, 0o700)
    os.mkdir(os.path.join(place, rendezvous.LOG_FILE))
    with pytest.raises(ServiceUnavailableError, match="service=off if every host sees the same files"):
        rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    assert supervisors(place) == []


def test_a_temporary_directory_that_is_gone_is_an_error_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "LOCK_PATIENCE", 0.1)
    with pytest.raises(ServiceUnavailableError, match="gone"):
        rendezvous.ensure(str(tmp_path / "gone" / "own" / "app-1"), HOST, CONFIG, executor(os.getpid(), "/a"))


def test_while_an_executor_lives_it_is_not_dissolved(place: str) -> None:
    with running("sleep", "60") as one, running("sleep", "60") as other:
        rendezvous.ensure(place, HOST, CONFIG, executor(one.pid, "/a"))
        rendezvous.ensure(place, HOST, CONFIG, executor(other.pid, "/b"))
        one.kill()
        one.wait()
        assert not rendezvous.dissolve(place)
        assert rendezvous.roots_of(place) == ("/b",)
        end(supervised(place)["pid"])
        other.kill()
        other.wait()
        assert rendezvous.dissolve(place)
    assert not os.path.exists(place)


def test_a_new_one_is_made_where_one_was_dissolved(place: str) -> None:
    with running("sleep", "60") as gone:
        rendezvous.ensure(place, HOST, CONFIG, executor(gone.pid, "/a"))
    end(supervised(place)["pid"])
    assert rendezvous.dissolve(place)
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/b"))
    assert rendezvous.roots_of(place) == ("/b",)
    assert len(supervisors(place)) == 1


def test_what_a_killed_supervisor_left_goes_when_another_application_starts_one(place: str) -> None:
    left = f"{place}-left"
    with running("sleep", "60") as gone:
        rendezvous.ensure(left, HOST, CONFIG, executor(gone.pid, "/a"))
        end(supervised(left)["pid"])
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    assert os.listdir(os.path.dirname(place)) == [os.path.basename(place)]


def test_that_of_another_host_in_the_same_directory_is_its_own_business(place: str) -> None:
    other = f"{place}-other"
    os.makedirs(other, 0o700)
    owner = replace(executor(os.getpid()).owner, host="another", boot="another", started=1)
    with rendezvous._locked(other):
        rendezvous._register(other, Registration(owner, ("/a",)))
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    assert rendezvous.roots_of(other) == ("/a",)


def test_pages_of_services_that_have_ended_are_not_told(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_own_directory", lambda: os.path.dirname(place))
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    eventually(rendezvous.status_pages, "the page is there")
    end(supervised(place)["pid"])
    assert rendezvous.status_pages() == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": 1}', '{"owner": {}, "roots": []}', "\0"])
def test_registrations_that_cannot_be_read_are_passed_over(place: str, text: str) -> None:
    os.makedirs(os.path.join(place, rendezvous.ROOTS), 0o700)
    Path(place, rendezvous.ROOTS, "12").write_text(text)
    assert rendezvous.registrations(place) == []


def test_the_configuration_arrives_as_it_was() -> None:
    config = ServiceConfig(bytes(range(32)), 5 << 20, "/c", "/k", "/a")
    assert ServiceConfig.unpack(config.pack()) == config
    assert config.pack().count(b"\n") == 1


def test_services_that_cannot_understand_each_other_meet_elsewhere() -> None:
    places = {rendezvous.directory_of("app-1", HOST, *apart) for apart in (("s", ""), ("t", ""), ("s", "/c"))}
    assert len(places) == 3
    assert rendezvous.directory_of("app-1", HOST, "s", "") in places
    own = os.path.join(tempfile.gettempdir(), f"sortshuffle-{os.geteuid()}")
    assert {os.path.dirname(each) for each in places} == {own}
