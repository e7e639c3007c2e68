"""`ClusterReach`: how a task gets at map outputs, wherever in the cluster they lie.

    the base path is a URL                     storage that every host sees: ranges of it
    there are no services, or of this host     the files themselves
    of another host                            the shuffle service of that host

"Of this host" means that it has this host's name, and that the directory is here: containers may share a name
and no disk. What opens there must then carry the right id (`LocalInputChannel`).

An adopted map output that lies on another host, or could not be linked, is lost like any other: but Spark
knows it by the control rows of its adopter, whose own service must therefore hear of it (`tell_adopters`).

A task has one `ClusterReach`, and its connections live as long as it does. The room for what comes ahead of
its consumer is a fixed share of what the task may read ahead (`credit_within`).

What talks to services is imported when there are any: it takes a worker some 50 ms, and most need none.
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
from sortshuffle.spark.control import LocalReach, SparkMapOutput
from sortshuffle.spark.session.service import HostService
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import verified_index
from sortshuffle.storage.files.urls import is_url
from sortshuffle.storage.stored.stored_reader import read_stored_index

if TYPE_CHECKING:
    from sortshuffle.service.client.client import ServiceClient, ServiceClients
    from sortshuffle.service.wire.protocol import MapOutputAddress

TOLD_WITHIN = 10.0  # seconds, all adopters together; a service that is started again is there sooner
_REMEDY = (
    "spark.sortshuffle.service=auto starts a shuffle service on every host, external uses an administrator's;"
    " or let spark.sortshuffle.dir name storage that every host sees"
)

_log = logging.getLogger(__name__)


def credit_within(service: HostService, reading: int) -> int:
    """Bytes out of ``reading`` for data that come from other hosts before they are asked for."""
    if not service.is_on:
        return 0
    from sortshuffle.service.client.client_settings import floating_bytes_of

    return floating_bytes_of(reading)


class ClusterReach:
    """The `Reach` of one task. ``service``: of its host. ``credit``: bytes for what comes from other hosts
    before it is asked for."""

    def __init__(self, service: HostService, credit: int = 0) -> None:
        self._service = service
        self._credit = credit
        self._key = service.settings.key
        self._files = LocalReach(self._key)
        self._clients: ServiceClients | None = None
        self._is_here: dict[str, bool] = {}  # directories of map outputs; a task reads from few
        self._adopted: dict[SparkMapOutput, None] = {}  # what it was asked for that lies where it was written

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

    def tell_adopters(self, error: BaseException) -> None:
        """All that this task reads of the same home, or through the same service, is told at once: Spark
        allows a stage few attempts, and what is sound will be adopted again."""
        try:
            lost = [output for output in self._adopted if _is_lost(output, error)]
            if lost:
                self._tell(lost)
        except Exception:  # the task's own error is what its job has to see
            _log.warning("the adopters of lost map outputs cannot be told", exc_info=True)

    def _tell(self, lost: list[SparkMapOutput]) -> None:
        """Have the services of the adopters look for map outputs of these. Those services have no file of
        that name. They take the output for lost and remove the adopter's control files, so Spark runs the
        adopter again. If one is gone with its host, Spark knows that itself."""
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

        told = ask_each(by_service, tell, self._service.client_settings(0, TOLD_WITHIN), TOLD_WITHIN)
        untold = [service for service in by_service if not told.get(service)]
        if untold:
            _log.warning(
                "adopters of lost map outputs are not told: within %g s these services could not be asked,"
                " or did not answer: %s",
                TOLD_WITHIN,
                ", ".join(untold),
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
        """Whether its files are this process's to open; they may be gone all the same."""
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
    """Whether a task's error says that this cannot be had from where it lies, or another of its home."""
    if isinstance(error, ServiceUnavailableError):
        return error.address == output.service
    if not isinstance(error, DataLossError):
        return False
    lost = PartitionedFile.of(error.place.file)
    if lost is None:
        return False
    there = output.file.base
    is_its_home = os.path.dirname(there) == os.path.dirname(lost.base)
    return is_its_home or os.path.basename(there) == os.path.basename(lost.base)
