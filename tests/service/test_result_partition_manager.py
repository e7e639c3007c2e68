"""Result partitions of a service: who gets a view, who waits for one, and when files and handles go."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from consumers import PATIENCE, Consumer, Reads, one, random_pair, read_pool, reads, stored, together
from engine import ID, OTHER_ID, names, open_files, write_pair

from sortshuffle.errors import CorruptDataError, MissingDataError, StateError, UsageError
from sortshuffle.memory.read_buffer_pool import ReadBufferPool
from sortshuffle.read.subpartition_reader import SubpartitionReader
from sortshuffle.service.result_partition_manager import ResultPartitionManager, Timeouts
from sortshuffle.storage.partitioned_file import PartitionedFile
from sortshuffle.storage.ranges import SubpartitionRange

__all__ = ["reads"]  # a fixture
SEGMENT = 4096


class Service:
    """A manager on real files and threads; ``now`` is its clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 0.0
        self.pool: ReadBufferPool = read_pool(16, SEGMENT, batch=4)
        self.manager = ResultPartitionManager(
            str(root), self.pool, timeouts=Timeouts(view=10), clock=lambda: self.now
        )

    def write(self, subpartitions: int = 4, payload: int = 10_000, regions: int = 5) -> PartitionedFile:
        return write_pair(self.root, random_pair(subpartitions, regions, payload, first=1))

    def registered(self) -> PartitionedFile:
        file = self.write()
        self.manager.register(ID, file)
        return file

    def consume(self, subpartitions: SubpartitionRange) -> Consumer:
        consumer = Consumer()
        consumer.consume(self.manager.create_view(ID, subpartitions, consumer.on_available))
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
    service.manager.release(ID).result(PATIENCE)
    assert open_files(service.root) == []


def test_a_partition_that_is_not_registered_is_missing_data(service: Service) -> None:
    with pytest.raises(MissingDataError, match=f"result partition {ID.hex()} is not registered"):
        service.manager.create_view(ID, one(0), lambda reader: None)


def test_a_partition_whose_files_are_gone_or_damaged_says_so_when_it_is_asked_for(service: Service) -> None:
    file = service.registered()
    with open(file.index_path, "r+b") as index:
        index.write(b"not this")
    with pytest.raises(CorruptDataError):
        service.manager.create_view(ID, one(0), lambda reader: None)
    file.delete()
    with pytest.raises(MissingDataError):
        service.manager.create_view(ID, one(0), lambda reader: None)


def test_an_id_is_registered_once(service: Service) -> None:
    file = service.registered()
    with pytest.raises(UsageError, match="registered already"):
        service.manager.register(ID, file)


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


# Waiting for a partition


def test_who_comes_first_gets_its_view_when_the_partition_does(service: Service) -> None:
    consumers = [Consumer(), Consumer()]
    views = [service.manager.await_view(ID, one(s), c.on_available) for s, c in enumerate(consumers)]
    assert not any(view.done() for view in views)
    file = service.registered()
    for subpartition, (consumer, view) in enumerate(zip(consumers, views, strict=True)):
        consumer.consume(view.result(PATIENCE))
        assert bytes(consumer.data) == stored(file, one(subpartition))


def test_who_comes_later_gets_its_view_at_once(service: Service) -> None:
    service.registered()
    view = service.manager.await_view(ID, one(0), lambda reader: None)
    assert view.done()
    view.result().release()


def test_waiting_ends_with_missing_data_after_the_time_out_and_not_before(service: Service) -> None:
    early = service.manager.await_view(ID, one(0), lambda reader: None)
    service.now = 5
    late = service.manager.await_view(ID, one(1), lambda reader: None)
    service.now = 9.9
    service.manager.expire_waiting()
    assert not early.done()
    service.now = 10
    service.manager.expire_waiting()
    with pytest.raises(MissingDataError, match="was not registered within 10 s"):
        early.result(0)
    assert not late.done()
    service.registered()
    late.result(PATIENCE).release()


def test_a_wait_that_is_cancelled_gets_no_view(service: Service) -> None:
    cancelled = service.manager.await_view(ID, one(0), lambda reader: None)
    forgotten = service.manager.await_view(OTHER_ID, one(0), lambda reader: None)
    for view in (cancelled, forgotten):
        assert view.cancel()
    service.registered()
    with pytest.raises(CancelledError):
        cancelled.result(0)
    service.manager.expire_waiting()
    assert open_files(service.root) == []


