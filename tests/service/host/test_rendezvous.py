"""The rendezvous of an application's tasks: real processes that look for the service at once start exactly
one; a supervisor that died is replaced on the same port; what others could have put there is refused; shared
homes go with it, and not before the application."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from engine import ENVIRONMENT, Pair, eventually, processes_of, running, write_pair
from failing import not_told
from serving import no_descriptor_left

from sortshuffle import calls
from sortshuffle.errors import ServiceUnavailableError, UsageError
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, process_start
from sortshuffle.homes.shared_home import make_shared_home, shared_home
from sortshuffle.options import MIB, Options
from sortshuffle.service.host import rendezvous, rendezvous_directory
from sortshuffle.service.host.registration import ApplicationPhase, Registration, phase_of
from sortshuffle.service.host.service_config import ServiceConfig

HOST = "127.0.0.1"
CONFIG = ServiceConfig(b"s" * 32, 8 << 20)
PRODUCERS = 16
TOKEN = "5e" * 16

ENSURE = """
import json, sys
from sortshuffle.service.host import rendezvous
from sortshuffle.service.host.registration import Registration
from sortshuffle.service.host.service_config import ServiceConfig
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import process_start
sys.stdin.readline()
pid, root = int(sys.argv[2]), sys.argv[3]
owner = Owner("app-1", "127.0.0.1", "", pid, process_start(pid) or 0, (), 600.0, False)
registration = Registration(owner, (root,))
print(rendezvous.ensure(sys.argv[1], "127.0.0.1", ServiceConfig(b"s" * 32, 8 << 20), registration))
"""


@pytest.fixture
def place(short_path: Path) -> Iterator[str]:
    """A rendezvous; its supervisor and its service end with the test."""
    (short_path / "own").mkdir(mode=0o700)
    directory = str(short_path / "own" / "app-1")
    yield directory
    found = supervised(directory)
    if found:
        end(found["pid"])
    eventually(lambda: not processes("process", directory), "the service ends with its supervisor")
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


def executor(pid: int, *roots: str, token: str = "") -> Registration:
    owner = Owner("app-1", HOST, boot_id(), pid, process_start(pid) or 0, (), 600.0, False)
    # an executor of the manager has shared roots, one of frames roots of its own
    return Registration(owner, () if token else roots, roots if token else (), token)


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


def test_a_lock_that_the_system_closes_with_an_error_is_given_back(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(descriptor: int) -> None:
        os.close(descriptor)
        raise OSError(errno.EIO, "closing fails")

    monkeypatch.setattr(calls, "close", close)
    for _ in range(2):
        with rendezvous_directory.directory_lock(place):
            assert os.path.isdir(place)
    with pytest.raises(ValueError, match="its own"), rendezvous_directory.directory_lock(place):
        raise ValueError("its own")


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
    return processes("supervisor", directory)


def processes(module: str, directory: str) -> list[int]:
    return [pid for pid, words in processes_of(f"service.host.{module}").items() if directory in words]


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
    monkeypatch.setattr(rendezvous_directory, "LOCK_PATIENCE", 0.1)
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
    eventually(lambda: len(supervisors(place)) == 1, "one supervisor runs")


def test_what_a_killed_supervisor_left_goes_when_another_application_starts_one(
    place: str, tmp_path: Path
) -> None:
    left, home = f"{place}-left", made_home(tmp_path)
    with running("sleep", "60") as gone:
        rendezvous.ensure(left, HOST, CONFIG, executor(gone.pid, str(tmp_path), token=TOKEN))
        end(supervised(left)["pid"])
    assert home.exists()
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    own = [os.path.basename(path) for path in (place, rendezvous_directory.socket_path(place))]
    assert sorted(os.listdir(os.path.dirname(place))) == sorted(own)
    assert not home.exists()


def test_that_of_another_host_in_the_same_directory_is_its_own_business(place: str) -> None:
    other = f"{place}-other"
    os.makedirs(other, 0o700)
    owner = replace(executor(os.getpid()).owner, host="another", boot="another", started=1)
    with rendezvous_directory.directory_lock(other):
        rendezvous._register(other, Registration(owner, ("/a",)))
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    assert rendezvous.roots_of(other) == ("/a",)


def test_pages_of_services_that_have_ended_are_not_told(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_directory, "own_directory", lambda: os.path.dirname(place))
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    eventually(rendezvous.status_pages, "the page is there")
    end(supervised(place)["pid"])
    assert rendezvous.status_pages() == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": 1}', '{"owner": {}, "roots": []}', "\0"])
def test_registrations_that_cannot_be_read_are_passed_over(place: str, text: str) -> None:
    os.makedirs(os.path.join(place, rendezvous.ROOTS), 0o700)
    Path(place, rendezvous.ROOTS, "12").write_text(text)
    assert rendezvous.registrations(place) == []


def test_a_registration_of_an_earlier_release_names_no_process_of_the_driver() -> None:
    """It is there when the package is replaced under an application that runs."""
    now = executor(os.getpid(), "/a")
    fields = json.loads(json.dumps(asdict(now)))
    del fields["driver_pid"], fields["driver_started"]
    assert Registration.unpack(fields) == now


def test_the_configuration_arrives_as_it_was() -> None:
    config = ServiceConfig(bytes(range(32)), 5 << 20, "/c", "/k", "/a", 7 << 20, "zstd", 3, 12.5)
    assert ServiceConfig.unpack(config.pack()) == config
    assert config.pack().count(b"\n") == 1


def test_a_service_is_told_what_the_options_say() -> None:
    pem = {f"service_tls_{name}": f"/{name}" for name in ("certificate", "key", "authority")}
    options = Options(
        service_memory=5 * MIB,
        manager_memory=64 * MIB,
        codec="zstd",
        codec_level=4,
        service_timeout=7.5,
        **pem,  # type: ignore[arg-type]
    )
    told = ServiceConfig.of(b"secret", options)
    assert told == ServiceConfig(
        b"secret", 5 * MIB, "/certificate", "/key", "/authority", 64 * MIB, "zstd", 4, 7.5
    )


def place_of(secret: bytes = b"s", application: str = "app-1", **options: str) -> str:
    return rendezvous_directory.directory_of(application, HOST, secret, Options(**options))  # type: ignore[arg-type]


def test_services_that_cannot_understand_each_other_meet_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    pem = {f"service_tls_{name}": "/c" for name in ("certificate", "key", "authority")}
    places = {
        place_of(),
        place_of(b"t"),
        place_of(application="app-2"),
        place_of(service_secret_file="/c"),
        place_of(**pem),
    }
    assert len(places) == 5
    assert place_of() in places
    assert place_of(codec="zstd") in places, "who comes first says how map outputs are written"
    own = os.path.join(tempfile.gettempdir(), f"sortshuffle-{os.geteuid()}")
    assert {os.path.dirname(each) for each in places} == {own}
    assert len({rendezvous_directory.socket_path(each) for each in places}) == 5

    monkeypatch.setattr(rendezvous_directory, "process_namespace", lambda: "pid:[1]")  # in another container
    places.add(place_of())
    monkeypatch.setattr(rendezvous_directory, "boot_id", lambda: "another machine with the same directory")
    places.add(place_of())
    assert len(places) == 7


# The socket for JVMs


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        return client.connect_ex(path) == 0


def test_jvms_may_connect_before_the_service_is_up(place: str) -> None:
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    path = rendezvous_directory.socket_path(place)
    assert os.path.dirname(path) == os.path.dirname(place)
    assert connects(path)
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600


def test_a_socket_that_was_left_is_replaced(place: str) -> None:
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    path = rendezvous_directory.socket_path(place)
    end(supervised(place)["pid"])
    eventually(lambda: not connects(path), "nobody listens any more")
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    assert connects(path)


def test_the_socket_of_a_rendezvous_with_a_long_path_is_elsewhere(short_path: Path) -> None:
    directory = str(short_path / ("o" * 90) / "app-1")
    path = rendezvous_directory.socket_path(directory)
    assert os.path.dirname(path) == f"/tmp/sortshuffle-{os.geteuid()}"
    assert rendezvous_directory.socket_path(directory + "2") != path


# Shared homes, and what is known of the application


def made_home(root: Path, keep: bool = False) -> Path:
    """The shared home of the application below a root, with a map output in it."""
    home = shared_home(str(root), "app-1", boot_id(), TOKEN)
    make_shared_home(home, os.getpid(), keep)
    write_pair(home, Pair(2))
    return Path(home)


def at_url(registration: Registration, url: str, is_driver: bool) -> Registration:
    """Of an executor whose map outputs lie below a URL."""
    return replace(registration, roots=(), token=TOKEN, url=url, is_driver=is_driver)


def register(place: str, *registered: Registration) -> None:
    with rendezvous_directory.directory_lock(place):
        for each in registered:
            rendezvous._register(place, each)


def outliving(registration: Registration, *directories: Path) -> Registration:
    """Of an executor whose service outlives it, with these local directories."""
    local = tuple(map(str, directories))
    return replace(registration, owner=replace(registration.owner, local_directories=local, outlived=True))


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    with running("true") as process:
        process.wait()
    return process.pid


@pytest.fixture
def waiting(ended: int, tmp_path: Path) -> Registration:
    """An executor that has ended, whose service outlives it. Its shared root is the directory above its local
    one."""
    blocks = tmp_path / "above" / "blockmgr-1"
    blocks.parent.mkdir()
    return outliving(executor(ended, str(blocks.parent), token=TOKEN), blocks)


def test_an_application_without_executors_is_over(place: str) -> None:
    assert rendezvous.forget_ended(place) is ApplicationPhase.OVER
    register(place)
    assert rendezvous.forget_ended(place) is ApplicationPhase.OVER


def test_one_with_an_executor_lives(place: str, ended: int) -> None:
    register(
        place, executor(ended, "/a"), executor(os.getpid(), "/b"), executor(ended + 1, "/c", token=TOKEN)
    )
    assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE
    assert sorted(rendezvous.roots_of(place)) == ["/b", "/c"], "who shares a home is remembered"


def test_one_whose_shared_homes_outlive_its_executors_waits_until_spark_removes_what_is_above(
    place: str, waiting: Registration, tmp_path: Path
) -> None:
    register(place, waiting)
    assert rendezvous.forget_ended(place) is ApplicationPhase.WAITING
    here = executor(os.getpid(), "/a")
    register(place, here)
    assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE
    Path(place, rendezvous.ROOTS, here.owner.home_name).unlink()
    assert rendezvous.forget_ended(place) is ApplicationPhase.WAITING
    (tmp_path / "above").rmdir()
    assert rendezvous.forget_ended(place) is ApplicationPhase.OVER
    assert [each.shared_homes for each in rendezvous.registrations(place)] == [waiting.shared_homes]


def test_none_is_waited_for_whose_driver_was_here_and_has_ended(
    place: str, ended: int, waiting: Registration
) -> None:
    register(place, waiting)
    assert rendezvous.forget_ended(place) is ApplicationPhase.WAITING
    register(place, replace(executor(ended, "/d", token=TOKEN), is_driver=True))
    for _ in range(2):  # it is remembered
        assert rendezvous.forget_ended(place) is ApplicationPhase.OVER
    another = replace(executor(os.getpid(), "/d", token=TOKEN), is_driver=True)
    register(place, another)
    assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE
    Path(place, rendezvous.ROOTS, another.owner.home_name).unlink()
    assert rendezvous.dissolve(place)
    assert not os.path.exists(place)


def test_none_is_waited_for_whose_driver_is_known_and_has_ended(place: str, waiting: Registration) -> None:
    """The driver did not register here. While it runs it counts as no executor."""
    with running("sleep", "60") as driver:
        known = replace(waiting, driver_pid=driver.pid, driver_started=process_start(driver.pid) or 0)
        register(place, known)
        assert rendezvous.registrations(place) == [known], "it is read as it was written"
        assert rendezvous.forget_ended(place) is ApplicationPhase.WAITING
        driver.kill()
        driver.wait()
        with no_descriptor_left():
            assert phase_of([known]) is ApplicationPhase.WAITING, "it cannot be seen whether the driver runs"
    register(place, waiting)  # by a JVM that does not know it
    assert rendezvous.forget_ended(place) is ApplicationPhase.OVER
    here = executor(os.getpid(), "/a")
    register(place, here)
    assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE


@pytest.mark.parametrize("keep", [False, True])
def test_one_whose_homes_spark_serves_counts_as_live_until_they_are_gone(
    place: str, ended: int, tmp_path: Path, keep: bool
) -> None:
    served, home = served_by_spark(executor(ended), tmp_path / "above", keep)
    home.mkdir(parents=True)
    register(place, served)
    assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE
    assert rendezvous.registrations(place) == [served], "other hosts read what it left"
    with not_told("boot_id", "ns/pid"):
        assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE
    assert rendezvous.registrations(place) == [served]
    away = tmp_path / "away"
    os.rename(tmp_path / "above", away)
    assert rendezvous.forget_ended(place) is ApplicationPhase.OVER, "its application has ended"
    os.rename(away, tmp_path / "above")
    register(place, served)
    assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE
    home.rmdir()
    assert rendezvous.forget_ended(place) is ApplicationPhase.OVER
    assert rendezvous.registrations(place) == []


def test_one_whose_homes_spark_serves_stays_until_spark_removes_its_directories(
    place: str, ended: int, tmp_path: Path
) -> None:
    """However late that is: a notebook without an executor may be used again after days."""
    served, home = served_by_spark(executor(ended), tmp_path / "above")
    home.mkdir(parents=True)
    register(place, served)
    assert not rendezvous.dissolve(place)
    assert not rendezvous.dissolve(place, ApplicationPhase.WAITING), "the bound of waiting is not its bound"
    assert rendezvous.registrations(place) == [served]
    assert home.exists()
    shutil.rmtree(tmp_path / "above")
    assert rendezvous.dissolve(place)
    assert not os.path.exists(place)


def test_an_executor_whose_homes_spark_serves_is_live_while_it_runs(place: str, tmp_path: Path) -> None:
    served, _ = served_by_spark(executor(os.getpid()), tmp_path / "above")
    Path(served.owner.local_directories[0]).mkdir(parents=True)
    register(place, served)
    assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE, "it has no homes yet"


def served_by_spark(registration: Registration, above: Path, keep: bool = False) -> tuple[Registration, Path]:
    """The same, with files that Spark's shuffle service serves below a directory; and its home there."""
    local = (str(above / "blockmgr-1"),)
    owner = replace(registration.owner, local_directories=local, served_by_spark=True, keep=keep)
    home = above / "sortshuffle" / "app-1" / owner.home_name
    return replace(registration, owner=owner, roots=(str(above),)), home


