"""The files that a task writes: its map outputs, and the rows that a merge puts aside.

If ``spark.sortshuffle.dir`` is a URL, map outputs go to storage that every host sees; the options then name
the application's directory there (`spark.session.shared_storage`). All other files go to the executor's homes
on local disks, which attempts use in rotation (`homes.directories`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import FileHeader
from sortshuffle.homes.directories import Homes
from sortshuffle.options import Options
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """Creates the files of one task attempt. ``partition``: its map index. ``served_by_spark``: as in
    `Owner`. ``key``: of the application, if its files are encrypted."""

    options: Options
    application: str
    stage: int
    partition: int
    attempt: int
    served_by_spark: bool = False
    key: EncryptionKey | None = None

    def home(self) -> str:
        """Return a local directory that this task may write to, made on first use."""
        return self._homes().pick(self.attempt)

    def homes(self) -> tuple[str, ...]:
        """Return the local directories that this task may write to, made on first use."""
        return self._homes().paths

    def new_map_output(self, exchange: int, header: FileHeader) -> PartitionedFileWriter:
        """Return the writer of this attempt's map output of an exchange, in a home that has room or in the
        storage that every host sees."""
        if self.options.storage_url:
            return PartitionedFileWriter(
                self._named(self.options.storage_url, exchange), header, key=self.key
            )
        return self._created(lambda home: self._named(home, exchange), header)

    def new_merge_file(self, header: FileHeader) -> PartitionedFileWriter:
        """Return the writer of a file for rows that a merge of too many runs puts aside. The file is removed
        when it has been read. If the task is killed, the janitor removes it, as a map output of this attempt:
        its name says so."""
        # a random name: one attempt may run a stage several times at once, for a frame joined to itself
        name = f"merge-{secrets.token_hex(8)}-{self._named('', self.stage).base}"
        return self._created(lambda home: PartitionedFile(os.path.join(home, name)), header)

    def _homes(self) -> Homes:
        options = self.options
        if options.storage_url:  # homes are then in Spark's own directories, which end with the executor
            options = replace(options, directories=(), keep=False, service="off")
        return Homes.of(options, self.application, self.served_by_spark)

    def _named(self, directory: str, exchange: int) -> PartitionedFile:
        return PartitionedFile.named(directory, exchange, self.partition, self.attempt)

    def _created(self, file: Callable[[str], PartitionedFile], header: FileHeader) -> PartitionedFileWriter:
        return self._homes().create(
            self.attempt, lambda home: PartitionedFileWriter(file(home), header, key=self.key)
        )
