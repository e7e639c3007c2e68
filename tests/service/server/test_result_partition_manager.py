"""Result partitions of a service: which are served, what is forgotten, and when descriptors go."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from consumers import PATIENCE, Consumer, Reads, one, random_pair, read_pool, reads, stored, together
from engine import ID, OTHER_ID, names, open_files, write_pair
from serving import until

from sortshuffle import calls
from sortshuffle.errors import MissingDataError, StateError, UsageError
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.reading.subpartition_reader import SubpartitionReader
from sortshuffle.service.server.result_partition_manager import ResultPartitionManager
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import SubpartitionRange

__all__ = ["reads"]  # a fixture
SEGMENT = 4096
MOST = 4


class Service:
    """A manager on real files and threads; ``now`` is its clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 0.0
        self.pool: ReadBufferPool = read_pool(16, SEGMENT, batch=4)
        self.manager = ResultPartitionManager(
            lambda: [str(self.root)], self.pool, clock=lambda: self.now, most=MOST
        )

    def write(self, subpartitions: int = 4, payload: int = 10_000, regions: int = 5) -> PartitionedFile:
        return write_pair(self.root, random_pair(subpartitions, regions, payload, first=1))

    def registered(self) -> PartitionedFile:
        file = self.write()
        self.manager.register(ID, file)
        return file

    def view(self, subpartitions: SubpartitionRange, consumer: Consumer) -> SubpartitionReader:
        scheduler = self.manager.registered(ID)
        assert scheduler is not None
        return scheduler.create_reader(subpartitions, consumer.on_available)

    def consume(self, subpartitions: SubpartitionRange) -> Consumer:
        consumer = Consumer()
        consumer.consume(self.view(subpartitions, consumer))
        return consumer


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.manager.shutdown()
    assert open_files(tmp_path) == []
    assert made.pool.available == made.pool.total_segments
    made.pool.destroy()


def test_views_of_single_subpartitions_and_of_ranges(service: Service) -> None:
    file = service.registered()
    assert ID in service.manager and OTHER_ID not in service.manager
    for asked in (one(0), one(3), SubpartitionRange(0, 3), SubpartitionRange(1, 2)):
        assert bytes(service.consume(asked).data) == stored(file, asked)


def test_files_are_open_from_the_first_view_to_the_last_byte_of_the_last_one(
    service: Service, reads: Reads
) -> None:
    service.registered()
    assert open_files(service.root) == []
    opened: list[int] = []
    reads.before = lambda offset, size: opened.append(len(open_files(service.root)))
    with together(*[lambda s=s: service.consume(one(s)) for s in range(4)]):
        pass
    assert set(opened) == {1}
    until(lambda: open_files(service.root) == [])


def test_an_id_is_registered_once(service: Service) -> None:
    file = service.registered()
    known = service.manager.registered(ID)
    assert known is service.manager.register(ID, PartitionedFile(file.base + "0"))
    assert known is not None and known.file == file
    assert service.manager.registered(OTHER_ID) is None


