"""The shuffle manager on a cluster of three hosts: what lies on another host is read through its service, and
what is lost with a host runs again, once."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme
from cluster import Cluster
from cluster_driver import files_below, lost_host
from engine import eventually
from fault_stages import attempts, map_outputs_made, map_runs, paused
from served_session import ON_EXECUTORS, Session

from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.service.host.rendezvous import address_of
from sortshuffle.service.wire.address import split_address

HOSTS = FIRST, SECOND, THIRD = "127.0.0.2", "127.0.0.3", "127.0.0.4"
PATIENCE = 120.0  # seconds until tasks that are told nothing must have got somewhere
GONE = 30.0  # seconds after the application's end


def session_on(cluster: Cluster, directory: Path, settings: Mapping[str, str] = {}) -> Session:
    state = cluster.state()
    assert state is not None
    chosen = {
        **ON_EXECUTORS,
        "spark.master": state.master,
        "spark.executor.memory": "512m",
        "spark.locality.wait": "0s",  # tasks go to all hosts
        "spark.sortshuffle.service.timeout": "3s",
        **settings,
    }
    session = Session(directory, True, chosen, cluster.driver_environment())
    try:
        wait_for_executors(session)
    except BaseException:
        session.kill()
        raise
    return session


def wait_for_executors(session: Session, lost: Sequence[str] = ()) -> None:
    """Until there is one on each host, and none of those that were lost: Spark may not know it yet."""

    def are_there() -> bool:
        found = session.run("executors").value
        return len(found) == len(HOSTS) and not set(found) & set(lost)

    eventually(are_there, "an executor on each host", PATIENCE)


@pytest.fixture(scope="module")
def started(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    session = session_on(cluster, tmp_path_factory.mktemp("manager"))
    try:
        yield session
    finally:
        session.kill()


@pytest.fixture
def session(started: Session) -> Session:
    """With an executor on each host: a test before may have killed one."""
    wait_for_executors(started)
    return started


def outputs(cluster: Cluster, session: Session, shuffle: int) -> dict[str, list[Path]]:
    """Finished data files of a shuffle, by host."""
    name = f"exchange-{shuffle}-"
    return {
        host: [
            path
            for path in files_below(cluster.local_directory(host))
            if path.name.startswith(name) and path.suffix == ".data" and session.application in path.parts
        ]
        for host in HOSTS
    }


def hold(
    session: Session, cluster: Cluster, job: str = "hold_rows", *, name: str = "held", **arguments: Any
) -> dict[str, list[Path]]:
    """Run a map stage that has tasks on each host; its data files."""
    shuffle = session.run(job, name=name, **arguments).value["shuffle"]
    found = outputs(cluster, session, shuffle)
    assert all(found.values()), "a host has run no map task"
    return found


def meetings(session: Session, host: str = "*") -> list[Path]:
    """Where a session's tasks on a host meet their service. The hosts of the tests share a /tmp."""
    return list(Path(tempfile.gettempdir(), f"sortshuffle-{os.geteuid()}").glob(session.application + host))


# ---- reading from other hosts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job", ["aggregate", "every_kind_of_column", "big_rows", "skew_join", "group_by_key"]
)
def test_jobs_read_from_all_hosts(session: Session, job: str) -> None:
    found = session.run(job)
    assert found.decisions == {"sortshuffle": found.shuffles}
    assert found.value["count"] > 0


def test_what_was_read_from_other_hosts_is_counted(session: Session, cluster: Cluster) -> None:
    files = hold(session, cluster, maps=12, partitions=6)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)
    stage = found["stages"][-1]
    size = sum(path.stat().st_size - HEADER_BYTES for paths in files.values() for path in paths)
    assert 0 < stage["remote"] < stage["read"] == size


def test_shuffles_that_nobody_needs_lose_their_files_on_all_hosts(session: Session, cluster: Cluster) -> None:
    files = [path for paths in hold(session, cluster, maps=9).values() for path in paths]
    are_forgotten(session, files)


def are_forgotten(session: Session, files: list[Path], **arguments: str) -> None:
    session.run("forget_held", **arguments)

    def are_gone() -> bool:
        session.run("collect_garbage")
        return not any(path.exists() for path in files)

    eventually(are_gone, "the files of a forgotten shuffle go", PATIENCE)


