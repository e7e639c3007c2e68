"""A map task that runs again and its finished output, with a real service: found and linked on its own host,
taken from another host's, or not found at all."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine import DRIVER, Pair, Region, names, read_pair, write_pair
from failing import no_threads

from sortshuffle import calls
from sortshuffle.errors import DataLossError, MissingDataError, Place, ServiceUnavailableError
from sortshuffle.format.header import HEADER_BYTES
from sortshuffle.homes import directories, janitor
from sortshuffle.homes.host import host_name
from sortshuffle.homes.lifetime import dead_outputs
from sortshuffle.homes.loss import make_producer_run_again
from sortshuffle.homes.owner import Owner
from sortshuffle.homes.processes import boot_id, process_start
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB, Options
from sortshuffle.service.client.asking import AT_ONCE
from sortshuffle.service.client.client import ServiceClient
from sortshuffle.service.client.service_link import ServiceLink
from sortshuffle.service.server.shuffle_service import ShuffleService, serve
from sortshuffle.service.wire.protocol import FoundOutput, MapOutputAddress
from sortshuffle.spark.control_rows import INLINE_REGIONS, Adopter, channels, control_batches
from sortshuffle.spark.session.service import HostService, Mode, ServiceSettings
from sortshuffle.spark.steps.subpartition_sizes import sum_sizes
from sortshuffle.spark.worker import adoption, reach
from sortshuffle.spark.worker.adoption import finished_outputs
from sortshuffle.spark.worker.reach import ClusterReach
from sortshuffle.spark.worker.reports import NullReporter
from sortshuffle.spark.worker.silence import Silence
from sortshuffle.spark.worker.task import Task, running
from sortshuffle.storage.files.partitioned_file import PartitionedFile

EXCHANGE, MAP, ATTEMPT = 3, 17, 300
LOST = 204  # the attempt of the executor that has ended
NOBODY = 2**22 + 1  # above every pid
PAIR = Pair(2, regions=[Region({0: [b"a" * 100], 1: [b"b" * 50]})])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that the service serves; janitors of homes in it end with the test."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv(directories.LOCAL_DIRS_VARIABLE, str(tmp_path / "blocks"))
    (tmp_path / "blocks").mkdir()
    for name in ("served", "second"):
        (tmp_path / name).mkdir()
    yield tmp_path / "served"
    for process in janitor._janitors:
        process.kill()
        process.wait()
    janitor._janitors.clear()


@pytest.fixture
def service(root: Path) -> Iterator[ShuffleService]:
    with serve([str(root), str(root.parent / "second")]) as serving:
        yield serving


def lost_output(root: Path, host: str = "127.0.0.1", pid: int = NOBODY, pair: Pair = PAIR) -> PartitionedFile:
    """A finished map output of an executor that has ended, unless ``pid`` is that of one that lives."""
    home = root / "sortshuffle" / "app" / f"{host}-{pid}"
    home.mkdir(parents=True)
    Owner("app", host, boot_id(), pid, 1, (), 600.0, False, outlived=True).write(str(home))
    return write_pair(home, pair, LOST)


def task_on(root: Path, service: ShuffleService, hosts: tuple[str, ...] = (), driver: bytes = DRIVER) -> Task:
    options = Options(directories=(str(root),), service="external", service_port=port_of(service))
    settings = ServiceSettings(Mode.EXTERNAL, adopts=True, hosts=hosts, driver=driver)
    host = HostService(options, "app", settings)
    budget = MemoryBudget(4 * MIB)
    reading = budget.share(MIB, "read")
    return Task(options, "app", 5, MAP, ATTEMPT, budget, reading, budget, 0, ClusterReach(host), host)


def port_of(service: ShuffleService) -> int:
    return int(service.address.rpartition(":")[2])


def test_an_output_of_its_own_host_becomes_one_of_its_own(root: Path, service: ShuffleService) -> None:
    lost = lost_output(root)
    task = task_on(root, service)
    found = finished_outputs(task, [EXCHANGE])
    assert found is not None
    (output,) = found
    assert (output.host, output.attempt, output.service) == (host_name(), ATTEMPT, service.address)
    assert (output.map_index, output.exchange) == (MAP, EXCHANGE)
    assert os.path.dirname(output.file.base) in task.files.homes()
    assert output.file.attempt == ATTEMPT
    counts = task.outputs[EXCHANGE].counts
    assert (counts["bytes_written"], counts["regions"], counts["files"]) == (
        os.path.getsize(lost.data_path),
        len(PAIR.regions),
        2,
    )
    lost.delete()
    assert read_pair(output.file) == read_pair(write_pair(root, PAIR))


def test_one_of_another_host_is_left_there(root: Path, service: ShuffleService) -> None:
    lost = lost_output(root, host="127.0.0.9")
    task = task_on(root, service, ("127.0.0.1", "localhost"))
    # under its other name it stands for another host's
    Silence(task.files.homes()[0]).note([service.address])
    found = finished_outputs(task, [EXCHANGE])
    assert found is not None
    (output,) = found
    assert (output.file, output.host, output.attempt) == (lost, "127.0.0.9", LOST)
    assert output.adopter == Adopter(ATTEMPT, service.address)
    assert output.service == f"localhost:{port_of(service)}"
    assert task.reach.index(output).header.file_id == output.file_id
    task.reach.close()


def test_the_janitor_takes_it_for_new(root: Path, service: ShuffleService) -> None:
    """Spark does not know it before the task has ended, however long ago it was written."""
    lost = lost_output(root)
    long_ago = time.time() - 10_000
    for path in (lost.data_path, lost.index_path):
        os.utime(path, (long_ago, long_ago))
    task = task_on(root, service)
    found = finished_outputs(task, [EXCHANGE])
    assert found is not None
    home = os.path.dirname(found[0].file.base)
    owner = Owner.read(home)
    assert owner is not None
    assert list(dead_outputs(home, owner, time.time())) == []


def test_one_that_cannot_be_linked_is_read_where_it_is(
    root: Path, service: ShuffleService, tmp_path: Path
) -> None:
    """By services of other hosts' disks, or of a directory that this executor does not write to."""
    lost = lost_output(root)
    task = task_on(root, service)
    (tmp_path / "other").mkdir()
    task.options = replace(task.options, directories=(str(tmp_path / "other"),))
    found = finished_outputs(task, [EXCHANGE])
    assert found is not None
    assert (found[0].file, found[0].attempt, found[0].service) == (lost, LOST, service.address)


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Whatever would change a file on that disk fails, as where it was mounted for reading alone."""

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def on_disk(path: str, *arguments: Any, **how: Any) -> Any:
            if path.startswith(str(root)):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            return call(path, *arguments, **how)

        return on_disk

    with pytest.MonkeyPatch.context() as patched:
        for name in ("utime", "link", "unlink"):
            patched.setattr(calls, name, failing(getattr(calls, name)))
        yield


def test_one_on_a_disk_that_can_only_be_read_is_read_where_it_is(root: Path, service: ShuffleService) -> None:
    lost = lost_output(root)
    task = task_on(root, service)
    task.files.homes()  # of a time when it could be written to
    with read_only(root):
        found = finished_outputs(task, [EXCHANGE])
    assert found is not None
    assert (found[0].file, found[0].attempt) == (lost, LOST)
    task.reach.close()


def test_what_was_linked_in_vain_and_cannot_be_removed_is_no_error(
    root: Path, service: ShuffleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_output(root)
    task = task_on(root, service)
    link, disk = calls.link, ExitStack()

    def last(*arguments: Any, **how: Any) -> None:
        link(*arguments, **how)
        if arguments[0].endswith(".index"):
            disk.enter_context(read_only(root))

    monkeypatch.setattr(calls, "link", last)
    with disk:
        assert finished_outputs(task, [EXCHANGE, EXCHANGE + 1]) is None


def test_the_service_of_its_own_host_comes_first_however_slow_it_is(
    root: Path, service: ShuffleService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_output(root)
    task = task_on(root, service, ("localhost",))  # under its other name it stands for another host's
    (tmp_path / "other").mkdir()
    task.options = replace(task.options, directories=(str(tmp_path / "other"),))
    find, close, other_is_done = ServiceClient.find, ServiceLink.close, threading.Event()

    def slow(client: ServiceClient, wanted: MapOutputAddress) -> FoundOutput | None:
        found = find(client, wanted)
        assert client.address != service.address or other_is_done.wait(20)
        return found

    def closing(link: ServiceLink) -> None:
        close(link)
        if link.address != service.address:
            other_is_done.set()

    monkeypatch.setattr(ServiceClient, "find", slow)
    monkeypatch.setattr(ServiceLink, "close", closing)
    found = finished_outputs(task, [EXCHANGE])
    assert found is not None
    assert found[0].service == service.address
    task.reach.close()


def test_one_of_another_driver_is_not_adopted(root: Path, service: ShuffleService) -> None:
    """Two Python processes that drive one SparkContext count their exchanges alike."""
    lost_output(root)
    task = task_on(root, service, driver=bytes(16))
    assert finished_outputs(task, [EXCHANGE]) is None
    task.reach.close()


def test_every_exchange_must_have_one(root: Path, service: ShuffleService) -> None:
    lost_output(root)
    task = task_on(root, service)
    assert finished_outputs(task, [EXCHANGE, EXCHANGE + 1]) is None
    (home,) = task.files.homes()
    assert [name for name in names(home) if name.startswith("exchange-")] == []


@pytest.mark.parametrize("fault", ["missing", "damaged", "its service is gone"])
@pytest.mark.parametrize("host", ["127.0.0.9", "127.0.0.1"], ids=["on another host", "on another disk"])
def test_one_that_is_lost_where_it_lies_makes_its_adopter_run_again(
    root: Path, service: ShuffleService, tmp_path: Path, fault: str, host: str
) -> None:
    """Spark knows it by the adopter's control files, which lie on the adopter's host."""
    lost = lost_output(root, host)
    adopter = task_on(tmp_path / "second", service)
    found = finished_outputs(adopter, [EXCHANGE])
    assert found is not None and found[0].file == lost
    rows = list(control_batches(found[0], adopter.reach.index(found[0]), exchange=EXCHANGE))
    blocks = control_files_of_two(tmp_path)
    consumer = task_on(root, service)
    match fault:
        case "missing":
            lost.delete()
        case "damaged":
            Path(lost.data_path).write_bytes(flipped(Path(lost.data_path).read_bytes()))
        case "its service is gone":
            there = replace(found[0], host="127.0.0.9", service="127.0.0.1:1")  # where nobody listens
            rows = list(control_batches(there, adopter.reach.index(found[0]), exchange=EXCHANGE))
            with_patience(consumer, 0.3)
    with (
        pytest.raises((DataLossError, ServiceUnavailableError)),
        running(consumer, NullReporter(), False, noted),
    ):
        for channel in channels(iter(rows), consumer.reach):
            with channel.open(channel.extents) as reader:
                for extent in channel.extents:
                    reader.read_extent(extent)
    assert names(blocks) == [f"shuffle_0_{ATTEMPT + 1}_0.index"]
    adopter.reach.close()


def test_one_whose_service_is_gone_makes_its_adopter_run_again_though_a_user_wraps_the_error(
    root: Path, service: ShuffleService, tmp_path: Path
) -> None:
    lost_output(root, "127.0.0.9")
    adopter = task_on(tmp_path / "second", service)
    found = finished_outputs(adopter, [EXCHANGE])
    assert found is not None
    there = replace(found[0], service="127.0.0.1:1")  # where nobody listens
    blocks = control_files_of_two(tmp_path)
    consumer = task_on(root, service)
    with_patience(consumer, 0.3)
    with pytest.raises(LookupError), running(consumer, NullReporter(), False, noted):
        try:
            consumer.reach.index(there)
        except ServiceUnavailableError as error:
            raise LookupError("by the user") from error
    assert names(blocks) == [f"shuffle_0_{ATTEMPT + 1}_0.index"]
    adopter.reach.close()


def test_who_sums_up_sizes_makes_the_adopter_run_again_too(
    root: Path, service: ShuffleService, tmp_path: Path
) -> None:
    """Skew's own job reads the indexes that are too large for their control rows."""
    large = replace(PAIR, regions=[*PAIR.regions] * (INLINE_REGIONS + 1))
    lost = lost_output(root, "127.0.0.9", pair=large)
    adopter = task_on(tmp_path / "second", service)
    found = finished_outputs(adopter, [EXCHANGE])
    assert found is not None and found[0].file == lost
    rows = list(control_batches(found[0], adopter.reach.index(found[0]), exchange=EXCHANGE))
    blocks = control_files_of_two(tmp_path)
    lost.delete()
    assert adopter.service is not None
    with pytest.raises(DataLossError):
        list(sum_sizes(iter(rows), adopter.service))
    assert names(blocks) == [f"shuffle_0_{ATTEMPT + 1}_0.index"]
    adopter.reach.close()