def test_only_files_below_the_root_are_served(
    service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    file = write_pair(elsewhere, random_pair(1, 1, 10))
    with pytest.raises(UsageError, match="it is not served"):
        service.manager.register(ID, file)
    for path in (file.data_path, file.index_path):
        os.symlink(path, service.root / Path(path).name)
    linked = PartitionedFile(str(service.root / Path(file.base).name))
    with pytest.raises(UsageError, match="it is not served"):
        service.manager.register(ID, linked)
    os.unlink(linked.data_path)
    os.link(file.data_path, linked.data_path)  # only the index lies elsewhere
    with pytest.raises(UsageError, match=r"\.index is not below .*: it is not served"):
        service.manager.register(ID, linked)
    with pytest.raises(UsageError, match="it is not served"):
        service.manager.register(ID, PartitionedFile(f"{service.root}-2/exchange-1-map-1-attempt-1"))
    assert ID not in service.manager


def test_the_roots_are_asked_for_anew(service: Service, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    file = write_pair(elsewhere, random_pair(1, 1, 10))
    with pytest.raises(UsageError, match="it is not served"):
        service.manager.register(ID, file)
    service.root = elsewhere
    service.manager.register(ID, file)
    assert bytes(service.consume(one(0)).data) == stored(file, one(0))


# Forgetting


def other_outputs(service: Service, count: int) -> list[bytes]:
    """So many more partitions, registered one after the other."""
    ids = []
    for number in range(count):
        home = service.root / f"home-{number}"
        home.mkdir()
        ids.append(bytes([number]) * 16)
        pair = replace(random_pair(1, 1, 10_000), file_id=ids[-1])
        service.manager.register(ids[-1], write_pair(home, pair))
    return ids


def test_the_longest_unused_are_forgotten_when_there_are_too_many(service: Service) -> None:
    first, second, *_ = other_outputs(service, MOST)
    assert len(service.manager) == MOST
    assert service.manager.registered(first) is not None
    service.registered()
    assert first in service.manager
    assert second not in service.manager
    assert len(service.manager) == MOST


def test_what_is_forgotten_when_somebody_is_about_to_read_it_is_read(service: Service) -> None:
    file = service.registered()
    scheduler = service.manager.registered(ID)
    assert scheduler is not None
    other_outputs(service, 2 * MOST)
    assert ID not in service.manager
    consumer = Consumer()
    consumer.consume(scheduler.create_reader(one(1), consumer.on_available))
    assert bytes(consumer.data) == stored(file, one(1))


def test_what_is_being_read_is_not_forgotten(service: Service, reads: Reads) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def wait(offset: int, size: int) -> None:
        reading.set()
        assert go_on.wait(PATIENCE)

    reads.before = wait
    file = service.registered()
    consumer = Consumer()
    view = service.view(one(0), consumer)
    assert reading.wait(PATIENCE)
    other_outputs(service, 3 * MOST)
    assert ID in service.manager
    assert len(service.manager) == MOST
    go_on.set()
    consumer.consume(view)
    assert bytes(consumer.data) == stored(file, one(0))


def test_forgetting_leaves_open_views_and_whoever_has_taken_the_place(service: Service) -> None:
    file = service.registered()
    consumer = Consumer()
    view = service.view(one(0), consumer)
    first = service.manager.registered(ID)
    assert first is not None
    service.manager.forget(first)
    assert ID not in service.manager
    second = service.manager.register(ID, file)
    service.manager.forget(first)
    assert service.manager.registered(ID) is second
    consumer.consume(view)
    assert bytes(consumer.data) == stored(file, one(0))


def test_release_without_views_deletes_the_files_at_once(service: Service) -> None:
    service.registered()
    assert service.manager.release(ID).done()
    assert names(service.root) == []
    assert service.manager.registered(ID) is None


def test_release_fails_open_views_and_deletes_the_files_when_the_last_has_let_go(
    service: Service, reads: Reads
) -> None:
    file = service.registered()
    consumers = [Consumer() for _ in range(4)]
    reading, go_on = threading.Event(), threading.Event()

    def wait(offset: int, size: int) -> None:
        reading.set()
        assert go_on.wait(PATIENCE)

    reads.before = wait
    views = [service.view(one(s), c) for s, c in enumerate(consumers)]
    assert reading.wait(PATIENCE)
    deleted = service.manager.release(ID)
    for view, consumer in zip(views, consumers, strict=True):
        consumer.wait()
        consumer.take(view)
        assert isinstance(consumer.cause, MissingDataError)
        assert f"result partition {ID.hex()} was released" in str(consumer.cause)
        assert consumer.cause.place.file == file.data_path
    assert not deleted.done()
    assert len(names(service.root)) == 2
    go_on.set()
    deleted.result(PATIENCE)
    assert names(service.root) == []


def test_what_was_read_to_its_end_before_a_release_can_be_polled_after_it(service: Service) -> None:
    file = service.write(payload=100, regions=1)
    expected = stored(file, one(0))
    service.manager.register(ID, file)
    consumer = Consumer()
    view = service.view(one(0), consumer)
    consumer.wait()
    service.manager.release(ID).result(PATIENCE)
    consumer.drain(view)
    assert (bytes(consumer.data), consumer.ended) == (expected, True)


def test_a_deletion_cannot_be_cancelled(service: Service, reads: Reads) -> None:
    service.registered()
    reading, go_on = threading.Event(), threading.Event()

    def wait(offset: int, size: int) -> None:
        reading.set()
        assert go_on.wait(PATIENCE)

    reads.before = wait
    service.view(one(0), Consumer())
    assert reading.wait(PATIENCE)
    deleted = service.manager.release(ID)
    assert not deleted.cancel()
    go_on.set()
    deleted.result(PATIENCE)
    assert names(service.root) == []


def test_what_was_delivered_before_a_release_can_be_sent_after_it(service: Service) -> None:
    expected = stored(service.registered(), one(0))
    consumer = Consumer()
    view = service.view(one(0), consumer)
    consumer.wait()
    delivery = view.poll(1)
    assert delivery is not None
    service.manager.release(ID).result(PATIENCE)
    sent = b"".join(map(bytes, delivery.views))
    assert sent and expected.startswith(sent)
    delivery.recycle()
    view.release()


def test_a_released_id_can_be_registered_again(service: Service) -> None:
    service.registered()
    service.manager.release(ID).result(PATIENCE)
    file = service.registered()
    assert bytes(service.consume(one(2)).data) == stored(file, one(2))


def test_files_that_cannot_be_deleted_are_reported(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.registered()

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr(calls, "unlink", refuse)
        deleted = service.manager.release(ID)
    with pytest.raises(PermissionError):
        deleted.result(0)


def test_figures_are_of_all_partitions_that_ever_were(service: Service, reads: Reads) -> None:
    file = service.registered()
    for _ in range(2):
        service.consume(one(1))
    until(lambda: open_files(service.root) == [])
    scheduler = service.manager.registered(ID)
    assert scheduler is not None
    service.manager.forget(scheduler)
    service.manager.register(ID, file)
    service.consume(one(2))
    figures = service.manager.figures()
    assert figures.bytes_read_total == 2 * len(stored(file, one(1))) + len(stored(file, one(2)))
    assert figures.reads_total == len(reads.made)


# The end


def test_shutdown_fails_views_and_keeps_the_files(service: Service, reads: Reads) -> None:
    service.registered()
    reading, go_on = threading.Event(), threading.Event()

    def wait(offset: int, size: int) -> None:
        reading.set()
        assert go_on.wait(PATIENCE)

    reads.before = wait
    consumer = Consumer()
    view = service.view(one(0), consumer)
    assert reading.wait(PATIENCE)
    with together(service.manager.shutdown):
        consumer.wait()
        assert isinstance(view.cause, StateError)
        go_on.set()
    assert len(names(service.root)) == 2
    assert open_files(service.root) == []


def test_nothing_is_registered_after_shutdown(service: Service) -> None:
    file = service.write()
    service.manager.shutdown()
    service.manager.shutdown()
    with pytest.raises(StateError, match="is shut down"):
        service.manager.register(ID, file)
    assert service.manager.registered(ID) is None


def test_views_registrations_and_forgetting_at_the_same_time_leave_nothing_behind(service: Service) -> None:
    file = service.write(payload=2000, regions=2)
    start = threading.Barrier(5)
    rounds = 20

    def read(subpartition: int) -> None:
        expected = stored(file, one(subpartition))
        start.wait(PATIENCE)
        for _ in range(rounds):
            consumer = Consumer()
            scheduler = service.manager.register(ID, file)
            consumer.consume(scheduler.create_reader(one(subpartition), consumer.on_available))
            assert bytes(consumer.data) == expected

    def forget() -> None:
        start.wait(PATIENCE)
        for _ in range(rounds):
            service.manager.forget(service.manager.register(ID, file))

    with together(forget, *[lambda s=s: read(s) for s in range(4)]):
        pass
    until(lambda: open_files(service.root) == [])
