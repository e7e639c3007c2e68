"""Adoption: a map task that runs again takes over what it had finished, where external services kept it.

With external services finished map outputs outlive their executor. When Spark runs a lost executor's map
tasks again, each asks first, before anything of its stage is opened, whether a service still has its output:
that of its own host, then those of all other hosts that had executors when the stage was planned. Where each
exchange of the stage has one, their control rows are all that the task gives.

* An output of this host is linked into this executor's own home, as an output of this attempt. So it lives,
  and is run again if it turns out to be lost, like any other, whatever becomes of its first home.
* One of another host, or that cannot be linked, stays where it is, and its service serves it.

Rules
* Only outputs of executors that have ended are taken (the services see to that), and only by application,
  driver, exchange and map index. Exchange numbers are a Python process's own: two that drive one
  SparkContext, or one that replaces another, count alike, and their random names tell them apart.
* Not over Connect, where executors are not known.
* A stage whose task had no rows for one of its exchanges has no output there, and runs again.
* A service that does not answer at once is passed over, and not asked again for a while.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

from sortshuffle.errors import SortShuffleError
from sortshuffle.format.index import Index
from sortshuffle.metrics import TaskMetrics
from sortshuffle.spark.control import MapOutput
from sortshuffle.storage.host import host_name
from sortshuffle.storage.lifetime import HOME_ROOT
from sortshuffle.storage.partitioned_file import PartitionedFile

if TYPE_CHECKING:
    from sortshuffle.service.client import ServiceClients
    from sortshuffle.service.protocol import FoundOutput, MapOutputAddress
    from sortshuffle.spark.task import Task

ANSWERS_WITHIN = 1.0  # seconds; a service that runs answers within some ms
SILENT_FOR = 30.0  # seconds that one which did not is left alone by the tasks of this process
ASKED_AT_ONCE = 16  # services

_silent: dict[str, float] = {}  # addresses, and until when


class Adopts(ABC):
    """A closing whose tasks may find their work done."""

    @abstractmethod
    def adopted(self, task: Task) -> Iterator[Any] | None:
        """What goes to Spark of a task whose outputs were all found; None if it is to run."""


def adopted_by(last: object, task: Task) -> Iterator[Any] | None:
    """The same of any closing, which comes ``last`` in a stage."""
    if task.service is None or not task.service.settings.adopts or not isinstance(last, Adopts):
        return None
    return last.adopted(task)


def adopt(task: Task, exchanges: Sequence[int]) -> list[MapOutput] | None:
    """This task's finished output of each of these exchanges, None if one is missing."""
    from sortshuffle.service.client import ServiceClients

    assert task.service is not None
    settings = task.service.client_settings(0, ANSWERS_WITHIN)
    with closing(ServiceClients(settings)) as clients:
        found = [_found(task, exchange, clients) for exchange in exchanges]
    there = [each for each in found if each is not None]
    if len(there) < len(exchanges):
        for output, _ in there:
            _drop(task, output)
        return None
    for output, index in there:
        _count(task, output, index)
    return [output for output, _ in there]


def _found(task: Task, exchange: int, clients: ServiceClients) -> tuple[MapOutput, Index] | None:
    """One that is there, and its index."""
    for candidate in _candidates(task, exchange, clients):
        try:
            return candidate, task.reach.index(candidate)
        except (SortShuffleError, OSError):
            _drop(task, candidate)
    return None


def _count(task: Task, output: MapOutput, index: Index) -> None:
    """Its figures, for the task's report, which takes the place of that of the attempt that wrote it."""
    written = index.once()
    task.outputs.setdefault(output.exchange, TaskMetrics()).add(
        rows_written=int(written["records"].sum()),
        bytes_written=index.data_bytes,
        raw_bytes_written=int(written["raw_bytes"].sum()),
        buffers_written=int(written["buffers"].sum()),
        regions=index.regions,
        files=2,
    )


def _drop(task: Task, output: MapOutput) -> None:
    """Remove what was linked: the task will write its own under that name."""
    if output.attempt == task.attempt:
        output.file.delete()


def _candidates(task: Task, exchange: int, clients: ServiceClients) -> Iterator[MapOutput]:
    from sortshuffle.service.protocol import MapOutputAddress

    service = task.service
    assert service is not None
    own = service.address()
    wanted = MapOutputAddress(service.application, exchange, task.partition, 0, service.settings.driver)

    def ask(address: str) -> tuple[str, FoundOutput | None]:
        return address, _ask(clients, address, wanted)

    _, here = ask(own)
    if here is not None:
        linked = _linked(task, exchange, here) if here.host == host_name() else None
        if linked is not None:
            yield task.map_output(exchange, linked, here.file_id)
        yield _in_place(task, exchange, here, own)
    others = [address for address in service.other_addresses() if address != own]
    for address, there in _asked(ask, others):
        if there is not None:
            yield _in_place(task, exchange, there, address)


def _in_place(task: Task, exchange: int, found: FoundOutput, address: str) -> MapOutput:
    """The output where it is, which the service at ``address`` serves."""
    file = PartitionedFile(found.base)
    return MapOutput(file, found.file_id, task.partition, found.attempt, found.host, address, exchange)


def _asked(
    ask: Callable[[str], tuple[str, FoundOutput | None]], addresses: Iterable[str]
) -> Iterator[tuple[str, FoundOutput | None]]:
    """The answers, in the order of the addresses."""
    with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="sortshuffle-find") as threads:
        yield from threads.map(ask, addresses)


def _ask(clients: ServiceClients, address: str, wanted: MapOutputAddress) -> FoundOutput | None:
    if _silent.get(address, 0.0) > time.monotonic():
        return None
    try:
        return clients.client(address).find(wanted)
    except (SortShuffleError, OSError):
        _silent[address] = time.monotonic() + SILENT_FOR
        return None


def _linked(task: Task, exchange: int, found: FoundOutput) -> PartitionedFile | None:
    """The output under a name of this attempt, in this executor's home on the same disk."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(found.base)))  # <root>/<application>/<home>
    file = PartitionedFile(found.base)
    for home in task.files.homes():
        if os.path.dirname(os.path.dirname(home)) != root or os.path.basename(root) != HOME_ROOT:
            continue
        mine = PartitionedFile.named(home, exchange, task.partition, task.attempt)
        try:
            for there, here in ((file.data_path, mine.data_path), (file.index_path, mine.index_path)):
                os.utime(there, follow_symlinks=False)  # janitors remove what is old and Spark does not know
                os.link(there, here, follow_symlinks=False)
        except OSError:
            mine.delete()
            continue
        task.directory = home
        return mine
    return None