# ---- losses ------------------------------------------------------------------------------------------------


def test_executors_killed_between_the_stages_cost_nothing(session: Session, cluster: Cluster) -> None:
    """Their shuffles are read, also while there are no executors yet. The files of one that nobody needs go,
    too: the driver has them removed, since none of its executors is left."""
    forgotten = hold(session, cluster, name="forgotten", maps=9)
    hold(session, cluster, maps=9)
    lost = kill_executors(session, cluster)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)
    wait_for_executors(session, lost)
    wait_for_executors(session, kill_executors(session, cluster))  # which have not asked for an engine
    are_forgotten(session, [path for paths in forgotten.values() for path in paths], name="forgotten")


def kill_executors(session: Session, cluster: Cluster) -> list[str]:
    lost: list[str] = session.run("executors").value
    for host in HOSTS:
        # an executor that just starts a process is two for a moment: the child still has its command line
        assert cluster.kill(host, "executor"), f"none on {host}: {cluster.processes()}"
        cluster.kill(host, "python")
    return lost


def test_services_killed_between_the_stages_cost_nothing(session: Session, cluster: Cluster) -> None:
    hold(session, cluster, maps=9)
    for host in HOSTS:
        assert len(cluster.kill(host, "service")) == 1
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)


READ_BY_ALL = ("hold_rows", {"maps": 90})
READ_BY_ONE = ("hold_pairs", {"maps": 90, "partitions": 90, "rows": 90})  # each by a task of its own
LOST_MANY = (
    "hold_pairs",
    {"maps": 180, "partitions": 180, "rows": 180},
)  # more than a request asks for (100)


@pytest.mark.parametrize(("job", "arguments"), [READ_BY_ALL, READ_BY_ONE], ids=["all", "one"])
def test_a_disk_that_is_lost_with_all_its_map_outputs(
    session: Session, cluster: Cluster, job: str, arguments: dict[str, int]
) -> None:
    """Some thirty map outputs: one more attempt."""
    lost = hold(session, cluster, job, **arguments)[SECOND]
    for home in {path.parent for path in lost}:
        shutil.rmtree(home)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, len(lost), 2)


@pytest.mark.parametrize("lose", ["flip", "delete"])
def test_one_map_output_of_another_host(session: Session, cluster: Cluster, lose: str) -> None:
    path = hold(session, cluster, maps=9)[THIRD][0]
    if lose == "delete":
        path.unlink()
    else:
        with open(path, "r+b", buffering=0) as opened:
            at = path.stat().st_size // 2
            byte = os.pread(opened.fileno(), 1, at)[0]
            os.pwrite(opened.fileno(), bytes([byte ^ 1]), at)
    found = session.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 1, 2)


@pytest.mark.parametrize(
    ("job", "arguments", "gone"),
    [(*READ_BY_ALL, [THIRD]), (*LOST_MANY, [SECOND, THIRD])],
    ids=["all", "one, two hosts"],
)
def test_a_host_that_is_lost_with_all_its_map_outputs(
    session: Session, cluster: Cluster, job: str, arguments: dict[str, int], gone: list[str]
) -> None:
    """Everything that runs on it is killed, and its disk is wiped."""
    written = hold(session, cluster, job, **arguments)
    with ExitStack() as hosts_lost:
        for host in gone:
            hosts_lost.enter_context(lost_host(cluster, host))
            for meeting in meetings(session, f"*{host}*"):
                shutil.rmtree(meeting)
        found = session.run("read_held", name="held").value
        lost = sum(len(written[host]) for host in gone)
        assert (found["right"], map_outputs_made(found)) == (True, lost)
        assert attempts(found) <= 2  # one, if Spark has noticed by then that the worker is gone


def test_services_killed_while_they_are_read_from(session: Session, cluster: Cluster) -> None:
    answer, directory = paused(session, "reduce", PATIENCE)
    before = {host: cluster.pids(host, "service") for host in HOSTS}
    for host in HOSTS:
        cluster.kill(host, "service")
    (directory / "go").touch()
    found = answer.result(PATIENCE).value
    assert found["right"]
    assert map_runs(found) == 2
    assert any(set(cluster.pids(host, "service")) - set(before[host]) for host in HOSTS)


# ---- the end -----------------------------------------------------------------------------------------------


