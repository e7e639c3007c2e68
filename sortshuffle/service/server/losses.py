"""`Losses`: handles map outputs that are damaged or gone.

A consumer on another host can neither tell a bad disk from a bad network nor reach Spark's control files. The
service can do both. It reads the reported extent itself. If the bytes are bad or the files gone, it removes
Spark's control files of that map output. Then the retry of the consumer's task has a failed fetch, and Spark
runs the producer again (`homes.loss`).

Rules
* The control files are removed before the consumer is answered: its retry must find them gone.
* That happens once for each map output, however many consumers report it.
* A report counts as handled only if the system has refused nothing. If it has, all else is done, and the next
  report tries again. For lack of descriptors or memory, which passes, the report fails, and the client asks
  again. Other errors may last, as on a broken disk: then the consumer is answered.
* A client must know a map output's id: a report with another id than the existing files' has no effect. But a
  report of files that do not exist makes Spark run the map task again, so the secret must keep strangers out.
* Extents are verified in parts, and large buffers in pieces. So a report costs little memory, however large
  the extent or buffer is or claims to be.

Called by threads that may block, several at a time. Lock order: `_lock` is a leaf.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from sortshuffle.errors import OUT_OF, CorruptDataError, MissingDataError, UsageError
from sortshuffle.homes.loss import make_producer_run_again, remove_control_files
from sortshuffle.homes.owner import Owner
from sortshuffle.service.server.catalog import Catalog
from sortshuffle.service.wire.protocol import DamageReport, MapOutputAddress, Verdict
from sortshuffle.storage.files.extents import Extent, extent_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index

_log = logging.getLogger(__name__)

VERIFIED_BYTES = 4 << 20  # of an extent, verified at a time
MOST_HANDLED = 4096  # handled map outputs to remember; handling one again costs some reads of the disk


SparkDirectories: TypeAlias = Callable[[str], Sequence[str]]
"""Returns the directories of Spark's for an application."""


def no_directories(application: str) -> Sequence[str]:
    return ()


class Losses:
    """Judges reports of damage to map outputs in ``catalog``, and has lost ones written again.

    ``spark_directories``: returns Spark's local directories of an application, or those above them that
    Spark makes for it alone. They are searched if no home names the map output's owner. Others must not be:
    attempts of all applications are numbered from 0, and Spark's files do not say whose they are. A service
    knows those of the application whose executors have registered with it, and `sortshuffle serve` knows
    none: then nothing is done for a lost home.
    """

    def __init__(self, catalog: Catalog, spark_directories: SparkDirectories = no_directories) -> None:
        self._catalog = catalog
        self._spark_directories = spark_directories
        self._lock = threading.Lock()
        self._handled: dict[MapOutputAddress, None] = {}  # the oldest first

    def judge(self, report: DamageReport) -> Verdict:
        """Read the reported extent, and call `report` if it is bad. Raises `UsageError` for an extent that
        the map output does not have."""
        try:
            self._verify(report)
        except (CorruptDataError, MissingDataError) as error:
            self.report(report.output)
            return Verdict.DAMAGED if isinstance(error, CorruptDataError) else Verdict.MISSING
        return Verdict.SOUND

    def report(self, output: MapOutputAddress) -> None:
        """Make Spark run the producer of a map output again. If its files are gone, the owner of its home
        still names Spark's directories. If the home is gone, too, those of the application are searched. An
        executor that has a map output of that name with another id is left alone. Raises OSError if an
        existing file cannot be opened, or for lack of descriptors or memory."""
        with self._lock:
            if output in self._handled:
                return
        self._catalog.withdraw(output.file_id)
        problems: list[OSError] = []
        places = self._catalog.places(output)
        others = [file for file in places if self._catalog.is_another(file, output.file_id)]
        spared = {directory for file in others for directory in _directories_of(file, problems)}
        for file in places:
            if file not in others and not (spared and spared.intersection(_directories_of(file, problems))):
                make_producer_run_again(file, on_error=problems.append)
        if not others:
            directories = self._spark_directories(output.application)
            remove_control_files(directories, output.attempt, problems.append)
        if problems:
            _raise_shortage(problems)
            _log.warning("what is left of Spark's files of %s cannot be told: %s", output, problems[0])
            return
        with self._lock:
            self._handled[output] = None
            while len(self._handled) > MOST_HANDLED:
                del self._handled[next(iter(self._handled))]

    def _verify(self, report: DamageReport) -> None:
        file = self._catalog.find(report.output)
        index = read_index(file, report.output.file_id)
        if report.region >= index.regions or report.subpartition >= index.header.subpartitions:
            raise UsageError(
                f"region {report.region}, subpartition {report.subpartition} of a result partition that has"
                f" {index.regions} regions and {index.header.subpartitions} subpartitions"
            )
        entry = index.entries[report.region, report.subpartition]
        extent: Extent = extent_of(entry, report.region, report.subpartition)
        with PartitionedFileReader(file, report.output.file_id, str(index.writer)) as reader:
            reader.verify(extent, VERIFIED_BYTES)


def _directories_of(file: PartitionedFile, problems: list[OSError]) -> tuple[str, ...]:
    """Return Spark's local directories of the executor in whose home the file is. If they cannot be read, add
    the error to ``problems``."""
    try:
        owner = Owner.load(os.path.dirname(file.base))
    except OSError as error:
        problems.append(error)
        return ()
    return owner.local_directories if owner is not None else ()


def _raise_shortage(problems: Sequence[OSError]) -> None:
    """Raise the first of these that says that this process or its host lacks descriptors or memory."""
    for problem in problems:
        if problem.errno in OUT_OF:
            raise problem
