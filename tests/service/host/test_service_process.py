"""The process that a supervisor runs: it serves what the registered executors have, and the next one goes on
serving that when it is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from engine import Pair, eventually, write_pair
from jvm_client import FAILED, Block, connected

from sortshuffle.errors import AuthenticationError, ServiceUnavailableError
from sortshuffle.format.header import Codec
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, process_start
from sortshuffle.homes.small_files import replace_json
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings, ClientTls
from sortshuffle.service.host import process, rendezvous, rendezvous_directory
from sortshuffle.service.host.process import RegisteredRoots, engine_of, settings_of
from sortshuffle.service.host.registration import Registration
from sortshuffle.service.host.service_config import ServiceConfig
from sortshuffle.service.jvm.engine import EngineSettings, SharedHomes
from sortshuffle.service.pages.http import fetch_status
from sortshuffle.service.server.transport import ServerTls
from sortshuffle.service.wire.protocol import MapOutputAddress
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

HOST = "127.0.0.1"
CONFIG = ServiceConfig(b"s" * 32, 8 << 20)
SOON = 30.0
TOKEN = "5e" * 16


def registration(*roots: str, token: str = "", keep: bool = False) -> Registration:
    """Of this process, as if it were an executor."""
    pid = os.getpid()
    owner = Owner("app-1", HOST, boot_id(), pid, process_start(pid) or 0, (), 600.0, keep)
    # an executor of the manager has shared roots, one of frames roots of its own
    return Registration(owner, () if token else roots, roots if token else (), token)


@pytest.fixture
def place(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A rendezvous, whose supervisor ends with the test."""
    (short_path / "own").mkdir(mode=0o700)
    monkeypatch.setattr(rendezvous_directory, "own_directory", lambda: str(short_path / "own"))
    yield str(short_path / "own" / "app-1")
    for started in rendezvous._started:
        started.kill()
        started.wait()
    rendezvous._started.clear()
    rendezvous._found.clear()
    rendezvous._registered.clear()


@pytest.fixture
def clients() -> Iterator[ServiceClients]:
    opened = ServiceClients(ClientSettings(CONFIG.secret, timeout=SOON))
    yield opened
    opened.close()


def map_output(root: Path) -> tuple[PartitionedFile, MapOutputAddress]:
    home = root / "sortshuffle" / "app-1" / "host-17"
    home.mkdir(parents=True)
    file = write_pair(home, Pair(2))
    return file, MapOutputAddress("app-1", 3, 17, 204, read_index(file).header.file_id)


def pid_of_service() -> int:
    eventually(rendezvous.status_pages, "the service tells where its page is")
    return fetch_status(rendezvous.status_pages()[0]).pid


def another_serves(pid: int) -> bool:
    try:
        return pid_of_service() != pid
    except ServiceUnavailableError:
        return False


def test_what_registered_executors_have_is_served_whichever_process_serves(
    place: str, clients: ServiceClients, tmp_path: Path
) -> None:
    file, output = map_output(tmp_path / "a")
    later, later_output = map_output(tmp_path / "b")
    address = rendezvous.ensure(place, HOST, CONFIG, registration(str(tmp_path / "a")))
    client = clients.client(address)
    assert client.index(output, HOST) == Path(file.index_path).read_bytes()

    rendezvous.ensure(place, HOST, CONFIG, registration(str(tmp_path / "b")))
    assert client.index(later_output, HOST) == Path(later.index_path).read_bytes()

    os.kill(pid_of_service(), signal.SIGKILL)
    assert client.index(output, HOST) == Path(file.index_path).read_bytes()
    assert client.index(later_output, HOST) == Path(later.index_path).read_bytes()


def test_it_speaks_tls_where_it_is_told_to(place: str, tmp_path: Path) -> None:
    file, output = map_output(tmp_path)
    authority = trustme.CA()
    issued = authority.issue_cert(HOST)
    names = [str(tmp_path / name) for name in ("certificate", "key", "authority")]
    issued.cert_chain_pems[0].write_to_path(names[0])
    issued.private_key_pem.write_to_path(names[1])
    authority.cert_pem.write_to_path(names[2])
    config = ServiceConfig(CONFIG.secret, CONFIG.memory, *names)
    address = rendezvous.ensure(place, HOST, config, registration(str(tmp_path)))
    encrypted = ServiceClients(ClientSettings(CONFIG.secret, ClientTls(names[2]), timeout=SOON))
    try:
        assert encrypted.client(address).index(output, HOST) == Path(file.index_path).read_bytes()
    finally:
        encrypted.close()


def test_it_asks_for_the_secret(place: str, tmp_path: Path) -> None:
    _, output = map_output(tmp_path)
    address = rendezvous.ensure(place, HOST, CONFIG, registration(str(tmp_path)))
    strangers = ServiceClients(ClientSettings(b"t" * 32, timeout=SOON))
    try:
        with pytest.raises(AuthenticationError):
            strangers.client(address).index(output, HOST)
    finally:
        strangers.close()