def left(cluster: Cluster, session: Session) -> tuple[Counter[str], list[Path], list[Path]]:
    """Of a session: processes on the hosts, files on their disks, where its tasks meet the services."""
    processes = Counter(each.kind for each in cluster.processes() if each.kind not in ("master", "worker"))
    files = [path for path in files_below(cluster.directory) if session.application in path.parts]
    files = [path for path in files if "sortshuffle" in path.parts]
    return processes, files, meetings(session)


def nothing_is_left(cluster: Cluster, session: Session) -> None:
    found: list[object] = []

    def is_gone() -> bool:
        found[:] = left(cluster, session)
        return not any(found)

    try:
        eventually(is_gone, "all to be gone", GONE)
    except AssertionError as error:
        raise AssertionError(f"left: {found}") from error
    session.nothing_is_left()  # the driver may have used an engine of its own host


def test_nothing_is_left_when_the_driver_is_killed(session: Session, cluster: Cluster) -> None:
    """The last test of this session. Those below have another one."""
    paused(session, "map", PATIENCE)
    there = left(cluster, session)
    assert there[0]["executor"] == 3 and there[0]["service"] >= 2
    assert there[1] and there[2]
    session.kill()
    nothing_is_left(cluster, session)


# ---- with TLS and speculation ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate of all hosts, its key, and who has signed it."""
    directory = tmp_path_factory.mktemp("tls")
    signer = trustme.CA()
    certificate = signer.issue_cert(*HOSTS)
    chain, key, trusted = (directory / name for name in ("chain.pem", "key.pem", "authority.pem"))
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(str(chain), append=True)
    certificate.private_key_pem.write_to_path(str(key))
    signer.cert_pem.write_to_path(str(trusted))
    return {"certificate": chain, "key": key, "authority": trusted}


@pytest.fixture(scope="module")
def encrypted(
    cluster: Cluster, authority: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """A session whose services speak TLS, and whose slow tasks run twice in a job that asks for it. In others
    a host that is slow to begin would lose its tasks to the rest."""
    settings = {f"spark.sortshuffle.service.tls.{name}": str(path) for name, path in authority.items()}
    settings |= {"spark.speculation": "true", "spark.speculation.interval": "200ms"}
    settings |= {"spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "1.0"}
    session = session_on(cluster, tmp_path_factory.mktemp("encrypted") / "session", settings)
    try:
        yield session
    finally:
        session.kill()


def test_services_speak_tls_with_each_other(
    encrypted: Session, cluster: Cluster, authority: dict[str, Path]
) -> None:
    hold(encrypted, cluster, maps=12, partitions=6)
    found = encrypted.run("read_held", name="held").value
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)
    assert found["stages"][-1]["remote"] > 0
    context = ssl.create_default_context(cafile=str(authority["authority"]))
    for host, directory in ((host, *meetings(encrypted, f"*{host}*")) for host in HOSTS):
        address = split_address(address_of(str(directory)))
        with socket.create_connection(address) as plain, context.wrap_socket(plain, server_hostname=host):
            pass  # it has shown its certificate


def test_a_task_that_speculation_runs_twice(encrypted: Session, cluster: Cluster) -> None:
    """One attempt of a map task hangs; Spark starts another one elsewhere, whose map output counts."""
    found = encrypted.start("one_task_hangs").result(PATIENCE).value
    assert found["right"]
    eventually(
        lambda: not [path for path in files_below(cluster.directory) if path.suffix == ".partial"],
        "the unfinished files to go",
    )


def test_nothing_is_left_when_the_session_ends(encrypted: Session, cluster: Cluster) -> None:
    """Last, for it ends the session."""
    encrypted.stop()
    nothing_is_left(cluster, encrypted)


def test_services_in_another_network_than_sparks(cluster: Cluster, tmp_path: Path) -> None:
    """Executors have the addresses of their hosts. Their service does not know these: it listens at the
    address on the way to the driver. So all three have one."""
    session = session_on(cluster, tmp_path, {"spark.executorEnv.SPARK_LOCAL_IP": ""})
    try:
        hold(session, cluster, maps=12, partitions=6)
        found = session.run("read_held", name="held").value
    finally:
        session.kill()
    assert (found["right"], map_runs(found), attempts(found)) == (True, 0, 1)
