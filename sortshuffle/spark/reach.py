"""`ClusterReach`: how a task gets at map outputs, wherever in the cluster they lie.

    the base path is a URL                     storage that every host sees: ranges of it
    there are no services, or of this host     the files themselves
    of another host                            the shuffle service of that host

"Of this host" means that it has this host's name, and that the directory is here: containers may share a name
and no disk. What opens there must then carry the right id (`LocalInputChannel`).

A task has one `ClusterReach`, and its connections live as long as it does. The room for what comes ahead of
its consumer is a fixed share of what the task may read ahead (`credit_within`).

What talks to services is imported when there are any: it takes a worker some 50 ms, and most need none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sortshuffle.errors import MissingDataError, Place
from sortshuffle.format.index import Index
from sortshuffle.read.channel import InputChannel
from sortshuffle.read.stored_channel import StoredInputChannel
from sortshuffle.spark.control import LocalReach, MapOutput
from sortshuffle.spark.service import HostService
from sortshuffle.storage.extents import Extent
from sortshuffle.storage.host import host_name
from sortshuffle.storage.reader import verified_index
from sortshuffle.storage.stored_files import is_url
from sortshuffle.storage.stored_reader import read_stored_index

if TYPE_CHECKING:
    from sortshuffle.service.client import ServiceClients
    from sortshuffle.service.protocol import MapOutputAddress

CREDIT_SHARE = 8  # of what a task may read ahead: 8 MiB of the default 64, and never more
_REMEDY = (
    "spark.sortshuffle.service=auto starts a shuffle service on every host, external uses an administrator's;"
    " or let spark.sortshuffle.dir name storage that every host sees"
)


def credit_within(service: HostService, reading: int) -> int:
    """Bytes out of ``reading`` for data that come from other hosts before they are asked for."""
    if not service.is_on:
        return 0
    from sortshuffle.service.client import FLOATING_BYTES

    return min(FLOATING_BYTES, reading // CREDIT_SHARE)


class ClusterReach:
    """The `Reach` of one task. ``service``: of its host. ``credit``: bytes for what comes from other hosts
    before it is asked for."""

    def __init__(self, service: HostService, credit: int = 0) -> None:
        self._service = service
        self._credit = credit
        self._files = LocalReach()
        self._clients: ServiceClients | None = None
        self._is_here: dict[str, bool] = {}  # directories of map outputs; a task reads from few

    def index(self, output: MapOutput) -> Index:
        if is_url(output.file.base):
            return read_stored_index(output.file, output.file_id)
        if self._has_files_of(output):
            return self._files.index(output)
        client = self._clients_for(output).client(output.service)
        data = client.index(self._address_of(output), output.host)
        return verified_index(data, output.file.index_path, output.file_id)

    def channel(self, output: MapOutput, extents: tuple[Extent, ...]) -> InputChannel:
        if is_url(output.file.base):
            return StoredInputChannel(output.file, output.file_id, output.map_index, str(output), extents)
        if self._has_files_of(output):
            return self._files.channel(output, extents)
        return self._remote_channel(output, extents)

    def close(self) -> None:
        if self._clients is not None:
            self._clients.close()

    def _remote_channel(self, output: MapOutput, extents: tuple[Extent, ...]) -> InputChannel:
        from sortshuffle.service.remote_input_channel import RemoteInputChannel

        return RemoteInputChannel(
            self._clients_for(output),
            output.service,
            self._address_of(output),
            output.host,
            output.file.data_path,
            str(output),
            extents,
        )

    def _has_files_of(self, output: MapOutput) -> bool:
        """Whether its files are this process's to open; they may be gone all the same."""
        if not self._service.is_on:
            return True
        return output.host == host_name() and (not output.service or self._holds(output))

    def _holds(self, output: MapOutput) -> bool:
        directory = os.path.dirname(output.file.base)
        found = self._is_here.get(directory)
        if found is None:
            found = self._is_here[directory] = os.path.isdir(directory)
        return found

    def _clients_for(self, output: MapOutput) -> ServiceClients:
        if not output.service:
            place = Place(output.file.data_path, writer=str(output))
            what = f"the map output is on host {output.host}, and no shuffle service serves it. {_REMEDY}"
            raise MissingDataError(place, what)
        if self._clients is None:
            from sortshuffle.service.client import ServiceClients

            self._clients = ServiceClients(self._service.client_settings(self._credit))
        return self._clients

    def _address_of(self, output: MapOutput) -> MapOutputAddress:
        from sortshuffle.service.protocol import MapOutputAddress

        return MapOutputAddress(
            self._service.application, output.exchange, output.map_index, output.attempt, output.file_id
        )
