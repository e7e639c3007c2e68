"""Adoption: a map task that runs again takes over what it had finished, where external services kept it.

With external services finished map outputs outlive their executor. When Spark runs a lost executor's map
tasks again, each asks first, before anything of its stage is opened, whether a service still has its output:
that of its own host, then those of all other hosts that had executors when the stage was planned. Where each
exchange of the stage has one, their control rows are all that the task gives.

* An output of this host is linked into this executor's own home, as an output of this attempt. So it lives,
  and is run again if it turns out to be lost, like any other, whatever becomes of its first home.
* One of another host, or that cannot be linked, stays where it is, and its service serves it. Its control
  rows say who adopted it. If it is lost, its consumer tells the service of the adopter's host, which finds
  Spark's files of the adopter by the adopter's home (`reach`). So an adopter has a home though it writes
  nothing.

Rules
* Only outputs of executors that have ended are taken (the services see to that), and only by application,
  driver, exchange and map index. Exchange numbers are a Python process's own: two that drive one
  SparkContext, or one that replaces another, count alike, and their random names tell them apart.
* Not over Connect, where executors are not known.
* Not in a stage that Spark calls indeterminate: it runs all tasks again where one is lost, and outputs of two
  runs would come together (`ServiceSettings.planned`).
* A stage whose task had no rows for one of its exchanges has no output there, and runs again.
* A task does not know whether it runs for the first time: Spark tells Python the number of the stage, and not
  of its attempt. So all ask. A service that does not answer at once is passed over, and not asked again for a
  while by any worker of the executor (`spark.worker.silence`); but one that this worker could not ask is.
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
from sortshuffle.spark.control import Adopter, SparkMapOutput
from sortshuffle.spark.worker.silence import Silence
from sortshuffle.storage.files.partitioned_file import PartitionedFile

if TYPE_CHECKING:
    from sortshuffle.service.wire.protocol import FoundOutput
    from sortshuffle.spark.worker.task import Task

ANSWERS_WITHIN = 1.0  # seconds; a service that runs answers within some ms
ASKED_WITHIN = 3.0  # seconds; all services. Enough where some tens of them do not answer


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


def adopt(task: Task, exchanges: Sequence[int]) -> list[SparkMapOutput] | None:
    """This task's finished output of each of these exchanges, None if one is missing."""
    answers = _answers(task, exchanges)
    found = [_found(task, exchange, each) for exchange, each in zip(exchanges, answers, strict=True)]
    there = [each for each in found if each is not None]
    if len(there) < len(exchanges):
        for output, _ in there:
            _drop(task, output)
        return None
    for output, index in there:
        _count(task, output, index)
    return [output for output, _ in there]


def _answers(task: Task, exchanges: Sequence[int]) -> list[list[tuple[str, FoundOutput]]]:
    """For each exchange what services have of it, and their addresses: that of this host first, whoever
    answered first."""
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
        service.client_settings(0, ANSWERS_WITHIN),
        ASKED_WITHIN,
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


def _found(
    task: Task, exchange: int, answers: Sequence[tuple[str, FoundOutput]]
) -> tuple[SparkMapOutput, Index] | None:
    """One that is there, and its index."""
    for candidate in _candidates(task, exchange, answers):
        try:
            return candidate, task.reach.index(candidate)
        except (SortShuffleError, OSError):
            _drop(task, candidate)
    return None


def _count(task: Task, output: SparkMapOutput, index: Index) -> None:
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


def _drop(task: Task, output: SparkMapOutput) -> None:
    """Remove what was linked: the task will write its own under that name. What cannot be removed goes with
    the attempt's control files."""
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
    """The output where it is, which the service at ``address`` serves. By the home of this executor, which
    `_answers` has made, its own service will know whose control files are those of this attempt."""
    assert task.service is not None
    file, adopter = PartitionedFile(found.base), Adopter(task.attempt, task.service.address())
    return SparkMapOutput(
        file, found.file_id, task.partition, found.attempt, found.host, address, exchange, adopter=adopter
    )


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
                # janitors remove what is old and Spark does not know
                calls.utime(there, follow_symlinks=False)
                calls.link(there, here, follow_symlinks=False)
        except OSError:
            with suppress(OSError):  # as a disk that can only be read does
                mine.delete()
            continue
        task.directory = home
        return mine
    return None
