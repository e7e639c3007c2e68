"""A map task that runs again and its finished output, with a real service: found and linked on its own host,
taken from another host's, or not found at all."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from engine import DRIVER, Pair, names, read_pair, write_pair

from sortshuffle.errors import MissingDataError
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.options import MIB, Options
from sortshuffle.service.shuffle_service import ShuffleService, serve
from sortshuffle.spark import adoption
from sortshuffle.spark.adoption import adopt
from sortshuffle.spark.reach import ClusterReach
from sortshuffle.spark.service import HostService, Mode, ServiceSettings
from sortshuffle.spark.task import Task
from sortshuffle.storage import directories, janitor
from sortshuffle.storage.host import host_name
from sortshuffle.storage.lifetime import Owner, boot_id, dead_outputs, process_start
from sortshuffle.storage.loss import make_producer_run_again
from sortshuffle.storage.partitioned_file import PartitionedFile

EXCHANGE, MAP, ATTEMPT = 3, 17, 300
LOST = 204  # the attempt of the executor that has ended
NOBODY = 2**22 + 1  # above every pid
PAIR = Pair(2)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that the service serves; janitors of homes in it end with the test."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv(directories.LOCAL_DIRS_VARIABLE, str(tmp_path / "blocks"))
    (tmp_path / "blocks").mkdir()
    (tmp_path / "served").mkdir()
    adoption._silent.clear()
    yield tmp_path / "served"
    for process in janitor._started:
        process.kill()
        process.wait()
    janitor._started.clear()


@pytest.fixture
def service(root: Path) -> Iterator[ShuffleService]:
    with serve([str(root)]) as running:
        yield running


def lost_output(root: Path, host: str = "127.0.0.1", pid: int = NOBODY) -> PartitionedFile:
    """A finished map output of an executor that has ended, unless ``pid`` is that of one that lives."""
    home = root / "sortshuffle" / "app" / f"{host}-{pid}"
    home.mkdir(parents=True)
    Owner("app", host, boot_id(), pid, 1, (), 600.0, False, outlived=True).write(str(home))
    return write_pair(home, PAIR, LOST)


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
    found = adopt(task, [EXCHANGE])
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
    adoption._silent[service.address] = math.inf  # under its other name it stands for another host's
    found = adopt(task, [EXCHANGE])
    assert found is not None
    (output,) = found
    assert (output.file, output.host, output.attempt) == (lost, "127.0.0.9", LOST)
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
    found = adopt(task, [EXCHANGE])
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
    found = adopt(task, [EXCHANGE])
    assert found is not None
    assert (found[0].file, found[0].attempt, found[0].service) == (lost, LOST, service.address)


def test_one_of_another_driver_is_not_adopted(root: Path, service: ShuffleService) -> None:
    """Two Python processes that drive one SparkContext count their exchanges alike."""
    lost_output(root)
    task = task_on(root, service, driver=bytes(16))
    assert adopt(task, [EXCHANGE]) is None
    task.reach.close()


def test_every_exchange_must_have_one(root: Path, service: ShuffleService) -> None:
    lost_output(root)
    task = task_on(root, service)
    assert adopt(task, [EXCHANGE, EXCHANGE + 1]) is None
    (home,) = task.files.homes()
    assert [name for name in names(home) if name.startswith("exchange-")] == []


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
    assert adopt(task, [EXCHANGE]) is None


def test_a_service_that_does_not_answer_is_passed_over_and_not_asked_again_soon(
    root: Path, service: ShuffleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "ANSWERS_WITHIN", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        task = task_on(root, service)
        options = replace(task.options, service_port=silent.getsockname()[1])
        assert task.service is not None
        task.service = replace(task.service, options=options)
        lost_output(root)
        assert adopt(task, [EXCHANGE]) is None
        assert list(adoption._silent) == [f"127.0.0.1:{options.service_port}"]
        silent.setblocking(False)
        while True:  # who came so far
            try:
                silent.accept()[0].close()
            except BlockingIOError:
                break
        assert adopt(task, [EXCHANGE]) is None
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_one_that_turned_out_to_be_damaged_is_not_adopted_again(root: Path, service: ShuffleService) -> None:
    lost = lost_output(root)
    found = adopt(task_on(root, service), [EXCHANGE])
    assert found is not None
    make_producer_run_again(found[0].file)
    assert names(os.path.dirname(lost.base)) == ["owner.json"]
    again = task_on(root, service)
    assert adopt(again, [EXCHANGE]) is None
    with pytest.raises(MissingDataError):
        again.reach.index(found[0])
