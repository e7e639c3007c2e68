"""`Losses`: what a shuffle service does about map outputs that are damaged or gone.

A consumer on another host can neither tell a bad disk from a bad network nor reach Spark's control files. The
service does both: it reads what was reported itself, and where the bytes really are bad, or the files gone,
it removes Spark's control files of that map output, so that the retry of the consumer's task is a failed
fetch and Spark runs the producer again (`homes.loss`).

Rules
* That is done before the consumer hears of it: its retry must find the control files gone.
* It is done once for each map output, however many consumers report it.
* An id is what a client must know: whoever names a map output that is there with another id changes nothing.
  Whoever names one that is not there makes Spark run that map task again. So the secret must keep strangers
  away.
* Extents are verified in parts, and large buffers in pieces, so a report costs little memory however large
  either is, or says that it is.

Called by threads that may block, several at a time. Lock order: `_lock` is a leaf.
"""

from __future__ import annotations

import os
import threading

from sortshuffle.errors import CorruptDataError, MissingDataError, UsageError
from sortshuffle.homes.loss import make_producer_run_again, remove_control_files
from sortshuffle.homes.owner import Owner
from sortshuffle.service.server.catalog import Catalog
from sortshuffle.service.wire.protocol import DamageReport, MapOutputAddress, Verdict
from sortshuffle.storage.files.extents import Extent, extent_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index

VERIFIED_BYTES = 4 << 20  # of an extent, verified at a time
MOST_TOLD = 4096  # map outputs that are remembered as told; one that is told again costs a look at the disk


class Losses:
    """Judges and tells of map outputs in ``catalog``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._told: dict[MapOutputAddress, None] = {}  # the longest known first

    def judge(self, report: DamageReport) -> Verdict:
        """Read what was reported, and tell of it if it is bad. Raises `UsageError` for an extent that the map
        output does not have."""
        try:
            self._verify(report)
        except (CorruptDataError, MissingDataError) as error:
            self.tell(report.output)
            return Verdict.DAMAGED if isinstance(error, CorruptDataError) else Verdict.MISSING
        return Verdict.SOUND

    def tell(self, output: MapOutputAddress) -> None:
        """See to it that Spark runs the producer again. The files may be gone: its homes say whose it was.
        Where a home is gone, too, its root is one of Spark's own directories, unless others were named. An
        executor that has a map output of that name with another id is left alone. Raises OSError where a file
        cannot be opened that is there."""
        with self._lock:
            if output in self._told:
                return
        self._catalog.withdraw(output.file_id)
        places = self._catalog.places(output)
        others = [file for file in places if self._catalog.is_another(file, output.file_id)]
        spared = {directory for file in others for directory in _directories_of(file)}
        for file in places:
            if file not in others and spared.isdisjoint(_directories_of(file)):
                make_producer_run_again(file)
        if not others:
            remove_control_files(self._catalog.roots(), output.attempt)
        with self._lock:
            self._told[output] = None
            while len(self._told) > MOST_TOLD:
                del self._told[next(iter(self._told))]

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


def _directories_of(file: PartitionedFile) -> tuple[str, ...]:
    """Spark's local directories of the executor in whose home that is."""
    owner = Owner.read(os.path.dirname(file.base))
    return owner.local_directories if owner is not None else ()