@pytest.mark.parametrize(
    "what", ["without a shared home", "with an engine that ends with its executor"], ids=lambda what: what
)
def test_one_that_nothing_outlives_is_over(place: str, ended: int, tmp_path: Path, what: str) -> None:
    blocks = tmp_path / "above" / "blockmgr-1"
    blocks.parent.mkdir()
    if what == "without a shared home":
        register(place, outliving(executor(ended, "/a"), blocks))
    else:
        register(place, executor(ended, "/a", token=TOKEN))
    assert rendezvous.forget_ended(place) is ApplicationPhase.OVER


def test_a_process_that_can_open_nothing_knows_of_no_end(place: str) -> None:
    """One passing error of the system must not end an application's service."""
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a", token=TOKEN))
    pid = supervised(place)["pid"]
    for ask, end_of_it in (
        (lambda: rendezvous.forget_ended(place), ApplicationPhase.OVER),
        (lambda: rendezvous.is_recorded(place, pid), False),
        (lambda: rendezvous.dissolve(place), True),
    ):
        with no_descriptor_left():
            try:
                found = ask()
            except OSError:
                continue
            assert found != end_of_it
    assert rendezvous.registrations(place) != []


def test_shared_homes_go_with_the_rendezvous_and_so_does_the_socket(
    place: str, ended: int, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    homes = [made_home(tmp_path / "a"), made_home(tmp_path / "b")]
    other = tmp_path / "a" / "sortshuffle" / "app-1" / "host-4711"
    other.mkdir()
    roots = (str(tmp_path / "a"), str(tmp_path / "gone"), str(tmp_path / "b"))
    register(place, executor(ended, *roots, token=TOKEN))
    Path(rendezvous_directory.socket_path(place)).touch()
    assert rendezvous.dissolve(place)
    assert [home.exists() for home in homes] == [False, False]
    assert other.exists()
    assert not os.path.exists(os.path.dirname(place))


def test_a_producer_that_comes_while_it_is_dissolved_makes_a_new_one(
    place: str, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def remove_and_meet(path: str, **how: Any) -> None:
        register(place, executor(os.getpid(), "/b"))
        remove(path, **how)

    register(place, executor(ended, "/a"))
    monkeypatch.setattr(calls, "rmtree", remove_and_meet)
    assert rendezvous.dissolve(place)
    assert rendezvous.roots_of(place) == ("/b",)
    assert os.listdir(os.path.dirname(place)) == [os.path.basename(place)]


def test_one_that_the_system_does_not_tell_of_is_not_dissolved(
    place: str, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor asks again."""

    def untold(path: str) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    register(place, executor(ended, "/a"))
    with monkeypatch.context() as patch:
        patch.setattr(calls, "lstat", untold)
        patch.setattr(calls, "isdir", lambda _: False)  # what os.path makes of it
        with pytest.raises(OSError, match="Input/output"):
            rendezvous.dissolve(place)
    assert rendezvous.roots_of(place) == ("/a",)


def test_one_that_cannot_be_dissolved_to_its_end_has_a_new_service_for_the_next_task(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old supervisor, whose socket is gone, ends."""

    def fail(source: str, target: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), source)

    with running("sleep", "60") as gone:
        rendezvous.ensure(place, HOST, CONFIG, executor(gone.pid, "/a"))
    before = supervised(place)["pid"]
    with monkeypatch.context() as patch:
        patch.setattr(calls, "rename", fail)
        with pytest.raises(OSError, match="Input/output"):
            rendezvous.dissolve(place)
    assert not rendezvous.is_recorded(place, before)
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/b"))
    assert supervised(place)["pid"] != before
    assert connects(rendezvous_directory.socket_path(place))
    eventually(lambda: supervisors(place) == [supervised(place)["pid"]], "the old supervisor ends")


def test_registrations_are_dropped_under_the_lock_which_is_not_waited_for(
    place: str, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task may add to a registration meanwhile. To wait an hour would be past the time limit of a test."""
    monkeypatch.setattr(rendezvous_directory, "LOCK_PATIENCE", 3600.0)
    here, gone = executor(os.getpid(), "/a"), executor(ended, "/b")
    register(place, here)
    with rendezvous_directory.directory_lock(place):
        assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE, "there is nothing to drop"
    register(place, gone)
    with rendezvous_directory.directory_lock(place):
        assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE, "it is dropped another time"
    assert set(rendezvous.roots_of(place)) == {"/a", "/b"}
    assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE
    assert rendezvous.registrations(place) == [here]


def test_the_home_at_a_url_has_one_process_that_removes_it_however_often_the_rest_fails(
    place: str, ended: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor tries each second."""
    begun: list[str] = []

    def begin(home: str, left: str) -> subprocess.Popen[bytes]:
        begun.append(home)
        return subprocess.Popen(["true"])

    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    driver = at_url(executor(ended), f"file://{tmp_path}", True)
    register(place, driver)
    monkeypatch.setattr(rendezvous, "begin_to_remove_stored_home", begin)
    with monkeypatch.context() as patch:
        patch.setattr(calls, "unlink", fail)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                rendezvous.dissolve(place)
    assert rendezvous.dissolve(place)
    assert begun == [driver.stored_home]
    rendezvous._started[-1].wait(30)


def test_what_a_killed_supervisor_had_dissolved_goes_with_the_next_start(place: str) -> None:
    left = Path(place + "-0123" + rendezvous.DISSOLVED_SUFFIX)
    (left / rendezvous.ROOTS).mkdir(parents=True, mode=0o700)
    rendezvous.ensure(place, HOST, CONFIG, executor(os.getpid(), "/a"))
    assert not left.exists()


def test_shared_homes_of_an_application_that_may_come_again_stay(
    place: str, ended: int, tmp_path: Path
) -> None:
    home = made_home(tmp_path)
    register(place, outliving(executor(ended, str(tmp_path), token=TOKEN), tmp_path / "blockmgr-1"))
    assert not rendezvous.dissolve(place)
    assert home.exists()
    here = executor(os.getpid(), "/a")
    register(place, here)
    assert not rendezvous.dissolve(place, ApplicationPhase.WAITING)
    assert home.exists()
    Path(place, rendezvous.ROOTS, here.owner.home_name).unlink()
    assert rendezvous.dissolve(place, ApplicationPhase.WAITING)
    assert not home.exists()


def test_shared_homes_that_are_to_be_kept_stay(place: str, ended: int, tmp_path: Path) -> None:
    home = made_home(tmp_path, keep=True)
    keeping = executor(ended, str(tmp_path), token=TOKEN)
    register(place, replace(keeping, owner=replace(keeping.owner, keep=True)))
    assert rendezvous.dissolve(place)
    assert sorted(path.suffix for path in home.iterdir()) == [".data", ".index", ".json"]


@pytest.mark.parametrize(
    ("is_driver", "keep", "is_left"), [(True, False, False), (False, False, True), (True, True, True)]
)
def test_the_home_at_a_url_goes_with_the_drivers_rendezvous(
    place: str, ended: int, tmp_path: Path, is_driver: bool, keep: bool, is_left: bool
) -> None:
    found = at_url(executor(ended), f"file://{tmp_path}", is_driver)
    register(place, replace(found, owner=replace(found.owner, keep=keep)))
    home = Path(found.stored_home.removeprefix("file://"))
    write_pair(str(home.parent), Pair(2))  # to make the directory
    home.mkdir()
    write_pair(home, Pair(2))
    assert rendezvous.dissolve(place)
    for process in rendezvous._started:
        process.wait(30)
    assert home.exists() == is_left
    assert len(list(tmp_path.glob("exchange-*"))) == 2, "nothing beside it is touched"


def test_why_the_home_at_a_url_is_left_is_written_down(place: str, ended: int, tmp_path: Path) -> None:
    found = at_url(executor(ended), f"file://{tmp_path}", True)
    register(place, found)
    Path(found.stored_home.removeprefix("file://")).touch()
    assert rendezvous.dissolve(place)
    for process in rendezvous._started:
        process.wait(30)
    assert (
        f"sortshuffle clean file://{tmp_path} --application app-1-{TOKEN}"
        in Path(f"{place}.left").read_text()
    )


def test_of_those_at_a_url_only_the_driver_is_remembered(place: str, ended: int) -> None:
    register(place, at_url(executor(ended), "s3://bucket", False))
    assert rendezvous.forget_ended(place) is ApplicationPhase.OVER
    assert rendezvous.registrations(place) == []
    driver = at_url(executor(ended), "s3://bucket", True)
    register(place, driver, executor(ended, "/of/its/tasks"))
    assert rendezvous.forget_ended(place) is ApplicationPhase.OVER
    (found,) = rendezvous.registrations(place)
    assert (found.stored_home, found.is_driver) == (f"s3://bucket/app-1-{TOKEN}", True)


def test_an_executor_that_comes_again_keeps_what_was_known_of_it(place: str) -> None:
    first = executor(os.getpid(), "/above", token=TOKEN)
    register(place, first, executor(os.getpid(), "/a"))
    (found,) = rendezvous.registrations(place)
    assert found == replace(first, roots=("/a",))


def test_an_executor_with_other_settings_is_registered_beside_the_first(place: str) -> None:
    """A frame that keeps its files says nothing of the application's."""
    first = outliving(executor(os.getpid(), "/above", token=TOKEN))
    second = executor(os.getpid(), "/a")
    second = replace(second, owner=replace(second.owner, keep=True))
    register(place, first, second)
    found = rendezvous.registrations(place)
    assert sorted(found, key=lambda each: each.roots) == [first, second]
    assert not any(each.keeps_shared_homes for each in found)


@pytest.mark.parametrize("jvm_first", [True, False])
def test_directories_of_an_executors_own_tasks_get_no_shared_homes(place: str, jvm_first: bool) -> None:
    """A JVM's shared homes lie above the executor's directories, and outlive it. Python tasks of the same
    executor register with the executor's directories themselves, which go with it."""
    of_jvm = outliving(executor(os.getpid(), "/above", token=TOKEN))
    of_tasks = executor(os.getpid(), "/above/blockmgr-1")
    register(place, *((of_jvm, of_tasks) if jvm_first else (of_tasks, of_jvm)))
    assert sorted(rendezvous.roots_of(place)) == ["/above", "/above/blockmgr-1"]
    homes = {home for each in rendezvous.registrations(place) for home in each.shared_homes}
    assert homes == set(of_jvm.shared_homes)


def test_a_process_number_that_is_used_again_hides_no_shared_home(place: str) -> None:
    before = executor(os.getpid(), "/a", token=TOKEN)
    before = replace(before, owner=replace(before.owner, started=1))
    register(place, before, executor(os.getpid(), "/b"))
    assert rendezvous.forget_ended(place) is ApplicationPhase.LIVE
    homes = {home for each in rendezvous.registrations(place) for home in each.shared_homes}
    assert homes == set(before.shared_homes) != set()
