"""What is done where a map output turns out to be lost: Spark is made to run its producer again.

Spark knows a map output by its own shuffle files, which hold the control rows. Python code cannot tell Spark
that a fetch failed; but where those files are gone, the next task that asks for them is a failed fetch, and
Spark runs the map task again. So whoever can reach them removes them: the consumer on the same host, or the
shuffle service of the host where they lie.
"""

from __future__ import annotations

import os

from sortshuffle.storage.lifetime import Owner, control_files
from sortshuffle.storage.partitioned_file import PartitionedFile


def make_producer_run_again(file: PartitionedFile) -> None:
    """Remove Spark's own control files of this map output, as far as this process can reach them."""
    if file.attempt is None:
        return
    owner = Owner.read(os.path.dirname(file.base))
    if owner is None:
        return
    for path in control_files(owner.local_directories, file.attempt):
        try:
            os.unlink(path)
        except OSError:
            continue  # whoever removed it meant the same