def test_directories_are_read_anew_only_when_executors_have_come(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendezvous.ensure(place, HOST, CONFIG, registration("/a"))
    roots = RegisteredRoots(place)
    assert roots() == ("/a",)
    rendezvous.ensure(place, HOST, CONFIG, registration("/b"))  # perhaps within one tick of the clock
    assert roots() == ("/a", "/b")

    monkeypatch.setattr(process, "JUST_NOW", 0)
    assert roots() == ("/a", "/b")
    monkeypatch.setattr(rendezvous, "roots_of", lambda directory: ("nobody asked",))
    assert roots() == ("/a", "/b")


def test_where_no_executor_has_registered_there_is_no_directory(tmp_path: Path) -> None:
    assert RegisteredRoots(str(tmp_path / "missing"))() == ()


def test_shared_homes_are_those_of_all_who_have_a_token(place: str) -> None:
    roots = RegisteredRoots(place)
    assert roots.shared_homes() == SharedHomes(())
    rendezvous.ensure(place, HOST, CONFIG, registration("/a"))
    assert roots.shared_homes() == SharedHomes(())
    shared = registration("/b", "/c", token=TOKEN)
    rendezvous.ensure(place, HOST, CONFIG, replace(shared, owner=replace(shared.owner, pid=os.getppid())))
    assert roots.shared_homes() == SharedHomes(shared.shared_homes, TOKEN)
    rendezvous.ensure(place, HOST, CONFIG, registration("/d", keep=True))
    assert roots.shared_homes() == SharedHomes(shared.shared_homes, TOKEN), "it keeps files of its own"
    rendezvous.ensure(place, HOST, CONFIG, registration("/b", token=TOKEN, keep=True))
    assert roots.shared_homes() == SharedHomes(shared.shared_homes, TOKEN, keep=True)


@pytest.mark.parametrize("outlives", [True, False])
def test_homes_in_directories_that_spark_removes_are_known(place: str, outlives: bool) -> None:
    shared = registration("/b", "/c", token=TOKEN)
    owner = replace(shared.owner, local_directories=("/b/blockmgr-1",), outlived=outlives)
    rendezvous.ensure(place, HOST, CONFIG, replace(shared, owner=owner))
    of_spark = frozenset(shared.shared_homes[:1]) if outlives else frozenset()
    expected = SharedHomes(shared.shared_homes, TOKEN, of_spark=of_spark)
    assert RegisteredRoots(place).shared_homes() == expected


@pytest.mark.parametrize("served", [True, False])
def test_sparks_directories_of_the_application_are_known(place: str, served: bool) -> None:
    own = registration("/b")
    owner = replace(own.owner, local_directories=("/x/blockmgr-1",), served_by_spark=served)
    rendezvous.ensure(place, HOST, CONFIG, replace(own, owner=owner))
    above = ("/x",) if served else ()
    roots = RegisteredRoots(place)
    assert roots.spark_directories(own.owner.application) == ("/x/blockmgr-1", *above)
    assert roots.spark_directories("another") == ()


def test_the_home_at_a_url_is_the_only_one(place: str) -> None:
    stored = replace(registration(), token=TOKEN, url="s3://bucket/x")
    rendezvous.ensure(place, HOST, CONFIG, stored)
    expected = SharedHomes((f"s3://bucket/x/app-1-{TOKEN}",), TOKEN)
    assert RegisteredRoots(place).shared_homes() == expected


def test_it_serves_jvms_too_whichever_process_serves(place: str, tmp_path: Path) -> None:
    address = rendezvous.ensure(place, HOST, CONFIG, registration(str(tmp_path), token=TOKEN))
    path = rendezvous_directory.socket_path(place)
    with connected(path) as client:
        done = client.write([[(0, b"record")]])
    pid = pid_of_service()
    os.kill(pid, signal.SIGKILL)
    # A dying process may still accept a connection: only an answer of the next one says that it is gone.
    eventually(lambda: another_serves(pid), "another process serves")
    with connected(path) as client:
        answer = client.read([Block(7, 0, 0, 1, done.file_id)], [address])
    assert (answer.data, answer.totals[1]) == (b"record", 1)


def test_jvms_are_told_that_none_of_them_has_registered(place: str, tmp_path: Path) -> None:
    """The service was started by tasks of this package, and has no shared home."""
    rendezvous.ensure(place, HOST, CONFIG, registration(str(tmp_path)))
    with connected(rendezvous_directory.socket_path(place)) as client:
        client.begin()
        status, text = client.refusal()
    assert (status, "no executor has registered a directory" in text) == (FAILED, True), text


def test_the_engine_takes_what_it_is_told(place: str) -> None:
    config = ServiceConfig(CONFIG.secret, CONFIG.memory, "/c", "/k", "/a", 32 << 20, "zstd", 3, 12.5)
    with rendezvous_directory.directory_lock(place):
        rendezvous._register(place, registration("/a", token=TOKEN))
    replace_json(
        os.path.join(place, rendezvous.SERVICE_FILE),
        {"host": "127.0.0.9", "port": 4711, "pid": os.getpid(), "started": 1},
    )
    assert engine_of(place, config).settings == EngineSettings(
        application="app-1",
        address="127.0.0.9:4711",
        write_memory=32 << 20,
        codec=Codec.ZSTD,
        codec_level=3,
        clients=ClientSettings(CONFIG.secret, ClientTls("/a"), 12.5),
        keeper=os.getppid(),
    )
    os.unlink(os.path.join(place, rendezvous.SERVICE_FILE))
    assert engine_of(place, ServiceConfig(b"", 5 << 20)).settings.clients == ClientSettings(timeout=60.0)


def test_it_takes_what_it_is_told() -> None:
    settings = settings_of(ServiceConfig(b"secret", 5 << 20, "/c", "/k", "/a"))
    assert (settings.secret, settings.memory, settings.tls) == (b"secret", 5 << 20, ServerTls("/c", "/k"))
    open_to_all = settings_of(ServiceConfig(b"", 5 << 20))
    assert (open_to_all.secret, open_to_all.tls) == (None, None)
