"""How a task gets at a map output: its files, ranges in shared storage, or the service of its host."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from engine import Pair, Region, printed, write_pair

from sortshuffle.errors import MissingDataError, ServiceUnavailableError
from sortshuffle.homes.host import host_name
from sortshuffle.options import Options
from sortshuffle.reading.channel import InputChannel, LocalInputChannel
from sortshuffle.reading.stored_channel import StoredInputChannel
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.server.shuffle_service import ShuffleService, serve
from sortshuffle.spark.control_rows import Adopter, SparkMapOutput
from sortshuffle.spark.session.service import NO_SERVICE, HostService, Mode, ServiceSettings
from sortshuffle.spark.worker.reach import ClusterReach, credit_within
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

SECRET = b"s" * 32
PAIR = Pair(3, regions=[Region({0: [b"a" * 100, b"b"], 2: [b"c" * 5000]}), Region({2: [b"d" * 70]})])
EXCHANGE, MAP, ATTEMPT = 3, 17, 204


@pytest.fixture
def file(tmp_path: Path) -> PartitionedFile:
    home = tmp_path / "sortshuffle" / "app" / "host-1"
    home.mkdir(parents=True)
    return write_pair(home, PAIR, ATTEMPT)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ShuffleService]:
    with serve([str(tmp_path)], secret=SECRET) as running:
        yield running


def reach_of(settings: ServiceSettings, timeout: float = 10.0) -> Iterator[ClusterReach]:
    reach = ClusterReach(HostService(Options(service_timeout=timeout), "app", settings))
    yield reach
    reach.close()


@pytest.fixture
def reach() -> Iterator[ClusterReach]:
    yield from reach_of(ServiceSettings(Mode.AUTO, secret=SECRET))


@pytest.fixture
def without_services() -> Iterator[ClusterReach]:
    yield from reach_of(NO_SERVICE)


def output_of(file: PartitionedFile, host: str, service: str = "") -> SparkMapOutput:
    return SparkMapOutput(file, read_index(file).header.file_id, MAP, ATTEMPT, host, service, EXCHANGE)


def payloads(channel: InputChannel) -> list[list[bytes]]:
    """What stands in the buffers of each of its extents, uncompressed."""
    with channel.open(channel.extents) as reader:
        return [
            [
                bytes(memoryview(part.memory)[buffer.start : buffer.start + buffer.size])
                for buffer in part.buffers
            ]
            for part in map(reader.read_extent, channel.extents)
        ]


def channel_to(reach: ClusterReach, output: SparkMapOutput, subpartition: int = 2) -> InputChannel:
    return reach.channel(output, tuple(extents_of(read_index(output.file), subpartition)))


def test_what_is_on_this_host_is_opened(reach: ClusterReach, file: PartitionedFile) -> None:
    output = output_of(file, host_name(), "127.0.0.1:1")  # where nobody listens
    assert isinstance(channel_to(reach, output), LocalInputChannel)
    assert reach.index(output).data_bytes == read_index(file).data_bytes


def test_what_is_on_another_host_comes_from_its_service(
    reach: ClusterReach, file: PartitionedFile, service: ShuffleService
) -> None:
    output = output_of(file, "elsewhere", service.address)
    channel = channel_to(reach, output)
    assert isinstance(channel, RemoteInputChannel)
    assert (channel.host, channel.path, channel.writer) == ("elsewhere", file.data_path, str(output))
    local = LocalInputChannel(file, output.file_id, MAP, "", channel.extents)
    assert payloads(channel) == payloads(local)
    assert reach.index(output).data_bytes == read_index(file).data_bytes


def test_a_host_of_this_name_that_has_another_disk_is_another_host(
    reach: ClusterReach, file: PartitionedFile, service: ShuffleService, tmp_path: Path
) -> None:
    unseen = PartitionedFile(str(tmp_path / "not" / "here" / Path(file.base).name))
    output = SparkMapOutput(
        unseen, read_index(file).header.file_id, MAP, ATTEMPT, host_name(), service.address, EXCHANGE
    )
    channel = reach.channel(output, tuple(extents_of(read_index(file), 0)))
    assert isinstance(channel, RemoteInputChannel)
    assert len(payloads(channel)[0]) == 2


def test_a_file_that_is_gone_from_this_host_is_missing(reach: ClusterReach, file: PartitionedFile) -> None:
    output = output_of(file, host_name(), "127.0.0.1:1")
    channel = channel_to(reach, output)
    file.delete()
    with pytest.raises(MissingDataError, match="the data file cannot be opened"):
        channel.open(channel.extents)


def test_without_services_every_host_sees_the_files(
    without_services: ClusterReach, file: PartitionedFile
) -> None:
    output = output_of(file, "elsewhere")
    assert isinstance(channel_to(without_services, output), LocalInputChannel)
    assert without_services.index(output).regions == 2


def test_a_map_output_that_nobody_serves_is_missing_with_the_ways_to_get_one(
    reach: ClusterReach, file: PartitionedFile
) -> None:
    output = output_of(file, "elsewhere")
    for get in (lambda: reach.index(output), lambda: channel_to(reach, output)):
        with pytest.raises(MissingDataError, match="on host elsewhere, and no shuffle service") as caught:
            get()
        assert "spark.sortshuffle.service=auto" in str(caught.value)
        assert caught.value.place.file == file.data_path


@pytest.mark.parametrize("settings", [NO_SERVICE, ServiceSettings(Mode.AUTO, secret=SECRET)])
def test_shared_storage_is_read_directly(settings: ServiceSettings, file: PartitionedFile) -> None:
    index = read_index(file)
    stored = PartitionedFile(f"file://{file.base}")
    output = SparkMapOutput(stored, index.header.file_id, MAP, ATTEMPT, "elsewhere", "", EXCHANGE)
    for reach in reach_of(settings):
        channel = reach.channel(output, tuple(extents_of(index, 2)))
        assert isinstance(channel, StoredInputChannel)
        assert len(payloads(channel)) == 2
        assert reach.index(output).regions == 2


def test_a_service_that_is_gone_for_good_is_an_error_in_bounded_time(file: PartitionedFile) -> None:
    for reach in reach_of(ServiceSettings(Mode.AUTO, secret=SECRET), timeout=1.0):
        with pytest.raises(ServiceUnavailableError, match="elsewhere"):
            reach.index(output_of(file, "elsewhere", "127.0.0.1:1"))


def test_a_worker_without_services_does_not_load_what_talks_to_them() -> None:
    loaded = printed(
        "import sys, sortshuffle.spark.worker.stages, sortshuffle.spark.rdds.stages; print(*sys.modules)"
    )
    assert [name for name in loaded if name.startswith("sortshuffle.service.client.client")] == []


def test_room_for_what_comes_ahead_is_taken_off_what_may_be_read() -> None:
    on = HostService(Options(), "app", ServiceSettings(Mode.AUTO, secret=SECRET))
    assert credit_within(on, 64 << 20) == 8 << 20
    assert credit_within(on, 1 << 30) == 8 << 20
    assert credit_within(on, 8 << 20) == 1 << 20
    assert credit_within(HostService(Options(), "app", NO_SERVICE), 64 << 20) == 0


@pytest.mark.parametrize(
    ("cause", "is_told"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)), True),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), False),
    ],
    ids=["gone", "no descriptor here"],
)
def test_an_adopter_runs_again_for_a_service_that_is_gone_and_not_for_one_that_cannot_be_asked(
    reach: ClusterReach,
    file: PartitionedFile,
    monkeypatch: pytest.MonkeyPatch,
    cause: OSError,
    is_told: bool,
) -> None:
    told: list[SparkMapOutput] = []
    monkeypatch.setattr(reach, "_tell", told.extend)
    output = output_of(file, "elsewhere", "127.0.0.1:1")
    adopted = replace(output, adopter=Adopter(ATTEMPT + 1, "127.0.0.1:2"))
    channel_to(reach, adopted)
    error = ServiceUnavailableError("no answer")
    error.address = adopted.service
    error.__cause__ = cause
    reach.rerun_adopters(error)
    assert told == ([adopted] if is_told else [])