def control_files_of_two(place: Path) -> Path:
    """The directory in which Spark has those of the adopter's attempt and of the next one."""
    blocks = place / "blocks" / "0a"
    blocks.mkdir()
    for attempt in (ATTEMPT, ATTEMPT + 1):
        (blocks / f"shuffle_0_{attempt}_0.index").touch()
    return blocks


def test_a_worker_that_gets_no_thread_asks_and_tells_nobody(root: Path, service: ShuffleService) -> None:
    """One at the limit of its address space: its task runs, or fails with its own error."""
    lost_output(root, "127.0.0.9")
    adopter = task_on(root, service)
    found = finished_outputs(adopter, [EXCHANGE])
    assert found is not None and found[0].adopter is not None
    with no_threads():
        task = task_on(root, service)
        assert finished_outputs(task, [EXCHANGE]) is None
        assert Silence(task.files.homes()[0]).others([service.address]) == [service.address]
        consumer = task_on(root, service)
        consumer.reach.channel(found[0], ())
        with (
            pytest.raises(MissingDataError, match="as told"),
            running(consumer, NullReporter(), False, noted),
        ):
            raise MissingDataError(Place(found[0].file.data_path), "as told")
    adopter.reach.close()


def test_adopters_that_are_not_told_are_in_the_log(
    root: Path, service: ShuffleService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where one is not gone with its host, the retry finds the same again: somebody may look for why."""
    monkeypatch.setattr(reach, "TELL_SECONDS", 0.3)
    lost = lost_output(root, "127.0.0.9")
    adopter = task_on(root, service)
    found = finished_outputs(adopter, [EXCHANGE])
    assert found is not None and found[0].adopter is not None
    consumer = task_on(root, service)
    elsewhere = replace(found[0].adopter, service="127.0.0.1:1")  # where nobody listens
    consumer.reach.channel(replace(found[0], adopter=elsewhere), ())
    consumer.reach.rerun_adopters(MissingDataError(Place(lost.data_path), "as told"))
    told = "are not told: within 0.3 s these services could not be asked, or did not answer: 127.0.0.1:1"
    assert told in caplog.text
    adopter.reach.close()
    consumer.reach.close()


def flipped(data: bytes) -> bytes:
    """All bytes behind the header changed."""
    return data[:HEADER_BYTES] + bytes(byte ^ 1 for byte in data[HEADER_BYTES:])


def with_patience(task: Task, seconds: float) -> None:
    assert task.service is not None
    task.service = replace(task.service, options=replace(task.options, service_timeout=seconds))
    task.reach = ClusterReach(task.service)


def noted(metrics: TaskMetrics) -> None:
    pass


@pytest.mark.parametrize("missing", ["another map", "nothing there", "live", "damaged"])
def test_what_is_not_there_whole_is_not_adopted(root: Path, service: ShuffleService, missing: str) -> None:
    task = task_on(root, service)
    if missing == "another map":
        lost_output(root)
        task.partition = MAP + 1
    elif missing == "live":
        lost = lost_output(root, pid=os.getpid())
        home = os.path.dirname(lost.base)
        owner = Owner.read(home)
        assert owner is not None
        replace(owner, started=process_start(os.getpid()) or 0).write(home)
    elif missing == "damaged":
        Path(lost_output(root).index_path).write_bytes(b"x")
    assert finished_outputs(task, [EXCHANGE]) is None


def test_services_that_do_not_answer_are_waited_for_together_and_once_for_an_executor(
    root: Path, service: ShuffleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts that are gone: each is connected to while all others are, and by one worker."""
    monkeypatch.setattr(adoption, "ANSWER_SECONDS", 2.0)
    gone = [f"127.0.1.{n}" for n in range(1, AT_ONCE)]
    lost_output(root)
    with ExitStack() as opened:
        port = port_of(service)
        silent = [opened.enter_context(socket.create_server((host, port))) for host in gone]
        together = threading.Barrier(len(gone))
        threads = opened.enter_context(ThreadPoolExecutor(len(gone)))
        waiting = [threads.submit(accept_one, each, together) for each in silent]
        found = finished_outputs(task_on(root, service, (*gone, "127.0.0.1")), [EXCHANGE])
        assert found is not None  # of the service that answers
        assert not together.broken
        for each in waiting:
            each.result().close()
        for listening in silent:
            others_that_came(listening)
        anew = finished_outputs(task_on(root, service, (*gone, "127.0.0.1")), [EXCHANGE])  # another worker
        assert anew is not None
        assert [others_that_came(listening) for listening in silent] == [0] * len(gone)


def accept_one(listening: socket.socket, together: threading.Barrier) -> socket.socket:
    """The first connection, when all have one."""
    connection, _ = listening.accept()
    together.wait(20)
    return connection


def others_that_came(listening: socket.socket) -> int:
    """How many connections wait; they are closed."""
    listening.setblocking(False)
    count = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_one_that_turned_out_to_be_damaged_is_not_adopted_again(root: Path, service: ShuffleService) -> None:
    lost = lost_output(root)
    found = finished_outputs(task_on(root, service), [EXCHANGE])
    assert found is not None
    make_producer_run_again(found[0].file)
    assert names(os.path.dirname(lost.base)) == ["owner.json"]
    again = task_on(root, service)
    assert finished_outputs(again, [EXCHANGE]) is None
    with pytest.raises(MissingDataError):
        again.reach.index(found[0])
