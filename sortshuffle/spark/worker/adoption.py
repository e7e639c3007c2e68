"""Adoption: a map task that runs again reuses outputs of an earlier attempt that external services have kept.

With external services finished map outputs outlive their executor. When Spark runs a lost executor's map
tasks again, each task first asks for its earlier outputs: at the service of its own host, and at those of all
other hosts that had executors when the stage was planned. If there is an output for each exchange of the
stage, the task opens no input, and gives Spark the control rows of these outputs.

* An output on this host is linked into this executor's home, as an output of this attempt. From then on it is
  like any other output of the attempt, whatever happens to its first home.
* An output on another host, or one that cannot be linked, stays where it is, and its service serves it. Its
  control rows name the adopter. If it is lost, its consumer tells the service of the adopter's host, which
  finds Spark's files of the adopter by the adopter's home (`reach`). So an adopter has a home even if it
  writes nothing.

Rules
* Only outputs of ended executors are adopted, which the services ensure. Application, driver, exchange and
  map index must agree. Two Python processes that drive one SparkContext number their exchanges alike; their
  random driver names tell them apart.
* There is no adoption over Connect, where executors are not known.
* There is none in a stage that Spark calls indeterminate: Spark runs all its tasks again if one is lost, and
  outputs of two runs would be mixed (`ServiceSettings.for_stage`).
* A task that had no rows for one of its exchanges has no output there, and runs again.
* A task cannot tell whether it runs for the first time: Spark tells Python the number of the stage, but not
  of its attempt. So every task asks. If a service does not answer in time, no worker of the executor asks it
  again for a while (`spark.worker.silence`). A service that was not asked for lack of time does not count.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sortshuffle import calls
from sortshuffle.errors import SortShuffleError
from sortshuffle.format.index import Index
from sortshuffle.homes.host import host_name
from sortshuffle.homes.owner import HOME_ROOT
from sortshuffle.metrics import TaskMetrics
from sortshuffle.spark.control_rows import Adopter, SparkMapOutput
from sortshuffle.spark.worker.silence import Silence
from sortshuffle.storage.files.partitioned_file import PartitionedFile

if TYPE_CHECKING:
    from sortshuffle.service.wire.protocol import FoundOutput
    from sortshuffle.spark.worker.task import Task

ANSWER_SECONDS = 1.0  # for one service: a running one answers within some ms
ASK_SECONDS = 3.0  # for all services: enough if some tens of them do not answer


class AdoptingClosing(ABC):
    """A closing whose task may reuse the outputs of an earlier attempt instead of running."""

    @abstractmethod
    def adopt(self, task: Task) -> Iterator[Any] | None:
        """Return the control rows of the task's outputs if all were found; None if the task must run."""


def adopt(closing: object, task: Task) -> Iterator[Any] | None:
    """Call `AdoptingClosing.adopt`. Return None if the closing or the application does not adopt."""
    if task.service is None or not task.service.settings.adopts or not isinstance(closing, AdoptingClosing):
        return None
    return closing.adopt(task)


def finished_outputs(task: Task, exchanges: Sequence[int]) -> list[SparkMapOutput] | None:
    """Return this task's finished output of each exchange; None if one is missing."""
    answers = _answers(task, exchanges)
    found = [_first_readable(task, exchange, each) for exchange, each in zip(exchanges, answers, strict=True)]
    outputs = [each for each in found if each is not None]
    if len(outputs) < len(exchanges):
        for output, _ in outputs:
            _drop(task, output)
        return None
    for output, index in outputs:
        _count(task, output, index)
    return [output for output, _ in outputs]


