"""`ClusterReach`: a task's access to map outputs anywhere in the cluster.

    map output                                         is read from
    its base path is a URL                             storage that every host sees, in ranges
    it is on this host, or there are no services       its files
    it is on another host                              the shuffle service of that host

"On this host" means that the output has this host's name and its directory exists here: containers may share
a name but no disk. Files opened there must then carry the right id (`LocalInputChannel`).

An adopted map output that was not linked may be lost like any other. Because Spark knows it by the control
rows of its adopter, the service of the adopter's host must be told (`rerun_adopters`).

A task has one `ClusterReach`, whose connections live as long as the task. Data that arrive before they are
wanted have a fixed share of the task's memory for reading ahead (`credit_within`).

The service client is imported only when needed: that takes some 50 ms, and most workers need none.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from sortshuffle import calls
from sortshuffle.errors import (
    DataLossError,
    MissingDataError,
    Place,
    ServiceUnavailableError,
)
from sortshuffle.format.index import Index
from sortshuffle.homes.host import host_name
from sortshuffle.reading.channel import InputChannel
from sortshuffle.reading.stored_channel import StoredInputChannel
from sortshuffle.service.client.shortage import is_own_shortage
from sortshuffle.spark.control_rows import LocalReach, SparkMapOutput
from sortshuffle.spark.session.service import HostService
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import verified_index
from sortshuffle.storage.files.urls import is_url
from sortshuffle.storage.stored.stored_reader import read_stored_index

if TYPE_CHECKING:
    from sortshuffle.service.client.client import ServiceClient, ServiceClients
    from sortshuffle.service.wire.protocol import MapOutputAddress

TELL_SECONDS = 10.0  # for all adopters together: longer than a service needs to restart
_REMEDY = (
    "spark.sortshuffle.service=auto starts a shuffle service on every host, external uses an administrator's;"
    " or let spark.sortshuffle.dir name storage that every host sees"
)

_log = logging.getLogger(__name__)


def credit_within(service: HostService, reading: int) -> int:
    """Return how many bytes of ``reading`` are for data that other hosts send before they are wanted."""
    if not service.is_on:
        return 0
    from sortshuffle.service.client.client_settings import floating_bytes_of

    return floating_bytes_of(reading)


class ClusterReach:
    """The `Reach` of one task. ``service``: of its host. ``credit``: the bytes from `credit_within`."""

    def __init__(self, service: HostService, credit: int = 0) -> None:
        self._service = service
        self._credit = credit
        self._key = service.settings.key
        self._files = LocalReach(self._key)
        self._clients: ServiceClients | None = None
        self._is_here: dict[str, bool] = {}  # by directory of map outputs, of which a task reads few
        self._adopted: dict[SparkMapOutput, None] = {}  # unlinked adopted outputs that this task reads

    def index(self, output: SparkMapOutput) -> Index:
        self._note(output)
        if is_url(output.file.base):
            return read_stored_index(output.file, output.file_id)
        if self._has_files_of(output):
            return self._files.index(output)
        client = self._clients_for(output).client(output.service)
        data = client.index(self._address_of(output), output.host, output.regions)
        return verified_index(data, output.file.index_path, output.file_id)

    def channel(self, output: SparkMapOutput, extents: tuple[Extent, ...]) -> InputChannel:
        self._note(output)
        if is_url(output.file.base):
            return StoredInputChannel(
                output.file, output.file_id, output.map_index, str(output), extents, self._key
            )
        if self._has_files_of(output):
            return self._files.channel(output, extents)
        return self._remote_channel(output, extents)

    def close(self) -> None:
        if self._clients is not None:
            self._clients.close()

    def rerun_adopters(self, error: BaseException) -> None:
        """Report all adopted outputs that this task reads from the same home, or through the same service, as
        the one that failed: Spark allows a stage few attempts, and sound outputs will be adopted again."""
        try:
            lost = [output for output in self._adopted if _is_lost(output, error)]
            if lost:
                self._tell(lost)
        except Exception:  # must not hide the task's own error
            _log.warning("the adopters of lost map outputs cannot be told", exc_info=True)

    def _tell(self, lost: list[SparkMapOutput]) -> None:
        """Report outputs as damaged to the services of the adopters' hosts, under the adopters' attempts. A
        service has no file of that name, so it takes the output for lost and removes the adopter's control
        files; then Spark runs the adopter again. If a service is gone with its host, Spark knows of the loss
        itself."""
        from sortshuffle.service.client.asking import ask_each

        by_service: dict[str, list[tuple[MapOutputAddress, str]]] = {}
        for output in lost:
            if output.adopter is not None:
                adopted = replace(self._address_of(output), attempt=output.adopter.attempt)
                by_service.setdefault(output.adopter.service, []).append((adopted, output.host))

        def tell(client: ServiceClient) -> bool:
            for adopted, host in by_service[client.address]:
                client.report_damage(adopted, host, 0, 0)
            return True

        answers = ask_each(by_service, tell, self._service.client_settings(0, TELL_SECONDS), TELL_SECONDS)
        silent = [service for service in by_service if not answers.get(service)]
        if silent:
            _log.warning(
                "adopters of lost map outputs are not told: within %g s these services could not be asked,"
                " or did not answer: %s",
                TELL_SECONDS,
                ", ".join(silent),
            )

    def _note(self, output: SparkMapOutput) -> None:
        if output.adopter is not None:
            self._adopted[output] = None

    def _remote_channel(self, output: SparkMapOutput, extents: tuple[Extent, ...]) -> InputChannel:
        from sortshuffle.service.client.remote_input_channel import RemoteInputChannel

        return RemoteInputChannel(
            self._clients_for(output),
            output.service,
            self._address_of(output),
            output.host,
            output.file.data_path,
            str(output),
            extents,
            self._key,
        )

    def _has_files_of(self, output: SparkMapOutput) -> bool:
        """Return whether this process opens the output's files, which may nevertheless be gone."""
        if not self._service.is_on:
            return True
        return output.host == host_name() and (not output.service or self._holds(output))

    def _holds(self, output: SparkMapOutput) -> bool:
        directory = os.path.dirname(output.file.base)
        found = self._is_here.get(directory)
        if found is None:
            found = self._is_here[directory] = calls.isdir(directory)
        return found

    def _clients_for(self, output: SparkMapOutput) -> ServiceClients:
        if not output.service:
            place = Place(output.file.data_path, writer=str(output))
            what = f"the map output is on host {output.host}, and no shuffle service serves it. {_REMEDY}"
            raise MissingDataError(place, what)
        if self._clients is None:
            from sortshuffle.service.client.client import ServiceClients

            self._clients = ServiceClients(self._service.client_settings(self._credit))
        return self._clients

    def _address_of(self, output: SparkMapOutput) -> MapOutputAddress:
        from sortshuffle.service.wire.protocol import MapOutputAddress

        return MapOutputAddress(
            self._service.application, output.exchange, output.map_index, output.attempt, output.file_id
        )


def _is_lost(output: SparkMapOutput, error: BaseException) -> bool:
    """Return whether a task's error means that this output, or another of its home, cannot be read."""
    if isinstance(error, ServiceUnavailableError):
        # a service that this process lacks the means to ask may be sound
        return error.address == output.service and not is_own_shortage(error)
    if not isinstance(error, DataLossError):
        return False
    lost = PartitionedFile.of(error.place.file)
    if lost is None:
        return False
    base = output.file.base
    is_of_its_home = os.path.dirname(base) == os.path.dirname(lost.base)
    return is_of_its_home or os.path.basename(base) == os.path.basename(lost.base)