def test_a_wait_for_subpartitions_that_are_not_there_fails_when_the_partition_comes(service: Service) -> None:
    view = service.manager.await_view(ID, one(9), lambda reader: None)
    service.registered()
    with pytest.raises(UsageError, match="subpartitions 9"):
        view.result(0)


# Releasing


def test_release_without_views_deletes_the_files_at_once(service: Service) -> None:
    service.registered()
    assert service.manager.release(ID).done()
    assert names(service.root) == []
    with pytest.raises(MissingDataError, match="is not registered"):
        service.manager.create_view(ID, one(0), lambda reader: None)


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
    views = [service.manager.create_view(ID, one(s), c.on_available) for s, c in enumerate(consumers)]
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
    view = service.manager.create_view(ID, one(0), consumer.on_available)
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
    service.manager.create_view(ID, one(0), lambda reader: None)
    assert reading.wait(PATIENCE)
    deleted = service.manager.release(ID)
    assert not deleted.cancel()
    go_on.set()
    deleted.result(PATIENCE)
    assert names(service.root) == []


def test_what_was_delivered_before_a_release_can_be_sent_after_it(service: Service) -> None:
    expected = stored(service.registered(), one(0))
    consumer = Consumer()
    view = service.manager.create_view(ID, one(0), consumer.on_available)
    consumer.wait()
    delivery = view.poll(1)
    assert delivery is not None
    service.manager.release(ID).result(PATIENCE)
    sent = b"".join(map(bytes, delivery.views))
    assert sent and expected.startswith(sent)
    delivery.recycle()
    view.release()


def test_release_wakes_who_waits_for_a_partition_that_never_came(service: Service) -> None:
    view = service.manager.await_view(ID, one(0), lambda reader: None)
    assert service.manager.release(ID).done()
    with pytest.raises(MissingDataError, match="was released"):
        view.result(0)


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
        patched.setattr(os, "unlink", refuse)
        deleted = service.manager.release(ID)
    with pytest.raises(PermissionError):
        deleted.result(0)


# The end


def test_shutdown_fails_views_wakes_who_waits_and_keeps_the_files(service: Service, reads: Reads) -> None:
    service.registered()
    reading, go_on = threading.Event(), threading.Event()

    def wait(offset: int, size: int) -> None:
        reading.set()
        assert go_on.wait(PATIENCE)

    reads.before = wait
    consumer = Consumer()
    view = service.manager.create_view(ID, one(0), consumer.on_available)
    waiting = service.manager.await_view(OTHER_ID, one(0), lambda reader: None)
    assert reading.wait(PATIENCE)
    with together(service.manager.shutdown):
        consumer.wait()
        assert isinstance(view.cause, MissingDataError)
        go_on.set()
    with pytest.raises(MissingDataError, match="shut down"):
        waiting.result(PATIENCE)
    assert len(names(service.root)) == 2
    assert open_files(service.root) == []


def test_nothing_is_registered_or_waited_for_after_shutdown(service: Service) -> None:
    file = service.write()
    service.manager.shutdown()
    service.manager.shutdown()
    with pytest.raises(StateError, match="is shut down"):
        service.manager.register(ID, file)
    with pytest.raises(MissingDataError, match="shut down"):
        service.manager.await_view(ID, one(0), lambda reader: None).result(0)
    with pytest.raises(MissingDataError):
        service.manager.create_view(ID, one(0), lambda reader: None)


def test_views_registrations_and_releases_at_the_same_time_leave_nothing_behind(service: Service) -> None:
    start = threading.Barrier(5)
    rounds = 20

    def read(subpartition: int) -> None:
        start.wait(PATIENCE)
        for _ in range(rounds):
            consumer = Consumer()
            try:
                view: SubpartitionReader = service.manager.await_view(
                    ID, one(subpartition), consumer.on_available
                ).result(PATIENCE)
                consumer.consume(view)
            except MissingDataError:
                continue
            assert consumer.ended or isinstance(consumer.cause, MissingDataError)

    def come_and_go() -> None:
        start.wait(PATIENCE)
        for _ in range(rounds):
            file = service.write(payload=2000, regions=2)
            service.manager.register(ID, file)
            service.manager.release(ID).result(PATIENCE)
        stays = service.write(payload=2000, regions=2)
        service.manager.register(ID, stays)

    with together(come_and_go, *[lambda s=s: read(s) for s in range(4)]):
        pass
    service.manager.release(ID).result(PATIENCE)
    assert names(service.root) == []