def _answers(task: Task, exchanges: Sequence[int]) -> list[list[tuple[str, FoundOutput]]]:
    """Ask the services for outputs. Return, for each exchange, the outputs with the addresses of their
    services. The service of this host comes first, even if another answered sooner."""
    from sortshuffle.service.client.asking import ask_each
    from sortshuffle.service.wire.protocol import MapOutputAddress

    service = task.service
    assert service is not None
    application, driver = service.application, service.settings.driver
    wanted = [MapOutputAddress(application, each, task.partition, 0, driver) for each in exchanges]
    silence = Silence(task.files.homes()[0])
    addresses = silence.others(dict.fromkeys((service.address(), *service.other_addresses())))
    answers = ask_each(
        addresses,
        lambda client: [client.find(each) for each in wanted],
        service.client_settings(0, ANSWER_SECONDS),
        ASK_SECONDS,
    )
    silent = [address for address, found in answers.items() if found is None]
    if silent:
        silence.note(silent)
    return [
        [
            (address, each)
            for address in addresses
            if (found := answers.get(address)) and (each := found[at]) is not None
        ]
        for at in range(len(exchanges))
    ]


def _first_readable(
    task: Task, exchange: int, answers: Sequence[tuple[str, FoundOutput]]
) -> tuple[SparkMapOutput, Index] | None:
    """Return the first of these outputs whose index can be read, with the index."""
    for candidate in _candidates(task, exchange, answers):
        try:
            return candidate, task.reach.index(candidate)
        except (SortShuffleError, OSError):
            _drop(task, candidate)
    return None


def _count(task: Task, output: SparkMapOutput, index: Index) -> None:
    """Add the output's figures to the task's report, which replaces that of the attempt that wrote it."""
    written = index.once()
    task.outputs.setdefault(output.exchange, TaskMetrics()).add(
        rows_written=int(written["records"].sum()),
        bytes_written=index.data_bytes,
        raw_bytes_written=int(written["raw_bytes"].sum()),
        buffers_written=int(written["buffers"].sum()),
        regions=index.regions,
        files=2,
    )


def _drop(task: Task, output: SparkMapOutput) -> None:
    """Remove a linked output: the task will write its own under that name. If that fails, the janitor removes
    it once Spark has dropped the attempt's control files."""
    if output.attempt == task.attempt:
        with suppress(OSError):
            output.file.delete()


def _candidates(
    task: Task, exchange: int, answers: Sequence[tuple[str, FoundOutput]]
) -> Iterator[SparkMapOutput]:
    for address, found in answers:
        linked = _linked(task, exchange, found) if found.host == host_name() else None
        if linked is not None:
            yield task.map_output(exchange, linked, found.file_id)
        yield _in_place(task, exchange, found, address)


def _in_place(task: Task, exchange: int, found: FoundOutput, address: str) -> SparkMapOutput:
    """Describe an output that stays where it is, served from ``address``. This host's service finds the
    control files of this attempt by the executor's home, which `_answers` has made."""
    assert task.service is not None
    file, adopter = PartitionedFile(found.base), Adopter(task.attempt, task.service.address())
    return SparkMapOutput(
        file, found.file_id, task.partition, found.attempt, found.host, address, exchange, adopter=adopter
    )


def _linked(task: Task, exchange: int, found: FoundOutput) -> PartitionedFile | None:
    """Link an output into this executor's home on the same disk, as this attempt's. None if that fails."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(found.base)))  # <root>/<application>/<home>
    file = PartitionedFile(found.base)
    for home in task.files.homes():
        if os.path.dirname(os.path.dirname(home)) != root or os.path.basename(root) != HOME_ROOT:
            continue
        mine = PartitionedFile.named(home, exchange, task.partition, task.attempt)
        try:
            for there, here in ((file.data_path, mine.data_path), (file.index_path, mine.index_path)):
                # a fresh time stamp: janitors remove old files that Spark does not know
                calls.utime(there, follow_symlinks=False)
                calls.link(there, here, follow_symlinks=False)
        except OSError:
            with suppress(OSError):  # fails on a read-only disk
                mine.delete()
            continue
        task.directory = home
        return mine
    return None
